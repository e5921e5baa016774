package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"log"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/fence/sqlfence"
)

var (
	db     *sql.DB // opened with any driver
	client *holdfast.Client
)

// Read and write are one transaction, which begins with the check of the token.
func ExampleFence_Do() {
	ctx := context.Background()
	guard, err := sqlfence.New(sqlfence.PostgreSQL, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := guard.Create(ctx, db); err != nil {
		log.Fatal(err)
	}
	err = client.Do(ctx, "account/7", nil, func(ctx context.Context, lease *holdfast.Lease) error {
		return guard.Do(ctx, db, lease.Key(), lease.Token(), lease.Owner(), func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `UPDATE account SET balance = balance + 20 WHERE name = 'ann'`)
			return err
		})
	})
	if errors.Is(err, fence.ErrStale) {
		log.Print("somebody else has had the lock since; nothing was written")
	}
}

// Read and write are separate, so the read claims the token: from then on no older holder can change what was
// read.
func ExampleFence_Claim() {
	ctx := context.Background()
	guard, err := sqlfence.New(sqlfence.SQLite, nil)
	if err != nil {
		log.Fatal(err)
	}
	err = client.Do(ctx, "report", nil, func(ctx context.Context, lease *holdfast.Lease) error {
		if err := guard.Claim(ctx, db, lease.Key(), lease.Token(), lease.Owner()); err != nil {
			return err
		}
		var text string
		if err := db.QueryRowContext(ctx, `SELECT body FROM report`).Scan(&text); err != nil {
			return err
		}
		text = rewriteSQL(text) // may take long
		return guard.Do(ctx, db, lease.Key(), lease.Token(), lease.Owner(), func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `UPDATE report SET body = ?`, text)
			return err
		})
	})
	if err != nil {
		log.Print(err)
	}
}

// A table whose rows carry their own token needs one statement and no Fence.
func ExampleCheckApplied() {
	ctx := context.Background()
	err := client.Do(ctx, "account/7", nil, func(ctx context.Context, lease *holdfast.Lease) error {
		res, err := db.ExecContext(ctx, `
			UPDATE account SET balance = $1, fence = $2, fence_owner = $3
			 WHERE name = $4 AND (fence < $2 OR fence = $2 AND fence_owner = $3)`,
			120, int64(lease.Token()), lease.Owner(), "ann")
		return sqlfence.CheckApplied(lease.Key(), lease.Token(), res, err)
	})
	if err != nil {
		log.Print(err)
	}
}

func rewriteSQL(text string) string { return text }
