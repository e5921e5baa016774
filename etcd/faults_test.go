package etcd_test

import (
	"context"
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/etcdproc"
)

// TestALeaseOutlivesAMember holds leases while members fail, long enough for several
// renewals: one of 5 s while one that does not lead fails, and one of 10 s through
// elections.
func TestALeaseOutlivesAMember(t *testing.T) {
	r := alone(t, 3)
	c := r.client(r.straight())
	leader := r.leader()
	var others []*etcdproc.Member
	for _, m := range r.cluster.Members {
		if m != leader {
			others = append(others, m)
		}
	}
	freeze := func(m *etcdproc.Member) { r.must(m.Pause()) }
	thaw := func(m *etcdproc.Member) { r.must(m.Resume()) }
	kill := func(m *etcdproc.Member) { m.Kill() }
	restart := func(m *etcdproc.Member) { r.must(m.Restart(t.Context())) }
	for _, fault := range []struct {
		name       string
		begin, end func(m *etcdproc.Member)
		members    []*etcdproc.Member
		ttl        time.Duration
	}{
		{"frozen", freeze, thaw, others, 5 * time.Second},
		{"killed", kill, restart, others, 5 * time.Second},
		{"leader frozen", freeze, thaw, nil, 10 * time.Second},
		{"leader killed", kill, restart, nil, 10 * time.Second},
	} {
		if fault.members == nil {
			fault.members = []*etcdproc.Member{r.leader()}
		}
		for _, m := range fault.members {
			l := r.acquire(c, "k", fault.ttl)
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
			r.keys("k", 0)
		}
	}
}

// TestAMajorityThatComesBackServesTheWaiters: nobody gets the lock while there is no
// majority, and the lease that nobody could renew is over then.
func TestAMajorityThatComesBackServesTheWaiters(t *testing.T) {
	r := alone(t, 3)
	holder, waiter := r.client(r.straight()), r.client(r.straight())
	l := r.acquire(holder, "k", 3*time.Second)
	next := make(chan *holdfast.Lease, 1)
	go func() { next <- r.acquire(waiter, "k", 30*time.Second) }()
	r.keys("k", 2)
	for _, m := range r.cluster.Members[:2] {
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
	for _, m := range r.cluster.Members[:2] {
		r.must(m.Restart(t.Context()))
	}
	if n := <-next; n.Token() <= l.Token() {
		t.Errorf("token %d after %d", n.Token(), l.Token())
	} else {
		r.release(n)
	}
}

// TestAWaitDoesNotHangOnADeadWatch cuts off the member that watches for a waiter.
func TestAWaitDoesNotHangOnADeadWatch(t *testing.T) {
	r := start(t)
	holder, waiting := r.client(r.straight()), r.driver()
	l := r.acquire(holder, "k", long)
	next := make(chan *holdfast.Lease, 1)
	waiter := r.client(waiting)
	go func() { next <- r.acquire(waiter, "k", long) }()
	watches := -1
	r.eventually("the waiter watches", func() bool {
		r.on(waiting, func(i int, p *proxy) {
			if p.counts["Watch"] > 0 {
				watches = i
			}
		})
		return watches >= 0
	})
	r.on(waiting, func(i int, p *proxy) { p.hole = i == watches })
	r.release(l)
	r.release(<-next) // within patience, which is shorter than a third of the TTL of either
	r.on(waiting, func(_ int, p *proxy) { p.hole = false })
}

// TestALostReplyCostsNoLock loses replies to each kind of request, whether the connection
// shows that or not.
func TestALostReplyCostsNoLock(t *testing.T) {
	r := start(t)
	d := r.driver()
	c := r.client(d)
	for _, method := range []string{"LeaseGrant", "Txn", "Range", "LeaseKeepAlive", "LeaseRevoke"} {
		for _, mute := range []bool{false, true} {
			r.on(d, func(_ int, p *proxy) { p.only, p.mute, p.lose = method, mute, 1 })
			l := r.acquire(c, "k", 10*time.Second)
			if err := l.Extend(r.within(), 10*time.Second); err != nil {
				t.Errorf("%s, hangs %v: Extend() = %v", method, mute, err)
			}
			if err := l.Release(r.within()); err != nil && !mute { // each member may have hung for a while
				t.Errorf("%s, hangs %v: Release() = %v", method, mute, err)
			}
			if l, err := c.TryAcquire(r.within(), "k", &holdfast.AcquireOptions{TTL: 10 * time.Second}); err == nil {
				r.release(l)
			} else if !errors.Is(err, holdfast.ErrUnavailable) {
				t.Errorf("%s, hangs %v: TryAcquire() = %v", method, mute, err)
			}
			r.on(d, func(_ int, p *proxy) { p.lose = 0 })
			r.keys("k", 0)
		}
	}
}

// TestARequestThatComesAfterItsSenderGaveUpTakesNothing stops the request that creates the
// key on its way until its caller has gone and its lease is revoked.
func TestARequestThatComesAfterItsSenderGaveUpTakesNothing(t *testing.T) {
	r := start(t)
	for _, noWait := range []bool{true, false} {
		d := r.driver()
		r.on(d, func(_ int, p *proxy) { p.stopped = "Txn" })
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
		r.must(d.Close()) // which waits for the revocation
		r.on(d, func(_ int, p *proxy) { p.stopped = "" })
		<-caught.late
		if left, err := r.leftovers(); err != nil || len(left) > 0 {
			t.Errorf("NoWait %v: the late request has left %q, %v", noWait, left, err)
		}
	}
}

// TestAWaiterAsksForNothing: it costs the renewals of its lease, and a hand-over costs one
// request on either side.
func TestAWaiterAsksForNothing(t *testing.T) {
	r := start(t)
	holding, waiting := r.driver(), r.driver()
	holder, waiter := r.client(holding), r.client(waiting)
	calls := func(d driver.Driver) map[string]int {
		all := make(map[string]int)
		r.on(d, func(_ int, p *proxy) {
			for method, n := range p.counts {
				if method != "Status" {
					all[method] += n
				}
			}
		})
		return all
	}
	l := r.acquire(holder, "k", long)
	next := make(chan *holdfast.Lease, 1)
	go func() { next <- r.acquire(waiter, "k", long) }()
	r.eventually("the waiter watches", func() bool { n := calls(waiting); return n["Watch"] > 0 && n["LeaseTimeToLive"] > 0 })
	time.Sleep(time.Second) // what it asks when its watch begins has its answer then
	before, released := calls(waiting), calls(holding)
	time.Sleep(3 * time.Second) // a waiter that polls would have done so
	for method, n := range calls(waiting) {
		if n != before[method] {
			t.Errorf("the waiter has sent %d times %s", n-before[method], method)
		}
	}
	r.release(l)
	l = <-next
	for method, n := range calls(waiting) {
		want := 0
		if method == "Txn" {
			want = 1
		}
		if n-before[method] > want {
			t.Errorf("the waiter has sent %d times %s for the hand-over, want %d", n-before[method], method, want)
		}
	}
	if n := calls(holding)["LeaseRevoke"] - released["LeaseRevoke"]; n != 1 {
		t.Errorf("the release took %d requests", n)
	}
	r.release(l)
}

// TestARenewalByADeposedLeaderIsNone: one that was stopped confirms renewals before it learns of its successor, who does not know
// of them. They are sent again, and trust counts from then.
func TestARenewalByADeposedLeaderIsNone(t *testing.T) {
	r := start(t)
	d := r.driver()
	sent := func() (n int) {
		r.on(d, func(_ int, p *proxy) { n += p.counts["LeaseKeepAlive"] })
		return n
	}
	depose := func(n int) { r.on(d, func(_ int, p *proxy) { p.deposed = n }) }
	g := r.grant(d, "k", long)
	depose(1)
	r.must(d.Renew(r.within(), []driver.Grant{g})[0].Err)
	if n := sent(); n != 2 {
		t.Errorf("a holder has sent %d renewals, want another after the one in vain", n)
	}
	r.must(d.Release(r.within(), g, 0))

	holder := r.straight()
	g = r.grant(holder, "k", long)
	before := sent()
	depose(1)
	next := make(chan driver.Grant, 1)
	go func() {
		g, err := d.Acquire(r.within(), driver.Request{Key: "k", TTL: 3 * time.Second})
		if err != nil {
			t.Errorf("Acquire() = %v", err)
		}
		next <- g
	}()
	r.eventually("a waiter has renewed its lease again", func() bool { return sent() == before+2 })
	r.must(holder.Release(r.within(), g, 0))
	r.must(d.Release(r.within(), <-next, 0))
}

// TestAKeyDeletedByHandIsALoss: the lease of etcd goes on, but the lock is another's.
func TestAKeyDeletedByHandIsALoss(t *testing.T) {
	r := start(t)
	d := r.straight()
	g := r.grant(d, "k", long)
	if _, err := r.direct.Delete(t.Context(), r.opts.Prefix, clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	if err := d.Renew(r.within(), []driver.Grant{g})[0].Err; !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew() = %v, want ErrLost", err)
	}
	r.must(d.Release(r.within(), g, 0))
}

// TestAWaiterThatLosesItsKeyQueuesUpAgain: it gets no lock on the strength of a key that is
// gone.
func TestAWaiterThatLosesItsKeyQueuesUpAgain(t *testing.T) {
	r := start(t)
	holder, waiter := r.client(r.straight()), r.client(r.straight())
	l := r.acquire(holder, "k", long)
	next := make(chan *holdfast.Lease, 1)
	go func() { next <- r.acquire(waiter, "k", long) }()
	for _, revoke := range []bool{false, true} {
		r.keys("k", 2)
		resp, err := r.direct.Get(t.Context(), r.opts.Prefix, clientv3.WithLastCreate()...)
		r.must(err)
		kv := resp.Kvs[0]
		if revoke {
			_, err = r.direct.Revoke(t.Context(), clientv3.LeaseID(kv.Lease))
		} else {
			_, err = r.direct.Delete(t.Context(), string(kv.Key))
		}
		r.must(err)
		r.eventually("another key", func() bool {
			resp, err := r.direct.Get(t.Context(), r.opts.Prefix, clientv3.WithLastCreate()...)
			return err == nil && resp.Count == 2 && string(resp.Kvs[0].Key) != string(kv.Key)
		})
	}
	r.release(l)
	r.release(<-next)
	r.eventually("nothing is left", func() bool { left, err := r.leftovers(); return err == nil && len(left) == 0 })
}

// TestALeaseIsAdoptedAsOftenAsThereAreTokens: each adopter has a later token than the last,
// and an earlier one than the waiter.
func TestALeaseIsAdoptedAsOftenAsThereAreTokens(t *testing.T) {
	r := start(t)
	d, other := r.straight(), r.straight()
	g := r.grant(d, "k", long)
	next := make(chan *holdfast.Lease, 1)
	waiter := r.client(r.straight())
	go func() { next <- r.acquire(waiter, "k", long) }()
	r.keys("k", 2)
	for range 31 {
		adopted, err := other.Adopt(r.within(), g)
		r.must(err)
		if adopted.Token < g.Token+int64(g.Block) || adopted.Owner == g.Owner {
			t.Fatalf("%d %q after %d %q", adopted.Token, adopted.Owner, g.Token, g.Owner)
		}
		g = adopted
	}
	if _, err := other.Adopt(r.within(), g); !errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("Adopt() = %v, want ErrUnsupported", err)
	}
	r.must(other.Release(r.within(), g, 0))
	l := <-next
	if int64(l.Token()) < g.Token+int64(g.Block) {
		t.Errorf("token %d after %d", l.Token(), g.Token)
	}
	r.release(l)
}
