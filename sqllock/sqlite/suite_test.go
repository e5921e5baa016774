package sqlite_test

import (
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/locktest"
	"github.com/holdfast-go/holdfast/sqllock/sqlite"
)

// TestConformance runs the suite on real files in bubbles: SQLite is part of the process, and its calls take
// no virtual time. The bells ring within the process.
func TestConformance(t *testing.T) {
	t.Parallel()
	locktest.Run(t, newHarness(func(string) int { return 1 }))
}

// The bells lose rings, double others, and ring for owners to which nothing was handed.
func TestConformanceWithFaultyWakeUps(t *testing.T) {
	t.Parallel()
	locktest.Run(t, newHarness(func(message string) int {
		if strings.HasPrefix(message, "forced") {
			return 1 // the suite expects the holder to be notified
		}
		return rand.N(3)
	}))
}

// newHarness returns a harness for drivers whose bells deliver a message times(message) times.
func newHarness(times func(message string) int) locktest.Harness {
	return locktest.Harness{Bubble: true, Start: func(t testing.TB) locktest.Service {
		file := filepath.Join(t.TempDir(), "locks.db")
		db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(200)")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		bells := newBells()
		bells.times = times
		return locktest.Service{
			Nodes:     1,
			Open:      func() (driver.Driver, error) { return sqlite.OpenWith(t.Context(), "sqlite://"+file, bells.open) },
			Leftovers: func() ([]string, error) { return leftoverRows(t, db) },
		}
	}}
}

// bells are the bells of one file. The processes are goroutines of a bubble, and a ring arrives at once.
type bells struct {
	times func(message string) int

	mu   sync.Mutex // guards the fields below
	hear map[string]func(string)
}

// newBells returns bells that deliver each message once.
func newBells() *bells {
	return &bells{times: func(string) int { return 1 }, hear: make(map[string]func(string))}
}

func (b *bells) open(_, id string, hear func(string)) (sqlite.Socket, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hear[id] = hear
	return oneBell{b, id}, nil
}

// oneBell is the bell of one process.
type oneBell struct {
	*bells
	id string
}

func (b oneBell) Ring(id, message string) (dead bool) {
	b.mu.Lock()
	hear := b.hear[id]
	b.mu.Unlock()
	if hear == nil {
		return true
	}
	for range b.times(message) {
		hear(message)
	}
	return false
}

func (b oneBell) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.hear, b.id)
}

// leftoverRows returns all locks and tickets.
func leftoverRows(t testing.TB, db *sql.DB) (left []string, err error) {
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
