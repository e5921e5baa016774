//go:build ignore

// Go-mysql-server runs dolthub/go-mysql-server at the given address, with an in-memory database named app and no
// authentication.
package main

import (
	"fmt"
	"os"

	sqle "github.com/dolthub/go-mysql-server"
	"github.com/dolthub/go-mysql-server/memory"
	"github.com/dolthub/go-mysql-server/server"
	"github.com/dolthub/go-mysql-server/sql"
)

func main() {
	if err := serve(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "go-mysql-server:", err)
		os.Exit(1)
	}
}

func serve(addr string) error {
	provider := memory.NewDBProvider(memory.NewDatabase("app"))
	s, err := server.NewServer(server.Config{Protocol: "tcp", Address: addr}, sqle.NewDefault(provider),
		sql.NewContext, memory.NewSessionBuilder(provider), nil)
	if err != nil {
		return err
	}
	return s.Start()
}
