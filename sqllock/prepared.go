package sqllock

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"time"
)

// prepared has statements that are compiled once for each connection, which for SQLite, where that is done in this process, is most of
// the work. Elsewhere a pooler may stand before the server, which does not bear them.
type prepared struct {
	db *sql.DB
	// room has a place for each connection of a pool that only the driver uses, and whose statements wait for nothing. Then contexts end
	// the wait for a place, and need not watch each statement, which costs as much as the statement itself. nil: statements may wait.
	room chan struct{}
	nap  func(time.Duration) // blocks for less than a millisecond; nil: nothing does better than a timer

	mu    sync.Mutex // guards what follows
	stmts map[string]*sql.Stmt
}

// instant is implemented by the sql driver of a pool that only a Driver of this package uses, and none of whose statements waits, not for
// another writer either. Package sqlite has one.
type instant interface {
	// Nap blocks for less than a millisecond.
	Nap(d time.Duration)
}

// newPrepared returns an empty shelf for the statements of a pool.
func newPrepared(db *sql.DB) *prepared {
	l := &prepared{db: db, stmts: make(map[string]*sql.Stmt)}
	if driver, ok := db.Driver().(instant); ok {
		l.room, l.nap = make(chan struct{}, max(db.Stats().MaxOpenConnections, 1)), driver.Nap
	}
	return l
}

// awaitConn waits until a connection is free, and returns what gives it back.
func (l *prepared) awaitConn(ctx context.Context) (leave func(), err error) {
	if l.room == nil {
		return func() {}, nil // the pool waits
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case l.room <- struct{}{}:
		return func() { <-l.room }, nil
	case <-ctx.Done():
		return nil, busy{fmt.Errorf("no answer in time, and all %d connections to the file are in use: %w", cap(l.room), ctx.Err())}
	}
}

// statementContext returns the context for one statement.
func (l *prepared) statementContext(ctx context.Context) context.Context {
	if l.room == nil {
		return ctx
	}
	return context.WithoutCancel(ctx)
}

// shelf bounds the number of statements that are kept: there is one for each number of locks that a renewal is for.
const shelf = 64

// statementFor returns the prepared statement for text, or nil if none is kept.
func (l *prepared) statementFor(ctx context.Context, text string) *sql.Stmt {
	l.mu.Lock()
	s, full := l.stmts[text], len(l.stmts) >= shelf
	l.mu.Unlock()
	if s != nil || full {
		return s
	}
	s, err := l.db.PrepareContext(ctx, text)
	if err != nil {
		return nil // it fails without, too
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if other := l.stmts[text]; other != nil || l.stmts == nil {
		s.Close() // another was faster, or the driver is closed
		return other
	}
	l.stmts[text] = s
	return s
}

// preparedTx is a transaction with the statements that are kept.
type preparedTx struct {
	kept *prepared
	*sql.Tx
}

// statementFor returns the prepared statement for text, or nil if none is kept.
func (t preparedTx) statementFor(ctx context.Context, text string) *sql.Stmt {
	t.kept.mu.Lock()
	s := t.kept.stmts[text]
	t.kept.mu.Unlock()
	if s == nil {
		return nil
	}
	return t.StmtContext(ctx, s)
}

// ExecContext implements querier.
func (t preparedTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	ctx = t.kept.statementContext(ctx)
	if s := t.statementFor(ctx, query); s != nil {
		return s.ExecContext(ctx, args...)
	}
	return t.Tx.ExecContext(ctx, query, args...)
}

// QueryRowContext implements querier.
func (t preparedTx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	ctx = t.kept.statementContext(ctx)
	if s := t.statementFor(ctx, query); s != nil {
		return s.QueryRowContext(ctx, args...)
	}
	return t.Tx.QueryRowContext(ctx, query, args...)
}

// ExecContext implements querier.
func (l *prepared) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	ctx = l.statementContext(ctx)
	if s := l.statementFor(ctx, query); s != nil {
		return s.ExecContext(ctx, args...)
	}
	return l.db.ExecContext(ctx, query, args...)
}

// QueryContext implements querier.
func (l *prepared) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	ctx = l.statementContext(ctx)
	if s := l.statementFor(ctx, query); s != nil {
		return s.QueryContext(ctx, args...)
	}
	return l.db.QueryContext(ctx, query, args...)
}

// QueryRowContext implements querier.
func (l *prepared) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	ctx = l.statementContext(ctx)
	if s := l.statementFor(ctx, query); s != nil {
		return s.QueryRowContext(ctx, args...)
	}
	return l.db.QueryRowContext(ctx, query, args...)
}

// close forgets all statements.
func (l *prepared) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.stmts {
		s.Close()
	}
	l.stmts = nil
}
