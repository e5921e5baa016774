package quorum

import "testing"

// keep makes the nodes answer a renewal with Kept, a moment after they were asked.
func (p *claimTest) keep(nodes ...int) {
	p.t.Helper()
	p.now += ms
	p.answerAll(Kept, nodes...)
}

// Before that, another client may have a quorum that includes the node.
func TestNodeIsRegainedOnlyAfterQuorumKept(t *testing.T) {
	t.Parallel()
	p := heldClaim(t, 5)
	p.step(Event{Kind: Renew, TTL: lease})
	p.check("nobody sets a free lock again", p.last.Renew == All(5) && p.last.Restore == 0)
	p.answerAll(NotMine, 4)
	p.check("none has kept it", p.last.Renew == 0)
	p.keep(0)
	p.keep(1)
	p.check("two of five", p.last.Renew == 0)
	p.keep(2)
	p.checkOutcome(Renewed)
	p.check("the other is asked anew", p.last.Renew == nodeSet(4) && p.last.Restore == nodeSet(4))
	p.keep(4)
	p.check("it is ours again", p.c.Granted == All(5) && p.last.Renew == 0)
	p.keep(3)
	p.check("all is well", p.last.Renew == 0 && p.c.Kept == All(5))
}

func TestLateAnswerAfterQuorumRegainsNode(t *testing.T) {
	t.Parallel()
	p := heldClaim(t, 5)
	p.step(Event{Kind: Renew, TTL: lease})
	p.keep(0, 1, 2)
	p.check("no need", p.last.Renew == 0)
	p.answerAll(NotMine, 3)
	p.check("the first", p.last.Renew == nodeSet(3) && p.last.Restore == nodeSet(3))
	p.answerAll(NotMine, 4)
	p.check("the second", p.last.Renew == nodeSet(4) && p.last.Restore == nodeSet(4))
	p.keep(3, 4)
	p.check("all have it", p.c.Granted == All(5))
}

// Another client may have had the lock since the earlier round.
func TestEarlierRoundDoesNotRegainNode(t *testing.T) {
	t.Parallel()
	p := heldClaim(t, 3)
	p.step(Event{Kind: Renew, TTL: lease})
	before := p.now
	p.now += ms
	p.step(Event{Kind: Renew, TTL: lease})
	p.answerAll(NotMine, 2)
	for n := range 2 {
		p.step(Event{Kind: Kept, Node: n, Sent: before, TTL: lease, ID: p.c.ID})
	}
	p.check("those are of the round before", p.last.Renew == 0 && p.c.Kept == 0)
	p.keep(0)
	p.check("one", p.last.Renew == 0)
	p.keep(1)
	p.check("a quorum", p.last.Restore == nodeSet(2))
}

// There is no other quorum: another client may have had the forgotten lock.
func TestLockForgottenByOnlyNodeIsLost(t *testing.T) {
	t.Parallel()
	p := heldClaim(t, 1)
	p.step(Event{Kind: Renew, TTL: lease})
	p.answerAll(NotMine, 0)
	p.checkOutcome(Lost)
	p.check("nothing but the release", p.last.Renew == 0 && p.last.Release == All(1))
}

// A node that keeps the lock and then loses it in the same round does not count for the quorum.
func TestNodeThatForgetsInRoundDoesNotCount(t *testing.T) {
	t.Parallel()
	p := heldClaim(t, 3)
	p.step(Event{Kind: Renew, TTL: lease})
	p.keep(0)
	p.answerAll(NotMine, 0)
	p.answerAll(NotMine, 1)
	p.checkOutcome(Lost)
	p.check("nothing but the release", p.last.Renew == 0)
}

func TestNodesAreNotRegainedAfterTrustEnds(t *testing.T) {
	t.Parallel()
	p := heldClaim(t, 3)
	p.step(Event{Kind: Renew, TTL: lease})
	p.answerAll(NotMine, 2)
	p.answerAll(Kept, 0)
	p.now = p.c.TrustedUntil()
	p.answerAll(Kept, 1)
	p.checkOutcome(Lost)
	p.check("nothing but the release", p.last.Renew == 0 && p.last.Release == All(3))
}

func TestRegainedNodeCountsFromLaterRequest(t *testing.T) {
	t.Parallel()
	p := heldClaim(t, 3)
	p.now += second
	p.step(Event{Kind: Renew, TTL: lease})
	p.now += second
	p.answerAll(NotMine, 2)
	p.keep(0, 1)
	p.check("asks anew", p.last.Restore == nodeSet(2))
	trust, sent := p.c.TrustedUntil(), p.now
	p.now += second
	p.answerAll(Kept, 2)
	p.check("until", p.c.Until[2] == sent+lease-Drift(lease))
	p.check("trust is that of the other two", p.c.TrustedUntil() == trust)
}

// A rival may have a partial grant there, which it is about to give back.
func TestRegainIsTriedFewTimes(t *testing.T) {
	t.Parallel()
	p := heldClaim(t, 3)
	for range 2 {
		p.step(Event{Kind: Renew, TTL: lease})
		p.answerAll(NotMine, 2)
		p.check("not before a quorum has kept the lock", p.last.Renew == 0)
		p.answerAll(Kept, 0, 1)
		for range maxRegains {
			p.check("asked again", p.last.Renew == nodeSet(2) && p.last.Restore == nodeSet(2))
			p.answerAll(NotMine, 2)
		}
		p.check("not for ever", p.last.Renew == 0)
	}
	p.step(Event{Kind: Renew, TTL: lease})
	p.answerAll(NotMine, 2)
	p.keep(0, 1)
	p.keep(2)
	p.check("given back", p.c.Granted == All(3) && p.last.Renew == 0)
}

// Otherwise the holder would continue until its next renewal, while its locks are being released.
func TestLossIsReportedBeforeRelease(t *testing.T) {
	t.Parallel()
	p := heldClaim(t, 3)
	p.step(Event{Kind: Renew, TTL: lease})
	p.answerAll(NotMine, 2)
	p.keep(0, 1)
	p.checkOutcome(Renewed)
	p.check("the other is asked, which nobody awaits", p.last.Renew == nodeSet(2))
	p.answerAll(NotMine, 1, 2)
	p.check("nobody is told, and nothing is done", p.last.Outcome == None && p.last.Release == 0 && p.c.Phase == Held)
	p.step(Event{Kind: Renew, TTL: lease})
	p.answerAll(NotMine, 1, 2)
	p.checkOutcome(Lost)
	p.check("it is released", p.last.Release == All(3))
}

func TestLeaseWithoutTokenDoesNotRegainNodes(t *testing.T) {
	t.Parallel()
	p := &claimTest{t: t, now: second, c: Detached(3, lease)}
	p.step(Event{Kind: Renew, TTL: lease})
	p.answerAll(NotMine, 2)
	p.answerAll(Kept, 0, 1)
	p.checkOutcome(Renewed)
	p.check("there is nothing to set it to", p.last.Renew == 0)
}

func TestBareQuorumPutsLeaseAtRisk(t *testing.T) {
	t.Parallel()
	p := heldClaim(t, 3)
	round := func(kept ...int) bool {
		p.t.Helper()
		p.step(Event{Kind: Renew, TTL: lease})
		p.answerAll(Kept, kept...)
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
			t.Errorf("round %d: the previous round's AtRisk = %v", i, got)
		}
	}
}

func TestIncompleteRenewalKeepsAtRisk(t *testing.T) {
	t.Parallel()
	p := heldClaim(t, 3)
	p.step(Event{Kind: Renew, TTL: lease})
	p.answerAll(Kept, 0, 1)
	p.step(Event{Kind: Renew, TTL: lease})
	p.check("the third may still answer", !p.c.AtRisk)
	p.answerAll(Kept, 0, 1)
	p.fail(AskRenew, 2)
	p.step(Event{Kind: Renew, TTL: lease})
	p.check("it has failed", p.c.AtRisk)
	p.answerAll(NotMine, 2)
	p.keep(0, 1)
	p.check("asks anew", p.last.Restore == nodeSet(2))
	p.step(Event{Kind: Renew, TTL: lease})
	p.answerAll(Kept, 0, 1, 2)
	p.check("that is under way", p.c.AtRisk)
	p.step(Event{Kind: Renew, TTL: lease})
	p.check("three", !p.c.AtRisk)
}

func TestOneOrTwoNodesAreNeverAtRisk(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 2; n++ {
		p := heldClaim(t, n)
		for range 3 {
			p.step(Event{Kind: Renew, TTL: lease})
			p.answerAll(Kept, []int{0, 1}[:n]...)
			p.now += second
		}
		p.check("as good as it gets", !p.c.AtRisk)
	}
}
