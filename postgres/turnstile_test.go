package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/postgres"
)

// entryText is a text by which a proxy recognizes the statement that blocks at the turnstile.
const entryText = ".enter("

// openSession opens a session of the server.
func (r *rig) openSession() *pgx.Conn {
	r.Helper()
	conn, err := r.pool.Acquire(r.Context())
	r.NoError(err)
	own := conn.Hijack()
	r.Cleanup(func() { own.Close(context.Background()) })
	return own
}

// execOn runs a statement on a session.
func (r *rig) execOn(conn *pgx.Conn, sql string, args ...any) {
	r.Helper()
	_, err := conn.Exec(r.WaitContext(), r.in(sql), args...)
	r.NoError(err)
}

// atTurnstile returns how many sessions have the turnstile of "k", or, without granted, wait for it.
func (r *rig) atTurnstile(granted bool) int {
	r.Helper()
	return r.countRows(`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted = $1
		AND (classid::bigint << 32) + objid::bigint = holdfast.turnstile('k')`, granted)
}

// Each release lets one waiter pass the turnstile.
func TestWaitersPassTurnstileInOrder(t *testing.T) {
	r := startRig(t)
	g := r.AcquireGrant(r.newDriver(), "k", endlessTTL)
	blocks := r.openSession() // as a holder that has come through the turnstile would
	r.execOn(blocks, "SELECT pg_advisory_lock(holdfast.turnstile('k'))")
	var drivers [3]*postgres.Driver
	var grants [3]<-chan driver.Grant
	for i := range drivers {
		drivers[i] = r.newDriver()
		grants[i] = fixture.RunAsync(func() driver.Grant { return r.AcquireGrant(drivers[i], "k", endlessTTL) })
		r.Eventually("it has a ticket", func() bool { return r.waiterCount("k") == i+1 })
	}
	r.execOn(blocks, "SELECT holdfast.leave('k', $1, 0, false)", g.Owner)
	for i, next := range grants {
		own := fixture.AwaitResult(r.Rig, next)
		if own.Token <= g.Token {
			t.Errorf("waiter %d has token %d, the one before it %d", i, own.Token, g.Token)
		}
		g = own
		r.NoError(drivers[i].Release(r.WaitContext(), g, 0))
	}
	r.checkCleared()
}

// The server ends a block at the turnstile after a while. The waiter's client may notice that late, for example
// after a suspend, and still gets its turn: no waiter that blocks behind it may overtake it.
func TestTimedOutBlockKeepsItsTurn(t *testing.T) {
	r := startRig(t)
	g := r.AcquireGrant(r.newDriver(), "k", endlessTTL)
	blocks, slow := r.openSession(), r.openSession()
	r.execOn(blocks, "SELECT pg_advisory_lock(holdfast.turnstile('k'))")
	r.execOn(slow, "SELECT FROM holdfast.acquire('k', 'slow', 10000000, '{}', true, '-', 10000000, 30000000)")
	r.execOn(slow, "SET lock_timeout = '10ms'")
	through := new(bool)
	r.NoError(slow.QueryRow(r.WaitContext(), r.in("SELECT o_blocked FROM holdfast.enter('k', 'slow', 10000000, '{}', 10000000, 30000000)")).Scan(&through))
	if through != nil {
		t.Fatal("the client passed a turnstile that another session holds")
	}
	r.execOn(blocks, "SELECT holdfast.leave('k', $1, 0, false)", g.Owner)
	var next *string
	r.NoError(blocks.QueryRow(r.WaitContext(), r.in("SELECT owner FROM holdfast.lock WHERE name = 'k'")).Scan(&next))
	if next == nil || *next != "slow" {
		t.Errorf("the lock was not handed to the oldest ticket but kept for the turnstile (%v)", next)
	}
}

// The client that acquires and releases the lock sends two statements. Every five seconds the driver sends one
// more.
func TestHandOverTakesTwoStatements(t *testing.T) {
	r := startRig(t)
	holder, inside := r.newDriver(), r.openSession() // which stands for a holder that has come through the turnstile
	d := r.newDriver()
	client := r.Client(d)
	first := r.Acquire(client, "first", longTTL)
	r.forceLock(first)
	r.checkForced(first) // as it listens by now
	const turns = 4
	sent := 0
	for range 10 { // the first time it opens a connection
		before := r.Counts(d)["statement"]
		for range turns {
			g := r.AcquireGrant(holder, "k", endlessTTL)
			r.execOn(inside, "SELECT pg_advisory_lock(holdfast.turnstile('k'))")
			d.NoteCrowd("k")
			next := fixture.RunAsync(func() *holdfast.Lease { return r.Acquire(client, "k", longTTL) })
			r.Eventually("it blocks", func() bool { return r.atTurnstile(false) == 1 })
			r.execOn(inside, "SELECT holdfast.leave('k', $1, 0, false)", g.Owner)
			r.Release(fixture.AwaitResult(r.Rig, next))
		}
		if sent = r.Counts(d)["statement"] - before; sent < 3*turns {
			return
		}
	}
	t.Errorf("the client sent %d statements for its last %d grants, want two each, and one each five seconds", sent, turns)
}

// Waiters behind the idle session leave the turnstile after a short time and wait with a ticket.
func TestIdleSessionDoesNotBlockTurnstile(t *testing.T) {
	r := startRig(t)
	r.execOn(r.openSession(), "SELECT pg_advisory_lock(holdfast.turnstile('k'))")
	holder, waiter := r.newDriver(), r.newDriver()
	for range 2 {
		g := r.AcquireGrant(holder, "k", endlessTTL)
		next := fixture.RunAsync(func() driver.Grant { return r.AcquireGrant(waiter, "k", endlessTTL) })
		r.Eventually("it has a ticket", func() bool { return r.waiterCount("k") == 1 })
		r.NoError(holder.Release(r.WaitContext(), g, 0))
		own := fixture.AwaitResult(r.Rig, next)
		if own.Token <= g.Token {
			t.Errorf("token %d after %d", own.Token, g.Token)
		}
		r.NoError(waiter.Release(r.WaitContext(), own, 0))
	}
	r.checkCleared()
}

// A session that passes the turnstile while the row is held is denied and queues up.
func TestTurnstileDoesNotGrantHeldRow(t *testing.T) {
	r := startRig(t)
	holder := r.newDriver()
	g := r.AcquireGrant(holder, "k", endlessTTL)
	for i := range 2 { // two sessions have it, one after the other, as if the first was cut
		conn := r.openSession()
		var token *int64
		var owner string
		r.NoError(conn.QueryRow(r.WaitContext(), r.in("SELECT o_token, o_owner FROM holdfast.enter('k', $1, 10000000, '{}', 1000000, 8000000)"),
			fmt.Sprint("entrant ", i)).Scan(&token, &owner))
		if token != nil || owner != g.Owner {
			t.Errorf("entrant %d: token %v, held by %s, want held by %s", i, token, owner, g.Owner)
		}
		r.NoError(conn.Close(t.Context()))
	}
	r.NoError(holder.Check(r.WaitContext(), g))
}

// After the cut, a release still hands the lock over.
func TestLeaseSurvivesCutAtTurnstile(t *testing.T) {
	r := startRig(t)
	holder, middle, last := r.newDriver(), r.newDriver(), r.newDriver()
	g := r.AcquireGrant(holder, "k", endlessTTL)
	second := fixture.RunAsync(func() driver.Grant { return r.AcquireGrant(middle, "k", endlessTTL) })
	r.Eventually("it is through", func() bool { return r.atTurnstile(true) == 1 && r.waiterCount("k") == 1 })
	third := fixture.RunAsync(func() driver.Grant { return r.AcquireGrant(last, "k", endlessTTL) })
	r.Eventually("another has a ticket", func() bool { return r.waiterCount("k") == 2 })
	r.execSQL(`SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND (classid::bigint << 32) + objid::bigint = holdfast.turnstile('k')`)
	_, err := r.newDriver().Acquire(r.WaitContext(), driver.Request{Key: "k", TTL: endlessTTL, NoWait: true})
	if !errors.Is(err, driver.ErrHeld) {
		t.Errorf("Acquire() by another client = %v, want ErrHeld", err)
	}
	r.NoError(holder.Check(r.WaitContext(), g))
	r.NoError(holder.Release(r.WaitContext(), g, 0))
	g2 := fixture.AwaitResult(r.Rig, second)
	r.NoError(middle.Release(r.WaitContext(), g2, 0))
	g3 := fixture.AwaitResult(r.Rig, third)
	r.NoError(last.Release(r.WaitContext(), g3, 0))
	if g2.Token <= g.Token || g3.Token <= g2.Token {
		t.Errorf("tokens %d, %d, %d, want them to rise", g.Token, g2.Token, g3.Token)
	}
	r.checkCleared()
}

// The statement that blocks at the turnstile is executed after its caller has left.
func TestLateTurnstileEntryTakesNoLock(t *testing.T) {
	r := startRig(t)
	holder, waiter := r.newDriver(), r.newDriver()
	g := r.AcquireGrant(holder, "k", endlessTTL)
	pass := r.SendLate(waiter, entryText, false, func(ctx context.Context) {
		if _, err := waiter.Acquire(ctx, driver.Request{Key: "k", TTL: endlessTTL}); !errors.Is(err, context.Canceled) {
			t.Errorf("Acquire() = %v, want that it was cancelled", err)
		}
	})
	r.NoError(waiter.Close()) // waits for the release in the background
	r.NoError(holder.Release(r.WaitContext(), g, 0))
	pass()
	r.checkCleared()
}

// The server answered the cancelled statement, so it need not keep the mark of the ended owner.
func TestCancelledWaitDeletesItsMark(t *testing.T) {
	r := startRig(t)
	holder, waiter := r.newDriver(), r.newDriver()
	g := r.AcquireGrant(holder, "k", endlessTTL)
	r.execOn(r.openSession(), "SELECT pg_advisory_lock(holdfast.turnstile('k'))")
	ctx, cancel := context.WithCancel(t.Context())
	failed := fixture.AcquireAsync(ctx, waiter, driver.Request{Key: "k", TTL: endlessTTL})
	r.Eventually("it blocks at the turnstile", func() bool { return r.atTurnstile(false) == 1 })
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) || !errors.Is(err, driver.ErrHeld) {
		t.Errorf("Acquire() = %v, want that it was cancelled, and who has the lock", err)
	}
	r.NoError(waiter.Close())
	if n := r.atTurnstile(false); n != 0 {
		t.Errorf("%d sessions wait at the turnstile", n)
	}
	r.NoError(holder.Release(r.WaitContext(), g, 0))
	r.checkCleared()
}

// If the waiters at the turnstile have died, no client is notified of a lock that was left to them.
func TestTicketAtTurnstileExpiresSoon(t *testing.T) {
	r := startRig(t)
	holder, waiter := r.newDriver(), r.newDriver()
	g := r.AcquireGrant(holder, "k", endlessTTL)
	r.execOn(r.openSession(), "SELECT pg_advisory_lock(holdfast.turnstile('k'))")
	r.execSQL("CREATE TABLE holdfast.noted (stands float)")
	r.execSQL(`CREATE FUNCTION holdfast.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO holdfast.noted VALUES (extract(epoch FROM NEW.expires - clock_timestamp()) * 1000);
		RETURN NEW;
	END $$`)
	r.execSQL("CREATE TRIGGER note BEFORE INSERT OR UPDATE ON holdfast.ticket FOR EACH ROW WHEN (NEW.channel LIKE '-%') EXECUTE FUNCTION holdfast.note()")
	longest := 0   // in ms
	for range 20 { // on a busy machine a waiter may leave the turnstile before it writes its ticket
		got := fixture.RunAsync(func() driver.Grant { return r.AcquireGrant(waiter, "k", endlessTTL) })
		r.Eventually("it has a ticket", func() bool { return r.waiterCount("k") == 1 })
		r.NoError(holder.Release(r.WaitContext(), g, 0))
		r.NoError(waiter.Release(r.WaitContext(), fixture.AwaitResult(r.Rig, got), 0))
		if longest = r.countRows("SELECT coalesce(max(stands), 0)::int FROM holdfast.noted"); longest > 0 {
			break
		}
		g = r.AcquireGrant(holder, "k", endlessTTL)
	}
	if longest <= 0 || longest > 3000 {
		t.Errorf("the ticket of a blocked waiter lasts %d ms, want at most 3 s", longest)
	}
	r.checkCleared()
}

// The process may be suspended between the answer and the end of the wait.
func TestCancelledWaitLeavesTurnstile(t *testing.T) {
	r := startRig(t)
	holder, waiter := r.newDriver(), r.newDriver()
	g := r.AcquireGrant(holder, "k", endlessTTL)
	blocks := r.openSession()
	r.execOn(blocks, "SELECT pg_advisory_lock(holdfast.turnstile('k'))")
	r.NoError(waiter.AbandonAfterGrant("k", func() {
		r.Eventually("it blocks", func() bool { return r.atTurnstile(false) == 1 })
		r.execOn(blocks, "SELECT pg_advisory_unlock_all()")
	}))
	r.Eventually("its connection is closed", func() bool {
		waiter.CloseIdleWaitConns()
		return waiter.WaitConns() == 0 && r.atTurnstile(true) == 0
	})
	r.NoError(holder.Release(r.WaitContext(), g, 0))
	r.checkCleared()
}

// A waiter is granted the lock at the turnstile, and the lock is force-released before the waiter reads the
// grant.
func TestGrantOfFormerOwnerIsNotUsed(t *testing.T) {
	r := startRig(t)
	d := r.newDriver()
	r.NoError(d.Release(r.WaitContext(), r.AcquireGrant(d, "k", endlessTTL), 0)) // creates the row
	var forced int64
	g, err := d.TryUnderNewName(r.WaitContext(), "k", func(token int64) {
		forced = token
		if r.countRows("SELECT holdfast.force('k', $1)::int", token) != 1 {
			t.Error("the waiter did not get the lock")
		}
	})
	r.NoError(err)
	if g.Token <= forced {
		t.Errorf("token %d after the forced %d", g.Token, forced)
	}
	r.NoError(d.Check(r.WaitContext(), g))
	r.NoError(d.Release(r.WaitContext(), g, 0))
	r.checkCleared()
}

// A waiter with an older ticket is served before a waiter at the turnstile.
func TestTicketPrecedesTurnstile(t *testing.T) {
	r := startRig(t)
	r.opts.NoListen = true
	holder, polls := r.newDriver(), r.newDriver()
	g := r.AcquireGrant(holder, "k", endlessTTL)
	next := fixture.RunAsync(func() driver.Grant { return r.AcquireGrant(polls, "k", endlessTTL) })
	r.Eventually("it polls", func() bool { return r.waiterCount("k") == 1 })
	conn := r.openSession()
	tx, err := conn.Begin(t.Context())
	r.NoError(err)
	_, err = tx.Exec(t.Context(), r.in("SELECT holdfast.leave('k', $1, 0, false)"), g.Owner)
	r.NoError(err)
	var token *int64
	r.NoError(tx.QueryRow(t.Context(), r.in("SELECT o_token FROM holdfast.enter('k', 'entrant', 10000000, '{}', 1000000, 8000000)")).Scan(&token))
	if token != nil {
		t.Error("a later waiter got the lock")
	}
	r.NoError(tx.Commit(t.Context()))
	r.NoError(polls.Release(r.WaitContext(), fixture.AwaitResult(r.Rig, next), 0))
}

// A newcomer does not take the lock from waiters at the turnstile. Without waiters, it takes the lock at once.
func TestReleaseKeepsLockForTurnstile(t *testing.T) {
	r := startRig(t)
	d := r.newDriver()
	g := r.AcquireGrant(d, "k", endlessTTL)
	r.NoError(d.Release(r.WaitContext(), g, 0))
	conn := r.openSession()
	const free = "UPDATE holdfast.lock SET owner = NULL, expires = clock_timestamp() + interval '900 milliseconds'; "
	const ask = "SELECT o_token IS NOT NULL FROM holdfast.acquire('k', 'newcomer', 10000000, '{}', false, NULL, 1000000, 8000000)"
	for _, crowd := range []bool{true, false} {
		if crowd {
			r.execOn(r.openSession(), "SELECT pg_advisory_lock(holdfast.turnstile('k'))")
		} else {
			r.execSQL(`SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND (classid::bigint << 32) + objid::bigint = holdfast.turnstile('k')`)
			r.Eventually("it has gone", func() bool { return r.atTurnstile(true) == 0 })
		}
		results, err := conn.PgConn().Exec(t.Context(), r.in(free+ask)).ReadAll()
		r.NoError(err)
		if took := string(results[1].Rows[0][0]) == "t"; took == crowd {
			t.Errorf("with a waiter at the turnstile (%v) a newcomer got the lock: %v", crowd, took)
		}
	}
}

// The lock is kept for the turnstile, but no waiter passes it. TryAcquire then takes the lock: its error would
// name no holder.
func TestEmptyTurnstileFreesLock(t *testing.T) {
	r := startRig(t)
	d, other := r.newDriver(), r.newDriver()
	g := r.AcquireGrant(d, "k", endlessTTL)
	r.execOn(r.openSession(), "SELECT pg_advisory_lock(holdfast.turnstile('k'))")
	forced, err := other.Force(r.WaitContext(), "k", g.Token, "by a test")
	r.NoError(err)
	got, err := other.Acquire(r.WaitContext(), driver.Request{Key: "k", TTL: endlessTTL, NoWait: true})
	if !forced || err != nil || got.Token <= g.Token {
		t.Errorf("forced: %v; then %+v, %v; want the lock", forced, got, err)
	}
}

// A client that waits for many locks still opens few connections. It closes them after the waits.
func TestWaitConnectionsAreBounded(t *testing.T) {
	r := startRig(t)
	r.opts.MaxWaitConns = 2
	holder, waiter := r.newDriver(), r.newDriver()
	var held []driver.Grant
	var got []<-chan driver.Grant
	for i := range 8 {
		key := fmt.Sprint("k", i)
		held = append(held, r.AcquireGrant(holder, key, endlessTTL))
		got = append(got, fixture.RunAsync(func() driver.Grant { return r.AcquireGrant(waiter, key, endlessTTL) }))
	}
	most := 0
	r.Eventually("all wait", func() bool {
		most = max(most, r.countRows("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%' || $1 || '%enter(%' AND pid <> pg_backend_pid()", r.opts.Schema))
		return r.countRows("SELECT count(*) FROM holdfast.ticket") == 8
	})
	if most > 2 {
		t.Errorf("%d connections are at turnstiles, want at most 2", most)
	}
	for i, g := range held {
		r.NoError(holder.Release(r.WaitContext(), g, 0))
		r.NoError(waiter.Release(r.WaitContext(), fixture.AwaitResult(r.Rig, got[i]), 0))
	}
	waiter.CloseIdleWaitConns()
	r.Eventually("the connections are closed", func() bool {
		waiter.CloseIdleWaitConns()
		return waiter.WaitConns() == 0
	})
}

// A waiter that died while it was blocked delays the waiters behind it only for that TTL.
func TestGrantAtTurnstileIsShortUntilConfirmed(t *testing.T) {
	for _, renews := range []bool{true, false} {
		t.Run(fmt.Sprint("renews ", renews), func(t *testing.T) {
			r := startRig(t)
			holder := r.AcquireGrant(r.newDriver(), "k", longTTL)
			conn := r.openSession()
			r.execOn(conn, "SELECT pg_advisory_lock(holdfast.turnstile('k'))")
			d := r.newDriver()
			got := fixture.RunAsync(func() (g driver.Grant) {
				var err error
				g, err = d.Acquire(r.WaitContext(), driver.Request{Key: "k", TTL: longTTL, WillRenew: renews})
				r.NoError(err)
				return g
			})
			r.Eventually("it blocks", func() bool { return r.atTurnstile(false) == 1 && r.waiterCount("k") == 1 })
			r.linkOf(d).Halt(anAcquire) // the confirmation
			r.execOn(conn, "SELECT holdfast.leave('k', $1, 0, false)", holder.Owner)
			r.Eventually("it is granted, or asks again", func() bool {
				return r.countRows("SELECT count(*) FROM holdfast.lock WHERE owner <> $1", holder.Owner) == 1 || len(r.linkOf(d).Caught) > 0
			})
			if left := r.timeLeft(); left > 2*time.Second {
				t.Errorf("the unconfirmed lock lasts %v", left)
			}
			r.linkOf(d).Resume()
			g := fixture.AwaitResult(r.Rig, got)
			if !renews && r.timeLeft() < endlessTTL {
				t.Errorf("the lock lasts %v without a renewal", r.timeLeft())
			}
			r.NoError(d.Release(r.WaitContext(), g, 0))
		})
	}
}

// The adopter has the lock since the adoption.
func TestAdoptionSetsSince(t *testing.T) {
	r := startRig(t)
	d, heir := r.newDriver(), r.newDriver()
	g := r.AcquireAdoptable(d, endlessTTL)
	r.execSQL("UPDATE holdfast.lock SET since = since - interval '1 hour'")
	_, err := heir.Adopt(r.WaitContext(), g)
	r.NoError(err)
	_, err = d.Acquire(r.WaitContext(), driver.Request{Key: "k", TTL: endlessTTL, NoWait: true})
	held, ok := errors.AsType[*driver.HeldError](err)
	if !ok || time.Since(held.Since) > 30*time.Minute { // clock: the hold was set back by an hour
		t.Errorf("Acquire() = %v since %v, want it held since the adoption", err, held.Since)
	}
}

// A search by name reads all versions of the row that an old snapshot keeps.
func TestTurnstileSearchesRowTwice(t *testing.T) {
	r := startRig(t)
	d := r.newDriver()
	r.NoError(d.Release(r.WaitContext(), r.AcquireGrant(d, "k", endlessTTL), 0))
	tx := r.beginTx()
	countSearches := func() (n int) {
		r.Helper()
		r.NoError(tx.QueryRow(r.WaitContext(), r.in(`SELECT pg_stat_get_xact_numscans('holdfast.lock'::regclass)
			+ pg_stat_get_xact_numscans('holdfast.lock_pkey'::regclass)`)).Scan(&n))
		return n
	}
	before := countSearches() // of earlier transactions of the session
	var token *int64
	r.NoError(tx.QueryRow(r.WaitContext(), r.in("SELECT o_token FROM holdfast.enter('k', 'owner', 10000000, '{}', 1000000, 8000000)")).Scan(&token))
	_, err := tx.Exec(r.WaitContext(), r.in("SELECT holdfast.leave('k', 'owner', 0, false)"))
	r.NoError(err)
	if n := countSearches() - before; token == nil || n != 2 {
		t.Errorf("token %v with %d searches for the row, want a token with one search to take the lock and one to free it", token, n)
	}
	r.NoError(tx.Commit(r.WaitContext()))
	if owners := r.countRows("SELECT count(*) FROM holdfast.lock WHERE owner IS NOT NULL"); owners > 0 {
		t.Error("the lock is not free")
	}
}

// If a function is not inlined, the server parses and plans it at each call, which costs more than a hand-over.
func TestFunctionsInSQLAreInlined(t *testing.T) {
	r := startRig(t)
	calls := map[string]string{
		"next":      "SELECT holdfast.next(token, since) FROM holdfast.lock",
		"turnstile": "SELECT holdfast.turnstile(name) FROM holdfast.lock",
		"first":     "SELECT holder FROM holdfast.first('k')",
	}
	for name, call := range calls {
		rows, err := r.pool.Query(t.Context(), r.in("EXPLAIN (VERBOSE) "+call))
		r.NoError(err)
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		r.NoError(err)
		if text := strings.Join(plan, "\n"); strings.Contains(text, name+"(") || strings.Contains(text, "Function Scan") {
			t.Errorf("%s is called:\n%s", name, text)
		}
	}
	others := r.countRows(`SELECT count(*) FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang JOIN pg_namespace n ON n.oid = p.pronamespace
		WHERE n.nspname = $1 AND l.lanname = 'sql' AND p.proname <> ALL ($2)`, r.opts.Schema, slices.Collect(maps.Keys(calls)))
	if others > 0 {
		t.Errorf("%d other functions are in SQL; write them in PL/pgSQL, or show that they are inlined", others)
	}
}
