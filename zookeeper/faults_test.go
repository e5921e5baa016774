package zookeeper_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/zkproc"
)

// TestALeaseOutlivesAMember holds leases while members fail, long enough for several
// renewals: one of 8 s while one that does not lead fails, and one of 15 s through
// elections.
func TestALeaseOutlivesAMember(t *testing.T) {
	r := alone(t, 3)
	d := r.straight()
	c := r.client(d)
	leader := r.leader()
	var others []*zkproc.Member
	for _, m := range r.ensemble.Members {
		if m != leader {
			others = append(others, m)
		}
	}
	freeze := func(m *zkproc.Member) { r.must(m.Pause()) }
	thaw := func(m *zkproc.Member) { r.must(m.Resume()) }
	kill := func(m *zkproc.Member) { m.Kill() }
	restart := func(m *zkproc.Member) { r.must(m.Restart(t.Context())) }
	for _, fault := range []struct {
		name       string
		begin, end func(m *zkproc.Member)
		members    []*zkproc.Member
		ttl        time.Duration
	}{
		{"frozen", freeze, thaw, others, 8 * time.Second},
		{"killed", kill, restart, others, 8 * time.Second},
		{"leader frozen", freeze, thaw, nil, 15 * time.Second},
		{"leader killed", kill, restart, nil, 15 * time.Second},
	} {
		if fault.members == nil {
			fault.members = []*zkproc.Member{r.leader()}
		}
		for _, m := range fault.members {
			l := r.acquire(c, "k", fault.ttl)
			r.eventually("all members follow", r.ensemble.Whole)
			fault.begin(m)
			for range 3 { // the last answer may have come just before
				deadline := l.Deadline()
				r.eventually("a renewal", func() bool { return l.Deadline().After(deadline) || l.Context().Err() != nil })
			}
			if err := context.Cause(l.Context()); err != nil {
				t.Errorf("%s: the lease ended: %v", fault.name, err)
			}
			fault.end(m)
			r.release(l)
			r.nodes(d, "k", 0)
		}
	}
}

// TestAMajorityThatComesBackServesTheWaiters: nobody gets the lock while there is no
// majority, and the lease that nobody could renew is over then.
func TestAMajorityThatComesBackServesTheWaiters(t *testing.T) {
	r := alone(t, 3)
	d := r.straight()
	holder, waiter := r.client(d), r.client(r.straight())
	l := r.acquire(holder, "k", 3*time.Second)
	next := make(chan *holdfast.Lease, 1)
	go func() { next <- r.acquire(waiter, "k", 30*time.Second) }()
	r.nodes(d, "k", 2)
	for _, m := range r.ensemble.Members[:2] {
		m.Kill()
	}
	<-l.Context().Done()
	if err := context.Cause(l.Context()); !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("the lease ended with %v, want ErrLost", err)
	}
	select {
	case <-next:
		t.Error("there is a new holder without a majority")
	default:
	}
	for _, m := range r.ensemble.Members[:2] {
		r.must(m.Restart(t.Context()))
	}
	if n := <-next; n.Token() <= l.Token() {
		t.Errorf("token %d after %d", n.Token(), l.Token())
	} else {
		r.release(n)
	}
}

// TestAWaiterWhoseNodeIsDeletedQueuesAnew: it watches its own node too, and never takes the
// lock for one that is gone.
func TestAWaiterWhoseNodeIsDeletedQueuesAnew(t *testing.T) {
	r := start(t)
	d, waiting := r.straight(), r.driver()
	g := r.grant(d, "k", long)
	next := make(chan driver.Grant, 1)
	go func() { next <- r.grant(waiting, "k", long) }()
	first := r.waiter(d, "k")
	r.must(d.Delete(r.within(), "k", first))
	r.eventually("it queues anew", func() bool { return r.waiter(d, "k") != first })
	r.must(d.Release(r.within(), g, 0))
	n := <-next
	if n.Owner == first {
		t.Error("it got the lock for a node that is gone")
	}
	if ok, err := d.Force(r.within(), "k", n.Token, ""); err != nil || !ok {
		t.Fatalf("Force() = %v, %v", ok, err)
	}
	if err := waiting.Renew(r.within(), []driver.Grant{n})[0].Err; !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew() of what was forced = %v, want ErrLost", err)
	}
}

// TestASessionThatIsOverLosesItsLeasesAtOnce: the holder hears of it before its next renewal,
// and one that waited in the same session queues anew.
func TestASessionThatIsOverLosesItsLeasesAtOnce(t *testing.T) {
	r := start(t)
	d, looker := r.straight(), r.straight()
	c := r.client(d)
	mine, theirs := r.acquire(c, "mine", long), r.grant(looker, "theirs", long)
	r.must(mine.Extend(r.within(), long)) // from now on the driver heeds the node
	next := make(chan *holdfast.Lease, 1)
	go func() { next <- r.acquire(c, "theirs", long) }()
	first := r.waiter(looker, "theirs")
	r.must(d.Expire(r.within(), long))
	<-mine.Context().Done()
	if err := context.Cause(mine.Context()); !errors.Is(err, holdfast.ErrLost) || !errors.Is(err, holdfast.ErrGone) {
		t.Errorf("the lease ended with %v, want ErrLost and ErrGone", err)
	}
	r.eventually("the waiter queues anew", func() bool { return r.waiter(looker, "theirs") != first })
	r.must(looker.Release(r.within(), theirs, 0))
	again := r.acquire(c, "mine", long)
	if again.Token() <= mine.Token() {
		t.Errorf("token %d after %d", again.Token(), mine.Token())
	}
	r.release(again, <-next)
}

// TestNobodyHasTheLockWhileItsOldHolderTrustsIt stops the leader for longer than the session
// of the holder lasts, and not for long enough to be replaced. When it goes on, it ends the
// session at once, whatever a member that follows it has said meanwhile.
func TestNobodyHasTheLockWhileItsOldHolderTrustsIt(t *testing.T) {
	for name, leads := range map[string]bool{"by the leader": true, "by others": false} {
		t.Run(name, func(t *testing.T) {
			r := alone(t, 3, "syncLimit=40")
			leader := r.leader()
			d := r.driver()
			if !leads {
				r.on(d, func(i int, p *proxy) { p.refuse = r.ensemble.Members[i] == leader })
			}
			holder, waiter := r.client(d), r.client(r.straight())
			for range 3 {
				l := r.acquire(holder, "k", 3*time.Second)
				first := l.Deadline()
				r.eventually("a renewal", func() bool { return l.Deadline().After(first) || l.Context().Err() != nil })
				next := make(chan *holdfast.Lease, 1)
				var at time.Time
				go func() {
					n := r.acquire(waiter, "k", long)
					at = time.Now()
					next <- n
				}()
				r.must(leader.Pause())
				time.Sleep(4 * time.Second) // longer than the session
				r.must(leader.Resume())
				<-l.Context().Done()
				n := <-next
				if early := l.Deadline().Sub(at); early > 0 {
					t.Errorf("the next holder came %v before the deadline", early)
				}
				if n.Token() <= l.Token() {
					t.Errorf("token %d after %d", n.Token(), l.Token())
				}
				r.release(n)
				r.eventually("all members follow", r.ensemble.Whole)
			}
		})
	}
}

// TestALeaseIsKeptThroughMembersThatFollow: the client cannot reach the leader.
func TestALeaseIsKeptThroughMembersThatFollow(t *testing.T) {
	r := start(t)
	leader := r.leader()
	d := r.driver()
	r.on(d, func(i int, p *proxy) { p.refuse = r.ensemble.Members[i] == leader })
	holder, waiter := r.client(d), r.client(r.straight())
	l := r.acquire(holder, "k", 6*time.Second)
	next := make(chan *holdfast.Lease, 1)
	go func() { next <- r.acquire(waiter, "k", long) }()
	for range 4 {
		deadline := l.Deadline()
		r.eventually("a renewal", func() bool { return l.Deadline().After(deadline) || l.Context().Err() != nil })
	}
	r.must(context.Cause(l.Context()))
	r.release(l)
	r.release(<-next)
}

// TestALostReplyCostsNoLock loses replies to each kind of request, whether the connection
// shows that or not.
func TestALostReplyCostsNoLock(t *testing.T) {
	r := start(t)
	d, looker := r.driver(), r.straight()
	c := r.client(d)
	for _, kind := range []int{opCreate, opChildren, opSync, opMulti, opDelete} {
		for _, mute := range []bool{false, true} {
			r.on(d, func(_ int, p *proxy) { p.only, p.mute, p.lose = kind, mute, 1 })
			l := r.acquire(c, "k", 10*time.Second)
			if err := l.Extend(r.within(), 10*time.Second); err != nil {
				t.Errorf("%d, hangs %v: Extend() = %v", kind, mute, err)
			}
			if err := l.Release(r.within()); err != nil && !mute { // each member may have hung for a while
				t.Errorf("%d, hangs %v: Release() = %v", kind, mute, err)
			}
			if l, err := c.TryAcquire(r.within(), "k", &holdfast.AcquireOptions{TTL: 10 * time.Second}); err == nil {
				r.release(l)
			} else if !errors.Is(err, holdfast.ErrUnavailable) && !errors.Is(err, holdfast.ErrHeld) { // by a release on its way
				t.Errorf("%d, hangs %v: TryAcquire() = %v", kind, mute, err)
			}
			r.on(d, func(_ int, p *proxy) { p.lose = 0 })
			r.nodes(looker, "k", 0)
		}
	}
}

// TestARequestThatComesAfterItsSenderGaveUpTakesNothing stops the request that creates the
// node on its way until the caller has gone, over a session that goes on.
func TestARequestThatComesAfterItsSenderGaveUpTakesNothing(t *testing.T) {
	r := start(t)
	looker := r.straight()
	for _, noWait := range []bool{true, false} {
		d := r.driver()
		r.grant(d, fmt.Sprint("other", noWait), long) // which keeps the session
		r.on(d, func(_ int, p *proxy) { p.stop = opCreate })
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() {
			_, err := d.Acquire(ctx, driver.Request{Key: "k", TTL: long, NoWait: noWait})
			failed <- err
		}()
		var caught *proxy
		r.eventually("the request is on its way", func() bool {
			r.on(d, func(_ int, p *proxy) {
				select {
				case <-p.caught:
					caught = p
				default:
				}
			})
			return caught != nil
		})
		cancel()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Fatalf("Acquire() = %v, want that it was cancelled", err)
		}
		looked := make(map[*proxy]int)
		r.on(d, func(_ int, p *proxy) { looked[p] = p.counts[opSync] })
		r.eventually("the driver has looked for the node", func() bool {
			more := false
			r.on(d, func(_ int, p *proxy) { more = more || p.counts[opSync] > looked[p] })
			return more
		})
		r.on(d, func(_ int, p *proxy) { p.stop = 0 })
		<-caught.late
		for range 10 { // the servers read what came late in their own time
			if st, err := looker.Inspect(r.within(), "k"); err != nil || st.Held {
				t.Fatalf("NoWait %v: the late request has left %+v, %v", noWait, st, err)
			}
		}
		r.must(d.Close())
	}
}

// TestAWaiterAsksForNothing: it costs pings, and a hand-over costs one round trip on either
// side.
func TestAWaiterAsksForNothing(t *testing.T) {
	r := start(t)
	holding, waiting := r.driver(), r.driver()
	holder, waiter := r.client(holding), r.client(waiting)
	calls := func(d driver.Driver) map[int]int {
		all := make(map[int]int)
		r.on(d, func(_ int, p *proxy) {
			for kind, n := range p.counts {
				if kind != opPing && kind != probe {
					all[kind] += n
				}
			}
		})
		return all
	}
	l := r.acquire(holder, "k", long)
	next := make(chan *holdfast.Lease, 1)
	go func() { next <- r.acquire(waiter, "k", long) }()
	r.eventually("the waiter watches", func() bool { return calls(waiting)[opGetData] >= 3 })
	before, released := calls(waiting), calls(holding)
	time.Sleep(3 * time.Second) // a waiter that polls would have done so
	for kind, n := range calls(waiting) {
		if n != before[kind] {
			t.Errorf("the waiter has sent %d times request %d", n-before[kind], kind)
		}
	}
	r.release(l)
	l = <-next
	for kind, n := range calls(waiting) {
		if n-before[kind] > 1 {
			t.Errorf("the waiter has sent %d times request %d for the hand-over", n-before[kind], kind)
		}
	}
	if n := calls(holding)[opDelete] - released[opDelete]; n != 1 {
		t.Errorf("the release took %d requests", n)
	}
	r.release(l)
}

// TestLeasesWithOneTTLShareAConnection, as servers allow few of one machine.
func TestLeasesWithOneTTLShareAConnection(t *testing.T) {
	r := start(t)
	d := r.driver()
	for i := range 20 {
		r.grant(d, fmt.Sprint("k", i), long)
	}
	r.grant(d, "other", long-time.Second)
	sessions := 0
	r.on(d, func(_ int, p *proxy) { sessions += p.counts[greeting] })
	if sessions != 2 {
		t.Errorf("%d sessions for leases of two TTLs", sessions)
	}
}

// TestForceComparesTheTransaction that created the node: the next holder is not hit.
func TestForceComparesTheTransaction(t *testing.T) {
	r := start(t)
	d := r.straight()
	old := r.grant(d, "k", long)
	r.must(d.Release(r.within(), old, 0))
	g := r.grant(d, "k", long)
	for _, token := range []int64{0, old.Token, g.Token - 1, g.Token + int64(g.Block)} {
		if ok, err := d.Force(r.within(), "k", token, ""); ok || err != nil {
			t.Errorf("Force(%d) where %d has it = %v, %v", token, g.Token, ok, err)
		}
	}
	if err := d.Check(r.within(), g); err != nil {
		t.Errorf("Check() = %v", err)
	}
	if ok, err := d.Force(r.within(), "k", g.Token+int64(g.Block)-1, ""); !ok || err != nil {
		t.Errorf("Force() with the last token of the block = %v, %v", ok, err)
	}
}

// TestALeaverLeavesNoNode, in a session that goes on.
func TestALeaverLeavesNoNode(t *testing.T) {
	r := start(t)
	d, waiting := r.straight(), r.straight()
	g := r.grant(d, "k", long)
	r.grant(waiting, "other", long) // which keeps the session
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := waiting.Acquire(ctx, driver.Request{Key: "k", TTL: long})
		left <- err
	}()
	r.nodes(d, "k", 2)
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) || !errors.Is(err, driver.ErrHeld) {
		t.Errorf("Acquire() = %v, want the end of the wait and who has the lock", err)
	}
	r.nodes(d, "k", 1)
	r.must(d.Release(r.within(), g, 0))
	r.nodes(d, "k", 0)
}

// TestALeaseThatNobodyRenewsLapses while its session goes on for another.
func TestALeaseThatNobodyRenewsLapses(t *testing.T) {
	r := start(t)
	d := r.straight()
	const ttl = 6 * time.Second
	renewed, forgotten := r.acquire(r.client(d), "renewed", ttl), r.grant(d, "k", ttl)
	next := r.grant(r.straight(), "k", long)
	if now := time.Now(); now.Before(forgotten.TrustedUntil) {
		t.Errorf("granted %v before the trust ended", forgotten.TrustedUntil.Sub(now))
	}
	if next.Token <= forgotten.Token {
		t.Errorf("token %d after %d", next.Token, forgotten.Token)
	}
	if err := d.Renew(r.within(), []driver.Grant{forgotten})[0].Err; !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew() = %v, want ErrLost", err)
	}
	r.must(context.Cause(renewed.Context()))
	r.release(renewed)
}
