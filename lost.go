package holdfast

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

var (
	errExpired = fmt.Errorf("%w: it was not renewed in time", ErrLost)
	errTaken   = fmt.Errorf("%w: %w and has released it", ErrLost, ErrClosed)
)

// live returns why l can no longer be used, or nil. The caller holds mu.
func (l *Lease) live() error {
	switch {
	case l.err != nil:
		return l.err
	case l.done:
		if errors.Is(context.Cause(l.ctx), ErrDetached) {
			return fmt.Errorf("%w: it was detached", ErrLost)
		}
		return fmt.Errorf("%w: it was released", ErrLost)
	case l.term.left(time.Now()) <= 0:
		return errExpired
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

// Release gives the lease up. Nested holds are released one by one, the lock
// with the last. It may be called again, and with a context that has ended: ctx
// only shortens the wait for the service's answer, for two seconds at most. The
// lease's own context will do. After Close, which has released
// it, Release does nothing. Errors: ErrLost if the lease was lost before,
// ErrUnavailable if the service did not confirm (the lock then lapses by itself),
// ctx.Err().
func (l *Lease) Release(ctx context.Context) error {
	return wrap("release", l.Key(), l.release(ctx))
}

func (l *Lease) release(ctx context.Context) error {
	t := l.term
	c := t.client
	c.mu.Lock()
	if l.done {
		defer c.mu.Unlock()
		if errors.Is(l.err, ErrClosed) {
			return nil
		}
		return l.err
	}
	now := time.Now()
	if t.left(now) <= 0 {
		c.mu.Unlock()
		c.lose(loss{t, t.expiry()}) // the watchdog has not come round yet
		return l.err
	}
	if len(t.now.holds) > 1 {
		l.done = true
		t.now.holds = slices.DeleteFunc(t.now.holds, func(h *Lease) bool { return h == l })
		c.mu.Unlock()
		l.cancel(nil)
		return nil
	}
	keep := t.keep(now)
	ended := ReleasedEvent{Key: t.slot.key, Owner: l.owner, Token: l.token, Held: now.Sub(t.now.since)}
	if keep == 0 {
		if w := t.successor(now); w != nil {
			l.done = true
			next := t.handOver(w)
			c.mu.Unlock()
			l.cancel(nil)
			c.events.released(ended)
			c.events.acquired(AcquiredEvent{
				Key: t.slot.key, Owner: next.owner, Token: next.token, Waited: now.Sub(w.since), HandOver: true,
			})
			return nil
		}
	}
	end := t.end(nil)
	c.mu.Unlock()
	if own, _ := ctx.Value(leaseKey{}).(*Lease); own != nil && own.term == t && ctx.Err() == nil {
		ctx = context.WithoutCancel(ctx) // the release ends the lease's own context, and not the wait for its answer
	}
	end.tell(c)
	return c.finish(ctx, t, keep, end)
}

// keep is how much longer the lock stays after a release at now, and no less than
// the shortest TTL: one that is over before its answer comes passes for a loss. The
// caller holds mu.
func (t *term) keep(now time.Time) time.Duration {
	rest := t.now.since.Add(t.now.opts.MinHold).Sub(now)
	if rest <= 0 {
		return 0
	}
	return max(rest, leastTTL, t.client.limits.MinTTL)
}

// ending is what is left to do, without mu, for a term that ended.
type ending struct {
	ours   bool // the caller ended it; false: it had ended before
	leases []*Lease
	cause  error // nil: released
	event  ReleasedEvent
}

// end takes t out of use. The caller holds mu.
func (t *term) end(cause error) ending {
	if t.over {
		return ending{}
	}
	c := t.client
	t.over = true
	c.terms.remove(t)
	t.slot.term = nil
	t.slot.inquire() // until the release is answered: who has the lock next is not known before
	e := ending{
		ours: true, leases: t.now.holds, cause: cause,
		event: ReleasedEvent{Key: t.slot.key, Owner: t.now.owner, Token: t.now.token, Held: time.Since(t.now.since)},
	}
	for _, l := range t.now.holds {
		l.done = true
		if errors.Is(cause, ErrLost) {
			l.err = cause
		}
	}
	t.now.holds = nil
	return e
}

// lost says whether neither the holder nor Close ended it.
func (e ending) lost() bool { return errors.Is(e.cause, ErrLost) && !errors.Is(e.cause, ErrClosed) }

// cancel ends the contexts of the leases.
func (e ending) cancel() {
	for _, l := range e.leases {
		l.cancel(e.cause)
	}
}

// tell ends the contexts of the leases and tells of a loss.
func (e ending) tell(c *Client) {
	e.cancel()
	if e.ours && e.lost() {
		c.events.write(slog.LevelError, "lease lost", "key", e.event.Key, "token", int64(e.event.Token), "held", e.event.Held, "reason", e.cause)
		c.events.lost(LostEvent{
			Key: e.event.Key, Owner: e.event.Owner, Token: e.event.Token, Held: e.event.Held, Reason: e.cause,
		})
	}
}

// finish sends the release of a term that has ended and lets the next waiter of
// this process ask the service.
func (c *Client) finish(ctx context.Context, t *term, keep time.Duration, e ending) error {
	ctx, cancel := context.WithTimeout(ctx, closeTime)
	defer cancel()
	err := c.drv.Release(ctx, t.grant, keep)
	c.mu.Lock()
	c.lead(t.slot)
	c.mu.Unlock()
	if e.lost() {
		return err
	}
	if err != nil {
		c.events.write(slog.LevelWarn, "release not confirmed; the lock lapses by itself", "key", e.event.Key, "cause", err)
	}
	e.event.Err = err
	c.events.released(e.event)
	return err
}

// loss is a term that was lost, and why.
type loss struct {
	term  *term
	cause error
}

// lose ends terms that were lost: first the contexts of all of them, which no
// hook may hold up, then whatever may still stand on the nodes.
func (c *Client) lose(all ...loss) {
	ends := make([]ending, len(all))
	c.mu.Lock()
	for i, l := range all {
		ends[i] = l.term.end(l.cause)
	}
	c.mu.Unlock()
	for _, e := range ends {
		e.cancel()
	}
	for i, e := range ends {
		if e.ours {
			e.tell(c)
			c.clear(all[i].term, e)
		}
	}
}

// clear releases a term that was lost, as a late renewal may have set it again.
// What cannot be released lapses by itself. Close waits for it, as the slot is taken.
func (c *Client) clear(t *term, e ending) { go c.finish(c.alive, t, 0, e) }

// untilBy is the time from now to end, by the worse of both clocks: the monotonic one
// stands still while the machine sleeps.
func untilBy(end, now time.Time) time.Duration {
	return min(end.Sub(now), end.Round(0).Sub(now.Round(0)))
}

// left is the trust left at now.
func (t *term) left(now time.Time) time.Duration { return untilBy(t.trusted, now) }

// expiry is why a term ended at its deadline. The caller holds mu.
func (t *term) expiry() error {
	o := t.now.opts
	switch {
	case o.NoRenew && t.trusted.Equal(t.granted):
		return fmt.Errorf("%w: its TTL is over, and nothing has renewed it", ErrLost)
	case t.trusted.Before(t.granted):
		return fmt.Errorf("%w: MaxHold %v is over", ErrLost, o.MaxHold)
	}
	return errExpired
}
