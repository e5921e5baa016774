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
	r.NoError(err)
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

// checkLate has a statement of an owner wait for the row while MarkGone marks the owner as gone. Then it checks
// that the statement takes nothing.
func (r *rig) checkLate(d *postgres.Driver, key string) {
	r.Helper()
	tx := r.beginDirect()
	r.NoError(d.MarkGone(r.WaitContext(), tx, key, "gone"))
	took := make(chan bool, 1)
	go func() {
		ok, err := d.AcquireOnce(r.WaitContext(), key, "gone")
		if err != nil {
			r.Error(err)
		}
		took <- ok
	}()
	r.awaitBlocked(1)
	r.NoError(tx.Commit(r.WaitContext()))
	if <-took {
		r.Errorf("%s: the late statement took the lock", key)
	}
	if n := r.countRows("SELECT count(*) FROM holdfast.lock WHERE name = $1 AND owner = 'gone' AND expires > clock_timestamp()", key); n != 0 {
		r.Errorf("%s: the lock belongs to an ended owner", key)
	}
}

// The snapshot of the statement is older than the mark that its owner has ended.
func TestBlockedStatementOfEndedOwnerTakesNoLock(t *testing.T) {
	r := startRig(t)
	d := r.newDriver()
	r.checkLate(d, "new")
	g := r.AcquireGrant(d, "free", endlessTTL)
	r.NoError(d.Release(r.WaitContext(), g, 0))
	r.checkLate(d, "free")
	r.Release(r.Acquire(r.newClient(), "new", endlessTTL), r.Acquire(r.newClient(), "free", endlessTTL))
}

// The transaction keeps the lock row, and the ended owner still does not get the lock back.
func TestEndedOwnerGetsNoLockAfterTransaction(t *testing.T) {
	r := startRig(t)
	d := r.newDriver()
	if ok, err := d.AcquireOnce(r.WaitContext(), "k", "gone"); err != nil || !ok {
		t.Fatalf("Take() = %v, %v", ok, err)
	}
	relying := r.beginDirect()
	_, err := relying.Exec(t.Context(), r.in("SELECT FROM holdfast.lock WHERE name = 'k' FOR KEY SHARE"))
	r.NoError(err)
	tx := r.beginDirect()
	r.NoError(d.MarkGone(r.WaitContext(), tx, "k", "gone"))
	r.NoError(tx.Commit(r.WaitContext()))
	if ok, err := d.AcquireOnce(r.WaitContext(), "k", "gone"); err != nil || ok {
		t.Errorf("a late statement of an ended owner: %v, %v", ok, err)
	}
}

// The release that deletes the ticket also clears the mark in the row of the lock.
func TestReleaseClearsMarkOfEndedOwner(t *testing.T) {
	r := startRig(t)
	d := r.newDriver()
	tx := r.beginDirect()
	r.NoError(d.MarkGone(r.WaitContext(), tx, "k", "gone"))
	r.NoError(tx.Commit(r.WaitContext()))
	r.NoError(d.Release(r.WaitContext(), r.AcquireGrant(d, "k", endlessTTL), 0))
	if r.countRows("SELECT count(*) FROM holdfast.lock WHERE queued") != 1 {
		t.Error("the mark was deleted before the ticket")
	}
	r.execSQL("UPDATE holdfast.ticket SET expires = clock_timestamp()")
	r.NoError(d.Release(r.WaitContext(), r.AcquireGrant(d, "k", endlessTTL), 0))
	if n := r.countRows("SELECT count(*) FROM holdfast.lock WHERE queued"); n != 0 {
		t.Error("the mark of the ended owner was never deleted")
	}
	if n := r.countRows("SELECT count(*) FROM holdfast.ticket"); n != 0 {
		t.Errorf("%d tickets were not deleted", n)
	}
}

// A proxy recognizes each statement by one of these texts.
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
	const short = endlessTTL / 4
	for name, late := range map[string]func(r *rig, d *postgres.Driver) (g driver.Grant, pass func()){
		"renewal": func(r *rig, d *postgres.Driver) (driver.Grant, func()) {
			g := r.AcquireGrant(d, "k", short)
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
			r.RenewGrant(d, g, endlessTTL)
			pass()
			if left := r.timeLeft(); left < endlessTTL/2 {
				t.Errorf("the lock lasts %v, and its holder trusts it for %v", left, endlessTTL)
			}
			r.NoError(d.Release(r.WaitContext(), g, 0))
			r.checkCleared()
		})
	}
}

// A late statement neither takes nor prolongs a lease that is over.
func TestLateStatementDoesNotReviveLease(t *testing.T) {
	for name, end := range map[string]func(r *rig, d *postgres.Driver, g driver.Grant){
		"release": func(r *rig, d *postgres.Driver, g driver.Grant) { r.NoError(d.Release(r.WaitContext(), g, 0)) },
		"release, kept": func(r *rig, d *postgres.Driver, g driver.Grant) {
			r.NoError(d.Release(r.WaitContext(), g, shortTTL))
		},
		"force": func(r *rig, d *postgres.Driver, g driver.Grant) {
			_, err := r.newDriver().Force(r.WaitContext(), "k", g.Token, "")
			r.NoError(err)
			r.NoError(d.Release(r.WaitContext(), g, 0)) // a client also releases what it has lost
		},
		"adoption": func(r *rig, d *postgres.Driver, g driver.Grant) {
			d.Detach(g)
			heir := r.newDriver()
			own, err := heir.Adopt(r.WaitContext(), g)
			r.NoError(err)
			r.NoError(d.Close()) // waits for the work that Detach has begun
			r.NoError(heir.Release(r.WaitContext(), own, 0))
		},
		"force, of which its holder has not heard": func(r *rig, _ *postgres.Driver, g driver.Grant) {
			ok, err := r.newDriver().Force(r.WaitContext(), "k", g.Token, "")
			if r.NoError(err); !ok {
				r.Error("Force() released nothing")
			}
		},
		"adoption, of which its holder has not heard": func(r *rig, _ *postgres.Driver, g driver.Grant) {
			heir := r.newDriver()
			own, err := heir.Adopt(r.WaitContext(), g)
			r.NoError(err)
			r.NoError(heir.Release(r.WaitContext(), own, 0))
		},
		"lapse, of which its holder has not heard": func(r *rig, _ *postgres.Driver, g driver.Grant) {
			r.execSQL("UPDATE holdfast.lock SET expires = clock_timestamp()")
			next := r.newDriver()
			r.NoError(next.Release(r.WaitContext(), r.AcquireGrant(next, "k", endlessTTL), 0))
		},
		"lapse of what was detached": func(r *rig, d *postgres.Driver, g driver.Grant) {
			d.Detach(g)
			r.NoError(d.Close())
			r.execSQL("UPDATE holdfast.lock SET expires = clock_timestamp()")
		},
	} {
		for text, send := range map[string]func(r *rig, d *postgres.Driver) (g driver.Grant, pass func()){
			anAcquire: func(r *rig, d *postgres.Driver) (g driver.Grant, pass func()) {
				pass = r.SendLate(d, anAcquire, true, r.AcquireInto(d, driver.Request{Key: "k", TTL: endlessTTL, Adoptable: true}, &g))
				return g, pass
			},
			aRenewal: func(r *rig, d *postgres.Driver) (driver.Grant, func()) {
				g := r.AcquireAdoptable(d, endlessTTL)
				return g, r.SendLate(d, aRenewal, false, func(ctx context.Context) { d.Renew(ctx, []driver.Grant{g}) })
			},
		} {
			t.Run(name+" "+text, func(t *testing.T) {
				r := startRig(t)
				d := r.newDriver()
				g, pass := send(r, d)
				end(r, d, g)
				pass()
				if left := r.timeLeft(); left > shortTTL {
					t.Errorf("after the lease expired, a late statement holds the lock for %v", left)
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
			if ok, err := d.Force(r.WaitContext(), "k", token, ""); err != nil || !ok {
				r.Fatalf("Force() = %v, %v", ok, err)
			}
			g := r.AcquireGrant(d, "k", endlessTTL)
			go func() {
				r.Eventually("it waits anew", func() bool { return r.waiterCount("k") == 1 })
				r.NoError(d.Release(r.WaitContext(), g, 0))
			}()
		},
		"force": func(r *rig, d *postgres.Driver, token int64) {
			if ok, err := d.Force(r.WaitContext(), "k", token, ""); err != nil || !ok {
				r.Fatalf("Force() = %v, %v", ok, err)
			}
		},
		"lapse": func(r *rig, d *postgres.Driver, _ int64) {
			r.execSQL("UPDATE holdfast.lock SET expires = clock_timestamp()")
			r.NoError(d.Release(r.WaitContext(), r.AcquireGrant(d, "k", endlessTTL), 0))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := startRig(t)
			r.opts.NoListen = true
			holder, waiter := r.newDriver(), r.newDriver()
			g := r.AcquireGrant(holder, "k", endlessTTL)
			got := fixture.RunAsync(func() driver.Grant { return r.AcquireGrant(waiter, "k", endlessTTL) })
			r.Eventually("it waits", func() bool { return r.waiterCount("k") == 1 })
			p := r.linkOf(waiter)
			p.Halt(anAcquire)
			<-p.Caught
			p.Set(func() { p.Stop = "" })
			r.NoError(holder.Release(r.WaitContext(), g, 0))
			st, err := holder.Inspect(r.WaitContext(), "k")
			r.NoError(err)
			take(r, holder, st.Token)
			p.Resume()
			next := <-got
			if next.Owner == st.Owner || next.Token < st.Token+int64(next.Block) {
				t.Errorf("%s has token %d, and had %d before", next.Owner, next.Token, st.Token)
			}
			r.NoError(waiter.Release(r.WaitContext(), next, 0))
			r.checkCleared()
		})
	}
}

// If the server cannot notify the waiter of its turn, the waiter finds the lock at its next poll.
func TestFullNotificationQueueKeepsHandOver(t *testing.T) {
	r := startRig(t)
	r.execSQL("CREATE OR REPLACE FUNCTION holdfast.told(p_channel text, p_owner text) RETURNS boolean LANGUAGE sql AS 'SELECT false'")
	l := r.Acquire(r.newClient(), "k", endlessTTL)
	var tokens [2]<-chan holdfast.Token
	for i := range tokens {
		waiter := r.newClient()
		tokens[i] = fixture.RunAsync(func() holdfast.Token {
			l := r.Acquire(waiter, "k", endlessTTL)
			r.Release(l)
			return l.Token()
		})
		r.Eventually("it listens", func() bool {
			return r.listenerCount() == i+1
		})
	}
	r.Release(l)
	if first, second := fixture.AwaitResult(r.Rig, tokens[0]), fixture.AwaitResult(r.Rig, tokens[1]); second < first {
		t.Errorf("the second waiter has token %d, and the first %d", second, first)
	}
}

// During MinHold, neither the owner that released the lock nor the owner that Inspect names can adopt it.
func TestMinHoldLockCannotBeAdopted(t *testing.T) {
	r := startRig(t)
	fixture.CheckKeptLock(r.Rig, r.newDriver(), r.newDriver(), 6*shortTTL, r.timeLeft)
	r.checkCleared()
}
