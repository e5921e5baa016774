package locktest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

var closing = []testCase{
	{"CloseReleasesWhatIsHeld", closeReleases},
	{"CloseEndsEveryWait", closeEndsWaits},
	{"CloseUnderLoadLeavesNothing", closeUnderLoad},
	{"ShutdownLetsTheHolderFinish", shutdownWaits},
	{"AClosedDriverSaysSo", closedDriver},
	{"DoReleasesWhateverHappens", doReleases},
	{"LimitsAreKept", limitsAreKept},
}

func closeReleases(b *bench) {
	c, other := b.client(), b.client()
	var leases []*holdfast.Lease
	for i := range 20 {
		leases = append(leases, b.acquire(c, key(i), &holdfast.AcquireOptions{TTL: long}))
	}
	if err := c.Close(); err != nil {
		b.Errorf("Close() = %v", err)
	}
	for i, l := range leases {
		if l.Context().Err() == nil {
			b.Error("a lease's context goes on after Close")
		}
		b.isFree(other, key(i))
		b.release(l)
	}
	_, err := c.Acquire(b.Context(), "k", nil)
	b.wants(err, holdfast.ErrClosed)
	if err := c.Close(); err != nil {
		b.Errorf("second Close() = %v", err)
	}
	b.cleared()
}

func closeEndsWaits(b *bench) {
	holder, c := b.client(), b.client()
	l := b.acquire(holder, "k", &holdfast.AcquireOptions{TTL: long})
	const waiters = 3
	errs := make(chan error, waiters)
	for range waiters {
		go func() {
			_, err := c.Acquire(b.within(), "k", nil)
			errs <- err
		}()
	}
	b.eventually("all wait", func() bool {
		st, err := c.Inspect(b.Context(), "k")
		if errors.Is(err, holdfast.ErrUnsupported) {
			time.Sleep(200 * time.Millisecond) // nobody can tell whether they wait: they do by now
			return true
		}
		return err == nil && st.Waiters >= waiters
	})
	if err := c.Close(); err != nil {
		b.Errorf("Close() = %v", err)
	}
	for range waiters {
		b.wants(<-errs, holdfast.ErrClosed)
	}
	b.release(l)
	b.isFree(holder, "k")
	b.cleared()
}

// Whoever is asking, or releasing, when the client is closed leaves no lock.
func closeUnderLoad(b *bench) {
	for range b.rounds(50, 5) {
		c := b.client()
		var callers sync.WaitGroup
		for i := range 4 {
			callers.Go(func() {
				for {
					l, err := c.Acquire(b.within(), key(i%3), &holdfast.AcquireOptions{TTL: long})
					if errors.Is(err, holdfast.ErrClosed) {
						return
					}
					if err != nil {
						b.Errorf("Acquire() = %v", err)
						return
					}
					time.Sleep(upTo(2 * time.Millisecond)) // or all would be over before Close
					l.Release(b.Context())
				}
			})
		}
		time.Sleep(upTo(10 * time.Millisecond)) // any moment will do
		if err := c.Close(); err != nil {
			b.Errorf("Close() = %v", err)
		}
		callers.Wait()
		b.cleared()
	}
}

func shutdownWaits(b *bench) {
	c, other := b.client(), b.client()
	l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: brief})
	done := make(chan error, 1)
	go func() { done <- c.Shutdown(b.within()) }()
	b.eventually("new leases are refused", func() bool {
		next, err := c.TryAcquire(b.Context(), "other", nil)
		if err == nil {
			b.release(next)
		}
		return errors.Is(err, holdfast.ErrClosed)
	})
	deadline := l.Deadline()
	b.eventually("a renewal", func() bool { return l.Deadline().After(deadline) })
	b.isHeld(other, "k")
	b.release(l)
	if err := <-done; err != nil {
		b.Errorf("Shutdown() = %v", err)
	}
	b.isFree(other, "k")
	b.cleared()
}

func closedDriver(b *bench) {
	drv := b.driver()
	if err := drv.Close(); err != nil {
		b.Errorf("Close() = %v", err)
	}
	if err := drv.Close(); err != nil {
		b.Errorf("second Close() = %v", err)
	}
	_, err := drv.Acquire(b.within(), driver.Request{Key: "k", TTL: time.Second})
	b.wants(err, driver.ErrClosed)
	b.cleared()
}

func doReleases(b *bench) {
	c, other := b.client(), b.client()
	boom := errors.New("boom")
	err := b.insist(func() error {
		return c.Do(b.within(), "k", nil, func(context.Context, *holdfast.Lease) error {
			b.isHeld(other, "k")
			return boom
		})
	})
	if !errors.Is(err, boom) || errors.Is(err, holdfast.ErrLost) {
		b.Errorf("Do() = %v, want fn's error alone", err)
	}
	b.isFree(other, "k")
	func() {
		defer func() {
			if recover() != "panic" {
				b.Error("fn's panic was swallowed")
			}
		}()
		b.insist(func() error {
			return c.Do(b.within(), "k", nil, func(context.Context, *holdfast.Lease) error { panic("panic") })
		})
	}()
	b.isFree(other, "k")
	b.cleared()
}

func limitsAreKept(b *bench) {
	drv := b.driver()
	limits := drv.Limits()
	c := b.clientOf(drv, nil)
	if limits.MinTTL > time.Second || limits.MaxTTL != 0 && limits.MaxTTL < 10*time.Second {
		b.Errorf("Limits() = %+v: the suite needs TTLs of 1 s to 10 s, and so will others", limits)
	}
	for _, ttl := range []time.Duration{-1, time.Nanosecond, limits.MinTTL - 1} {
		_, err := c.Acquire(b.Context(), "k", &holdfast.AcquireOptions{TTL: ttl})
		b.wants(err, holdfast.ErrInvalid)
	}
	if limits.MaxTTL != 0 {
		for _, o := range []holdfast.AcquireOptions{{TTL: limits.MaxTTL + 1}, {MinHold: limits.MaxTTL + 1}} {
			_, err := c.Acquire(b.Context(), "k", &o)
			b.wants(err, holdfast.ErrInvalid)
		}
		b.release(b.acquire(c, "k", &holdfast.AcquireOptions{TTL: limits.MaxTTL}))
	}
	l := b.acquire(c, "k", nil)
	if limits.Token != (l.Token() != 0) {
		b.Errorf("token %d, Limits.Token %v", l.Token(), limits.Token)
	}
	b.release(l)
	b.cleared()
}
