package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/driver"
)

// Lease is a *holdfast.Lease.
type Lease interface {
	Key() string
	Owner() string
	Context() context.Context
}

// Fenced checks, inside a transaction of the database that has the lock, that lease
// stands, and keeps it standing until the transaction ends: a takeover waits for
// that. What the transaction writes is therefore written under the lock, however
// late; no other guard is needed. The schema is the default one; see Driver.Fenced.
//
// Renewals go on meanwhile. Call it first in the transaction, at the latest before
// the first read that feeds a write. Errors: ErrLost when the lease has ended, and
// then nothing must be written: roll back.
func Fenced(ctx context.Context, tx pgx.Tx, lease Lease) error {
	s, err := newSchema("")
	if err != nil {
		return err
	}
	return s.fence(ctx, tx, lease)
}

// Fenced is the function Fenced for the schema of d.
func (d *Driver) Fenced(ctx context.Context, tx pgx.Tx, lease Lease) error {
	return d.schema.fence(ctx, tx, lease)
}

func (s schema) fence(ctx context.Context, tx pgx.Tx, lease Lease) error {
	if lease.Context().Err() != nil {
		return fmt.Errorf("postgres: fenced %q: %w: %w", lease.Key(), driver.ErrLost, context.Cause(lease.Context()))
	}
	owner, _ := driver.GrantOf(lease.Owner(), 0)
	tag, err := tx.Exec(ctx, s.guard, pgx.QueryExecModeExec, lease.Key(), owner)
	if err == nil && tag.RowsAffected() == 0 {
		err = fmt.Errorf("%w: the database has another holder, or none", driver.ErrLost)
	}
	if err != nil {
		return fmt.Errorf("postgres: fenced %q: %w", lease.Key(), err)
	}
	return nil
}

// RowLock runs query, a SELECT of one row, with FOR UPDATE NOWAIT behind it: the row
// is locked until tx ends, and that is a lock without any lock service, for work
// that fits into one transaction. As with QueryRow, Scan returns the error:
// ErrHeld when another transaction has the row locked, pgx.ErrNoRows when there is
// none. After ErrHeld roll back, as after any error.
func RowLock(ctx context.Context, tx pgx.Tx, query string, args ...any) pgx.Row {
	return rowLock{tx.QueryRow(ctx, query+" FOR UPDATE NOWAIT", args...)}
}

type rowLock struct{ row pgx.Row }

// Scan implements pgx.Row.
func (r rowLock) Scan(dest ...any) error {
	err := r.row.Scan(dest...)
	if code(err) == lockNotAvailable {
		return fmt.Errorf("postgres: row: %w: %w", &driver.HeldError{}, err)
	}
	return err
}
