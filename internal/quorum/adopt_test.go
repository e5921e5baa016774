package quorum

import "testing"

func adoptingClaim(t *testing.T, n int) *claimTest {
	t.Helper()
	p := &claimTest{t: t, now: second, c: Claim{N: int8(n), TTL: lease, Adopts: true}}
	p.step(Event{Kind: Start, Nodes: All(n)})
	p.check("start", p.last.Acquire == All(n) && p.last.Stamped == 0)
	return p
}

func TestAdopterNeedsQuorum(t *testing.T) {
	t.Parallel()
	p := adoptingClaim(t, 3)
	p.grant(0, 100)
	p.checkOutcome(None)
	p.grant(2, 132)
	p.check("the higher base is committed", p.last.Commit == nodeSet(0))
	p.answerAll(Accepted, 0)
	p.checkOutcome(Won)
	p.check("held", p.c.Phase == Held && p.c.Token == 132)
}

// The silent node may have executed the request. Only another request can tell.
func TestAdopterRetriesUnansweredNode(t *testing.T) {
	t.Parallel()
	p := adoptingClaim(t, 3)
	p.grant(0, 100)
	p.tick()
	p.checkOutcome(None)
	p.check("rests", p.c.Phase == Seeking && p.c.RestUntil != 0 && p.last.Release == 0)
	p.tick()
	p.check("and keeps what it has meanwhile", p.last.Acquire == All(3))
	p.grant(0, 100)
	p.grant(1, 100)
	p.checkOutcome(Won)
	p.check("from the last send", p.c.TrustedUntil() == p.now+lease-Drift(lease))
}

func TestDenialsEndAdoption(t *testing.T) {
	t.Parallel()
	p := adoptingClaim(t, 3)
	p.grant(0, 100)
	p.deny(1)
	p.checkOutcome(None)
	p.fail(AskAdopt, 2)
	p.checkOutcome(None)
	p.tick()
	p.check("a denial stands", p.last.Acquire == nodeSet(0, 2))
	p.deny(2)
	p.checkOutcome(Busy)
	p.check("what it has taken is released", p.last.Release == All(3) && p.c.Phase == Over)
}

func TestAdoptFailsOnFatalError(t *testing.T) {
	t.Parallel()
	p := adoptingClaim(t, 3)
	p.grant(0, 100)
	p.answer(Event{Kind: Failed, Of: AskAdopt, Node: 1, Fatal: true})
	p.deny(2)
	p.checkOutcome(Unavailable)
	p.check("what it has taken is released", p.last.Release == All(3))
}

func TestDetachedLockIsRenewedByID(t *testing.T) {
	t.Parallel()
	p := &claimTest{t: t, now: second, c: Detached(3, lease)}
	p.step(Event{Kind: Renew, TTL: lease})
	p.check("without a token", p.last.Renew == All(3) && p.c.Token == 0)
	p.answerAll(NotMine, 2)
	p.answerAll(Kept, 0, 1)
	p.checkOutcome(Renewed)
	p.check("trusted, and what is lost stays lost", p.c.TrustedUntil() == p.now+lease-Drift(lease) && p.last.Renew == 0)
	p.step(Event{Kind: Release})
	p.check("released everywhere", p.last.Release == All(3))
}

// The commit may have been executed although its answer was lost. A repeated acquire works in both cases.
func TestAdopterRetriesFailedCommit(t *testing.T) {
	t.Parallel()
	for _, base := range []int64{100, 132} { // not executed, and executed
		p := adoptingClaim(t, 3)
		p.grant(0, 100)
		p.grant(1, 132)
		p.check("the higher base", p.last.Commit == nodeSet(0) && p.c.Token == 132)
		p.fail(AskCommit, 0)
		p.checkOutcome(None)
		p.fail(AskAdopt, 2)
		p.tick()
		p.check("it asks again", p.last.Acquire == All(3) && p.last.Release == 0)
		p.grant(1, 132)
		p.grant(0, base)
		p.check("its token stands", p.c.Token == 132 && p.last.Commit.Has(0) == (base == 100))
		if base == 100 {
			p.answerAll(Accepted, 0)
		}
		p.checkOutcome(Won)
	}
}

// The node that gave the lower token does not accept it any more, and the late node has given a higher one. No
// quorum can share the lower token, however often the claim asks.
func TestAdopterRaisesTokenForQuorum(t *testing.T) {
	t.Parallel()
	p := adoptingClaim(t, 3)
	p.grant(0, 100)
	p.grant(1, 132)
	p.grant(2, 164)
	p.check("a quorum can still come", p.last.Commit == 0 && p.c.Token == 132)
	p.fail(AskCommit, 0)
	p.checkOutcome(None)
	p.check("the others share the highest", p.last.Commit == nodeSet(1) && p.c.Token == 164)
	p.acceptCommit(1)
	p.checkOutcome(Won)
	p.check("relied on", p.c.Token == 164 && p.c.Kept == nodeSet(1, 2))
}

// A late commit of the old token is rejected: see TestCommitBelowLockTokenIsRejected.
func TestAdopterIgnoresAnswersAboutOldToken(t *testing.T) {
	t.Parallel()
	p := adoptingClaim(t, 3)
	p.grant(0, 100)
	p.grant(1, 132)
	epoch := p.c.Epoch[0]
	p.deny(1) // node 1 has forgotten the lock, and another owner has it
	p.grant(2, 164)
	p.check("the token is chosen anew", p.last.Commit == nodeSet(0) && p.c.Token == 164)
	p.answerCommit(Accepted, 0, epoch)
	p.checkOutcome(None)
	p.answerCommit(Failed, 0, epoch)
	p.check("nor a failure", p.c.Granted.Has(0) && p.c.Pending == nodeSet(0))
	p.acceptCommit(0)
	p.checkOutcome(Won)
}

// Only an adopting claim chooses again: any other claim starts over with a new id.
func TestClaimChoosesTokenOnce(t *testing.T) {
	t.Parallel()
	p := startClaim(t, 3, 0)
	p.grant(0, 100)
	p.grant(1, 132)
	p.grant(2, 164)
	p.fail(AskCommit, 0)
	p.checkOutcome(Unavailable)
}

func (p *claimTest) acceptCommit(node int) {
	p.t.Helper()
	p.answerCommit(Accepted, node, p.c.Epoch[node])
}

// answerCommit answers a commit that was sent in epoch.
func (p *claimTest) answerCommit(kind Kind, node int, epoch uint8) {
	p.t.Helper()
	p.step(Event{Kind: kind, Of: AskCommit, Node: node, ID: p.c.ID, Epoch: epoch, Sent: p.now})
}
