package sqltest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast/fence/sqlfence"
	"github.com/holdfast-go/holdfast/internal/rig/child"
	"github.com/holdfast-go/holdfast/internal/rig/mariaproc"
	"github.com/holdfast-go/holdfast/internal/rig/tempo"
)

// mariaDB is one server for all tests; each test has its own database.
var mariaDB = sync.OnceValues(func() (*mariaproc.Server, error) {
	server, err := mariaproc.Start(context.Background())
	if err == nil {
		atEnd(server.Stop)
	}
	return server, err
})

// mariaDSN makes the driver count found rows, not changed rows: see sqlfence.CheckApplied.
func mariaDSN(s *mariaproc.Server, name string) string {
	return "root@unix(" + s.Socket() + ")/" + name + "?clientFoundRows=true"
}

func openMariaDB(t *testing.T) *database { return openMySQLOn(t, mariaDB) }

// mySQL is one server for all tests.
var mySQL = sync.OnceValues(func() (*mariaproc.Server, error) {
	server, err := mariaproc.StartMySQL(context.Background())
	if err == nil {
		atEnd(server.Stop)
	}
	return server, err
})

func openMySQL(t *testing.T) *database {
	if testing.Short() {
		t.Skip("-short goes through MariaDB alone")
	}
	return openMySQLOn(t, mySQL)
}

// openMySQLOn creates a database on a MariaDB or MySQL server.
func openMySQLOn(t *testing.T, start func() (*mariaproc.Server, error)) *database {
	server, err := start()
	if errors.Is(err, child.ErrNotFetched) && !child.Required() {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	admin := connectTo(t, "mysql", mariaDSN(server, ""))
	name := fmt.Sprintf("test_%d", time.Now().UnixNano())
	if _, err := admin.Exec("CREATE DATABASE " + name); err != nil {
		t.Fatal(err)
	}
	return newDatabase(t, connectTo(t, "mysql", mariaDSN(server, name)), sqlfence.MySQL, plainPlaceholder)
}

// servers are shared by the tests, and stopped by TestMain.
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
	end := tempo.Start()
	code := m.Run()
	end()
	for _, stop := range servers.stop {
		if err := stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}
