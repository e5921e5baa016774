// Package pgxfence is package sqlfence for programs that use pgx. It protects rows in a PostgreSQL database
// from writers who have lost their lease: the check of the fencing token and the write are one transaction, or
// one statement.
//
// # What is not promised
//
// A Fence does not stop a program that bypasses the check. The highest token is as durable as the rows: a
// database that fails over and loses its last commits forgets both. Tokens of two lock services cannot be
// compared: see package fence.
//
// # The rule
//
// As in package fence, a token is rejected if a higher token was seen for the guard, or an equal token of
// another lease. The table and the statements are the same as in package sqlfence, so programs with either
// package can share one table. See there for more.
//
// (M. Kleppmann, "How to do distributed locking", 2016.)
package pgxfence

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence/internal/sqlguard"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// Options configure a Fence. The zero value works.
type Options struct {
	// Table keeps the tokens, one row for each guard. Default "holdfast_fence". The name may have a schema:
	// "locks.fence".
	Table string
}

// Querier runs a statement: a pgx.Tx, *pgx.Conn or *pgxpool.Pool.
type Querier interface {
	Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, query string, args ...any) pgx.Row
}

// Beginner begins transactions: a *pgx.Conn or *pgxpool.Pool.
type Beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// querier adapts a Querier to package sqlguard.
type querier struct{ q Querier }

// Exec implements sqlguard.Querier.
func (q querier) Exec(ctx context.Context, query string, args ...any) error {
	_, err := q.q.Exec(ctx, query, args...)
	return err
}

// Row implements sqlguard.Querier.
func (q querier) Row(ctx context.Context, query string, args ...any) interface{ Scan(into ...any) error } {
	return q.q.QueryRow(ctx, query, args...)
}

// Fence checks tokens in one database. It is safe for concurrent use.
type Fence struct{ table sqlguard.Table }

// New returns a Fence. opts may be nil. New does not block. The table must exist: see Create.
func New(opts *Options) (*Fence, error) {
	if opts == nil {
		opts = &Options{}
	}
	table, err := sqlguard.New("pgxfence", sqlguard.PostgreSQL, opts.Table)
	if err != nil {
		return nil, err
	}
	return &Fence{table}, nil
}

// Schema returns the statement that creates the table unless it exists, for programs that keep their schema in
// files.
func (f *Fence) Schema() string { return f.table.Create }

// Create creates the table unless it exists. Several programs may call it at once; the table exists when
// Create returns. Inside a transaction the second of two concurrent calls may fail.
func (f *Fence) Create(ctx context.Context, q Querier) error {
	return f.table.CreateTable(ctx, querier{q})
}

// Do runs write in a transaction that begins with the claim of guard by token and owner, and commits it. It
// blocks while another transaction has claimed the same guard. For a stale token it returns a
// *fence.StaleError and does not call write. After an error of write, or a panic, everything is rolled back,
// the claim included. After any other error the transaction may have been committed, and Do may be repeated.
// The isolation level is the database's default.
func (f *Fence) Do(ctx context.Context, db Beginner, guard string, token holdfast.Token, owner string, write func(pgx.Tx) error) error {
	tx, err := db.Begin(ctx)
	if err != nil {
		return f.table.WrapError(guard, err)
	}
	defer rollBack(ctx, tx)
	if err := f.Claim(ctx, tx, guard, token, owner); err != nil {
		return err
	}
	if err := write(tx); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return f.table.WrapError(guard, err)
	}
	return nil
}

// rollBack rolls tx back even if ctx has ended, because another writer may wait for it. On a dead connection
// it gives up after the time of a release. Its own error is ignored: the transaction has ended, or its error
// is already being returned.
func rollBack(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pace.ReleaseTime())
	defer cancel()
	tx.Rollback(ctx)
}

// Claim records a token. In a transaction it comes first, and protects what the transaction reads and writes
// until it ends. On a pool or a connection it rejects older holders from then on: use it before a read that
// feeds a later write. For a stale token it returns a *fence.StaleError. After any other error the claim may
// have been recorded. pgx.ErrTxClosed also means that a statement of the transaction was COMMIT or ROLLBACK.
// At REPEATABLE READ and above, the server rejects a transaction whose snapshot is older than the last claim
// of the guard (40001): begin it again.
func (f *Fence) Claim(ctx context.Context, q Querier, guard string, token holdfast.Token, owner string) error {
	err := f.table.Claim(ctx, querier{q}, guard, token, owner)
	tx, ok := q.(pgx.Tx)
	if err != nil || !ok || tx.Conn() == nil { // nil in a test's fake
		return err
	}
	if tx.Conn().PgConn().TxStatus() == 'I' {
		return f.table.WrapError(guard, fmt.Errorf("%w: something in it has sent COMMIT or ROLLBACK, so the claim covers nothing; begin another", pgx.ErrTxClosed))
	}
	return nil
}

// Highest returns the highest token seen for guard and the owner of its lease, or 0 and "". It records
// nothing.
func (f *Fence) Highest(ctx context.Context, q Querier, guard string) (token holdfast.Token, owner string, err error) {
	return f.table.Highest(ctx, querier{q}, guard)
}

// Forget deletes the entry of guard. No program may write under guard any more, because a stale holder would
// not be rejected.
func (f *Fence) Forget(ctx context.Context, q Querier, guard string) error {
	return f.table.Forget(ctx, querier{q}, guard)
}

// CheckApplied turns the outcome of a conditional write, to rows that carry their own token, into an error: if the
// write found no row, it returns a *fence.StaleError whose Highest is not known.
func CheckApplied(guard string, token holdfast.Token, tag pgconn.CommandTag, err error) error {
	if err != nil {
		return err
	}
	return sqlguard.CheckApplied(guard, token, tag.RowsAffected())
}
