package sqlite_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"modernc.org/sqlite"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/sqllock"
	locksqlite "github.com/holdfast-go/holdfast/sqllock/sqlite"
)

// gate suspends a process before its next statement with this text. The statement's arguments, and so its
// time, are fixed by then.
type gate struct {
	mu     sync.Mutex // guards the fields below
	text   string     // empty: none
	caught chan struct{}
	open   chan struct{}
}

// stopStatement makes the next statement with text wait for resume. caught is closed once it waits.
func (g *gate) stopStatement(text string) (caught <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.text, g.caught, g.open = text, make(chan struct{}), make(chan struct{})
	return g.caught
}

func (g *gate) resume() { close(g.open) }

func (g *gate) passStatement(text string) {
	g.mu.Lock()
	stops := g.text != "" && strings.Contains(text, g.text)
	caught, open := g.caught, g.open
	if stops {
		g.text = ""
	}
	g.mu.Unlock()
	if stops {
		close(caught)
		<-open
	}
}

// gatedConnector opens connections whose statements pass the gate.
type gatedConnector struct {
	sqldriver.Connector
	gate *gate
}

func (c gatedConnector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return gatedConn{conn.(plainConn), c.gate}, nil
}

type plainConn interface {
	sqldriver.Conn
	sqldriver.ConnBeginTx
	sqldriver.ConnPrepareContext
}

type gatedConn struct {
	plainConn
	gate *gate
}

func (c gatedConn) PrepareContext(ctx context.Context, text string) (sqldriver.Stmt, error) {
	s, err := c.plainConn.PrepareContext(ctx, text)
	if err != nil {
		return nil, err
	}
	return gatedStmt{s.(plainStmt), text, c.gate}, nil
}

type plainStmt interface {
	sqldriver.Stmt
	sqldriver.StmtExecContext
	sqldriver.StmtQueryContext
}

type gatedStmt struct {
	plainStmt
	text string
	gate *gate
}

// ExecContext executes the statement even if its context has ended, as a process does that was suspended
// within the call.
func (s gatedStmt) ExecContext(ctx context.Context, args []sqldriver.NamedValue) (sqldriver.Result, error) {
	s.gate.passStatement(s.text)
	return s.plainStmt.ExecContext(context.WithoutCancel(ctx), args)
}

func (s gatedStmt) QueryContext(ctx context.Context, args []sqldriver.NamedValue) (sqldriver.Rows, error) {
	s.gate.passStatement(s.text)
	return s.plainStmt.QueryContext(context.WithoutCancel(ctx), args)
}

// A process is suspended between reading the clock and executing its statement. It resumes when its lease, or
// the lease that it would have acquired, is over and another process has the lock.
func TestSuspendedProcessSparesOthersLocks(t *testing.T) {
	t.Parallel()
	const ttl = 5 * time.Second
	for name, c := range map[string]struct {
		text  string // text of the statement
		held  bool   // the process has the lock before
		do    func(ctx context.Context, d driver.Driver, g driver.Grant) error
		fails bool // the process is too late to take or keep the lock
	}{
		"acquire": {"ON CONFLICT (name) DO UPDATE", false, func(ctx context.Context, d driver.Driver, _ driver.Grant) error {
			_, err := d.Acquire(ctx, driver.Request{Key: "k", TTL: ttl, NoWait: true})
			return err
		}, true},
		"renew": {"CASE WHEN expires", true, func(ctx context.Context, d driver.Driver, g driver.Grant) error {
			return d.Renew(ctx, []driver.Grant{g})[0].Err
		}, true},
		"release": {"SET stamp = ?, owner = ''", true, func(ctx context.Context, d driver.Driver, g driver.Grant) error {
			return d.Release(ctx, g, 0)
		}, false},
		"release that was read": {"SELECT o.at", true, func(ctx context.Context, d driver.Driver, g driver.Grant) error {
			return d.Release(ctx, g, time.Second)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "locks.db")
			synctest.Test(t, func(t *testing.T) {
				must := func(err error) {
					t.Helper()
					if err != nil {
						t.Fatal(err)
					}
				}
				other, err := locksqlite.OpenWith(t.Context(), "sqlite://"+path, newBells().open)
				must(err)
				defer other.Close()
				file, err := sqlite.NewConnector("file:" + path + "?_txlock=immediate")
				must(err)
				gate := &gate{}
				db := sql.OpenDB(gatedConnector{file, gate})
				defer db.Close()
				stopped, err := sqllock.New(t.Context(), db, sqllock.SQLite, nil)
				must(err)
				defer stopped.Close()
				g, err := stopped.Acquire(t.Context(), driver.Request{Key: "k", TTL: ttl})
				must(err)
				if !c.held {
					must(stopped.Release(t.Context(), g, 0))
				}
				outcome := make(chan error, 1)
				inTransaction := strings.HasPrefix(c.text, "SELECT")
				caught := gate.stopStatement(c.text)
				go func() { outcome <- c.do(t.Context(), stopped, g) }()
				<-caught
				if inTransaction {
					// The suspended process has locked the file, so every other process gets an error that the
					// file is locked.
					_, err := other.Acquire(t.Context(), driver.Request{Key: "k", TTL: time.Second, NoWait: true})
					if !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), "locked") {
						t.Errorf("Acquire() beside a process stopped in a transaction = %v, want a locked file", err)
					}
					gate.resume()
					must(<-outcome)
				}
				own, err := other.Acquire(t.Context(), driver.Request{Key: "k", TTL: time.Minute})
				must(err)
				if own.Token <= g.Token {
					t.Errorf("token %d after %d", own.Token, g.Token)
				}
				if !inTransaction {
					time.Sleep(2 * ttl)
					gate.resume()
					if err := <-outcome; c.fails && err == nil {
						t.Error("the stopped process trusts a lock of another owner")
					}
				}
				must(other.Check(t.Context(), own))
				st, err := other.Inspect(t.Context(), "k")
				must(err)
				if st.Owner != own.Owner || st.Remaining > time.Minute || st.Remaining < 40*time.Second {
					t.Errorf("lock = %+v, want it unchanged", st)
				}
				must(other.Release(t.Context(), own, 0))
			})
		})
	}
}
