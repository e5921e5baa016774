package holdfast

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/clock"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// This file ends leases, and names why:
//
//	         what has happened                           who notices it                           error
//	clock    nothing renewed it in time, or NoRenew      collectDue, renew.go; expire here        ErrExpired
//	MaxHold  its bound is reached                        collectDue, renew.go; expire here        ErrMaxHold
//	service  it says that another has the lock, or none  applyRenewal, renew.go                   ErrGone
//	force    ForceRelease of any client took it away     noteAlert, verifyAlerts; applyRenewal    ErrGone
//	place    a writer has lost one of its places         endHolds here, which ends the gate's     the place's
//	Close    the client released it                      Close in shutdown.go                     ErrClosed
//	Detach   it was left to another process              Detach in adopt.go                       ErrDetached
//	Release  its holder released it                      endHold here                             no error
//
// An answer that does not come ends nothing: the lease stands until the clock ends it. It then matches the error of
// its last renewal too. A call on a lease whose time is over does not wait for collectDue: see checkLive and release.
//
// All above Release but Detach match ErrLost; so does what a lease answers that is used after Detach or
// Release. For the first two, and for a writer that has lost a place, the contexts end Margin before the time is over. The lock
// stays until then, unrenewed, unless the holder releases it.

// lossError is the reason of a loss. It matches ErrLost, kind, and whatever failed matches.
type lossError struct {
	kind   error
	text   string
	failed error // the last renewal; nil: it did not fail
}

func (e *lossError) Error() string {
	text := ErrLost.Error() + ": " + e.text
	if e.failed != nil {
		text += "; the last renewal failed: " + e.failed.Error()
	}
	return text
}

func (e *lossError) Is(target error) bool { return target == ErrLost || target == e.kind }

func (e *lossError) Unwrap() error { return e.failed }

var (
	errGone            error = &lossError{kind: ErrGone, text: "the service no longer has it (a force-release, a deleted entry, or lost data)"}
	errReleasedByClose       = fmt.Errorf("%w: %w and has released it", ErrLost, ErrClosed)
)

// forcedError is the loss of a lease that ForceRelease took away; why is the reason that was given.
func forcedError(why string) error {
	text := "it was taken away by force"
	if why != "" {
		text += ": " + why
	}
	return &lossError{kind: ErrGone, text: text}
}

// maxReason bounds the text of a ForceRelease, in bytes.
const maxReason = 200

// oneLine returns text from anybody as it can be part of a message.
func oneLine(text string) string {
	text = strings.ToValidUTF8(text[:min(len(text), maxReason)], "")
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) { // also what changes the direction of writing
			return ' '
		}
		return r
	}, text)
}

// goneError returns the cause of the end of t where the service reports that the lock is lost, with the reason in said, if
// there is one. The caller holds mu.
func (t *term) goneError(said error) error {
	if lost, ok := errors.AsType[*driver.LostError](said); ok {
		return &lossError{kind: ErrGone, text: lost.Why}
	}
	if t.alerts > 0 {
		return forcedError(t.alertReason)
	}
	return errGone
}

// noteAlert asks the service whether it still has the grant of owner. A message claims that somebody
// took it away, for the reason why.
func (c *Client) noteAlert(owner, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.locks {
		if t := s.term; t != nil && t.grant.Owner == owner && !c.closing {
			t.alertReason = oneLine(why)
			t.alerts++
			if !t.checking {
				t.checking = true
				c.tasks.Go(func() { c.verifyAlerts(t) })
			}
			return
		}
	}
}

// verifyAlerts ends t if the service does not have it any more. It asks again where an alert has
// come meanwhile: each node sends one, and the first may come before the others have acted.
func (c *Client) verifyAlerts(t *term) {
	for {
		c.mu.Lock()
		alerts, grant := t.alerts, t.grant
		c.mu.Unlock()
		ctx, cancel := context.WithTimeout(c.alive, pace.CheckTime())
		err := c.drv.(driver.Alerter).Check(ctx, grant)
		cancel()
		c.mu.Lock()
		var e followUp
		switch {
		case errors.Is(err, ErrLost):
			e = t.end(t.goneError(err), time.Now())
		case t.alerts > alerts && !t.ended:
			c.mu.Unlock()
			continue
		case err == nil:
			t.alerts = 0
		}
		t.checking = false
		c.mu.Unlock()
		c.carryOut(e)
		return
	}
}

// expiryError returns the reason why t ends by the clock. The caller holds mu.
func (t *term) expiryError() error {
	o := t.holder.opts
	kind, text := ErrExpired, "it was not renewed in time"
	switch {
	case t.trusted.Before(t.keptUntil):
		kind, text = ErrMaxHold, fmt.Sprintf("its longest time, %v, is over", o.MaxHold)
	case o.NoRenew:
		text = "its TTL is over, and nothing has renewed it"
	}
	if o.Margin > 0 {
		text += fmt.Sprintf(" (the holder stops %v before the end)", o.Margin)
	}
	e := &lossError{kind: kind, text: text}
	switch expired := errors.Is(kind, ErrExpired); {
	case expired && t.failed != nil:
		e.failed = t.failed
	case expired && !o.NoRenew:
		e.text += "; no renewal failed, so an answer is late, this process was paused, or its clock was set forward"
	}
	return e
}

// timeLeft returns for how long the holder of t may still work at now. The caller holds mu.
func (t *term) timeLeft(now time.Time) time.Duration { return clock.Until(t.endsAt, now) }

// checkLive returns why l can no longer be used, or nil. The caller holds mu.
func (l *Lease) checkLive() error {
	switch {
	case l.loss != nil:
		return l.loss
	case l.ended && errors.Is(context.Cause(l.ctx), ErrDetached):
		return fmt.Errorf("%w: it was detached", ErrLost)
	case l.ended:
		return fmt.Errorf("%w: it was released", ErrLost)
	case l.term.timeLeft(time.Now()) <= 0:
		return l.term.expiryError()
	}
	for _, place := range l.places {
		if err := place.checkLive(); err != nil {
			return place.withKey(err)
		}
	}
	return nil
}

// lossCause returns why l has ended, if its holder did not release it, or nil.
func (l *Lease) lossCause() error {
	c := l.term.client
	c.mu.Lock()
	defer c.mu.Unlock()
	return l.loss
}

// followUp is the work that follows a change to a term and is done without mu: contexts to end,
// events to send, a lock to release. The zero value is no work.
type followUp struct {
	leases  []*Lease      // contexts to end
	cause   error         // of their end; nil: they were released
	event   ReleasedEvent // without a key if no holder ends
	release *term         // to release on the service; nil: none
	others  []followUp    // of the leases that end with it
	keep    time.Duration // for how long the service keeps the lock after the release
}

// expire ends what the clock ends at now: the lease, and the lock unless there is a
// Margin left for the work to stop in. The caller holds mu.
func (t *term) expire(now time.Time) followUp { return t.stop(t.expiryError(), now) }

// stop ends the lease for cause, and the lock unless there is a Margin left for the work to stop in. The
// caller holds mu.
func (t *term) stop(cause error, now time.Time) followUp {
	if t.ended || t.stopping || t.holder.opts.Margin == 0 || clock.Until(t.trusted, now) <= 0 {
		return t.end(cause, now)
	}
	e := t.endHolds(cause, now)
	e.leases = slices.Clone(e.leases) // their holder still releases them
	t.stopping, t.endsAt = true, t.trusted
	t.client.reschedule(t, t.endsAt)
	return e
}

// end takes t out of use. The caller releases it, or leaves it to another process. With cause nil its
// holder has ended it. The caller holds mu.
func (t *term) end(cause error, now time.Time) followUp {
	if t.ended {
		return followUp{}
	}
	t.ended = true
	e := t.endHolds(cause, now)
	e.release = t
	if cause == nil || errors.Is(cause, errReleasedByClose) {
		e.keep = t.keepAfterRelease(now)
	}
	for _, l := range t.holder.holds {
		l.ended = true
	}
	e.others = append(e.others, t.leavePlaces(now)...)
	t.holder.holds = nil
	t.client.terms.remove(t)
	t.lock.term = nil
	t.lock.startInquiry() // until the release is answered: the next holder is unknown before
	return e
}

// endHolds ends the holds of t's present holder, unless its Margin has done so. The caller
// holds mu.
func (t *term) endHolds(cause error, now time.Time) followUp {
	if t.stopping {
		return followUp{}
	}
	if errors.Is(cause, ErrLost) {
		for _, l := range t.holder.holds {
			l.loss = cause
		}
	}
	e := followUp{leases: t.holder.holds, cause: cause}
	if !t.holder.isPart {
		e.event = ReleasedEvent{Context: t.holder.ctx, Key: t.givenKey(), Owner: t.holder.owner, Token: t.holder.token, Held: now.Sub(t.holder.since)}
	}
	if w := t.holder.gate; w != nil && !w.stopping && errors.Is(cause, ErrLost) {
		e.others = append(e.others, w.stop(t.holder.holds[0].withKey(cause), now))
	}
	return e
}

// leavePlaces releases what ends with the present holder of t. The caller holds mu.
func (t *term) leavePlaces(now time.Time) (all []followUp) {
	for _, place := range t.holder.places {
		if !place.ended && !place.term.ended {
			all = append(all, place.endHold(now))
		}
	}
	return all
}

// isLoss reports whether the lease was lost: neither its holder nor Close released it, and nobody detached it.
func (e *followUp) isLoss() bool {
	return e.cause != nil && errors.Is(e.cause, ErrLost) && !errors.Is(e.cause, errReleasedByClose)
}

// keepAfterRelease returns for how long the lock stays after a release at now, and no less than
// the shortest TTL: a lock that ends before its answer comes looks like a loss. The caller holds mu.
func (t *term) keepAfterRelease(now time.Time) time.Duration {
	rest := t.holder.countedFrom.Add(t.holder.opts.MinHold).Sub(now)
	if rest <= 0 {
		return 0
	}
	return max(rest, minTTL, t.client.limits.MinTTL)
}

// Release releases the lease. Each nested hold is released by itself, and the
// lock with the last. It blocks until the service has answered, for two seconds
// at most. ctx only shortens that, to a tenth of a second once it has ended: it may have
// ended before, as the context of a program that stops, or the lease's own after a loss.
// Release may be called again.
//
// Errors: ErrLost if the lease was lost before: with a Margin the lock is then released
// nevertheless. ErrUnavailable or ctx.Err() if the service did not confirm: the lock
// then lapses by itself. After Close, which has released the lease, Release returns nil.
func (l *Lease) Release(ctx context.Context) error {
	return wrap("release", l.Key(), l.release(ctx))
}

func (l *Lease) release(ctx context.Context) error {
	t := l.term
	c := t.client
	c.mu.Lock()
	now := time.Now()
	var late, e followUp
	if !l.ended && t.timeLeft(now) <= 0 { // the watchdog has not come to it
		late = t.expire(now)
	}
	for _, place := range l.places {
		if !place.ended && place.term.timeLeft(now) <= 0 {
			late.others = append(late.others, place.term.expire(now))
		}
	}
	if !l.ended {
		e = l.endHold(now)
	}
	err := l.loss
	c.mu.Unlock()
	ctx, cancel := c.releaseContext(ctx, t)
	defer cancel()
	c.carryOut(late)
	e.sendEvents(c)
	failed := c.releaseOnService(ctx, e)
	switch {
	case errors.Is(err, errReleasedByClose):
		return nil
	case err != nil:
		return err
	}
	return failed
}

// releaseGrace bounds the wait of a call for the answers to its releases after its own end. While the service answers,
// nothing of a call stays behind then.
const releaseGrace = 100 * time.Millisecond

// releaseUnused releases leases that their caller does not get. It blocks until the service has answered, or until a
// moment after the end of wait: the releases go on, each for as long as a Release, and Close waits for them. One that
// fails is reported to Hooks, and the lock lapses by itself.
func (c *Client) releaseUnused(wait context.Context, leases []*Lease) {
	if len(leases) == 0 {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		ctx := context.WithoutCancel(wait)
		forEach(leases, func(_ int, l *Lease) { l.release(ctx) })
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

// releaseContext returns ctx for the wait for the answer to releases of terms. Where ctx comes from a lease on one of them, the
// release ends it; the context that is returned keeps its deadline only.
func (c *Client) releaseContext(ctx context.Context, terms ...*term) (context.Context, context.CancelFunc) {
	if leaseFromContext(ctx) == nil || ctx.Err() != nil {
		return ctx, func() {}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for l := leaseFromContext(ctx); l != nil; l = l.outer {
		if !slices.Contains(terms, l.term) {
			continue
		}
		if end, ok := ctx.Deadline(); ok {
			return context.WithDeadline(context.WithoutCancel(ctx), end)
		}
		return context.WithoutCancel(ctx), func() {}
	}
	return ctx, func() {}
}

// endHold ends l alone, and with the last hold passes the lock on or ends it. The caller
// holds mu.
func (l *Lease) endHold(now time.Time) followUp {
	t := l.term
	if len(t.holder.holds) > 1 {
		l.ended = true
		t.holder.holds = slices.DeleteFunc(t.holder.holds, func(h *Lease) bool { return h == l })
		return followUp{leases: []*Lease{l}}
	}
	if w := t.successor(now); w != nil {
		return t.handOver(w, now)
	}
	return t.end(nil, now)
}

// cancelContexts ends the contexts of the leases.
func (e *followUp) cancelContexts() {
	for _, r := range e.others {
		r.cancelContexts()
	}
	for _, l := range e.leases {
		l.cancel(e.cause)
	}
}

// sendEvents ends the contexts of the leases and sends the events that need no answer of
// the service.
func (e *followUp) sendEvents(c *Client) {
	e.cancelContexts()
	for _, r := range e.others {
		r.sendEvents(c)
	}
	switch v := e.event; {
	case v.Key == "":
	case e.isLoss():
		c.events.log(slog.LevelError, "lease lost", "key", e.leases[0].Key(), "token", int64(v.Token), "held", v.Held, "reason", e.cause)
		c.events.lost(LostEvent{Context: v.Context, Key: v.Key, Owner: v.Owner, Token: v.Token, Held: v.Held, Reason: e.cause})
	case e.release == nil:
		c.events.released(v)
	}
}

// releaseOnService releases what has ended on the service, all at the same time, and lets the next waiters of
// this process ask for it.
func (c *Client) releaseOnService(ctx context.Context, e followUp) error {
	if len(e.others) == 0 {
		return c.releaseOne(ctx, &e)
	}
	errs := make([]error, 1+len(e.others))
	var rest sync.WaitGroup
	for i, r := range e.others {
		rest.Go(func() { errs[1+i] = c.releaseOnService(ctx, r) })
	}
	errs[0] = c.releaseOne(ctx, &e)
	rest.Wait()
	return cmp.Or(errs...)
}

// releaseOne is free without what ends with e.
func (c *Client) releaseOne(ctx context.Context, e *followUp) error {
	if e.release == nil {
		return nil
	}
	err := c.drv.Release(ctx, e.release.grant, e.keep)
	c.mu.Lock()
	if len(e.leases) > 0 && e.leases[0].slot.semaphore != "" && err == nil {
		c.lastSlot = e.leases[0].slot
	}
	c.askNext(e.release.lock)
	c.mu.Unlock()
	if e.event.Key == "" || e.isLoss() {
		return err
	}
	if err != nil {
		c.events.log(slog.LevelWarn, "release not confirmed; the lock lapses by itself", "key", e.release.lock.key, "cause", err)
	}
	e.event.Err = err
	c.events.released(e.event)
	return err
}

// carryOut does what follows from changes that no holder made: first it ends the contexts
// of all, then it sends the events and releases what may still stand on the nodes, as a
// late renewal may have set it again. A lock that cannot be released lapses by itself.
func (c *Client) carryOut(all ...followUp) {
	for _, e := range all {
		e.cancelContexts()
	}
	for _, e := range all {
		e.sendEvents(c)
		if e.release != nil || len(e.others) > 0 {
			go c.releaseOnService(c.alive, e) // Close waits for it, as s is not free before
		}
	}
}
