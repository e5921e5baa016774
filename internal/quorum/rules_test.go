package quorum

import (
	"testing"
	"time"
)

// The figures are those of the Redlock page; other tests only take them as given.
func TestDriftIsAHundredthAndTwoMilliseconds(t *testing.T) {
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

// The request that is out may have been answered with a denial before the lock was
// handed over.
func TestWakeUpAsksNodeDespitePendingRequest(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, stamp)
	p.denied(0, 1, 2)
	p.tick()
	p.want("asks everybody", p.c.Asked == All(3))
	p.step(Event{Kind: Woken, Node: 1})
	p.want("asks the node that woke it again", p.did.Acquire == set(1))
}

// Wake-ups that were sent while a connection was down are lost.
func TestNewSubscriptionAsksAgain(t *testing.T) {
	t.Parallel()
	p := begin(t, 5, stamp)
	p.denied(0, 1, 2, 3, 4)
	p.step(Event{Kind: Audible, Nodes: All(5) &^ set(3)})
	p.want("nothing to ask while deaf", p.did.Acquire == 0)
	p.step(Event{Kind: Audible, Nodes: All(5)})
	p.want("asks the node, and takes its place there again", p.did.Acquire == set(3) && p.did.Stamped == set(3))
}

// A commit that is sent late has its own time, not what is left of the round's.
func TestEachRequestHasItsOwnDeadline(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, 0)
	begun := p.now
	p.granted(0, 100)
	p.now += RequestTimeout(lease) / 2
	p.granted(1, 132)
	p.want("commits the higher base", p.did.Commit == set(0))
	p.tick()
	p.want("node 2 is late, the commit is not", p.now == begun+RequestTimeout(lease) && !p.c.Asked.Has(2) && p.c.Pending == set(0))
	p.say(Accepted, 0)
	p.wantOutcome(Won)
}
