package locktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/holdfast-go/holdfast"
)

var inspectionCases = []testCase{
	{"InspectShowsHolder", inspectShowsHolder},
	{"InspectShowsFreeKey", inspectShowsFreeKey},
	{"ListShowsHeldLocks", listShowsHeldLocks},
	{"ListStopsWithYield", listStopsWithYield},
	{"QueueShowsWaitersInOrder", queueShowsWaiters},
	{"ForceReleaseComparesToken", forceComparesToken},
	{"ForceReleaseEndsLease", forceEndsLease},
	{"ForceReleaseServesNextWaiter", forceServesNextWaiter},
	{"ForcedHolderGetsReason", forcedHolderGetsReason},
}

func (b *bench) needsInspector() { b.Helper(); b.skipWithout(b.can.inspect, "driver.Inspector") }

func inspectShowsHolder(b *bench) {
	b.needsInspector()
	me := holdfast.Holder{Host: "elsewhere", PID: 7, Program: "cron"}
	c, other := b.clientOf(b.openDriver(), &holdfast.Options{Holder: me}), b.newClient()
	l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.long, Note: "import, 50 %"})
	me.Note = "import, 50 %"
	for _, looker := range []*holdfast.Client{c, other} {
		var st holdfast.Status
		b.eventually("the holder is known", func() bool {
			err := b.retryLate(func() (err error) {
				st, err = looker.Inspect(b.boundedContext(), "k")
				return err
			})
			if err != nil {
				b.Fatal(err)
			}
			return st.Holder == me
		})
		if st.Key != "k" || !st.Held || st.Owner != l.Owner() || st.Token != l.Token() {
			b.Errorf("Inspect() = %+v, want key k, id %q, token %d", st, l.Owner(), l.Token())
		}
		if st.Remaining <= 0 || st.Remaining > b.long {
			b.Errorf("Remaining = %v, want up to %v", st.Remaining, b.long)
		}
		if len(st.Nodes) != b.Nodes {
			b.Errorf("%d nodes, want %d", len(st.Nodes), b.Nodes)
		}
	}
	st, err := c.Inspect(b.boundedContext(), "k")
	if err != nil || st.Owner != l.Owner() {
		b.Errorf("the holder's own Inspect() = %+v, %v, want its owner", st, err)
	}
	if err := b.retryLate(func() error { return l.Extend(b.boundedContext(), b.long) }); err != nil {
		b.Errorf("renewal after Inspect = %v", err)
	}
	b.release(l)
}

func inspectShowsFreeKey(b *bench) {
	b.needsInspector()
	c := b.newClient()
	for range 2 {
		st, err := c.Inspect(b.boundedContext(), "k")
		if err != nil || st.Held || st.Owner != "" || st.Waiters != 0 {
			b.Errorf("Inspect() of a free key = %+v, %v", st, err)
		}
		b.release(b.acquire(c, "k", nil))
	}
}

func (b *bench) listKeys(c *holdfast.Client, prefix string) []string {
	b.Helper()
	names := []string{}
	for st, err := range c.List(b.boundedContext(), prefix) {
		if err != nil {
			b.Fatalf("List(%q) = %v", prefix, err)
		}
		if !st.Held || st.Owner == "" {
			b.Errorf("List(%q) yields %+v", prefix, st)
		}
		names = append(names, st.Key)
	}
	slices.Sort(names)
	return names
}

func listShowsHeldLocks(b *bench) {
	b.skipWithout(b.can.list, "driver.Lister")
	c, other := b.newClient(), b.newClient()
	b.listKeys(c, "")
	names := []string{"*", "a", "a/1", "a/2", "ab", "b", "{a}", "{a}/1"}
	var leases []*holdfast.Lease
	for i, name := range names {
		leases = append(leases, b.acquire([]*holdfast.Client{c, other}[i%2], name, &holdfast.AcquireOptions{TTL: b.long}))
	}
	for prefix, want := range map[string][]string{
		"": names, "a": {"a", "a/1", "a/2", "ab"}, "a/": {"a/1", "a/2"}, "*": {"*"}, "{a}": {"{a}", "{a}/1"}, "none": {}, "[a-z]": {},
	} {
		if got := b.listKeys(other, prefix); !slices.Equal(got, want) {
			b.Errorf("List(%q) = %q, want %q", prefix, got, want)
		}
	}
	b.release(leases...)
	if got := b.listKeys(c, ""); len(got) != 0 {
		b.Errorf("List() after the release = %q", got)
	}
}

func listStopsWithYield(b *bench) {
	b.skipWithout(b.can.list, "driver.Lister")
	c := b.newClient()
	b.listKeys(c, "")
	var leases []*holdfast.Lease
	for i := range 5 {
		leases = append(leases, b.acquire(c, keyOf(i), nil))
	}
	n := 0
	for range c.List(b.boundedContext(), "") {
		if n++; n == 2 {
			break
		}
	}
	if n != 2 {
		b.Errorf("List() yielded %d locks, want 2", n)
	}
	b.release(leases...)
}

// queueShowsWaiters compares Queue with the order in which the waiters get the lock. Like inOrder, it makes up to
// three attempts on a real service.
func queueShowsWaiters(b *bench) {
	b.skipWithout(b.can.queue && b.limits.Order, "driver.Queuer and Limits.Order")
	c := b.newClient()
	var shown, owners []string
	for range b.roundCount(1, 3) {
		shown, owners = nil, nil
		first := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.long})
		ctx := b.boundedContext()
		wait := b.queueUp("k", 3, func(int) context.Context { return ctx }, func(_ int, l *holdfast.Lease) { owners = append(owners, l.Owner()) })
		got, err := c.Queue(b.boundedContext(), "k", 2)
		if err != nil {
			b.Errorf("Queue() = %v", err)
		}
		for _, w := range got {
			shown = append(shown, w.Owner)
		}
		b.release(first)
		wait()
		if len(owners) == 3 && slices.Equal(shown, owners[:2]) {
			break
		}
	}
	if len(owners) != 3 || !slices.Equal(shown, owners[:2]) {
		b.Errorf("the first two waiters were %q, and the lock went to %q", shown, owners)
	}
	b.eventually("nobody waits", func() bool { // a slow node may still show a waiter
		got, err := c.Queue(b.boundedContext(), "k", 2)
		if err != nil {
			b.Errorf("Queue() without waiters = %v", err)
		}
		return len(got) == 0
	})
}

func (b *bench) needsForcer() {
	b.Helper()
	b.skipWithout(b.can.force && b.limits.Token, "driver.Forcer and Limits.Token")
}

// forceReleaseError tries to force a lock that must not be forced, and returns the error.
func (b *bench) forceReleaseError(c *holdfast.Client, key string, token holdfast.Token) error {
	return b.retryLate(func() error { return c.ForceRelease(b.boundedContext(), key, token, "") })
}

// forceLock forces a lock. If the answers of the first attempt came too late, a second one may find that it
// succeeded.
func (b *bench) forceLock(c *holdfast.Client, key string, token holdfast.Token, why string) {
	b.Helper()
	late := false
	err := b.retryLate(func() error {
		err := c.ForceRelease(b.boundedContext(), key, token, why)
		late = late || b.isStall(err)
		return err
	})
	if err != nil && !(late && errors.Is(err, holdfast.ErrLost)) {
		b.Fatal(err)
	}
}

func forceComparesToken(b *bench) {
	b.needsForcer()
	c, other := b.newClient(), b.newClient()
	b.checkError(b.forceReleaseError(c, "k", 1), holdfast.ErrLost) // nobody holds it
	l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.long})
	for _, token := range []holdfast.Token{0, l.Token() - 1, l.Token() + 1000} {
		b.checkError(b.forceReleaseError(other, "k", token), holdfast.ErrLost)
	}
	b.checkHeld(other, "k")
	if err := b.retryLate(func() error { return l.Extend(b.boundedContext(), b.long) }); err != nil {
		b.Errorf("renewal after rejected force releases: %v", err)
	}
	old := l.Token()
	b.release(l)
	next := b.acquire(other, "k", &holdfast.AcquireOptions{TTL: b.long})
	b.checkError(b.forceReleaseError(c, "k", old), holdfast.ErrLost) // the newer holder keeps its lock
	if err := b.retryLate(func() error { return next.Extend(b.boundedContext(), b.long) }); err != nil {
		b.Errorf("the newer holder's renewal = %v", err)
	}
	b.release(next)
	b.checkCleared()
}

func forceEndsLease(b *bench) {
	b.needsForcer()
	c, other := b.newClient(), b.newClient()
	l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.brief})
	b.forceLock(other, "k", l.Token(), "")
	next := b.acquire(other, "k", &holdfast.AcquireOptions{TTL: b.long})
	if next.Token() <= l.Token() {
		b.Errorf("token %d after %d", next.Token(), l.Token())
	}
	b.awaitLoss(l)
	b.checkError(l.Release(b.Context()), holdfast.ErrLost)
	if err := b.retryLate(func() error { return next.Extend(b.boundedContext(), b.long) }); err != nil {
		b.Errorf("the next holder's renewal = %v", err)
	}
	b.release(next)
	b.checkCleared()
}

// The next waiter gets the lock, and the old holder does not get it again.
func forceServesNextWaiter(b *bench) {
	b.needsForcer()
	c, other := b.newClient(), b.newClient()
	l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.long, NoRenew: true})
	told := make(chan error)
	go func() {
		next, err := other.Acquire(b.boundedContext(), "k", &holdfast.AcquireOptions{TTL: b.long})
		if err == nil && next.Token() <= l.Token() {
			err = fmt.Errorf("token %d after %d", next.Token(), l.Token())
		}
		if err == nil {
			err = next.Release(context.Background())
		}
		told <- err
	}()
	b.awaitWait(c, "k", 1)
	b.forceLock(b.newClient(), "k", l.Token(), "")
	if err := <-told; err != nil {
		b.Errorf("the waiter: %v", err)
	}
	b.checkError(b.retryLate(func() error { return l.Extend(b.boundedContext(), b.long) }), holdfast.ErrLost)
	b.checkCleared()
}

// The reason comes only with the alert of the service: a renewal has none. The alert may be lost, for example
// if the client does not listen yet.
func forcedHolderGetsReason(b *bench) {
	b.needsForcer()
	b.skipWithout(b.can.alert && !b.NoAlerts, "driver.Alerter that hears")
	const why = "ops@here: it hangs"
	c, other := b.newClient(), b.newClient()
	for ctx := b.boundedContext(); ctx.Err() == nil; {
		l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.brief})
		if err := b.retryLate(func() error { return l.Extend(b.boundedContext(), b.brief) }); err != nil {
			b.Fatal(err)
		}
		b.forceLock(other, "k", l.Token(), why+"\x1b[2J\n"+strings.Repeat("x", 1000))
		<-l.Context().Done()
		cause := context.Cause(l.Context())
		b.checkError(cause, holdfast.ErrLost, holdfast.ErrGone)
		if text := cause.Error(); strings.Contains(text, why) {
			if len(text) > 300 || strings.ContainsFunc(text, unicode.IsControl) {
				b.Errorf("the cause is %q, want a short line", text)
			}
			b.checkCleared()
			return
		}
	}
	b.Errorf("no holder received the reason of the force release")
}
