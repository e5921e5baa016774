package holder

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// followUp is the work after a change to a term, which is done without the mutex: contexts to end, events to
// send, a lock to release. The zero value is no work.
type followUp struct {
	holds   []*Hold       // contexts to end
	cause   error         // cause of their end; nil: they were released
	event   Released      // without a key if no holder's lease ends
	release *term         // to release at the service; nil: none
	others  []followUp    // for the leases that end with it
	keep    time.Duration // time that the service keeps the lock after the release
}

// isLoss reports whether the lease was lost, and neither released nor detached.
func (e *followUp) isLoss() bool {
	return e.cause != nil && errors.Is(e.cause, driver.ErrLost) && !errors.Is(e.cause, errReleasedByClose)
}

// Release releases the hold, and with the last hold the lock. It blocks until the service has answered. It
// returns the error of the release or, if the hold was lost before, of the loss. After ReleaseAll it returns
// nil.
func (h *Hold) Release(ctx context.Context) error {
	t := h.term
	k := t.keeper
	late, e, err := h.endAt(time.Now())
	ctx, cancel := k.releaseContext(ctx, t)
	defer cancel()
	k.carryOut(late)
	e.sendEvents(k)
	failed := k.releaseOnService(ctx, e)
	switch {
	case errors.Is(err, errReleasedByClose):
		return nil
	case err != nil:
		return err
	}
	return failed
}

// endAt ends h at now. late is the work for parts of the lease that have expired without the watchdog noticing.
func (h *Hold) endAt(now time.Time) (late, e followUp, loss error) {
	t := h.term
	t.keeper.mu.Lock()
	defer t.keeper.mu.Unlock()
	if !h.ended && t.timeLeftLocked(now) <= 0 {
		late = t.expireLocked(now)
	}
	for _, place := range h.places {
		if !place.ended && place.term.timeLeftLocked(now) <= 0 {
			late.others = append(late.others, place.term.expireLocked(now))
		}
	}
	if !h.ended {
		e = h.endHoldLocked(now)
	}
	return late, e, h.loss
}

// endHoldLocked ends h. If it is the last hold, the lock is handed over or ended.
func (h *Hold) endHoldLocked(now time.Time) followUp {
	t := h.term
	if len(t.user.holds) > 1 {
		h.ended = true
		t.user.holds = slices.DeleteFunc(t.user.holds, func(other *Hold) bool { return other == h })
		return followUp{holds: []*Hold{h}}
	}
	if a := t.successorLocked(now); a != nil {
		return t.handOverLocked(a, now)
	}
	return t.endLocked(nil, now)
}

// releaseGrace bounds the time that a call waits, after its own end, for the answers to its releases. If the
// service answers within it, the call leaves no lock behind.
const releaseGrace = 100 * time.Millisecond

// ReleaseUnused releases holds that are not returned to their caller. It blocks until the service has answered,
// or until a moment after the end of wait. The releases continue then, each as long as a Release, and Close
// waits for them. A failed release is an event, and its lock expires with its TTL.
func ReleaseUnused(wait context.Context, holds []*Hold) {
	if len(holds) == 0 {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		ctx := context.WithoutCancel(wait)
		ForEach(holds, func(_ int, h *Hold) { h.Release(ctx) })
	}()
	select {
	case <-done:
		return
	case <-wait.Done():
	}
	late := time.NewTimer(releaseGrace)
	defer late.Stop()
	select {
	case <-done:
	case <-late.C:
	}
}

// ReleaseContext returns ctx for the wait for the releases of holds, at least one. If ctx comes from one of
// them, the release ends it: then the returned context keeps only its deadline.
func ReleaseContext(ctx context.Context, holds ...*Hold) (context.Context, context.CancelFunc) {
	var terms []*term
	for _, h := range holds {
		terms = append(terms, h.term)
	}
	return holds[0].term.keeper.releaseContext(ctx, terms...)
}

func (k *Keeper) releaseContext(ctx context.Context, terms ...*term) (context.Context, context.CancelFunc) {
	from := FromContext(ctx)
	if from == nil || ctx.Err() != nil {
		return ctx, func() {}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for h := from; h != nil; h = h.outer {
		if !slices.Contains(terms, h.term) {
			continue
		}
		if end, ok := ctx.Deadline(); ok {
			return context.WithDeadline(context.WithoutCancel(ctx), end)
		}
		return context.WithoutCancel(ctx), func() {}
	}
	return ctx, func() {}
}

// cancelContexts ends the contexts of the holds.
func (e *followUp) cancelContexts() {
	for _, other := range e.others {
		other.cancelContexts()
	}
	for _, h := range e.holds {
		h.cancel(e.cause)
	}
}

// sendEvents ends the contexts of the holds and sends the events that need no answer of
// the service.
func (e *followUp) sendEvents(k *Keeper) {
	e.cancelContexts()
	for _, other := range e.others {
		other.sendEvents(k)
	}
	switch v := e.event; {
	case v.Key == "":
	case e.isLoss():
		k.events.Log(slog.LevelError, "lease lost", "key", e.holds[0].Key(), "token", v.Token, "held", v.Held, "reason", e.cause)
		k.events.Lost(Lost{Context: v.Context, Key: v.Key, Owner: v.Owner, Token: v.Token, Held: v.Held, Reason: e.cause})
	case e.release == nil:
		k.events.Released(v)
	}
}

// releaseOnService releases at the service all locks that have ended, concurrently, and lets the next waiters
// of this process ask for them.
func (k *Keeper) releaseOnService(ctx context.Context, e followUp) error {
	if len(e.others) == 0 {
		return k.releaseOne(ctx, &e)
	}
	errs := make([]error, 1+len(e.others))
	var rest sync.WaitGroup
	for i, other := range e.others {
		rest.Go(func() { errs[1+i] = k.releaseOnService(ctx, other) })
	}
	errs[0] = k.releaseOne(ctx, &e)
	rest.Wait()
	return cmp.Or(errs...)
}

// releaseOne is releaseOnService for e without its others.
func (k *Keeper) releaseOne(ctx context.Context, e *followUp) error {
	if e.release == nil {
		return nil
	}
	err := k.drv.Release(ctx, e.release.grant, e.keep)
	k.endRelease(e, err)
	if e.event.Key == "" || e.isLoss() {
		return err
	}
	if err != nil {
		k.events.Log(slog.LevelWarn, "release not confirmed; the lock lapses by itself", "key", e.release.lock.key, "cause", err)
	}
	e.event.Err = err
	k.events.Released(e.event)
	return err
}

// endRelease lets the next waiter ask for a lock whose release the service has answered with err.
func (k *Keeper) endRelease(e *followUp, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(e.holds) > 0 && e.holds[0].place.Of != "" && err == nil {
		k.lastPlace = e.holds[0].place
	}
	k.askNextLocked(e.release.lock)
}

// carryOut does the work after changes that no holder made. First it ends all contexts. Then it sends the
// events, and releases the locks at the service, where a late renewal may have set them again. A lock that
// cannot be released expires with its TTL.
func (k *Keeper) carryOut(all ...followUp) {
	for _, e := range all {
		e.cancelContexts()
	}
	for _, e := range all {
		e.sendEvents(k)
		if e.release != nil || len(e.others) > 0 {
			go k.releaseOnService(k.alive, e) // ReleaseAll waits for it, because the lock is not free before
		}
	}
}
