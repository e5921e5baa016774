package session_test

import (
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/session"
)

const second = int64(time.Second)

func TestRequestsCarryTokenFloor(t *testing.T) {
	t.Parallel()
	unknown := errors.New("unknown")
	for name, c := range map[string]struct {
		gate session.Gate
		ask  quorum.Ask
		want quorum.Ask
		err  error
	}{
		"an acquire names the floor":    {gate: session.Gate{Floor: 5}, want: quorum.Ask{Least: 5}},
		"a counter above it needs none": {gate: session.Gate{Floor: 5, Above: true}},
		"no acquire without a floor":    {gate: session.Gate{Unknown: unknown}, err: unknown},
		"no adoption without a floor": {
			gate: session.Gate{Unknown: unknown}, ask: quorum.Ask{Kind: quorum.AskAdopt}, want: quorum.Ask{Kind: quorum.AskAdopt}, err: unknown,
		},
		"a commit at the floor": {
			gate: session.Gate{Floor: 5}, ask: quorum.Ask{Kind: quorum.AskCommit, Token: 5}, want: quorum.Ask{Kind: quorum.AskCommit, Token: 5},
		},
		"no commit below it": {
			gate: session.Gate{Floor: 5}, ask: quorum.Ask{Kind: quorum.AskCommit, Token: 4}, want: quorum.Ask{Kind: quorum.AskCommit, Token: 4}, err: session.ErrOlder,
		},
		"a release without a floor": {
			gate: session.Gate{Unknown: unknown}, ask: quorum.Ask{Kind: quorum.AskRelease}, want: quorum.Ask{Kind: quorum.AskRelease},
		},
		"a renewal without a floor": {
			gate: session.Gate{Unknown: unknown}, ask: quorum.Ask{Kind: quorum.AskRenew}, want: quorum.Ask{Kind: quorum.AskRenew},
		},
		"no renewal after a standstill": {
			gate: session.Gate{Slept: true}, ask: quorum.Ask{Kind: quorum.AskRenew}, want: quorum.Ask{Kind: quorum.AskRenew}, err: session.ErrSlept,
		},
		"a release after a standstill": {
			gate: session.Gate{Slept: true}, ask: quorum.Ask{Kind: quorum.AskRelease}, want: quorum.Ask{Kind: quorum.AskRelease},
		},
		"a node in quarantine grants nothing": {gate: session.Gate{Stays: true}, err: session.ErrStays},
		"nor commits": {
			gate: session.Gate{Stays: true}, ask: quorum.Ask{Kind: quorum.AskCommit, Token: 9},
			want: quorum.Ask{Kind: quorum.AskCommit, Token: 9}, err: session.ErrStays,
		},
		"nor hands over": {
			gate: session.Gate{Stays: true}, ask: quorum.Ask{Kind: quorum.AskGiveBack, HandOver: 7}, want: quorum.Ask{Kind: quorum.AskGiveBack},
		},
		"but keeps a lease": {
			gate: session.Gate{Stays: true}, ask: quorum.Ask{Kind: quorum.AskRenew, Token: 3}, want: quorum.Ask{Kind: quorum.AskRenew, Token: 3, Restore: true},
		},
		"and sets none again whose token it is not told": {
			gate: session.Gate{Stays: true}, ask: quorum.Ask{Kind: quorum.AskRenew}, want: quorum.Ask{Kind: quorum.AskRenew},
		},
	} {
		ask := c.ask
		if err := c.gate.Prepare(&ask); !errors.Is(err, c.err) || ask != c.want {
			t.Errorf("%s: Prepare() = %v, %+v; want %v, %+v", name, err, ask, c.err, c.want)
		}
	}
}

func TestTokensBelowFloorDoNotCount(t *testing.T) {
	t.Parallel()
	unknown := errors.New("unknown")
	for _, c := range []struct {
		gate  session.Gate
		token int64
		err   error
	}{
		{session.Gate{Floor: 5}, 5, nil},
		{session.Gate{Floor: 5}, 4, session.ErrLow},
		{session.Gate{Floor: 5, Above: true}, 4, session.ErrLow},
		{session.Gate{Unknown: unknown}, 5, unknown},
	} {
		if err := c.gate.CheckGrant(c.token); !errors.Is(err, c.err) {
			t.Errorf("%+v: CheckGrant(%d) = %v, want %v", c.gate, c.token, err, c.err)
		}
		w := quorum.Wake{Owner: "o", Base: c.token, Left: 9}
		want := w
		if c.err != nil {
			want.Base, want.Left = 0, 0
		}
		if got := c.gate.Wake(w); got != want {
			t.Errorf("%+v: Wake(%v) = %v, want %v", c.gate, w, got, want)
		}
	}
}

func TestSilentNodeIsDisconnectedAtSecondCheck(t *testing.T) {
	t.Parallel()
	silence := int64(pace.SilenceTime())
	for _, replaced := range []bool{false, true} {
		w := session.Watch{Replaced: replaced}
		for i, look := range []struct {
			silent, renewal int64
			stalled, late   bool
			err             error
		}{
			{silent: 0},
			{silent: 2 * silence, stalled: true}, // this client may have been stopped
			{silent: 0},
			{silent: silence / 2, stalled: true},
			{silent: silence, stalled: true},
			{silent: silence / 2, renewal: second / 2, stalled: true, late: true}, // the lease has time for another attempt
			{silent: silence / 2, stalled: true},
			{silent: silence + 1, stalled: true, late: true, err: session.ErrSilent},
			{silent: 0},
		} {
			if replaced && look.late { // its successor may grant locks soon
				look.err = session.ErrSilent
			}
			err := w.Check(session.Snapshot{Now: int64(i) * second, Silent: look.silent, Renewal: look.renewal})
			if !errors.Is(err, look.err) || w.Stalled != look.stalled || w.Doubted != (look.late && !replaced) {
				t.Errorf("look %d, replaced %v: Check() = %v, %+v; want %+v", i, replaced, err, w, look)
			}
		}
	}
}

func TestClientReconnectsAfterSuspendOrQuarantine(t *testing.T) {
	t.Parallel()
	limit := int64(session.Standstill)
	for _, c := range []struct {
		watch session.Watch
		now   int64
		err   error
	}{
		{session.Watch{Replaced: true, Looked: second}, second + limit, nil},
		{session.Watch{Replaced: true, Looked: second}, second + limit + 1, session.ErrSlept},
		{session.Watch{Looked: second}, second + limit + 1, nil}, // no other server may have replaced it
		{session.Watch{Votes: second}, second - 1, nil},
		{session.Watch{Votes: second}, second, session.ErrServed},
	} {
		if err := c.watch.Check(session.Snapshot{Now: c.now}); !errors.Is(err, c.err) {
			t.Errorf("%+v: Look(%d) = %v, want %v", c.watch, c.now, err, c.err)
		}
	}
}

func TestStalledNodeIsSkippedIfSpare(t *testing.T) {
	t.Parallel()
	overdue := int64(pace.OverdueTime())
	for _, c := range []struct {
		kind   quorum.AskKind
		silent int64
		spare  bool
		want   bool
	}{
		{kind: quorum.AskRenew, silent: overdue + 1, spare: true, want: true},
		{kind: quorum.AskRenew, silent: overdue, spare: true},
		{kind: quorum.AskRenew, silent: overdue + 1},
		{kind: quorum.AskRelease, silent: overdue + 1, spare: true},
	} {
		if got := session.ShouldSkip(c.kind, c.silent, func() bool { return c.spare }); got != c.want {
			t.Errorf("%+v: Skips() = %v", c, got)
		}
	}
}

func TestPausesDoubleUntilConnectionLasts(t *testing.T) {
	t.Parallel()
	r := session.Redial{Min: 20, Max: 100}
	for i, want := range []int64{0, 10, 20, 40, 50, 50} { // half of each pause is random, here 0
		if got := r.Next(0); got != want {
			t.Errorf("pause %d is %d, want %d", i, got, want)
		}
	}
	for rand := range uint32(200) {
		if got := r.Next(rand); got < 50 || got > 100 {
			t.Fatalf("Next(%d) = %d, want 50 to 100", rand, got)
		}
	}
	if r.Ended(100); r.Next(0) == 0 {
		t.Error("a connection that broke at once reset the pauses")
	}
	if r.Ended(101); r.Next(0) != 0 {
		t.Error("a connection that lasted did not reset the pauses")
	}
}

// debts returns the debts of a ledger at the time now.
func debts(l *session.Ledger[string], now int64) (all []session.Debt[string]) {
	all = l.Take(now)
	for _, d := range all {
		l.Return(d)
	}
	return all
}

func TestFailedGiveBackLosesPlace(t *testing.T) {
	t.Parallel()
	var l session.Ledger[string]
	l.Owe("k", &quorum.Ask{Kind: quorum.AskGiveBack, Owner: "a", Stamp: 7, TTL: second}, 0)
	if all := debts(&l, 0); len(all) != 1 || all[0].Ask.Kind != quorum.AskRelease || all[0].Ask.Stamp != 0 || all[0].Lock != "k" {
		t.Errorf("debts %+v; want a release that withdraws the owner from the queue", all)
	}
}

func TestLatestReleaseOfOwnerIsOwed(t *testing.T) {
	t.Parallel()
	var l session.Ledger[string]
	l.Owe("k", &quorum.Ask{Kind: quorum.AskRelease, Owner: "b"}, 0)
	l.Owe("k", &quorum.Ask{Kind: quorum.AskRelease, Owner: "a"}, 0)
	taken := l.Take(0)
	l.Owe("k", &quorum.Ask{Kind: quorum.AskRelease, Owner: "a", MinHold: 9}, 0)
	for _, d := range taken {
		l.Return(d)
	}
	all := debts(&l, 0)
	if len(all) != 2 || all[0].Ask.Owner != "a" || all[0].Ask.MinHold != 9 || all[1].Ask.Owner != "b" {
		t.Errorf("debts %+v; want the later release of a, and the release of b", all)
	}
}

func TestDebtExpiresWithLockAndPlace(t *testing.T) {
	t.Parallel()
	place := quorum.QueueKeep * int64(time.Millisecond)
	for _, c := range []struct{ ttl, minHold, until int64 }{
		{ttl: second, until: place},
		{ttl: 2 * place, until: 2 * place},
		{ttl: second, minHold: 3 * place, until: 3 * place},
	} {
		var l session.Ledger[string]
		l.Owe("k", &quorum.Ask{Kind: quorum.AskRelease, Owner: "a", TTL: c.ttl, MinHold: c.minHold}, 0)
		if before, after := debts(&l, c.until-1), debts(&l, c.until); len(before) != 1 || len(after) != 0 {
			t.Errorf("%+v: owed before its expiry: %v, at its expiry: %v", c, before, after)
		}
	}
}

func TestLedgerIsBounded(t *testing.T) {
	t.Parallel()
	var l session.Ledger[int]
	const more = 11_000
	for i := range more {
		l.Owe(i, &quorum.Ask{Kind: quorum.AskRelease, Owner: string(rune(i))}, 0)
	}
	n := len(l.Take(0))
	if n >= more || n < more/2 {
		t.Errorf("%d releases owed, of %d", n, more)
	}
}
