package sqlite_test

import (
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/locktest"
	"github.com/holdfast-go/holdfast/sqllock/sqlite"
)

// TestConformance goes through the suite on real files in bubbles: SQLite is part of the process and its calls take no virtual time.
func TestConformance(t *testing.T) {
	t.Parallel()
	locktest.Run(t, locktest.Harness{Bubble: true, Start: func(t testing.TB) locktest.Service {
		file := filepath.Join(t.TempDir(), "locks.db")
		db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(200)")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		return locktest.Service{
			Nodes:     1,
			Open:      func() (driver.Driver, error) { return sqlite.Open(t.Context(), "sqlite://"+file, nil) },
			Leftovers: func() ([]string, error) { return leftovers(t, db) },
		}
	}})
}

// leftovers are all locks and tickets.
func leftovers(t testing.TB, db *sql.DB) (left []string, err error) {
	for kind, text := range map[string]string{
		"lock": "SELECT name FROM holdfast_lock WHERE owner <> '' AND expires > ", "ticket": "SELECT name FROM holdfast_ticket WHERE expires > ",
	} {
		rows, err := db.QueryContext(t.Context(), fmt.Sprint(text, time.Now().UnixMicro()))
		if err != nil {
			return nil, err
		}
		for rows.Next() {
			var name string
			err = errors.Join(err, rows.Scan(&name))
			left = append(left, kind+" "+name)
		}
		if err := errors.Join(err, rows.Err(), rows.Close()); err != nil {
			return nil, err
		}
	}
	return left, nil
}
