package zookeeper_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/adler32"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/zookeeper"
)

// The test also stops the leader.
func TestLeaseOutlivesMember(t *testing.T) {
	r := startAlone(t, 3)
	whole := func() { r.Eventually("all members follow", r.ensemble.IsWhole) }
	fixture.CheckLeasesOutliveMembers(r.Rig, r.Client(r.newDirectDriver()), r.ensemble.Members, r.leader, whole, 8*time.Second, 15*time.Second)
}

// No client gets the lock before the majority returns.
func TestReturningMajorityServesWaiters(t *testing.T) {
	r := startAlone(t, 3)
	d := r.newDirectDriver()
	fixture.CheckRecovery(r.Rig, r.Client(d), r.Client(r.newDirectDriver()), r.ensemble.Members, func() { r.awaitNodes(d, "k", 2) })
}

// The waiter also watches its own node, and does not take the lock after its node was deleted.
func TestWaiterWithoutNodeQueuesAgain(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		d, waiting := r.newDirectDriver(), r.newDriver()
		g := r.AcquireGrant(d, "k", longTTL)
		next := fixture.RunAsync(func() driver.Grant { return r.AcquireGrant(waiting, "k", longTTL) })
		first := r.awaitWaiter(d, "k")
		r.NoError(d.Delete(r.WaitContext(), "k", first))
		r.Eventually("it queues anew", func() bool { return r.awaitWaiter(d, "k") != first })
		r.NoError(d.Release(r.WaitContext(), g, 0))
		n := <-next
		if n.Owner == first {
			t.Error("granted the lock for a deleted node")
		}
		if ok, err := d.Force(r.WaitContext(), "k", n.Token, ""); err != nil || !ok {
			t.Fatalf("Force() = %v, %v", ok, err)
		}
		if err := waiting.Renew(r.WaitContext(), []driver.Grant{n})[0].Err; !errors.Is(err, driver.ErrLost) {
			t.Errorf("Renew() of a forced lease = %v, want ErrLost", err)
		}
	})
}

// The holder notices before its next renewal, and a waiter in the same session queues up again.
func TestEndedSessionLosesItsLeasesAtOnce(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		d, looker := r.newDirectDriver(), r.newDirectDriver()
		c := r.Client(d)
		mine, theirs := r.Acquire(c, "mine", longTTL), r.AcquireGrant(looker, "theirs", longTTL)
		r.NoError(mine.Extend(r.WaitContext(), longTTL)) // from now on the driver watches the node
		next := fixture.RunAsync(func() *holdfast.Lease { return r.Acquire(c, "theirs", longTTL) })
		first := r.awaitWaiter(looker, "theirs")
		r.NoError(d.Expire(r.WaitContext(), longTTL))
		<-mine.Context().Done()
		if err := context.Cause(mine.Context()); !errors.Is(err, holdfast.ErrLost) || !errors.Is(err, holdfast.ErrGone) {
			t.Errorf("the lease ended with %v, want ErrLost and ErrGone", err)
		} else if !strings.Contains(err.Error(), "session") || strings.Contains(err.Error(), "ForceRelease") {
			t.Errorf("the lease ended with %q, which does not name the ended session", err)
		}
		r.Eventually("the waiter queues anew", func() bool { return r.awaitWaiter(looker, "theirs") != first })
		r.NoError(looker.Release(r.WaitContext(), theirs, 0))
		again := r.Acquire(c, "mine", longTTL)
		if again.Token() <= mine.Token() {
			t.Errorf("token %d after %d", again.Token(), mine.Token())
		}
		r.Release(again, <-next)
	})
}

// The test suspends the leader for longer than the holder's session lasts, at any time after a renewal. When
// the leader resumes, it ends the session at once, whatever a follower has answered meanwhile.
func TestTrustEndsBeforeLeaderEndsSession(t *testing.T) {
	for name, leads := range map[string]bool{"by the leader": true, "by others": false} {
		t.Run(name, func(t *testing.T) {
			runInBubble(t, func(t *testing.T, r *rig) {
				d := r.newDriver()
				if !leads {
					r.EachLinkOf(d, func(i int, p *fixture.Link) { p.Refuse = r.fake.members[i].leads })
				}
				holder, waiter := r.Client(d), r.Client(r.newDirectDriver())
				for round := range 40 {
					l := r.Acquire(holder, "k", 3*time.Second)
					first := l.Deadline()
					r.Eventually("a renewal", func() bool { return l.Deadline().After(first) || l.Context().Err() != nil })
					type next struct {
						*holdfast.Lease
						at time.Time
					}
					granted := fixture.RunAsync(func() next { n := r.Acquire(waiter, "k", longTTL); return next{n, time.Now()} })
					time.Sleep(time.Duration(round) * 25 * time.Millisecond)
					r.fake.update(func() { r.fake.frozen = true })
					time.Sleep(4 * time.Second)
					r.fake.resumeLeader()
					<-l.Context().Done()
					n := <-granted
					if early := l.Deadline().Sub(n.at); early > 0 {
						t.Errorf("the next holder came %v before the deadline", early)
					}
					if n.Token() <= l.Token() {
						t.Errorf("token %d after %d", n.Token(), l.Token())
					}
					r.Release(n.Lease)
				}
			})
		})
	}
}

// The follower still answers pings and reads while the leader ends the session.
func TestFollowerWithoutLeaderExtendsNoLease(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		d := r.newDriver()
		r.EachLinkOf(d, func(i int, p *fixture.Link) { p.Refuse = i > 0 })
		l := r.Acquire(r.Client(d), "k", 6*time.Second)
		next := fixture.RunAsync(func() *holdfast.Lease { return r.Acquire(r.Client(r.newDirectDriver()), "k", longTTL) })
		time.Sleep(10 * time.Second)
		r.fake.update(func() { r.fake.members[0].parted = true })
		n := <-next
		if l.Context().Err() == nil || l.Deadline().After(time.Now()) {
			t.Errorf("the old holder trusts its lease for %v", time.Until(l.Deadline()))
		}
		r.Release(n)
	})
}

// A load balancer may lead srvr to the leader and the session to a follower.
func TestFollowerBehindBalancerIsNoLeader(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		opts := zookeeper.WithDial(*withoutCheck(r.opts), r.balance(func(word string) *server {
			if word == "srvr" {
				return r.fake.members[2]
			}
			return r.fake.members[0]
		}))
		d, err := zookeeper.New(r.Context(), []string{"balancer:2181"}, opts)
		holder, waiter := r.Client(fixture.CloseAtEnd(r.Rig, d, err)), r.Client(r.newDirectDriver())
		for round := range 20 {
			l := r.Acquire(holder, "k", 5*time.Second)
			first := l.Deadline()
			r.Eventually("a renewal", func() bool { return l.Deadline().After(first) || l.Context().Err() != nil })
			type next struct {
				*holdfast.Lease
				at time.Time
			}
			granted := fixture.RunAsync(func() next { n := r.Acquire(waiter, "k", longTTL); return next{n, time.Now()} })
			time.Sleep(time.Duration(round) * 50 * time.Millisecond)
			r.fake.update(func() { r.fake.members[0].parted = true })
			n := <-granted
			if early := l.Deadline().Sub(n.at); early > 0 {
				t.Errorf("round %d: the next holder came %v before the deadline", round, early)
			}
			r.fake.update(func() { r.fake.members[0].parted = false })
			<-l.Context().Done()
			r.Release(n.Lease)
		}
	})
}

// The test checks this on real servers, once.
func TestLockIsNotGrantedWhileHolderTrustsIt(t *testing.T) {
	r := startAlone(t, 3, "syncLimit=40")
	leader := r.leader()
	for _, leads := range []bool{true, false} {
		d := r.newDriver()
		if !leads {
			r.EachLinkOf(d, func(i int, p *fixture.Link) { p.Refuse = r.ensemble.Members[i] == leader })
		}
		l := r.Acquire(r.Client(d), "k", 3*time.Second) // short: the test waits for its end
		r.AwaitRenewals(l, 1)
		type next struct {
			*holdfast.Lease
			at time.Time
		}
		waiter := r.Client(r.newDirectDriver())
		granted := fixture.RunAsync(func() next { n := r.Acquire(waiter, "k", longTTL); return next{n, time.Now()} })
		r.NoError(leader.Pause())
		time.Sleep(4 * time.Second) // longer than the session lasts
		r.NoError(leader.Resume())
		<-l.Context().Done()
		n := <-granted
		if early := l.Deadline().Sub(n.at); early > 0 {
			t.Errorf("connected to the leader %v: the next holder came %v before the deadline", leads, early)
		}
		if n.Token() <= l.Token() {
			t.Errorf("token %d after %d", n.Token(), l.Token())
		}
		r.Release(n.Lease)
		r.Eventually("all members follow", r.ensemble.IsWhole)
	}
}

// The client cannot reach the leader.
func TestFollowerRenewsLease(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		d := r.newDriver()
		r.EachLinkOf(d, func(i int, p *fixture.Link) { p.Refuse = r.fake.members[i].leads })
		holder, waiter := r.Client(d), r.Client(r.newDirectDriver())
		l := r.Acquire(holder, "k", 6*time.Second)
		next := fixture.RunAsync(func() *holdfast.Lease { return r.Acquire(waiter, "k", longTTL) })
		for range 4 {
			deadline := l.Deadline()
			r.Eventually("a renewal", func() bool { return l.Deadline().After(deadline) || l.Context().Err() != nil })
		}
		r.NoError(context.Cause(l.Context()))
		r.Release(l)
		r.Release(<-next)
	})
}

// The test loses the reply to each kind of request.
func TestLockSurvivesLostReply(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		d, looker := r.newDriver(), r.newDirectDriver()
		fixture.CheckLostReplies(r.Rig, d, func() { r.awaitNodes(looker, "k", 0) }, "create", "children", "sync", "multi", "delete")
	})
}

// The test holds back the request that creates the node until the caller has left. The session continues.
func TestLateRequestDoesNotAcquire(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		looker := r.newDirectDriver()
		for _, noWait := range []bool{true, false} {
			d := r.newDriver()
			r.AcquireGrant(d, fmt.Sprint("other", noWait), longTTL) // keeps the session
			caught := fixture.CheckCancel(r.Rig, d, "create", noWait)
			looked := r.Counts(d)["sync"]
			r.Eventually("the driver has looked for the node", func() bool { return r.Counts(d)["sync"] > looked })
			r.EachLinkOf(d, func(_ int, p *fixture.Link) { p.Stop, p.Halted = "", false })
			<-caught.Late
			for range 10 { // wait until the servers have read the late request
				if st, err := looker.Inspect(r.WaitContext(), "k"); err != nil || st.Held {
					t.Fatalf("NoWait %v: the late request created %+v, %v", noWait, st, err)
				}
			}
			r.NoError(d.Close())
		}
	})
}

// A waiter sends nothing but pings.
func TestWaiterSendsOnlyPings(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		waiting := r.newDriver()
		watches := func() bool { return r.Counts(waiting)["read"] >= 3 }
		fixture.CheckIdleWaiter(r.Rig, r.newDriver(), waiting, watches, []string{"children"}, "delete", "ping", "srvr")
	})
}

// The waiter's session may be over soon, or already.
func TestWaiterRenewsSessionBeforeGrant(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		d, waiting := r.newDirectDriver(), r.newDriver()
		g := r.AcquireGrant(d, "k", longTTL)
		next := fixture.RunAsync(func() driver.Grant { return r.AcquireGrant(waiting, "k", 5*time.Second) })
		r.awaitNodes(d, "k", 2)
		time.Sleep(2 * time.Second) // more than a quarter of the TTL
		before := r.Counts(waiting)["multi"]
		r.NoError(d.Release(r.WaitContext(), g, 0))
		g = <-next
		if n := r.Counts(waiting)["multi"] - before; n == 0 {
			t.Error("the waiter sent no transaction")
		}
		r.NoError(waiting.Release(r.WaitContext(), g, 0))
	})
}

// Servers allow few connections from one machine.
func TestEqualTTLsShareAConnection(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		d := r.newDriver()
		for i := range 20 {
			r.AcquireGrant(d, fmt.Sprint("k", i), longTTL)
		}
		r.AcquireGrant(d, "other", longTTL-time.Second)
		if sessions := r.Counts(d)["greeting"]; sessions != 2 {
			t.Errorf("%d sessions for leases with two TTLs", sessions)
		}
	})
}

// The end of a session with too many nodes would crash the servers. Further nodes go into another session,
// which is renewed, released and closed like the first.
func TestSessionHasBoundedNodes(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		d, looker := r.newDriver().(*zookeeper.Driver), r.newDirectDriver()
		d.SetMaxUsers(4)
		var held []driver.Grant
		for i := range 10 {
			held = append(held, r.AcquireGrant(d, fmt.Sprint("k", i), longTTL))
		}
		if sessions := r.Counts(d)["greeting"]; sessions != 3 {
			t.Errorf("%d sessions for ten locks, at most four in each", sessions)
		}
		for i, n := range d.Renew(r.WaitContext(), held) {
			if n.Err != nil || !n.TrustedUntil.After(time.Now()) {
				t.Errorf("lock %d: Renew() = %+v", i, n)
			}
		}
		for _, g := range held[:5] {
			r.NoError(d.Release(r.WaitContext(), g, 0))
		}
		for i := range 5 { // there is room again
			held = append(held, r.AcquireGrant(d, fmt.Sprint("k", i), longTTL))
		}
		if sessions := r.Counts(d)["greeting"]; sessions != 3 {
			t.Errorf("%d sessions for another ten locks", sessions)
		}
		for _, g := range held[5:] {
			r.NoError(looker.Check(r.WaitContext(), g))
			r.NoError(d.Release(r.WaitContext(), g, 0))
		}
		r.NoError(d.Close())
		if n := r.Counts(d)["close"]; n != 3 {
			t.Errorf("%d of 3 sessions were closed", n)
		}
	})
}

// The servers number the nodes of a folder with 31 bits, and give the last number to all later nodes. Before
// that happens, the folder is created again.
func TestReusedSequenceNumberGrantsNoLock(t *testing.T) {
	for name, begin := range map[string]int32{"before the last numbers": zookeeper.SequenceLimit - 2, "at the last number": math.MaxInt32} {
		t.Run(name, func(t *testing.T) {
			runInBubble(t, func(t *testing.T, r *rig) {
				d := r.newDirectDriver()
				r.NoError(d.Release(r.WaitContext(), r.AcquireGrant(d, "k", longTTL), 0))
				r.fake.update(func() { r.fake.nodes[r.opts.Path+"/lock:k"].creates = begin })
				r.passUsedUpLock(5)
			})
		})
	}
}

// The test runs on a real server.
func TestServersRepeatLastSequenceNumber(t *testing.T) {
	r := startAlone(t, 1)
	d := r.newDirectDriver()
	r.NoError(d.Release(r.WaitContext(), r.AcquireGrant(d, "k", longTTL), 0))
	m := r.ensemble.Members[0]
	m.Kill()
	r.NoError(m.Restart(r.Context())) // writes a snapshot
	m.Kill()
	setChildCount(r.Rig, m.Data(), r.opts.Path+"/lock:k", math.MaxInt32)
	r.NoError(m.Restart(r.Context()))
	r.passUsedUpLock(3)
}

// passUsedUpLock passes the lock "k", whose sequence numbers are used up, from holder to holder.
func (r *rig) passUsedUpLock(waiters int) {
	r.Helper()
	d := r.newDriver().(*zookeeper.Driver)
	last := r.AcquireGrant(d, "k", longTTL)
	r.EachLinkOf(d, func(_ int, l *fixture.Link) { l.Lose, l.Only = 1, "create" })
	type result struct {
		driver.Grant
		err error
	}
	granted := make(chan result, waiters)
	for range waiters {
		go func() {
			g, err := d.Acquire(r.WaitContext(), driver.Request{Key: "k", TTL: longTTL})
			granted <- result{g, err}
		}()
	}
	for range waiters {
		if _, err := d.Acquire(r.WaitContext(), driver.Request{Key: "k", TTL: longTTL, NoWait: true}); !errors.Is(err, driver.ErrHeld) {
			r.Errorf("TryAcquire beside the holder: %v", err)
		}
		r.NoError(d.Check(r.WaitContext(), last))
		r.NoError(d.Release(r.WaitContext(), last, 0))
		var next result
		select {
		case next = <-granted:
			r.NoError(next.err)
		case <-time.After(2 * fixture.MaxWait()):
			r.Fatal("the waiter did not get the lock")
		}
		if next.Token <= last.Token {
			r.Errorf("token %d after %d", next.Token, last.Token)
		}
		last = next.Grant
	}
	r.NoError(d.Release(r.WaitContext(), last, 0))
	r.awaitNodes(d, "k", 0)
}

// setChildCount edits the newest snapshot of a stopped server: it sets the number of changes to a node's
// children, from which the servers number them.
func setChildCount(r *fixture.Rig, data, node string, n int32) {
	r.Helper()
	all, err := filepath.Glob(filepath.Join(data, "snapshot.*"))
	r.NoError(err)
	for _, name := range all {
		text, err := os.ReadFile(name)
		r.NoError(err)
		at := bytes.Index(text, []byte(node))
		if at < 0 {
			continue
		}
		at += len(node) + 4 + 8 + 4*8 + 4 // skip the value, the ACL, two zxids and their times, and a version
		binary.BigEndian.PutUint32(text[at:], uint32(n))
		const seal, digest = 8 + 4 + 1, 8 + 4 + 8 // length of a checksum with its mark, and of the digest before it
		for _, end := range []int{len(text) - 2*seal - digest, len(text) - seal} {
			binary.BigEndian.PutUint64(text[end:], uint64(adler32.Checksum(text[:end])))
		}
		r.NoError(os.WriteFile(name, text, 0o600))
		return
	}
	r.Fatalf("no snapshot contains %s", node)
}

// Force compares the transaction that created the node, so it spares the next holder.
func TestForceSparesNextHolder(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		d := r.newDirectDriver()
		old := r.AcquireGrant(d, "k", longTTL)
		r.NoError(d.Release(r.WaitContext(), old, 0))
		g := r.AcquireGrant(d, "k", longTTL)
		for _, token := range []int64{0, old.Token, g.Token - 1, g.Token + int64(g.Block)} {
			if ok, err := d.Force(r.WaitContext(), "k", token, ""); ok || err != nil {
				t.Errorf("Force(%d) while %d is the token = %v, %v", token, g.Token, ok, err)
			}
		}
		if err := d.Check(r.WaitContext(), g); err != nil {
			t.Errorf("Check() = %v", err)
		}
		if ok, err := d.Force(r.WaitContext(), "k", g.Token+int64(g.Block)-1, ""); !ok || err != nil {
			t.Errorf("Force() with the last token of the block = %v, %v", ok, err)
		}
	})
}

// The session lasts, so it does not delete the node.
func TestCancelledWaiterDeletesItsNode(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		d, waiting := r.newDirectDriver(), r.newDirectDriver()
		g := r.AcquireGrant(d, "k", longTTL)
		r.AcquireGrant(waiting, "other", longTTL) // keeps the session
		ctx, cancel := context.WithCancel(t.Context())
		left := fixture.AcquireAsync(ctx, waiting, driver.Request{Key: "k", TTL: longTTL})
		r.awaitNodes(d, "k", 2)
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) { // the wait may not know the holder yet
			t.Errorf("Acquire() = %v, want the end of the wait", err)
		}
		r.awaitNodes(d, "k", 1)
		r.NoError(d.Release(r.WaitContext(), g, 0))
		r.awaitNodes(d, "k", 0)
	})
}

// Another lease keeps the session alive.
func TestUnrenewedLeaseExpires(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		d := r.newDirectDriver()
		const ttl = 6 * time.Second
		renewed, forgotten := r.Acquire(r.Client(d), "renewed", ttl), r.AcquireGrant(d, "k", ttl)
		next := r.AcquireGrant(r.newDirectDriver(), "k", longTTL)
		if now := time.Now(); now.Before(forgotten.TrustedUntil) {
			t.Errorf("granted %v before the trust ended", forgotten.TrustedUntil.Sub(now))
		}
		if next.Token <= forgotten.Token {
			t.Errorf("token %d after %d", next.Token, forgotten.Token)
		}
		if err := d.Renew(r.WaitContext(), []driver.Grant{forgotten})[0].Err; !errors.Is(err, driver.ErrLost) {
			t.Errorf("Renew() = %v, want ErrLost", err)
		}
		r.NoError(context.Cause(renewed.Context()))
		r.Release(renewed)
	})
}

// The holder leaves between two reads of a waiter. The waiter must still report an obstacle, because calls of
// its process that do not wait need one.
func TestWaiterReportsObstacleAfterHolderChange(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		d, last := r.newDriver(), r.newDriver()
		first, look := r.AcquireGrant(d, "k", longTTL), r.newDirectDriver()
		ctx, cancel := context.WithCancel(r.Context())
		var all sync.WaitGroup
		defer all.Wait()
		defer cancel()
		second := fixture.AcquireAsync(r.WaitContext(), d, driver.Request{Key: "k", TTL: longTTL})
		r.awaitWaiter(look, "k")
		r.EachLinkOf(last, func(_ int, l *fixture.Link) { l.Stop, l.Halted = "read", true })
		told := make(chan bool, 10)
		all.Go(func() {
			last.Acquire(ctx, driver.Request{Key: "k", TTL: longTTL, OnObstacle: func(err error) { told <- errors.Is(err, driver.ErrHeld) }})
		})
		r.AwaitStopped(last)
		r.NoError(d.Release(r.WaitContext(), first, 0))
		r.NoError(<-second)
		r.EachLinkOf(last, func(_ int, l *fixture.Link) { l.Stop, l.Halted = "", false })
		for held := false; !held; {
			select {
			case held = <-told: // not held: an error of a member that did not answer
			case <-time.After(fixture.MaxWait()):
				t.Fatal("the waiter reported no holder")
			}
		}
	})
}

// Only the user of a client that logs in can read the client's nodes. A client without a login cannot watch
// them.
func TestErrorNamesUnreadableNode(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		d := r.newDirectDriver()
		r.NoError(d.Release(r.WaitContext(), r.AcquireGrant(d, "k", longTTL), 0)) // creates the folder for everybody
		r.opts.Username, r.opts.Password = "u", "p"
		r.AcquireGrant(r.newDirectDriver(), "k", longTTL)
		if _, err := d.Acquire(r.WaitContext(), driver.Request{Key: "k", TTL: longTTL}); !errors.Is(err, driver.ErrAuth) {
			t.Errorf("Acquire() = %v, want ErrAuth", err)
		}
	})
}
