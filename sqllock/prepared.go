package sqllock

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"time"
)

// preparedPool holds statements that are compiled once per connection. SQLite compiles in this process, and
// compiling is most of the work of a statement. Other databases may be behind a pooler, which does not support
// prepared statements.
type preparedPool struct {
	db *sql.DB
	// room holds one place for each connection of a pool that only the driver uses and whose statements never
	// block. Then a context ends the wait for a place, and need not watch each statement, which would cost as
	// much as the statement. nil: statements may block.
	room chan struct{}
	nap  func(time.Duration) // sleeps for less than a millisecond; nil: use a timer

	mu    sync.Mutex // guards the fields below
	stmts map[string]*sql.Stmt
}

// neverBlocks is implemented by the sql driver of a pool that only a Driver of this package uses, and whose
// statements never block, not even for another writer. Package sqlite has one.
type neverBlocks interface {
	// Nap sleeps for less than a millisecond.
	Nap(d time.Duration)
}

// newPreparedPool returns a store of prepared statements for db.
func newPreparedPool(db *sql.DB) *preparedPool {
	l := &preparedPool{db: db, stmts: make(map[string]*sql.Stmt)}
	if driver, ok := db.Driver().(neverBlocks); ok {
		l.room, l.nap = make(chan struct{}, max(db.Stats().MaxOpenConnections, 1)), driver.Nap
	}
	return l
}

// awaitConn waits for a free connection. leave returns it. Its error is not a fault of the file, because no
// statement was sent.
func (l *preparedPool) awaitConn(ctx context.Context) (leave func(), err error) {
	if l.room == nil {
		return func() {}, nil // the pool itself waits
	}
	if err := ctx.Err(); err != nil {
		return nil, busyError{err}
	}
	select {
	case l.room <- struct{}{}:
		return func() { <-l.room }, nil
	case <-ctx.Done():
		return nil, busyError{fmt.Errorf("no answer in time, and all %d connections to the file are in use: %w", cap(l.room), ctx.Err())}
	}
}

// statementContext returns the context for one statement.
func (l *preparedPool) statementContext(ctx context.Context) context.Context {
	if l.room == nil {
		return ctx
	}
	return context.WithoutCancel(ctx)
}

// maxPrepared bounds the number of statements that are kept: renewals need one for each number of locks.
const maxPrepared = 64

// statementFor returns the prepared statement for text, or nil if none is kept.
func (l *preparedPool) statementFor(ctx context.Context, text string) *sql.Stmt {
	l.mu.Lock()
	s, full := l.stmts[text], len(l.stmts) >= maxPrepared
	l.mu.Unlock()
	if s != nil || full {
		return s
	}
	s, err := l.db.PrepareContext(ctx, text)
	if err != nil {
		return nil // the unprepared statement fails too
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if other := l.stmts[text]; other != nil || l.stmts == nil {
		s.Close() // another goroutine was faster, or the driver is closed
		return other
	}
	l.stmts[text] = s
	return s
}

// preparedTx is a transaction that uses prepared statements.
type preparedTx struct {
	kept *preparedPool
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
func (l *preparedPool) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	ctx = l.statementContext(ctx)
	if s := l.statementFor(ctx, query); s != nil {
		return s.ExecContext(ctx, args...)
	}
	return l.db.ExecContext(ctx, query, args...)
}

// QueryContext implements querier.
func (l *preparedPool) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	ctx = l.statementContext(ctx)
	if s := l.statementFor(ctx, query); s != nil {
		return s.QueryContext(ctx, args...)
	}
	return l.db.QueryContext(ctx, query, args...)
}

// QueryRowContext implements querier.
func (l *preparedPool) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	ctx = l.statementContext(ctx)
	if s := l.statementFor(ctx, query); s != nil {
		return s.QueryRowContext(ctx, args...)
	}
	return l.db.QueryRowContext(ctx, query, args...)
}

// close closes all statements.
func (l *preparedPool) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.stmts {
		s.Close()
	}
	l.stmts = nil
}
