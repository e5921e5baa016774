package quorum

import (
	"testing"
	"time"
)

// claimAfterGiveBack returns a waiting claim over three nodes that has given back the grant of node 0.
func claimAfterGiveBack(t *testing.T) *claimTest {
	t.Helper()
	p := startClaim(t, 3, stamp)
	p.grant(0, 100)
	p.deny(1, 2)
	p.check("given back", p.last.GiveBack == nodeSet(0))
	return p
}

// All waiters for one lock together ask at most three hundred times a second, and each asks within ten seconds
// even if its wake-up is lost.
func TestEachOfManyWaitersPollsWithinTenSeconds(t *testing.T) {
	t.Parallel()
	for _, n := range []int{101, 200, 1000, 2000, 100_000} {
		var sum int64
		for rand := range uint32(1000) {
			var c Claim
			c.MinLeft, c.MaxWaiters = ms, n
			rest := c.queuedPause(rand * (1 << 32 / 1000))
			if sum += rest; rest > 10_000*ms {
				t.Fatalf("%d waiters: one pauses for %v", n, time.Duration(rest))
			}
		}
		if mean := sum / 1000; n <= 2000 && int64(n)*1000*ms/mean > 300 {
			t.Errorf("%d waiters: each asks every %v, together %d times a second", n, time.Duration(mean), int64(n)*1000*ms/mean)
		}
	}
	var c Claim
	c.MinLeft, c.MaxWaiters = 50*ms, 100
	if rest := c.queuedPause(0); rest != 50*ms {
		t.Errorf("100 waiters: one pauses for %v, want the lock's remaining time", time.Duration(rest))
	}
}

func TestOneOfManyWaitersPollsLessOften(t *testing.T) {
	t.Parallel()
	p := startClaim(t, 3, stamp)
	for n := range 3 {
		p.step(Event{Kind: Denied, Node: n, Sent: p.now, Left: 100 * ms, Queued: true, Waiters: 1000})
	}
	p.check("rests for five seconds at least", p.c.RestUntil >= p.now+5000*ms)
	p.tick()
	p.deny(0, 1, 2)
	p.check("the crowd has gone", p.c.RestUntil <= p.now+1200*ms)
}

func TestPartialGrantsAreReturnedKeepingPlace(t *testing.T) {
	t.Parallel()
	p := startClaim(t, 3, stamp)
	p.check("asked with the stamp", p.last.Stamped == All(3))
	p.grant(0, 100)
	p.deny(1, 2)
	p.check("given back, not released", p.last.GiveBack == nodeSet(0) && p.last.Release == 0 && p.c.ID == 0)
	p.check("the place counts", p.c.Queued == All(3) && p.c.RestUntil > p.now)
}

func TestGrantsBeforeGiveBackDoNotCount(t *testing.T) {
	t.Parallel()
	p := startClaim(t, 3, stamp)
	p.deny(0, 1, 2)
	p.step(Event{Kind: Woken, Node: 0})
	p.grant(0, 100)
	stale := Event{Kind: Granted, Node: 0, Sent: p.now, TTL: lease, Token: 100, Epoch: p.c.Epoch[0]}
	p.deny(1, 2)
	p.tick()
	p.check("given back", p.last.GiveBack == nodeSet(0) && p.c.Epoch[0] == 1)
	p.step(stale)
	p.check("an answer to an earlier request is void", p.c.Granted == 0)
	p.answerAll(Freed, 0)
	p.tick()
	p.grant(0, 132)
	p.check("a new grant counts", p.c.Granted == nodeSet(0))
	p.grant(1, 132)
	p.checkOutcome(Won)
	stale.Token = 1
	p.step(stale)
	p.check("and is not taken for redundancy", p.c.Base[0] == 132 && p.last.Commit == 0)
}

// Trace C3: the give-back may be executed at any time, and would free a lock
// that the same id holds again.
func TestUnansweredGiveBackEndsID(t *testing.T) {
	t.Parallel()
	p := claimAfterGiveBack(t)
	p.fail(AskGiveBack, 0)
	p.check("released everywhere, asked under a fresh id",
		p.last.FreshID && p.last.Release == All(3) && p.last.Acquire == All(3) && p.c.ID == 1)
	p.check("same place", p.c.Stamp == stamp && p.last.Stamped == All(3))
}

// Force took the lock from the id before its client learned of the grant: no node gives it to that id again.
func TestForcedIDIsGivenUpWhileSeeking(t *testing.T) {
	t.Parallel()
	for _, place := range []int64{0, stamp} {
		p := startClaim(t, 3, place)
		p.grant(0, 100)
		p.step(Event{Kind: Denied, Node: 1, Sent: p.now, Left: remainingWhenFree * ms})
		p.check("released everywhere, asked under a fresh id",
			p.last.FreshID && p.last.Release == All(3) && p.last.Acquire == All(3) && p.c.ID == 1 && p.c.Stamp == place)
	}
}

// The failure of the old connection may be noticed after an answer over the new one.
func TestGrantDuringGiveBackEndsID(t *testing.T) {
	t.Parallel()
	p := claimAfterGiveBack(t)
	p.step(Event{Kind: Woken, Node: 1})
	p.grant(1, 132)
	p.grant(0, 132)
	p.check("not counted", p.last.FreshID && p.last.Release == All(3) && p.c.Phase == Seeking)
}

func TestNodeOwingGiveBackIsNotSpare(t *testing.T) {
	t.Parallel()
	p := claimAfterGiveBack(t)
	p.step(Event{Kind: Woken, Node: 1})
	p.grant(1, 100)
	p.grant(2, 100)
	p.checkOutcome(Won)
	p.step(Event{Kind: Renew, TTL: lease})
	p.answerAll(Kept, 0, 1)
	p.checkOutcome(None)
	p.check("node 0 does not count", p.c.Granted == nodeSet(1, 2))
	p.answerAll(Kept, 2)
	p.checkOutcome(Renewed)
}

func TestWakeUpAsksEveryNode(t *testing.T) {
	t.Parallel()
	p := startClaim(t, 3, stamp)
	p.deny(0, 1, 2)
	p.step(Event{Kind: Woken, Node: 1})
	p.check("all are asked (C4)", p.last.Acquire == All(3) && p.last.Stamped == All(3))
	p.step(Event{Kind: Woken, Node: 2})
	p.check("the one that woke is asked again", p.last.Acquire == nodeSet(2))
	p.grant(1, 100)
	p.step(Event{Kind: Woken, Node: 1})
	p.check("unless it has granted", p.last.Acquire == 0)
}

// queuedClaim returns a claim over n nodes that is queued on all of them, so that wake-ups alone can hand it
// the lock.
func queuedClaim(t *testing.T, n int) *claimTest {
	t.Helper()
	p := startClaim(t, n, stamp)
	p.c.Renews = true
	for node := range n {
		p.deny(node)
	}
	p.check("queued", p.c.Queued == All(n))
	return p
}

// handOver delivers a wake-up with a token.
func (p *claimTest) handOver(node int, base int64) {
	p.t.Helper()
	p.step(Event{Kind: Woken, Node: node, Token: base, TTL: second})
}

func TestWakeUpWithTokenIsGrant(t *testing.T) {
	t.Parallel()
	p := queuedClaim(t, 3)
	asked := p.now
	p.now += 400 * ms
	p.handOver(2, 100)
	p.check("the others say it themselves", p.c.Granted == nodeSet(2) && p.last.Acquire == 0)
	p.handOver(0, 100)
	p.checkOutcome(Won)
	p.check("at once", p.c.Token == 100 && p.last == Actions{Outcome: Won})
	if got, want := p.c.TrustedUntil(), asked+second-Drift(second); got != want {
		t.Errorf("trusted until %d, want %d: a hand-over's time from the last request that was answered", got, want)
	}
	p.handOver(1, 100)
	p.check("the first renewal is near", p.last.Renew == 0)
	p.step(Event{Kind: Renew, TTL: lease})
	p.answerAll(Kept, 0, 1)
	p.checkOutcome(Renewed)
	p.check("and gives full trust", p.c.TrustedUntil() == p.now+lease-Drift(lease))
	p.handOver(2, 100)
	p.check("who hands over after that is renewed", p.last.Renew == nodeSet(2))
}

// lateHandOver returns a queued claim over n nodes that got a wake-up from node 0 400 ms before node 1 grants.
func lateHandOver(t *testing.T, n int) *claimTest {
	t.Helper()
	p := queuedClaim(t, n)
	p.now += 450 * ms
	p.handOver(0, 100)
	p.now += 400 * ms
	p.step(Event{Kind: Woken, Node: 1})
	p.grant(1, 100)
	p.check("asks again who told", p.c.Phase == Seeking && p.last.Acquire == nodeSet(0))
	return p
}

// A lease that ends before it can be renewed is useless.
func TestShortHandOverIsConfirmedFirst(t *testing.T) {
	t.Parallel()
	p := lateHandOver(t, 3)
	p.grant(0, 100)
	p.checkOutcome(Won)
	p.check("for the whole TTL", p.c.TrustedUntil() == p.now+lease-Drift(lease))
}

func TestUnconfirmedHandOverDoesNotCount(t *testing.T) {
	t.Parallel()
	for name, silent := range map[string]func(p *claimTest){
		"a failure": func(p *claimTest) { p.fail(AskAcquire, 0) },
		"silence":   func(p *claimTest) { p.now = p.c.AnswerBy[0]; p.step(Event{Kind: Tick}) },
	} {
		p := lateHandOver(t, 3)
		silent(p)
		if p.c.Granted.Has(0) || p.c.Phase != Seeking || p.last.Acquire.Has(0) {
			t.Errorf("%s: did %+v, claim %+v", name, p.last, p.c)
		}
	}
}

func TestFailedHandOverKeepsTimer(t *testing.T) {
	t.Parallel()
	p := queuedClaim(t, 3)
	timer := p.c.RestUntil
	p.handOver(0, 100)
	p.check("the timer still runs", p.c.RestUntil == timer)
	p.tick()
	p.check("given back", p.last.GiveBack == nodeSet(0) && p.c.RestUntil == timer)
}

func TestIdleTimerStops(t *testing.T) {
	t.Parallel()
	p := lateHandOver(t, 2)
	p.c.RestUntil, p.c.GiveBackAt = p.now+1, 0
	p.tick()
	p.check("all have granted", p.c.Granted == nodeSet(0, 1) && p.c.RestUntil == 0)
}

func TestLateHandOverOfLowerBaseIsCommitted(t *testing.T) {
	t.Parallel()
	p := queuedClaim(t, 3)
	p.handOver(0, 132)
	p.handOver(1, 132)
	p.checkOutcome(Won)
	p.handOver(2, 100)
	p.check("or its node would deny the token", p.last.Commit == nodeSet(2))
}

func TestRepeatedGrantNeedsNewCommit(t *testing.T) {
	t.Parallel()
	p := startClaim(t, 5, stamp)
	p.grant(0, 100)
	p.grant(1, 100)
	p.step(Event{Kind: Woken, Node: 2})
	p.grant(2, 132)
	p.check("132 is to be committed", p.c.Token == 132 && p.last.Commit == nodeSet(0, 1))
	p.step(Event{Kind: Granted, Node: 2, ID: p.c.ID, Epoch: p.c.Epoch[2], Sent: p.now, TTL: lease, Token: 196})
	p.check("which node 2 no longer stands behind", p.c.Agreed == 0)
}

func TestHandOverOfDifferentBasesIsCommitted(t *testing.T) {
	t.Parallel()
	p := queuedClaim(t, 3)
	p.handOver(0, 100)
	p.handOver(1, 132)
	p.check("the highest", p.c.Token == 132 && p.last.Commit == nodeSet(0))
	p.check("and the rest is asked", p.last.Acquire == 0)
	p.step(Event{Kind: Accepted, Node: 0, ID: p.c.ID, Epoch: p.c.Epoch[0], Sent: p.now})
	p.checkOutcome(Won)
}

// The hand-over may have expired or been given back before the wake-up is read.
func TestUnconfirmedHandOverIsVerified(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(p *claimTest){
		"the last answer is old":    func(p *claimTest) { p.now += second/2 - Drift(second) + 1 },
		"the holder does not renew": func(p *claimTest) { p.c.Renews = false },
		"no token was told":         nil,
		"a give-back is open": func(p *claimTest) {
			p.step(Event{Kind: Woken, Node: 0})
			p.grant(0, 100)
			p.deny(1, 2)
			p.tick()
			p.check("given back", p.last.GiveBack == nodeSet(0))
		},
		"round trips are slow":     func(p *claimTest) { p.c.RoundTrip = second / 8 },
		"nothing was answered yet": func(p *claimTest) { p.c.Answered = [MaxNodes]int64{} },
	} {
		p := queuedClaim(t, 3)
		if prepare == nil {
			p.step(Event{Kind: Woken, Node: 0, TTL: second})
		} else {
			prepare(p)
			p.handOver(0, 132)
		}
		if p.c.Granted != 0 || !p.last.Acquire.Has(0) {
			t.Errorf("%s: granted by %b, requests to %b", name, p.c.Granted, p.last.Acquire)
		}
	}
}

// If this claim has left the lock free on a node, no release there will wake it.
func TestHandOverAsksNodesGivenBack(t *testing.T) {
	t.Parallel()
	p := startClaim(t, 5, stamp)
	p.c.Renews = true
	p.grant(0, 100)
	p.deny(1, 2, 3)
	p.check("given back", p.last.GiveBack == nodeSet(0))
	p.fail(AskAcquire, 4)
	p.answerAll(Freed, 0)
	p.handOver(1, 100)
	p.check("there, and where it has no place", p.last.Acquire == nodeSet(0, 4))
}

func TestHandOverHasFewRoundTrips(t *testing.T) {
	t.Parallel()
	p := startClaim(t, 3, stamp)
	p.now += 20 * ms
	p.deny(0, 1, 2)
	p.step(Event{Kind: Woken, Node: 0})
	woken := p.now
	p.grant(0, 100)
	p.deny(1, 2)
	p.check("its other nodes may follow", p.last.GiveBack == 0 && p.c.Granted == nodeSet(0))
	p.tick()
	p.check("not for ever", p.last.GiveBack == nodeSet(0))
	if got := p.now - woken; got != 4*20*ms {
		t.Errorf("partial grants kept for %v", time.Duration(got))
	}
}

// Another waiter may hold the other half and wait for the same node.
func TestSilentNodeEndsPartialGrants(t *testing.T) {
	t.Parallel()
	p := startClaim(t, 3, stamp)
	p.now += 5 * ms
	p.grant(0, 100)
	p.check("a quorum may still come", p.last.GiveBack == 0)
	p.deny(1)
	answered := p.now
	p.tick()
	p.check("given back", p.last.GiveBack == nodeSet(0))
	if got := p.now - answered; got > 20*ms {
		t.Errorf("kept for %v", time.Duration(got))
	}
}

// Denials from before the wake-up once shortened the deadlines of the nodes that had not answered yet. On a
// busy machine these counted as silent, and the waiter withdrew.
func TestHandOverSurvivesSlowNodes(t *testing.T) {
	t.Parallel()
	p := startClaim(t, 3, stamp)
	p.now += 5 * ms
	p.deny(0, 1, 2)
	p.step(Event{Kind: Woken, Node: 0})
	p.grant(0, 100)
	p.tick()
	p.check("gives back, and keeps its place", p.last.GiveBack == nodeSet(0) && !p.last.FreshID && p.c.Asked == nodeSet(1, 2))
	p.answerAll(Freed, 0)
	p.now += 90 * ms
	p.step(Event{Kind: Tick})
	p.grant(1, 100)
	p.grant(2, 100)
	p.checkOutcome(Won)
}

func TestWaiterKnownToMinorityWithdraws(t *testing.T) {
	t.Parallel()
	p := startClaim(t, 3, stamp)
	p.deny(0, 1, 2)
	p.tick()
	p.deny(0)
	p.fail(AskAcquire, 1, 2)
	p.check("withdraws", p.last.Release == All(3) && p.last.FreshID && !p.c.Queueing && p.c.RestUntil != 0)
	p.tick()
	p.check("asks without a stamp", p.last.Acquire == All(3) && p.last.Stamped == 0)
	p.fail(AskAcquire, 1)
	p.deny(0)
	p.check("until a quorum answers", p.last.Acquire == 0)
	p.deny(2)
	p.check("then queues again", p.last.Acquire == All(3) && p.last.Stamped == All(3) && p.c.Stamp == stamp)
}

// A give-back would be sent under the new id, and queue that id on a minority.
func TestWithdrawingWaiterDoesNotGiveBack(t *testing.T) {
	t.Parallel()
	p := startClaim(t, 3, stamp)
	p.grant(0, 100)
	p.fail(AskAcquire, 1, 2)
	p.check("withdraws", p.last.Release == All(3) && p.last.FreshID && !p.c.Queueing && p.last.GiveBack == 0)
}

func TestWaiterLosesPlaceOnSilentNode(t *testing.T) {
	t.Parallel()
	p := startClaim(t, 3, stamp)
	p.deny(0, 1, 2)
	p.tick()
	p.deny(0)
	p.tick() // nodes 1 and 2 do not answer
	p.check("withdraws", p.last.FreshID && p.last.Release == All(3))
}

// The node may pass the lock on to another waiter, or its message may get lost: the claim would wait in vain.
func TestPlaceWithoutSubscriptionDoesNotCount(t *testing.T) {
	t.Parallel()
	p := queuedClaim(t, 3)
	p.step(Event{Kind: SubscriptionChange, Nodes: nodeSet(0, 1)})
	p.check("two places", p.c.Queued == nodeSet(0, 1))
	p.handOver(0, 100)
	p.check("the third node does not say it itself", p.last.Acquire == nodeSet(2))
}

func TestQueueingNeedsSubscription(t *testing.T) {
	t.Parallel()
	p := startSubscribed(t, 3, stamp, 0)
	p.check("asks without a stamp", p.last.Stamped == 0)
	p.deny(0, 1)
	p.check("subscribes", p.last.Subscribe && p.last.Acquire == 0)
	p.step(Event{Kind: SubscriptionChange, Nodes: nodeSet(0)})
	p.check("a minority is not enough", p.last.Acquire == 0)
	p.step(Event{Kind: SubscriptionChange, Nodes: nodeSet(0, 1)})
	p.check("queues where it hears", p.last.Acquire == All(3) && p.last.Stamped == nodeSet(0, 1))
	p.deny(0, 1, 2)
	p.step(Event{Kind: SubscriptionChange, Nodes: All(3)})
	p.check("and where it has come to hear", p.last.Acquire == nodeSet(2) && p.last.Stamped == nodeSet(2))
}

// The claim is notified of nodes that come back, and asks them before its timer expires.
func TestInitialOutageEndsWithSubscription(t *testing.T) {
	t.Parallel()
	p := startSubscribed(t, 3, stamp, 0)
	p.grant(0, 100) // no quorum
	p.fail(AskAcquire, 1, 2)
	p.check("subscribes", p.last.Subscribe && p.c.RestUntil != 0)
	p.step(Event{Kind: SubscriptionChange, Nodes: nodeSet(1)})
	p.check("a minority is not enough", p.last.Acquire == 0)
	p.step(Event{Kind: SubscriptionChange, Nodes: nodeSet(1, 2)})
	p.check("asks", p.last.Acquire == All(3) && p.last.Stamped == nodeSet(1, 2))
}

func TestUnchangedSubscriptionKeepsTimer(t *testing.T) {
	t.Parallel()
	p := startClaim(t, 3, stamp)
	p.deny(0, 1, 2)
	rest := p.c.RestUntil
	p.step(Event{Kind: SubscriptionChange, Nodes: nodeSet(0, 1)})
	p.check("still rests", p.c.RestUntil == rest && p.c.Alarm() == rest)
}

func TestPollingSurvivesLostWakeUps(t *testing.T) {
	t.Parallel()
	p := startClaim(t, 3, stamp)
	p.deny(0, 1, 2)
	if rest := p.c.RestUntil - p.now; rest < maxQueuedRest || rest > maxQueuedRest*9/8+ms {
		t.Errorf("rests %v", time.Duration(rest))
	}
	p.tick()
	p.check("asks everybody", p.last.Acquire == All(3) && p.last.Stamped == All(3))
}

func TestPollFollowsShortestRemainingTime(t *testing.T) {
	t.Parallel()
	p := startClaim(t, 3, stamp)
	p.answer(Event{Kind: Denied, Node: 0, Left: 300 * ms, Queued: true})
	p.answer(Event{Kind: Denied, Node: 1, Left: 200 * ms, Queued: true})
	p.answer(Event{Kind: Denied, Node: 2, Left: -1, Queued: true})
	if rest := p.c.RestUntil - p.now; rest < 200*ms || rest > 200*ms*9/8+ms {
		t.Errorf("rests %v", time.Duration(rest))
	}
}

// A holder of another library wakes nobody when it releases. A waiter that asks as often as other libraries do
// has the same chance.
func TestWaiterPollsForeignHolderOften(t *testing.T) {
	t.Parallel()
	for _, heard := range []Set{All(3), 0} { // queued, and polling
		p := startSubscribed(t, 3, stamp, heard)
		for i := range 40 {
			for n := range 3 {
				p.answer(Event{Kind: Denied, Node: n, Left: lease, Queued: heard != 0, Foreign: true, Rand: uint32(i) * 2_654_435_761})
				if p.c.RestUntil != 0 {
					break
				}
			}
			least, most := minForeignRest, 102*ms
			if heard == 0 {
				least = ms // as always
			}
			if rest := p.c.RestUntil - p.now; rest < least || rest > most {
				t.Fatalf("subscribed at %b: pause %v, want %v to %v", heard, time.Duration(rest), time.Duration(least), time.Duration(most))
			}
			for p.tick(); p.last.Acquire == 0; {
				p.tick()
			}
		}
	}
	p := startClaim(t, 3, stamp)
	p.answer(Event{Kind: Denied, Node: 0, Left: 5 * ms, Queued: true, Foreign: true})
	p.answer(Event{Kind: Denied, Node: 1, Left: lease, Queued: true})
	if rest := p.c.RestUntil - p.now; rest < 5*ms || rest > 7*ms {
		t.Errorf("pause %v, and the lock expires in 5ms", time.Duration(rest))
	}
}

func TestPollingDoublesUpToOneSecond(t *testing.T) {
	t.Parallel()
	p := startSubscribed(t, 3, stamp, 0)
	most := minPollRest
	for range 12 {
		for n := range 3 {
			p.answer(Event{Kind: Denied, Node: n, Left: lease, Rand: uint32(most - 1)})
			if p.c.RestUntil != 0 {
				break
			}
		}
		if rest, want := p.c.RestUntil-p.now, ms+most-1; rest != want {
			t.Fatalf("rests %v, want %v", time.Duration(rest), time.Duration(want))
		}
		most = min(2*most, maxPollRest)
		for p.tick(); p.last.Acquire == 0; { // the deadline of node 2 comes first
			p.tick()
		}
		p.check("asks without a stamp", p.last.Acquire == All(3) && p.last.Stamped == 0)
	}
}

func TestPollerReleasesPartialGrants(t *testing.T) {
	t.Parallel()
	p := startSubscribed(t, 3, stamp, 0)
	p.grant(0, 100)
	p.deny(1, 2)
	p.check("no place to keep", p.last.GiveBack == 0 && p.last.FreshID && p.last.Release == All(3))
}

func TestFailedCommitRoundEndsID(t *testing.T) {
	t.Parallel()
	p := startClaim(t, 3, stamp)
	p.grant(0, 100)
	p.grant(1, 132)
	p.deny(2)
	p.answerAll(Refused, 0)
	p.check("fresh id", p.last.FreshID && p.last.Release == All(3) && p.last.GiveBack == 0)
}

func TestGivingUpReleasesEverywhere(t *testing.T) {
	t.Parallel()
	p := startClaim(t, 3, stamp)
	p.grant(0, 100)
	p.step(Event{Kind: Release})
	p.check("released", p.last.Release == All(3) && p.c.Phase == Over)
	p.grant(1, 100)
	p.check("a late grant changes nothing", p.c.Phase == Over && p.last == Actions{})
	p.step(Event{Kind: Woken, Node: 2})
	p.check("a late wake-up is answered with release", p.last.Release == nodeSet(2))
}

func TestAnswersToDeadIDAreIgnored(t *testing.T) {
	t.Parallel()
	p := claimAfterGiveBack(t)
	old := Event{Kind: Granted, Node: 2, Sent: p.now, TTL: lease, Token: 132}
	p.fail(AskGiveBack, 0)
	before := p.c
	p.step(old)
	p.check("nothing happens", p.c == before && p.last == Actions{})
}

// Otherwise one request that an outage delayed would make its claim keep partial grants for half a second in
// each round.
func TestSlowRoundTripIsForgotten(t *testing.T) {
	t.Parallel()
	c := Claim{N: 3, TTL: lease}
	answer := func(trip int64) { c.countAnswer(&Event{Kind: Denied, Sent: second, At: second + trip}) }
	answer(15 * second)
	if c.RoundTrip != RequestTimeout(lease) {
		t.Errorf("a request that took 15 s sets a round trip of %d ms", c.RoundTrip/ms)
	}
	for range 24 { // eight rounds of three nodes
		answer(ms)
	}
	if got := c.partialWait(); got > 200*ms {
		t.Errorf("a few round trips of a millisecond set %d ms", got/ms)
	}
}
