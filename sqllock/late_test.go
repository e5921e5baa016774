package sqllock_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/sqllock"
)

// A proxy recognizes each statement by one of these texts.
const (
	anInsert = "INTO t" // the first lock on a name
	aChange  = ", owner = "
	aTake    = "AND places = " // acquire of a lock that was not read
	aRenewal = "CASE WHEN expires"
	aKnown   = "AND (name = "          // renewal that names stamps
	aLook    = "l.stamp, l.expires - " // read of a renewal
)

// makeRow creates the row of "k", so that the next acquire updates it and inserts nothing.
func (r *rig) makeRow() {
	r.Helper()
	r.makeRowKnown(r.newDriver())
}

// makeRowKnown creates the row of "k" with d, so that d then takes the lock without a read.
func (r *rig) makeRowKnown(d *sqllock.Driver) {
	r.Helper()
	r.NoError(d.Release(r.WaitContext(), r.AcquireGrant(d, "k", long), 0))
}

// lateBench returns r for the checks of late statements.
func (r *rig) lateBench() fixture.LateBench {
	return fixture.LateBench{
		Rig: r.Rig, Open: func() driver.Driver { return r.newDriver() }, TimeLeft: r.timeLeft, Leftovers: r.leftoverRows,
		Expire: func() { r.execSQL("UPDATE holdfast_lock SET expires = 1") },
	}
}

var lateStatements = map[string]fixture.LateStatement{
	"first acquire":   {Text: anInsert},
	"acquire":         {Text: aChange, Row: true},
	"acquire, unread": {Text: aTake, Known: true},
	"renewal":         {Text: aRenewal, Call: fixture.LateRenewal, Detached: true},
	"renewal, unread": {Text: aKnown, Call: fixture.LateRenewal},
}

func TestLateStatementDoesNotShortenLease(t *testing.T) {
	all := maps.Clone(lateStatements)
	all["adopt"] = fixture.LateStatement{Text: aChange, Call: fixture.LateAdoption}
	for name, s := range all {
		t.Run(name, func(t *testing.T) {
			forEach(t, servers, func(r *rig) { r.lateBench().CheckLateShortensNothing(s) })
		})
	}
}

func TestLateStatementDoesNotReviveLease(t *testing.T) {
	for name, end := range fixture.LeaseEnds {
		for what, s := range lateStatements {
			t.Run(name+", "+what, func(t *testing.T) {
				forEach(t, servers, func(r *rig) { r.lateBench().CheckLateRevivesNothing(s, end) })
			})
		}
	}
}

func TestLateAcquireStatementTakesNoLock(t *testing.T) {
	for _, what := range []string{"first acquire", "acquire", "acquire, unread"} {
		t.Run(what, func(t *testing.T) {
			forEach(t, servers, func(r *rig) { r.lateBench().CheckGoneSender(lateStatements[what], true) })
		})
	}
}

// The release decided before the waiter wrote its ticket, and is executed afterwards.
func TestReleaseSeesNewWaiter(t *testing.T) {
	forEach(t, servers, func(r *rig) {
		holder, waiter := r.newDriver(), r.newDriver()
		g := r.AcquireGrant(holder, "k", long)
		p := r.linkOf(holder)
		p.Halt(aChange)
		released := make(chan error, 1)
		go func() { released <- holder.Release(r.WaitContext(), g, 0) }()
		<-p.Caught
		got := fixture.RunAsync(func() driver.Grant { return r.AcquireGrant(waiter, "k", long) })
		r.Eventually("it waits", func() bool { return r.waiterCount() == 1 })
		r.Eventually("it has stirred the lock", func() bool { return r.countRows("SELECT MAX(places) FROM holdfast_lock") == 1 })
		p.Resume()
		r.NoError(<-released)
		if free := r.countRows("SELECT COUNT(*) FROM holdfast_lock WHERE owner = '' AND expires <= since"); free != 0 { // and not reserved for the waiter
			r.Error("the lock was freed instead of handed to a waiter")
		}
		r.NoError(waiter.Release(r.WaitContext(), <-got, 0))
		r.checkCleared()
	})
}

// During MinHold, neither the owner that released the lock nor the owner that Inspect names can adopt it.
func TestMinHoldLockCannotBeAdopted(t *testing.T) {
	forEach(t, kinds, func(r *rig) { r.lateBench().CheckKeptLock() })
}

// If a lock is handed to a waiter and taken away before the waiter reads the grant, the waiter gets its next
// grant under a new owner name.
func TestEachGrantHasNewOwnerName(t *testing.T) {
	forEach(t, kinds, func(r *rig) {
		r.wait = -1 // without GET_LOCK, releases hand the lock over
		holder, waiter := r.newDriver(), r.newDriver()
		holder.RemoveBell()
		waiter.SetPollInterval(2 * time.Second)
		g := r.AcquireGrant(holder, "k", long)
		got := fixture.RunAsync(func() driver.Grant { return r.AcquireGrant(waiter, "k", long) })
		r.Eventually("it waits", func() bool { return r.waiterCount() == 1 && r.countRows("SELECT MAX(places) FROM holdfast_lock") == 1 })
		r.NoError(holder.Release(r.WaitContext(), g, 0))
		st, err := holder.Inspect(r.WaitContext(), "k")
		r.NoError(err)
		if ok, err := holder.Force(r.WaitContext(), "k", st.Token, ""); !ok || err != nil {
			r.Fatalf("Force() = %v, %v", ok, err)
		}
		next := <-got
		if next.Owner == st.Owner || next.Token < st.Token+int64(next.Block) {
			r.Errorf("%s has token %d, and had %d before", next.Owner, next.Token, st.Token)
		}
		r.NoError(waiter.Release(r.WaitContext(), next, 0))
		r.checkCleared()
	})
}

// This also holds if the lock is handed to a late ticket of the former holder.
func TestLateRenewalDoesNotReviveTakenLease(t *testing.T) {
	for name, take := range map[string]func(r *rig, g driver.Grant){
		"force": func(r *rig, g driver.Grant) {
			if ok, err := r.newDriver().Force(r.WaitContext(), "k", g.Token, ""); !ok || err != nil {
				r.Fatalf("Force() = %v, %v", ok, err)
			}
		},
		"adoption": func(r *rig, g driver.Grant) {
			heir := r.newDriver()
			own, err := heir.Adopt(r.WaitContext(), g)
			r.NoError(err)
			r.NoError(heir.Release(r.WaitContext(), own, 0))
		},
	} {
		t.Run(name, func(t *testing.T) {
			forEach(t, kinds, func(r *rig) {
				d := r.newDriver()
				g := r.AcquireAdoptable(d, long)
				take(r, g)
				r.execSQL(fmt.Sprintf("INSERT INTO holdfast_ticket (name, owner, place, holder, expires) VALUES ('k', '%s', 1, '{}', %d)",
					g.Owner, time.Now().Add(long).UnixMicro()))
				other := r.newDriver()
				if _, err := other.Acquire(r.WaitContext(), driver.Request{Key: "k", TTL: long, NoWait: true}); !errors.Is(err, driver.ErrHeld) {
					r.Fatalf("Acquire() = %v, want that the lock is handed to the ticket", err)
				}
				r.execSQL(fmt.Sprint("UPDATE holdfast_lock SET expires = ", time.Now().Add(long).UnixMicro()))
				if err := d.Renew(r.WaitContext(), []driver.Grant{g})[0].Err; !errors.Is(err, driver.ErrLost) {
					r.Errorf("Renew() = %v, want ErrLost", err)
				}
				if err := d.Check(r.WaitContext(), g); !errors.Is(err, driver.ErrLost) {
					r.Errorf("Check() = %v, want ErrLost", err)
				}
				if _, err := other.Adopt(r.WaitContext(), g); !errors.Is(err, driver.ErrLost) {
					r.Errorf("Adopt() = %v, want ErrLost", err)
				}
				r.NoError(d.Release(r.WaitContext(), g, 0))
				r.checkCleared()
			})
		})
	}
}

// A statement that was decided by the old stamp may come later still. So a late renewal that names a stamp
// finds nothing and does not restore it.
func TestLateRenewalDoesNotRestoreStamp(t *testing.T) {
	for _, reads := range []bool{true, false} {
		t.Run(fmt.Sprint("reads: ", reads), func(t *testing.T) {
			forEach(t, servers, func(r *rig) {
				d := r.newDriver()
				g := r.AcquireGrant(d, "k", long)
				text := aKnown
				if reads {
					d.Detach(g)
					text = aRenewal
				}
				pass := r.SendLate(d, text, true, func(ctx context.Context) { r.NoError(d.Renew(ctx, []driver.Grant{g})[0].Err) })
				before := r.lockStamp()
				r.execSQL("UPDATE holdfast_lock SET stamp = 7")
				pass()
				if now := r.lockStamp(); now == before || (now == 7) == reads {
					r.Errorf("stamp = %d, was %d before", now, before)
				}
				r.NoError(d.Release(r.WaitContext(), g, 0))
				r.checkCleared()
			})
		})
	}
}

// One statement renews if no lock has a waiter. The release then needs one more statement, which finds the new
// stamps.
func TestRenewalWithKnownStampIsOneStatement(t *testing.T) {
	forEach(t, servers, func(r *rig) {
		d := r.newDriver()
		grants := []driver.Grant{r.AcquireGrant(d, "k", long), r.AcquireGrant(d, "other", long)}
		sent := func(do func()) int {
			before := r.Counts(d)["statement"]
			do()
			return r.Counts(d)["statement"] - before
		}
		renew := func(want ...int) {
			for i, out := range d.Renew(r.WaitContext(), grants) {
				if r.NoError(out.Err); out.Waiters != want[i] || !out.TrustedUntil.After(grants[i].TrustedUntil) {
					r.Errorf("renewal %d: %+v, want %d waiters and more time", i, out, want[i])
				}
			}
		}
		for range 3 {
			if n := sent(func() { renew(0, 0) }); n != 1 {
				r.Errorf("a renewal took %d statements", n)
			}
		}
		waiter := r.newDriver()
		got := fixture.RunAsync(func() driver.Grant { return r.AcquireGrant(waiter, "k", long) })
		r.Eventually("it waits", func() bool { return r.waiterCount() == 1 && r.countRows("SELECT MAX(places) FROM holdfast_lock") == 1 })
		renew(1, 0)
		renew(1, 0) // by a known stamp, without a new waiter
		if n := sent(func() { r.NoError(d.Release(r.WaitContext(), grants[1], 0)) }); n != 1 {
			r.Errorf("a release took %d statements", n)
		}
		r.NoError(d.Release(r.WaitContext(), grants[0], 0))
		r.NoError(waiter.Release(r.WaitContext(), fixture.AwaitResult(r.Rig, got), 0))
		r.checkCleared()
	})
}

// The clock is set back before the renewal reads the lock, after another client may have decided to take it.
func TestRenewalOfExpiredLockIsRepeated(t *testing.T) {
	forEach(t, servers, func(r *rig) {
		d := r.newDriver()
		g, other := r.AcquireGrant(d, "k", long), r.AcquireGrant(d, "other", long)
		before := r.lockStamp()
		p := r.linkOf(d)
		p.Halt(aLook)
		renewed := make(chan []driver.Renewal, 1)
		r.execSQL("UPDATE holdfast_lock SET expires = 1 WHERE name = 'k'")
		go func() { renewed <- d.Renew(r.WaitContext(), []driver.Grant{g, other}) }()
		<-p.Caught
		p.Set(func() { p.Stop = "" })
		r.execSQL(fmt.Sprint("UPDATE holdfast_lock SET expires = ", time.Now().Add(long).UnixMicro()))
		p.Resume()
		for _, out := range <-renewed {
			r.NoError(out.Err)
		}
		if r.lockStamp() == before {
			r.Error("the lock is trusted, and a decision from its expiry would still take it")
		}
		r.NoError(d.Release(r.WaitContext(), g, 0))
		r.NoError(d.Release(r.WaitContext(), other, 0))
		r.checkCleared()
	})
}

// Tokens rise even if a row was lost, or was restored to a version from before the last grant.
func TestTokensRiseAfterLostRow(t *testing.T) {
	for name, older := range map[string]string{"no row": "DELETE FROM holdfast_lock", "an older row": "UPDATE holdfast_lock SET token = 1"} {
		t.Run(name, func(t *testing.T) {
			forEach(t, kinds, func(r *rig) {
				c := r.newClient()
				l := r.Acquire(c, "k", long)
				r.Release(l)
				r.execSQL(older)
				next := r.Acquire(c, "k", long)
				if next.Token() <= l.Token() {
					r.Errorf("token %d after %d", next.Token(), l.Token())
				}
				r.Release(next)
			})
		})
	}
}

// A hand-over to a dead waiter delays the next waiter by a second.
func TestDeadWaiterLosesItsTurn(t *testing.T) {
	forEach(t, servers, func(r *rig) {
		holder, dead := r.newClient(), r.newDriver()
		l := r.Acquire(holder, "k", long)
		ctx, cancel := context.WithCancel(r.Context())
		gone := fixture.AcquireAsync(ctx, dead, driver.Request{Key: "k", TTL: long})
		r.Eventually("it waits", func() bool { return r.waiterCount() == 1 })
		p := r.linkOf(dead)
		p.Set(func() { p.Hole = true })
		var first string
		r.NoError(r.db.QueryRowContext(r.WaitContext(), r.in("SELECT owner FROM holdfast_ticket")).Scan(&first))
		other := r.newClient()
		next := fixture.RunAsync(func() *holdfast.Lease { return r.Acquire(other, "k", long) })
		r.Eventually("another waits", func() bool { // the dead waiter's ticket may have expired meanwhile
			return r.countRows("SELECT COUNT(*) FROM holdfast_ticket WHERE owner <> '"+first+"'") == 1
		})
		r.Release(l)
		var owner string
		var span int64
		r.NoError(r.db.QueryRowContext(r.WaitContext(), r.in("SELECT owner, expires - since FROM holdfast_lock WHERE name = 'k'")).Scan(&owner, &span))
		got := <-next
		// A row without an owner is reserved for the turnstile, and still has the time of the last grant.
		if span := time.Duration(span) * time.Microsecond; owner != "" && owner != got.Owner() && span > time.Second {
			r.Errorf("the lock was handed to the dead waiter %q for %v, want a second; then %q got it", owner, span, got.Owner())
		}
		r.Release(got)
		cancel()
		<-gone
		p.Set(func() { p.Hole = false })
	})
}

// A waiter on any name deletes tickets that have expired.
func TestNextWaiterSweepsDeadTickets(t *testing.T) {
	forEach(t, kinds, func(r *rig) {
		r.execSQL("INSERT INTO holdfast_ticket (name, owner, place, holder, expires) VALUES ('a', 'x', 1, '{}', 1)")
		holder, waiter := r.newClient(), r.newClient()
		l := r.Acquire(holder, "k", long)
		ctx, cancel := context.WithCancel(r.Context())
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			waiter.Acquire(ctx, "k", nil)
		}()
		r.Eventually("only the waiter has a ticket", func() bool { return r.waiterCount() == 1 && r.countRows("SELECT COUNT(*) FROM holdfast_ticket") == 1 })
		cancel()
		<-gone
		r.Release(l)
		r.checkCleared()
	})
}

// The test covers all states of a lock and its queue that a claim may find on SQLite.
func TestStatementAgreesWithGoDecision(t *testing.T) {
	t.Parallel()
	r := newRig(t, onSQLite)
	d := r.newDriver()
	tickets := []struct {
		owner string
		lives bool
	}{{"me", true}, {"other", true}, {"other", false}, {"before", true}}
	cases, taken := 0, 0
	for _, owner := range []string{"none", "", "before", "before!", "me"} {
		for _, lives := range []bool{false, true} {
			for queue := range 1 << len(tickets) {
				now := time.Now().Add(-time.Second)
				at := func(lives bool) int64 {
					if lives {
						return now.Add(time.Minute).UnixMicro()
					}
					return now.UnixMicro()
				}
				r.execSQL("DELETE FROM holdfast_lock")
				r.execSQL("DELETE FROM holdfast_ticket")
				if owner != "none" {
					r.execSQL(fmt.Sprintf("INSERT INTO holdfast_lock VALUES ('k', 1, %d, '%s', '{}', %d, %d, 9)",
						now.Add(-time.Hour).UnixMicro(), owner, now.UnixMicro(), at(lives)))
				}
				mine := false
				for i, ticket := range tickets {
					if queue>>i&1 == 1 {
						mine = mine || ticket.owner == "me"
						r.execSQL(fmt.Sprintf("INSERT INTO holdfast_ticket VALUES ('k', '%s', %d, '{}', %d) ON CONFLICT DO NOTHING", ticket.owner, i, at(ticket.lives)))
					}
				}
				byStatement, byRow, err := d.DecideTwice(r.WaitContext(), "me", mine)
				r.NoError(err)
				cases++
				if byStatement.Owner != "" {
					taken++
				}
				near := func(a, b int64) bool { return max(a-b, b-a) < time.Minute.Microseconds() } // the two decisions are made at slightly different times
				same := byStatement.Owner == byRow.Owner && near(byStatement.TokenRises, byRow.TokenRises) && near(byStatement.SinceChanges, byRow.SinceChanges)
				// The statement leaves it to the transaction to pass other waiters' tickets.
				if passes := byStatement.Owner == "" && mine && queue > 1; !same && !passes {
					t.Errorf("owner %q, alive: %v, queue %b: the statement writes %+v, want %+v", owner, lives, queue, byStatement, byRow)
				}
			}
		}
	}
	if taken < 20 || taken > cases/2 {
		t.Errorf("of %d cases the lock was acquired in %d", cases, taken)
	}
}

// This holds for any TTL, which bounds the time that a renewal or a release may take.
func TestRetriesPauseBriefly(t *testing.T) {
	const jitter = 100 * time.Microsecond // upper bound of a hurried pause; a newcomer pauses for 50 µs at least
	for _, left := range []time.Duration{time.Minute, time.Hour, 24 * time.Hour} {
		for waited := time.Millisecond; waited < time.Minute; waited *= 2 {
			hurried, newcomer := sqllock.BusyPauses(waited, time.Now().Add(left))
			if hurried > newcomer+jitter {
				t.Errorf("after %v, with %v left, an urgent statement pauses for %v and a new one for %v", waited, left, hurried, newcomer)
			}
		}
	}
}
