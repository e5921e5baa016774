package main

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence/sqlfence"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/internal/rig/leaktest"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/verify/examples"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

// The table of reports has no unique key, so that the test can find a second report of a day.
const schema = `
	CREATE TABLE sale (at timestamptz NOT NULL, cents bigint NOT NULL);
	CREATE TABLE report (day timestamptz NOT NULL, sales bigint NOT NULL, cents bigint NOT NULL);
	INSERT INTO sale SELECT now() - interval '1 second' * i, 100 FROM generate_series(-3600, 3600) i`

func TestEachPeriodHasOneReport(t *testing.T) {
	t.Parallel()
	url := "redis://" + redistest.Start(t, nil).Addr()
	dsn, db := examples.Database(t, schema)
	for range 3 {
		stop, ended := examples.Start(t, func(ctx context.Context) error { return run(ctx, url, dsn, time.Second) })
		defer func() {
			stop()
			if err := examples.Soon(t, "run returns", ended); err != nil {
				t.Error(err)
			}
		}()
	}
	r := fixture.New(t)
	r.Eventually("three periods are over", func() bool {
		var days, reports int
		r.NoError(db.QueryRowContext(t.Context(), `SELECT count(DISTINCT day), count(*) FROM report WHERE sales = 1 AND cents = 100`).Scan(&days, &reports))
		if days != reports {
			t.Fatalf("%d reports of %d periods", reports, days)
		}
		return days >= 3
	})
}

func TestLateHolderCannotWriteReport(t *testing.T) {
	t.Parallel()
	url := "redis://" + redistest.Start(t, nil).Addr()
	_, db := examples.Database(t, schema)
	tokens, err := sqlfence.New(sqlfence.PostgreSQL, nil)
	if err == nil {
		err = tokens.Create(t.Context(), db)
	}
	if err != nil {
		t.Fatal(err)
	}
	to := time.Now().Truncate(time.Second)
	from := to.Add(-time.Second)
	j := &job{examples.Client(t, url), db, tokens}

	blocker, err := db.BeginTx(t.Context(), nil) // stops the first holder at its read of the sales
	if err == nil {
		_, err = blocker.ExecContext(t.Context(), `LOCK TABLE sale IN ACCESS EXCLUSIVE MODE`)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, ended := examples.Start(t, func(ctx context.Context) error { return j.writeReport(ctx, from, to) })
	waitForTheRead(t, db)
	examples.Take(t, url, "shop/report")
	if err := examples.Soon(t, "the first holder returns", ended); !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("writeReport returned %v, want ErrLost", err)
	}
	if err := blocker.Rollback(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second machine writes the report, the third finds it
		if err := (&job{examples.Client(t, url), db, tokens}).writeReport(t.Context(), from, to); err != nil {
			t.Error(err)
		}
	}
	var reports int
	if err := db.QueryRowContext(t.Context(), `SELECT count(*) FROM report`).Scan(&reports); err != nil || reports != 1 {
		t.Errorf("%d reports, %v; want 1", reports, err)
	}
	examples.Free(t, url, "shop/report")
}

// waitForTheRead blocks until a statement waits for the sales table.
func waitForTheRead(t *testing.T, db *sql.DB) {
	t.Helper()
	for waits := false; !waits; {
		row := db.QueryRowContext(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'sale'::regclass AND NOT granted)`)
		if err := row.Scan(&waits); err != nil {
			t.Fatal(err)
		}
	}
}
