package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

// brief is a TTL that gives a statement little time.
const brief = time.Second

// TestAStatementThatComesAfterItsSenderGaveUpTakesNothing stops the statement of an
// Acquire on its way until its caller has gone and what it could have taken is
// released.
func TestAStatementThatComesAfterItsSenderGaveUpTakesNothing(t *testing.T) {
	r := start(t)
	for _, noWait := range []bool{true, false} {
		d := r.driver()
		p := r.route(d)
		p.stop(".acquire(")
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() {
			_, err := d.Acquire(ctx, driver.Request{Key: "k", TTL: brief, NoWait: noWait})
			failed <- err
		}()
		<-p.caught
		cancel()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Fatalf("Acquire() = %v, want that it was cancelled", err)
		}
		if e := d.Nodes()[0]; e.State != driver.NodeUp {
			t.Errorf("a caller that left makes the database %v: %v", e.State, e.Err)
		}
		if err := d.Close(); err != nil { // which waits for the release
			t.Fatal(err)
		}
		p.pass()
		<-p.late
		if left, err := r.leftovers(); err != nil || len(left) > 0 {
			t.Errorf("NoWait %v: the late statement has left %q, %v", noWait, left, err)
		}
	}
}

// TestAStatementThatComesAfterItWasRepeatedTakesNothing cuts the connection of a
// statement that is stopped on its way, so that its owner repeats it.
func TestAStatementThatComesAfterItWasRepeatedTakesNothing(t *testing.T) {
	r := start(t)
	d := r.driver()
	c, p := r.clientOf(d), r.route(d)
	p.stop(".acquire(")
	got := make(chan *holdfast.Lease, 1)
	go func() { got <- r.acquire(c, "k", long) }()
	first := <-p.caught
	p.set(func() { p.stopped = nil })
	first.client.Close()
	r.release(<-got)
	p.pass()
	<-p.late
	if left, err := r.leftovers(); err != nil || len(left) > 0 {
		t.Errorf("the late statement has left %q, %v", left, err)
	}
}

// TestAHandOverCostsTheWaiterOneStatement: beside the release that makes it, and the
// notification that comes with it.
func TestAHandOverCostsTheWaiterOneStatement(t *testing.T) {
	r := start(t)
	holder, waiting := r.client(), r.driver()
	waiter, p := r.clientOf(waiting), r.route(waiting)
	l := r.acquire(holder, "k", long)
	next := make(chan *holdfast.Lease, 1)
	go func() { next <- r.acquire(waiter, "k", long) }()
	r.eventually("the waiter listens", func() bool {
		return r.count("SELECT count(*) FROM holdfast.ticket WHERE channel IS NOT NULL") == 1
	})
	before, notices := p.passed()
	r.release(l)
	l = <-next
	sent, heard := p.passed()
	if sent-before != 1 || heard-notices != 1 {
		t.Errorf("the hand-over took %d statements of the waiter and %d notifications, want one of each", sent-before, heard-notices)
	}
	r.release(l)
}

// TestADeadWaiterLosesItsTurn hands the lock to a waiter that does not live to see
// it, which costs the next one a second.
func TestADeadWaiterLosesItsTurn(t *testing.T) {
	r := start(t)
	holder, dead := r.client(), r.driver()
	l := r.acquire(holder, "k", long)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		dead.Acquire(ctx, driver.Request{Key: "k", TTL: long})
	}()
	r.eventually("it waits", func() bool { return r.waiters("k") == 1 })
	p := r.route(dead)
	p.set(func() { p.hole = true })
	next := make(chan *holdfast.Lease, 1)
	other := r.client()
	go func() { next <- r.acquire(other, "k", long) }()
	r.eventually("another waits", func() bool { return r.waiters("k") == 2 })
	if n := r.count("SELECT max(grace) FROM holdfast.ticket"); n > 1e6 {
		t.Errorf("a hand-over stands for %d µs, want a second", n)
	}
	r.release(l)
	r.release(<-next)
	cancel()
	<-gone
	p.set(func() { p.hole = false })
}

// TestAReplyThatNeverComesIsNotWaitedFor has a connection hang behind a statement
// that was executed.
func TestAReplyThatNeverComesIsNotWaitedFor(t *testing.T) {
	r := start(t)
	d := r.driver()
	c, p := r.clientOf(d), r.route(d)
	l := r.acquire(c, "before", long)
	p.set(func() { p.mute, p.lose = true, 1 })
	other := r.acquire(c, "k", 6*brief)
	p.set(func() { p.lose = 1 })
	if err := l.Extend(r.within(), long); err != nil {
		t.Errorf("Extend() = %v", err)
	}
	r.release(other)
	p.set(func() { p.lose = 1 })
	r.release(l)
	p.cut()
	r.cleared()
}

// TestTombstonesAndDeadTicketsAreSwept: what is over is deleted by the next that
// queues up, on any name.
func TestTombstonesAndDeadTicketsAreSwept(t *testing.T) {
	r := start(t)
	r.exec(`INSERT INTO holdfast.ticket (name, owner, expires, gone) VALUES
		('a', 'x', clock_timestamp() - interval '1 second', true), ('b', 'y', clock_timestamp() - interval '1 second', false)`)
	holder, waiter := r.client(), r.client()
	l := r.acquire(holder, "k", long)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		waiter.Acquire(ctx, "k", nil)
	}()
	r.eventually("only the waiter has a ticket", func() bool {
		return r.waiters("k") == 1 && r.count("SELECT count(*) FROM holdfast.ticket") == 1
	})
	cancel()
	<-gone
	r.release(l)
	r.cleared()
}

// TestTokensFollowTheClock: a row that was lost does not bring back tokens that were
// given.
func TestTokensFollowTheClock(t *testing.T) {
	r := start(t)
	c := r.client()
	l := r.acquire(c, "k", long)
	r.release(l)
	r.exec("DELETE FROM holdfast.lock")
	next := r.acquire(c, "k", long)
	if next.Token() <= l.Token() {
		t.Errorf("token %d after %d", next.Token(), l.Token())
	}
	r.release(next)
}

// TestALateRenewalRevivesNothing: a renewal that comes after the lock has lapsed finds
// it lost, though nobody else has taken it.
func TestALateRenewalRevivesNothing(t *testing.T) {
	r := start(t)
	d := r.driver()
	g, err := d.Acquire(r.within(), driver.Request{Key: "k", TTL: brief})
	if err != nil {
		t.Fatal(err)
	}
	r.eventually("it has lapsed", func() bool {
		return r.count("SELECT count(*) FROM holdfast.lock WHERE expires <= clock_timestamp()") == 1
	})
	if err := d.Renew(r.within(), []driver.Grant{g})[0].Err; !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew() = %v, want ErrLost", err)
	}
}

// TestTrustCountsFromBeforeTheStatement: the time that the answer takes is the holder's
// loss.
func TestTrustCountsFromBeforeTheStatement(t *testing.T) {
	const slow, ttl = 200 * time.Millisecond, 6 * brief
	r := start(t)
	d := r.driver()
	p := r.route(d)
	p.set(func() { p.delay = slow })
	g, err := d.Acquire(r.within(), driver.Request{Key: "k", TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	if late := g.TrustedUntil.Sub(time.Now().Add(ttl - slow)); late > 0 {
		t.Errorf("a grant is trusted for %v too long", late)
	}
	renewal := d.Renew(r.within(), []driver.Grant{g})[0]
	if late := renewal.TrustedUntil.Sub(time.Now().Add(ttl - slow)); renewal.Err != nil || late > 0 {
		t.Errorf("a renewal (%v) is trusted for %v too long", renewal.Err, late)
	}
	if err := d.Release(r.within(), g, 0); err != nil {
		t.Error(err)
	}
}
