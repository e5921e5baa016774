package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/postgres"
)

func Example() {
	ctx := context.Background()
	const url = "postgres://app@db.example.com/app?sslmode=verify-full"
	drv, err := postgres.Open(ctx, url, &postgres.Options{NoCheck: true}) // the tables may not exist
	if err != nil {
		log.Fatal(err)
	}
	if err := drv.Migrate(ctx); err != nil { // by a user who owns the schema or may create it
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

// A program that uses database/sql opens its *sql.DB over the pool of the locks.
func ExampleNew_databaseSQL() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://app@db.example.com/app?sslmode=verify-full")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	db := stdlib.OpenDBFromPool(pool) // for the program's own statements, GORM or sqlx
	defer db.Close()
	drv, err := postgres.New(ctx, pool, nil)
	if err != nil {
		log.Fatal(err)
	}
	client, err := holdfast.New(drv, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
}

// The lock and the data are in one database. So the transaction commits only while the lock is held.
func ExampleFenceTx() {
	var pool *pgxpool.Pool
	var client *holdfast.Client
	err := client.Do(context.Background(), "account/7", nil, func(ctx context.Context, lease *holdfast.Lease) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := postgres.FenceTx(ctx, tx, lease); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "UPDATE account SET balance = balance * 1.01 WHERE id = 7")
			return err
		})
	})
	if err != nil {
		log.Print(err)
	}
}

// Work that fits into one transaction needs no lock service.
func ExampleLockRow() {
	ctx := context.Background()
	var pool *pgxpool.Pool
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		var balance int
		if err := postgres.LockRow(ctx, tx, "SELECT balance FROM account WHERE id = $1", 7).Scan(&balance); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "UPDATE account SET balance = $1 WHERE id = $2", balance+100, 7)
		return err
	})
	if errors.Is(err, holdfast.ErrHeld) {
		log.Print("another transaction is at it")
	}
}

// deposit changes a row without any lock: it writes only if nobody has changed the row since it was read, and
// otherwise begins again. docs/choosing.md uses it as an example.
func deposit(ctx context.Context, pool *pgxpool.Pool, id, amount int) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		var balance, version int
		if err := pool.QueryRow(ctx, "SELECT balance, version FROM account WHERE id = $1", id).Scan(&balance, &version); err != nil {
			return err
		}
		tag, err := pool.Exec(ctx,
			"UPDATE account SET balance = $1, version = version + 1 WHERE id = $2 AND version = $3", balance+amount, id, version)
		if err != nil || tag.RowsAffected() == 1 {
			return err
		}
		select { // another writer was faster: the jitter keeps the two from meeting again
		case <-time.After(rand.N(wait)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func TestVersionColumnPreventsLostUpdates(t *testing.T) {
	r := startRig(t)
	r.execSQL("CREATE TABLE holdfast.account AS SELECT 7 AS id, 0 AS balance, 0 AS version")
	pool := r.openPool(server.DSN() + ` search_path='"` + r.opts.Schema + `"'`)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 5 {
				if err := deposit(t.Context(), pool, 7, 1); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if n := r.countRows("SELECT balance FROM holdfast.account"); n != 40 {
		t.Errorf("%d after 40 deposits of 1", n)
	}
}
