package quorum

import "testing"

// kept has the nodes keep the lock, a moment after they were asked.
func (p *play) kept(nodes ...int) {
	p.t.Helper()
	p.now += ms
	p.say(Kept, nodes...)
}

// Until then another may have a quorum, and the node be one of it.
func TestNodeIsRegainedOnlyAfterQuorumKept(t *testing.T) {
	t.Parallel()
	p := held(t, 5)
	p.step(Event{Kind: Renew, TTL: lease})
	p.want("nobody sets a free lock again", p.did.Renew == All(5) && p.did.Anew == 0)
	p.say(NotMine, 4)
	p.want("none has kept it", p.did.Renew == 0)
	p.kept(0)
	p.kept(1)
	p.want("two of five", p.did.Renew == 0)
	p.kept(2)
	p.wantOutcome(Renewed)
	p.want("the other is asked anew", p.did.Renew == set(4) && p.did.Anew == set(4))
	p.kept(4)
	p.want("it is ours again", p.c.Granted == All(5) && p.did.Renew == 0)
	p.kept(3)
	p.want("all is well", p.did.Renew == 0 && p.c.Kept == All(5))
}

func TestLateAnswerAfterQuorumRegainsNode(t *testing.T) {
	t.Parallel()
	p := held(t, 5)
	p.step(Event{Kind: Renew, TTL: lease})
	p.kept(0, 1, 2)
	p.want("no need", p.did.Renew == 0)
	p.say(NotMine, 3)
	p.want("the first", p.did.Renew == set(3) && p.did.Anew == set(3))
	p.say(NotMine, 4)
	p.want("the second", p.did.Renew == set(4) && p.did.Anew == set(4))
	p.kept(3, 4)
	p.want("all have it", p.c.Granted == All(5))
}

// What was kept by a request of an earlier round may have been another's since.
func TestEarlierRoundRegainsNoNode(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	p.step(Event{Kind: Renew, TTL: lease})
	before := p.now
	p.now += ms
	p.step(Event{Kind: Renew, TTL: lease})
	p.say(NotMine, 2)
	for n := range 2 {
		p.step(Event{Kind: Kept, Node: n, Sent: before, TTL: lease, ID: p.c.ID})
	}
	p.want("those are of the round before", p.did.Renew == 0 && p.c.Kept == 0)
	p.kept(0)
	p.want("one", p.did.Renew == 0)
	p.kept(1)
	p.want("a quorum", p.did.Anew == set(2))
}

// There is no quorum besides: what the one node has forgotten, another may have had.
func TestLockForgottenByOnlyNodeIsLost(t *testing.T) {
	t.Parallel()
	p := held(t, 1)
	p.step(Event{Kind: Renew, TTL: lease})
	p.say(NotMine, 0)
	p.wantOutcome(Lost)
	p.want("nothing but the release", p.did.Renew == 0 && p.did.Release == All(1))
}

// A node that has kept the lock and is found without it in the same round is none of the quorum.
func TestNodeThatForgetsInRoundDoesNotCount(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	p.step(Event{Kind: Renew, TTL: lease})
	p.kept(0)
	p.say(NotMine, 0)
	p.say(NotMine, 1)
	p.wantOutcome(Lost)
	p.want("nothing but the release", p.did.Renew == 0)
}

func TestNothingIsRegainedAfterTrustEnds(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	p.step(Event{Kind: Renew, TTL: lease})
	p.say(NotMine, 2)
	p.say(Kept, 0)
	p.now = p.c.Trusted()
	p.say(Kept, 1)
	p.wantOutcome(Lost)
	p.want("nothing but the release", p.did.Renew == 0 && p.did.Release == All(3))
}

func TestRegainedNodeCountsFromLaterRequest(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	p.now += second
	p.step(Event{Kind: Renew, TTL: lease})
	p.now += second
	p.say(NotMine, 2)
	p.kept(0, 1)
	p.want("asks anew", p.did.Anew == set(2))
	trust, sent := p.c.Trusted(), p.now
	p.now += second
	p.say(Kept, 2)
	p.want("until", p.c.Until[2] == sent+lease-Drift(lease))
	p.want("trust is that of the other two", p.c.Trusted() == trust)
}

// A rival may have a partial grant there, which it is about to give back.
func TestRegainIsTriedFewTimes(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	for range 2 {
		p.step(Event{Kind: Renew, TTL: lease})
		p.say(NotMine, 2)
		p.want("not before a quorum has kept the lock", p.did.Renew == 0)
		p.say(Kept, 0, 1)
		for range againMost {
			p.want("asked again", p.did.Renew == set(2) && p.did.Anew == set(2))
			p.say(NotMine, 2)
		}
		p.want("not for ever", p.did.Renew == 0)
	}
	p.step(Event{Kind: Renew, TTL: lease})
	p.say(NotMine, 2)
	p.kept(0, 1)
	p.kept(2)
	p.want("given back", p.c.Granted == All(3) && p.did.Renew == 0)
}

// The holder would go on, while its locks are released, until it renews.
func TestLossIsReportedBeforeRelease(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	p.step(Event{Kind: Renew, TTL: lease})
	p.say(NotMine, 2)
	p.kept(0, 1)
	p.wantOutcome(Renewed)
	p.want("the other is asked, which nobody awaits", p.did.Renew == set(2))
	p.say(NotMine, 1, 2)
	p.want("nobody is told, and nothing is done", p.did.Outcome == None && p.did.Release == 0 && p.c.Phase == Held)
	p.step(Event{Kind: Renew, TTL: lease})
	p.say(NotMine, 1, 2)
	p.wantOutcome(Lost)
	p.want("it is released", p.did.Release == All(3))
}

func TestLeaseWithoutTokenRegainsNoNode(t *testing.T) {
	t.Parallel()
	p := &play{t: t, now: second, c: Detached(3, lease)}
	p.step(Event{Kind: Renew, TTL: lease})
	p.say(NotMine, 2)
	p.say(Kept, 0, 1)
	p.wantOutcome(Renewed)
	p.want("there is nothing to set it to", p.did.Renew == 0)
}

func TestBareQuorumPutsLeaseAtRisk(t *testing.T) {
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

func TestUnfinishedRoundDoesNotChangeRisk(t *testing.T) {
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
	p.say(NotMine, 2)
	p.kept(0, 1)
	p.want("asks anew", p.did.Anew == set(2))
	p.step(Event{Kind: Renew, TTL: lease})
	p.say(Kept, 0, 1, 2)
	p.want("that is under way", p.c.AtRisk)
	p.step(Event{Kind: Renew, TTL: lease})
	p.want("three", !p.c.AtRisk)
}

func TestNoRiskWithoutSpareNodes(t *testing.T) {
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
