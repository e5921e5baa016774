package locktest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

var keepingCases = []testCase{
	{"WatchdogKeepsLease", watchdogKeepsLease},
	{"NoRenewEndsAfterTTL", noRenewEnds},
	{"MaxHoldEndsLease", maxHoldEndsLease},
	{"MinHoldOutlastsRelease", minHoldOutlastsRelease},
	{"MinHoldClearsOwner", minHoldClearsOwner},
	{"ExtendSetsLongerTTL", extendSetsLongerTTL},
	{"ExtendNeverShortens", extendNeverShortens},
	{"CheckAsksService", checkAsksService},
	{"AdoptContinuesGrant", adoptContinuesGrant},
	{"PassedGrantIsNotAdopted", passedGrantIsNotAdopted},
	{"GrantIsAdoptedOnce", grantIsAdoptedOnce},
	{"ReleasedGrantIsNotAdopted", releasedGrantIsNotAdopted},
	{"OnlyAdoptableGrantIsAdopted", plainGrantIsNotAdopted},
	{"AdoptableGrantServesOneHolder", adoptableServesOneHolder},
	{"DetachLeavesLockUntilDeadline", detachLeavesLock},
	{"DetachedGrantIsRenewedAndReleased", detachedGrantIsRenewed},
	{"ExpiredDetachedGrantStaysLost", detachedGrantStaysLost},
	{"LeaseOutlivesAcquireContext", leaseOutlivesContext},
	{"OneCallRenewsManyGrants", renewManyGrants},
	{"TrustCountsFromBeforeRequest", trustCountsFromRequest},
	{"EndedContextStillReleases", endedContextStillReleases},
	{"ReleaseDuringRenewalFreesLock", releaseDuringRenewal},
}

func watchdogKeepsLease(b *bench) {
	c, other := b.newClient(), b.newClient()
	l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.brief})
	first := l.Deadline()
	if left := time.Until(first); left > b.brief {
		b.Errorf("trusted for %v of a TTL of %v", left, b.brief)
	}
	b.checkOutlasts(other, "k", first)
	if err := context.Cause(l.Context()); err != nil {
		b.Fatalf("the lease ended: %v", err)
	}
	if !l.Deadline().After(first) {
		b.Error("renewal did not move the deadline")
	}
	b.release(l)
	if err := context.Cause(l.Context()); err == nil || errors.Is(err, holdfast.ErrLost) {
		b.Errorf("cause after the release = %v, want an end without ErrLost", err)
	}
	b.checkCleared()
}

func noRenewEnds(b *bench) {
	c, other := b.newClient(), b.newClient()
	l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.short, NoRenew: true})
	deadline := l.Deadline()
	next := b.acquire(other, "k", nil)
	if now := time.Now(); now.Before(deadline) {
		b.Errorf("the next holder came %v before the deadline", deadline.Sub(now))
	}
	b.awaitLoss(l)
	b.checkError(l.Release(b.Context()), holdfast.ErrLost)
	b.checkHeld(c, "k")
	b.release(next)
}

func maxHoldEndsLease(b *bench) {
	ttl, most := b.short, b.short*4/3
	l := b.acquire(b.newClient(), "k", &holdfast.AcquireOptions{TTL: ttl, MaxHold: most})
	begin := time.Now()
	b.awaitLoss(l)
	if trusted := l.Deadline().Sub(begin); trusted > most {
		b.Errorf("trusted for %v, want at most MaxHold %v", trusted, most)
	}
	if held := time.Since(begin); held > most && b.virtual {
		b.Errorf("held for %v, want at most MaxHold %v", held, most)
	}
	b.release(b.acquire(b.newClient(), "k", nil))
}

func minHoldOutlastsRelease(b *bench) {
	b.skipWithout(b.limits.MinHold, "Limits.MinHold")
	least := b.brief
	c, other := b.newClient(), b.newClient()
	var begin time.Time
	err := b.retryLate(func() error {
		begin = time.Now()
		l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.exactTTL(b.brief - time.Second), MinHold: least})
		return l.Release(b.Context())
	})
	if err != nil {
		b.Fatal(err)
	}
	b.checkHeld(other, "k")
	b.checkHeld(c, "k")
	next := b.acquire(other, "k", nil)
	if kept := time.Since(begin); kept < least {
		b.Errorf("kept for %v, want at least %v", kept, least)
	}
	b.release(next)
	b.checkCleared()
}

func (b *bench) remainingTTL(c *holdfast.Client, key string) time.Duration {
	b.Helper()
	st, err := c.Inspect(b.boundedContext(), key)
	if err != nil || !st.Held {
		b.Fatalf("Inspect() = %+v, %v, want a holder", st, err)
	}
	return st.Remaining
}

func extendSetsLongerTTL(b *bench) {
	b.skipWithout(b.limits.ChangeTTL, "Limits.ChangeTTL")
	c, other := b.newClient(), b.newClient()
	l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.exactTTL(b.long / 3), NoRenew: true})
	if err := b.retryLate(func() error { return l.Extend(b.boundedContext(), b.long) }); err != nil {
		b.Fatal(err)
	}
	if left := time.Until(l.Deadline()); left < b.long/2 || left > b.long {
		b.Errorf("trusted for %v after Extend(%v)", left, b.long)
	}
	if b.can.inspect {
		if left := b.remainingTTL(other, "k"); left < b.long/2 {
			b.Errorf("the service keeps the lock for %v after Extend(%v)", left, b.long)
		}
	}
	b.release(l)
	b.checkError(l.Extend(b.Context(), b.long), holdfast.ErrLost)
	b.checkFree(other, "k")
	b.checkCleared()
}

func extendNeverShortens(b *bench) {
	b.skipWithout(b.limits.ChangeTTL, "Limits.ChangeTTL")
	c, other := b.newClient(), b.newClient()
	l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.long, NoRenew: true})
	until := l.Deadline()
	if err := b.retryLate(func() error { return l.Extend(b.boundedContext(), b.exactTTL(b.long/10)) }); err != nil {
		b.Fatal(err)
	}
	if d := until.Sub(l.Deadline()); d > time.Millisecond {
		b.Errorf("the deadline moved back by %v", d)
	}
	if b.can.inspect {
		if left := b.remainingTTL(other, "k"); left < time.Until(until) {
			b.Errorf("the service keeps the lock for %v, and the client trusts it for %v", left, time.Until(until))
		}
	}
	b.release(l)
	b.checkFree(other, "k")
	b.checkCleared()
}

func checkAsksService(b *bench) {
	b.skipWithout(b.can.check, "driver.Checker")
	c := b.newClient()
	l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.long})
	if err := b.retryLate(func() error { return l.Check(b.boundedContext()) }); err != nil {
		b.Errorf("Check() = %v", err)
	}
	b.release(l)
	b.checkError(l.Check(b.boundedContext()), holdfast.ErrLost)
	drv, other := b.openDriver(), b.openDriver()
	defer drv.Close()
	defer other.Close()
	check := func(g driver.Grant) error {
		return b.retryLate(func() error { return drv.(driver.Checker).Check(b.boundedContext(), g) })
	}
	old := b.takeGrant(drv, "k", b.long)
	b.checkNoError(check(old))
	b.checkNoError(b.retryLate(func() error { return drv.Release(b.boundedContext(), old, 0) }))
	b.checkError(check(old), driver.ErrLost)
	next := b.takeGrant(other, "k", b.long)
	b.checkError(check(old), driver.ErrLost) // and it changes nothing for the next holder
	b.checkNoError(b.renewGrant(other, next))
	b.checkNoError(b.retryLate(func() error { return other.Release(b.boundedContext(), next, 0) }))
	b.checkCleared()
}

func (b *bench) needsAdopter() { b.Helper(); b.skipWithout(b.can.adopt, "driver.Adopter") }

// takeAbandonedGrant acquires a grant and does not release it, like a process that died.
func (b *bench) takeAbandonedGrant(key string, ttl time.Duration) driver.Grant {
	b.Helper()
	b.needsAdopter()
	drv := b.openDriver()
	defer drv.Close()
	return b.takeGrant(drv, key, ttl)
}

func adoptContinuesGrant(b *bench) {
	c, other := b.newClient(), b.newClient()
	var g driver.Grant
	var l *holdfast.Lease
	err := b.retryLate(func() (err error) {
		g = b.takeAbandonedGrant("k", b.brief) // the grant of the failed adoption has expired
		l, err = c.Adopt(b.boundedContext(), "k", g.Owner, holdfast.Token(g.Token), &holdfast.AcquireOptions{TTL: b.brief})
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	if l.Owner() == g.Owner || int64(l.Token()) < g.Token+int64(g.Block) {
		b.Errorf("adopted %q, %d from %q, %d: want a new id and a later token", l.Owner(), l.Token(), g.Owner, g.Token)
	}
	b.checkOutlasts(other, "k", l.Deadline())
	b.release(l)
	b.checkFree(other, "k")
	b.checkCleared()
}

func passedGrantIsNotAdopted(b *bench) {
	g := b.takeAbandonedGrant("k", b.short)
	c, other := b.newClient(), b.newClient()
	l := b.acquire(other, "k", &holdfast.AcquireOptions{TTL: b.long})
	b.checkError(b.adoptAndFail(c, g.Owner, holdfast.Token(g.Token)), holdfast.ErrLost)
	b.checkHeld(c, "k")
	if err := b.retryLate(func() error { return l.Extend(b.boundedContext(), b.long) }); err != nil {
		b.Errorf("the holder's renewal after a failed Adopt: %v", err)
	}
	b.release(l)
	b.checkCleared()
}

// adoptAndFail returns the error of adopting a lease that has ended.
func (b *bench) adoptAndFail(c *holdfast.Client, id string, token holdfast.Token) error {
	return b.retryLate(func() error {
		l, err := c.Adopt(b.boundedContext(), "k", id, token, nil)
		if err == nil {
			b.release(l)
		}
		return err
	})
}

// grantIsAdoptedOnce lets several clients adopt one lease at the same time.
func grantIsAdoptedOnce(b *bench) {
	g := b.takeAbandonedGrant("k", b.brief)
	all := b.newClients(4)
	for range b.roundCount(20, 3) {
		won := make([]*holdfast.Lease, len(all))
		runTogether(len(all), func(i int) {
			l, err := all[i].Adopt(b.boundedContext(), "k", g.Owner, holdfast.Token(g.Token), &holdfast.AcquireOptions{TTL: b.brief})
			if err == nil {
				won[i] = l
			} else if !errors.Is(err, holdfast.ErrUnavailable) { // if each has some of the nodes, none has the lock
				b.checkError(err, holdfast.ErrLost)
			}
		})
		var l *holdfast.Lease
		for _, w := range won {
			if w != nil && l != nil {
				b.Fatal("two clients adopted one lease")
			}
			if w != nil {
				l = w
			}
		}
		if l == nil {
			b.checkCleared()
			g = b.takeAbandonedGrant("k", b.brief)
			continue
		}
		if int64(l.Token()) <= g.Token {
			b.Errorf("token %d after %d", l.Token(), g.Token)
		}
		b.checkNoError(l.Detach())
		g = driver.Grant{Key: "k", Owner: l.Owner(), Token: int64(l.Token())}
	}
}

func releasedGrantIsNotAdopted(b *bench) {
	b.needsAdopter()
	c := b.newClient()
	l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.long, Adoptable: true})
	b.release(l)
	b.checkError(b.adoptAndFail(b.newClient(), l.Owner(), l.Token()), holdfast.ErrLost)
	b.checkFree(c, "k")
}

// plainGrantIsNotAdopted checks that a lease without Adoptable cannot be adopted, because another holder of its process
// may have it by then.
func plainGrantIsNotAdopted(b *bench) {
	b.needsAdopter()
	c, other := b.newClient(), b.newClient()
	l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.long})
	b.checkError(l.Detach(), holdfast.ErrInvalid)
	next := make(chan *holdfast.Lease, 1)
	go func() { next <- b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.long}) }()
	b.eventually("a waiter in the process", func() bool {
		_, err := c.TryAcquire(b.boundedContext(), "k", nil)
		held, ok := errors.AsType[*holdfast.HeldError](err)
		return ok && held.Waiters > 0
	})
	b.release(l)
	successor := <-next
	_, err := other.Adopt(b.boundedContext(), "k", l.Owner(), l.Token(), nil)
	b.checkError(err, holdfast.ErrInvalid)
	_, err = other.Adopt(b.boundedContext(), "k", successor.Owner(), successor.Token(), nil)
	b.checkError(err, holdfast.ErrInvalid)
	b.checkNoError(successor.Context().Err())
	b.release(successor)
	b.checkCleared()
}

// adoptableServesOneHolder checks that an adoptable lease is not handed over inside its process: only its
// holder may rely on it.
func adoptableServesOneHolder(b *bench) {
	b.needsAdopter()
	c := b.newClient()
	opts := &holdfast.AcquireOptions{TTL: b.long, Adoptable: true}
	for _, behind := range []*holdfast.AcquireOptions{opts, {TTL: b.long}} {
		l := b.acquire(c, "k", opts)
		next := make(chan *holdfast.Lease, 1)
		go func() { next <- b.acquire(c, "k", behind) }()
		b.eventually("a waiter in the process", func() bool {
			_, err := c.TryAcquire(b.boundedContext(), "k", nil)
			held, ok := errors.AsType[*holdfast.HeldError](err)
			return ok && held.Waiters > 0
		})
		b.release(l)
		successor := <-next
		b.checkError(b.adoptAndFail(b.newClient(), l.Owner(), l.Token()), holdfast.ErrLost)
		b.checkNoError(successor.Context().Err())
		b.release(successor)
	}
	b.checkCleared()
}

// minHoldClearsOwner checks that a released lock with MinHold cannot be renewed or adopted, and that no client
// ends its MinHold.
func minHoldClearsOwner(b *bench) {
	b.skipWithout(b.limits.MinHold, "Limits.MinHold")
	c, other := b.newClient(), b.newClient()
	l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.brief, MinHold: b.long, Adoptable: b.can.adopt})
	b.release(l)
	if b.can.adopt {
		b.checkError(b.adoptAndFail(other, l.Owner(), l.Token()), holdfast.ErrLost)
	}
	if b.can.force {
		b.checkError(other.ForceRelease(b.boundedContext(), "k", l.Token(), "by its token"), holdfast.ErrLost)
	}
	b.checkHeld(other, "k")
	if b.can.inspect {
		if st, err := other.Inspect(b.boundedContext(), "k"); err != nil || !st.Kept || st.Token != 0 || st.Remaining < b.long/2 {
			b.Errorf("Inspect() = %+v, %v, want it kept without a token", st, err)
		}
	}
	if b.can.force {
		if err := b.retryLate(func() error { return other.ForceRelease(b.boundedContext(), "k", 0, "its MinHold is to end") }); err != nil {
			b.Errorf("ForceRelease with token 0 = %v", err)
		}
		b.checkFree(other, "k")
	}
}

func detachLeavesLock(b *bench) {
	b.needsAdopter()
	c, other := b.newClient(), b.newClient()
	l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.brief, Adoptable: true})
	first := l.Deadline()
	b.eventually("a renewal", func() bool { return l.Deadline().After(first) })
	b.checkNoError(l.Detach())
	if l.Context().Err() == nil {
		b.Error("the context is alive")
	}
	b.checkNoError(c.Close())
	b.checkHeld(other, "k")
	b.release(b.acquire(other, "k", nil))
	if now := time.Now(); now.Before(l.Deadline()) {
		b.Errorf("the next holder came %v before the deadline", l.Deadline().Sub(now))
	}
	b.checkCleared()
}

// detachedGrantIsRenewed renews and releases a grant that another client has detached.
func detachedGrantIsRenewed(b *bench) {
	g := b.takeAbandonedGrant("k", b.brief)
	drv, other := b.openDriver(), b.newClient()
	defer drv.Close()
	for end := time.Now().Add(b.brief + b.brief/6); time.Now().Before(end); time.Sleep(b.brief / 12) {
		r := drv.Renew(b.boundedContext(), []driver.Grant{g})[0]
		if r.Err != nil && !b.isStall(r.Err) {
			b.Fatalf("renewal: %v", r.Err)
		}
		if most := time.Now().Add(b.brief); r.TrustedUntil.After(most) {
			b.Errorf("trusted until %v after the TTL", r.TrustedUntil.Sub(most))
		}
		b.checkHeld(other, "k")
	}
	b.checkNoError(b.retryLate(func() error { return drv.Release(b.boundedContext(), g, 0) }))
	b.checkFree(other, "k")
	b.checkError(b.renewGrant(drv, g), holdfast.ErrLost)
	b.checkFree(other, "k")
	b.checkCleared()
}

// renewGrant returns the result of a renewal of g.
func (b *bench) renewGrant(drv driver.Driver, g driver.Grant) error {
	return b.retryLate(func() error { return drv.Renew(b.boundedContext(), []driver.Grant{g})[0].Err })
}

// detachedGrantStaysLost checks that a detached lease that has expired is never renewed again.
func detachedGrantStaysLost(b *bench) {
	g := b.takeAbandonedGrant("k", b.short)
	drv, other := b.openDriver(), b.newClient()
	defer drv.Close()
	b.release(b.acquire(other, "k", &holdfast.AcquireOptions{TTL: b.long}))
	if b.limits.ChangeTTL {
		g.TTL = b.long // each node has a tenth of it to answer
	}
	b.checkError(b.renewGrant(drv, g), holdfast.ErrLost)
	b.checkFree(other, "k")
	l := b.acquire(other, "k", &holdfast.AcquireOptions{TTL: b.long})
	b.checkError(b.renewGrant(drv, g), holdfast.ErrLost)
	b.checkNoError(b.retryLate(func() error { return drv.Release(b.boundedContext(), g, 0) }))
	b.checkHeld(b.newClient(), "k")
	b.release(l)
	b.checkCleared()
}

type valueKey struct{}

func leaseOutlivesContext(b *bench) {
	ctx, cancel := context.WithCancel(context.WithValue(b.Context(), valueKey{}, "value"))
	c := b.newClient()
	var l *holdfast.Lease
	err := b.retryLate(func() (err error) {
		l, err = c.Acquire(ctx, "k", nil)
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	cancel()
	if err := l.Context().Err(); err != nil {
		b.Errorf("the lease ended with the acquiring context: %v", err)
	}
	if v := l.Context().Value(valueKey{}); v != "value" {
		b.Errorf("the lease's context has the value %v", v)
	}
	b.release(l)
	if l.Context().Err() == nil {
		b.Error("the context is alive after the release")
	}
}

func renewManyGrants(b *bench) {
	drv := b.openDriver()
	defer drv.Close()
	var grants []driver.Grant
	for begun := time.Now(); len(grants) < 3 || len(grants) < 100 && time.Since(begun) < b.long/3; { // fewer on a slow machine, while all are valid
		grants = append(grants, b.takeGrant(drv, keyOf(len(grants)), b.long))
	}
	gone := len(grants) / 2
	if err := b.retryLate(func() error { return drv.Release(b.Context(), grants[gone], 0) }); err != nil {
		b.Fatal(err)
	}
	var renewals []driver.Renewal
	b.retryLate(func() error {
		renewals = drv.Renew(b.boundedContext(), grants)
		i := slices.IndexFunc(renewals, func(r driver.Renewal) bool { return b.isStall(r.Err) })
		if i < 0 {
			return nil
		}
		return renewals[i].Err
	})
	if len(renewals) != len(grants) {
		b.Fatalf("%d outcomes for %d grants", len(renewals), len(grants))
	}
	for i, r := range renewals {
		switch {
		case i == gone:
			if !errors.Is(r.Err, driver.ErrLost) {
				b.Errorf("a released grant: %v, want ErrLost", r.Err)
			}
		case r.Err != nil:
			b.Errorf("grant %d: %v", i, r.Err)
		case r.TrustedUntil.Before(grants[i].TrustedUntil):
			b.Errorf("renewing grant %d shortened its trust", i)
		}
	}
	for i, g := range grants {
		if err := drv.Release(b.Context(), g, 0); err != nil && i != gone && !b.isStall(err) {
			b.Errorf("Release() = %v", err)
		}
	}
	b.checkCleared()
}

// The delay of an answer shortens the trust, because the service counts from an earlier time.
func trustCountsFromRequest(b *bench) {
	b.skipWithout(b.Delay != nil, "Service.Delay")
	const slow = 200 * time.Millisecond
	drv := b.openDriver()
	defer drv.Close()
	b.Delay(slow)
	defer b.Delay(0)
	g := b.takeGrant(drv, "k", b.long)
	if most := time.Now().Add(g.TTL - slow); g.TrustedUntil.After(most) {
		b.Errorf("a grant is trusted until %v after the start of its TTL", g.TrustedUntil.Sub(most))
	}
	var r driver.Renewal
	b.checkNoError(b.retryLate(func() error {
		r = drv.Renew(b.boundedContext(), []driver.Grant{g})[0]
		return r.Err
	}))
	if most := time.Now().Add(g.TTL - slow); r.TrustedUntil.After(most) {
		b.Errorf("a renewal is trusted until %v after the start of its TTL", r.TrustedUntil.Sub(most))
	}
	b.checkNoError(b.retryLate(func() error { return drv.Release(b.boundedContext(), g, 0) }))
	b.checkCleared()
}

func endedContextStillReleases(b *bench) {
	drv, other := b.openDriver(), b.newClient()
	defer drv.Close()
	ctx, cancel := context.WithCancel(b.Context())
	cancel()
	for tries := b.roundCount(1, 50); ; tries-- { // the answer of a busy machine may take longer than Release waits
		err := drv.Release(ctx, b.takeGrant(drv, "k", b.long), 0)
		b.checkFree(other, "k")
		if err == nil {
			break
		}
		if tries == 1 {
			b.Fatalf("Release() with an ended context that the service answered = %v, want nil", err)
		}
	}
	b.checkCleared()
}

func releaseDuringRenewal(b *bench) {
	drv, other := b.openDriver(), b.newClient()
	defer drv.Close()
	for range b.roundCount(50, 10) {
		g := b.takeGrant(drv, "k", b.long)
		var renewal sync.WaitGroup
		renewal.Go(func() { drv.Renew(b.boundedContext(), []driver.Grant{g}) })
		time.Sleep(randomUpTo(time.Millisecond)) // any moment
		b.checkNoError(b.retryLate(func() error { return drv.Release(b.boundedContext(), g, 0) }))
		renewal.Wait()
		b.checkFree(other, "k")
	}
	b.checkCleared()
}
