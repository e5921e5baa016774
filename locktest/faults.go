package locktest

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

var faultCases = []testCase{
	{"DisconnectedLeaseEndsByDeadline", disconnectedLeaseEnds},
	{"DisconnectedReleaseIsUnconfirmed", disconnectedRelease},
	{"UnansweredReleaseReturns", unansweredReleaseReturns},
	{"LeaseSurvivesShortDisconnect", leaseSurvivesDisconnect},
	{"LostRepliesFreeLock", lostRepliesFreeLock},
	{"LostTryRepliesFreeLock", lostTryReplies},
	{"LostRenewalRepliesKeepLease", lostRenewalReplies},
	{"MinorityOfNodesMayFail", minorityMayFail},
	{"LostMajorityNamesNodes", lostMajorityNamesNodes},
	{"WaitSurvivesOutage", waitSurvivesOutage},
	{"UnansweredRenewalKeepsTrust", unansweredRenewalKeepsTrust},
	{"NodesReportState", nodesReportState},
	{"NodesReportRoundTrip", nodesReportRoundTrip},
}

func (b *bench) needsDisconnect() {
	b.skipWithout(b.Disconnect != nil && b.Reconnect != nil, "Service.Disconnect and Reconnect")
}

func disconnectedLeaseEnds(b *bench) {
	b.needsDisconnect()
	ttl := b.exactTTL(2 * time.Second)
	drv := b.openDriver()
	l := b.acquire(b.clientOf(drv, nil), "k", &holdfast.AcquireOptions{TTL: ttl})
	next := make(chan *holdfast.Lease, 1)
	other := b.newClient()
	ctx := b.boundedContext()
	go func() {
		got, err := other.Acquire(ctx, "k", nil)
		if err != nil {
			b.Errorf("next holder: %v", err)
		} else if now, deadline := time.Now(), l.Deadline(); now.Before(deadline) {
			b.Errorf("the next holder came %v before the deadline", deadline.Sub(now))
		}
		next <- got
	}()
	time.Sleep(ttl / 2) // one renewal has run
	b.Disconnect(drv)
	b.awaitLoss(l)
	if late := time.Since(l.Deadline()); late > 0 && b.virtual {
		b.Errorf("the context ended %v after the deadline", late)
	}
	b.checkError(l.Release(b.Context()), holdfast.ErrLost)
	b.Reconnect(drv)
	if got := <-next; got != nil {
		b.release(got)
	}
}

func disconnectedRelease(b *bench) {
	b.needsDisconnect()
	drv, other := b.openDriver(), b.newClient()
	c := b.clientOf(drv, nil)
	l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.brief})
	b.Disconnect(drv)
	released := make(chan error, 1)
	go func() { released <- l.Release(context.Background()) }()
	select {
	case err := <-released:
		if err == nil || errors.Is(err, holdfast.ErrLost) {
			b.Errorf("Release() while cut off = %v, want an error that is not ErrLost", err)
		}
	case <-b.boundedContext().Done():
		b.Fatal("Release() while cut off did not return")
	}
	if l.Context().Err() == nil {
		b.Error("the context is alive after the release")
	}
	b.Reconnect(drv)
	b.release(b.acquire(other, "k", nil))
	b.release(b.acquire(c, "k", nil))
}

// Release waits for its answer for two seconds at most, with MinHold or without.
func unansweredReleaseReturns(b *bench) {
	b.needsDisconnect()
	drv := b.openDriver()
	b.clientOf(drv, nil) // closes it
	keeps := []time.Duration{0}
	if b.limits.MinHold {
		keeps = append(keeps, b.short)
	}
	for i, keep := range keeps {
		g := b.takeGrant(drv, keyOf(i), b.long)
		b.Disconnect(drv)
		begin, released := time.Now(), make(chan error, 1)
		go func() { released <- drv.Release(context.Background(), g, keep) }()
		select {
		case err := <-released:
			if !errors.Is(err, driver.ErrUnavailable) {
				b.Errorf("Release() while cut off = %v, want ErrUnavailable", err)
			}
		case <-b.boundedContext().Done():
			b.Fatal("Release() while cut off did not return on its own")
		}
		if took := time.Since(begin); took > 2*time.Second && b.virtual {
			b.Errorf("Release() while cut off took %v", took)
		}
		b.Reconnect(drv)
	}
}

func leaseSurvivesDisconnect(b *bench) {
	b.needsDisconnect()
	ttl := b.brief
	drv, other := b.openDriver(), b.newClient()
	l := b.acquire(b.clientOf(drv, nil), "k", &holdfast.AcquireOptions{TTL: ttl})
	deadline := l.Deadline()
	time.Sleep(ttl / 6) // the next renewal is due a third of the TTL after the grant or an early renewal
	b.Disconnect(drv)
	time.Sleep(ttl / 4) // that renewal fails meanwhile
	b.Reconnect(drv)
	b.eventually("a renewal after the cut", func() bool { return l.Deadline().After(deadline) })
	b.checkHeld(other, "k")
	b.release(l)
	b.checkCleared()
}

// A lost reply never loses the lock and never adds a second holder.
func lostRepliesFreeLock(b *bench) {
	b.skipWithout(b.LoseReplies != nil, "Service.LoseReplies")
	g := &guardedSection{b: b}
	all := b.newClients(2)
	for k := range b.roundCount(12, 4) {
		b.LoseReplies(k % 4)
		l := b.acquire(all[k%2], "k", &holdfast.AcquireOptions{TTL: b.long})
		g.enter(l)
		b.checkHeldOrUnknown(all[(k+1)%2], "k")
		b.LoseReplies((k + 2) % 4)
		g.leave(l)
		if err := l.Release(b.boundedContext()); err != nil {
			b.checkError(err, holdfast.ErrUnavailable)
		}
		b.checkCleared()
	}
}

// checkHeldOrUnknown checks that c cannot acquire key while replies are lost.
func (b *bench) checkHeldOrUnknown(c *holdfast.Client, key string) {
	b.Helper()
	l, err := c.TryAcquire(b.Context(), key, nil)
	switch {
	case err == nil:
		b.Error("two holders")
		b.release(l)
	case !errors.Is(err, holdfast.ErrUnavailable):
		b.checkError(err, holdfast.ErrHeld)
	}
}

func lostTryReplies(b *bench) {
	b.skipWithout(b.LoseReplies != nil, "Service.LoseReplies")
	c, other := b.newClient(), b.newClient()
	for k := 1; k <= b.roundCount(5, 2); k++ {
		b.LoseReplies(k)
		l, err := c.TryAcquire(b.boundedContext(), "k", &holdfast.AcquireOptions{TTL: b.long})
		if err == nil {
			b.release(l)
		} else {
			b.checkError(err, holdfast.ErrUnavailable)
		}
		b.checkCleared()
		b.LoseReplies(0)
		b.eventually("the lock is free again", func() bool {
			l, err := other.TryAcquire(b.Context(), "k", &holdfast.AcquireOptions{TTL: b.long})
			if err != nil {
				return false
			}
			b.release(l)
			return true
		})
	}
}

func lostRenewalReplies(b *bench) {
	b.skipWithout(b.LoseReplies != nil, "Service.LoseReplies")
	c, other := b.newClient(), b.newClient()
	l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.brief})
	for range b.roundCount(10, 2) {
		b.LoseReplies(1)
		deadline := l.Deadline()
		b.eventually("a renewal", func() bool { return l.Deadline().After(deadline) })
	}
	if err := context.Cause(l.Context()); err != nil {
		b.Fatalf("the lease was lost: %v", err)
	}
	b.LoseReplies(0)
	b.eventually("the other client is told", func() bool {
		_, err := other.TryAcquire(b.Context(), "k", nil)
		if err == nil {
			b.Fatal("two holders")
		}
		return errors.Is(err, holdfast.ErrHeld)
	})
	b.release(l)
	b.checkCleared()
}

func (b *bench) needsStop(nodes int) {
	b.Helper()
	b.skipWithout(b.StopNodes != nil && b.StartNodes != nil, "Service.StopNodes and StartNodes")
	if max(b.Nodes, 1) < nodes {
		b.Skipf("this needs %d nodes", nodes)
	}
}

func minorityMayFail(b *bench) {
	b.needsStop(3)
	c, other := b.newClient(), b.newClient()
	before := b.acquire(c, "before", &holdfast.AcquireOptions{TTL: b.brief})
	b.StopNodes((b.Nodes - 1) / 2)
	l := b.acquire(c, "k", nil)
	b.checkHeld(other, "k")
	deadline := before.Deadline()
	b.eventually("a renewal", func() bool { return before.Deadline().After(deadline) })
	b.checkHeld(other, "before")
	b.release(l, before)
	b.release(b.acquire(other, "k", nil))
	b.StartNodes()
	b.checkCleared()
}

func lostMajorityNamesNodes(b *bench) {
	b.needsStop(1)
	c := b.newClient()
	b.release(b.acquire(c, "k", nil))
	stop := b.Nodes/2 + 1
	b.StopNodes(stop)
	_, err := c.TryAcquire(b.boundedContext(), "k", nil)
	b.checkError(err, holdfast.ErrUnavailable)
	down, ok := errors.AsType[*holdfast.UnavailableError](err)
	if !ok || len(down.Nodes) < min(stop, b.Nodes) || len(down.Unwrap()) == 0 {
		b.Errorf("error %v names fewer than %d down nodes, or no cause", err, stop)
	}
	b.StartNodes()
	b.eventually("the service is back", func() bool {
		l, err := c.TryAcquire(b.Context(), "k", nil)
		if err != nil {
			return false
		}
		b.release(l)
		return true
	})
	b.checkCleared()
}

func waitSurvivesOutage(b *bench) {
	b.needsStop(1)
	c, other := b.newClient(), b.newClient()
	l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.long})
	told := make(chan *holdfast.Lease)
	go func() {
		next, err := other.Acquire(b.boundedContext(), "k", &holdfast.AcquireOptions{TTL: b.long})
		if err != nil {
			b.Errorf("the wait ended with %v", err)
		}
		told <- next
	}()
	b.awaitWait(c, "k", 1)
	b.StopNodes(max(b.Nodes, 1))
	time.Sleep(300 * time.Millisecond) // a client that asks meanwhile reaches no node
	b.StartNodes()
	b.eventually("the lease is renewed again", func() bool { return l.Extend(b.Context(), b.long) == nil })
	b.release(l)
	if next := <-told; next != nil {
		b.release(next)
	}
	b.checkCleared()
}

// A renewal with an unknown outcome is not a loss: the old trust stays valid.
func unansweredRenewalKeepsTrust(b *bench) {
	b.needsStop(1)
	drv := b.openDriver()
	defer drv.Close()
	g := b.takeGrant(drv, "k", b.long)
	b.StopNodes(max(b.Nodes, 1))
	ctx, cancel := context.WithTimeout(b.Context(), b.long/10)
	r := drv.Renew(ctx, []driver.Grant{g})[0]
	cancel()
	if r.Err == nil || errors.Is(r.Err, driver.ErrLost) {
		b.Errorf("a renewal that reached no node: %v, want an error that is not ErrLost", r.Err)
	}
	if !r.TrustedUntil.IsZero() && r.TrustedUntil.After(g.TrustedUntil.Add(b.long/100)) {
		b.Errorf("a renewal that reached no node moved the deadline by %v", r.TrustedUntil.Sub(g.TrustedUntil))
	}
	b.StartNodes()
	b.eventually("a renewal", func() bool { return drv.Renew(b.boundedContext(), []driver.Grant{g})[0].Err == nil })
	b.checkNoError(b.retryLate(func() error { return drv.Release(b.boundedContext(), g, 0) }))
	b.checkCleared()
}

// nodesReportRoundTrip is for a driver that reports its nodes. The round trip is smoothed, so one sample shows
// only a part of a delay.
func nodesReportRoundTrip(b *bench) {
	b.skipWithout(b.can.notify && b.Service.Delay != nil, "driver.Notifier and Service.Delay")
	drv := b.openDriver()
	defer drv.Close()
	const delay = 40 * time.Millisecond
	b.Delay(delay)
	b.eventually("every node has a round trip", func() bool {
		for _, e := range drv.(driver.Notifier).Nodes() {
			if e.RoundTrip < delay/5 {
				return false
			}
		}
		return true
	})
	b.Delay(0)
}

func nodesReportState(b *bench) {
	b.skipWithout(b.can.notify, "driver.Notifier")
	b.needsStop(1)
	drv := b.openDriver()
	defer drv.Close()
	notifier := drv.(driver.Notifier)
	nodes := cmp.Or(b.Servers, b.Nodes)
	up := func() (n int) {
		all := notifier.Nodes()
		if len(all) != nodes {
			b.Fatalf("Nodes() lists %d nodes, want %d", len(all), nodes)
		}
		for _, e := range all {
			if e.State == driver.NodeUp && e.Err == nil {
				n++
			}
			if e.Node == "" || e.State != driver.NodeUp && e.Err == nil {
				b.Errorf("Nodes() has %+v", e)
			}
		}
		return n
	}
	b.eventually("every node is up", func() bool { return up() == nodes })
	b.StopNodes(1)
	b.eventually("a node is not up", func() bool { return up() < nodes })
	b.StartNodes()
	b.eventually("every node is up again", func() bool { return up() == nodes })
}
