// Package sqlxdb shows how a program with a *sqlx.DB keeps locks in its database, and guards its data by their
// tokens. Copy its functions.
package sqlxdb

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence/sqlfence"
	"github.com/holdfast-go/holdfast/postgres"
)

// Database returns the program's database, over a pool that it shares with the locks. Leave room in the pool
// for renewals.
func Database(pool *pgxpool.Pool) *sqlx.DB { return sqlx.NewDb(stdlib.OpenDBFromPool(pool), "pgx") }

// Locks returns a lock client for the database of pool, here a PostgreSQL, and creates the tables.
func Locks(ctx context.Context, pool *pgxpool.Pool) (*holdfast.Client, error) {
	drv, err := postgres.New(ctx, pool, &postgres.Options{NoCheck: true})
	if err != nil {
		return nil, err
	}
	if err := drv.Migrate(ctx); err != nil {
		drv.Close()
		return nil, err
	}
	return holdfast.New(drv, nil)
}

// WriteFenced runs write in a transaction that first checks the lease's token, so that a late holder writes
// nothing.
func WriteFenced(ctx context.Context, db *sqlx.DB, guard *sqlfence.Fence, lease *holdfast.Lease, write func(tx *sqlx.Tx) error) error {
	tx, err := db.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // ignore the error: the transaction is over, or its error is returned
	if err := guard.Claim(ctx, tx, lease.Key(), lease.Token(), lease.Owner()); err != nil {
		return err
	}
	if err := write(tx); err != nil {
		return err
	}
	return tx.Commit()
}
