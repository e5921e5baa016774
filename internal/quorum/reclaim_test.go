package quorum

import "testing"

// superseded is the answer of a node where others had the lock since, up to counter.
func (p *play) superseded(node int, counter int64) {
	p.t.Helper()
	p.answer(Event{Kind: NotMine, Node: node, Token: counter})
}

// kept has the nodes keep the lock, a moment after they were asked.
func (p *play) kept(nodes ...int) {
	p.t.Helper()
	p.now += ms
	p.say(Kept, nodes...)
}

func TestASupersededNodeIsReclaimedOnceAQuorumHasKeptTheLockSince(t *testing.T) {
	t.Parallel()
	p := held(t, 5)
	p.step(Event{Kind: Renew, TTL: lease})
	p.superseded(4, 200)
	p.kept(0, 1)
	p.want("two of five", p.did.Renew|p.did.Reclaim == 0)
	p.kept(2)
	p.wantOutcome(Renewed)
	p.want("the others are asked whether that still holds", p.did.Renew == set(0, 1, 2, 3) && p.did.Reclaim == 0)
	p.kept(0, 1)
	p.want("two of five", p.did.Reclaim == 0)
	p.kept(2)
	p.want("it holds", p.did.Reclaim == set(4) && p.c.Base[4] == 200 && p.did.Outcome == None)
	p.kept(4)
	p.want("it is ours again", p.c.Granted == All(5) && p.did.Reclaim|p.did.Renew == 0)
	p.kept(3)
	p.want("all is well", p.did.Reclaim|p.did.Renew == 0)
}

// What was kept before the node was free may have been another's since.
func TestWhatWasKeptBeforeTheNodeWasFoundFreeAllowsNoReclaim(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	p.step(Event{Kind: Renew, TTL: lease})
	before := p.asked[1]
	p.kept(0, 1)
	p.superseded(2, 200)
	p.want("that may have been before", p.did.Renew == set(0, 1) && p.did.Reclaim == 0)
	p.kept(0)
	p.step(Event{Kind: Kept, Node: 1, Sent: before.at, TTL: lease, ID: p.c.ID})
	p.want("so was this", p.did.Reclaim == 0)
	p.kept(1)
	p.want("this was sent since", p.did.Reclaim == set(2))
}

// The holder would go on, while its locks are released, until it renews.
func TestALossIsToldToWhoRenewsAndNothingIsReleasedBefore(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	p.step(Event{Kind: Renew, TTL: lease})
	p.superseded(2, 200)
	p.kept(0, 1)
	p.wantOutcome(Renewed)
	p.want("another round, which nobody awaits", p.did.Renew == set(0, 1))
	p.say(NotMine, 1)
	p.want("nobody is told, and nothing is done", p.did.Outcome == None && p.did.Release == 0 && p.c.Phase == Held)
	p.step(Event{Kind: Renew, TTL: lease})
	p.say(NotMine, 1, 2)
	p.wantOutcome(Lost)
	p.want("it is released", p.did.Release == All(3))
}

func TestANodeThatStillIsAsItWasFoundIsReclaimedInTheNextRound(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	p.step(Event{Kind: Renew, TTL: lease})
	p.superseded(2, 200)
	p.kept(0)
	p.step(Event{Kind: Renew, TTL: lease})
	p.superseded(2, 200)
	p.kept(0, 1)
	p.want("nobody has had it since", p.did.Reclaim == set(2))
}

func TestANodeThatOthersHadSinceIsFoundFreeAnew(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	p.step(Event{Kind: Renew, TTL: lease})
	p.superseded(2, 200)
	p.kept(0)
	p.step(Event{Kind: Renew, TTL: lease})
	p.superseded(2, 232)
	p.kept(0, 1)
	p.want("who had it may have been granted the lock", p.did.Reclaim == 0 && p.did.Renew == set(0, 1))
	p.kept(0, 1)
	p.want("no", p.did.Reclaim == set(2) && p.c.Base[2] == 232)
}

func TestNothingIsReclaimedAfterTheEndOfTrust(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	p.step(Event{Kind: Renew, TTL: lease})
	p.superseded(2, 200)
	p.say(Kept, 0)
	p.now = p.c.Trusted()
	p.say(Kept, 1)
	p.wantOutcome(Lost)
	p.want("nothing but the release", p.did.Reclaim == 0 && p.did.Release == All(3))
}

func TestAReclaimedNodeCountsFromTheSendOfTheReclaim(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	p.now += second
	p.step(Event{Kind: Renew, TTL: lease})
	p.now += second
	p.superseded(2, 200)
	p.kept(0, 1)
	trust := p.c.Trusted()
	p.kept(0, 1)
	p.want("reclaims", p.did.Reclaim == set(2))
	sent := p.now
	p.now += second
	p.say(Kept, 2)
	p.want("until", p.c.Until[2] == sent+lease-Drift(lease))
	p.want("trust is that of the second round", p.c.Trusted() > trust && p.c.Trusted() < sent+lease-Drift(lease))
}

// A rival may have a partial grant there, which it is about to give back.
func TestATakenNodeIsAskedAgainAFewTimes(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	for range 2 {
		p.step(Event{Kind: Renew, TTL: lease})
		p.say(NotMine, 2)
		p.want("not before a quorum has kept the lock", p.did.Renew == 0)
		p.say(Kept, 0, 1)
		for range againMost {
			p.want("asked again", p.did.Renew == set(2))
			p.say(NotMine, 2)
		}
		p.want("not for ever", p.did.Renew == 0)
	}
	p.step(Event{Kind: Renew, TTL: lease})
	p.kept(0, 1)
	p.say(NotMine, 2)
	p.superseded(2, 264)
	p.want("given back", p.did.Renew == set(0, 1))
	p.kept(0, 1)
	p.want("…", p.did.Reclaim == set(2))
	p.say(NotMine, 2)
	p.want("and taken by the next: asked again", p.did.Renew == set(2))
}

func TestAMajorityOfSupersededIsALoss(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	p.step(Event{Kind: Renew, TTL: lease})
	p.say(Kept, 0)
	p.superseded(1, 200)
	p.superseded(2, 200)
	p.wantOutcome(Lost)
	p.want("nothing is reclaimed", p.did.Reclaim == 0)
}

func TestALeaseIsAtRiskWhenARoundHasFoundAQuorumAndNoMore(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	round := func(kept ...int) bool {
		p.t.Helper()
		p.step(Event{Kind: Renew, TTL: lease})
		p.say(Kept, kept...)
		p.now += second
		return p.c.AtRisk
	}
	for i, tt := range []struct {
		kept   []int
		before bool
	}{
		{[]int{0, 1}, false},
		{[]int{0, 1, 2}, true},
		{[]int{0, 2}, false},
		{[]int{2}, true},
		{[]int{0, 1, 2}, true},
		{nil, false},
	} {
		if got := round(tt.kept...); got != tt.before {
			t.Errorf("round %d says of the one before: at risk %v", i, got)
		}
	}
}

func TestARoundThatIsNotOverSaysNothingOfTheRisk(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	p.step(Event{Kind: Renew, TTL: lease})
	p.say(Kept, 0, 1)
	p.step(Event{Kind: Renew, TTL: lease})
	p.want("the third may still answer", !p.c.AtRisk)
	p.say(Kept, 0, 1)
	p.failed(AskRenew, 2)
	p.step(Event{Kind: Renew, TTL: lease})
	p.want("it has failed", p.c.AtRisk)
	p.superseded(2, 200)
	p.kept(0, 1)
	p.kept(0, 1)
	p.want("reclaims", p.did.Reclaim == set(2))
	p.step(Event{Kind: Renew, TTL: lease})
	p.say(Kept, 0, 1, 2)
	p.want("a reclaim is under way", p.c.AtRisk)
	p.step(Event{Kind: Renew, TTL: lease})
	p.want("three", !p.c.AtRisk)
}

func TestWithNothingToSpareNoLeaseIsAtRisk(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 2; n++ {
		p := held(t, n)
		for range 3 {
			p.step(Event{Kind: Renew, TTL: lease})
			p.say(Kept, []int{0, 1}[:n]...)
			p.now += second
		}
		p.want("as good as it gets", !p.c.AtRisk)
	}
}
