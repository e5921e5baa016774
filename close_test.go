package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/memory"
)

// slowDriver is a driver with a slow connection. Close cuts the connection, and requests that are sent afterwards
// are lost.
type slowDriver struct {
	*memory.Driver
	cut atomic.Bool
}

func (d *slowDriver) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	defer passTime(time.Millisecond)
	return d.Driver.Acquire(ctx, req)
}

func (d *slowDriver) Release(ctx context.Context, g driver.Grant, keep time.Duration) error {
	passTime(time.Millisecond)
	if d.cut.Load() {
		return errors.New("hung up")
	}
	return d.Driver.Release(ctx, g, keep)
}

func (d *slowDriver) Close() error {
	d.cut.Store(true)
	return d.Driver.Close()
}

func (b *bench) openSlowClient() *holdfast.Client {
	b.t.Helper()
	c, err := holdfast.New(&slowDriver{Driver: b.drv.Peer()}, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

// wantNoLocks checks that no lock is held and nobody waits.
func (b *bench) wantNoLocks() {
	b.t.Helper()
	for st, err := range b.client.List(b.t.Context(), "") {
		b.t.Errorf("left behind: %+v, %v", st, err)
	}
}

func TestClosedClientRejectsInspection(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		if err := b.client.Close(); err != nil {
			t.Fatal(err)
		}
		_, err := b.client.Inspect(t.Context(), "k")
		wantErr(t, err, holdfast.ErrClosed)
	})
}

func TestCloseUnderLoadReleasesEverything(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		for range 300 {
			c := b.openSlowClient()
			var all sync.WaitGroup
			for i := range 4 {
				all.Go(func() {
					for {
						l, err := c.Acquire(t.Context(), fmt.Sprint(i%3), nil)
						if err != nil {
							wantErr(t, err, holdfast.ErrClosed)
							return
						}
						if i > 1 { // the last round keeps its lease until Close
							<-l.Context().Done()
							continue
						}
						passTime(rand.N(2 * time.Millisecond))
						l.Release(t.Context())
					}
				})
			}
			passTime(rand.N(20 * time.Millisecond))
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			b.wantNoLocks()
			all.Wait()
			b.wantNoLocks()
		}
	})
}

func TestShutdownLetsHoldersFinish(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		c := b.openSlowClient()
		l, elsewhere := b.acquire(c, "k", nil), b.acquire(b.client, "elsewhere", &holdfast.AcquireOptions{Adoptable: true})
		var waiters sync.WaitGroup
		for _, key := range []string{"k", "k", "elsewhere"} {
			waiters.Go(func() {
				_, err := c.Acquire(t.Context(), key, nil)
				wantErr(t, err, holdfast.ErrClosed)
			})
		}
		passTime(time.Second)
		done := make(chan error)
		go func() { done <- c.Shutdown(t.Context()) }()
		waiters.Wait()
		for _, key := range []string{"k", "new"} {
			_, err := c.Acquire(t.Context(), key, nil)
			wantErr(t, err, holdfast.ErrClosed)
			_, err = c.TryAcquire(t.Context(), key, nil)
			wantErr(t, err, holdfast.ErrClosed)
		}
		_, err := c.Adopt(t.Context(), "elsewhere", elsewhere.Owner(), elsewhere.Token(), nil)
		wantErr(t, err, holdfast.ErrClosed)
		passTime(time.Minute)
		if err := l.Check(t.Context()); err != nil {
			t.Errorf("one minute into Shutdown: lease state %v", err)
		}
		inner, err := c.Acquire(l.Context(), "k", &holdfast.AcquireOptions{Reentrant: true})
		if err != nil {
			t.Fatalf("nested acquire during Shutdown: %v", err)
		}
		b.release(l)
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("Shutdown() = %v before the release", err)
		default:
		}
		b.release(inner)
		if err := <-done; err != nil {
			t.Errorf("Shutdown() = %v", err)
		}
		b.release(b.acquire(b.client, "k", nil), elsewhere)
		b.wantNoLocks()
	})
}

func TestInterruptedShutdownReleasesHeldLocks(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		c := b.openSlowClient()
		l := b.acquire(c, "k", nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begin := time.Now()
		err := c.Shutdown(ctx)
		wantErr(t, err, context.DeadlineExceeded)
		if took := time.Since(begin); took < time.Minute || took > time.Minute+time.Second {
			t.Errorf("Shutdown took %v, want the minute of its context", took)
		}
		wantErr(t, context.Cause(l.Context()), holdfast.ErrClosed, holdfast.ErrLost)
		b.release(l) // a release after Shutdown is no error
		b.release(b.acquire(b.client, "k", nil))
		if err := c.Shutdown(ctx); err != nil {
			t.Errorf("a second Shutdown() = %v", err)
		}
	})
}

func TestShutdownAndCloseMayRunTogether(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		for range 100 {
			c := b.openSlowClient()
			b.acquire(c, "k", nil)
			go c.Acquire(t.Context(), "k", nil)
			var all sync.WaitGroup
			for range 3 {
				all.Go(func() {
					if err := c.Shutdown(t.Context()); err != nil {
						t.Errorf("Shutdown() = %v", err)
					}
					b.wantNoLocks()
				})
			}
			passTime(rand.N(2 * time.Millisecond))
			for range 3 {
				all.Go(func() {
					if err := c.Close(); err != nil {
						t.Errorf("Close() = %v", err)
					}
					b.wantNoLocks()
				})
			}
			all.Wait()
		}
	})
}

func TestDoReportsLossThroughClose(t *testing.T) {
	mine := errors.New("mine")
	for name, fails := range map[string]error{"fn succeeds": nil, "fn fails": mine} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				c := b.newPeer()
				err := c.Do(t.Context(), "k", nil, func(ctx context.Context, _ *holdfast.Lease) error {
					c.Close()
					wantErr(t, context.Cause(ctx), holdfast.ErrClosed, holdfast.ErrLost)
					b.release(b.acquire(b.client, "k", nil)) // another client has the lock in between
					return fails
				})
				wantErr(t, err, holdfast.ErrClosed, holdfast.ErrLost)
				if fails != nil {
					wantErr(t, err, fails)
				}
				if strings.Contains(fmt.Sprint(err), "\n") {
					t.Errorf("%q has more than one line", err)
				}
			})
		})
	}
}

func TestDoAllowsItsFunctionToRelease(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		err := b.client.Do(t.Context(), "k", nil, func(ctx context.Context, l *holdfast.Lease) error { return l.Release(ctx) })
		if err != nil {
			t.Errorf("Do() = %v", err)
		}
	})
}
