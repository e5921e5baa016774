package quorum

import (
	"testing"
	"time"
)

const (
	second = int64(time.Second)
	lease  = 10 * second
	stamp  = int64(42)
)

// play brings events to one claim and remembers when each node was last asked.
type play struct {
	t     *testing.T
	c     Claim
	now   int64
	did   Actions // by the last event
	asked [MaxNodes]struct {
		at, ttl int64
		id      uint32
		epoch   uint8
	}
}

// begin starts a claim over n nodes; it waits if place is not 0, and hears all nodes.
func begin(t *testing.T, n int, place int64) *play {
	t.Helper()
	return beginHearing(t, n, place, All(n))
}

func beginHearing(t *testing.T, n int, place int64, heard Set) *play {
	t.Helper()
	p := &play{t: t, now: second, c: Claim{N: int8(n), TTL: lease, Stamp: place}}
	p.step(Event{Kind: Start, Nodes: heard})
	p.want("start", p.did.Acquire == All(n))
	return p
}

// held is a claim over n nodes that won with token 100 at once.
func held(t *testing.T, n int) *play {
	t.Helper()
	p := begin(t, n, 0)
	for node := range n {
		p.granted(node, 100)
	}
	p.want("held", p.c.Phase == Held && p.c.Token == 100)
	return p
}

func (p *play) step(e Event) {
	p.t.Helper()
	e.At = p.now
	p.c, p.did = Step(p.c, e)
	for n := range (p.did.Acquire | p.did.Renew).Nodes {
		a := &p.asked[n]
		a.at, a.ttl, a.id, a.epoch = p.now, p.c.TTL, p.c.ID, p.c.Epoch[n]
	}
	if alarm := p.c.Alarm(); e.Kind == Tick && alarm != 0 && alarm <= p.now {
		p.t.Fatalf("wants a tick for ever: %+v", p.c)
	}
	if w := p.did.Acquire & p.did.GiveBack; w != 0 {
		p.t.Fatalf("asks and gives back at once on %b", w)
	}
}

// answer completes an answer to what node was asked last.
func (p *play) answer(e Event) {
	p.t.Helper()
	a := p.asked[e.Node]
	e.Sent, e.TTL, e.ID, e.Epoch = a.at, a.ttl, a.id, a.epoch
	if e.Kind == Freed || e.Of >= AskRelease {
		e.Epoch = p.c.Epoch[e.Node]
	}
	p.step(e)
}

func (p *play) granted(node int, base int64) {
	p.t.Helper()
	p.answer(Event{Kind: Granted, Node: node, Token: base})
}

func (p *play) denied(nodes ...int) {
	p.t.Helper()
	for _, n := range nodes {
		p.answer(Event{Kind: Denied, Node: n, Left: lease, Queued: p.c.Queueing && p.c.Heard.Has(n)})
	}
}

func (p *play) failed(of Request, nodes ...int) {
	p.t.Helper()
	for _, n := range nodes {
		p.answer(Event{Kind: Failed, Of: of, Node: n})
	}
}

func (p *play) say(kind Kind, nodes ...int) {
	p.t.Helper()
	for _, n := range nodes {
		p.answer(Event{Kind: kind, Node: n})
	}
}

func (p *play) tick() {
	p.t.Helper()
	if p.now = p.c.Alarm(); p.now == 0 {
		p.t.Fatal("the claim waits for nothing")
	}
	p.step(Event{Kind: Tick})
}

func (p *play) want(what string, ok bool) {
	p.t.Helper()
	if !ok {
		p.t.Fatalf("%s: did %+v\nclaim %+v", what, p.did, p.c)
	}
}

func (p *play) wantOutcome(o Outcome) {
	p.t.Helper()
	if p.did.Outcome != o {
		p.t.Fatalf("outcome %d, want %d: did %+v\nclaim %+v", p.did.Outcome, o, p.did, p.c)
	}
}

func set(nodes ...int) Set {
	var s Set
	for _, n := range nodes {
		s |= Only(n)
	}
	return s
}

// Taking the lock

func TestSharedBaseCommitsInOneRound(t *testing.T) {
	t.Parallel()
	for n := 1; n <= MaxNodes; n++ {
		p := begin(t, n, 0)
		for i := range Majority(n) {
			p.wantOutcome(None)
			p.granted(i, 100)
		}
		p.wantOutcome(Won)
		p.want("no second round", p.c.Token == 100 && p.did.Commit == 0)
	}
}

func TestDifferentBasesCommitTheHighest(t *testing.T) {
	t.Parallel()
	p := begin(t, 5, 0)
	p.granted(0, 100)
	p.granted(1, 132)
	p.want("no quorum yet", p.c.Token == 0)
	p.granted(2, 100)
	p.wantOutcome(None)
	p.want("commit where the base is lower", p.c.Token == 132 && p.did.Commit == set(0, 2))
	p.say(Accepted, 0)
	p.wantOutcome(None)
	p.say(Accepted, 2)
	p.wantOutcome(Won)
}

func TestTokenIsFixedOnceAQuorumGranted(t *testing.T) {
	t.Parallel()
	p := begin(t, 5, 0)
	p.granted(0, 100)
	p.granted(1, 132)
	p.granted(2, 100)
	p.granted(3, 164)
	p.want("a higher base does not count", p.c.Token == 132 && p.did.Commit == 0 && !p.c.Agreed.Has(3))
	p.granted(4, 101)
	p.want("a lower one is committed too", p.did.Commit == set(4))
	p.say(Accepted, 4)
	p.say(Accepted, 2)
	p.wantOutcome(Won)
}

func TestRefusedCommitDoesNotCount(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, 0)
	p.granted(0, 100)
	p.granted(1, 132)
	p.denied(2)
	p.wantOutcome(None)
	p.say(Refused, 0)
	p.wantOutcome(Busy)
	p.want("everything is released", p.did.Release == All(3))
}

// The lock lapses on a node a TTL after the request reached it, and that was
// not before it was sent.
func TestValidityCountsFromTheQuorumthLatestSend(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, stamp)
	p.denied(0, 1, 2)
	first := p.now
	p.step(Event{Kind: Woken, Node: 0})
	p.now += 3 * ms
	p.granted(0, 100)
	p.now += 2 * ms
	late := p.now
	p.step(Event{Kind: Woken, Node: 1})
	p.granted(1, 100)
	p.wantOutcome(Won)
	if got, want := p.c.Trusted(), first+lease-Drift(lease); got != want {
		t.Fatalf("trusted until %d, want %d", got, want)
	}
	p.step(Event{Kind: Granted, Node: 2, Sent: late, TTL: lease, Token: 100})
	if got, want := p.c.Trusted(), late+lease-Drift(lease); got != want {
		t.Fatalf("with a late grant trusted until %d, want %d", got, want)
	}
}

func TestValidityIsTestedAfterTheLastReply(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, 0)
	p.granted(0, 100)
	p.now += lease - Drift(lease)
	p.granted(1, 100)
	p.wantOutcome(Unavailable)
	p.want("everything is released", p.c.Phase == Over && p.did.Release == All(3))

	p = begin(t, 3, 0)
	p.granted(0, 100)
	p.now += lease - Drift(lease) - 1
	p.granted(1, 100)
	p.wantOutcome(Won)
}

func TestTooLateAQuorumMakesAWaiterBeginAnew(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, stamp)
	p.granted(0, 100)
	p.now += lease
	p.granted(1, 100)
	p.wantOutcome(None)
	p.want("under a fresh id", p.did.FreshID && p.did.Release == All(3) && p.c.Stamp == stamp && p.c.Rest > p.now)
}

func TestLateGrantsAreKeptAsRedundancy(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, 0)
	p.granted(0, 100)
	p.granted(1, 100)
	p.wantOutcome(Won)
	p.granted(2, 68)
	p.want("brought to the token", p.c.Granted == All(3) && p.did.Commit == set(2) && p.did.Release == 0)
	p.say(Accepted, 2)
	p.wantOutcome(None)
}

// Busy and Unavailable

func TestBusyNeedsAQuorumOfAnswers(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		denied, granted, failed []int
		want                    Outcome
	}{
		"all denied":                {denied: []int{0, 1, 2}, want: Busy},
		"two denied":                {denied: []int{0, 1}, want: Busy},
		"two denied, one down":      {denied: []int{0, 1}, failed: []int{2}, want: Busy},
		"split":                     {granted: []int{0}, denied: []int{1, 2}, want: Busy},
		"split, one down":           {granted: []int{0}, denied: []int{1}, failed: []int{2}, want: Busy},
		"one denied, two down":      {denied: []int{0}, failed: []int{1, 2}, want: Unavailable},
		"one granted, two down":     {granted: []int{0}, failed: []int{1, 2}, want: Unavailable},
		"all down":                  {failed: []int{0, 1, 2}, want: Unavailable},
		"two down, nothing else":    {failed: []int{0, 1}, want: Unavailable},
		"one denied, one down, ...": {denied: []int{0}, failed: []int{1}, want: None},
	} {
		p := begin(t, 3, 0)
		got := None
		note := func() {
			if p.did.Outcome != None && got == None {
				got = p.did.Outcome
			}
		}
		for _, n := range tt.failed {
			p.failed(AskAcquire, n)
			note()
		}
		for _, n := range tt.granted {
			p.granted(n, 100)
			note()
		}
		for _, n := range tt.denied {
			p.denied(n)
			note()
		}
		if got != tt.want {
			t.Errorf("%s: outcome %d, want %d", name, got, tt.want)
		}
	}
}

func TestSilenceUntilTheDeadlineIsUnavailable(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, 0)
	p.denied(0)
	p.tick()
	p.wantOutcome(Unavailable)
	if got := p.now - second; got != RequestTimeout(lease) {
		t.Errorf("gave up after %v", time.Duration(got))
	}
}

func TestAWaiterThatReachesNoQuorumIsToldSo(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, stamp)
	p.denied(0)
	p.failed(AskAcquire, 1, 2)
	p.wantOutcome(Unavailable)
}

func TestAWaiterOutlastsAnOutage(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, stamp)
	p.denied(0, 1, 2)
	p.tick()
	p.failed(AskAcquire, 0, 1, 2)
	p.wantOutcome(None)
	p.want("it goes on asking", p.c.Phase == Seeking && p.c.Alarm() != 0)
}

func TestErrorsThatStayAreNotWaitedOut(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, stamp)
	p.denied(0, 1, 2)
	p.tick()
	for n := range 2 {
		p.answer(Event{Kind: Failed, Of: AskAcquire, Node: n, Fatal: true})
	}
	p.wantOutcome(Unavailable)
}

func TestUnsentRequestsNeedNoRelease(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, 0)
	p.granted(0, 100)
	p.answer(Event{Kind: Failed, Of: AskAcquire, Node: 1, Unsent: true})
	p.failed(AskAcquire, 2)
	p.wantOutcome(Unavailable)
	p.want("node 1 cannot know the id", p.did.Release == set(0, 2))
	p.say(Freed, 0)
	p.wantOutcome(Released) // with node 1, where there is nothing to free
}

func TestOneRequestOfManyUnsentStillNeedsARelease(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, stamp)
	p.denied(0, 1)
	p.tick() // node 2 was silent, and is asked again
	p.want("asked again", p.did.Acquire == All(3))
	p.answer(Event{Kind: Failed, Of: AskAcquire, Node: 2, Unsent: true})
	p.step(Event{Kind: Release})
	p.want("the first request may have been executed", p.did.Release == All(3))
}

// Waiting

func TestPartialGrantsGoBackAndThePlaceIsKept(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, stamp)
	p.want("asked with the stamp", p.did.Stamped == All(3))
	p.granted(0, 100)
	p.denied(1, 2)
	p.want("given back, not released", p.did.GiveBack == set(0) && p.did.Release == 0 && p.c.ID == 0)
	p.want("the place counts", p.c.Queued == All(3) && p.c.Rest > p.now)
}

func TestGrantsOfBeforeAGiveBackDoNotCount(t *testing.T) {
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
func TestUnansweredGiveBackEndsTheID(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, stamp)
	p.granted(0, 100)
	p.denied(1, 2)
	p.failed(AskGiveBack, 0)
	p.want("released everywhere, asked under a fresh id",
		p.did.FreshID && p.did.Release == All(3) && p.did.Acquire == All(3) && p.c.ID == 1)
	p.want("same place", p.c.Stamp == stamp && p.did.Stamped == All(3))
}

// The failure of the old connection may be noticed after an answer over the new one.
func TestGrantThatOvertakesAGiveBackEndsTheID(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, stamp)
	p.granted(0, 100)
	p.denied(1, 2)
	p.step(Event{Kind: Woken, Node: 1})
	p.granted(1, 132)
	p.granted(0, 132)
	p.want("not counted", p.did.FreshID && p.did.Release == All(3) && p.c.Phase == Seeking)
}

func TestANodeThatOwesAGiveBackIsNoRedundancy(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, stamp)
	p.granted(0, 100)
	p.denied(1, 2)
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

func TestAWakeUpAsksEveryNode(t *testing.T) {
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
	p.c.Brief = true
	for node := range n {
		p.denied(node)
	}
	p.want("queued", p.c.Queued == All(n))
	return p
}

// handed is a wake-up that tells of a token.
func (p *play) handed(node int, base int64) {
	p.t.Helper()
	p.step(Event{Kind: Woken, Node: node, ID: p.c.ID, Token: base, TTL: second})
}

func TestAWakeUpWithATokenIsAGrant(t *testing.T) {
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

// The last holder had a longer TTL. An acquire that was out when it handed over gives
// the lock this claim's, and its answer may be behind the wake-up.
func TestAHandOverIsTrustedForNoMoreThanTheOwnTTL(t *testing.T) {
	t.Parallel()
	p := queued(t, 1)
	p.c.TTL = 200 * ms
	asked := p.now
	p.now += 50 * ms
	p.handed(0, 100)
	p.wantOutcome(Won)
	if got, want := p.c.Trusted(), asked+200*ms-Drift(200*ms); got != want {
		t.Errorf("trusted until %d, want %d", got, want)
	}
}

// A lease that ends before it can be renewed is none.
func TestAHandOverWithLittleLeftIsConfirmedFirst(t *testing.T) {
	t.Parallel()
	p := queued(t, 3)
	p.now += 450 * ms
	p.handed(0, 100)
	p.now += 400 * ms
	p.step(Event{Kind: Woken, Node: 1, ID: p.c.ID})
	p.granted(1, 100)
	p.want("asks again who told", p.c.Phase == Seeking && p.did.Acquire == set(0))
	p.granted(0, 100)
	p.wantOutcome(Won)
	p.want("for the whole TTL", p.c.Trusted() == p.now+lease-Drift(lease))
}

func TestAHandOverThatIsNotConfirmedDoesNotCount(t *testing.T) {
	t.Parallel()
	for name, silent := range map[string]func(p *play){
		"a failure": func(p *play) { p.failed(AskAcquire, 0) },
		"silence":   func(p *play) { p.now = p.c.AskBy[0]; p.step(Event{Kind: Tick}) },
	} {
		p := queued(t, 3)
		p.now += 450 * ms
		p.handed(0, 100)
		p.now += 400 * ms
		p.handed(1, 100)
		p.granted(1, 100)
		p.want("asks again who told", p.c.Asked.Has(0))
		silent(p)
		if p.c.Granted.Has(0) || p.c.Phase != Seeking || p.did.Acquire.Has(0) {
			t.Errorf("%s: did %+v, claim %+v", name, p.did, p.c)
		}
	}
}

func TestAHandOverThatComesToNothingLeavesTheTimer(t *testing.T) {
	t.Parallel()
	p := queued(t, 3)
	timer := p.c.Rest
	p.handed(0, 100)
	p.want("the timer still runs", p.c.Rest == timer)
	p.tick()
	p.want("given back", p.did.GiveBack == set(0) && p.c.Rest == timer)
}

func TestATimerThatFindsNothingToAskIsOver(t *testing.T) {
	t.Parallel()
	p := queued(t, 2)
	p.now += 450 * ms
	p.handed(0, 100)
	p.now += 400 * ms
	p.step(Event{Kind: Woken, Node: 1, ID: p.c.ID})
	p.granted(1, 100)
	p.c.Rest, p.c.Patience = p.now+1, 0
	p.tick()
	p.want("all have granted", p.c.Granted == set(0, 1) && p.c.Rest == 0)
}

func TestALateHandOverOfALowerBaseIsCommitted(t *testing.T) {
	t.Parallel()
	p := queued(t, 3)
	p.handed(0, 132)
	p.handed(1, 132)
	p.wantOutcome(Won)
	p.handed(2, 100)
	p.want("or its node would deny the token", p.did.Commit == set(2))
}

func TestANodeThatGrantsAnewHasToAgreeAnew(t *testing.T) {
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

func TestAHandOverOfDifferentBasesIsCommitted(t *testing.T) {
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
func TestAHandOverIsAskedAfterWhereItMayBeOver(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(p *play){
		"the last answer is old":       func(p *play) { p.now += second/2 - Drift(second) + 1 },
		"whoever holds does not renew": func(p *play) { p.c.Brief = false },
		"no token was told":            nil,
		"a give-back is open": func(p *play) {
			p.step(Event{Kind: Woken, Node: 0, ID: p.c.ID})
			p.granted(0, 100)
			p.denied(1, 2)
			p.tick()
			p.want("given back", p.did.GiveBack == set(0))
		},
		"round trips are slow":     func(p *play) { p.c.Trip = second / 8 },
		"nothing was answered yet": func(p *play) { p.c.Heeded = [MaxNodes]int64{} },
	} {
		p := queued(t, 3)
		if prepare == nil {
			p.step(Event{Kind: Woken, Node: 0, ID: p.c.ID, TTL: second})
		} else {
			prepare(p)
			p.handed(0, 132)
		}
		if p.c.Granted != 0 || !p.did.Acquire.Has(0) {
			t.Errorf("%s: granted by %b, asks %b", name, p.c.Granted, p.did.Acquire)
		}
	}
}

func TestAWakeUpForADeadIDIsVoid(t *testing.T) {
	t.Parallel()
	p := queued(t, 3)
	p.failed(AskGiveBack, 0)
	p.want("under a fresh id", p.did.FreshID)
	before := p.c
	p.step(Event{Kind: Woken, Node: 1, ID: 0, Token: 100, TTL: second})
	p.want("nothing has changed", p.c == before && p.did == Actions{})
}

// Where this claim left the lock to nobody, no release will wake it.
func TestAHandOverAsksWhereTheLockWasGivenBack(t *testing.T) {
	t.Parallel()
	p := begin(t, 5, stamp)
	p.c.Brief = true
	p.granted(0, 100)
	p.denied(1, 2, 3)
	p.want("given back", p.did.GiveBack == set(0))
	p.failed(AskAcquire, 4)
	p.say(Freed, 0)
	p.handed(1, 100)
	p.want("there, and where it has no place", p.did.Acquire == set(0, 4))
}

func TestAHandOverIsGivenAFewRoundTrips(t *testing.T) {
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
func TestPartialGrantsAreNotKeptForASilentNode(t *testing.T) {
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
func TestAHandOverOutlastsSlowNodes(t *testing.T) {
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

func TestAWaiterKnownToAMinorityWithdraws(t *testing.T) {
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

func TestASilentQueueIsNoPlace(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, stamp)
	p.denied(0, 1, 2)
	p.tick()
	p.denied(0)
	p.tick() // nodes 1 and 2 do not answer
	p.want("withdraws", p.did.FreshID && p.did.Release == All(3))
}

func TestNobodyQueuesBeforeItHears(t *testing.T) {
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

// The denial that ends the round need not be the one that makes a quorum.
func TestAPollerSubscribesOnceAQuorumHasAnswered(t *testing.T) {
	t.Parallel()
	p := beginHearing(t, 2, stamp, 0)
	p.denied(0)
	p.want("rests", !p.did.Subscribe && p.c.Rest != 0)
	p.denied(1)
	p.want("subscribes", p.did.Subscribe)
}

func TestNewsOfHearingNothingNewKeepTheTimer(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, stamp)
	p.denied(0, 1, 2)
	rest := p.c.Rest
	p.step(Event{Kind: Audible, Nodes: set(0, 1)})
	p.want("still rests", p.c.Rest == rest && p.c.Alarm() == rest)
}

func TestLostWakeUpsAreSurvivedByTheFallback(t *testing.T) {
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

func TestAPollerReleasesPartialGrantsForGood(t *testing.T) {
	t.Parallel()
	p := beginHearing(t, 3, stamp, 0)
	p.granted(0, 100)
	p.denied(1, 2)
	p.want("no place to keep", p.did.GiveBack == 0 && p.did.FreshID && p.did.Release == All(3))
}

func TestACommittedRoundThatFailsEndsTheID(t *testing.T) {
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

func TestAnswersToADeadIDAreVoid(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, stamp)
	p.granted(0, 100)
	p.denied(1, 2)
	old := Event{Kind: Granted, Node: 2, Sent: p.now, TTL: lease, Token: 132}
	p.failed(AskGiveBack, 0)
	before := p.c
	p.step(old)
	p.want("nothing happens", p.c == before && p.did == Actions{})
}

// Keeping the lock

func TestRenewalNeedsAQuorum(t *testing.T) {
	t.Parallel()
	p := held(t, 5)
	p.now += lease / 3
	p.step(Event{Kind: Renew, TTL: lease})
	p.want("all are asked", p.did.Renew == All(5))
	p.say(Kept, 0, 1)
	p.wantOutcome(None)
	p.say(Kept, 2)
	p.wantOutcome(Renewed)
	if want := second + lease/3 + lease - Drift(lease); p.c.Trusted() != want {
		t.Errorf("trusted until %d, want %d", p.c.Trusted(), want)
	}
	p.say(Kept, 3)
	p.wantOutcome(None)
}

func TestSlowRenewalDoesNotExtendTrust(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	p.step(Event{Kind: Renew, TTL: lease})
	sent := p.now
	p.now += lease / 2
	p.say(Kept, 0, 1)
	p.wantOutcome(Renewed)
	if want := sent + lease - Drift(lease); p.c.Trusted() != want {
		t.Errorf("trusted until %d, want %d: it counts from the send", p.c.Trusted(), want)
	}
}

func TestRenewalAfterTheEndOfTrustIsALoss(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	p.now = p.c.Trusted() - 1
	p.step(Event{Kind: Renew, TTL: lease})
	p.say(Kept, 0)
	p.now++
	p.say(Kept, 1)
	p.wantOutcome(Lost)
	p.want("released once everywhere", p.did.Release == All(3) && p.c.Phase == Over)
}

func TestAFailedRenewalLeavesTheOldTrust(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	trust := p.c.Trusted()
	p.now += lease / 3
	p.step(Event{Kind: Renew, TTL: lease})
	p.say(Kept, 0)
	p.failed(AskRenew, 1)
	p.wantOutcome(None)
	p.failed(AskRenew, 2)
	p.wantOutcome(NotRenewed)
	p.want("old trust", p.c.Trusted() == trust && p.c.Phase == Held)
}

func TestATickEndsARoundOfRenewals(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	p.step(Event{Kind: Renew, TTL: lease})
	p.say(Kept, 0)
	p.step(Event{Kind: Tick})
	p.wantOutcome(NotRenewed)
}

func TestShorterTTLShortensTrustAtOnce(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	p.step(Event{Kind: Renew, TTL: second})
	if want := p.now + second - Drift(second); p.c.Trusted() != want {
		t.Fatalf("trusted until %d, want %d", p.c.Trusted(), want)
	}
	p.step(Event{Kind: Kept, Node: 2, Sent: p.now, TTL: lease}) // of the round before
	if want := p.now + second - Drift(second); p.c.Trusted() != want {
		t.Fatalf("after an old answer trusted until %d, want %d", p.c.Trusted(), want)
	}
}

// The node may have executed the renewal with the short TTL since.
func TestAnswersOfBeforeAChangeOfTTLDoNotExtendTrust(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	p.step(Event{Kind: Renew, TTL: lease})
	old := Event{Kind: Kept, Sent: p.now, TTL: lease}
	p.now += ms
	p.step(Event{Kind: Renew, TTL: second})
	trust := p.c.Trusted()
	p.now += ms
	p.step(Event{Kind: Renew, TTL: lease})
	for n := range 3 {
		old.Node = n
		p.step(old)
	}
	if p.c.Trusted() != trust {
		t.Fatalf("trusted until %d, want %d", p.c.Trusted(), trust)
	}
}

func TestAMajorityOfNotMineIsALoss(t *testing.T) {
	t.Parallel()
	p := held(t, 5)
	p.step(Event{Kind: Renew, TTL: lease})
	p.say(NotMine, 0, 1)
	p.wantOutcome(None)
	p.say(NotMine, 2)
	p.wantOutcome(Lost)
	p.want("released once everywhere", p.did.Release == All(5) && p.c.Phase == Over)
}

func TestNotMineCountsForItsRoundOnly(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	p.step(Event{Kind: Renew, TTL: lease})
	p.say(NotMine, 0)
	p.say(Kept, 1, 2)
	p.wantOutcome(Renewed)
	p.step(Event{Kind: Renew, TTL: lease})
	p.say(NotMine, 1)
	p.wantOutcome(None)
	p.say(Kept, 0, 2)
	p.wantOutcome(Renewed)
}

func TestARenewalRegainsANodeThatForgot(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, 0)
	p.granted(0, 100)
	p.granted(1, 100)
	p.failed(AskAcquire, 2)
	p.step(Event{Kind: Renew, TTL: lease})
	p.say(Kept, 0, 1, 2)
	p.want("three nodes", p.c.Granted == All(3))
}

func TestAWakeUpForALiveLeaseRenewsThatNode(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, stamp)
	p.granted(0, 100)
	p.granted(1, 100)
	p.wantOutcome(Won)
	p.step(Event{Kind: Woken, Node: 2})
	p.want("renewed there", p.did.Renew == set(2) && p.did.Acquire == 0)
	p.say(Kept, 2)
	p.want("redundancy", p.c.Granted == All(3) && p.did.Outcome == None)
}

// Giving it up

func TestReleaseIsDoneWhenAQuorumAnswered(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	p.step(Event{Kind: Release})
	p.want("all nodes", p.did.Release == All(3))
	p.say(Freed, 0)
	p.wantOutcome(None)
	p.say(Freed, 2)
	p.wantOutcome(Released)
	p.say(Freed, 1)
	p.wantOutcome(None)
}

func TestUnansweredReleaseIsReported(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	p.step(Event{Kind: Release})
	p.say(Freed, 0)
	p.step(Event{Kind: Tick})
	p.wantOutcome(None) // an early tick means nothing
	p.tick()
	p.wantOutcome(NotReleased)
}

func TestAClaimIsComparable(t *testing.T) {
	t.Parallel()
	seen := map[Claim]bool{}
	p := begin(t, 3, stamp)
	seen[p.c] = true
	before := p.c
	p.denied(0)
	if p.c == before || !seen[before] || seen[p.c] {
		t.Fatal("a copy of a claim changed with it")
	}
}
