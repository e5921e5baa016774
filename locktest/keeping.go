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

var keeping = []testCase{
	{"TheWatchdogKeepsALease", watchdogKeeps},
	{"NoRenewEndsAfterTheTTL", noRenewEnds},
	{"MaxHoldStopsTheWatchdog", maxHoldStops},
	{"MinHoldOutlastsTheRelease", minHoldOutlasts},
	{"AKeptLockIsNobodys", keptIsNobodys},
	{"ExtendLonger", extendLonger},
	{"ExtendNeverShortens", extendNeverShortens},
	{"CheckAsksTheService", checkAsks},
	{"AdoptContinuesAGrant", adoptContinues},
	{"AdoptOfAPassedGrantIsLost", adoptPassed},
	{"OneGrantIsAdoptedOnce", adoptOnce},
	{"AdoptOfAReleasedGrantIsLost", adoptReleased},
	{"OnlyAnAdoptableGrantIsAdopted", adoptPlain},
	{"AnAdoptableGrantServesOneHolder", adoptedGoesOn},
	{"DetachLeavesTheLockUntilItsDeadline", detachLeaves},
	{"ADetachedGrantIsRenewedAndReleased", detachedContinues},
	{"ADetachedGrantThatIsOverStaysOver", detachedStaysOver},
	{"ContextOutlivesTheAcquiringOne", contextOutlives},
	{"ManyGrantsAreRenewedInOneCall", renewMany},
	{"TrustCountsFromBeforeTheRequest", trustCounts},
	{"AReleaseIsSentWithAnEndedContext", releaseIsSent},
	{"AReleaseDuringARenewalFreesTheLock", releaseDuringRenewal},
}

func watchdogKeeps(b *bench) {
	c, other := b.client(), b.client()
	l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.brief})
	first := l.Deadline()
	if left := time.Until(first); left > b.brief {
		b.Errorf("trusted for %v of a TTL of %v", left, b.brief)
	}
	b.outlasts(other, "k", first)
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
	b.cleared()
}

func noRenewEnds(b *bench) {
	c, other := b.client(), b.client()
	l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.short, NoRenew: true})
	deadline := l.Deadline()
	next := b.acquire(other, "k", nil)
	if now := time.Now(); now.Before(deadline) {
		b.Errorf("the next holder came %v before the deadline", deadline.Sub(now))
	}
	b.lost(l)
	b.wants(l.Release(b.Context()), holdfast.ErrLost)
	b.isHeld(c, "k")
	b.release(next)
}

func maxHoldStops(b *bench) {
	ttl, most := b.short, b.short*4/3
	l := b.acquire(b.client(), "k", &holdfast.AcquireOptions{TTL: ttl, MaxHold: most})
	begin := time.Now()
	b.lost(l)
	if trusted := l.Deadline().Sub(begin); trusted > most {
		b.Errorf("trusted for %v, want at most MaxHold %v", trusted, most)
	}
	if held := time.Since(begin); held > most && b.virtual {
		b.Errorf("held for %v, want at most MaxHold %v", held, most)
	}
	b.release(b.acquire(b.client(), "k", nil))
}

func minHoldOutlasts(b *bench) {
	b.need(b.limits.MinHold, "Limits.MinHold")
	least := b.brief
	c, other := b.client(), b.client()
	var begin time.Time
	err := b.insist(func() error {
		begin = time.Now()
		l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.ttl(b.brief - time.Second), MinHold: least})
		return l.Release(b.Context())
	})
	if err != nil {
		b.Fatal(err)
	}
	b.isHeld(other, "k")
	b.isHeld(c, "k")
	next := b.acquire(other, "k", nil)
	if kept := time.Since(begin); kept < least {
		b.Errorf("kept for %v, want at least %v", kept, least)
	}
	b.release(next)
	b.cleared()
}

func (b *bench) remaining(c *holdfast.Client, key string) time.Duration {
	b.Helper()
	st, err := c.Inspect(b.within(), key)
	if err != nil || !st.Held {
		b.Fatalf("Inspect() = %+v, %v, want a holder", st, err)
	}
	return st.Remaining
}

func extendLonger(b *bench) {
	b.need(b.limits.ChangeTTL, "Limits.ChangeTTL")
	c, other := b.client(), b.client()
	l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.ttl(b.long / 3), NoRenew: true})
	if err := b.insist(func() error { return l.Extend(b.within(), b.long) }); err != nil {
		b.Fatal(err)
	}
	if left := time.Until(l.Deadline()); left < b.long/2 || left > b.long {
		b.Errorf("trusted for %v after Extend(%v)", left, b.long)
	}
	if b.can.inspect {
		if left := b.remaining(other, "k"); left < b.long/2 {
			b.Errorf("the service keeps it for %v after Extend(%v)", left, b.long)
		}
	}
	b.release(l)
	b.wants(l.Extend(b.Context(), b.long), holdfast.ErrLost)
	b.isFree(other, "k")
	b.cleared()
}

func extendNeverShortens(b *bench) {
	b.need(b.limits.ChangeTTL, "Limits.ChangeTTL")
	c, other := b.client(), b.client()
	l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.long, NoRenew: true})
	until := l.Deadline()
	if err := b.insist(func() error { return l.Extend(b.within(), b.ttl(b.long/10)) }); err != nil {
		b.Fatal(err)
	}
	if d := until.Sub(l.Deadline()); d > time.Millisecond {
		b.Errorf("the deadline has come %v nearer", d)
	}
	if b.can.inspect {
		if left := b.remaining(other, "k"); left < time.Until(until) {
			b.Errorf("the service keeps it for %v, and it is trusted for %v", left, time.Until(until))
		}
	}
	b.release(l)
	b.isFree(other, "k")
	b.cleared()
}

func checkAsks(b *bench) {
	b.need(b.can.check, "driver.Checker")
	c := b.client()
	l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.long})
	if err := b.insist(func() error { return l.Check(b.within()) }); err != nil {
		b.Errorf("Check() = %v", err)
	}
	b.release(l)
	b.wants(l.Check(b.within()), holdfast.ErrLost)
	drv, other := b.driver(), b.driver()
	defer drv.Close()
	defer other.Close()
	check := func(g driver.Grant) error {
		return b.insist(func() error { return drv.(driver.Checker).Check(b.within(), g) })
	}
	old := b.grant(drv, "k", b.long)
	b.fine(check(old))
	b.fine(b.insist(func() error { return drv.Release(b.within(), old, 0) }))
	b.wants(check(old), driver.ErrLost)
	next := b.grant(other, "k", b.long)
	b.wants(check(old), driver.ErrLost) // which changes nothing for the next holder
	b.fine(b.renewal(other, next))
	b.fine(b.insist(func() error { return other.Release(b.within(), next, 0) }))
	b.cleared()
}

func (b *bench) needsAdopter() { b.Helper(); b.need(b.can.adopt, "driver.Adopter") }

// dead takes a grant as a process would that ends without releasing it.
func (b *bench) dead(key string, ttl time.Duration) driver.Grant {
	b.Helper()
	b.needsAdopter()
	drv := b.driver()
	defer drv.Close()
	return b.grant(drv, key, ttl)
}

func adoptContinues(b *bench) {
	c, other := b.client(), b.client()
	var g driver.Grant
	var l *holdfast.Lease
	err := b.insist(func() (err error) {
		g = b.dead("k", b.brief) // what was adopted in vain is over
		l, err = c.Adopt(b.within(), "k", g.Owner, holdfast.Token(g.Token), &holdfast.AcquireOptions{TTL: b.brief})
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	if l.Owner() == g.Owner || int64(l.Token()) < g.Token+int64(g.Block) {
		b.Errorf("adopted %q, %d from %q, %d: want an id of its own and a later token", l.Owner(), l.Token(), g.Owner, g.Token)
	}
	b.outlasts(other, "k", l.Deadline())
	b.release(l)
	b.isFree(other, "k")
	b.cleared()
}

func adoptPassed(b *bench) {
	g := b.dead("k", b.short)
	c, other := b.client(), b.client()
	l := b.acquire(other, "k", &holdfast.AcquireOptions{TTL: b.long})
	b.wants(b.adoptInVain(c, g.Owner, holdfast.Token(g.Token)), holdfast.ErrLost)
	b.isHeld(c, "k")
	if err := b.insist(func() error { return l.Extend(b.within(), b.long) }); err != nil {
		b.Errorf("the holder's renewal after a failed Adopt: %v", err)
	}
	b.release(l)
	b.cleared()
}

// adoptInVain is the error for the adoption of a lease that is over.
func (b *bench) adoptInVain(c *holdfast.Client, id string, token holdfast.Token) error {
	return b.insist(func() error {
		l, err := c.Adopt(b.within(), "k", id, token, nil)
		if err == nil {
			b.release(l)
		}
		return err
	})
}

// adoptOnce has several clients adopt one lease at the same time.
func adoptOnce(b *bench) {
	g := b.dead("k", b.brief)
	all := b.clients(4)
	for range b.rounds(20, 3) {
		won := make([]*holdfast.Lease, len(all))
		runTogether(len(all), func(i int) {
			l, err := all[i].Adopt(b.within(), "k", g.Owner, holdfast.Token(g.Token), &holdfast.AcquireOptions{TTL: b.brief})
			if err == nil {
				won[i] = l
			} else if !errors.Is(err, holdfast.ErrUnavailable) { // where each has a part, nobody has the lock
				b.wants(err, holdfast.ErrLost)
			}
		})
		var l *holdfast.Lease
		for _, w := range won {
			if w != nil && l != nil {
				b.Fatal("one lease is adopted by two")
			}
			if w != nil {
				l = w
			}
		}
		if l == nil {
			b.cleared()
			g = b.dead("k", b.brief)
			continue
		}
		if int64(l.Token()) <= g.Token {
			b.Errorf("token %d after %d", l.Token(), g.Token)
		}
		b.fine(l.Detach())
		g = driver.Grant{Key: "k", Owner: l.Owner(), Token: int64(l.Token())}
	}
}

func adoptReleased(b *bench) {
	b.needsAdopter()
	c := b.client()
	l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.long, Adoptable: true})
	b.release(l)
	b.wants(b.adoptInVain(b.client(), l.Owner(), l.Token()), holdfast.ErrLost)
	b.isFree(c, "k")
}

// adoptPlain checks that a lease cannot be adopted that another holder of its process may have
// by then.
func adoptPlain(b *bench) {
	b.needsAdopter()
	c, other := b.client(), b.client()
	l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.long})
	b.wants(l.Detach(), holdfast.ErrInvalid)
	next := make(chan *holdfast.Lease, 1)
	go func() { next <- b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.long}) }()
	b.eventually("a waiter in the process", func() bool {
		_, err := c.TryAcquire(b.within(), "k", nil)
		held, ok := errors.AsType[*holdfast.HeldError](err)
		return ok && held.Waiters > 0
	})
	b.release(l)
	successor := <-next
	_, err := other.Adopt(b.within(), "k", l.Owner(), l.Token(), nil)
	b.wants(err, holdfast.ErrInvalid)
	_, err = other.Adopt(b.within(), "k", successor.Owner(), successor.Token(), nil)
	b.wants(err, holdfast.ErrInvalid)
	b.fine(successor.Context().Err())
	b.release(successor)
	b.cleared()
}

// adoptedGoesOn checks that a lease that can be adopted is not handed on inside its process: nobody
// but its holder may rely on it.
func adoptedGoesOn(b *bench) {
	b.needsAdopter()
	c := b.client()
	opts := &holdfast.AcquireOptions{TTL: b.long, Adoptable: true}
	for _, behind := range []*holdfast.AcquireOptions{opts, {TTL: b.long}} {
		l := b.acquire(c, "k", opts)
		next := make(chan *holdfast.Lease, 1)
		go func() { next <- b.acquire(c, "k", behind) }()
		b.eventually("a waiter in the process", func() bool {
			_, err := c.TryAcquire(b.within(), "k", nil)
			held, ok := errors.AsType[*holdfast.HeldError](err)
			return ok && held.Waiters > 0
		})
		b.release(l)
		successor := <-next
		b.wants(b.adoptInVain(b.client(), l.Owner(), l.Token()), holdfast.ErrLost)
		b.fine(successor.Context().Err())
		b.release(successor)
	}
	b.cleared()
}

// keptIsNobodys checks that what ended with its release is not continued while the lock stands
// for its MinHold, and that no client ends the MinHold unasked.
func keptIsNobodys(b *bench) {
	b.need(b.limits.MinHold, "Limits.MinHold")
	c, other := b.client(), b.client()
	l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.brief, MinHold: b.long, Adoptable: b.can.adopt})
	b.release(l)
	if b.can.adopt {
		b.wants(b.adoptInVain(other, l.Owner(), l.Token()), holdfast.ErrLost)
	}
	if b.can.force {
		b.wants(other.ForceRelease(b.within(), "k", l.Token(), "by its token"), holdfast.ErrLost)
	}
	b.isHeld(other, "k")
	if b.can.inspect {
		if st, err := other.Inspect(b.within(), "k"); err != nil || !st.Kept || st.Token != 0 || st.Remaining < b.long/2 {
			b.Errorf("Inspect() = %+v, %v, want it kept without a token", st, err)
		}
	}
	if b.can.force {
		if err := b.insist(func() error { return other.ForceRelease(b.within(), "k", 0, "its MinHold is to end") }); err != nil {
			b.Errorf("ForceRelease with token 0 = %v", err)
		}
		b.isFree(other, "k")
	}
}

func detachLeaves(b *bench) {
	b.needsAdopter()
	c, other := b.client(), b.client()
	l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: b.brief, Adoptable: true})
	first := l.Deadline()
	b.eventually("a renewal", func() bool { return l.Deadline().After(first) })
	b.fine(l.Detach())
	if l.Context().Err() == nil {
		b.Error("the context goes on")
	}
	b.fine(c.Close())
	b.isHeld(other, "k")
	b.release(b.acquire(other, "k", nil))
	if now := time.Now(); now.Before(l.Deadline()) {
		b.Errorf("the next holder came %v before the deadline", l.Deadline().Sub(now))
	}
	b.cleared()
}

// detachedContinues renews and releases what another client has left.
func detachedContinues(b *bench) {
	g := b.dead("k", b.brief)
	drv, other := b.driver(), b.client()
	defer drv.Close()
	for end := time.Now().Add(b.brief + b.brief/6); time.Now().Before(end); time.Sleep(b.brief / 12) {
		r := drv.Renew(b.within(), []driver.Grant{g})[0]
		if r.Err != nil && !b.stalled(r.Err) {
			b.Fatalf("renewal: %v", r.Err)
		}
		if most := time.Now().Add(b.brief); r.TrustedUntil.After(most) {
			b.Errorf("trusted until %v after the TTL", r.TrustedUntil.Sub(most))
		}
		b.isHeld(other, "k")
	}
	b.fine(b.insist(func() error { return drv.Release(b.within(), g, 0) }))
	b.isFree(other, "k")
	b.wants(b.renewal(drv, g), holdfast.ErrLost)
	b.isFree(other, "k")
	b.cleared()
}

// renewal is the outcome of a renewal of g.
func (b *bench) renewal(drv driver.Driver, g driver.Grant) error {
	return b.insist(func() error { return drv.Renew(b.within(), []driver.Grant{g})[0].Err })
}

// detachedStaysOver checks that a detached lease that is over is never taken anew.
func detachedStaysOver(b *bench) {
	g := b.dead("k", b.short)
	drv, other := b.driver(), b.client()
	defer drv.Close()
	b.release(b.acquire(other, "k", &holdfast.AcquireOptions{TTL: b.long}))
	if b.limits.ChangeTTL {
		g.TTL = b.long // each node has a tenth to answer
	}
	b.wants(b.renewal(drv, g), holdfast.ErrLost)
	b.isFree(other, "k")
	l := b.acquire(other, "k", &holdfast.AcquireOptions{TTL: b.long})
	b.wants(b.renewal(drv, g), holdfast.ErrLost)
	b.fine(b.insist(func() error { return drv.Release(b.within(), g, 0) }))
	b.isHeld(b.client(), "k")
	b.release(l)
	b.cleared()
}

type valueKey struct{}

func contextOutlives(b *bench) {
	ctx, cancel := context.WithCancel(context.WithValue(b.Context(), valueKey{}, "value"))
	c := b.client()
	var l *holdfast.Lease
	err := b.insist(func() (err error) {
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
		b.Errorf("the lease's context has value %v", v)
	}
	b.release(l)
	if l.Context().Err() == nil {
		b.Error("the context goes on after the release")
	}
}

func renewMany(b *bench) {
	drv := b.driver()
	defer drv.Close()
	var grants []driver.Grant
	for begun := time.Now(); len(grants) < 3 || len(grants) < 100 && time.Since(begun) < b.long/3; { // fewer on a slow machine, while all live
		grants = append(grants, b.grant(drv, key(len(grants)), b.long))
	}
	gone := len(grants) / 2
	if err := b.insist(func() error { return drv.Release(b.Context(), grants[gone], 0) }); err != nil {
		b.Fatal(err)
	}
	var renewals []driver.Renewal
	b.insist(func() error {
		renewals = drv.Renew(b.within(), grants)
		i := slices.IndexFunc(renewals, func(r driver.Renewal) bool { return b.stalled(r.Err) })
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
			b.Errorf("grant %d is trusted for less after its renewal", i)
		}
	}
	for i, g := range grants {
		if err := drv.Release(b.Context(), g, 0); err != nil && i != gone && !b.stalled(err) {
			b.Errorf("Release() = %v", err)
		}
	}
	b.cleared()
}

// The time that an answer takes shortens the trust: the service counts from earlier.
func trustCounts(b *bench) {
	b.need(b.Delay != nil, "Service.Delay")
	const slow = 200 * time.Millisecond
	drv := b.driver()
	defer drv.Close()
	b.Delay(slow)
	defer b.Delay(0)
	g := b.grant(drv, "k", b.long)
	if most := time.Now().Add(g.TTL - slow); g.TrustedUntil.After(most) {
		b.Errorf("a grant is trusted until %v after its TTL began", g.TrustedUntil.Sub(most))
	}
	var r driver.Renewal
	b.fine(b.insist(func() error {
		r = drv.Renew(b.within(), []driver.Grant{g})[0]
		return r.Err
	}))
	if most := time.Now().Add(g.TTL - slow); r.TrustedUntil.After(most) {
		b.Errorf("a renewal is trusted until %v after its TTL began", r.TrustedUntil.Sub(most))
	}
	b.fine(b.insist(func() error { return drv.Release(b.within(), g, 0) }))
	b.cleared()
}

func releaseIsSent(b *bench) {
	drv, other := b.driver(), b.client()
	defer drv.Close()
	ctx, cancel := context.WithCancel(b.Context())
	cancel()
	for tries := b.rounds(1, 50); ; tries-- { // the answer of a busy machine may take longer than it is awaited
		err := drv.Release(ctx, b.grant(drv, "k", b.long), 0)
		b.isFree(other, "k")
		if err == nil {
			break
		}
		if tries == 1 {
			b.Fatalf("Release() that goes through with an ended context = %v, want nil", err)
		}
	}
	b.cleared()
}

func releaseDuringRenewal(b *bench) {
	drv, other := b.driver(), b.client()
	defer drv.Close()
	for range b.rounds(50, 10) {
		g := b.grant(drv, "k", b.long)
		var renewal sync.WaitGroup
		renewal.Go(func() { drv.Renew(b.within(), []driver.Grant{g}) })
		time.Sleep(upTo(time.Millisecond)) // any moment will do
		b.fine(b.insist(func() error { return drv.Release(b.within(), g, 0) }))
		renewal.Wait()
		b.isFree(other, "k")
	}
	b.cleared()
}
