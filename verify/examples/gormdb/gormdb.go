// Package gormdb shows how a program with a *gorm.DB keeps locks in its database, and guards its data by their
// tokens. Copy its functions.
package gormdb

import (
	"context"
	"database/sql"
	"fmt"

	"gorm.io/gorm"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence/sqlfence"
	"github.com/holdfast-go/holdfast/sqllock"
)

// Locks returns a lock client for the database of db, here MySQL or MariaDB, and creates the tables. The locks
// share the pool of db: leave room in it for renewals.
func Locks(ctx context.Context, db *gorm.DB) (*holdfast.Client, error) {
	pool, err := db.DB()
	if err != nil {
		return nil, err
	}
	drv, err := sqllock.New(ctx, pool, sqllock.MySQL, &sqllock.Options{NoCheck: true})
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
func WriteFenced(ctx context.Context, db *gorm.DB, guard *sqlfence.Fence, lease *holdfast.Lease, write func(tx *gorm.DB) error) error {
	return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		own, err := transactionOf(tx)
		if err != nil {
			return err
		}
		if err := guard.Claim(ctx, own, lease.Key(), lease.Token(), lease.Owner()); err != nil {
			return err
		}
		return write(tx)
	})
}

// LockRow locks a row until the transaction tx ends.
func LockRow(ctx context.Context, tx *gorm.DB, table, column string, value any) error {
	own, err := transactionOf(tx)
	if err != nil {
		return err
	}
	return sqllock.LockRow(ctx, own, sqllock.MySQL, table, column, value)
}

// transactionOf returns the transaction of database/sql behind tx.
func transactionOf(tx *gorm.DB) (*sql.Tx, error) {
	switch pool := tx.Statement.ConnPool.(type) {
	case *sql.Tx:
		return pool, nil
	case *gorm.PreparedStmtTX:
		own, ok := pool.Tx.(*sql.Tx)
		if ok {
			return own, nil
		}
	}
	return nil, fmt.Errorf("%T is no transaction", tx.Statement.ConnPool)
}
