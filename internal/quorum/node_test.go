package quorum

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// Times of the tests: noon is the initial clock in µs, ttl is in ms.
const (
	noon          = int64(1_800_000_000_000_000)
	ttl           = int64(10_000)
	firstBlockEnd = noon // last token of the first block of a counter that starts at noon
	base          = firstBlockEnd - Block + 1
)

func nobodyListens(string) bool    { return false }
func everybodyListens(string) bool { return true }

// lockHeldByA returns a lock that a acquired at noon, on a new node.
func lockHeldByA(t *testing.T) Lock {
	t.Helper()
	l, r, _ := Lock{}.Acquire(noon, "a", ttl, noon, 0, 0, nobodyListens)
	if want := (Reply{Event: Event{Kind: Granted, Token: base}}); r != want {
		t.Fatalf("first acquire: %+v, want %+v", r, want)
	}
	return l
}

// lockWithQueue returns a lock of a, with b and c in the queue.
func lockWithQueue(t *testing.T) Lock {
	t.Helper()
	l, _, _ := lockHeldByA(t).Acquire(noon, "c", ttl, noon, 0, 7, nobodyListens)
	l, _, _ = l.Acquire(noon, "b", ttl, noon, 0, 6, nobodyListens)
	return l
}

func queueOwners(q Queue) []string {
	var all []string
	for p := range q.Places {
		all = append(all, p.Owner)
	}
	return all
}

// withPlaces returns q with places for the owners, in this order.
func withPlaces(q Queue, owners ...string) Queue {
	for i, owner := range owners {
		q = q.With(Place{Owner: owner, Stamp: int64(i + 1), Until: noon/1000 + QueueKeep})
	}
	return q
}

func TestRepeatedAcquireChangesOnlyExpiry(t *testing.T) {
	t.Parallel()
	first := lockHeldByA(t)
	again, r, _ := first.Acquire(noon+1_000_000, "a", ttl, noon+1_000_000, 0, 0, nobodyListens)
	if r.Kind != Granted || r.Token != base {
		t.Fatalf("second acquire: %+v", r)
	}
	first.Until += 1000
	if again != first {
		t.Fatalf("second acquire left %+v, want %+v", again, first)
	}
}

func TestDenialDoesNotChangeCounter(t *testing.T) {
	t.Parallel()
	l, r, _ := lockHeldByA(t).Acquire(noon+5_000_000, "b", ttl, noon, 0, 0, nobodyListens)
	if want := (Reply{Event: Event{Kind: Denied, Left: 5000 * ms}, Holder: "a"}); r != want {
		t.Fatalf("denial: %+v, want %+v", r, want)
	}
	if l != lockHeldByA(t) {
		t.Fatalf("denial without a stamp left %+v", l)
	}
	l, r, _ = l.Acquire(noon, "b", ttl, noon, 0, 5, nobodyListens)
	if r.Kind == Granted || r.Waiters != 1 || l.Fence != firstBlockEnd || l.Queue.Len() != 1 {
		t.Fatalf("denial with a stamp: %+v, %+v", r, l)
	}
}

func TestExpiredLockIsFree(t *testing.T) {
	t.Parallel()
	l := lockHeldByA(t)
	if _, r, _ := l.Acquire(noon+ttl*1000, "b", ttl, noon, 0, 0, nobodyListens); r.Kind == Granted {
		t.Fatal("granted in the last millisecond of another owner's lock")
	}
	_, r, _ := l.Acquire(noon+(ttl+1)*1000, "b", ttl, noon, 0, 0, nobodyListens)
	if r.Kind != Granted || r.Token != base+Block {
		t.Fatalf("after expiry: %+v, want base %d", r, base+Block)
	}
}

func TestNewCounterStartsAtClock(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ clock, want int64 }{
		{noon + 999_999, noon + 999_999},
		{noon - 1_000_000, noon - 1_000_000},
		{noon + 1_000_001, noon}, // a clock that differs by more than a second is not trusted
		{noon - 1_000_001, noon},
		{noon + 60_000_000, noon},
		{noon - 60_000_000, noon},
	} {
		if _, r, _ := (Lock{}).Acquire(noon, "a", ttl, tt.clock, 0, 0, nobodyListens); r.Kind != Granted || r.Token != tt.want-Block+1 {
			t.Errorf("clock at %+d µs: base %d, want %d", tt.clock-noon, r.Token, tt.want-Block+1)
		}
	}
}

// Trace C5: a counter that starts at a wrong time is above all later starts.
func TestClockSkewPreventsNewCounter(t *testing.T) {
	t.Parallel()
	lost := lockHeldByA(t)
	lost.Token, lost.Fence = 0, 0
	idle := lockWithQueue(t)
	idle.free()
	idle.Fence = 0
	for _, clock := range []int64{noon + 60_000_001, noon - 60_000_001, noon - 3600*1_000_000, 0} {
		for name, before := range map[string]Lock{"never used": {}, "waited for": idle, "held by the same, without a token": lost} {
			if l, r, _ := before.Acquire(noon, "a", ttl, clock, 0, 5, nobodyListens); r.Kind != Failed || l != before {
				t.Errorf("acquire, clock at %+d µs, %s: %+v, left %+v", clock-noon, name, r, l)
			}
		}
		// The clock does not matter if the counter exists or the lock already has its token.
		counted, r, _ := lockHeldByA(t).Acquire(noon+(ttl+1)*1000, "b", ttl, clock, 0, 0, nobodyListens)
		if r.Kind != Granted || r.Token != firstBlockEnd+1 {
			t.Errorf("existing counter, clock at %+d µs: %+v", clock-noon, r)
		}
		counted.Fence = 0
		if l, r, _ := counted.Acquire(noon, "b", ttl, clock, 0, 0, nobodyListens); r.Kind != Granted || r.Token != firstBlockEnd+1 || l.Fence != 0 {
			t.Errorf("existing token, clock at %+d µs: %+v, counter %d", clock-noon, r, l.Fence)
		}
	}
}

func TestClockErrorNamesOffset(t *testing.T) {
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

// Only a loss of the server's memory ends the counter.
func TestCounterNeverExpires(t *testing.T) {
	t.Parallel()
	const year = 365 * 24 * 3600 * 1_000_000
	l := lockWithQueue(t).At(noon + year)
	if l != (Lock{Fence: firstBlockEnd}) {
		t.Fatalf("left %+v, want only the counter", l)
	}
	for _, clock := range []int64{noon + year, noon, 0} {
		if _, r, _ := l.Acquire(noon+year, "b", ttl, clock, 0, 0, nobodyListens); r.Kind != Granted || r.Token != firstBlockEnd+1 {
			t.Errorf("a year later, clock at %+d µs: %+v, want token %d", clock-noon, r, firstBlockEnd+1)
		}
	}
}

// All locks of a node share its counter: only Fence is common to them.
func TestTokensRiseAcrossSharedCounter(t *testing.T) {
	t.Parallel()
	names := []string{"x", "y", "z"}
	locks, last, fence := make(map[string]Lock), int64(0), int64(0)
	for i := range 30 {
		name, now := names[i*i%3], noon+int64(i)*(ttl+1)*1000
		l := locks[name]
		l.Fence = fence
		l, r, _ := l.Acquire(now, "a", ttl, now, 0, 0, nobodyListens)
		if r.Kind != Granted || i > 0 && r.Token != last+Block || l.Fence != LastOfBlock(r.Token) {
			t.Fatalf("grant %d, of %s: %+v after %d, counter %d", i, name, r, last, l.Fence)
		}
		last, fence, locks[name] = r.Token, l.Fence, l
	}
}

func TestTokensStartAtMinToken(t *testing.T) {
	t.Parallel()
	free := lockWithQueue(t)
	free.free()
	for name, tt := range map[string]struct {
		lock  Lock
		least int64
		token int64
	}{
		"above the counter":             {free, firstBlockEnd + 1000, firstBlockEnd + 1000},
		"below it":                      {free, base, firstBlockEnd + 1},
		"a counter that is new":         {Lock{}, noon + 1000, noon + 1000},
		"the owner's, above its token":  {lockHeldByA(t), firstBlockEnd + 1000, firstBlockEnd + 1000},
		"the owner's, in the block":     {lockHeldByA(t), base + 1, firstBlockEnd + 1},
		"the owner's, as high as least": {lockHeldByA(t), base, base},
	} {
		l, r, _ := tt.lock.Acquire(noon, "a", ttl, noon, tt.least, 0, nobodyListens)
		if r.Kind != Granted || r.Token != tt.token || l.Token != tt.token || l.Fence != LastOfBlock(tt.token) {
			t.Errorf("acquire, %s: %+v, left %+v, want token %d", name, r, l, tt.token)
		}
		if tt.lock.Owner == "" {
			continue
		}
		if l, r := tt.lock.Adopt(noon, "z", "a", ttl, noon, tt.least, 0); r.Kind != Granted || r.Token != tt.token || l.Token != tt.token {
			t.Errorf("adopt, %s: %+v, left %+v, want token %d", name, r, l, tt.token)
		}
	}
	l, r := lockHeldByA(t).Adopt(noon, "a", "b", ttl, noon, firstBlockEnd+1000, 0)
	if r.Token != firstBlockEnd+1000 || l.Fence != LastOfBlock(firstBlockEnd+1000) {
		t.Errorf("adopt from another: %+v, left %+v", r, l)
	}
	if l, w := lockWithQueue(t).Release(noon, "a", firstBlockEnd+1000, 0, 1000, everybodyListens); w.Base != firstBlockEnd+1000 || l.Token != firstBlockEnd+1000 {
		t.Errorf("release: woken %+v, left %+v", w, l)
	}
	if l, _, w := lockWithQueue(t).Force(noon, "a", firstBlockEnd+1000, 1000, 0, everybodyListens); w.Base != firstBlockEnd+1000 || l.Token != firstBlockEnd+1000 {
		t.Errorf("force: woken %+v, left %+v", w, l)
	}
}

// A hand-over does not carry a client's clock. The woken waiter acquires the lock with its own clock.
func TestHandOverDoesNotStartLostCounter(t *testing.T) {
	t.Parallel()
	l := lockWithQueue(t)
	l.Fence = 0
	l, woken := l.Release(noon+1, "a", 0, 0, 1000, everybodyListens)
	if woken != (Wake{Owner: "b"}) || l.Owner != "" || l.Fence != 0 || !slices.Equal(queueOwners(l.Queue), []string{"c"}) {
		t.Fatalf("woken %q, left %+v", woken.Owner, l)
	}
	l, r, _ := l.Acquire(noon+2, "b", ttl, noon+2, 0, 6, nobodyListens)
	if r.Kind != Granted || r.Token != noon+2-Block+1 || !slices.Equal(queueOwners(l.Queue), []string{"c"}) {
		t.Fatalf("then: %+v, left %+v", r, l)
	}
}

// A later grant has the higher token, whatever the node's clock does after the counter has started.
func TestClockJumpDoesNotLowerTokens(t *testing.T) {
	t.Parallel()
	const hour = 3600 * 1_000_000
	errs := []int64{-hour, 0, hour}
	for _, renewed := range errs {
		for _, asked := range errs {
			for _, idle := range []int64{0, 100, 24 * 3600} {
				l, a, _ := Lock{}.Acquire(noon, "a", ttl, noon, 0, 0, nobodyListens)
				l, _ = l.Renew(noon+renewed, "a", ttl, a.Token, false)
				l, _ = l.Release(noon+renewed, "a", 0, 0, 1000, nobodyListens)
				later := noon + idle*1_000_000
				if _, b, _ := l.Acquire(later+asked, "b", ttl, later, 0, 0, nobodyListens); b.Token != a.Token+Block {
					t.Fatalf("clock %+d h, %d s later %+d h: base %d after %d", renewed/hour, idle, asked/hour, b.Token, a.Token)
				}
			}
		}
	}
}

func TestCommitNeedsOwner(t *testing.T) {
	t.Parallel()
	l := lockHeldByA(t)
	for _, owner := range []string{"b", ""} {
		if got, r := l.Commit(noon, owner, base+1000); r != replyOf(Refused) || got != l {
			t.Errorf("commit by %q: %+v", owner, r)
		}
	}
	if _, r := l.Commit(noon+(ttl+1)*1000, "a", base+1000); r != replyOf(Refused) {
		t.Error("commit after expiry was accepted")
	}
}

func TestCommitSetsTokenAndRaisesCounter(t *testing.T) {
	t.Parallel()
	high := lockHeldByA(t)
	high.Fence = firstBlockEnd + 100*Block // of other locks on the node
	for _, before := range []Lock{lockHeldByA(t), high} {
		for _, token := range []int64{base, base + 1, base + 1000, firstBlockEnd + 200*Block} {
			l, r := before.Commit(noon, "a", token)
			want := before
			want.Token, want.Fence = token, max(before.Fence, LastOfBlock(token))
			if r != replyOf(Accepted) || l != want {
				t.Errorf("commit of %+d, counter %+d: %+v, left %+v", token-base, before.Fence-firstBlockEnd, r, l)
			}
			if _, r, _ := l.Acquire(noon, "a", ttl, noon, 0, 0, nobodyListens); r.Token != token {
				t.Errorf("a commit of %+d returned token %d", token-base, r.Token-base)
			}
		}
	}
}

// The owner's token on the node may belong to a later grant, with other grants in between: the lock was lost,
// and an acquire of the owner was executed twice.
func TestCommitBelowLockTokenIsRejected(t *testing.T) {
	t.Parallel()
	l := lockHeldByA(t)
	l.free() // the node forgets the lock
	_, other, _ := l.Acquire(noon, "b", ttl, noon, 0, 0, nobodyListens)
	l.Fence = LastOfBlock(other.Token) // …and the lock of b as well
	l, again, _ := l.Acquire(noon, "a", ttl, noon, 0, 0, nobodyListens)
	if other.Token != firstBlockEnd+1 || again.Token != firstBlockEnd+1+Block {
		t.Fatalf("granted %d, then %d", other.Token, again.Token)
	}
	for _, token := range []int64{base, firstBlockEnd, firstBlockEnd + 1, again.Token - 1} {
		if got, r := l.Commit(noon, "a", token); r != replyOf(Refused) || got != l {
			t.Errorf("commit of %+d: %+v, left %+v", token-again.Token, r, got)
		}
	}
	if _, r := l.Commit(noon, "a", again.Token); r != replyOf(Accepted) {
		t.Errorf("repeated commit of the token: %+v", r)
	}
}

// The node may have granted higher tokens before it lost the counter.
func TestCommitDoesNotStartCounter(t *testing.T) {
	t.Parallel()
	l := lockHeldByA(t)
	l.Fence = 0
	for _, token := range []int64{base, firstBlockEnd, noon + 1000} {
		if got, r := l.Commit(noon, "a", token); r != replyOf(Refused) || got != l {
			t.Errorf("commit of %+d: %+v, left %+v", token-base, r, got)
		}
	}
}

func TestRenewAnswersEachState(t *testing.T) {
	t.Parallel()
	later := noon + 3_000_000
	free := lockHeldByA(t)
	free.free()
	newer := free
	newer.Fence = firstBlockEnd + Block
	lost := free
	lost.Fence = 0
	kept := lockHeldByA(t).Keep(noon, "a", ttl)
	for name, tt := range map[string]struct {
		lock  Lock
		owner string
		anew  bool
		ok    bool
	}{
		"mine":                       {lockHeldByA(t), "a", false, true},
		"mine, anew":                 {lockHeldByA(t), "a", true, true},
		"another's":                  {lockHeldByA(t), "b", false, false},
		"another's, anew":            {lockHeldByA(t), "b", true, false},
		"free":                       {free, "a", false, false},
		"free, anew":                 {free, "a", true, true},
		"free, others since, anew":   {newer, "a", true, true},
		"free, counter lost, anew":   {lost, "a", true, true},
		"stands for a MinHold":       {kept, "a", false, false},
		"stands for a MinHold, anew": {kept, "a", true, false},
	} {
		want, kind := tt.lock, NotMine
		if tt.ok {
			want.Owner, want.Token, want.Until, kind = "a", base, later/1000+ttl, Kept
		}
		if got, r := tt.lock.Renew(later, tt.owner, ttl, base, tt.anew); r != replyOf(kind) || got != want {
			t.Errorf("%s: %+v, left %+v, want %+v", name, r, got, want)
		}
	}
}

// A renewal does not change the token that the node has promised.
func TestRenewalKeepsToken(t *testing.T) {
	t.Parallel()
	for _, token := range []int64{0, base - 1, base + 1000} {
		for _, anew := range []bool{false, true} {
			if l, r := lockHeldByA(t).Renew(noon, "a", ttl, token, anew); r.Kind != Kept || l != lockHeldByA(t) {
				t.Errorf("token %+d, anew %v: %+v, left %+v", token-base, anew, r, l)
			}
		}
	}
}

func TestAdoptComparesOwner(t *testing.T) {
	t.Parallel()
	free := lockHeldByA(t)
	free.free()
	lost := lockHeldByA(t)
	lost.Fence = 0
	mine := lockHeldByA(t)
	mine.Owner = "new"
	bare := mine
	bare.Token = 0
	later := noon + 3_000_000
	for name, tt := range map[string]struct {
		lock Lock
		from string
		base int64 // 0: denied
		top  int64
	}{
		"that one's":             {lockHeldByA(t), "a", firstBlockEnd + 1, firstBlockEnd + Block},
		"asked again":            {mine, "a", base, firstBlockEnd},
		"again, without a token": {bare, "a", firstBlockEnd + 1, firstBlockEnd + Block},
		"another's":              {lockHeldByA(t), "b", 0, firstBlockEnd},
		"nobody's":               {free, "a", 0, firstBlockEnd},
		"nobody's, of no name":   {free, "", 0, firstBlockEnd},
		"the counter is lost":    {lost, "a", later - Block + 1, later},
	} {
		got, r := tt.lock.Adopt(later, tt.from, "new", ttl, later, 0, 0)
		if tt.base == 0 {
			if r.Kind == Granted || got != tt.lock.At(later) {
				t.Errorf("%s: %+v, left %+v", name, r, got)
			}
			continue
		}
		if r.Kind != Granted || r.Token != tt.base || got.Owner != "new" || got.Until != later/1000+ttl ||
			got.Token != tt.base || got.Fence != tt.top {
			t.Errorf("%s: %+v, left %+v", name, r, got)
		}
	}
	if got, r := lost.Adopt(noon, "a", "new", ttl, noon+3600*1_000_000, 0, 0); r.Kind != Failed || got != lost.At(noon) {
		t.Errorf("clocks differ: %+v, left %+v", r, got)
	}
	bare.Fence, bare.Queue = 0, withPlaces(bare.Queue, "a")
	if got, r := bare.Adopt(noon, "a", "new", ttl, noon+3600*1_000_000, 0, 0); r.Kind != Failed || got != bare.At(noon) {
		t.Errorf("repeated request, clocks differ: %+v, left %+v", r, got)
	}
	waits := lockHeldByA(t)
	waits.Queue = withPlaces(waits.Queue, "a", "b")
	if got, _ := waits.Adopt(noon, "a", "new", ttl, noon, 0, 0); !slices.Equal(queueOwners(got.Queue), []string{"b"}) {
		t.Errorf("waiting: %v", queueOwners(got.Queue))
	}
}

func TestReleaseHandsOverToFirstWaiter(t *testing.T) {
	t.Parallel()
	l, woken := lockWithQueue(t).Release(noon, "a", 0, 0, 1000, everybodyListens)
	if want := (Wake{Owner: "b", Base: firstBlockEnd + 1, Left: 1000}); woken != want || l.Owner != "b" || l.Until != noon/1000+1000 {
		t.Fatalf("woken %v, want %v; owner %q until %d", woken, want, l.Owner, l.Until)
	}
	if l.Fence != firstBlockEnd+Block {
		t.Errorf("counter %d, want a block more than %d", l.Fence, firstBlockEnd)
	}
	if got := queueOwners(l.Queue); !slices.Equal(got, []string{"c"}) {
		t.Errorf("still waiting: %v", got)
	}
	l, r, _ := l.Acquire(noon, "b", ttl, noon, 0, 6, nobodyListens)
	if r.Kind != Granted || r.Token != firstBlockEnd+1 || l.Until != noon/1000+ttl {
		t.Errorf("confirmation: %+v, until %d", r, l.Until)
	}
}

// The head of the queue gave the lock back, and no client has asked since.
func TestReleaseHandsFreeLockToWaiter(t *testing.T) {
	t.Parallel()
	free, _ := lockWithQueue(t).Release(noon, "a", 0, 5, 1000, everybodyListens)
	for name, tt := range map[string]struct {
		owner string
		stamp int64
		want  string
	}{
		"by who withdraws":           {"a", 0, "b"},
		"by who has no place":        {"x", 0, "a"},
		"a give-back leaves it free": {"x", 9, ""},
	} {
		if l, woken := free.Release(noon, tt.owner, 0, tt.stamp, 1000, everybodyListens); l.Owner != tt.want || woken.Owner != tt.want {
			t.Errorf("%s: woken %v, owner %q, want %q", name, woken, l.Owner, tt.want)
		}
	}
}

func TestReleaseSkipsUnsubscribedWaiters(t *testing.T) {
	t.Parallel()
	l, woken := lockWithQueue(t).Release(noon, "a", 0, 0, 1000, func(o string) bool { return o == "c" })
	if woken.Owner != "c" || l.Owner != "c" || l.Queue != "" {
		t.Fatalf("woken %q, owner %q, queue %v", woken.Owner, l.Owner, queueOwners(l.Queue))
	}
	l, woken = lockWithQueue(t).Release(noon, "a", 0, 0, 1000, nobodyListens)
	if woken != (Wake{}) || l.Owner != "" || l.Queue != "" || l.Fence != firstBlockEnd+Block {
		t.Fatalf("without listeners: woken %q, left %+v", woken.Owner, l)
	}
}

func TestReleaseByAnotherOnlyWithdraws(t *testing.T) {
	t.Parallel()
	l, woken := lockWithQueue(t).Release(noon, "b", 0, 0, 1000, everybodyListens)
	if woken.Owner != "" || l.Owner != "a" || !slices.Equal(queueOwners(l.Queue), []string{"c"}) {
		t.Fatalf("woken %q, owner %q, queue %v", woken.Owner, l.Owner, queueOwners(l.Queue))
	}
	before := lockWithQueue(t)
	if got, _ := before.Release(noon, "x", 0, 0, 1000, everybodyListens); got != before {
		t.Fatal("a release by another owner changed the lock")
	}
}

func TestGiveBackPassesToEarlierWaiter(t *testing.T) {
	t.Parallel()
	l, woken := lockWithQueue(t).Release(noon, "a", 0, 9, 1000, everybodyListens)
	if woken.Owner != "b" || !slices.Equal(queueOwners(l.Queue), []string{"c", "a"}) {
		t.Fatalf("woken %q, queue %v", woken.Owner, queueOwners(l.Queue))
	}
}

// Trace C4: if the node kept the lock for the first waiter, all others would wait until that waiter asks again.
func TestGiveBackByHeadFreesLock(t *testing.T) {
	t.Parallel()
	l, woken := lockWithQueue(t).Release(noon, "a", 0, 5, 1000, everybodyListens)
	if woken.Owner != "" || l.Owner != "" || !slices.Equal(queueOwners(l.Queue), []string{"a", "b", "c"}) {
		t.Fatalf("woken %q, owner %q, queue %v", woken.Owner, l.Owner, queueOwners(l.Queue))
	}
}

// Trace C6: a client that asks while the lock is free does not overtake the waiters.
func TestFreeLockGoesToFirstWaiter(t *testing.T) {
	t.Parallel()
	free, _ := lockWithQueue(t).Release(noon, "a", 0, 5, 1000, everybodyListens)
	lapsed := lockWithQueue(t)
	lapsed.Until = noon/1000 - 1
	for _, place := range []int64{0, 6, 8} {
		l, r, _ := free.Acquire(noon, "b", ttl, noon, 0, min(place, 6), everybodyListens)
		if want := (Reply{Event: Event{Kind: Denied, Left: 1000 * ms, Waiters: 2}, Holder: "a"}); r != want {
			t.Errorf("b with stamp %d on a released lock: %+v, want %+v", place, r, want)
		}
		if l.Owner != "a" || l.Fence != firstBlockEnd+Block || !slices.Equal(queueOwners(l.Queue), []string{"b", "c"}) {
			t.Errorf("left %+v, waiting %v", l, queueOwners(l.Queue))
		}
		l, r, woken := lapsed.Acquire(noon, "d", 300, noon, 0, place, everybodyListens)
		if woken.Owner != "b" || l.Owner != "b" || l.Until != noon/1000+300 {
			t.Errorf("d with stamp %d on an expired lock: %+v, owner %q until %d", place, r, l.Owner, l.Until)
		}
	}
}

func TestFirstWaiterTakesFreeLock(t *testing.T) {
	t.Parallel()
	lapsed := lockWithQueue(t)
	lapsed.Until = noon/1000 - 1
	for name, tt := range map[string]struct {
		owner string
		place int64
		hears func(string) bool
		left  []string
	}{
		"the first of the queue":                 {"b", 6, everybodyListens, []string{"c"}},
		"one that came before it":                {"d", 5, everybodyListens, []string{"b", "c"}},
		"anybody, where no other waiter listens": {"d", 8, nobodyListens, nil},
		"without a place":                        {"d", 0, nobodyListens, nil},
	} {
		l, r, _ := lapsed.Acquire(noon, tt.owner, ttl, noon, 0, tt.place, tt.hears)
		if r.Kind != Granted || r.Token != firstBlockEnd+1 || l.Owner != tt.owner || l.Until != noon/1000+ttl || !slices.Equal(queueOwners(l.Queue), tt.left) {
			t.Errorf("%s: %+v, left %+v, waiting %v", name, r, l, queueOwners(l.Queue))
		}
	}
}

func TestUnusedQueueExpires(t *testing.T) {
	t.Parallel()
	l := lockWithQueue(t).At(noon + (QueueKeep+1)*1000)
	if l.Queue != "" {
		t.Fatalf("still waiting: %v", queueOwners(l.Queue))
	}
}

func TestForceComparesOwner(t *testing.T) {
	t.Parallel()
	for owner, want := range map[string]bool{"a": true, "b": false, "": false} {
		before := lockWithQueue(t)
		l, forced, woken := before.Force(noon, owner, 0, 1000, 0, everybodyListens)
		switch {
		case forced != want:
			t.Errorf("force of %q: %v", owner, forced)
		case !forced && l != before:
			t.Errorf("force of %q changed the lock", owner)
		case forced && (woken.Owner != "b" || l.Fence <= firstBlockEnd):
			t.Errorf("force of %q: woken %q, counter %+d", owner, woken.Owner, l.Fence-firstBlockEnd)
		}
	}
	free := lockWithQueue(t).At(noon + (ttl+1)*1000)
	if l, forced, _ := free.Force(noon+(ttl+1)*1000, "", 0, 1000, 0, everybodyListens); forced || l != free {
		t.Errorf("force of a free lock: %v, left %+v", forced, l)
	}
}

func TestForcedHolderCannotRenew(t *testing.T) {
	t.Parallel()
	for _, handOver := range []int64{1000, 0} {
		for name, before := range map[string]Lock{"nobody waits": lockHeldByA(t), "others wait": lockWithQueue(t)} {
			l, _, _ := before.Force(noon, "a", 0, handOver, 0, everybodyListens)
			if got, r := l.Renew(noon, "a", ttl, base, false); r.Kind != NotMine || got != l {
				t.Errorf("%s, handed over for %d: %+v", name, handOver, r)
			}
		}
	}
}

// The holder may still trust the lease, and its earlier requests may be executed late.
func TestLateRequestsDoNotReviveForcedLease(t *testing.T) {
	t.Parallel()
	for name, take := range map[string]func(l Lock) Lock{
		"force": func(l Lock) Lock {
			l, _, _ = l.Force(noon, "a", 0, 1000, 0, everybodyListens)
			return l
		},
		"adopt": func(l Lock) Lock {
			l, _ = l.Adopt(noon, "a", "n", ttl, noon, 0, 0)
			l, _ = l.Release(noon, "n", 0, 0, 1000, everybodyListens)
			return l
		},
	} {
		l := take(lockHeldByA(t))
		if got, r := l.Renew(noon, "a", ttl, base, true); r.Kind != NotMine || got != l {
			t.Errorf("%s: renewal of a free lock: %+v, left %+v", name, r, got)
		}
		for _, place := range []int64{0, 5} {
			if got, r, _ := l.Acquire(noon, "a", ttl, noon, 0, place, everybodyListens); r.Kind != Denied || r.Left >= 0 || got != l {
				t.Errorf("%s: late acquire: %+v, left %+v", name, r, got)
			}
			held := l
			held.Owner, held.Until = "z", noon/1000+ttl
			if got, r, _ := held.Acquire(noon, "a", ttl, noon, 0, place, everybodyListens); r.Kind != Denied || r.Left != ttl*ms || got != held {
				t.Errorf("%s: late acquire of another owner's lock: %+v, left %+v", name, r, got)
			}
			if got, r := held.Adopt(noon, "z", "a", ttl, noon, 0, 0); r.Kind != Denied || got != held {
				t.Errorf("%s: late adoption: %+v, left %+v", name, r, got)
			}
		}
		if got, woken := l.Release(noon, "a", 0, 5, 1000, everybodyListens); got != l || woken != (Wake{}) {
			t.Errorf("%s: late give-back: %+v", name, got)
		}
	}
}

// Each note expires on its own: after a chain of adoptions only the latest notes remain.
func TestNotesExpireOneByOne(t *testing.T) {
	t.Parallel()
	l, now := lockHeldByA(t), noon
	names := []string{"a"}
	for i := range 1000 {
		next := strings.Repeat("n", i+1)
		now += 1_000_000
		l, _ = l.Adopt(now, names[i], next, ttl, now, 0, 0)
		names = append(names, next)
	}
	var known []string
	for owner := range l.Notes.Owners {
		known = append(known, owner)
	}
	if len(known) != int(ttl/1000) {
		t.Errorf("after 1000 adoptions, one each second: %d owner notes", len(known))
	}
	if l = l.At(now + (ttl+1)*1000); l.Notes != (Notes{}) {
		t.Errorf("at the end: notes %v", l.Notes)
	}
}

// A place expires even while other waiters ask.
func TestPlaceOfDeadWaiterExpires(t *testing.T) {
	t.Parallel()
	l := lockWithQueue(t) // b and c wait
	at := noon
	for range 10 { // b asks again, and c does not
		at += QueueKeep * 1000 / 2
		var r Reply
		l.Until = at/1000 + ttl
		if l, r, _ = l.Acquire(at, "b", ttl, at, 0, 6, nobodyListens); r.Kind != Denied {
			t.Fatalf("%+v", r)
		}
	}
	if got := queueOwners(l.Queue); !slices.Equal(got, []string{"b"}) {
		t.Errorf("%q wait", got)
	}
	if _, r, _ := l.Acquire(at, "z", ttl, at, 0, 0, nobodyListens); r.Waiters != 1 {
		t.Errorf("the answer counts %d waiters", r.Waiters)
	}
}

// One request tries a bounded number of places, and still finds a living waiter.
func TestDeadWaitersAreSkipped(t *testing.T) {
	t.Parallel()
	l := lockHeldByA(t)
	for i := range 10 * maxCandidates {
		l.Queue = l.Queue.With(Place{Owner: strings.Repeat("d", i+1), Stamp: 1, Until: noon/1000 + QueueKeep - 1000})
	}
	l, _, _ = l.Acquire(noon, "y", ttl, noon, 0, 2, nobodyListens)
	l, _, _ = l.Acquire(noon, "z", ttl, noon, 0, 2, nobodyListens)
	asked := 0
	live := func(owner string) bool { asked++; return owner == "y" || owner == "z" }
	released, w := l.Release(noon, "a", 0, 0, 1000, live)
	if w.Owner != "y" || released.Owner != "y" || asked > maxCandidates+maxRecent {
		t.Errorf("handed to %q, after %d were tried", w.Owner, asked)
	}
	if got := released.Queue.Len(); got != 9*maxCandidates+1 {
		t.Errorf("%d places are left", got)
	}
	l.free()
	asked = 0
	if got, r, _ := l.Acquire(noon, "z", ttl, noon, 0, 2, nobodyListens); r.Kind != Granted || got.Owner != "z" {
		t.Errorf("z acquires among dead waiters: %+v", r)
	}
}

// Another node may have prolonged the lease after this one, and its holder trusts it for that long.
func TestNoteOutlastsLocalLock(t *testing.T) {
	t.Parallel()
	const noted = 3 * ttl
	forced, _, _ := lockHeldByA(t).Force(noon, "a", 0, 1000, noted, everybodyListens)
	adopted, _ := lockHeldByA(t).Adopt(noon, "a", "n", ttl, noon, 0, noted)
	adopted = adopted.Keep(noon, "n", 0)
	again, _ := lockHeldByA(t).Adopt(noon, "a", "n", 1, noon, 0, 0)
	again, _ = again.Adopt(noon, "a", "n", 1, noon, 0, noted)
	for name, l := range map[string]Lock{"force": forced, "adopt": adopted, "adopt, asked again": again} {
		if _, r := l.Renew(noon+noted*1000, "a", ttl, base, true); r.Kind != NotMine {
			t.Errorf("%s: before the note expired: %+v", name, r)
		}
		if _, r := l.Renew(noon+(noted+1)*1000, "a", ttl, base, true); r.Kind != Kept {
			t.Errorf("%s: after it: %+v", name, r)
		}
	}
}

// During quarantine a node that fails over hands locks to nobody, and each renewal restores a free lock.
func TestForceInQuarantineCannotBeUndone(t *testing.T) {
	t.Parallel()
	before := lockWithQueue(t)
	before.Queue = withPlaces(before.Queue, "a")
	l, forced, woken := before.Force(noon, "a", 0, 0, 0, everybodyListens)
	if !forced || woken != (Wake{}) || l.Owner == "a" || l.Token != 0 || l.Fence != firstBlockEnd || !slices.Equal(queueOwners(l.Queue), []string{"b", "c"}) {
		t.Fatalf("forced %v, woken %v, left %+v", forced, woken, l)
	}
	for _, now := range []int64{noon, noon + ttl*1000} {
		for _, token := range []int64{0, base, firstBlockEnd} {
			if got, r := l.Renew(now, "a", ttl, token, true); r.Kind != NotMine || got != l.At(now) {
				t.Errorf("renewed with %d: %+v, left %+v", token, r, got)
			}
		}
		if got, forced, _ := l.Force(now, "a", 0, 1000, 0, everybodyListens); forced || got != l.At(now) {
			t.Errorf("taken once more: %+v", got)
		}
		if got, r := l.Adopt(now, "a", "n", ttl, now, 0, 0); r.Kind != Denied || got != l.At(now) {
			t.Errorf("adopted: %+v", r)
		}
	}
	if got := l.At(noon + (ttl+1)*1000); got.Owner != "" {
		t.Errorf("after the note expired: %+v", got)
	}
}

// The force does not compare the counter, which all locks share and which may be lost.
func TestForceComparesLockOnly(t *testing.T) {
	t.Parallel()
	for _, fence := range []int64{0, firstBlockEnd, firstBlockEnd + 5*Block} {
		l := lockHeldByA(t)
		l.Fence = fence
		got, forced, _ := l.Force(noon, "a", 0, 1000, 0, everybodyListens)
		if !forced || got.Owner != "" || got.Fence != fence {
			t.Errorf("counter %+d: %v, left %+v", fence-firstBlockEnd, forced, got)
		}
	}
}

// A renewal can restore a lock whose owner is still in the queue on that node.
func TestForceDoesNotReturnLockToHolder(t *testing.T) {
	t.Parallel()
	l := lockHeldByA(t)
	l.Queue = withPlaces(l.Queue, "a", "b")
	if _, _, woken := l.Force(noon, "a", 0, 1000, 0, everybodyListens); woken.Owner != "b" {
		t.Fatalf("handed to %q", woken.Owner)
	}
}

func TestOwnerRequestsNeverShortenLock(t *testing.T) {
	t.Parallel()
	const brief = 1000
	l := Lock{Owner: "a", Until: noon/1000 + 5000, Token: base, Fence: firstBlockEnd}
	deaf := func(string) bool { return false }
	acquired, _, _ := l.Acquire(noon, "a", brief, noon, 0, 0, deaf)
	adopted, _ := l.Adopt(noon, "b", "a", brief, noon, 0, 0)
	renewed, _ := l.Renew(noon, "a", brief, base, true)
	for what, got := range map[string]Lock{"acquire": acquired, "adopt": adopted, "renew": renewed} {
		if got.Owner != "a" || got.Until != l.Until {
			t.Errorf("%s: %+v, want it until %d", what, got, l.Until)
		}
	}
}

func TestMinHoldClearsOwner(t *testing.T) {
	t.Parallel()
	deaf := func(string) bool { return false }
	l := Lock{Owner: "a", Until: noon/1000 + 5000, Token: base, Fence: firstBlockEnd}.Keep(noon, "a", 3000)
	if !IsMinHoldID(l.Owner) || l.Until != noon/1000+3000 {
		t.Fatalf("%+v, want it kept for 3 s", l)
	}
	if got, r := l.Renew(noon, "a", 9000, base, true); got != l || r.Kind != NotMine {
		t.Errorf("renew: %v, %+v", r.Kind, got)
	}
	if got, r := l.Adopt(noon, "a", "b", 9000, noon, 0, 0); got != l || r.Kind != Denied {
		t.Errorf("adopt: %v, %+v", r.Kind, got)
	}
	if got, ok, _ := l.Force(noon, "a", 0, 1000, 0, deaf); got != l || ok {
		t.Errorf("force: %v, %+v", ok, got)
	}
	if got, _ := l.Release(noon, "a", 0, 0, 1000, deaf); got != l {
		t.Errorf("release: %+v", got)
	}
	if got := l.Keep(noon, "a", 9000); got != l {
		t.Errorf("a second release with MinHold: %+v", got)
	}
}

// A node may have prolonged the lease just before it took the lock away, and the first node of a quorum may
// take it away that much earlier than the last one.
func TestNoteLastsTwoTTLsAndTwoSeconds(t *testing.T) {
	for longest, want := range map[time.Duration]time.Duration{
		10 * time.Millisecond: 2020 * time.Millisecond,
		time.Minute:           122 * time.Second,
		24 * time.Hour:        48*time.Hour + 2*time.Second,
	} {
		if got := time.Duration(NoteTime(int64(longest))); got != want {
			t.Errorf("notes last %v with leases of up to %v, want %v", got, longest, want)
		}
	}
}
