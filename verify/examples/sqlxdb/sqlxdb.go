// Package sqlxdb shows how a program that has a *sqlx.DB keeps locks in its database, and guards its data by their tokens. Its
// functions are there to be copied.
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

// Database returns the database of the program, over a pool that it shares with the locks. Leave room in the pool for renewals.
func Database(pool *pgxpool.Pool) *sqlx.DB { return sqlx.NewDb(stdlib.OpenDBFromPool(pool), "pgx") }

// Locks returns a client of locks in the database of pool, a PostgreSQL here, and makes their tables.
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
