package locktest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// bench is one test case with its service.
type bench struct {
	*testing.T
	Service
	virtual bool // in a synctest bubble, where times are exact
	limits  driver.Limits
	can     abilities

	// patience bounds the wait for an event that is certain to come. Only a failure waits that long.
	patience time.Duration
	// long is a TTL that does not end within a test, so a lock that ends before was released.
	long time.Duration
	// brief is a TTL whose end a test waits for, or that a renewal extends. A busy machine needs some seconds
	// for a renewal.
	brief time.Duration
	// short is a TTL whose end a test waits for, without renewals.
	short time.Duration
}

// abilities lists the optional interfaces that the driver has.
type abilities struct{ inspect, list, queue, force, adopt, check, notify, alert bool }

// learnLimits reads the limits of the driver, and scales the times of the test by them.
func (b *bench) learnLimits() {
	b.patience = pace.Scale(90 * time.Second)
	drv := b.openDriver()
	b.limits = drv.Limits()
	_, b.can.inspect = drv.(driver.Inspector)
	_, b.can.list = drv.(driver.Lister)
	_, b.can.queue = drv.(driver.Queuer)
	_, b.can.force = drv.(driver.Forcer)
	_, b.can.adopt = drv.(driver.Adopter)
	_, b.can.check = drv.(driver.Checker)
	_, b.can.notify = drv.(driver.Notifier)
	_, b.can.alert = drv.(driver.Alerter)
	if err := drv.Close(); err != nil {
		b.Errorf("Close() = %v", err)
	}
	l := b.limits
	if l.MinTTL <= 0 || l.Granularity < 0 || l.MaxTTL != 0 && l.MaxTTL < max(10*time.Second, l.MinTTL) {
		b.Fatalf("Limits() = %+v: MinTTL must be above 0, and MaxTTL at least MinTTL and 10 s", l)
	}
	b.short = b.exactTTL(900 * time.Millisecond)
	b.brief = b.exactTTL(max(min(pace.Scale(6*time.Second).Round(100*time.Millisecond), 10*time.Second), 2*l.MinTTL)) // no longer than every driver accepts
	b.long = b.exactTTL(max(30*time.Second, 4*b.brief))
	b.patience = max(b.patience, pace.Scale(3*b.brief))
}

// exactTTL returns the TTL nearest to want that the driver does not have to round.
func (b *bench) exactTTL(want time.Duration) time.Duration {
	want = b.roundTTL(max(want, b.limits.MinTTL))
	if most := b.limits.MaxTTL; most != 0 {
		want = min(want, most)
	}
	return want
}

// roundTTL returns the TTL that the driver grants for ttl.
func (b *bench) roundTTL(ttl time.Duration) time.Duration {
	if g := b.limits.Granularity; g > 0 {
		ttl = (ttl + g - 1) / g * g
	}
	return ttl
}

// skipWithout skips the test unless all its needs are met.
func (b *bench) skipWithout(have bool, what string) {
	b.Helper()
	if !have {
		b.Skipf("this needs %s", what)
	}
}

func (b *bench) openDriver() driver.Driver {
	b.Helper()
	var drv driver.Driver
	err := b.retryLate(func() (err error) {
		drv, err = b.Open()
		return err
	})
	if err != nil {
		b.Fatalf("open a driver: %v", err)
	}
	return drv
}

// newClient returns another client of the service.
func (b *bench) newClient() *holdfast.Client { b.Helper(); return b.clientOf(b.openDriver(), nil) }

func (b *bench) clientOf(drv driver.Driver, opts *holdfast.Options) *holdfast.Client {
	b.Helper()
	c, err := holdfast.New(drv, opts)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := c.Close(); err != nil {
			b.Errorf("Close() = %v", err)
		}
	})
	return c
}

func (b *bench) newClients(n int) []*holdfast.Client {
	b.Helper()
	all := make([]*holdfast.Client, n)
	for i := range all {
		all[i] = b.newClient()
	}
	return all
}

// boundedContext returns a context that bounds the wait for an event that is certain to come.
func (b *bench) boundedContext() context.Context {
	ctx, cancel := context.WithTimeout(b.Context(), b.patience)
	b.Cleanup(cancel)
	return ctx
}

// takeGrant acquires a lock with drv itself.
func (b *bench) takeGrant(drv driver.Driver, key string, ttl time.Duration) driver.Grant {
	b.Helper()
	g, err := b.tryGrant(drv, key, ttl)
	if err != nil {
		b.Fatalf("driver: Acquire(%q) = %v", key, err)
	}
	return g
}

func (b *bench) tryGrant(drv driver.Driver, key string, ttl time.Duration) (g driver.Grant, err error) {
	err = b.retryLate(func() error {
		g, err = drv.Acquire(b.boundedContext(), driver.Request{Key: key, TTL: ttl, Adoptable: b.can.adopt})
		return err
	})
	return g, err
}

// retryLate repeats a call that failed because answers came too late, as they may from a service on a busy
// machine. In virtual time it does not repeat.
func (b *bench) retryLate(fn func() error) error {
	for end := time.Now().Add(b.patience); ; {
		err := fn()
		if !b.isStall(err) || errors.Is(err, context.Canceled) || time.Now().After(end) {
			return err
		}
	}
}

// isStall reports whether a busy machine can be the cause of err: answers were late, or a lease ended before
// its renewal. After a hand-over a lease begins with a second.
func (b *bench) isStall(err error) bool {
	return !b.virtual && (errors.Is(err, holdfast.ErrUnavailable) || errors.Is(err, holdfast.ErrExpired))
}

func (b *bench) tryAcquire(c *holdfast.Client, key string, opts *holdfast.AcquireOptions) (l *holdfast.Lease, err error) {
	err = b.retryLate(func() error {
		l, err = c.TryAcquire(b.Context(), key, opts)
		return err
	})
	return l, err
}

// acquire acquires a lock. Without opts its TTL does not end within the test.
func (b *bench) acquire(c *holdfast.Client, key string, opts *holdfast.AcquireOptions) *holdfast.Lease {
	b.Helper()
	if opts == nil {
		opts = &holdfast.AcquireOptions{TTL: b.long}
	}
	var l *holdfast.Lease
	err := b.retryLate(func() (err error) {
		l, err = c.Acquire(b.boundedContext(), key, opts)
		return err
	})
	if err != nil {
		b.Fatalf("Acquire(%q) = %v", key, err)
	}
	return l
}

// checkOutlasts checks that other cannot acquire key until shortly after the given time.
func (b *bench) checkOutlasts(other *holdfast.Client, key string, until time.Time) {
	b.Helper()
	for end := until.Add(b.brief / 6); time.Now().Before(end); time.Sleep(b.brief / 12) {
		b.checkHeld(other, key)
	}
}

func (b *bench) release(leases ...*holdfast.Lease) {
	b.Helper()
	for _, l := range leases {
		if err := l.Release(b.Context()); err != nil && !b.isStall(err) {
			b.Fatalf("Release of %q = %v", l.Key(), err)
		}
	}
}

// checkHeld checks that c cannot acquire key.
func (b *bench) checkHeld(c *holdfast.Client, key string) {
	b.Helper()
	l, err := b.tryAcquire(c, key, nil)
	if err == nil {
		b.release(l)
	}
	b.checkError(err, holdfast.ErrHeld)
}

// checkFree checks that c can acquire key: at once or, if a release may still be in progress, long before the
// lock could expire. In a bubble that is at the same instant, once no request is in progress any more.
func (b *bench) checkFree(c *holdfast.Client, key string) {
	b.Helper()
	if b.virtual {
		synctest.Wait()
	}
	for end := time.Now().Add(b.long / 3); ; {
		l, err := b.tryAcquire(c, key, nil)
		if err == nil {
			b.release(l)
			return
		}
		if time.Now().After(end) || b.virtual {
			b.Errorf("TryAcquire(%q) = %v, want a lease", key, err)
			return
		}
	}
}

// checkError checks that err matches every one of want.
func (b *bench) checkError(err error, want ...error) {
	b.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			b.Errorf("error %v does not match %v", err, w)
		}
	}
}

// checkNoError fails the test on an error.
func (b *bench) checkNoError(err error) {
	b.Helper()
	if err != nil {
		b.Errorf("unexpected error %v", err)
	}
}

// eventually waits until ok returns true.
func (b *bench) eventually(what string, ok func() bool) {
	b.Helper()
	for end := time.Now().Add(b.patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			b.Fatalf("not within %v: %s", b.patience, what)
		}
	}
}

// checkCleared checks that no lock and no queue entry is left on the service, long before it could expire.
func (b *bench) checkCleared() {
	b.Helper()
	if b.Leftovers == nil {
		return
	}
	var left []string
	for end := time.Now().Add(b.long / 3); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		var err error
		if left, err = b.Leftovers(); err != nil {
			b.Fatalf("look for left-overs: %v", err)
		}
		if len(left) == 0 {
			return
		}
	}
	b.Errorf("left behind: %q", left)
}

// awaitLoss waits for the end of l and checks its cause.
func (b *bench) awaitLoss(l *holdfast.Lease) {
	b.Helper()
	select {
	case <-l.Context().Done():
		b.checkError(context.Cause(l.Context()), holdfast.ErrLost)
	case <-time.After(b.patience):
		b.Fatalf("the lease is still held after %v", b.patience)
	}
}

// roundCount returns the number of repetitions of a step that takes seconds.
func (b *bench) roundCount(virtual, actual int) int {
	if b.virtual {
		return virtual
	}
	return actual
}

// holders are the leases inside a section that a lock protects. A lease that ended while its holder got no
// processor time does not count, because its context has ended.
type holders struct {
	mu     sync.Mutex
	inside map[*holdfast.Lease]bool // whether the lease is shared
}

// enter adds l and returns the numbers of exclusive and shared leases inside that were trusted at one instant.
// Both are 0 if l was not trusted.
func (h *holders) enter(l *holdfast.Lease, share bool) (exclusive, shared int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.inside == nil {
		h.inside = make(map[*holdfast.Lease]bool)
	}
	h.inside[l] = share
	now := time.Now()
	trusted := func(l *holdfast.Lease) bool { return l.Deadline().After(now) && l.Context().Err() == nil }
	for l, share := range h.inside {
		switch {
		case !trusted(l):
		case share:
			shared++
		default:
			exclusive++
		}
	}
	if !trusted(l) {
		return 0, 0
	}
	return exclusive, shared
}

// leave removes l. A holder calls it before the release.
func (h *holders) leave(l *holdfast.Lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.inside, l)
}

// guardedSection is a section for one holder at a time. It detects two holders at once and tokens that do not rise.
type guardedSection struct {
	holders
	b     *bench
	last  atomic.Int64
	count atomic.Int64
}

// enter is called by a holder with its lease, and leave before the release.
func (g *guardedSection) enter(l *holdfast.Lease) {
	g.count.Add(1)
	if !g.b.limits.Token && l.Token() != 0 {
		g.b.Errorf("token %d of a driver without tokens", l.Token())
	}
	n, _ := g.holders.enter(l, false)
	if n == 0 {
		return
	}
	if n > 1 {
		g.b.Errorf("%d holders at once", n)
	}
	if last := g.last.Swap(int64(l.Token())); last >= int64(l.Token()) && g.b.limits.Token {
		g.b.Errorf("token %d after %d", l.Token(), last)
	}
}

// runTogether runs fn n times concurrently and waits.
func runTogether(n int, fn func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { fn(i) })
	}
	all.Wait()
}

// randomUpTo returns a random time in [0, d).
func randomUpTo(d time.Duration) time.Duration { return rand.N(d) }
