package postgres_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/postgres"
)

// beginAt begins a transaction at an isolation level and runs a statement, so that the server takes its
// snapshot.
func (r *rig) beginAt(level pgx.TxIsoLevel) pgx.Tx {
	r.Helper()
	tx, err := r.pool.BeginTx(r.Context(), pgx.TxOptions{IsoLevel: level})
	r.NoError(err)
	r.Cleanup(func() { tx.Rollback(context.Background()) })
	_, err = tx.Exec(r.Context(), "SELECT txid_current_snapshot()")
	r.NoError(err)
	return tx
}

// LockRow returns the latest commit of another transaction, or rejects the isolation level.
func TestLockRowReadsLatestRow(t *testing.T) {
	for level, refused := range map[pgx.TxIsoLevel]bool{pgx.ReadCommitted: false, pgx.RepeatableRead: true, pgx.Serializable: true} {
		t.Run(string(level), func(t *testing.T) {
			r := startRig(t)
			r.execSQL("CREATE TABLE holdfast.orders AS SELECT 7 AS id; CREATE TABLE holdfast.item (id int)", pgx.QueryExecModeSimpleProtocol)
			query, id, items := r.in("SELECT id FROM holdfast.orders WHERE id = 7"), 0, 0
			tx, first := r.beginAt(level), r.beginAt(pgx.ReadCommitted)
			r.NoError(postgres.LockRow(t.Context(), first, query).Scan(&id))
			_, err := first.Exec(t.Context(), r.in("INSERT INTO holdfast.item VALUES (1)"))
			r.NoError(err)
			r.NoError(first.Commit(t.Context()))
			err = postgres.LockRow(t.Context(), tx, query).Scan(&id)
			if refused {
				r.checkError(err, driver.ErrInvalid, string(level), "READ COMMITTED")
				return
			}
			r.NoError(err)
			r.NoError(tx.QueryRow(t.Context(), r.in("SELECT count(*) FROM holdfast.item")).Scan(&items))
			if items != 1 {
				t.Errorf("%d items are visible after the lock, want 1", items)
			}
		})
	}
}

// unnoticedLease is a lease for FenceTx whose context never ends, as if its holder had not noticed the end of the
// lease.
type unnoticedLease struct{ grant driver.Grant }

func (c unnoticedLease) Key() string            { return c.grant.Key }
func (c unnoticedLease) Owner() string          { return c.grant.Owner }
func (unnoticedLease) Context() context.Context { return context.Background() }

// The lease was held when the transaction began, and has ended since.
func TestFenceTxRejectsLeaseThatEndedAfterSnapshot(t *testing.T) {
	for name, end := range map[string]func(r *rig, d *postgres.Driver, g driver.Grant){
		"release": func(r *rig, d *postgres.Driver, g driver.Grant) { r.NoError(d.Release(r.WaitContext(), g, 0)) },
		"hand-over": func(r *rig, d *postgres.Driver, g driver.Grant) {
			other := r.newDriver()
			got := fixture.AcquireAsync(r.WaitContext(), other, driver.Request{Key: "k", TTL: endlessTTL})
			r.Eventually("another waits", func() bool { return r.waiterCount("k") == 1 })
			r.NoError(d.Release(r.WaitContext(), g, 0))
			r.NoError(<-got)
		},
		"next": func(r *rig, d *postgres.Driver, g driver.Grant) {
			r.NoError(d.Release(r.WaitContext(), g, 0))
			r.AcquireGrant(r.newDriver(), "k", endlessTTL)
		},
		"force": func(r *rig, d *postgres.Driver, g driver.Grant) {
			_, err := r.newDriver().Force(r.WaitContext(), "k", g.Token, "")
			r.NoError(err)
		},
		"adopt": func(r *rig, _ *postgres.Driver, g driver.Grant) {
			_, err := r.newDriver().Adopt(r.WaitContext(), g)
			r.NoError(err)
		},
		"lapse": func(r *rig, d *postgres.Driver, g driver.Grant) {
			r.execSQL("UPDATE holdfast.lock SET expires = clock_timestamp()")
			r.AcquireGrant(r.newDriver(), "k", endlessTTL)
		},
	} {
		for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
			t.Run(name+" "+string(level), func(t *testing.T) {
				r := startRig(t)
				d := r.newDriver()
				g := r.AcquireAdoptable(d, endlessTTL)
				tx := r.beginAt(level)
				end(r, d, g)
				err := d.FenceTx(r.WaitContext(), tx, unnoticedLease{g})
				said, _ := errors.AsType[*pgconn.PgError](err)
				if !errors.Is(err, holdfast.ErrLost) && (said == nil || said.Code != "40001") {
					t.Errorf("FenceTx() = %v, want ErrLost, or that the server refuses the snapshot", err)
				}
			})
		}
	}
}

// A statement has sent COMMIT inside the transaction, so later statements are transactions of their own.
func TestFinishedTransactionIsRejected(t *testing.T) {
	r := startRig(t)
	r.execSQL("CREATE TABLE holdfast.account AS SELECT 7 AS id")
	d := r.newDriver()
	g := r.AcquireGrant(d, "k", endlessTTL)
	for name, lock := range map[string]func(tx pgx.Tx) error{
		"LockRow": func(tx pgx.Tx) error {
			var id int
			return postgres.LockRow(t.Context(), tx, r.in("SELECT id FROM holdfast.account")).Scan(&id)
		},
		"FenceTx": func(tx pgx.Tx) error { return d.FenceTx(t.Context(), tx, unnoticedLease{g}) },
	} {
		tx := r.beginTx()
		r.NoError(lock(tx))
		_, err := tx.Exec(t.Context(), "COMMIT")
		r.NoError(err)
		if err := lock(tx); !errors.Is(err, pgx.ErrTxClosed) {
			t.Errorf("%s: %v, want pgx.ErrTxClosed", name, err)
		}
		tx.Rollback(t.Context())
	}
	r.NoError(d.Release(r.WaitContext(), g, 0))
}

// A waiter leaves the turnstile and waits for a notification. A release with an older snapshot is rejected and
// repeated: by its snapshot, it would leave the lock to the turnstile, and the waiter would find it at its
// next poll.
func TestReleaseSeesNewChannelOfWaiter(t *testing.T) {
	for level, refused := range map[pgx.TxIsoLevel]bool{pgx.ReadCommitted: false, pgx.RepeatableRead: true, pgx.Serializable: true} {
		t.Run(string(level), func(t *testing.T) {
			r := startRig(t)
			g := r.AcquireGrant(r.newDriver(), "k", endlessTTL)
			ask := func(channel string) {
				asking := r.beginAt(level)
				_, err := asking.Exec(t.Context(), r.in("SELECT holdfast.acquire('k', 'waiter', 5000000, '{}', true, $1, 1000000, 8000000)"), channel)
				r.NoError(err)
				r.NoError(asking.Commit(t.Context()))
			}
			ask("-CHANNEL")
			tx := r.beginAt(level)
			ask("CHANNEL")
			_, err := tx.Exec(t.Context(), r.in("SELECT holdfast.release('k', $1, 0, false)"), g.Owner)
			failed, _ := errors.AsType[*pgconn.PgError](err)
			if conflict := failed != nil && failed.Code == "40001"; conflict != refused || err != nil && !conflict {
				t.Errorf("Release() = %v, want an error: %v", err, refused)
			}
		})
	}
}
