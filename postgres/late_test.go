package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/postgres"
)

// beginDirect begins a transaction on a direct connection to the server.
func (r *rig) beginDirect() pgx.Tx {
	r.Helper()
	tx, err := r.pool.Begin(r.Context())
	r.Must(err)
	r.Cleanup(func() { tx.Rollback(r.Context()) })
	return tx
}

// awaitBlocked waits until n statements wait for another transaction.
func (r *rig) awaitBlocked(n int) {
	r.Helper()
	r.Eventually("a statement waits for the row", func() bool {
		return r.countRows("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%' || $1 || '%'", r.opts.Schema) == n
	})
}

// checkLate has a statement of an owner wait for the row while Bury marks the owner as gone. Then it checks
// that the statement takes nothing.
func (r *rig) checkLate(d *postgres.Driver, key string) {
	r.Helper()
	tx := r.beginDirect()
	r.Must(d.Bury(r.Within(), tx, key, "gone"))
	took := make(chan bool, 1)
	go func() {
		ok, err := d.Take(r.Within(), key, "gone")
		if err != nil {
			r.Error(err)
		}
		took <- ok
	}()
	r.awaitBlocked(1)
	r.Must(tx.Commit(r.Within()))
	if <-took {
		r.Errorf("%s: the late statement took the lock", key)
	}
	if n := r.countRows("SELECT count(*) FROM holdfast.lock WHERE name = $1 AND owner = 'gone' AND expires > clock_timestamp()", key); n != 0 {
		r.Errorf("%s: the lock is that of an owner who has gone", key)
	}
}

// The statement's snapshot is older than the mark that its owner is gone.
func TestBlockedStatementOfGoneOwnerTakesNothing(t *testing.T) {
	r := startRig(t)
	d := r.newDriver()
	r.checkLate(d, "new")
	g := r.Grant(d, "free", long)
	r.Must(d.Release(r.Within(), g, 0))
	r.checkLate(d, "free")
	r.Release(r.Acquire(r.newClient(), "new", long), r.Acquire(r.newClient(), "free", long))
}

// The transaction keeps the lock from passing on, and still its buried owner does not get it back.
func TestGoneOwnerGetsNoLockAfterTransaction(t *testing.T) {
	r := startRig(t)
	d := r.newDriver()
	if ok, err := d.Take(r.Within(), "k", "gone"); err != nil || !ok {
		t.Fatalf("Take() = %v, %v", ok, err)
	}
	relying := r.beginDirect()
	_, err := relying.Exec(t.Context(), r.in("SELECT FROM holdfast.lock WHERE name = 'k' FOR KEY SHARE"))
	r.Must(err)
	tx := r.beginDirect()
	r.Must(d.Bury(r.Within(), tx, "k", "gone"))
	r.Must(tx.Commit(r.Within()))
	if ok, err := d.Take(r.Within(), "k", "gone"); err != nil || ok {
		t.Errorf("a late statement of an owner who has gone: %v, %v", ok, err)
	}
}

// The release that deletes the ticket also clears the mark in the row of the lock.
func TestReleaseClearsMarkOfGoneOwner(t *testing.T) {
	r := startRig(t)
	d := r.newDriver()
	tx := r.beginDirect()
	r.Must(d.Bury(r.Within(), tx, "k", "gone"))
	r.Must(tx.Commit(r.Within()))
	r.Must(d.Release(r.Within(), r.Grant(d, "k", long), 0))
	if r.countRows("SELECT count(*) FROM holdfast.lock WHERE queued") != 1 {
		t.Error("the mark has gone before the ticket")
	}
	r.execSQL("UPDATE holdfast.ticket SET expires = clock_timestamp()")
	r.Must(d.Release(r.Within(), r.Grant(d, "k", long), 0))
	if n := r.countRows("SELECT count(*) FROM holdfast.lock WHERE queued"); n != 0 {
		t.Error("the name is marked for ever")
	}
	if n := r.countRows("SELECT count(*) FROM holdfast.ticket"); n != 0 {
		t.Errorf("%d tickets are left", n)
	}
}

// A proxy recognises a statement by one of these texts.
const (
	anAcquire  = ".acquire("
	anAdoption = ".adopt("
	aRenewal   = "::bigint[])"
)

// timeLeft returns the time until the lock "k" expires, by the server's clock.
func (r *rig) timeLeft() time.Duration {
	r.Helper()
	const query = "SELECT (extract(epoch FROM expires - clock_timestamp()) * 1000000)::bigint FROM holdfast.lock WHERE name = 'k'"
	return time.Duration(r.countRows(query)) * time.Microsecond
}

// A statement with a shorter TTL was sent first and is executed after a confirmed renewal with a longer TTL.
func TestLateStatementDoesNotShortenLease(t *testing.T) {
	const short = long / 4
	for name, late := range map[string]func(r *rig, d *postgres.Driver) (g driver.Grant, pass func()){
		"renewal": func(r *rig, d *postgres.Driver) (driver.Grant, func()) {
			g := r.Grant(d, "k", short)
			return g, r.SendLate(d, aRenewal, false, func(ctx context.Context) { d.Renew(ctx, []driver.Grant{g}) })
		},
		"acquire": func(r *rig, d *postgres.Driver) (g driver.Grant, pass func()) {
			pass = r.SendLate(d, anAcquire, true, r.AcquireInto(d, driver.Request{Key: "k", TTL: short}, &g))
			return g, pass
		},
		"adopt": func(r *rig, d *postgres.Driver) (g driver.Grant, pass func()) {
			from := r.AcquireAdoptable(r.newDriver(), short)
			pass = r.SendLate(d, anAdoption, true, func(ctx context.Context) {
				var err error
				if g, err = d.Adopt(ctx, from); err != nil {
					r.Error(err)
				}
			})
			return g, pass
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := startRig(t)
			d := r.newDriver()
			g, pass := late(r, d)
			r.RenewGrant(d, g, long)
			pass()
			if left := r.timeLeft(); left < long/2 {
				t.Errorf("the lock stands for %v, and its holder trusts it for %v", left, long)
			}
			r.Must(d.Release(r.Within(), g, 0))
			r.checkCleared()
		})
	}
}

// A late statement neither takes nor prolongs a lease that is over.
func TestLateStatementRevivesNoLease(t *testing.T) {
	for name, end := range map[string]func(r *rig, d *postgres.Driver, g driver.Grant){
		"release": func(r *rig, d *postgres.Driver, g driver.Grant) { r.Must(d.Release(r.Within(), g, 0)) },
		"release, kept": func(r *rig, d *postgres.Driver, g driver.Grant) {
			r.Must(d.Release(r.Within(), g, brief))
		},
		"force": func(r *rig, d *postgres.Driver, g driver.Grant) {
			_, err := r.newDriver().Force(r.Within(), "k", g.Token, "")
			r.Must(err)
			r.Must(d.Release(r.Within(), g, 0)) // a client also releases what it has lost
		},
		"adoption": func(r *rig, d *postgres.Driver, g driver.Grant) {
			d.Detach(g)
			heir := r.newDriver()
			own, err := heir.Adopt(r.Within(), g)
			r.Must(err)
			r.Must(d.Close()) // waits for the work that Detach has begun
			r.Must(heir.Release(r.Within(), own, 0))
		},
		"force, of which its holder has not heard": func(r *rig, _ *postgres.Driver, g driver.Grant) {
			ok, err := r.newDriver().Force(r.Within(), "k", g.Token, "")
			if r.Must(err); !ok {
				r.Error("Force() has taken nothing")
			}
		},
		"adoption, of which its holder has not heard": func(r *rig, _ *postgres.Driver, g driver.Grant) {
			heir := r.newDriver()
			own, err := heir.Adopt(r.Within(), g)
			r.Must(err)
			r.Must(heir.Release(r.Within(), own, 0))
		},
		"lapse, of which its holder has not heard": func(r *rig, _ *postgres.Driver, g driver.Grant) {
			r.execSQL("UPDATE holdfast.lock SET expires = clock_timestamp()")
			next := r.newDriver()
			r.Must(next.Release(r.Within(), r.Grant(next, "k", long), 0))
		},
		"lapse of what was detached": func(r *rig, d *postgres.Driver, g driver.Grant) {
			d.Detach(g)
			r.Must(d.Close())
			r.execSQL("UPDATE holdfast.lock SET expires = clock_timestamp()")
		},
	} {
		for text, send := range map[string]func(r *rig, d *postgres.Driver) (g driver.Grant, pass func()){
			anAcquire: func(r *rig, d *postgres.Driver) (g driver.Grant, pass func()) {
				pass = r.SendLate(d, anAcquire, true, r.AcquireInto(d, driver.Request{Key: "k", TTL: long, Adoptable: true}, &g))
				return g, pass
			},
			aRenewal: func(r *rig, d *postgres.Driver) (driver.Grant, func()) {
				g := r.AcquireAdoptable(d, long)
				return g, r.SendLate(d, aRenewal, false, func(ctx context.Context) { d.Renew(ctx, []driver.Grant{g}) })
			},
		} {
			t.Run(name+" "+text, func(t *testing.T) {
				r := startRig(t)
				d := r.newDriver()
				g, pass := send(r, d)
				end(r, d, g)
				pass()
				if left := r.timeLeft(); left > brief {
					t.Errorf("after the end of the lease, a late statement has the lock stand for %v", left)
				}
				r.checkCleared()
			})
		}
	}
}

// If a lock is handed to a waiter and taken away before the waiter reads the grant, the waiter gets its next
// grant under a new owner name.
func TestOwnerNamesOneGrant(t *testing.T) {
	for name, take := range map[string]func(r *rig, d *postgres.Driver, token int64){
		"force, and held by another": func(r *rig, d *postgres.Driver, token int64) {
			if ok, err := d.Force(r.Within(), "k", token, ""); err != nil || !ok {
				r.Fatalf("Force() = %v, %v", ok, err)
			}
			g := r.Grant(d, "k", long)
			go func() {
				r.Eventually("it waits anew", func() bool { return r.waiterCount("k") == 1 })
				r.Must(d.Release(r.Within(), g, 0))
			}()
		},
		"force": func(r *rig, d *postgres.Driver, token int64) {
			if ok, err := d.Force(r.Within(), "k", token, ""); err != nil || !ok {
				r.Fatalf("Force() = %v, %v", ok, err)
			}
		},
		"lapse": func(r *rig, d *postgres.Driver, _ int64) {
			r.execSQL("UPDATE holdfast.lock SET expires = clock_timestamp()")
			r.Must(d.Release(r.Within(), r.Grant(d, "k", long), 0))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := startRig(t)
			r.opts.NoListen = true
			holder, waiter := r.newDriver(), r.newDriver()
			g := r.Grant(holder, "k", long)
			got := fixture.Later(func() driver.Grant { return r.Grant(waiter, "k", long) })
			r.Eventually("it waits", func() bool { return r.waiterCount("k") == 1 })
			p := r.linkOf(waiter)
			p.Halt(anAcquire)
			<-p.Caught
			p.Set(func() { p.Stop = "" })
			r.Must(holder.Release(r.Within(), g, 0))
			st, err := holder.Inspect(r.Within(), "k")
			r.Must(err)
			take(r, holder, st.Token)
			p.Resume()
			next := <-got
			if next.Owner == st.Owner || next.Token < st.Token+int64(next.Block) {
				t.Errorf("%s has token %d, and had %d before", next.Owner, next.Token, st.Token)
			}
			r.Must(waiter.Release(r.Within(), next, 0))
			r.checkCleared()
		})
	}
}

// If the server cannot notify the waiter of its turn, the waiter finds the lock at its next poll.
func TestFullNotificationQueueKeepsHandOver(t *testing.T) {
	r := startRig(t)
	r.execSQL("CREATE OR REPLACE FUNCTION holdfast.told(p_channel text, p_owner text) RETURNS boolean LANGUAGE sql AS 'SELECT false'")
	l := r.Acquire(r.newClient(), "k", long)
	var tokens [2]<-chan holdfast.Token
	for i := range tokens {
		waiter := r.newClient()
		tokens[i] = fixture.Later(func() holdfast.Token {
			l := r.Acquire(waiter, "k", long)
			r.Release(l)
			return l.Token()
		})
		r.Eventually("it listens", func() bool {
			return r.listenerCount() == i+1
		})
	}
	r.Release(l)
	if first, second := fixture.Receive(r.Rig, tokens[0]), fixture.Receive(r.Rig, tokens[1]); second < first {
		t.Errorf("the second waiter has token %d, and the first %d", second, first)
	}
}

// Neither the owner that released the lock nor the owner that Inspect names can continue a kept lock.
func TestNobodyContinuesKeptLock(t *testing.T) {
	r := startRig(t)
	fixture.ContinuesNoKeptLock(r.Rig, r.newDriver(), r.newDriver(), 6*brief, r.timeLeft)
	r.checkCleared()
}
