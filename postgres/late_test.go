package postgres_test

import (
	"maps"
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

// lateBench returns r for the checks of late statements.
func (r *rig) lateBench() fixture.LateBench {
	return fixture.LateBench{
		Rig: r.Rig, Open: func() driver.Driver { return r.newDriver() }, TimeLeft: r.timeLeft, Leftovers: r.leftoverRows,
		Expire: func() { r.execSQL("UPDATE holdfast.lock SET expires = clock_timestamp()") },
	}
}

var lateStatements = map[string]fixture.LateStatement{
	"acquire": {Text: anAcquire}, "renewal": {Text: aRenewal, Call: fixture.LateRenewal},
}

func TestLateStatementDoesNotShortenLease(t *testing.T) {
	all := maps.Clone(lateStatements)
	all["adopt"] = fixture.LateStatement{Text: anAdoption, Call: fixture.LateAdoption}
	for name, s := range all {
		t.Run(name, func(t *testing.T) { startRig(t).lateBench().CheckLateShortensNothing(s) })
	}
}

func TestLateAcquireStatementTakesNoLock(t *testing.T) {
	r := startRig(t)
	for _, noWait := range []bool{true, false} {
		r.lateBench().CheckGoneSender(lateStatements["acquire"], noWait)
	}
}

func TestLateStatementDoesNotReviveLease(t *testing.T) {
	for name, end := range fixture.LeaseEnds {
		for what, s := range lateStatements {
			t.Run(name+", "+what, func(t *testing.T) { startRig(t).lateBench().CheckLateRevivesNothing(s, end) })
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
func TestMinHoldLockCannotBeAdopted(t *testing.T) { startRig(t).lateBench().CheckKeptLock() }
