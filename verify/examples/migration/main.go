// Migration brings the schema of a database up to date when a program starts. If many instances start at once,
// one of them migrates and the others wait for it.
//
//	HOLDFAST_BACKEND=redis://localhost:6379 DATABASE_URL=postgres://localhost/shop go run .
package main

import (
	"context"
	"database/sql"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence/sqlfence"
	_ "github.com/holdfast-go/holdfast/redis" // redis:// and related URLs
)

// steps hold the schema. Append new ones. Each runs in a transaction, so it runs once or not at all.
var steps = []string{
	`CREATE TABLE customer (id bigint PRIMARY KEY, name text NOT NULL)`,
	`ALTER TABLE customer ADD COLUMN email text`,
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := run(ctx, os.Getenv("HOLDFAST_BACKEND"), os.Getenv("DATABASE_URL")); err != nil {
		log.Fatal(err) // the supervisor restarts the program
	}
}

// run brings the schema up to date.
func run(ctx context.Context, backend, database string) error {
	db, err := sql.Open("pgx", database)
	if err != nil {
		return err
	}
	defer db.Close()
	locks, err := holdfast.Open(ctx, backend, nil)
	if err != nil {
		return err
	}
	defer locks.Close()
	if err := migrateSchema(ctx, locks, db, steps); err != nil {
		return err
	}
	log.Print("the schema is up to date") // the program's work begins here
	return nil
}

// migrateSchema runs the steps that the database lacks. It blocks until this or another instance has done so.
// After ten minutes it returns an error that names the holder.
func migrateSchema(ctx context.Context, locks *holdfast.Client, db *sql.DB, steps []string) error {
	tokens, err := sqlfence.New(sqlfence.PostgreSQL, nil)
	if err != nil {
		return err
	}
	if err := tokens.Create(ctx, db); err != nil {
		return err
	}
	opts := &holdfast.AcquireOptions{Wait: 10 * time.Minute, Note: "schema of the shop"}
	return locks.Do(ctx, "shop/migration", opts, func(ctx context.Context, lease *holdfast.Lease) error {
		for done := false; !done; {
			// Step, version and token share one transaction: a late holder changes nothing.
			err := tokens.Do(ctx, db, lease.Key(), lease.Token(), lease.Owner(), func(tx *sql.Tx) (err error) {
				done, err = runStep(ctx, tx, steps)
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// runStep runs the first step that the database lacks. done reports that the database has all steps.
func runStep(ctx context.Context, tx *sql.Tx, steps []string) (done bool, err error) {
	if _, err := tx.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS schema_step (number int PRIMARY KEY, at timestamptz NOT NULL DEFAULT now())`); err != nil {
		return false, err
	}
	var version int
	if err := tx.QueryRowContext(ctx, `SELECT count(*) FROM schema_step`).Scan(&version); err != nil {
		return false, err
	}
	if version >= len(steps) {
		return true, nil
	}
	if _, err := tx.ExecContext(ctx, steps[version]); err != nil {
		return false, err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO schema_step (number) VALUES ($1)`, version+1)
	return false, err
}
