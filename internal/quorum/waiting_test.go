package quorum

import (
	"testing"
	"time"
)

// gaveBack is a claim that waits over three nodes and has given back what node 0 granted.
func gaveBack(t *testing.T) *play {
	t.Helper()
	p := begin(t, 3, stamp)
	p.granted(0, 100)
	p.denied(1, 2)
	p.want("given back", p.did.GiveBack == set(0))
	return p
}

// Many who wait behind one lock ask together no oftener than three hundred times a second, and each
// asks within ten seconds, though its wake-up is lost.
func TestCrowdAsksSeldomEachWithinTenSeconds(t *testing.T) {
	t.Parallel()
	for _, n := range []int{101, 200, 1000, 2000, 100_000} {
		var sum int64
		for rand := range uint32(1000) {
			var c Claim
			c.Left, c.Crowd = ms, n
			rest := c.fallback(rand * (1 << 32 / 1000))
			if sum += rest; rest > 10_000*ms {
				t.Fatalf("%d wait: one rests for %v", n, time.Duration(rest))
			}
		}
		if mean := sum / 1000; n <= 2000 && int64(n)*1000*ms/mean > 300 {
			t.Errorf("%d wait: they ask every %v, %d times a second", n, time.Duration(mean), int64(n)*1000*ms/mean)
		}
	}
	var c Claim
	c.Left, c.Crowd = 50*ms, 100
	if rest := c.fallback(0); rest != 50*ms {
		t.Errorf("100 wait: one rests for %v, want the time left", time.Duration(rest))
	}
}

func TestCrowdedWaiterRestsLonger(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, stamp)
	for n := range 3 {
		p.step(Event{Kind: Denied, Node: n, Sent: p.now, Left: 100 * ms, Queued: true, Waiters: 1000})
	}
	p.want("rests for five seconds at least", p.c.Rest >= p.now+5000*ms)
	p.tick()
	p.denied(0, 1, 2)
	p.want("the crowd has gone", p.c.Rest <= p.now+1200*ms)
}

func TestPartialGrantsGoBackKeepingPlace(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, stamp)
	p.want("asked with the stamp", p.did.Stamped == All(3))
	p.granted(0, 100)
	p.denied(1, 2)
	p.want("given back, not released", p.did.GiveBack == set(0) && p.did.Release == 0 && p.c.ID == 0)
	p.want("the place counts", p.c.Queued == All(3) && p.c.Rest > p.now)
}

func TestGrantsBeforeGiveBackDoNotCount(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, stamp)
	p.denied(0, 1, 2)
	p.step(Event{Kind: Woken, Node: 0})
	p.granted(0, 100)
	stale := Event{Kind: Granted, Node: 0, Sent: p.now, TTL: lease, Token: 100, Epoch: p.c.Epoch[0]}
	p.denied(1, 2)
	p.tick()
	p.want("given back", p.did.GiveBack == set(0) && p.c.Epoch[0] == 1)
	p.step(stale)
	p.want("an answer to an earlier request is void", p.c.Granted == 0)
	p.say(Freed, 0)
	p.tick()
	p.granted(0, 132)
	p.want("a new grant counts", p.c.Granted == set(0))
	p.granted(1, 132)
	p.wantOutcome(Won)
	stale.Token = 1
	p.step(stale)
	p.want("and is not taken for redundancy", p.c.Base[0] == 132 && p.did.Commit == 0)
}

// Trace C3: the give-back may be executed at any time, and would free a lock
// that the same id holds again.
func TestUnansweredGiveBackEndsID(t *testing.T) {
	t.Parallel()
	p := gaveBack(t)
	p.failed(AskGiveBack, 0)
	p.want("released everywhere, asked under a fresh id",
		p.did.FreshID && p.did.Release == All(3) && p.did.Acquire == All(3) && p.c.ID == 1)
	p.want("same place", p.c.Stamp == stamp && p.did.Stamped == All(3))
}

// The lock was forced from the id before its client knew of the grant: no node gives it to that id again.
func TestForcedIDIsGivenUpWhileSeeking(t *testing.T) {
	t.Parallel()
	for _, place := range []int64{0, stamp} {
		p := begin(t, 3, place)
		p.granted(0, 100)
		p.step(Event{Kind: Denied, Node: 1, Sent: p.now, Left: leftOfFree * ms})
		p.want("released everywhere, asked under a fresh id",
			p.did.FreshID && p.did.Release == All(3) && p.did.Acquire == All(3) && p.c.ID == 1 && p.c.Stamp == place)
	}
}

// The failure of the old connection may be noticed after an answer over the new one.
func TestGrantOvertakingGiveBackEndsID(t *testing.T) {
	t.Parallel()
	p := gaveBack(t)
	p.step(Event{Kind: Woken, Node: 1})
	p.granted(1, 132)
	p.granted(0, 132)
	p.want("not counted", p.did.FreshID && p.did.Release == All(3) && p.c.Phase == Seeking)
}

func TestNodeOwingGiveBackIsNoRedundancy(t *testing.T) {
	t.Parallel()
	p := gaveBack(t)
	p.step(Event{Kind: Woken, Node: 1})
	p.granted(1, 100)
	p.granted(2, 100)
	p.wantOutcome(Won)
	p.step(Event{Kind: Renew, TTL: lease})
	p.say(Kept, 0, 1)
	p.wantOutcome(None)
	p.want("node 0 does not count", p.c.Granted == set(1, 2))
	p.say(Kept, 2)
	p.wantOutcome(Renewed)
}

func TestWakeUpAsksEveryNode(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, stamp)
	p.denied(0, 1, 2)
	p.step(Event{Kind: Woken, Node: 1})
	p.want("all are asked (C4)", p.did.Acquire == All(3) && p.did.Stamped == All(3))
	p.step(Event{Kind: Woken, Node: 2})
	p.want("the one that woke is asked again", p.did.Acquire == set(2))
	p.granted(1, 100)
	p.step(Event{Kind: Woken, Node: 1})
	p.want("unless it has granted", p.did.Acquire == 0)
}

// queued is a claim over n nodes that is queued on all, and may be handed the lock by
// wake-ups alone.
func queued(t *testing.T, n int) *play {
	t.Helper()
	p := begin(t, n, stamp)
	p.c.Renews = true
	for node := range n {
		p.denied(node)
	}
	p.want("queued", p.c.Queued == All(n))
	return p
}

// handed is a wake-up that tells of a token.
func (p *play) handed(node int, base int64) {
	p.t.Helper()
	p.step(Event{Kind: Woken, Node: node, Token: base, TTL: second})
}

func TestWakeUpWithTokenIsGrant(t *testing.T) {
	t.Parallel()
	p := queued(t, 3)
	asked := p.now
	p.now += 400 * ms
	p.handed(2, 100)
	p.want("the others say it themselves", p.c.Granted == set(2) && p.did.Acquire == 0)
	p.handed(0, 100)
	p.wantOutcome(Won)
	p.want("at once", p.c.Token == 100 && p.did == Actions{Outcome: Won})
	if got, want := p.c.Trusted(), asked+second-Drift(second); got != want {
		t.Errorf("trusted until %d, want %d: a hand-over's time from the last request that was answered", got, want)
	}
	p.handed(1, 100)
	p.want("the first renewal is near", p.did.Renew == 0)
	p.step(Event{Kind: Renew, TTL: lease})
	p.say(Kept, 0, 1)
	p.wantOutcome(Renewed)
	p.want("and gives full trust", p.c.Trusted() == p.now+lease-Drift(lease))
	p.handed(2, 100)
	p.want("who hands over after that is renewed", p.did.Renew == set(2))
}

// late is a queued claim over n nodes that node 0 has told of its grant 400 ms before
// node 1 grants.
func late(t *testing.T, n int) *play {
	t.Helper()
	p := queued(t, n)
	p.now += 450 * ms
	p.handed(0, 100)
	p.now += 400 * ms
	p.step(Event{Kind: Woken, Node: 1})
	p.granted(1, 100)
	p.want("asks again who told", p.c.Phase == Seeking && p.did.Acquire == set(0))
	return p
}

// A lease that ends before it can be renewed is none.
func TestShortHandOverIsConfirmedFirst(t *testing.T) {
	t.Parallel()
	p := late(t, 3)
	p.granted(0, 100)
	p.wantOutcome(Won)
	p.want("for the whole TTL", p.c.Trusted() == p.now+lease-Drift(lease))
}

func TestUnconfirmedHandOverDoesNotCount(t *testing.T) {
	t.Parallel()
	for name, silent := range map[string]func(p *play){
		"a failure": func(p *play) { p.failed(AskAcquire, 0) },
		"silence":   func(p *play) { p.now = p.c.AskBy[0]; p.step(Event{Kind: Tick}) },
	} {
		p := late(t, 3)
		silent(p)
		if p.c.Granted.Has(0) || p.c.Phase != Seeking || p.did.Acquire.Has(0) {
			t.Errorf("%s: did %+v, claim %+v", name, p.did, p.c)
		}
	}
}

func TestFailedHandOverKeepsTimer(t *testing.T) {
	t.Parallel()
	p := queued(t, 3)
	timer := p.c.Rest
	p.handed(0, 100)
	p.want("the timer still runs", p.c.Rest == timer)
	p.tick()
	p.want("given back", p.did.GiveBack == set(0) && p.c.Rest == timer)
}

func TestTimerWithNothingToAskStops(t *testing.T) {
	t.Parallel()
	p := late(t, 2)
	p.c.Rest, p.c.Patience = p.now+1, 0
	p.tick()
	p.want("all have granted", p.c.Granted == set(0, 1) && p.c.Rest == 0)
}

func TestLateHandOverOfLowerBaseIsCommitted(t *testing.T) {
	t.Parallel()
	p := queued(t, 3)
	p.handed(0, 132)
	p.handed(1, 132)
	p.wantOutcome(Won)
	p.handed(2, 100)
	p.want("or its node would deny the token", p.did.Commit == set(2))
}

func TestRepeatedGrantNeedsNewCommit(t *testing.T) {
	t.Parallel()
	p := begin(t, 5, stamp)
	p.granted(0, 100)
	p.granted(1, 100)
	p.step(Event{Kind: Woken, Node: 2})
	p.granted(2, 132)
	p.want("132 is to be committed", p.c.Token == 132 && p.did.Commit == set(0, 1))
	p.step(Event{Kind: Granted, Node: 2, ID: p.c.ID, Epoch: p.c.Epoch[2], Sent: p.now, TTL: lease, Token: 196})
	p.want("which node 2 no longer stands behind", p.c.Agreed == 0)
}

func TestHandOverOfDifferentBasesIsCommitted(t *testing.T) {
	t.Parallel()
	p := queued(t, 3)
	p.handed(0, 100)
	p.handed(1, 132)
	p.want("the highest", p.c.Token == 132 && p.did.Commit == set(0))
	p.want("and the rest is asked", p.did.Acquire == 0)
	p.step(Event{Kind: Accepted, Node: 0, ID: p.c.ID, Epoch: p.c.Epoch[0], Sent: p.now})
	p.wantOutcome(Won)
}

// Its node may have lapsed, or given the lock back, by the time at which it is heard.
func TestDoubtfulHandOverIsVerified(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(p *play){
		"the last answer is old":    func(p *play) { p.now += second/2 - Drift(second) + 1 },
		"the holder does not renew": func(p *play) { p.c.Renews = false },
		"no token was told":         nil,
		"a give-back is open": func(p *play) {
			p.step(Event{Kind: Woken, Node: 0})
			p.granted(0, 100)
			p.denied(1, 2)
			p.tick()
			p.want("given back", p.did.GiveBack == set(0))
		},
		"round trips are slow":     func(p *play) { p.c.Trip = second / 8 },
		"nothing was answered yet": func(p *play) { p.c.Answered = [MaxNodes]int64{} },
	} {
		p := queued(t, 3)
		if prepare == nil {
			p.step(Event{Kind: Woken, Node: 0, TTL: second})
		} else {
			prepare(p)
			p.handed(0, 132)
		}
		if p.c.Granted != 0 || !p.did.Acquire.Has(0) {
			t.Errorf("%s: granted by %b, asks %b", name, p.c.Granted, p.did.Acquire)
		}
	}
}

// Where this claim left the lock to nobody, no release will wake it.
func TestHandOverAsksNodesGivenBack(t *testing.T) {
	t.Parallel()
	p := begin(t, 5, stamp)
	p.c.Renews = true
	p.granted(0, 100)
	p.denied(1, 2, 3)
	p.want("given back", p.did.GiveBack == set(0))
	p.failed(AskAcquire, 4)
	p.say(Freed, 0)
	p.handed(1, 100)
	p.want("there, and where it has no place", p.did.Acquire == set(0, 4))
}

func TestHandOverHasFewRoundTrips(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, stamp)
	p.now += 20 * ms
	p.denied(0, 1, 2)
	p.step(Event{Kind: Woken, Node: 0})
	woken := p.now
	p.granted(0, 100)
	p.denied(1, 2)
	p.want("its other nodes may follow", p.did.GiveBack == 0 && p.c.Granted == set(0))
	p.tick()
	p.want("not for ever", p.did.GiveBack == set(0))
	if got := p.now - woken; got != 4*20*ms {
		t.Errorf("kept together for %v", time.Duration(got))
	}
}

// Another waiter may hold the other half and wait for the same node.
func TestSilentNodeEndsPartialGrants(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, stamp)
	p.now += 5 * ms
	p.granted(0, 100)
	p.want("a quorum may still come", p.did.GiveBack == 0)
	p.denied(1)
	answered := p.now
	p.tick()
	p.want("given back", p.did.GiveBack == set(0))
	if got := p.now - answered; got > 20*ms {
		t.Errorf("kept for %v", time.Duration(got))
	}
}

// Denials from before the wake-up once cut the time of the nodes that had yet to
// answer it: on a busy machine they counted as silent, and the waiter withdrew.
func TestHandOverOutlastsSlowNodes(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, stamp)
	p.now += 5 * ms
	p.denied(0, 1, 2)
	p.step(Event{Kind: Woken, Node: 0})
	p.granted(0, 100)
	p.tick()
	p.want("gives back, and keeps its place", p.did.GiveBack == set(0) && !p.did.FreshID && p.c.Asked == set(1, 2))
	p.say(Freed, 0)
	p.now += 90 * ms
	p.step(Event{Kind: Tick})
	p.granted(1, 100)
	p.granted(2, 100)
	p.wantOutcome(Won)
}

func TestWaiterKnownToMinorityWithdraws(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, stamp)
	p.denied(0, 1, 2)
	p.tick()
	p.denied(0)
	p.failed(AskAcquire, 1, 2)
	p.want("withdraws", p.did.Release == All(3) && p.did.FreshID && !p.c.Queueing && p.c.Rest != 0)
	p.tick()
	p.want("asks without a stamp", p.did.Acquire == All(3) && p.did.Stamped == 0)
	p.failed(AskAcquire, 1)
	p.denied(0)
	p.want("until a quorum answers", p.did.Acquire == 0)
	p.denied(2)
	p.want("then queues again", p.did.Acquire == All(3) && p.did.Stamped == All(3) && p.c.Stamp == stamp)
}

// A give-back would go out under the fresh id and queue that one, where only a minority knows it.
func TestWithdrawingWaiterSendsNoGiveBack(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, stamp)
	p.granted(0, 100)
	p.failed(AskAcquire, 1, 2)
	p.want("withdraws", p.did.Release == All(3) && p.did.FreshID && !p.c.Queueing && p.did.GiveBack == 0)
}

func TestSilentNodeKeepsNoPlace(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, stamp)
	p.denied(0, 1, 2)
	p.tick()
	p.denied(0)
	p.tick() // nodes 1 and 2 do not answer
	p.want("withdraws", p.did.FreshID && p.did.Release == All(3))
}

// The node passes the lock on to a waiter that listens, or its message is lost: the claim would wait for it in vain.
func TestUnheardPlaceDoesNotCount(t *testing.T) {
	t.Parallel()
	p := queued(t, 3)
	p.step(Event{Kind: Audible, Nodes: set(0, 1)})
	p.want("two places", p.c.Queued == set(0, 1))
	p.handed(0, 100)
	p.want("the third node does not say it itself", p.did.Acquire == set(2))
}

func TestQueueingNeedsSubscription(t *testing.T) {
	t.Parallel()
	p := beginHearing(t, 3, stamp, 0)
	p.want("asks without a stamp", p.did.Stamped == 0)
	p.denied(0, 1)
	p.want("subscribes", p.did.Subscribe && p.did.Acquire == 0)
	p.step(Event{Kind: Audible, Nodes: set(0)})
	p.want("a minority is not enough", p.did.Acquire == 0)
	p.step(Event{Kind: Audible, Nodes: set(0, 1)})
	p.want("queues where it hears", p.did.Acquire == All(3) && p.did.Stamped == set(0, 1))
	p.denied(0, 1, 2)
	p.step(Event{Kind: Audible, Nodes: All(3)})
	p.want("and where it has come to hear", p.did.Acquire == set(2) && p.did.Stamped == set(2))
}

// Nodes that come back are heard then, and asked before the timer runs out.
func TestInitialOutageEndsWithSubscription(t *testing.T) {
	t.Parallel()
	p := beginHearing(t, 3, stamp, 0)
	p.granted(0, 100) // which is no quorum
	p.failed(AskAcquire, 1, 2)
	p.want("subscribes", p.did.Subscribe && p.c.Rest != 0)
	p.step(Event{Kind: Audible, Nodes: set(1)})
	p.want("a minority is not enough", p.did.Acquire == 0)
	p.step(Event{Kind: Audible, Nodes: set(1, 2)})
	p.want("asks", p.did.Acquire == All(3) && p.did.Stamped == set(1, 2))
}

func TestUnchangedSubscriptionKeepsTimer(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, stamp)
	p.denied(0, 1, 2)
	rest := p.c.Rest
	p.step(Event{Kind: Audible, Nodes: set(0, 1)})
	p.want("still rests", p.c.Rest == rest && p.c.Alarm() == rest)
}

func TestFallbackSurvivesLostWakeUps(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, stamp)
	p.denied(0, 1, 2)
	if rest := p.c.Rest - p.now; rest < fallbackMost || rest > fallbackMost*9/8+ms {
		t.Errorf("rests %v", time.Duration(rest))
	}
	p.tick()
	p.want("asks everybody", p.did.Acquire == All(3) && p.did.Stamped == All(3))
}

func TestFallbackFollowsTheShortestTimeLeft(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, stamp)
	p.answer(Event{Kind: Denied, Node: 0, Left: 300 * ms, Queued: true})
	p.answer(Event{Kind: Denied, Node: 1, Left: 200 * ms, Queued: true})
	p.answer(Event{Kind: Denied, Node: 2, Left: -1, Queued: true})
	if rest := p.c.Rest - p.now; rest < 200*ms || rest > 200*ms*9/8+ms {
		t.Errorf("rests %v", time.Duration(rest))
	}
}

// A holder that is no client of this protocol wakes nobody when it releases. Asking
// as often as others do, a waiter has the chance that they have.
func TestWaiterPollsForeignHolderOften(t *testing.T) {
	t.Parallel()
	for _, heard := range []Set{All(3), 0} { // queued, and polling
		p := beginHearing(t, 3, stamp, heard)
		for i := range 40 {
			for n := range 3 {
				p.answer(Event{Kind: Denied, Node: n, Left: lease, Queued: heard != 0, Strange: true, Rand: uint32(i) * 2_654_435_761})
				if p.c.Rest != 0 {
					break
				}
			}
			least, most := strangeLeast, 102*ms
			if heard == 0 {
				least = ms // as ever
			}
			if rest := p.c.Rest - p.now; rest < least || rest > most {
				t.Fatalf("heard by %b: rests %v, want %v to %v", heard, time.Duration(rest), time.Duration(least), time.Duration(most))
			}
			for p.tick(); p.did.Acquire == 0; {
				p.tick()
			}
		}
	}
	p := begin(t, 3, stamp)
	p.answer(Event{Kind: Denied, Node: 0, Left: 5 * ms, Queued: true, Strange: true})
	p.answer(Event{Kind: Denied, Node: 1, Left: lease, Queued: true})
	if rest := p.c.Rest - p.now; rest < 5*ms || rest > 7*ms {
		t.Errorf("rests %v, and the lock lapses in 5ms", time.Duration(rest))
	}
}

func TestPollingDoublesUpToASecond(t *testing.T) {
	t.Parallel()
	p := beginHearing(t, 3, stamp, 0)
	most := pollLeast
	for range 12 {
		for n := range 3 {
			p.answer(Event{Kind: Denied, Node: n, Left: lease, Rand: uint32(most - 1)})
			if p.c.Rest != 0 {
				break
			}
		}
		if rest, want := p.c.Rest-p.now, ms+most-1; rest != want {
			t.Fatalf("rests %v, want %v", time.Duration(rest), time.Duration(want))
		}
		most = min(2*most, pollMost)
		for p.tick(); p.did.Acquire == 0; { // the deadline of node 2 comes between
			p.tick()
		}
		p.want("asks without a stamp", p.did.Acquire == All(3) && p.did.Stamped == 0)
	}
}

func TestPollerReleasesPartialGrants(t *testing.T) {
	t.Parallel()
	p := beginHearing(t, 3, stamp, 0)
	p.granted(0, 100)
	p.denied(1, 2)
	p.want("no place to keep", p.did.GiveBack == 0 && p.did.FreshID && p.did.Release == All(3))
}

func TestFailedCommitRoundEndsID(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, stamp)
	p.granted(0, 100)
	p.granted(1, 132)
	p.denied(2)
	p.say(Refused, 0)
	p.want("fresh id", p.did.FreshID && p.did.Release == All(3) && p.did.GiveBack == 0)
}

func TestGivingUpReleasesEverywhere(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, stamp)
	p.granted(0, 100)
	p.step(Event{Kind: Release})
	p.want("released", p.did.Release == All(3) && p.c.Phase == Over)
	p.granted(1, 100)
	p.want("a late grant changes nothing", p.c.Phase == Over && p.did == Actions{})
	p.step(Event{Kind: Woken, Node: 2})
	p.want("a late wake-up is answered with release", p.did.Release == set(2))
}

func TestAnswersToDeadIDAreIgnored(t *testing.T) {
	t.Parallel()
	p := gaveBack(t)
	old := Event{Kind: Granted, Node: 2, Sent: p.now, TTL: lease, Token: 132}
	p.failed(AskGiveBack, 0)
	before := p.c
	p.step(old)
	p.want("nothing happens", p.c == before && p.did == Actions{})
}

// A request that an outage held up for long would otherwise have its claim keep partial grants for half a second each, for
// as long as it waits.
func TestSlowRoundTripIsForgotten(t *testing.T) {
	t.Parallel()
	c := Claim{N: 3, TTL: lease}
	answer := func(trip int64) { c.count(&Event{Kind: Denied, Sent: second, At: second + trip}) }
	answer(15 * second)
	if c.Trip != RequestTimeout(lease) {
		t.Errorf("a request that took 15 s counts as %d ms; none is waited for so long", c.Trip/ms)
	}
	for range 24 { // eight rounds of three nodes
		answer(ms)
	}
	if got := c.trips(); got > 200*ms {
		t.Errorf("a few round trips of a millisecond are %d ms", got/ms)
	}
}
