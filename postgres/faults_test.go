package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/postgres"
)

// shortTTL is the TTL in tests that wait for the end of a lease.
const shortTTL = time.Second

// A timeout does not count against the server if the caller left, or if this process was suspended.
func TestCallerTimeoutIsNotServerFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone, leave := context.WithCancel(t.Context())
		leave()
		for name, c := range map[string]struct {
			caller context.Context
			late   time.Duration
			want   bool
		}{
			"silence":                       {t.Context(), 0, false},
			"a caller that left":            {gone, 0, true},
			"a process that stood still":    {t.Context(), time.Second, true},
			"a time-out that took a moment": {t.Context(), 20 * time.Millisecond, false},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			<-ctx.Done()
			time.Sleep(c.late)
			if got := postgres.IsExcused(ctx, c.caller); got != c.want {
				t.Errorf("%s: excused %v, want %v", name, got, c.want)
			}
			cancel()
		}
	})
}

// The hand-over also needs the release and its notification. On a busy machine the waiter may also poll once.
func TestHandOverCostsWaiterOneStatement(t *testing.T) {
	r := startRig(t)
	holder, waiting := r.newClient(), r.newDriver()
	waiter := r.Client(waiting)
	var sent, heard int
	for range 10 {
		l := r.Acquire(holder, "k", endlessTTL)
		next := fixture.RunAsync(func() *holdfast.Lease { return r.Acquire(waiter, "k", endlessTTL) })
		r.Eventually("the waiter listens", func() bool {
			return r.listenerCount() == 1
		})
		before := r.Counts(waiting)
		r.Release(l)
		l = <-next
		after := r.Counts(waiting)
		r.Release(l)
		if sent, heard = after["statement"]-before["statement"], after["notice"]-before["notice"]; sent == 1 && heard == 1 {
			return
		}
	}
	t.Errorf("each hand-over took more: the last %d statements of the waiter and %d notifications, want one of each", sent, heard)
}

// A hand-over to a dead waiter delays the next waiter by a second.
func TestDeadWaiterLosesItsTurn(t *testing.T) {
	r := startRig(t)
	holder, dead := r.newClient(), r.newDriver()
	l := r.Acquire(holder, "k", endlessTTL)
	ctx, cancel := context.WithCancel(t.Context())
	gone := fixture.AcquireAsync(ctx, dead, driver.Request{Key: "k", TTL: endlessTTL})
	r.Eventually("it waits", func() bool { return r.waiterCount("k") == 1 })
	p := r.linkOf(dead)
	p.Set(func() { p.Hole = true })
	first := r.countRows("SELECT max(place) FROM holdfast.ticket")
	other := r.newClient()
	next := fixture.RunAsync(func() *holdfast.Lease { return r.Acquire(other, "k", endlessTTL) })
	r.Eventually("another waits", func() bool { // the dead waiter's ticket may have expired meanwhile
		return r.countRows("SELECT count(*) FROM holdfast.ticket WHERE place > $1 AND NOT gone", first) == 1
	})
	if n := r.countRows("SELECT max(grace) FROM holdfast.ticket"); n > 1e6 {
		t.Errorf("a hand-over lasts %d µs, want a second", n)
	}
	r.Release(l)
	r.Release(<-next)
	cancel()
	<-gone
	p.Set(func() { p.Hole = false })
}

// The server executes a statement, and then its connection hangs.
func TestHangingConnectionDoesNotDelayRetry(t *testing.T) {
	r := startRig(t)
	d := r.newDriver()
	c, p := r.Client(d), r.linkOf(d)
	l := r.Acquire(c, "before", endlessTTL)
	p.Set(func() { p.Mute, p.Lose = true, 1 })
	other := r.Acquire(c, "k", 6*shortTTL)
	p.Set(func() { p.Lose = 1 })
	if err := l.Extend(r.WaitContext(), endlessTTL); err != nil {
		t.Errorf("Extend() = %v", err)
	}
	r.Release(other)
	p.Set(func() { p.Lose = 1 })
	r.Release(l)
	p.Cut()
	r.checkCleared()
}

// A waiter that queues up on any name deletes expired tickets and marks of ended owners.
func TestWaiterDeletesExpiredTickets(t *testing.T) {
	r := startRig(t)
	r.execSQL(`INSERT INTO holdfast.ticket (name, owner, expires, gone) VALUES
		('a', 'x', clock_timestamp() - interval '1 second', true), ('b', 'y', clock_timestamp() - interval '1 second', false)`)
	holder, waiter := r.newClient(), r.newClient()
	l := r.Acquire(holder, "k", endlessTTL)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		waiter.Acquire(ctx, "k", nil)
	}()
	r.Eventually("only the waiter has a ticket", func() bool {
		return r.waiterCount("k") == 1 && r.countRows("SELECT count(*) FROM holdfast.ticket") == 1
	})
	cancel()
	<-gone
	r.Release(l)
	r.checkCleared()
}

// Tokens rise even if a row was lost, or was restored to a version from before the last grant.
func TestTokensFollowTheClock(t *testing.T) {
	const older = "UPDATE holdfast.lock SET token = 1"
	for name, grant := range map[string]func(r *rig, l *holdfast.Lease) *holdfast.Lease{
		"no row": func(r *rig, l *holdfast.Lease) *holdfast.Lease {
			r.Release(l)
			r.execSQL("DELETE FROM holdfast.lock")
			return r.Acquire(r.newClient(), "k", endlessTTL)
		},
		"an older row": func(r *rig, l *holdfast.Lease) *holdfast.Lease {
			r.Release(l)
			r.execSQL(older)
			return r.Acquire(r.newClient(), "k", endlessTTL)
		},
		"an older row, handed over": func(r *rig, l *holdfast.Lease) *holdfast.Lease {
			waiter := r.newClient()
			next := fixture.RunAsync(func() *holdfast.Lease { return r.Acquire(waiter, "k", endlessTTL) })
			r.Eventually("it waits", func() bool { return r.waiterCount("k") == 1 })
			r.execSQL(older)
			r.Release(l)
			return <-next
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := startRig(t)
			l := r.Acquire(r.newClient(), "k", endlessTTL)
			next := grant(r, l)
			if next.Token() <= l.Token() {
				t.Errorf("token %d after %d", next.Token(), l.Token())
			}
			r.Release(next)
		})
	}
}

// A renewal that comes after the lock has expired reports a loss, even if nobody else has the lock.
func TestLateRenewalDoesNotReviveLease(t *testing.T) {
	r := startRig(t)
	d := r.newDriver()
	g, err := d.Acquire(r.WaitContext(), driver.Request{Key: "k", TTL: shortTTL}) // short: it expires
	r.NoError(err)
	r.Eventually("it has lapsed", func() bool {
		return r.countRows("SELECT count(*) FROM holdfast.lock WHERE expires <= clock_timestamp()") == 1
	})
	g.TTL = endlessTTL // also bounds the time that the renewal may take
	if err := d.Renew(r.WaitContext(), []driver.Grant{g})[0].Err; !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew() = %v, want ErrLost", err)
	}
}

// A grant whose answer leaves less than half of the TTL is not used.
func TestLateGrantIsNotUsed(t *testing.T) {
	// A statement may take 300 ms.
	const ttl, slow = 400 * time.Millisecond, 230 * time.Millisecond
	r := startRig(t)
	d := r.newDriver()
	r.linkOf(d).Set(func() { r.linkOf(d).Slow = slow })
	for i := range 3 {
		g, err := d.Acquire(r.WaitContext(), driver.Request{Key: fmt.Sprint(i), TTL: ttl, NoWait: true}) // short: nothing is granted
		if !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("%v of %v are left, %v; want ErrUnavailable", time.Until(g.TrustedUntil), ttl, err)
		}
	}
}
