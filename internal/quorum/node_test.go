package quorum

import (
	"slices"
	"strings"
	"testing"
)

// A clock in µs, and times in ms, that the tests of the scripts start from.
const (
	noon = int64(1_800_000_000_000_000)
	ttl  = int64(10_000)
	keep = CounterLife / ms
	end  = noon // last token of the first block of a counter seeded at noon
	base = end - Block + 1
)

func deaf(string) bool  { return false }
func hears(string) bool { return true }

// taken is a lock that a took at noon, on a node without a past.
func taken(t *testing.T) Lock {
	t.Helper()
	l, r, _ := Lock{}.Acquire(noon, "a", ttl, noon, 0, keep, deaf)
	if want := (Reply{Event: Event{Kind: Granted, Token: base}}); r != want {
		t.Fatalf("first acquire: %+v, want %+v", r, want)
	}
	return l
}

// waited is taken, with b and c queued in this order.
func waited(t *testing.T) Lock {
	t.Helper()
	l, _, _ := taken(t).Acquire(noon, "c", ttl, noon, 7, keep, deaf)
	l, _, _ = l.Acquire(noon, "b", ttl, noon, 6, keep, deaf)
	return l
}

func owners(q Queue) []string {
	var all []string
	for _, o := range q.Entries {
		all = append(all, o)
	}
	return all
}

func TestAcquireAgainChangesNothingButTheExpiries(t *testing.T) {
	t.Parallel()
	first := taken(t)
	again, r, _ := first.Acquire(noon+1_000_000, "a", ttl, noon+1_000_000, 0, keep, deaf)
	if r.Kind != Granted || r.Token != base {
		t.Fatalf("second acquire: %+v", r)
	}
	first.Until, first.FenceUntil = first.Until+1000, first.FenceUntil+1000
	if again != first {
		t.Fatalf("second acquire left %+v, want %+v", again, first)
	}
}

func TestDenialDoesNotTouchTheCounter(t *testing.T) {
	t.Parallel()
	l, r, _ := taken(t).Acquire(noon+5_000_000, "b", ttl, noon, 0, keep, deaf)
	if want := (Reply{Event: Event{Kind: Denied, Left: 5000 * ms}, Holder: "a"}); r != want {
		t.Fatalf("denial: %+v, want %+v", r, want)
	}
	if l != taken(t) {
		t.Fatalf("denial without a stamp left %+v", l)
	}
	l, r, _ = l.Acquire(noon, "b", ttl, noon, 5, keep, deaf)
	if r.Kind == Granted || r.Waiters != 1 || l.Fence != end || l.Queue.Len() != 1 {
		t.Fatalf("denial with a stamp: %+v, %+v", r, l)
	}
}

func TestExpiredLockIsFree(t *testing.T) {
	t.Parallel()
	l := taken(t)
	if _, r, _ := l.Acquire(noon+ttl*1000, "b", ttl, noon, 0, keep, deaf); r.Kind == Granted {
		t.Fatal("granted in the last millisecond of another's lock")
	}
	_, r, _ := l.Acquire(noon+(ttl+1)*1000, "b", ttl, noon, 0, keep, deaf)
	if r.Kind != Granted || r.Token != base+Block {
		t.Fatalf("after expiry: %+v, want base %d", r, base+Block)
	}
}

func TestNewCounterStartsAtTheClock(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ clock, want int64 }{
		{noon + 999_999, noon + 999_999},
		{noon - 1_000_000, noon - 1_000_000},
		{noon + 1_000_001, noon}, // a clock that is wrong by more than a second is not believed
		{noon - 1_000_001, noon},
		{noon + 60_000_000, noon},
		{noon - 60_000_000, noon},
	} {
		if _, r, _ := (Lock{}).Acquire(noon, "a", ttl, tt.clock, 0, keep, deaf); r.Kind != Granted || r.Token != tt.want-Block+1 {
			t.Errorf("clock at %+d µs: base %d, want %d", tt.clock-noon, r.Token, tt.want-Block+1)
		}
	}
}

// Trace C5: a counter that starts at a wrong time is above all that follow.
func TestNoCounterStartsWhereClocksDifferByMoreThanAMinute(t *testing.T) {
	t.Parallel()
	lost := taken(t)
	lost.Fence, lost.FenceUntil = 0, 0
	idle := waited(t)
	idle.free()
	idle.Fence, idle.FenceUntil = 0, 0
	for _, clock := range []int64{noon + 60_000_001, noon - 60_000_001, noon - 3600*1_000_000, 0} {
		for name, before := range map[string]Lock{"never used": {}, "waited for": idle, "held by the same": lost} {
			if l, r, _ := before.Acquire(noon, "a", ttl, clock, 5, keep, deaf); r.Kind != Failed || l != before {
				t.Errorf("acquire, clock at %+d µs, %s: %+v, left %+v", clock-noon, name, r, l)
			}
		}
		if l, v := idle.Renew(noon, "a", ttl, clock, base, keep); v.Kind != Failed || l != idle {
			t.Errorf("renew, clock at %+d µs: %+v, left %+v", clock-noon, v, l)
		}
		// Where there is a counter, the clock is of no interest.
		if _, r, _ := waited(t).Acquire(noon, "a", ttl, clock, 0, keep, deaf); r.Kind != Granted || r.Token != base {
			t.Errorf("a counter that is there, clock at %+d µs: %+v", clock-noon, r)
		}
	}
}

func TestClockErrorSaysByHowMuch(t *testing.T) {
	t.Parallel()
	for ahead, want := range map[int64]string{
		3600_000_000: "CLOCK the node's clock is 3600 s ahead of the client's",
		-61_400_000:  "CLOCK the node's clock is 61 s behind the client's",
	} {
		if got := (ClockError{ahead}).Error(); !strings.HasPrefix(got, want) {
			t.Errorf("%d µs: %q, want %q", ahead, got, want)
		}
	}
}

// Trace C1: a counter that kept the expiry of its creation ran out in constant
// use, and the next hand-over began to count at nothing.
func TestEveryGrantKeepsTheCounterAlive(t *testing.T) {
	t.Parallel()
	l, now := waited(t), noon
	for i := range 6 {
		now += keep * 900 // nine tenths of its life, in µs
		l.Owner, l.Until = "a", now/1000+ttl
		l.Queue, l.QueueUntil = Queue("").With("b", 6), now/1000+ttl
		l, _ = l.Release(now, "a", 0, 1000, keep, hears)
		if want := end + int64(i+1)*Block; l.Owner != "b" || l.Fence != want {
			t.Fatalf("hand-over %d: owner %q, counter %d, want b and %d", i, l.Owner, l.Fence, want)
		}
	}
}

// A hand-over knows no client's clock. Who was woken takes the lock by its own.
func TestHandOverDoesNotStartALostCounter(t *testing.T) {
	t.Parallel()
	l := waited(t)
	l.Fence, l.FenceUntil = 0, 0
	l, woken := l.Release(noon+1, "a", 0, 1000, keep, hears)
	if woken != (Wake{Owner: "b"}) || l.Owner != "" || l.Fence != 0 || !slices.Equal(owners(l.Queue), []string{"c"}) {
		t.Fatalf("woken %q, left %+v", woken.Owner, l)
	}
	l, r, _ := l.Acquire(noon+2, "b", ttl, noon+2, 6, keep, deaf)
	if r.Kind != Granted || r.Token != noon+2-Block+1 || !slices.Equal(owners(l.Queue), []string{"c"}) {
		t.Fatalf("then: %+v, left %+v", r, l)
	}
}

// Trace C5: wherever within its minute the node's clock goes, and however long nobody asks,
// a later grant has the higher token.
func TestACounterOutlivesAClockThatGoesWithinItsMinute(t *testing.T) {
	t.Parallel()
	const minute, second = 60_000_000, 1_000_000
	errs := []int64{-minute, -minute / 2, 0, minute / 2, minute}
	for _, granted := range errs {
		for _, renewed := range errs {
			for _, asked := range errs {
				for idle := int64(0); idle < 400; idle += 2 {
					l, a, _ := Lock{}.Acquire(noon+granted, "a", ttl, noon, 0, keep, deaf)
					l, _ = l.Renew(noon+renewed, "a", ttl, noon, a.Token, keep)
					l, _ = l.Release(noon+renewed, "a", 0, 1000, keep, deaf)
					later := noon + idle*second
					if _, b, _ := l.Acquire(later+asked, "b", ttl, later, 0, keep, deaf); b.Token < a.Token+Block {
						t.Fatalf("clock %+d s, then %+d s, %d s later %+d s: base %d after %d", granted/second, renewed/second, idle, asked/second, b.Token, a.Token)
					}
				}
			}
		}
	}
}

// A node's clock is wrong by no more than most, and goes as it likes: ahead as the counter
// starts, behind at its last use, ahead again until it has expired, and behind as the next
// one starts, late. docs/protocol.md has the formula (The lifetime of a counter).
func TestACounterOutlivesAClockThatIsSetAsOftenAsYouLike(t *testing.T) {
	t.Parallel()
	const second = 1_000_000
	lower := func(life, most int64) bool {
		start := min(most, 60)
		l, a, _ := Lock{}.Acquire(noon+start*second, "a", ttl, noon, 0, life*1000, deaf)
		l, _ = l.Renew(noon-most*second, "a", ttl, noon, a.Token, life*1000)
		l, _ = l.Release(noon-most*second, "a", 0, 0, life*1000, deaf)
		for idle := range 2 * life {
			later := noon + idle*second
			clock := later - most*second
			_, b, _ := l.At(later+most*second).Acquire(clock, "b", ttl, clock-second, 0, life*1000, deaf)
			if b.Token <= a.Token {
				return true
			}
		}
		return false
	}
	for _, tt := range []struct{ life, most int64 }{{150, 36}, {245, 60}, {600, 179}, {3600, 1179}} {
		if lower(tt.life, tt.most) {
			t.Errorf("a counter that lives for %d s, and a clock that is off by %d s at most: a later grant has a lower token", tt.life, tt.most)
		}
		if !lower(tt.life, tt.most+3) {
			t.Errorf("a counter that lives for %d s: no order is lost by a clock that is off by %d s", tt.life, tt.most+3)
		}
	}
}

func TestLongLeaseKeepsItsCounter(t *testing.T) {
	t.Parallel()
	const day = 24 * 3600 * 1000
	long := FenceKeep(day*ms, 0)
	l, _, _ := Lock{}.Acquire(noon, "a", day, noon, 0, long, deaf)
	if want := noon/1000 + 2*day; l.FenceUntil != want {
		t.Fatalf("counter kept until %d, want %d", l.FenceUntil, want)
	}
	// A hand-over does not know how long the next lease will be; the confirmation does.
	l.FenceUntil = noon/1000 + keep
	l, _, _ = l.Acquire(noon, "a", day, noon, 0, long, deaf)
	if want := noon/1000 + 2*day; l.FenceUntil != want {
		t.Fatalf("confirmed: counter kept until %d, want %d", l.FenceUntil, want)
	}
}

func TestCommitNeedsTheOwner(t *testing.T) {
	t.Parallel()
	l := taken(t)
	for _, owner := range []string{"b", ""} {
		if got, r := l.Commit(noon, owner, base+1000, keep); r != reply(Refused) || got != l {
			t.Errorf("commit by %q: %+v", owner, r)
		}
	}
	if _, r := l.Commit(noon+(ttl+1)*1000, "a", base+1000, keep); r != reply(Refused) {
		t.Error("commit after expiry was accepted")
	}
}

func TestCommitNeverLowersTheCounter(t *testing.T) {
	t.Parallel()
	l := taken(t)
	if got, r := l.Commit(noon, "a", base-1, keep); r != reply(Refused) || got != l {
		t.Error("a token below the block was accepted")
	}
	for _, token := range []int64{base, base + 1, base + 1000} {
		got, r := l.Commit(noon, "a", token, keep)
		if r != reply(Accepted) || got.Fence != token+Block-1 {
			t.Errorf("commit of %d: %+v, counter %d", token, r, got.Fence)
		}
		if _, r, _ := got.Acquire(noon, "a", ttl, noon, 0, keep, deaf); r.Token != token {
			t.Errorf("base after commit of %d is %d", token, r.Token)
		}
	}
}

func TestRenewCases(t *testing.T) {
	t.Parallel()
	later := noon + 3_000_000
	free := taken(t)
	free.free()
	newer := free
	newer.Fence = end + 1
	lost := free
	lost.Fence, lost.FenceUntil = 0, 0
	kept := reply(Kept)
	for name, tt := range map[string]struct {
		lock  Lock
		owner string
		reply Reply
		fence int64
	}{
		"mine":                      {taken(t), "a", kept, end},
		"another's":                 {taken(t), "b", reply(NotMine), end},
		"free, nobody since":        {free, "a", kept, end},
		"free, somebody since":      {newer, "a", Reply{Event: Event{Kind: NotMine, Token: end + 1}}, end + 1},
		"free, counter lost too C2": {lost, "a", kept, later},
	} {
		got, r := tt.lock.Renew(later, tt.owner, ttl, later, base, keep)
		if r != tt.reply || got.Fence != tt.fence {
			t.Errorf("%s: %+v, counter %d; want %+v and %d", name, r, got.Fence, tt.reply, tt.fence)
		}
		switch {
		case r != kept && got != tt.lock.At(later):
			t.Errorf("%s: a refused renewal changed the lock", name)
		case r == kept && (got.Owner != "a" || got.Until != later/1000+ttl || got.FenceUntil != later/1000+keep):
			t.Errorf("%s: left %+v", name, got)
		}
	}
}

func TestAdoptComparesWhoseTheLockIs(t *testing.T) {
	t.Parallel()
	free := taken(t)
	free.free()
	lost := taken(t)
	lost.Fence, lost.FenceUntil = 0, 0
	mine := taken(t)
	mine.Owner = "new"
	later := noon + 3_000_000
	for name, tt := range map[string]struct {
		lock Lock
		from string
		base int64 // 0: denied
	}{
		"that one's":           {taken(t), "a", end + 1},
		"asked again":          {mine, "a", base},
		"another's":            {taken(t), "b", 0},
		"nobody's":             {free, "a", 0},
		"nobody's, of no name": {free, "", 0},
		"the counter is lost":  {lost, "a", later - Block + 1},
	} {
		got, r := tt.lock.Adopt(later, tt.from, "new", ttl, later, keep)
		if tt.base == 0 {
			if r.Kind == Granted || got != tt.lock.At(later) {
				t.Errorf("%s: %+v, left %+v", name, r, got)
			}
			continue
		}
		if r.Kind != Granted || r.Token != tt.base || got.Owner != "new" || got.Until != later/1000+ttl ||
			got.Fence != tt.base+Block-1 || got.FenceUntil != later/1000+keep {
			t.Errorf("%s: %+v, left %+v", name, r, got)
		}
	}
	if got, r := lost.Adopt(noon, "a", "new", ttl, noon+3600*1_000_000, keep); r.Kind != Failed || got != lost.At(noon) {
		t.Errorf("clocks differ: %+v, left %+v", r, got)
	}
	waits := taken(t)
	waits.Queue, waits.QueueUntil = waits.Queue.With("a", 1).With("b", 2), noon/1000+QueueKeep
	if got, _ := waits.Adopt(noon, "a", "new", ttl, noon, keep); !slices.Equal(owners(got.Queue), []string{"b"}) {
		t.Errorf("waiting: %v", owners(got.Queue))
	}
}

func TestARenewalWithoutATokenTakesNothing(t *testing.T) {
	t.Parallel()
	free := taken(t)
	free.free()
	for name, lock := range map[string]Lock{"free": free, "never held": {}} {
		if got, v := lock.Renew(noon, "a", ttl, noon, 0, keep); v != reply(NotMine) || got != lock.At(noon) {
			t.Errorf("%s: %+v, left %+v", name, v, got)
		}
	}
	if got, v := taken(t).Renew(noon, "a", ttl+1, noon, 0, keep); v.Kind != Kept || got.Until != noon/1000+ttl+1 || got.Fence != end {
		t.Errorf("mine: %+v, left %+v", v, got)
	}
}

func TestReclaimTakesAFreeLockOfWhichNobodyHasHadAnySince(t *testing.T) {
	t.Parallel()
	free := taken(t)
	free.free()
	newer := free
	newer.Fence = end + Block
	older := free
	older.Fence = end - Block
	lost := free
	lost.Fence, lost.FenceUntil = 0, 0
	for name, tt := range map[string]struct {
		lock  Lock
		fence int64
		ok    bool
	}{
		"free, as it was told":  {free, end, true},
		"a grant has been":      {newer, end, false},
		"the counter was lower": {older, end, false},
		"the counter was lost":  {lost, end, false},
		"… and so nothing told": {lost, 0, false},
		"another's":             {taken(t), end, false},
	} {
		got, r := tt.lock.Reclaim(noon, "b", ttl, tt.fence, keep)
		want := tt.lock.At(noon)
		if tt.ok {
			want.Owner, want.Until, want.FenceUntil = "b", noon/1000+ttl, noon/1000+keep
		}
		if (r.Kind == Kept) != tt.ok || got != want {
			t.Errorf("%s: %+v, left %+v, want %+v", name, r, got, want)
		}
	}
}

func TestRenewalBelowItsTokenDoesNotLowerALostCounter(t *testing.T) {
	t.Parallel()
	ahead := noon + 3600*1_000_000 // granted when the clock ran an hour ahead
	l, _ := Lock{}.Renew(noon, "a", ttl, noon, ahead, keep)
	if l.Fence != ahead+Block-1 {
		t.Fatalf("counter %d, want %d", l.Fence, ahead+Block-1)
	}
}

func TestReleaseHandsOverToTheFirstWaiter(t *testing.T) {
	t.Parallel()
	l, woken := waited(t).Release(noon, "a", 0, 1000, keep, hears)
	if want := (Wake{Owner: "b", Base: end + 1, Left: 1000}); woken != want || l.Owner != "b" || l.Until != noon/1000+1000 {
		t.Fatalf("woken %v, want %v; owner %q until %d", woken, want, l.Owner, l.Until)
	}
	if l.Fence != end+Block {
		t.Errorf("counter %d, want a block more than %d", l.Fence, end)
	}
	if got := owners(l.Queue); !slices.Equal(got, []string{"c"}) {
		t.Errorf("still waiting: %v", got)
	}
	l, r, _ := l.Acquire(noon, "b", ttl, noon, 6, keep, deaf)
	if r.Kind != Granted || r.Token != end+1 || l.Until != noon/1000+ttl {
		t.Errorf("confirmation: %+v, until %d", r, l.Until)
	}
}

// Somebody gave it back who was the first in the queue, and nobody has asked since.
func TestReleasePassesOnAFreeLock(t *testing.T) {
	t.Parallel()
	free, _ := waited(t).Release(noon, "a", 5, 1000, keep, hears)
	for name, tt := range map[string]struct {
		owner string
		stamp int64
		want  string
	}{
		"by who withdraws":           {"a", 0, "b"},
		"by who has no place":        {"x", 0, "a"},
		"a give-back leaves it free": {"x", 9, ""},
	} {
		if l, woken := free.Release(noon, tt.owner, tt.stamp, 1000, keep, hears); l.Owner != tt.want || woken.Owner != tt.want {
			t.Errorf("%s: woken %v, owner %q, want %q", name, woken, l.Owner, tt.want)
		}
	}
}

func TestReleaseSkipsWaitersThatDoNotHear(t *testing.T) {
	t.Parallel()
	l, woken := waited(t).Release(noon, "a", 0, 1000, keep, func(o string) bool { return o == "c" })
	if woken.Owner != "c" || l.Owner != "c" || l.Queue != "" {
		t.Fatalf("woken %q, owner %q, queue %v", woken.Owner, l.Owner, owners(l.Queue))
	}
	l, woken = waited(t).Release(noon, "a", 0, 1000, keep, deaf)
	if woken != (Wake{}) || l.Owner != "" || l.Queue != "" || l.Fence != end+Block {
		t.Fatalf("nobody hears: woken %q, left %+v", woken.Owner, l)
	}
}

func TestReleaseByAnotherOnlyWithdraws(t *testing.T) {
	t.Parallel()
	l, woken := waited(t).Release(noon, "b", 0, 1000, keep, hears)
	if woken.Owner != "" || l.Owner != "a" || !slices.Equal(owners(l.Queue), []string{"c"}) {
		t.Fatalf("woken %q, owner %q, queue %v", woken.Owner, l.Owner, owners(l.Queue))
	}
	before := waited(t)
	if got, _ := before.Release(noon, "x", 0, 1000, keep, hears); got != before {
		t.Fatal("a stranger's release changed the lock")
	}
}

func TestGiveBackPassesToAnEarlierWaiter(t *testing.T) {
	t.Parallel()
	l, woken := waited(t).Release(noon, "a", 9, 1000, keep, hears)
	if woken.Owner != "b" || !slices.Equal(owners(l.Queue), []string{"c", "a"}) {
		t.Fatalf("woken %q, queue %v", woken.Owner, owners(l.Queue))
	}
}

// Trace C4: a node that is kept for its giver blocks everybody until it asks again.
func TestGiveBackByTheHeadLeavesTheLockFree(t *testing.T) {
	t.Parallel()
	l, woken := waited(t).Release(noon, "a", 5, 1000, keep, hears)
	if woken.Owner != "" || l.Owner != "" || !slices.Equal(owners(l.Queue), []string{"a", "b", "c"}) {
		t.Fatalf("woken %q, owner %q, queue %v", woken.Owner, l.Owner, owners(l.Queue))
	}
}

// Trace C6: a client that happens to ask while a lock is free does not go before the waiters.
func TestAFreeLockGoesToTheFirstWaiter(t *testing.T) {
	t.Parallel()
	free, _ := waited(t).Release(noon, "a", 5, 1000, keep, hears)
	lapsed := waited(t)
	lapsed.Until = noon/1000 - 1
	for _, place := range []int64{0, 6, 8} {
		l, r, _ := free.Acquire(noon, "b", ttl, noon, place, keep, hears)
		if want := (Reply{Event: Event{Kind: Denied, Left: 1000 * ms, Waiters: 2}, Holder: "a"}); r != want {
			t.Errorf("b with stamp %d on a lock that was given back: %+v, want %+v", place, r, want)
		}
		if l.Owner != "a" || l.Fence != end+Block || !slices.Equal(owners(l.Queue), []string{"b", "c"}) {
			t.Errorf("left %+v, waiting %v", l, owners(l.Queue))
		}
		l, r, woken := lapsed.Acquire(noon, "d", 300, noon, place, keep, hears)
		if woken.Owner != "b" || l.Owner != "b" || l.Until != noon/1000+300 {
			t.Errorf("d with stamp %d on a lock that lapsed: %+v, owner %q until %d", place, r, l.Owner, l.Until)
		}
	}
}

func TestTheFirstInLineTakesAFreeLockAndLeavesTheQueue(t *testing.T) {
	t.Parallel()
	lapsed := waited(t)
	lapsed.Until = noon/1000 - 1
	for name, tt := range map[string]struct {
		owner string
		place int64
		hears func(string) bool
		left  []string
	}{
		"the first of the queue":                 {"b", 6, hears, []string{"c"}},
		"one that came before it":                {"d", 5, hears, []string{"b", "c"}},
		"anybody, where no other waiter listens": {"d", 8, deaf, nil},
		"without a place":                        {"d", 0, deaf, nil},
	} {
		l, r, _ := lapsed.Acquire(noon, tt.owner, ttl, noon, tt.place, keep, tt.hears)
		if r.Kind != Granted || r.Token != end+1 || l.Owner != tt.owner || l.Until != noon/1000+ttl || !slices.Equal(owners(l.Queue), tt.left) {
			t.Errorf("%s: %+v, left %+v, waiting %v", name, r, l, owners(l.Queue))
		}
	}
}

func TestHandOverKeepsTheCounterOfALongLease(t *testing.T) {
	t.Parallel()
	const hour = 3600 * 1000
	l, woken := waited(t).Release(noon, "a", 0, 1000, FenceKeep(hour*ms, 0), hears)
	if woken.Owner != "b" || l.Until != noon/1000+1000 || l.FenceUntil != noon/1000+2*hour {
		t.Fatalf("woken %q until %d, counter until %d", woken.Owner, l.Until, l.FenceUntil)
	}
}

func TestQueueIsForgottenWhenNobodyAsks(t *testing.T) {
	t.Parallel()
	l := waited(t).At(noon + (QueueKeep+1)*1000)
	if l.Queue != "" {
		t.Fatalf("still waiting: %v", owners(l.Queue))
	}
}

func TestForceComparesTheToken(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		token int64
		want  bool
	}{{base - 1, false}, {base, true}, {end, true}, {end + 1, false}, {0, false}} {
		before := waited(t)
		l, forced, woken := before.Force(noon, tt.token, 1000, keep, hears)
		switch {
		case forced != tt.want:
			t.Errorf("force of %+d: %v", tt.token-base, forced)
		case !forced && l != before:
			t.Errorf("force of %+d changed the lock", tt.token-base)
		case forced && (woken.Owner != "b" || l.Fence <= end):
			t.Errorf("force of %+d: woken %q, counter %+d", tt.token-base, woken.Owner, l.Fence-end)
		}
	}
}

func TestForcedHolderCannotRenew(t *testing.T) {
	t.Parallel()
	l, _, _ := taken(t).Force(noon, base, 1000, keep, hears)
	if _, r := l.Renew(noon, "a", ttl, noon, base, keep); r.Kind != NotMine || r.Token != l.Fence {
		t.Fatalf("renewal after force: %+v", r)
	}
}

func TestForceNeedsACounter(t *testing.T) {
	t.Parallel()
	l := taken(t)
	l.Fence, l.FenceUntil = 0, 0
	if _, forced, _ := l.Force(noon, 0, 1000, keep, hears); forced {
		t.Fatal("token 0 took a lock without a counter")
	}
}

// A renewal can set a lock whose owner still waits in the queue there.
func TestForceDoesNotHandTheLockBack(t *testing.T) {
	t.Parallel()
	l := taken(t)
	l.Queue, l.QueueUntil = l.Queue.With("a", 1).With("b", 2), noon/1000+QueueKeep
	if _, _, woken := l.Force(noon, base, 1000, keep, hears); woken.Owner != "b" {
		t.Fatalf("handed to %q", woken.Owner)
	}
}

func TestNothingIsLeftOfALockAfterItsCounterExpired(t *testing.T) {
	t.Parallel()
	l := waited(t).At(noon + (keep+1)*1000)
	if l != (Lock{}) {
		t.Fatalf("left %+v", l)
	}
}

func TestNoRequestOfTheOwnerShortensItsLock(t *testing.T) {
	t.Parallel()
	const brief = 1000
	l := Lock{Owner: "a", Until: noon/1000 + 5000, Fence: 31, FenceUntil: noon/1000 + keep}
	deaf := func(string) bool { return false }
	acquired, _, _ := l.Acquire(noon, "a", brief, noon, 0, keep, deaf)
	adopted, _ := l.Adopt(noon, "b", "a", brief, noon, keep)
	renewed, _ := l.Renew(noon, "a", brief, noon, Base(31), keep)
	for what, got := range map[string]Lock{"acquire": acquired, "adopt": adopted, "renew": renewed} {
		if got.Owner != "a" || got.Until != l.Until {
			t.Errorf("%s: %+v, want it until %d", what, got, l.Until)
		}
	}
}

func TestALockThatIsKeptIsNobodys(t *testing.T) {
	t.Parallel()
	deaf := func(string) bool { return false }
	l := Lock{Owner: "a", Until: noon/1000 + 5000, Fence: 31, FenceUntil: noon/1000 + keep}.Keep(noon, "a", 3000, keep)
	if !IsKept(l.Owner) || l.Until != noon/1000+3000 {
		t.Fatalf("%+v, want it kept for 3 s", l)
	}
	if got, r := l.Renew(noon, "a", 9000, noon, Base(31), keep); got != l || r.Kind != NotMine {
		t.Errorf("renew: %v, %+v", r.Kind, got)
	}
	if got, r := l.Adopt(noon, "a", "b", 9000, noon, keep); got != l || r.Kind != Denied {
		t.Errorf("adopt: %v, %+v", r.Kind, got)
	}
	if got, ok, _ := l.Force(noon, Base(31), 1000, keep, deaf); got != l || ok {
		t.Errorf("force: %v, %+v", ok, got)
	}
	if got, _ := l.Release(noon, "a", 0, 1000, keep, deaf); got != l {
		t.Errorf("release: %+v", got)
	}
	if got := l.Keep(noon, "a", 9000, keep); got != l {
		t.Errorf("a second release for a time: %+v", got)
	}
}
