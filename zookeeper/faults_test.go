package zookeeper_test

import (
	"context"
	"errors"
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
