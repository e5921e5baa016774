package main

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/rig/leaktest"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/verify/examples"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

func TestOneOfSeveralInstancesMigrates(t *testing.T) {
	t.Parallel()
	url := "redis://" + redistest.Start(t, nil).Addr()
	dsn, db := examples.Database(t, `CREATE TABLE other ()`)
	const instances = 5
	ended := make(chan error, instances)
	for range instances {
		go func() { ended <- run(t.Context(), url, dsn) }()
	}
	for range instances {
		if err := examples.Soon(t, "an instance has started", ended); err != nil {
			t.Error(err)
		}
	}
	if _, err := db.ExecContext(t.Context(), `INSERT INTO customer (id, name, email) VALUES (1, 'ann', 'ann@example.com')`); err != nil {
		t.Error(err)
	}
	var done int
	if err := db.QueryRowContext(t.Context(), `SELECT count(*) FROM schema_step`).Scan(&done); err != nil || done != len(steps) {
		t.Errorf("%d steps are recorded, %v; want %d", done, err, len(steps))
	}
	examples.Free(t, url, "shop/migration")
}

func TestLostLockRollsStepBack(t *testing.T) {
	t.Parallel()
	url := "redis://" + redistest.Start(t, nil).Addr()
	_, db := examples.Database(t, `CREATE TABLE began (); CREATE TABLE half ()`)
	long := []string{`DROP TABLE half; SELECT pg_sleep(60)`}
	_, ended := examples.Start(t, func(ctx context.Context) error { return migrateSchema(ctx, examples.Client(t, url), db, long) })
	for asleep := false; !asleep; {
		row := db.QueryRowContext(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'DROP%')`)
		if err := row.Scan(&asleep); err != nil {
			t.Fatal(err)
		}
	}
	examples.Take(t, url, "shop/migration")
	if err := examples.Soon(t, "migrateSchema returns", ended); !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("migrateSchema returned %v, want ErrLost", err)
	}
	if _, err := db.ExecContext(t.Context(), `SELECT FROM half`); err != nil {
		t.Errorf("a step was applied halfway: %v", err)
	}
}
