package etcd_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/etcd"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
)

// acquireAdoptable acquires a lock on "k" that another client may adopt.
func (r *rig) acquireAdoptable(d driver.Driver) driver.Grant {
	r.Helper()
	g, err := d.Acquire(r.WaitContext(), driver.Request{Key: "k", TTL: 10 * time.Second, WillRenew: true, Adoptable: true})
	r.NoError(err)
	return g
}

// leaseOf returns the etcd lease in an owner.
func leaseOf(g driver.Grant) string { return strings.Split(g.Owner, ".")[2] }

// sendLate makes d send a request, and cuts d off once the transaction of the request has been sent. pass
// delivers the transaction.
func (r *rig) sendLate(d driver.Driver, send func(ctx context.Context)) (pass func()) {
	r.Helper()
	r.EachLinkOf(d, func(_ int, l *fixture.Link) { l.Stop, l.Halted = "Txn", true })
	ctx, cancel := context.WithCancel(r.Context())
	sent := make(chan struct{})
	go func() { send(ctx); close(sent) }()
	caught := r.AwaitStopped(d)
	r.EachLinkOf(d, func(_ int, l *fixture.Link) { l.Refuse = true })
	cancel()
	<-sent
	return func() {
		r.Helper()
		r.EachLinkOf(d, func(_ int, l *fixture.Link) { l.Stop, l.Halted = "", false })
		<-caught.Late
	}
}

// checkTrusted checks that the lock is held for as long as g is trusted.
func (r *rig) checkTrusted(what string, key string, g driver.Grant) {
	r.Helper()
	st, err := r.newDirectDriver().Inspect(r.WaitContext(), key)
	r.NoError(err)
	if left := time.Until(g.TrustedUntil); !st.Held || st.Remaining < left-time.Second { // Remaining is in whole seconds
		r.Errorf("%s: %+v, and a holder trusts it for another %v", what, st, left)
	}
}

// The late adoption arrives after its sender has gone and the holder has renewed the lease.
func TestLateAdoptionDoesNotShortenLease(t *testing.T) {
	inBubble(t, func(r *rig) {
		holder, adopter := r.newDirectDriver(), r.newDriver()
		g := r.acquireAdoptable(holder)
		pass := r.sendLate(adopter, func(ctx context.Context) {
			if _, err := adopter.(*etcd.Driver).Adopt(ctx, g); err == nil {
				r.Error("adopted")
			}
		})
		time.Sleep(3 * time.Second) // an own lease of the adopter would be this much older
		renewed := holder.Renew(r.WaitContext(), []driver.Grant{g})[0]
		r.NoError(renewed.Err)
		g.TrustedUntil = renewed.TrustedUntil
		pass()
		r.checkTrusted("a late adoption", "k", g)
	})
}

// Meanwhile the next holder has adopted the lock.
func TestLateRequestSparesNextHolder(t *testing.T) {
	t.Parallel()
	for what, send := range map[string]func(ctx context.Context, d *etcd.Driver, g driver.Grant){
		"release":              func(ctx context.Context, d *etcd.Driver, g driver.Grant) { d.Release(ctx, g, 0) },
		"release with MinHold": func(ctx context.Context, d *etcd.Driver, g driver.Grant) { d.Release(ctx, g, 3*time.Second) },
		"adoption":             func(ctx context.Context, d *etcd.Driver, g driver.Grant) { d.Adopt(ctx, g) },
		"force":                func(ctx context.Context, d *etcd.Driver, g driver.Grant) { d.Force(ctx, g.Key, g.Token, "") },
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				old, next := r.newDriver(), r.newDirectDriver()
				g := r.acquireAdoptable(old)
				pass := r.sendLate(old, func(ctx context.Context) { send(ctx, old.(*etcd.Driver), g) })
				mine, err := next.Adopt(r.WaitContext(), g)
				r.NoError(err)
				pass()
				r.NoError(next.Check(r.WaitContext(), mine))
				r.checkTrusted("a late "+what, "k", mine)
				r.NoError(next.Release(r.WaitContext(), mine, 0))
			})
		})
	}
}

// The next lock uses the same etcd lease.
func TestLateForceSparesNextHolder(t *testing.T) {
	inBubble(t, func(r *rig) {
		holder, other := r.newDirectDriver(), r.newDriver()
		g := r.acquireAdoptable(holder)
		pass := r.sendLate(other, func(ctx context.Context) { other.(*etcd.Driver).Force(ctx, "k", g.Token, "") })
		r.NoError(holder.Release(r.WaitContext(), g, 0))
		next := r.acquireAdoptable(holder)
		if leaseOf(next) != leaseOf(g) {
			r.Error("the next lock has another lease: the test proves nothing")
		}
		pass()
		r.NoError(holder.Check(r.WaitContext(), next))
		r.checkTrusted("a late force", "k", next)
		r.NoError(holder.Release(r.WaitContext(), g, 0)) // like a repeated release
		r.NoError(holder.Check(r.WaitContext(), next))
		r.NoError(holder.Release(r.WaitContext(), next, 0))
	})
}

// When the lock is released, a request to create its key is still in progress.
func TestLeaseWithLateKeyIsNotReused(t *testing.T) {
	inBubble(t, func(r *rig) {
		d := r.newDriver()
		r.EachLinkOf(d, func(_ int, l *fixture.Link) { l.Stop, l.Halted = "Txn", true })
		granted := fixture.RunAsync(func() driver.Grant { return r.AcquireGrant(d, "k", 10*time.Second) })
		caught := r.AwaitStopped(d)
		r.EachLinkOf(d, func(_ int, l *fixture.Link) {
			if l != caught {
				l.Stop, l.Halted = "", false // the next member executes it
			}
		})
		g := <-granted
		r.NoError(d.Release(r.WaitContext(), g, 0))
		next, err := d.Acquire(r.WaitContext(), driver.Request{Key: "next", TTL: 10 * time.Second, WillRenew: true})
		r.NoError(err)
		if leaseOf(next) == leaseOf(g) {
			r.Error("the next lock has the same lease")
		}
		r.EachLinkOf(d, func(_ int, l *fixture.Link) { l.Stop, l.Halted = "", false })
		<-caught.Late
		r.awaitKeys("k", 0)
		r.NoError(d.Release(r.WaitContext(), next, 0))
	})
}

// A lease serves one lock at a time, and only a lock whose holder renews it. Close revokes the spare leases.
func TestLeaseIsReusedForNextLock(t *testing.T) {
	inBubbleOf(t, 1, func(r *rig) {
		d := r.newDirectDriver()
		take := func(key string, renews bool) driver.Grant {
			g, err := d.Acquire(r.WaitContext(), driver.Request{Key: key, TTL: 30 * time.Second, WillRenew: renews})
			r.NoError(err)
			return g
		}
		a, b := take("a", true), take("b", true)
		if leaseOf(a) == leaseOf(b) {
			r.Error("two locks share one lease")
		}
		r.NoError(d.Release(r.WaitContext(), a, 0))
		c := take("c", true)
		if leaseOf(c) != leaseOf(a) {
			r.Error("the lease was not reused")
		}
		r.NoError(d.Release(r.WaitContext(), b, 0))
		e := take("e", false)
		if left := time.Until(e.TrustedUntil); leaseOf(e) == leaseOf(b) || left < 29*time.Second {
			r.Errorf("a lock without renewal reused an old lease, with %v left", left)
		}
		if _, err := d.Acquire(r.WaitContext(), driver.Request{Key: "c", TTL: 30 * time.Second, WillRenew: true, NoWait: true}); !errors.Is(err, driver.ErrHeld) {
			r.Errorf("Acquire() = %v, want ErrHeld", err)
		}
		if f := take("f", true); leaseOf(f) != leaseOf(b) {
			r.Error("a failed try used up a lease")
		} else {
			r.NoError(d.Release(r.WaitContext(), f, 0))
		}
		r.NoError(d.Release(r.WaitContext(), c, 0))
		r.NoError(d.Release(r.WaitContext(), e, 0))
		r.NoError(d.Close())
		leases, err := r.direct.Leases(r.WaitContext())
		if err != nil || len(leases.Leases) > 0 {
			r.Errorf("%v are left, %v", leases, err)
		}
	})
}

// The next lock gets another lease.
func TestEndedLeaseIsNotReused(t *testing.T) {
	inBubbleOf(t, 1, func(r *rig) {
		d := r.newDirectDriver()
		r.NoError(d.Release(r.WaitContext(), r.acquireAdoptable(d), 0))
		leases, err := r.direct.Leases(r.WaitContext())
		r.NoError(err)
		for _, l := range leases.Leases {
			r.NoError(errorOf(r.direct.Revoke(r.WaitContext(), clientv3.LeaseID(l.ID))))
		}
		g := r.acquireAdoptable(d)
		r.checkTrusted("a lock after that", "k", g)
		r.NoError(d.Release(r.WaitContext(), g, 0))
	})
}

// The holder gets its TTL less the time of one request, also after a long wait.
func TestHolderWithoutRenewalGetsFullTTL(t *testing.T) {
	inBubble(t, func(r *rig) {
		holder, waiter := r.newDirectDriver(), r.newDirectDriver()
		g := r.AcquireGrant(holder, "k", longTTL)
		next := fixture.RunAsync(func() driver.Grant { return r.AcquireGrant(waiter, "k", 6*time.Second) })
		r.awaitKeys("k", 2)
		time.Sleep(1500 * time.Millisecond) // below a third of the TTL, when the waiter would renew its lease
		asked := time.Now()
		r.NoError(holder.Release(r.WaitContext(), g, 0))
		n := <-next
		if ttl := n.TrustedUntil.Sub(asked); ttl < 4800*time.Millisecond {
			r.Errorf("trusted until %v after the release, with a TTL of 6 s", ttl)
		}
		r.NoError(waiter.Release(r.WaitContext(), n, 0))
	})
}
