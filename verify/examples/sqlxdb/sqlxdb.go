// Package sqlxdb shows how a program that has a *sqlx.DB keeps locks in its database, and guards its data by their tokens. Its
// functions are there to be copied.
package sqlxdb

import (
	"context"

	"github.com/jmoiron/sqlx"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence/sqlfence"
	"github.com/holdfast-go/holdfast/sqllock"
)

// Locks returns a client of locks in the database of db, a PostgreSQL here, and makes their tables. They share the pool of db:
// leave room in it for renewals.
func Locks(ctx context.Context, db *sqlx.DB) (*holdfast.Client, error) {
	drv, err := sqllock.New(ctx, db.DB, sqllock.PostgreSQL, &sqllock.Options{NoCheck: true})
	if err != nil {
		return nil, err
	}
	if err := drv.Migrate(ctx); err != nil {
		drv.Close()
		return nil, err
	}
	return holdfast.New(drv, nil)
}

// Fenced runs write in a transaction that begins with the check of the lease's token: no write of a holder that is late gets past it.
func Fenced(ctx context.Context, db *sqlx.DB, guard *sqlfence.Fence, lease *holdfast.Lease, write func(tx *sqlx.Tx) error) error {
	tx, err := db.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // says nothing new: the transaction is over, or its error is on its way
	if err := guard.Claim(ctx, tx, lease.Key(), lease.Token(), lease.Owner()); err != nil {
		return err
	}
	if err := write(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// RowLock locks a row until the transaction tx ends.
func RowLock(ctx context.Context, tx *sqlx.Tx, table, column string, value any) error {
	return sqllock.RowLock(ctx, tx.Tx, sqllock.PostgreSQL, table, column, value)
}
