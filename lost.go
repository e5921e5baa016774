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
//	clock    nothing renewed it in time, or NoRenew      look in renew.go; expire here ends it    ErrExpired
//	MaxHold  its bound is reached                        look in renew.go; expire here ends it    ErrMaxHold
//	service  it says that another has the lock, or none  settle in renew.go, by the answer        ErrGone
//	force    ForceRelease of any client took it away     alerted and verify here, else settle     ErrGone
//	place    a writer has lost one of its places         part here, which ends the gate's lease   the place's
//	Close    the client released it                      Close in shutdown.go                     ErrClosed
//	Detach   it was left to another process              Detach in adopt.go                       ErrDetached
//	Release  its holder released it                      leave here                               no error
//
// An answer that does not come ends nothing: the lease stands until the clock ends it. It then matches the error of
// its last renewal too. A call on a lease whose time is over does not wait for look: see live and release.
//
// All above Release but Detach match ErrLost; so does what a lease answers that is used after Detach or
// Release. For the first two, and for a writer that has lost a place, the contexts end Margin before the time is over. The lock
// stays until then, unrenewed, unless the holder releases it.

// lossError is why a lease was lost. It matches ErrLost, kind, and what failed matches.
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
	errGone            error = &lossError{kind: ErrGone, text: "the service gave it away or forgot it"}
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

// whyMost is the longest text of a ForceRelease, in bytes.
const whyMost = 200

// oneLine is text, of whatever origin, as it can stand in a message.
func oneLine(text string) string {
	text = strings.ToValidUTF8(text[:min(len(text), whyMost)], "")
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
}

// gone returns the cause of the end of t where the service reports that the lock is lost, with the reason in said, if
// there is one. The caller holds mu.
func (t *term) gone(said error) error {
	if lost, ok := errors.AsType[*driver.LostError](said); ok {
		return &lossError{kind: ErrGone, text: lost.Why}
	}
	if t.alerts > 0 {
		return forcedError(t.why)
	}
	return errGone
}

// alerted asks the service whether it still has the grant of owner. A message says that somebody
// took it away; why is the reason that it gives.
func (c *Client) alerted(owner, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.locals {
		if t := s.term; t != nil && t.grant.Owner == owner && !c.closing {
			t.why = oneLine(why)
			t.alerts++
			if !t.checking {
				t.checking = true
				c.tasks.Go(func() { c.verify(t) })
			}
			return
		}
	}
}

// verify ends t if the service does not have it any more. It asks again where an alert has
// come meanwhile: each node sends one, and the first may come before the others have acted.
func (c *Client) verify(t *term) {
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
			e = t.end(t.gone(err), time.Now())
		case t.alerts > alerts && !t.over:
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

// expiry is why t ends by the clock. The caller holds mu.
func (t *term) expiry() error {
	o := t.now.opts
	kind, text, early := ErrExpired, "it was not renewed in time", "it had not been renewed by %v before its deadline"
	switch {
	case t.trusted.Before(t.keptUntil):
		kind, text = ErrMaxHold, fmt.Sprintf("its longest time, %v, is over", o.MaxHold)
		early = fmt.Sprintf("its longest time, %v, is over in %%v", o.MaxHold)
	case o.NoRenew:
		text, early = "its TTL is over, and nothing has renewed it", "nothing has renewed it, and its TTL is over in %v"
	}
	if o.Margin > 0 {
		text = fmt.Sprintf(early+", the time left for its holder to stop", o.Margin)
	}
	e := &lossError{kind: kind, text: text}
	switch expired := errors.Is(kind, ErrExpired); {
	case expired && t.failed != nil:
		e.failed = t.failed
	case expired && !o.NoRenew:
		e.text += ", and no renewal had failed: an answer is late, this process stood still, or its clock was set forward"
	}
	return e
}

// left is how long at now the holder of t may work yet. The caller holds mu.
func (t *term) left(now time.Time) time.Duration { return clock.Until(t.ends, now) }

// live returns why l can no longer be used, or nil. The caller holds mu.
func (l *Lease) live() error {
	switch {
	case l.err != nil:
		return l.err
	case l.done && errors.Is(context.Cause(l.ctx), ErrDetached):
		return fmt.Errorf("%w: it was detached", ErrLost)
	case l.done:
		return fmt.Errorf("%w: it was released", ErrLost)
	case l.term.left(time.Now()) <= 0:
		return l.term.expiry()
	}
	for _, place := range l.rest {
		if err := place.live(); err != nil {
			return place.named(err)
		}
	}
	return nil
}

// ended returns why l has ended, if its holder did not release it, or nil.
func (l *Lease) ended() error {
	c := l.term.client
	c.mu.Lock()
	defer c.mu.Unlock()
	return l.err
}

// followUp is what is left to do, without mu, after a change to a term: contexts to end,
// events to send, a lock to release. The zero value is nothing.
type followUp struct {
	leases []*Lease      // whose contexts end
	cause  error         // of that; nil: they were released
	event  ReleasedEvent // of that; without a key where no holder ends
	free   *term         // that the service has to release; nil: none
	rest   []followUp    // of the leases that end with it
	keep   time.Duration // for how long the service keeps it yet
}

// expire ends what the clock ends at now: the lease, and the lock unless there is a
// Margin left for the work to stop in. The caller holds mu.
func (t *term) expire(now time.Time) followUp { return t.stop(t.expiry(), now) }

// stop ends the lease for cause, and the lock unless there is a Margin left for the work to stop in. The
// caller holds mu.
func (t *term) stop(cause error, now time.Time) followUp {
	if t.over || t.stopping || t.now.opts.Margin == 0 || clock.Until(t.trusted, now) <= 0 {
		return t.end(cause, now)
	}
	e := t.part(cause, now)
	e.leases = slices.Clone(e.leases) // their holder still releases them
	t.stopping, t.ends = true, t.trusted
	t.client.reschedule(t, t.ends)
	return e
}

// end takes t out of use. The caller releases it, or leaves it to another process. With cause nil its
// holder has ended it. The caller holds mu.
func (t *term) end(cause error, now time.Time) followUp {
	if t.over {
		return followUp{}
	}
	t.over = true
	e := t.part(cause, now)
	e.free = t
	if cause == nil || errors.Is(cause, errReleasedByClose) {
		e.keep = t.keep(now)
	}
	for _, l := range t.now.holds {
		l.done = true
	}
	e.rest = append(e.rest, t.leaveRest(now)...)
	t.now.holds = nil
	t.client.terms.remove(t)
	t.local.term = nil
	t.local.inquire() // until the release is answered: who has the lock next is not known before
	return e
}

// part ends the holds of t's present holder, unless its Margin has done so. The caller
// holds mu.
func (t *term) part(cause error, now time.Time) followUp {
	if t.stopping {
		return followUp{}
	}
	if errors.Is(cause, ErrLost) {
		for _, l := range t.now.holds {
			l.err = cause
		}
	}
	e := followUp{leases: t.now.holds, cause: cause}
	if !t.now.inner {
		e.event = ReleasedEvent{Context: t.now.ctx, Key: t.givenKey(), Owner: t.now.owner, Token: t.now.token, Held: now.Sub(t.now.since)}
	}
	if w := t.now.whole; w != nil && !w.stopping && errors.Is(cause, ErrLost) {
		e.rest = append(e.rest, w.stop(t.now.holds[0].named(cause), now))
	}
	return e
}

// leaveRest releases what ends with the present holder of t. The caller holds mu.
func (t *term) leaveRest(now time.Time) (all []followUp) {
	for _, place := range t.now.rest {
		if !place.done && !place.term.over {
			all = append(all, place.leave(now))
		}
	}
	return all
}

// lost says that the holder has neither released the lock nor left it standing, nor has
// Close released it.
func (e *followUp) lost() bool {
	return e.cause != nil && errors.Is(e.cause, ErrLost) && !errors.Is(e.cause, errReleasedByClose)
}

// keep is how much longer the lock stays after a release at now, and no less than
// the shortest TTL: a lock that is over before its answer comes looks like a
// loss. The caller holds mu.
func (t *term) keep(now time.Time) time.Duration {
	rest := t.now.from.Add(t.now.opts.MinHold).Sub(now)
	if rest <= 0 {
		return 0
	}
	return max(rest, minTTL, t.client.limits.MinTTL)
}

// Release releases the lease. Each nested hold is released by itself, and the
// lock with the last. It blocks until the service has answered, for two seconds
// at most. ctx only shortens that, to a tenth of a second once it has ended: it may have
// ended before, as that of a program which stops, or the lease's own after a loss.
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
	if !l.done && t.left(now) <= 0 { // the watchdog has not looked yet
		late = t.expire(now)
	}
	for _, place := range l.rest {
		if !place.done && place.term.left(now) <= 0 {
			late.rest = append(late.rest, place.term.expire(now))
		}
	}
	if !l.done {
		e = l.leave(now)
	}
	err := l.err
	c.mu.Unlock()
	ctx, cancel := c.outlasting(ctx, t)
	defer cancel()
	c.carryOut(late)
	e.tell(c)
	failed := c.free(ctx, e)
	switch {
	case errors.Is(err, errReleasedByClose):
		return nil
	case err != nil:
		return err
	}
	return failed
}

// moment is how long a call awaits the answers to releases after the end of its wait. While the service answers, nothing
// of a call stays behind then.
const moment = 100 * time.Millisecond

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
	late := time.NewTimer(moment)
	defer late.Stop()
	select {
	case <-done:
	case <-late.C:
	}
}

// outlasting returns ctx for the wait for the answer to releases of terms. Where ctx comes from a lease on one of them, the
// release ends it; the context that is returned keeps its deadline only.
func (c *Client) outlasting(ctx context.Context, terms ...*term) (context.Context, context.CancelFunc) {
	if leaseIn(ctx) == nil || ctx.Err() != nil {
		return ctx, func() {}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for l := leaseIn(ctx); l != nil; l = l.outer {
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

// leave ends l alone, and with the last hold passes the lock on or ends it. The caller
// holds mu.
func (l *Lease) leave(now time.Time) followUp {
	t := l.term
	if len(t.now.holds) > 1 {
		l.done = true
		t.now.holds = slices.DeleteFunc(t.now.holds, func(h *Lease) bool { return h == l })
		return followUp{leases: []*Lease{l}}
	}
	if w := t.successor(now); w != nil {
		return t.handOver(w, now)
	}
	return t.end(nil, now)
}

// cancel ends the contexts of the leases.
func (e *followUp) cancel() {
	for _, r := range e.rest {
		r.cancel()
	}
	for _, l := range e.leases {
		l.cancel(e.cause)
	}
}

// tell ends the contexts of the leases and sends the events that need no answer of
// the service.
func (e *followUp) tell(c *Client) {
	e.cancel()
	for _, r := range e.rest {
		r.tell(c)
	}
	switch v := e.event; {
	case v.Key == "":
	case e.lost():
		c.events.write(slog.LevelError, "lease lost", "key", e.leases[0].Key(), "token", int64(v.Token), "held", v.Held, "reason", e.cause)
		c.events.lost(LostEvent{Context: v.Context, Key: v.Key, Owner: v.Owner, Token: v.Token, Held: v.Held, Reason: e.cause})
	case e.free == nil:
		c.events.released(v)
	}
}

// free releases what has ended on the service, all at the same time, and lets the next waiters of
// this process ask for it.
func (c *Client) free(ctx context.Context, e followUp) error {
	if len(e.rest) == 0 {
		return c.freeOne(ctx, &e)
	}
	errs := make([]error, 1+len(e.rest))
	var rest sync.WaitGroup
	for i, r := range e.rest {
		rest.Go(func() { errs[1+i] = c.free(ctx, r) })
	}
	errs[0] = c.freeOne(ctx, &e)
	rest.Wait()
	return cmp.Or(errs...)
}

// freeOne is free without what ends with e.
func (c *Client) freeOne(ctx context.Context, e *followUp) error {
	if e.free == nil {
		return nil
	}
	err := c.drv.Release(ctx, e.free.grant, e.keep)
	c.mu.Lock()
	if len(e.leases) > 0 && e.leases[0].share.of != "" && err == nil {
		c.vacated = e.leases[0].share
	}
	c.lead(e.free.local)
	c.mu.Unlock()
	if e.event.Key == "" || e.lost() {
		return err
	}
	if err != nil {
		c.events.write(slog.LevelWarn, "release not confirmed; the lock lapses by itself", "key", e.free.local.key, "cause", err)
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
		e.cancel()
	}
	for _, e := range all {
		e.tell(c)
		if e.free != nil || len(e.rest) > 0 {
			go c.free(c.alive, e) // Close waits for it, as s is not free before
		}
	}
}
