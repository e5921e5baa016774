package pgxfence_test

import (
	"context"
	"errors"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/fence/pgxfence"
)

var (
	pool   *pgxpool.Pool
	client *holdfast.Client
)

// The transaction begins with the check of the token, so a holder that has lost its lease writes nothing.
func ExampleFence_Do() {
	ctx := context.Background()
	guard, err := pgxfence.New(nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := guard.Create(ctx, pool); err != nil { // once; creates the table unless it exists
		log.Fatal(err)
	}
	err = client.Do(ctx, "account/7", nil, func(ctx context.Context, lease *holdfast.Lease) error {
		return guard.Do(ctx, pool, lease.Key(), lease.Token(), lease.Owner(), func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `UPDATE account SET balance = balance + 20 WHERE name = 'ann'`)
			return err
		})
	})
	if errors.Is(err, fence.ErrStale) {
		log.Print("another process has had the lock since; nothing was written")
	}
}

// The columns fence and fence_owner of the row itself keep the token, so no other table is needed, and one
// statement is enough.
func ExampleCheckApplied() {
	ctx := context.Background()
	err := client.Do(ctx, "invoice/42", nil, func(ctx context.Context, lease *holdfast.Lease) error {
		tag, err := pool.Exec(ctx, `UPDATE invoice SET paid = true, fence = $1, fence_owner = $2
			WHERE id = 42 AND (fence < $1 OR fence = $1 AND fence_owner = $2)`, lease.Token(), lease.Owner())
		return pgxfence.CheckApplied(lease.Key(), lease.Token(), tag, err)
	})
	if errors.Is(err, fence.ErrStale) {
		log.Print("another process has had the lock since; nothing was written")
	}
}
