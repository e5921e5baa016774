package quorum

import (
	"slices"
	"testing"
)

// full is what a Step may want at most.
var full = Actions{Release: All(5), GiveBack: All(5), Acquire: All(5), Stamped: 0b10101, Commit: All(5), Renew: All(5), Reclaim: All(5)}

func TestRequestsLeaveInOneOrder(t *testing.T) {
	c := Claim{N: 5, ID: 8, TTL: lease, Stamp: 77, Token: 100}
	c.Base[3], c.Epoch[3] = 555, 2
	var kinds []AskKind
	for ask := range full.Asks(7, &c, 42) {
		if ask.Node != 3 {
			continue
		}
		kinds = append(kinds, ask.Kind)
		id, stamp, token := uint32(8), int64(0), int64(0)
		switch ask.Kind {
		case AskRelease:
			id = 7
		case AskGiveBack:
			stamp = 77
		case AskCommit, AskRenew:
			token = 100
		case AskReclaim:
			token = 555
		}
		if ask.ID != id || ask.Stamp != stamp || ask.Token != token || ask.Epoch != 2 || ask.TTL != lease || ask.Sent != 42 {
			t.Errorf("%v: %+v", ask.Kind, ask)
		}
		if (ask.HandOver != 0) != ask.Kind.Frees() {
			t.Errorf("%v hands over for %d", ask.Kind, ask.HandOver)
		}
	}
	if want := []AskKind{AskRelease, AskGiveBack, AskAcquire, AskCommit, AskRenew, AskReclaim}; !slices.Equal(kinds, want) {
		t.Errorf("in the order %v, want %v", kinds, want)
	}
}

func TestOnlyNodesThatAreHeardGetTheStamp(t *testing.T) {
	c := Claim{N: 5, TTL: lease, Stamp: 77}
	for ask := range full.Asks(0, &c, 0) {
		if ask.Kind == AskAcquire && (ask.Stamp == 77) != full.Stamped.Has(ask.Node) {
			t.Errorf("node %d is sent stamp %d", ask.Node, ask.Stamp)
		}
	}
}

func TestAsksAllocatesNothing(t *testing.T) {
	c, n := Claim{N: 5, TTL: lease}, 0
	if got := testing.AllocsPerRun(10, func() {
		for range full.Asks(0, &c, 0) {
			n++
		}
	}); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

func TestEveryWriteKeepsTheCounterForItsLife(t *testing.T) {
	const now = noon
	for _, kind := range []AskKind{AskAcquire, AskCommit, AskRenew, AskReclaim, AskAdopt, AskRelease} {
		l := Lock{Owner: "a", Until: now, Fence: end, FenceUntil: now, Queue: Queue("").With("b", 1), QueueUntil: now}
		ask := Ask{Kind: kind, TTL: lease, HandOver: HandOver(lease), Owner: "a", From: "a", Token: base, Clock: now}
		if kind == AskReclaim {
			l.Owner, ask.Token = "", end
		}
		for life, want := range map[int64]int64{0: 150_000, 150_000 * ms: 150_000, 600_000 * ms: 600_000, 2 * lease: 150_000} {
			ask.Life = life
			if after, reply, _ := l.Answer(now, &ask, hears); after.FenceUntil != now/1000+want {
				t.Errorf("%v with a life of %d ms: %v, and the counter is kept for %d ms", kind, life/ms, reply.Kind, after.FenceUntil-now/1000)
			}
		}
	}
}

// What is handed to nobody is free for everybody, also where somebody waits.
func TestAReleaseThatHandsToNobodyFreesTheLock(t *testing.T) {
	const now = 1_000_000
	l := Lock{Owner: "a", Until: now, Fence: 100, FenceUntil: now, Queue: Queue("").With("b", 1), QueueUntil: now}
	for _, handOver := range []int64{0, HandOver(lease)} {
		ask := Ask{Kind: AskRelease, TTL: lease, HandOver: handOver, Owner: "a"}
		after, reply, woken := l.Answer(now, &ask, func(string) bool { return true })
		if reply.Kind != Freed || (after.Owner == "b") != (handOver != 0) || after.Owner != woken.Owner {
			t.Errorf("handed over for %d: %+v, woken %v", handOver, after, woken)
		}
	}
}
