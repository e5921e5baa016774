package sqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/sqllock"
)

// Locks in the database of a program that has a *sql.DB of any driver.
func ExampleNew() {
	ctx := context.Background()
	var db *sql.DB
	drv, err := sqllock.New(ctx, db, sqllock.MySQL, &sqllock.Options{NoCheck: true}) // db is a *sql.DB; the tables may not exist
	if err != nil {
		log.Fatal(err)
	}
	if err := drv.Migrate(ctx); err != nil { // by a user who may create tables
		log.Fatal(err)
	}
	client, err := holdfast.New(drv, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	err = client.Do(ctx, "nightly-report", nil, func(ctx context.Context, lease *holdfast.Lease) error {
		fmt.Println("token", lease.Token())
		return nil
	})
	if err != nil {
		log.Print(err)
	}
}

// A lock on a row, for work that fits into one transaction.
func ExampleLockRow() {
	ctx := context.Background()
	var db *sql.DB
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer tx.Rollback()
	err = sqllock.LockRow(ctx, tx, sqllock.MySQL, "account", "id", 7) // tx is a *sql.Tx
	if errors.Is(err, holdfast.ErrHeld) {
		log.Print("another transaction has the row, or has changed it since this one began")
	}
	if err != nil {
		log.Print(err)
		return
	}
	if _, err := tx.ExecContext(ctx, "UPDATE account SET balance = balance + 100 WHERE id = 7"); err != nil {
		log.Print(err)
		return
	}
	if err := tx.Commit(); err != nil {
		log.Print(err)
	}
}
