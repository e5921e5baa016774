package sqltest

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast/fence/sqlfence"
	"github.com/holdfast-go/holdfast/internal/rig/mariaproc"
)

// mariaDB is one server for all tests; each gets a database of its own.
var mariaDB = sync.OnceValues(func() (*mariaproc.Server, error) {
	server, err := mariaproc.Start(context.Background())
	if err == nil {
		atEnd(server.Stop)
	}
	return server, err
})

// mariaDSN counts rows that were found, not rows that were changed: see sqlfence.Applied.
func mariaDSN(s *mariaproc.Server, name string) string {
	return "root@unix(" + s.Socket() + ")/" + name + "?clientFoundRows=true"
}

func openMariaDB(t *testing.T) *database {
	server, err := mariaDB()
	if err != nil {
		t.Fatal(err)
	}
	admin := connect(t, "mysql", mariaDSN(server, ""))
	name := fmt.Sprintf("test_%d", time.Now().UnixNano())
	if _, err := admin.Exec("CREATE DATABASE " + name); err != nil {
		t.Fatal(err)
	}
	return newDatabase(t, connect(t, "mysql", mariaDSN(server, name)), sqlfence.MySQL, unnumbered)
}

// servers are what the tests share, and TestMain stops.
var servers struct {
	mu   sync.Mutex // guards stop
	stop []func() error
}

func atEnd(stop func() error) {
	servers.mu.Lock()
	defer servers.mu.Unlock()
	servers.stop = append(servers.stop, stop)
}

func TestMain(m *testing.M) {
	code := m.Run()
	for _, stop := range servers.stop {
		if err := stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}
