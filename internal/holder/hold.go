package holder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Hold is one hold of a lock. It is safe for concurrent use.
type Hold struct {
	term   *term
	token  int64
	owner  string
	place  Place
	ctx    context.Context
	cancel context.CancelCauseFunc

	// Keeper.mu guards the fields below.
	places   []*Hold // of a joint lease, in addition to the lock of the term
	outer    *Hold   // the hold that the acquiring context came from, of any key; for leases acquired together, the previous one
	together bool    // acquired together with others
	ended    bool    // released or lost
	loss     error   // reason of the end, unless the holder released it
}

type holdKey struct{}

// FromContext returns the hold that ctx comes from, or nil.
func FromContext(ctx context.Context) *Hold {
	h, _ := ctx.Value(holdKey{}).(*Hold)
	return h
}

// givenKey returns the key that the caller passed for the lock on key at place p.
func (p Place) givenKey(key string) string { return cmp.Or(p.Of, key) }

// Key returns the key of the lock.
func (h *Hold) Key() string { return h.term.lock.key }

// Token returns the fencing token.
func (h *Hold) Token() int64 { return h.token }

// Owner returns the owner id.
func (h *Hold) Owner() string { return h.owner }

// Place returns the hold's place, or zero if it has none.
func (h *Hold) Place() Place { return h.place }

// Context returns a context with the values of the caller's context. It ends with the hold, and its cause is
// the reason.
func (h *Hold) Context() context.Context { return h.ctx }

// Deadline returns the time at which the hold ends unless a renewal moves it.
func (h *Hold) Deadline() time.Time {
	k := h.term.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	return h.term.deadlineLocked(h.places)
}

// WithKey adds the key of h to cause.
func (h *Hold) WithKey(cause error) error { return fmt.Errorf("%q: %w", h.Key(), cause) }

// ForEach calls fn concurrently for all holds that are not nil, and waits for all calls.
func ForEach(holds []*Hold, fn func(i int, h *Hold)) {
	var all sync.WaitGroup
	for i, h := range holds {
		if h != nil {
			all.Go(func() { fn(i, h) })
		}
	}
	all.Wait()
}

// forEachPart calls fn for h and, if the lease is a joint one, for all its places, concurrently. It returns
// the first error in this order.
func (h *Hold) forEachPart(fn func(*Hold) error) error {
	k := h.term.keeper
	k.mu.Lock()
	places := h.places
	k.mu.Unlock()
	if len(places) == 0 {
		return fn(h)
	}
	parts := append([]*Hold{h}, places...)
	errs := make([]error, len(parts))
	ForEach(parts, func(i int, part *Hold) {
		if errs[i] = fn(part); errs[i] != nil && i > 0 {
			errs[i] = part.WithKey(errs[i])
		}
	})
	return cmp.Or(errs...)
}

// checkLiveLocked returns nil while h can be used, and otherwise the reason why it ended.
func (h *Hold) checkLiveLocked() error {
	switch {
	case h.loss != nil:
		return h.loss
	case h.ended && errors.Is(context.Cause(h.ctx), ErrDetached):
		return fmt.Errorf("%w: it was detached", driver.ErrLost)
	case h.ended:
		return fmt.Errorf("%w: it was released", driver.ErrLost)
	case h.term.timeLeftLocked(time.Now()) <= 0:
		return h.term.expiryErrorLocked()
	}
	for _, place := range h.places {
		if err := place.checkLiveLocked(); err != nil {
			return place.WithKey(err)
		}
	}
	return nil
}

// LossReason returns the reason why h ended, or nil if its holder released it or it has not ended.
func (h *Hold) LossReason() error {
	k := h.term.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	return h.loss
}

// NestHold adds a hold, with the values of ctx, to the innermost live lease on key that outer comes from and that
// allows accepts. It returns nil if there is none. allows gets the options, the kind and the place of the
// lease. It must not block, because the keeper calls it with its mutex held.
func (k *Keeper) NestHold(ctx context.Context, outer *Hold, key string, allows func(*Options, Kind, Place) (bool, error)) (*Hold, error) {
	if outer == nil {
		return nil, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for h := outer; h != nil; h = h.outer {
		t := h.term
		if t.keeper != k || key != h.place.givenKey(h.Key()) || h.checkLiveLocked() != nil {
			continue
		}
		if ok, err := allows(&t.user.Options, t.user.kind, h.place); err != nil {
			return nil, err
		} else if ok {
			return t.addHoldLocked(context.WithoutCancel(ctx), outer), nil
		}
	}
	return nil, nil
}

// Check asks the service whether it still has the lock for this hold.
func (h *Hold) Check(ctx context.Context) error {
	return h.forEachPart(func(part *Hold) error { return part.checkOne(ctx) })
}

func (h *Hold) checkOne(ctx context.Context) error {
	k := h.term.keeper
	k.mu.Lock()
	err, grant := h.checkLiveLocked(), h.term.grant
	k.mu.Unlock()
	if err != nil {
		return err
	}
	checker, ok := k.drv.(driver.Checker)
	if !ok {
		return unsupportedError("it cannot ask its service whether a lease is still held")
	}
	if err := checker.Check(ctx, grant); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return h.checkLiveLocked()
}

// Extend renews the hold now with ttl, and later renewals use ttl too. The caller has checked the bounds of
// ttl.
func (h *Hold) Extend(ctx context.Context, ttl time.Duration) error {
	return h.forEachPart(func(part *Hold) error { return part.extendOne(ctx, ttl) })
}

func (h *Hold) extendOne(ctx context.Context, ttl time.Duration) error {
	k := h.term.keeper
	var start time.Time
	var grant driver.Grant
	for {
		var busy <-chan struct{}
		var err error
		if start, grant, busy, err = h.beginExtension(ttl); err != nil {
			return err
		}
		if busy == nil {
			break
		}
		select {
		case <-busy:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w: a renewal is under way", ctx.Err(), driver.ErrUnavailable)
		}
	}
	r := k.drv.Renew(ctx, []driver.Grant{grant})[0]
	end, err := h.endExtension(start, grant.TTL, r)
	k.carryOut(end)
	return err
}

// beginExtension returns the grant to renew and the start time. If a renewal is in progress, it returns a
// channel that is closed when that renewal ends.
func (h *Hold) beginExtension(ttl time.Duration) (start time.Time, grant driver.Grant, busy <-chan struct{}, err error) {
	t := h.term
	k := t.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := h.checkLiveLocked(); err != nil {
		return start, grant, nil, err
	}
	if err := t.checkTTLChangeLocked(ttl); err != nil {
		return start, grant, nil, err
	}
	if t.renewing {
		return start, grant, t.idleLocked(), nil
	}
	t.renewing = true
	start, grant = time.Now(), t.grant
	if k.limits.ChangeTTL {
		grant.TTL = ttl
	}
	k.rescheduleLocked(t, t.endsAt)
	return start, grant, nil, nil
}

// endExtension applies the outcome r of an extension that began at start.
func (h *Hold) endExtension(start time.Time, ttl time.Duration, r driver.Renewal) (followUp, error) {
	t := h.term
	k := t.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	if r.Err == nil && !t.ended && ttl != t.grant.TTL { // releaseOne reads the grant of an ended term
		t.grant.TTL, t.asked = ttl, ttl
	}
	end, round := k.applyRenewalLocked(t, r, start)
	round.quiet = true // the caller gets the error
	k.reportRoundsLocked(round)
	if err := cmp.Or(h.loss, h.checkLiveLocked()); err != nil {
		return end, err
	}
	if err := r.Err; err == nil || errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrLost) ||
		errors.Is(err, driver.ErrClosed) || errors.Is(err, driver.ErrUnsupported) {
		return end, err
	}
	return end, &driver.UnavailableError{Err: r.Err}
}

// checkTTLChangeLocked rejects a TTL that the lease cannot get.
func (t *term) checkTTLChangeLocked(ttl time.Duration) error {
	if !t.keeper.limits.ChangeTTL && ttl != t.asked && ttl != t.grant.TTL {
		return unsupportedError("it cannot change the TTL of a lease, which is %v", t.grant.TTL)
	}
	return t.user.CheckRenewal(ttl, t.keeper.limits)
}

// idleLocked returns a channel that is closed when the renewal in progress has ended.
func (t *term) idleLocked() <-chan struct{} {
	if t.idle == nil {
		t.idle = make(chan struct{})
	}
	return t.idle
}

// ErrNotAdoptable is returned for a lease that was acquired without Adoptable.
var ErrNotAdoptable = invalidError("the lease cannot be continued by another process; acquire it with AcquireOptions.Adoptable")

// Detach leaves the lock in place for another process, and forgets it in this one.
func (h *Hold) Detach(adopter driver.Adopter) error {
	end, err := h.endDetached()
	if err != nil {
		return err
	}
	t := h.term
	k := t.keeper
	end.cancelContexts()
	adopter.Detach(t.grant)
	k.mu.Lock()
	k.askNextLocked(t.lock)
	k.mu.Unlock()
	end.event.Detached = true
	k.events.Released(end.event)
	return nil
}

// endDetached ends the lease but not the lock.
func (h *Hold) endDetached() (end followUp, err error) {
	t := h.term
	t.keeper.mu.Lock()
	defer t.keeper.mu.Unlock()
	if err := h.checkLiveLocked(); err != nil {
		return end, err
	}
	if !driver.IsAdoptable(t.grant.Owner) {
		return end, ErrNotAdoptable
	}
	return t.endLocked(ErrDetached, time.Now()), nil
}
