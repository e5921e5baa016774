// Package sqlfence protects rows in a SQL database from writers who have lost their lease: the check of the
// fencing token and the write are one transaction, or one statement.
//
// # What is not promised
//
// The package does not stop a program that bypasses the check. The highest token is as durable as the rows: a
// database that fails over and loses its last commits forgets both. Tokens of two lock services cannot be
// compared: see package fence.
//
// # The rule
//
// As in package fence, a token is rejected if a higher token was seen for the guard, or an equal token of
// another lease. A guard is any name, usually the key of the lock. A read that feeds a write claims the token
// first, so that no older holder can write after the read. Every call may be repeated under the same lease.
//
// # Two ways
//
// [Fence] keeps the tokens of all guards in a table of its own: [Fence.Do] runs any statements in a
// transaction that begins with the check. The check locks the guard's row until the transaction ends: that
// makes check and write one step.
//
// A table whose rows carry their own token, in two columns, needs one statement and no Fence; [CheckApplied] reads
// its outcome:
//
//	UPDATE account SET balance = $1, fence = $2, fence_owner = $3
//	 WHERE name = $4 AND (fence < $2 OR fence = $2 AND fence_owner = $3)
//
// The claim is the same statement without the balance. With RETURNING balance it is also the read.
//
// (M. Kleppmann, "How to do distributed locking", 2016.)
package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/fence/internal/sqlguard"
)

// Dialect is the SQL dialect of a database.
type Dialect = sqlguard.Dialect

// The dialects. There is no default: a wrong guess would show in production only.
const (
	PostgreSQL = sqlguard.PostgreSQL
	MySQL      = sqlguard.MySQL  // and MariaDB
	SQLite     = sqlguard.SQLite // 3.24 or newer
)

// Options configure a Fence. The zero value works.
type Options struct {
	// Table keeps the tokens, one row for each guard. Default "holdfast_fence". The name may have a schema:
	// "locks.fence".
	Table string
}

// Querier runs a statement: a *sql.Tx, *sql.Conn or *sql.DB.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// querier adapts a Querier to package sqlguard.
type querier struct{ Querier }

// Exec implements sqlguard.Querier.
func (q querier) Exec(ctx context.Context, query string, args ...any) error {
	_, err := q.ExecContext(ctx, query, args...)
	return err
}

// Row implements sqlguard.Querier.
func (q querier) Row(ctx context.Context, query string, args ...any) interface{ Scan(into ...any) error } {
	return q.QueryRowContext(ctx, query, args...)
}

// Fence checks tokens in one database. It is safe for concurrent use.
type Fence struct {
	table   sqlguard.Table
	checked atomic.Bool // the table is known to have transactions
}

// New returns a Fence for databases of one dialect. opts may be nil. New does not block. The table must exist:
// see Create.
func New(dialect Dialect, opts *Options) (*Fence, error) {
	if opts == nil {
		opts = &Options{}
	}
	table, err := sqlguard.New("sqlfence", dialect, opts.Table)
	if err != nil {
		return nil, err
	}
	return &Fence{table: table}, nil
}

// Schema returns the statement that creates the table unless it exists, for programs that keep their schema in
// files.
func (f *Fence) Schema() string { return f.table.Create }

// Create creates the table unless it exists. Several programs may call it at once; the table exists when
// Create returns. Inside a transaction the second of two concurrent calls may fail. Create and Claim return an
// error for a table without transactions, which MySQL and MariaDB create with some settings.
func (f *Fence) Create(ctx context.Context, q Querier) error {
	return f.table.CreateTable(ctx, querier{q})
}

// Do runs write in a transaction that begins with the claim of guard by token and owner, and commits it. It
// blocks while another transaction has claimed the same guard. For a stale token it returns a
// *fence.StaleError and does not call write. After an error of write, or a panic, everything is rolled back,
// the claim included. After any other error the transaction may have been committed, and Do may be repeated.
// The isolation level is the database's default.
func (f *Fence) Do(ctx context.Context, db *sql.DB, guard string, token holdfast.Token, owner string, write func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return f.table.WrapError(guard, err)
	}
	defer tx.Rollback() // its error is ignored: the transaction has ended, or its error is already being returned
	if err := f.Claim(ctx, tx, guard, token, owner); err != nil {
		return err
	}
	if err := write(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return f.table.WrapError(guard, err)
	}
	return nil
}

// Claim records a token. In a transaction, call Claim first: it protects everything that the transaction reads
// and writes. On a *sql.DB it rejects older holders from then on: use it before a read that feeds a later write.
// For a stale token it returns a *fence.StaleError. After any other error the claim may have been recorded, and
// Claim rolls a transaction back, so that nothing is written in it. sql.ErrTxDone also means that the
// transaction had been rolled back before.
func (f *Fence) Claim(ctx context.Context, q Querier, guard string, token holdfast.Token, owner string) error {
	claim := f.table.Claim
	tx, ok := q.(transaction)
	if ok {
		claim = f.table.ClaimIn
	}
	err := f.checkTransactions(ctx, q)
	if err == nil {
		err = claim(ctx, querier{q}, guard, token, owner)
	}
	if ok && err != nil && !errors.Is(err, fence.ErrStale) {
		tx.Rollback() // its error is ignored
	}
	return err
}

// checkTransactions checks once whether the table has transactions.
func (f *Fence) checkTransactions(ctx context.Context, q Querier) error {
	if f.checked.Load() {
		return nil
	}
	err := f.table.CheckEngine(ctx, querier{q})
	if err == nil {
		f.checked.Store(true)
	}
	return err
}

// transaction is a *sql.Tx, or a type of another package that wraps one.
type transaction interface {
	Commit() error
	Rollback() error
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
// write found no row, it returns a *fence.StaleError whose Highest is not known. Open MySQL with
// clientFoundRows=true: without it, the driver counts changed rows in place of found rows, and a repeated
// write of the same values would look stale.
func CheckApplied(guard string, token holdfast.Token, res sql.Result, err error) error {
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err != nil {
		return fmt.Errorf("sqlfence: guard %q: %w", guard, err)
	}
	return sqlguard.CheckApplied(guard, token, n)
}
