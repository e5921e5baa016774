package quorum

import "testing"

func adopting(t *testing.T, n int) *play {
	t.Helper()
	p := &play{t: t, now: second, c: Claim{N: int8(n), TTL: lease, Adopts: true}}
	p.step(Event{Kind: Start, Nodes: All(n)})
	p.want("start", p.did.Acquire == All(n) && p.did.Stamped == 0)
	return p
}

func TestAnAdopterNeedsAQuorum(t *testing.T) {
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
func TestAnAdopterAsksAgainWhereNoAnswerCame(t *testing.T) {
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

func TestAnAdopterIsRefusedOnceAQuorumCannotComeForDenials(t *testing.T) {
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

func TestAnAdopterGivesUpWhereAskingAgainIsPointless(t *testing.T) {
	t.Parallel()
	p := adopting(t, 3)
	p.granted(0, 100)
	p.answer(Event{Kind: Failed, Of: AskAdopt, Node: 1, Fatal: true})
	p.denied(2)
	p.wantOutcome(Unavailable)
	p.want("what it has taken is released", p.did.Release == All(3))
}

func TestADetachedLockIsRenewedByItsIDAlone(t *testing.T) {
	t.Parallel()
	p := &play{t: t, now: second, c: Detached(3, lease)}
	p.step(Event{Kind: Renew, TTL: lease})
	p.want("without a token", p.did.Renew == All(3) && p.c.Token == 0)
	p.say(NotMine, 2)
	p.say(Kept, 0, 1)
	p.wantOutcome(Renewed)
	p.want("trusted, and what is lost stays lost", p.c.Trusted() == p.now+lease-Drift(lease) && p.did.Renew|p.did.Reclaim == 0)
	p.step(Event{Kind: Release})
	p.want("released everywhere", p.did.Release == All(3))
}
