package quorum

import (
	"testing"
	"time"
)

// The figures come from the Redlock page. Other tests rely on them.
func TestDriftIsOnePercentAndTwoMilliseconds(t *testing.T) {
	t.Parallel()
	for ttl, want := range map[time.Duration]time.Duration{
		0:                2 * time.Millisecond,
		10 * time.Second: 102 * time.Millisecond,
		time.Minute:      602 * time.Millisecond,
	} {
		if got := time.Duration(Drift(int64(ttl))); got != want {
			t.Errorf("Drift(%v) = %v, want %v", ttl, got, want)
		}
	}
}

// The node may have denied the pending request before it handed the lock over.
func TestWakeUpAsksNodeDespitePendingRequest(t *testing.T) {
	t.Parallel()
	p := startClaim(t, 3, stamp)
	p.deny(0, 1, 2)
	p.tick()
	p.check("asks everybody", p.c.Asked == All(3))
	p.step(Event{Kind: Woken, Node: 1})
	p.check("asks the node that woke it again", p.last.Acquire == nodeSet(1))
}

// Wake-ups sent while a connection is down are lost.
func TestNewSubscriptionAsksAgain(t *testing.T) {
	t.Parallel()
	p := startClaim(t, 5, stamp)
	p.deny(0, 1, 2, 3, 4)
	p.step(Event{Kind: SubscriptionChange, Nodes: All(5) &^ nodeSet(3)})
	p.check("nothing to ask while deaf", p.last.Acquire == 0)
	p.step(Event{Kind: SubscriptionChange, Nodes: All(5)})
	p.check("asks the node, and takes its place there again", p.last.Acquire == nodeSet(3) && p.last.Stamped == nodeSet(3))
}

// A late commit has its own deadline, not the rest of the round's.
func TestEachRequestHasItsOwnDeadline(t *testing.T) {
	t.Parallel()
	p := startClaim(t, 3, 0)
	begun := p.now
	p.grant(0, 100)
	p.now += RequestTimeout(lease) / 2
	p.grant(1, 132)
	p.check("commits the higher base", p.last.Commit == nodeSet(0))
	p.tick()
	p.check("node 2 is late, the commit is not", p.now == begun+RequestTimeout(lease) && !p.c.Asked.Has(2) && p.c.Pending == nodeSet(0))
	p.answerAll(Accepted, 0)
	p.checkOutcome(Won)
}
