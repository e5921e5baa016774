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
// It blocks until the server has answered or ctx ends. Bound the roll-back as well: on a connection
// that has gone dead it waits for as long as its own context lets it.
//
// Renewals go on meanwhile. Call it first in the transaction, at the latest before
// the first read that feeds a write. Errors: ErrLost when the lease has ended, and
// pgx.ErrTxClosed when something has sent COMMIT or ROLLBACK in tx; then nothing must be
// written: roll back. At REPEATABLE READ and above the server also refuses a transaction
// whose snapshot is older than the end of the lease (40001).
func Fenced(ctx context.Context, tx pgx.Tx, lease Lease) error {
	s, err := newSchema("")
	if err != nil {
		return err
	}
	return s.checkLease(ctx, tx, lease)
}

// Fenced is the function Fenced for the schema of d.
func (d *Driver) Fenced(ctx context.Context, tx pgx.Tx, lease Lease) error {
	return d.schema.checkLease(ctx, tx, lease)
}

func (s schema) checkLease(ctx context.Context, tx pgx.Tx, lease Lease) error {
	if lease.Context().Err() != nil {
		return fmt.Errorf("postgres: fenced %q: %w: %w", lease.Key(), driver.ErrLost, context.Cause(lease.Context()))
	}
	owner, _ := driver.GrantOf(lease.Owner(), 0)
	tag, err := tx.Exec(ctx, s.guard, pgx.QueryExecModeExec, lease.Key(), owner)
	switch {
	case err != nil:
	case tag.RowsAffected() == 0:
		err = fmt.Errorf("%w: the database has another holder, or none", driver.ErrLost)
	default:
		err = underWay(tx)
	}
	if err != nil {
		return fmt.Errorf("postgres: fenced %q: %w", lease.Key(), err)
	}
	return nil
}
