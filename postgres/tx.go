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

// FenceTx checks that lease is still valid, inside a transaction of the database that has the lock, and keeps
// the lock until the transaction ends: a takeover waits for that end. All writes of the transaction are
// therefore made under the lock, however late, and need no other check. FenceTx uses the default schema; see
// Driver.FenceTx.
//
// It blocks until the server has answered or ctx ends. Bound the roll-back as well: on a dead connection it
// waits until its own context ends.
//
// Renewals continue during the transaction. Call FenceTx first in the transaction, at the latest before the
// first read on which a write depends. Errors: ErrLost if the lease has ended, and pgx.ErrTxClosed if
// a statement in tx was COMMIT or ROLLBACK; then write nothing, and roll back. At REPEATABLE READ and above the
// server also rejects a transaction whose snapshot is older than the end of the lease (40001).
func FenceTx(ctx context.Context, tx pgx.Tx, lease Lease) error {
	s, err := newSchema("")
	if err != nil {
		return err
	}
	return s.checkLease(ctx, tx, lease)
}

// FenceTx is the function FenceTx for the schema of d.
func (d *Driver) FenceTx(ctx context.Context, tx pgx.Tx, lease Lease) error {
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
		err = checkTxOpen(tx)
	}
	if err != nil {
		return fmt.Errorf("postgres: fenced %q: %w", lease.Key(), err)
	}
	return nil
}
