package etcd_test

import (
	"context"
	"errors"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
)

// The test also stops the leader.
func TestLeaseOutlivesMember(t *testing.T) {
	r := startAlone(t, 3)
	fixture.CheckLeasesOutliveMembers(r.Rig, r.Client(r.newDirectDriver()), r.cluster.Members, r.leader, func() {}, 5*time.Second, 10*time.Second)
}

// No client gets the lock before the majority returns.
func TestReturningMajorityServesWaiters(t *testing.T) {
	r := startAlone(t, 3)
	fixture.CheckRecovery(r.Rig, r.Client(r.newDirectDriver()), r.Client(r.newDirectDriver()), r.cluster.Members, func() { r.awaitKeys("k", 2) })
}

// The test cuts off the member that watches for the waiter.
func TestDeadWatchDoesNotHangWait(t *testing.T) {
	inBubble(t, func(r *rig) {
		holder, waiting := r.Client(r.newDirectDriver()), r.newDriver()
		l := r.Acquire(holder, "k", longTTL)
		waiter := r.Client(waiting)
		next := fixture.RunAsync(func() *holdfast.Lease { return r.Acquire(waiter, "k", longTTL) })
		watches := -1
		r.Eventually("the waiter watches", func() bool {
			for i, l := range r.Links(waiting) {
				if l.Count("Watch") > 0 {
					watches = i
				}
			}
			return watches >= 0
		})
		r.EachLinkOf(waiting, func(i int, p *fixture.Link) { p.Hole = i == watches })
		r.Release(l)
		r.Release(<-next) // within patience, which is below a third of either TTL
		r.EachLinkOf(waiting, func(_ int, p *fixture.Link) { p.Hole = false })
	})
}

// When the connection was cut, the watch's revision was already compacted, so it cannot continue.
func TestWaitSurvivesCompaction(t *testing.T) {
	inBubbleOf(t, 1, func(r *rig) {
		holder, waiting := r.Client(r.newDirectDriver()), r.newDriver()
		l := r.Acquire(holder, "k", longTTL)
		next := make(chan *holdfast.Lease, 1)
		waiter := r.Client(waiting)
		go func() {
			l, err := waiter.Acquire(r.WaitContext(), "k", &holdfast.AcquireOptions{TTL: longTTL})
			if err != nil {
				r.Errorf("Acquire() = %v", err)
			}
			next <- l
		}()
		watches := func() int { return r.Counts(waiting)["Watch"] }
		r.Eventually("the waiter watches", func() bool { return watches() > 0 && r.Counts(waiting)["LeaseTimeToLive"] > 0 })
		for range 3 {
			r.NoError(errorOf(r.direct.Put(r.WaitContext(), "another", "")))
			resp, err := r.direct.Put(r.WaitContext(), "another", "")
			r.NoError(err)
			_, err = r.direct.Compact(r.WaitContext(), resp.Header.Revision)
			r.NoError(err)
			before := watches()
			for _, l := range r.Links(waiting) {
				l.Cut()
			}
			r.Eventually("the waiter watches again", func() bool { return watches() > before })
		}
		select {
		case l := <-next:
			r.Fatalf("the wait ended with %v", l)
		case <-time.After(200 * time.Millisecond):
		}
		r.Release(l)
		if l := <-next; l != nil {
			r.Release(l)
		}
	})
}

// The test loses the reply to each kind of request.
func TestLockSurvivesLostReply(t *testing.T) {
	inBubble(t, func(r *rig) {
		fixture.CheckLostReplies(r.Rig, r.newDriver(), func() { r.awaitKeys("k", 0) }, "LeaseGrant", "Txn", "DeleteRange", "Range", "LeaseKeepAlive", "LeaseRevoke")
	})
}

// The test holds back the request that creates the key until its caller has left and its lease is revoked.
func TestLateRequestDoesNotAcquire(t *testing.T) {
	inBubble(t, func(r *rig) {
		for _, noWait := range []bool{true, false} {
			d := r.newDriver()
			caught := fixture.CheckCancel(r.Rig, d, "Txn", noWait)
			r.NoError(d.Close()) // Close waits for the revocation
			r.EachLinkOf(d, func(_ int, p *fixture.Link) { p.Stop, p.Halted = "", false })
			<-caught.Late
			if left, err := r.leftoverKeys(); err != nil || len(left) > 0 {
				r.Errorf("NoWait %v: the late request created %q, %v", noWait, left, err)
			}
		}
	})
}

// A waiter sends nothing but the renewals of its lease.
func TestWaiterSendsOnlyRenewals(t *testing.T) {
	inBubble(t, func(r *rig) {
		waiting := r.newDriver()
		watches := func() bool { n := r.Counts(waiting); return n["Watch"] > 0 && n["LeaseTimeToLive"] > 0 }
		// With its first lease, a client begins to watch for messages of Force.
		fixture.CheckIdleWaiter(r.Rig, r.newDriver(), waiting, watches, []string{"Txn", "Watch"}, "DeleteRange", "Status")
	})
}

// AcquireAll waits for the report.
func TestWaitIsReportedBeforeTTL(t *testing.T) {
	inBubble(t, func(r *rig) {
		g := r.AcquireGrant(r.newDriver(), "k", longTTL)
		waiting := r.newDriver()
		r.EachLinkOf(waiting, func(_ int, p *fixture.Link) { p.Stop, p.Halted = "LeaseTimeToLive", true })
		ctx, leave := context.WithCancel(r.WaitContext())
		defer leave()
		told, left := make(chan error, 10), make(chan error)
		go func() {
			_, err := waiting.Acquire(ctx, driver.Request{Key: "k", TTL: longTTL, OnObstacle: func(err error) { told <- err }})
			left <- err
		}()
		select {
		case err := <-told:
			if held, ok := errors.AsType[*driver.HeldError](err); !ok || held.Owner != g.Owner || held.Remaining != 0 {
				r.Errorf("obstacle %v, want %s as holder, without a remaining time", err, g.Owner)
			}
		case <-ctx.Done():
			r.Error("no obstacle was reported while no member knows the lease's remaining time")
		}
		leave()
		r.EachLinkOf(waiting, func(_ int, p *fixture.Link) { p.Stop, p.Halted = "", false })
		<-left
	})
}

// A leader that was suspended may confirm renewals before it learns of its successor, which does not have
// them. The driver sends them again, and trust counts from then.
func TestRenewalByDeposedLeaderIsRepeated(t *testing.T) {
	inBubble(t, func(r *rig) {
		d := r.newDriver()
		sent := func() int { return r.Counts(d)["LeaseKeepAlive"] }
		depose := func(n int) { r.EachLinkOf(d, func(_ int, p *fixture.Link) { p.Forge = n }) }
		g := r.AcquireGrant(d, "k", longTTL)
		depose(1)
		r.NoError(d.Renew(r.WaitContext(), []driver.Grant{g})[0].Err)
		if n := sent(); n != 2 {
			r.Errorf("the holder sent %d renewals, want another after the failed one", n)
		}
		r.NoError(d.Release(r.WaitContext(), g, 0))

		holder := r.newDirectDriver()
		g = r.AcquireGrant(holder, "k", longTTL)
		before := sent()
		depose(1)
		next := make(chan driver.Grant, 1)
		go func() {
			g, err := d.Acquire(r.WaitContext(), driver.Request{Key: "k", TTL: 3 * time.Second}) // short: the waiter must renew it
			if err != nil {
				r.Errorf("Acquire() = %v", err)
			}
			next <- g
		}()
		r.Eventually("a waiter has renewed its lease again", func() bool { return sent() == before+2 })
		r.NoError(holder.Release(r.WaitContext(), g, 0))
		r.NoError(d.Release(r.WaitContext(), <-next, 0))
	})
}

// The etcd lease lasts, but the lock is free for another client.
func TestDeletedKeyIsLoss(t *testing.T) {
	inBubble(t, func(r *rig) {
		d := r.newDirectDriver()
		g := r.AcquireGrant(d, "k", longTTL)
		if _, err := r.direct.Delete(r.Context(), r.opts.Prefix, clientv3.WithPrefix()); err != nil {
			r.Fatal(err)
		}
		if err := d.Renew(r.WaitContext(), []driver.Grant{g})[0].Err; !errors.Is(err, driver.ErrLost) {
			r.Errorf("Renew() = %v, want ErrLost", err)
		}
		r.NoError(d.Release(r.WaitContext(), g, 0))
	})
}

// A waiter whose key was deleted cannot acquire the lock with that key.
func TestWaiterWithoutKeyQueuesAgain(t *testing.T) {
	inBubble(t, func(r *rig) {
		holder, waiter := r.Client(r.newDirectDriver()), r.Client(r.newDirectDriver())
		l := r.Acquire(holder, "k", longTTL)
		line := r.opts.Prefix + "k," // there may also be the key with the token base
		next := fixture.RunAsync(func() *holdfast.Lease { return r.Acquire(waiter, "k", longTTL) })
		for _, revoke := range []bool{false, true} {
			r.awaitKeys("k", 2)
			resp, err := r.direct.Get(r.Context(), line, clientv3.WithLastCreate()...)
			r.NoError(err)
			kv := resp.Kvs[0]
			if revoke {
				_, err = r.direct.Revoke(r.Context(), clientv3.LeaseID(kv.Lease))
			} else {
				_, err = r.direct.Delete(r.Context(), string(kv.Key))
			}
			r.NoError(err)
			r.Eventually("another key", func() bool {
				resp, err := r.direct.Get(r.Context(), line, clientv3.WithLastCreate()...)
				return err == nil && resp.Count == 2 && string(resp.Kvs[0].Key) != string(kv.Key)
			})
		}
		r.Release(l)
		r.Release(<-next)
		r.Eventually("nothing is left", func() bool { left, err := r.leftoverKeys(); return err == nil && len(left) == 0 })
	})
}

// Each adopter has a higher token than the last one, and a lower token than the waiter.
func TestTokensBoundAdoptions(t *testing.T) {
	inBubble(t, func(r *rig) {
		d, other := r.newDirectDriver(), r.newDirectDriver()
		g := r.acquireAdoptable(d)
		waiter := r.Client(r.newDirectDriver())
		next := fixture.RunAsync(func() *holdfast.Lease { return r.Acquire(waiter, "k", longTTL) })
		r.awaitKeys("k", 2)
		for range 31 {
			adopted, err := other.Adopt(r.WaitContext(), g)
			r.NoError(err)
			if adopted.Token < g.Token+int64(g.Block) || adopted.Owner == g.Owner {
				r.Fatalf("%d %q after %d %q", adopted.Token, adopted.Owner, g.Token, g.Owner)
			}
			g = adopted
		}
		if _, err := other.Adopt(r.WaitContext(), g); !errors.Is(err, driver.ErrUnsupported) {
			r.Errorf("Adopt() = %v, want ErrUnsupported", err)
		}
		r.NoError(other.Release(r.WaitContext(), g, 0))
		l := <-next
		if int64(l.Token()) < g.Token+int64(g.Block) {
			r.Errorf("token %d after %d", l.Token(), g.Token)
		}
		r.Release(l)
	})
}

// The test repeats this for each member as the first choice.
func TestRequestsAvoidMemberThatIsDown(t *testing.T) {
	inBubble(t, func(r *rig) {
		for place := range 3 {
			for range 5 {
				d := r.newDriver()
				r.EachLinkOf(d, func(i int, l *fixture.Link) { l.Hole = i == place })
				r.Eventually("the member counts as down", func() bool { return d.(driver.Notifier).Nodes()[place].State != driver.NodeUp })
				silent := r.Links(d)[place]
				asked := func() int { return silent.Count("LeaseGrant") + silent.Count("Txn") }
				before := asked()
				r.NoError(d.Release(r.WaitContext(), r.AcquireGrant(d, "k", longTTL), 0))
				if asked() != before {
					r.Errorf("the client asked member %d, which is down, before the healthy ones", place)
				}
			}
		}
	})
}

// Requests go to a new leader as soon as its state is known.
func TestRequestsGoToLeader(t *testing.T) {
	inBubble(t, func(r *rig) {
		for range 5 {
			d := r.newDriver()
			for leader := range 3 {
				for _, m := range r.fake.members {
					m.update(func(m *fakeMember) { m.status = func(s *pb.StatusResponse) { s.Leader = uint64(leader + 1) } })
				}
				time.Sleep(5 * time.Second) // enough to ask each member for its state
				asked := func(place int) (n int) {
					for _, kind := range []string{"LeaseGrant", "Txn", "DeleteRange", "LeaseKeepAlive"} {
						n += r.Links(d)[place].Count(kind)
					}
					return n
				}
				before := [3]int{asked(0), asked(1), asked(2)}
				g := r.AcquireGrant(d, "k", longTTL)
				r.NoError(d.Renew(r.WaitContext(), []driver.Grant{g})[0].Err)
				r.NoError(d.Release(r.WaitContext(), g, 0))
				for place := range 3 {
					if n := asked(place) - before[place]; (n > 0) != (place == leader) {
						r.Errorf("member %d received %d requests while member %d leads", place, n, leader)
					}
				}
			}
		}
	})
}
