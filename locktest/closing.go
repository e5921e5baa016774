package locktest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

var closingCases = []testCase{
	{"CloseReleasesLeases", closeReleasesLeases},
	{"CloseEndsWaits", closeEndsWaits},
	{"CloseUnderLoadReleasesLocks", closeUnderLoad},
	{"ShutdownWaitsForHolder", shutdownWaitsForHolder},
	{"ClosedDriverReturnsErrClosed", closedDriverReturnsErrClosed},
	{"DriverCloseEndsWaits", driverCloseEndsWaits},
	{"DoAlwaysReleases", doReleasesLock},
	{"LimitsAreRespected", limitsAreRespected},
	{"TTLsAreRoundedUp", ttlsAreRoundedUp},
	{"UndeclaredAbilityIsRejected", undeclaredIsRejected},
}

func closeReleasesLeases(b *bench) {
	c, other := b.newClient(), b.newClient()
	var leases []*holdfast.Lease
	for i := range 20 {
		leases = append(leases, b.acquire(c, keyOf(i), &holdfast.AcquireOptions{TTL: b.long}))
	}
	if err := c.Close(); err != nil {
		b.Errorf("Close() = %v", err)
	}
	for i, l := range leases {
		if l.Context().Err() == nil {
			b.Error("a lease's context is alive after Close")
		}
		b.checkFree(other, keyOf(i))
		b.release(l)
	}
	_, err := c.Acquire(b.Context(), "k", nil)
	b.checkError(err, holdfast.ErrClosed)
	if err := c.Close(); err != nil {
		b.Errorf("second Close() = %v", err)
	}
	b.checkCleared()
}

func closeEndsWaits(b *bench) {
	holder, c := b.newClient(), b.newClient()
	l := b.acquire(holder, "k", &holdfast.AcquireOptions{TTL: b.long})
	const waiters = 3
	errs := make(chan error, waiters)
	for range waiters {
		go func() {
			_, err := c.Acquire(b.boundedContext(), "k", nil)
			errs <- err
		}()
	}
	b.awaitWait(c, "k", waiters)
	if err := c.Close(); err != nil {
		b.Errorf("Close() = %v", err)
	}
	for range waiters {
		b.checkError(<-errs, holdfast.ErrClosed)
	}
	b.release(l)
	b.checkFree(holder, "k")
	b.checkCleared()
}

// A caller that acquires or releases while the client is closed, or gives up its call, leaves no lock.
func closeUnderLoad(b *bench) {
	for range b.roundCount(50, 5) {
		c := b.newClient()
		var callers sync.WaitGroup
		for i := range 4 {
			callers.Go(func() {
				for {
					ctx, cancel := b.boundedContext(), func() {}
					if i%2 == 1 {
						ctx, cancel = context.WithTimeout(ctx, randomUpTo(4*time.Millisecond))
					}
					l, err := c.Acquire(ctx, keyOf(i%3), &holdfast.AcquireOptions{TTL: b.long})
					if err == nil {
						time.Sleep(randomUpTo(2 * time.Millisecond)) // otherwise all would be over before Close
						l.Release(ctx)
					}
					cancel()
					if errors.Is(err, holdfast.ErrClosed) {
						return
					}
					if err != nil && (i%2 == 0 || !errors.Is(err, context.DeadlineExceeded) && !b.isStall(err)) {
						b.Errorf("Acquire() = %v", err)
						return
					}
				}
			})
		}
		time.Sleep(randomUpTo(10 * time.Millisecond)) // any moment
		if err := c.Close(); err != nil {
			b.Errorf("Close() = %v", err)
		}
		callers.Wait()
		b.checkCleared()
	}
}

func shutdownWaitsForHolder(b *bench) {
	c, other := b.newClient(), b.newClient()
	l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.brief})
	done := make(chan error, 1)
	go func() { done <- c.Shutdown(b.boundedContext()) }()
	b.eventually("new leases are refused", func() bool {
		next, err := c.TryAcquire(b.Context(), "other", nil)
		if err == nil {
			b.release(next)
		}
		return errors.Is(err, holdfast.ErrClosed)
	})
	deadline := l.Deadline()
	b.eventually("a renewal", func() bool { return l.Deadline().After(deadline) })
	b.checkHeld(other, "k")
	b.release(l)
	if err := <-done; err != nil {
		b.Errorf("Shutdown() = %v", err)
	}
	b.checkFree(other, "k")
	b.checkCleared()
}

func closedDriverReturnsErrClosed(b *bench) {
	drv := b.openDriver()
	if err := drv.Close(); err != nil {
		b.Errorf("Close() = %v", err)
	}
	if err := drv.Close(); err != nil {
		b.Errorf("second Close() = %v", err)
	}
	_, err := drv.Acquire(b.boundedContext(), driver.Request{Key: "k", TTL: b.short})
	b.checkError(err, driver.ErrClosed)
	b.checkCleared()
}

func driverCloseEndsWaits(b *bench) {
	drv, other := b.openDriver(), b.newClient()
	l := b.acquire(other, "k", &holdfast.AcquireOptions{TTL: b.long})
	waiting := make(chan error, 1)
	go func() {
		_, err := drv.Acquire(b.boundedContext(), driver.Request{Key: "k", TTL: b.long})
		waiting <- err
	}()
	b.awaitWait(other, "k", 1)
	if err := drv.Close(); err != nil {
		b.Errorf("Close() = %v", err)
	}
	select {
	case err := <-waiting:
		b.checkError(err, driver.ErrClosed)
	case <-time.After(b.long / 3): // long before the lock could expire
		b.Fatal("Acquire did not end on Close")
	}
	b.release(l)
	b.checkCleared()
}

func doReleasesLock(b *bench) {
	c, other := b.newClient(), b.newClient()
	boom := errors.New("boom")
	err := b.retryLate(func() error {
		return c.Do(b.boundedContext(), "k", nil, func(context.Context, *holdfast.Lease) error {
			b.checkHeld(other, "k")
			return boom
		})
	})
	if !errors.Is(err, boom) || errors.Is(err, holdfast.ErrLost) {
		b.Errorf("Do() = %v, want fn's error alone", err)
	}
	b.checkFree(other, "k")
	func() {
		defer func() {
			if recover() != "panic" {
				b.Error("Do recovered the panic of fn")
			}
		}()
		b.retryLate(func() error {
			return c.Do(b.boundedContext(), "k", nil, func(context.Context, *holdfast.Lease) error { panic("panic") })
		})
	}()
	b.checkFree(other, "k")
	b.checkCleared()
}

func limitsAreRespected(b *bench) {
	limits, c := b.limits, b.newClient()
	for _, ttl := range []time.Duration{-1, time.Nanosecond, limits.MinTTL - 1} {
		_, err := c.Acquire(b.Context(), "k", &holdfast.AcquireOptions{TTL: ttl})
		b.checkError(err, holdfast.ErrInvalid)
	}
	if limits.MaxTTL != 0 {
		_, err := c.Acquire(b.Context(), "k", &holdfast.AcquireOptions{TTL: limits.MaxTTL + 1})
		b.checkError(err, holdfast.ErrInvalid)
		if limits.MinHold {
			_, err := c.Acquire(b.Context(), "k", &holdfast.AcquireOptions{MinHold: limits.MaxTTL + 1})
			b.checkError(err, holdfast.ErrInvalid)
		}
		b.release(b.acquire(c, "k", &holdfast.AcquireOptions{TTL: limits.MaxTTL}))
	}
	l := b.acquire(c, "k", nil)
	if limits.Token != (l.Token() != 0) {
		b.Errorf("token %d, Limits.Token %v", l.Token(), limits.Token)
	}
	b.release(l)
	b.checkCleared()
}

// A TTL is rounded up and never down, and the grant has the result.
func ttlsAreRoundedUp(b *bench) {
	drv := b.openDriver()
	defer drv.Close()
	for _, ttl := range []time.Duration{b.limits.MinTTL, b.limits.MinTTL + 1, b.brief, b.brief - time.Millisecond, b.long - b.long/7} {
		g, err := b.tryGrant(drv, "k", ttl)
		if err != nil && !b.virtual && ttl < b.short {
			b.Logf("every answer came after a TTL of %v was over, as on a busy machine: %v", ttl, err)
			continue
		}
		b.checkNoError(err)
		if g.TTL != b.roundTTL(ttl) {
			b.Errorf("a TTL of %v is granted as %v, want %v by Limits.Granularity", ttl, g.TTL, b.roundTTL(ttl))
		}
		if most := time.Now().Add(g.TTL); g.TrustedUntil.After(most) {
			b.Errorf("trusted until %v after the TTL of %v", g.TrustedUntil.Sub(most), g.TTL)
		}
		b.checkNoError(b.retryLate(func() error { return drv.Release(b.boundedContext(), g, 0) }))
	}
	b.checkCleared()
}

// A call that needs an ability which the driver does not declare, or an interface that it lacks, is rejected
// and has no effect. It is never ignored, and never half executed.
func undeclaredIsRejected(b *bench) {
	c := b.newClient()
	refuses := func(what string, declared bool, do func() error) {
		if declared {
			return
		}
		if err := do(); !errors.Is(err, holdfast.ErrUnsupported) {
			b.Errorf("%s = %v, want ErrUnsupported", what, err)
		}
	}
	acquire := func(o holdfast.AcquireOptions) func() error {
		return func() error { return errorOf(c.Acquire(b.boundedContext(), "k", &o)) }
	}
	refuses("Acquire with MinHold", b.limits.MinHold, acquire(holdfast.AcquireOptions{MinHold: b.brief}))
	refuses("Acquire with Fenced", b.limits.Token, acquire(holdfast.AcquireOptions{Fenced: true}))
	refuses("Inspect", b.can.inspect, func() error { return errorOf(c.Inspect(b.boundedContext(), "k")) })
	refuses("List", b.can.list, func() error {
		for _, err := range c.List(b.boundedContext(), "") {
			return err
		}
		return nil
	})
	refuses("ForceRelease", b.can.force, func() error { return c.ForceRelease(b.boundedContext(), "k", 1, "") })
	refuses("Queue", b.can.queue, func() error {
		_, err := c.Queue(b.boundedContext(), "k", 1)
		return err
	})
	refuses("Adopt", b.can.adopt, func() error { return errorOf(c.Adopt(b.boundedContext(), "k", "someone.1", 1, nil)) })
	b.checkCleared()
	l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.brief})
	refuses("Extend to another TTL", b.limits.ChangeTTL || b.long == b.brief, func() error { return l.Extend(b.boundedContext(), b.long) })
	refuses("Check", b.can.check, func() error { return l.Check(b.boundedContext()) })
	refuses("Detach", b.can.adopt, l.Detach)
	if err := b.retryLate(func() error { return l.Extend(b.boundedContext(), b.brief) }); err != nil {
		b.Errorf("Extend by the TTL that the lease has = %v", err)
	}
	b.release(l)
	b.checkCleared()
}
