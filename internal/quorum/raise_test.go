package quorum

import "testing"

func TestARaisedTokenNeedsAQuorum(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	p.step(Event{Kind: Raise, Token: 500})
	p.want("every node is asked", p.did.Commit == All(3) && p.c.Token == 500)
	p.raised(0)
	p.wantOutcome(None)
	p.raised(2)
	p.wantOutcome(Won)
	p.want("held", p.c.Phase == Held && p.c.Token == 500)
	p.raised(1)
	p.wantOutcome(None) // once
}

func TestATokenThatNoQuorumPromisesIsNotRaised(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	p.step(Event{Kind: Raise, Token: 500})
	p.promised(Refused, 0, p.c.Epoch[0])
	p.raised(1)
	p.wantOutcome(None)
	p.tick()
	p.wantOutcome(NotRaised)
}

func TestATokenIsNeverLowered(t *testing.T) {
	t.Parallel()
	for _, token := range []int64{0, 99, 100} {
		p := held(t, 3)
		p.step(Event{Kind: Raise, Token: token})
		p.wantOutcome(NotRaised)
		p.want("nothing is sent", p.did.Commit == 0 && p.c.Token == 100)
	}
}

// The commit of the token that was elected may still be out when the lock is held.
func TestAnAnswerAboutTheOldTokenRaisesNothing(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, 0)
	p.granted(0, 132)
	p.granted(1, 100)
	p.granted(2, 100)
	epoch := p.c.Epoch[2]
	p.say(Accepted, 1)
	p.wantOutcome(Won)
	p.step(Event{Kind: Raise, Token: 500})
	p.promised(Accepted, 2, epoch)
	p.raised(0)
	p.wantOutcome(None)
	p.raised(1)
	p.wantOutcome(Won)
}

// The nodes that have promised the token are those relied on.
func TestARaisedLockIsTrustedWhereItsTokenIs(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	p.c.Until[1] -= second // as by an earlier request
	p.step(Event{Kind: Raise, Token: 500})
	p.raised(1)
	p.raised(2)
	p.wantOutcome(Won)
	p.want("no longer than by them", p.c.Trusted() == p.c.Until[1])
}

func (p *play) raised(node int) { p.t.Helper(); p.promised(Accepted, node, p.c.Epoch[node]) }

// promised is an answer to a commit that was sent in epoch.
func (p *play) promised(kind Kind, node int, epoch uint8) {
	p.t.Helper()
	p.step(Event{Kind: kind, Of: AskCommit, Node: node, ID: p.c.ID, Epoch: epoch, Sent: p.now})
}
