package quorum

import (
	"slices"
	"testing"
)

// fullActions has the most requests that one Step can have.
var fullActions = Actions{Release: All(5), GiveBack: All(5), Acquire: All(5), Stamped: 0b10101, Commit: All(5), Renew: All(5), Restore: 0b01010}

func TestRequestsHaveFixedOrder(t *testing.T) {
	c := Claim{N: 5, ID: 8, TTL: lease, Stamp: 77, Token: 100}
	c.Epoch[3] = 2
	var kinds []AskKind
	for ask := range fullActions.Asks(7, &c, 42, Owners{Before: "old", Now: "new", From: "other"}) {
		if ask.Node != 3 {
			continue
		}
		kinds = append(kinds, ask.Kind)
		id, owner, stamp, token := uint32(8), "new", int64(0), int64(0)
		switch ask.Kind {
		case AskRelease:
			id, owner = 7, "old"
		case AskGiveBack:
			stamp = 77
		case AskCommit, AskRenew:
			token = 100
		}
		if ask.ID != id || ask.Stamp != stamp || ask.Token != token || ask.Epoch != 2 || ask.TTL != lease || ask.Sent != 42 ||
			ask.Owner != owner || ask.From != "other" {
			t.Errorf("%v: %+v", ask.Kind, ask)
		}
		if (ask.HandOver != 0) != ask.Kind.Frees() {
			t.Errorf("%v hands over for %d", ask.Kind, ask.HandOver)
		}
	}
	if want := []AskKind{AskRelease, AskGiveBack, AskAcquire, AskCommit, AskRenew}; !slices.Equal(kinds, want) {
		t.Errorf("in the order %v, want %v", kinds, want)
	}
}

func TestOnlySubscribedNodesGetStamp(t *testing.T) {
	c := Claim{N: 5, TTL: lease, Stamp: 77}
	for ask := range fullActions.Asks(0, &c, 0, Owners{}) {
		if ask.Kind == AskAcquire && (ask.Stamp == 77) != fullActions.Stamped.Has(ask.Node) {
			t.Errorf("node %d received stamp %d", ask.Node, ask.Stamp)
		}
	}
}

func TestAsksDoesNotAllocate(t *testing.T) {
	c, n := Claim{N: 5, TTL: lease}, 0
	if got := testing.AllocsPerRun(10, func() {
		for range fullActions.Asks(0, &c, 0, Owners{}) {
			n++
		}
	}); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

func TestOnlyRegainedNodesRestoreLock(t *testing.T) {
	c := Claim{N: 5, TTL: lease, Token: 100}
	for ask := range fullActions.Asks(0, &c, 0, Owners{}) {
		if ask.Restore != (ask.Kind == AskRenew && fullActions.Restore.Has(ask.Node)) {
			t.Errorf("%v of node %d: anew %v", ask.Kind, ask.Node, ask.Restore)
		}
	}
}

// Each kind of request runs its script with the right arguments.
func TestExecuteCallsMatchingScript(t *testing.T) {
	const now = noon
	mine := Lock{Owner: "a", Token: base, Until: now/1000 + ttl, Fence: firstBlockEnd}
	free := Lock{Fence: firstBlockEnd}
	long := mine
	long.Until = now/1000 + 2*ttl
	for name, row := range map[string]struct {
		lock Lock
		ask  Ask
		kind Kind
		want Lock
	}{
		"acquire": {
			free,
			Ask{Kind: AskAcquire, Least: firstBlockEnd + 100, Clock: now},
			Granted,
			Lock{Owner: "a", Token: firstBlockEnd + 100, Until: now/1000 + 2*ttl, Fence: LastOfBlock(firstBlockEnd + 100)},
		},
		"adopt": {
			Lock{Owner: "z", Token: base, Until: mine.Until, Fence: firstBlockEnd},
			Ask{Kind: AskAdopt, From: "z", Least: firstBlockEnd + 100, Clock: now},
			Granted,
			Lock{Owner: "a", Token: firstBlockEnd + 100, Until: now/1000 + 2*ttl, Notes: Notes{}.With("z", mine.Until), Fence: LastOfBlock(firstBlockEnd + 100)},
		},
		"commit": {
			mine,
			Ask{Kind: AskCommit, Token: firstBlockEnd + 100},
			Accepted,
			Lock{Owner: "a", Token: firstBlockEnd + 100, Until: mine.Until, Fence: LastOfBlock(firstBlockEnd + 100)},
		},
		"renew":             {mine, Ask{Kind: AskRenew, Token: base}, Kept, long},
		"renew, free":       {free, Ask{Kind: AskRenew, Token: base}, NotMine, free},
		"renew, free, anew": {free, Ask{Kind: AskRenew, Token: base, Restore: true}, Kept, long},
		"release":           {mine, Ask{Kind: AskRelease}, Freed, free},
		"release, MinHold":  {mine, Ask{Kind: AskRelease, MinHold: lease}, Freed, Lock{Owner: MinHoldID("a"), Until: now/1000 + lease/ms, Fence: firstBlockEnd}},
	} {
		row.ask.Owner, row.ask.TTL = "a", 2*ttl*ms
		if l, r, _ := row.lock.Execute(now, &row.ask, nobodyListens); r.Kind != row.kind || l != row.want {
			t.Errorf("%s: %+v, left %+v, want %+v", name, r, l, row.want)
		}
	}
}

// A release without a hand-over frees the lock for everybody, even if clients wait.
func TestReleaseWithoutHandOverFreesLock(t *testing.T) {
	const now = 1_000_000
	l := Lock{Owner: "a", Token: 69, Until: now, Fence: 100, Queue: Queue("").With(Place{Owner: "b", Stamp: 1, Until: now})}
	for _, handOver := range []int64{0, HandOverTime(lease)} {
		ask := Ask{Kind: AskRelease, TTL: lease, HandOver: handOver, Owner: "a"}
		after, reply, woken := l.Execute(now, &ask, func(string) bool { return true })
		if reply.Kind != Freed || (after.Owner == "b") != (handOver != 0) || after.Owner != woken.Owner {
			t.Errorf("handed over for %d: %+v, woken %v", handOver, after, woken)
		}
	}
}
