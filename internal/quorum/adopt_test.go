package quorum

import "testing"

func adopting(t *testing.T, n int) *play {
	t.Helper()
	p := &play{t: t, now: second, c: Claim{N: int8(n), TTL: lease, Adopts: true}}
	p.step(Event{Kind: Start, Nodes: All(n)})
	p.want("start", p.did.Acquire == All(n) && p.did.Stamped == 0)
	return p
}

func TestAdopterNeedsQuorum(t *testing.T) {
	t.Parallel()
	p := adopting(t, 3)
	p.granted(0, 100)
	p.wantOutcome(None)
	p.granted(2, 132)
	p.want("the higher base is committed", p.did.Commit == set(0))
	p.say(Accepted, 0)
	p.wantOutcome(Won)
	p.want("held", p.c.Phase == Held && p.c.Token == 132)
}

// Its request may have been executed: then only the node can say so.
func TestAdopterRetriesUnansweredNode(t *testing.T) {
	t.Parallel()
	p := adopting(t, 3)
	p.granted(0, 100)
	p.tick()
	p.wantOutcome(None)
	p.want("rests", p.c.Phase == Seeking && p.c.Rest != 0 && p.did.Release == 0)
	p.tick()
	p.want("and keeps what it has meanwhile", p.did.Acquire == All(3))
	p.granted(0, 100)
	p.granted(1, 100)
	p.wantOutcome(Won)
	p.want("from the last send", p.c.Trusted() == p.now+lease-Drift(lease))
}

func TestDenialsEndAdoption(t *testing.T) {
	t.Parallel()
	p := adopting(t, 3)
	p.granted(0, 100)
	p.denied(1)
	p.wantOutcome(None)
	p.failed(AskAdopt, 2)
	p.wantOutcome(None)
	p.tick()
	p.want("a denial stands", p.did.Acquire == set(0, 2))
	p.denied(2)
	p.wantOutcome(Busy)
	p.want("what it has taken is released", p.did.Release == All(3) && p.c.Phase == Over)
}

func TestFatalErrorsEndAdoption(t *testing.T) {
	t.Parallel()
	p := adopting(t, 3)
	p.granted(0, 100)
	p.answer(Event{Kind: Failed, Of: AskAdopt, Node: 1, Fatal: true})
	p.denied(2)
	p.wantOutcome(Unavailable)
	p.want("what it has taken is released", p.did.Release == All(3))
}

func TestDetachedLockIsRenewedByID(t *testing.T) {
	t.Parallel()
	p := &play{t: t, now: second, c: Detached(3, lease)}
	p.step(Event{Kind: Renew, TTL: lease})
	p.want("without a token", p.did.Renew == All(3) && p.c.Token == 0)
	p.say(NotMine, 2)
	p.say(Kept, 0, 1)
	p.wantOutcome(Renewed)
	p.want("trusted, and what is lost stays lost", p.c.Trusted() == p.now+lease-Drift(lease) && p.did.Renew == 0)
	p.step(Event{Kind: Release})
	p.want("released everywhere", p.did.Release == All(3))
}

// The commit may have been executed, and its answer lost: either is the same to the node.
func TestAdopterRetriesFailedCommit(t *testing.T) {
	t.Parallel()
	for _, base := range []int64{100, 132} { // not executed, and executed
		p := adopting(t, 3)
		p.granted(0, 100)
		p.granted(1, 132)
		p.want("the higher base", p.did.Commit == set(0) && p.c.Token == 132)
		p.failed(AskCommit, 0)
		p.wantOutcome(None)
		p.failed(AskAdopt, 2)
		p.tick()
		p.want("it asks again", p.did.Acquire == All(3) && p.did.Release == 0)
		p.granted(1, 132)
		p.granted(0, base)
		p.want("its token stands", p.c.Token == 132 && p.did.Commit.Has(0) == (base == 100))
		if base == 100 {
			p.say(Accepted, 0)
		}
		p.wantOutcome(Won)
	}
}

// The node that gave the lower token agrees to it no more, and the one that comes late has given a later one:
// without it there is no quorum, however often they are asked.
func TestAdopterRaisesTokenForQuorum(t *testing.T) {
	t.Parallel()
	p := adopting(t, 3)
	p.granted(0, 100)
	p.granted(1, 132)
	p.granted(2, 164)
	p.want("a quorum can still come", p.did.Commit == 0 && p.c.Token == 132)
	p.failed(AskCommit, 0)
	p.wantOutcome(None)
	p.want("the others share the highest", p.did.Commit == set(1) && p.c.Token == 164)
	p.accepted(1)
	p.wantOutcome(Won)
	p.want("relied on", p.c.Token == 164 && p.c.Kept == set(1, 2))
}

// A commit of the old token that is executed late is refused: see TestCommitBelowLockTokenIsRefused.
func TestAdopterIgnoresAnswersAboutOldToken(t *testing.T) {
	t.Parallel()
	p := adopting(t, 3)
	p.granted(0, 100)
	p.granted(1, 132)
	epoch := p.c.Epoch[0]
	p.denied(1) // it has forgotten the lock, and another has it
	p.granted(2, 164)
	p.want("the token is chosen anew", p.did.Commit == set(0) && p.c.Token == 164)
	p.promised(Accepted, 0, epoch)
	p.wantOutcome(None)
	p.promised(Failed, 0, epoch)
	p.want("nor a failure", p.c.Granted.Has(0) && p.c.Pending == set(0))
	p.accepted(0)
	p.wantOutcome(Won)
}

// Only a claim that adopts has no other id to begin anew with.
func TestClaimChoosesTokenOnce(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, 0)
	p.granted(0, 100)
	p.granted(1, 132)
	p.granted(2, 164)
	p.failed(AskCommit, 0)
	p.wantOutcome(Unavailable)
}

func (p *play) accepted(node int) { p.t.Helper(); p.promised(Accepted, node, p.c.Epoch[node]) }

// promised is an answer to a commit that was sent in epoch.
func (p *play) promised(kind Kind, node int, epoch uint8) {
	p.t.Helper()
	p.step(Event{Kind: kind, Of: AskCommit, Node: node, ID: p.c.ID, Epoch: epoch, Sent: p.now})
}
