package quorum

import "testing"

// A node that went back to older data may have promised any token below its floor since.
func TestAGrantBelowTheFloorIsCommittedAboveIt(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		p := begin(t, n, 0)
		for node := range n {
			p.low(node, 100, 5000)
		}
		q := p.c.Quorum()
		p.wantOutcome(None)
		p.want("the floor is the token", p.c.Token == 5000 && p.c.Pending == All(n))
		for node := range q {
			p.wantOutcome(None)
			p.say(Accepted, node)
		}
		p.wantOutcome(Won)
	}
}

func TestAFloorCostsNoRoundWhereTheBaseIsAbove(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, 0)
	p.low(0, 100, 100)
	p.low(1, 100, 7)
	p.want("nothing is committed", p.did.Commit == 0)
	p.wantOutcome(Won)
}

// The commit of the token that is elected raises the counters below their floor as well.
func TestAFloorAndAHigherBaseTakeOneRound(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, 0)
	p.low(0, 100, 5000)
	p.granted(1, 7000)
	p.want("the higher one", p.did.Commit == set(0) && p.c.Token == 7000)
	p.say(Accepted, 0)
	p.wantOutcome(Won)
}

func TestALateGrantOfANodeWithAHigherFloorDoesNotCount(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, 0)
	p.granted(0, 132)
	p.granted(1, 100)
	p.low(2, 100, 5000)
	p.want("only the other is asked to follow", p.c.Pending == set(1) && p.c.Token == 132)
	p.say(Refused, 1)
	p.wantOutcome(Busy)
}

// Its answer to an acquire that comes twice has the counter that the commit has raised.
func TestAFloorIsCommittedOnce(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, 0)
	p.low(0, 100, 5000)
	p.low(1, 100, 5000)
	p.low(0, 5000, 5000)
	p.want("it agrees", p.did.Commit == 0 && p.c.Agreed == set(0))
	p.say(Accepted, 1)
	p.wantOutcome(Won)
}

func TestAWakeUpBelowTheFloorIsCommittedAboveIt(t *testing.T) {
	t.Parallel()
	p := begin(t, 1, 1)
	p.c.Renews = true
	p.denied(0)
	p.step(Event{Kind: Woken, Token: 100, Floor: 5000, TTL: HandOverMost})
	p.wantOutcome(None)
	p.want("the floor is committed", p.did.Commit == set(0) && p.c.Token == 5000)
	p.say(Accepted, 0)
	p.wantOutcome(Won)
}

// low grants the lock at a node with a floor.
func (p *play) low(node int, base, floor int64) {
	p.t.Helper()
	p.answer(Event{Kind: Granted, Of: AskAcquire, Node: node, Token: base, Floor: floor, TTL: p.c.TTL})
}

// It has accepted the token, and its counter is below the floor again.
func TestANodeThatIsBelowItsFloorAgainHasForgottenTheToken(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, 0)
	p.low(0, 100, 5000)
	p.low(1, 100, 5000)
	p.say(Accepted, 0)
	p.low(0, 100, 5000)
	p.want("it is asked to accept it once more", p.did.Commit == set(0) && p.c.Agreed == 0)
	p.say(Accepted, 1)
	p.wantOutcome(None)
	p.say(Accepted, 0)
	p.wantOutcome(Won)
}
