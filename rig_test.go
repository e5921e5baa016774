package holdfast_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/memory"
)

// bench is one client over new nodes, inside a synctest bubble.
type bench struct {
	t      *testing.T
	drv    *memory.Driver
	client *holdfast.Client
}

// inBubble runs fn in a bubble of virtual time, with a client of five nodes.
func inBubble(t *testing.T, fn func(t *testing.T, b *bench)) { inBubbleWith(t, nil, fn) }

func inBubbleWith(t *testing.T, opts *holdfast.Options, fn func(t *testing.T, b *bench)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		drv := memory.New(5)
		b := &bench{t: t, drv: drv}
		b.client = openClient(b.t, drv, opts)
		fn(t, b)
	})
}

// openClient opens a client over drv, and closes it at the end of the test.
func openClient(t testing.TB, drv driver.Driver, opts *holdfast.Options) *holdfast.Client {
	t.Helper()
	c, err := holdfast.New(drv, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func acquire(t testing.TB, c *holdfast.Client, key string, opts *holdfast.AcquireOptions) *holdfast.Lease {
	t.Helper()
	l, err := c.Acquire(t.Context(), key, opts)
	if err != nil {
		t.Fatalf("Acquire(%q) = %v", key, err)
	}
	return l
}

func release(t testing.TB, l interface{ Release(context.Context) error }) {
	t.Helper()
	if err := l.Release(t.Context()); err != nil {
		t.Errorf("Release() = %v", err)
	}
}

// newPeer returns another client of the same nodes.
func (b *bench) newPeer() *holdfast.Client { return openClient(b.t, b.drv.Peer(), nil) }

func (b *bench) acquire(c *holdfast.Client, key string, opts *holdfast.AcquireOptions) *holdfast.Lease {
	b.t.Helper()
	return acquire(b.t, c, key, opts)
}

// claim is the kind and the options of one acquisition in a test: a slot if slots is set, a reader's place if
// shared is set as well as readers, a writer if only readers is set, otherwise a lock. nil is a lock with
// default options.
type claim struct {
	holdfast.AcquireOptions
	slots, readers int
	shared         bool
}

func acquireAs(ctx context.Context, c *holdfast.Client, key string, w *claim) (*holdfast.Lease, error) {
	switch {
	case w == nil:
		return c.Acquire(ctx, key, nil)
	case w.slots != 0:
		return c.Semaphore(key, w.slots).Acquire(ctx, &w.AcquireOptions)
	case w.shared:
		return c.RWLock(key, w.readers).AcquireRead(ctx, &w.AcquireOptions)
	case w.readers != 0:
		return c.RWLock(key, w.readers).AcquireWrite(ctx, &w.AcquireOptions)
	}
	return c.Acquire(ctx, key, &w.AcquireOptions)
}

func tryAcquire(ctx context.Context, c *holdfast.Client, key string, w *claim) (*holdfast.Lease, error) {
	switch {
	case w == nil:
		return c.TryAcquire(ctx, key, nil)
	case w.slots != 0:
		return c.Semaphore(key, w.slots).TryAcquire(ctx, &w.AcquireOptions)
	case w.shared:
		return c.RWLock(key, w.readers).TryAcquireRead(ctx, &w.AcquireOptions)
	case w.readers != 0:
		return c.RWLock(key, w.readers).TryAcquireWrite(ctx, &w.AcquireOptions)
	}
	return c.TryAcquire(ctx, key, &w.AcquireOptions)
}

func doAs(ctx context.Context, c *holdfast.Client, key string, w *claim, fn func(context.Context, *holdfast.Lease) error) error {
	switch {
	case w.slots != 0:
		return c.Semaphore(key, w.slots).Do(ctx, &w.AcquireOptions, fn)
	case w.shared:
		return c.RWLock(key, w.readers).DoRead(ctx, &w.AcquireOptions, fn)
	}
	return c.RWLock(key, w.readers).DoWrite(ctx, &w.AcquireOptions, fn)
}

// acquireAs acquires key with the claim w, and fails the test on an error.
func (b *bench) acquireAs(c *holdfast.Client, key string, w *claim) *holdfast.Lease {
	b.t.Helper()
	l, err := acquireAs(b.t.Context(), c, key, w)
	if err != nil {
		b.t.Fatalf("Acquire(%q) = %v", key, err)
	}
	return l
}

func (b *bench) release(all ...*holdfast.Lease) {
	b.t.Helper()
	for _, l := range all {
		if err := l.Release(b.t.Context()); err != nil {
			b.t.Fatalf("Release() = %v", err)
		}
	}
}

// forceLock force-releases the lock of the present holder, and returns its token.
func (b *bench) forceLock(by *holdfast.Client, key string) holdfast.Token {
	b.t.Helper()
	st, err := by.Inspect(b.t.Context(), key)
	if err == nil {
		err = by.ForceRelease(b.t.Context(), key, st.Token, "test")
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return st.Token
}

// freezeNodes makes all nodes hang.
func (b *bench) freezeNodes() {
	for i := range 5 {
		b.drv.Node(i).Freeze()
	}
}

func (b *bench) startNodes() {
	for i := range 5 {
		b.drv.Node(i).Start()
	}
}

func wantErr(t *testing.T, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("error %v does not match %v", err, w)
		}
	}
}

// passTime lets virtual time pass. It is only for bubbles, where no test really sleeps.
func passTime(d time.Duration) { time.Sleep(d) }

// newOneNode returns a driver over one node, for tests outside of bubbles.
func newOneNode() *memory.Driver { return memory.New(1) }

// awaitHooks waits until the hooks have received all events so far.
func awaitHooks() {
	passTime(2 * time.Millisecond)
	synctest.Wait()
}
