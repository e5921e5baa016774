package postgres_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/postgres"
)

// outliveLease begins a transaction that relies on a lease of "k", starts waiters of d, and releases the lease.
func (r *rig) outliveLease(d *postgres.Driver, waiters int) (commit func(), next <-chan driver.Grant) {
	r.Helper()
	l, tx := r.holdLock(r.newDriver(), endlessTTL), r.beginTx()
	r.NoError(d.FenceTx(r.Context(), tx, l))
	got := make(chan driver.Grant, waiters)
	ctx, cancel := context.WithCancel(r.Context())
	var all sync.WaitGroup
	for range waiters {
		all.Go(func() {
			if g, err := d.Acquire(ctx, driver.Request{Key: "k", TTL: endlessTTL}); err == nil {
				got <- g
			}
		})
	}
	r.Cleanup(func() { cancel(); all.Wait() })
	r.Eventually("they wait", func() bool { return r.waiterCount("k") == waiters })
	r.Release(l)
	return func() { r.NoError(tx.Commit(r.Context())) }, got
}

// The waiters poll and prolong their tickets, and the row of the lock stays as the release has left it.
func TestWaitersLeaveLockRowUnchanged(t *testing.T) {
	r := startRig(t)
	d := r.newDriver()
	commit, next := r.outliveLease(d, 3)
	row := func() (version string) {
		r.NoError(r.pool.QueryRow(t.Context(), r.in("SELECT l::text || ' ' || xmin FROM holdfast.lock l WHERE name = 'k'")).Scan(&version))
		return version
	}
	before, sent := row(), r.Counts(d)["statement"]
	r.Eventually("each place is due to be kept", func() bool { // the waiters lock these rows in another order, so a deadlock may abort this statement
		_, err := r.pool.Exec(r.Context(), r.in("UPDATE holdfast.ticket SET expires = clock_timestamp() + interval '3.9 seconds'"))
		return err == nil
	})
	r.Eventually("they have asked many times, and kept their places", func() bool {
		return r.Counts(d)["statement"] > sent+30 &&
			r.countRows("SELECT count(*) FROM holdfast.ticket WHERE expires > clock_timestamp() + interval '4 seconds'") == 3
	})
	if after := row(); after != before {
		t.Errorf("the lock row changed from %s to %s", before, after)
	}
	commit()
	<-next
}

// A client prolongs its ticket after half of its lifetime. Other waiters delete a ticket that has expired.
func TestWaiterProlongsItsTicket(t *testing.T) {
	r := startRig(t)
	l := r.Acquire(r.newClient(), "k", endlessTTL)
	var served [2]<-chan bool
	for i := range served {
		waiter := r.newClient()
		served[i] = fixture.RunAsync(func() bool {
			r.Release(r.Acquire(waiter, "k", endlessTTL))
			return true
		})
	}
	r.Eventually("they listen", func() bool { return r.listenerCount() == 2 })
	places := r.countRows("SELECT sum(place) FROM holdfast.ticket")
	r.execSQL("UPDATE holdfast.ticket SET expires = clock_timestamp() + interval '3.9 seconds'")
	r.Eventually("the places are kept", func() bool {
		return r.countRows("SELECT count(*) FROM holdfast.ticket WHERE expires > clock_timestamp() + interval '4 seconds'") == 2
	})
	if now := r.countRows("SELECT sum(place) FROM holdfast.ticket"); now != places {
		t.Errorf("the sum of the queue positions is %d, want %d", now, places)
	}
	r.Release(l)
	for _, s := range served {
		fixture.AwaitResult(r.Rig, s)
	}
}

// The waiter is notified that the lease ended, and polls often from then on.
func TestWaiterLearnsThatTransactionOutlivedLease(t *testing.T) {
	r := startRig(t)
	l, tx, waiting := r.holdLock(r.newDriver(), endlessTTL), r.beginTx(), r.newDriver()
	r.NoError(waiting.FenceTx(t.Context(), tx, l))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got := fixture.AcquireAsync(ctx, waiting, driver.Request{Key: "k", TTL: endlessTTL})
	r.Eventually("it listens", func() bool { return r.listenerCount() == 1 })
	heard := r.Counts(waiting)["notice"]
	r.Release(l)
	r.Eventually("it hears", func() bool { return r.Counts(waiting)["notice"] > heard })
	r.NoError(tx.Commit(t.Context()))
	r.NoError(<-got)
}

// BenchmarkOutlivedLease measures the cost of 100 waiters while a transaction outlives its lease, and the time
// from the end of that transaction to the next grant. It takes ten seconds.
func BenchmarkOutlivedLease(b *testing.B) {
	r := newRig(b)
	pool := r.openPool(server.DSN() + " pool_max_conns=40")
	d, err := postgres.New(r.Context(), pool, withoutCheck(r.opts))
	r.NoError(err)
	r.Cleanup(func() { d.Close() })
	commit, next := r.outliveLease(d, 100)
	updates := func() int {
		return r.countRows("SELECT n_tup_upd FROM pg_stat_user_tables WHERE relid = to_regclass($1)", r.in("holdfast.lock"))
	}
	time.Sleep(3 * time.Second) // let all waiters settle into their poll interval
	before, begin := updates(), time.Now()
	var busy, looks atomic.Int64
	for range 500 {
		busy.Add(int64(pool.Stat().AcquiredConns()))
		looks.Add(1)
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(time.Second) // let the server update its statistics
	b.ReportMetric(float64(updates()-before)/time.Since(begin).Seconds(), "updates/s")
	b.ReportMetric(float64(busy.Load())/float64(looks.Load()), "connections")
	b.ReportMetric(float64(r.countRows("SELECT pg_total_relation_size(to_regclass($1))", r.in("holdfast.lock")))/1e3, "kB")
	committed := time.Now()
	commit()
	<-next
	b.ReportMetric(float64(time.Since(committed).Milliseconds()), "ms-to-grant")
	b.ReportMetric(0, "ns/op")
}
