// Package token has writes with the token of their lease, and writes without.
package token

import (
	"context"
	"database/sql"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence/sqlfence"
)

const update = `UPDATE account SET balance = $1`

func passed(ctx context.Context, client *holdfast.Client, db *sql.DB, fence *sqlfence.Fence) error {
	err := client.Do(ctx, "k", nil, func(ctx context.Context, lease *holdfast.Lease) error {
		_, err := db.ExecContext(ctx, update+` , fence = $2 WHERE fence < $2`, 1, lease.Token())
		return err
	})
	if err != nil {
		return err
	}
	err = client.Do(ctx, "k", nil, func(ctx context.Context, lease *holdfast.Lease) error {
		return fence.Do(ctx, db, "k", lease.Token(), lease.Owner(), func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, update, 1)
			return err
		})
	})
	if err != nil {
		return err
	}
	return client.Do(ctx, "k", nil, func(ctx context.Context, lease *holdfast.Lease) error {
		if err := claim(ctx, db, lease); err != nil {
			return err
		}
		_, err := db.ExecContext(ctx, update, 1)
		return err
	})
}

func claim(ctx context.Context, db *sql.DB, lease *holdfast.Lease) error {
	_, err := db.ExecContext(ctx, `UPDATE guard SET token = $1`, lease.Token())
	return err
}

func noneNeeded(ctx context.Context, client *holdfast.Client, db *sql.DB, unknown string) error {
	err := client.Do(ctx, "k", nil, func(ctx context.Context, _ *holdfast.Lease) error {
		_, err := db.ExecContext(ctx, update, 1) // the parameter says that no token is wanted
		return err
	})
	if err != nil {
		return err
	}
	return client.Do(ctx, "k", nil, func(ctx context.Context, lease *holdfast.Lease) error {
		var balance int
		if err := db.QueryRowContext(ctx, `SELECT balance FROM account`).Scan(&balance); err != nil {
			return err
		}
		if _, err := db.ExecContext(ctx, `ANALYZE account`); err != nil {
			return err
		}
		_, err := db.ExecContext(ctx, unknown)
		return err
	})
}

func outsideOfTheLease(ctx context.Context, client *holdfast.Client, db *sql.DB) error {
	if _, err := db.ExecContext(ctx, update, 1); err != nil {
		return err
	}
	lease, err := client.Acquire(ctx, "k", nil)
	if err != nil {
		return err
	}
	lease.Release(ctx)
	_, err = db.ExecContext(ctx, update, 1)
	return err
}

func forgotten(ctx context.Context, client *holdfast.Client, db *sql.DB) error {
	return client.Do(ctx, lockKey, nil, func(ctx context.Context, lease *holdfast.Lease) error {
		if err := lease.Check(ctx); err != nil {
			return err
		}
		_, err := db.ExecContext(ctx, update, 1) // want `this writes under the lease lease, and its token is passed to nothing`
		return err
	})
}

const lockKey = "k"

func helper(ctx context.Context, tx *sql.Tx, held *holdfast.Lease) (id int, err error) {
	row := tx.QueryRowContext(ctx, `  with a as (select 1) insert into b select * from a returning id`) // want `this writes under the lease held`
	return id, row.Scan(&id)
}

func acquired(ctx context.Context, client *holdfast.Client, db *sql.DB) error {
	lease, err := client.Acquire(ctx, "k", nil)
	if err != nil {
		return err
	}
	defer lease.Release(ctx)
	_, err = db.ExecContext(lease.Context(), update, 1) // want `this writes under the lease lease`
	return err
}
