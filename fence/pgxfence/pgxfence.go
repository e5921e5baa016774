// Package pgxfence is package sqlfence for programs that use pgx: rows in a
// PostgreSQL database that rejects writers who have lost their lease. The check of the
// fencing token and the write are one transaction, or one statement.
//
// # What is not promised
//
// A Fence does not hold back a program that writes around the check. The highest
// token is as durable as the rows: a database that fails over and loses its last
// commits forgets both. Tokens of two lock services do not compare: see package
// fence.
//
// # The rule
//
// As in package fence, a token is rejected when a higher token was seen for the
// guard, or an equal token of another lease. Table and statements are the same as in
// package sqlfence, so that programs with either package share one table. See there
// for more.
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
	// Table keeps the tokens, one row for each guard. Default "holdfast_fence"; a
	// schema may stand before it: "locks.fence".
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

// querier is a Querier as package sqlguard wants it.
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

// New returns a Fence; opts may be nil. It does not block. The table must exist:
// see Create.
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

// Schema returns the statement that makes the table unless it exists, for programs
// that keep their schema in files.
func (f *Fence) Schema() string { return f.table.Create }

// Create makes the table unless it exists. Several programs may call it at once,
// and each finds the table there when it returns; inside a transaction the one
// that comes second may fail.
func (f *Fence) Create(ctx context.Context, q Querier) error {
	return f.table.Make(ctx, querier{q})
}

// Do runs write in a transaction that begins with the claim of guard by token and
// owner of the lease, and commits it. It blocks while another transaction
// has claimed the same guard. A stale token is a *fence.StaleError, and write is
// not called; after an error of write, or a panic, everything is rolled back, the
// claim too. After any other error the transaction may have been committed, and
// Do may be repeated. The isolation level is the database's default.
func (f *Fence) Do(ctx context.Context, db Beginner, guard string, token holdfast.Token, owner string, write func(pgx.Tx) error) error {
	tx, err := db.Begin(ctx)
	if err != nil {
		return f.table.Failure(guard, err)
	}
	defer rollBack(ctx, tx)
	if err := f.Claim(ctx, tx, guard, token, owner); err != nil {
		return err
	}
	if err := write(tx); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return f.table.Failure(guard, err)
	}
	return nil
}

// rollBack ends tx also where ctx has ended, as another writer may wait for it, but waits no longer than a
// release for a connection that has gone dead. Its error says nothing new: the
// transaction is over, or its error is on its way.
func rollBack(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pace.ReleaseTime())
	defer cancel()
	tx.Rollback(ctx)
}

// Claim records a token. In a transaction it comes first, and covers what the
// transaction reads and writes until it ends. On a pool or a connection it shuts
// out older holders from then on: for a read that feeds a later write. A stale
// token is a *fence.StaleError; after any other error the claim may have been
// recorded. pgx.ErrTxClosed also means that something has sent COMMIT or ROLLBACK in
// the transaction. At REPEATABLE READ and above the server refuses a transaction whose
// snapshot is older than the last claim of the guard (40001): begin it again.
func (f *Fence) Claim(ctx context.Context, q Querier, guard string, token holdfast.Token, owner string) error {
	err := f.table.Claim(ctx, querier{q}, guard, token, owner)
	tx, ok := q.(pgx.Tx)
	if err != nil || !ok || tx.Conn() == nil { // nil: tx is a fake of a test
		return err
	}
	if tx.Conn().PgConn().TxStatus() == 'I' {
		return f.table.Failure(guard, fmt.Errorf("%w: something in it has sent COMMIT or ROLLBACK, so the claim covers nothing; begin another", pgx.ErrTxClosed))
	}
	return nil
}

// Highest is the highest token seen for guard and the owner of its lease, or 0 and
// "". It records nothing.
func (f *Fence) Highest(ctx context.Context, q Querier, guard string) (token holdfast.Token, owner string, err error) {
	return f.table.Highest(ctx, querier{q}, guard)
}

// Forget drops what is known about guard, under which nothing must be written any
// more: a stale holder would not be refused.
func (f *Fence) Forget(ctx context.Context, q Querier, guard string) error {
	return f.table.Forget(ctx, querier{q}, guard)
}

// Applied turns the outcome of a conditional write to rows that carry their own
// token into an error: a write that found no row is a *fence.StaleError, whose
// Highest is not known.
func Applied(guard string, token holdfast.Token, tag pgconn.CommandTag, err error) error {
	if err != nil {
		return err
	}
	return sqlguard.Applied(guard, token, tag.RowsAffected())
}
