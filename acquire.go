package holdfast

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/clock"
	"github.com/holdfast-go/holdfast/internal/obstacle"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// Acquire takes the lock on key. It blocks until the lock is granted, ctx ends,
// opts.Wait is over, or the service refuses for good; opts may be nil. ctx bounds
// the wait, not the lease, which carries ctx's values but not its end.
//
// Errors: ErrHeld or ErrUnavailable, the obstacle that stood last, when Wait is
// over; ErrNested, ErrInvalid, ErrClosed. Acquire waits for the end of an outage as
// it waits for a holder. An obstacle that time does not remove, such as a wrong
// password, is ErrUnavailable at once. When ctx ends, the error matches both
// ctx.Err() and the last obstacle, if one is known. Use errors.Is for ErrHeld and
// ErrUnavailable: if the process was paused past the end of the wait, the error has no
// *HeldError or *UnavailableError. After an error nothing stays behind.
func (c *Client) Acquire(ctx context.Context, key string, opts *AcquireOptions) (*Lease, error) {
	return c.acquireKind(ctx, key, kind{}, opts)
}

// acquireKind is Acquire for a lock or another kind.
func (c *Client) acquireKind(ctx context.Context, key string, k kind, opts *AcquireOptions) (*Lease, error) {
	l, err := c.acquire(ctx, &attempt{key: key, opts: options{kind: k}}, opts)
	return l, wrap("acquire", key, err)
}

// TryAcquire makes one attempt: it is Acquire without the wait. When this client
// holds the key, TryAcquire answers at once. When another caller of this client
// asks for the key, TryAcquire waits for the first answer to that caller and
// returns its obstacle.
func (c *Client) TryAcquire(ctx context.Context, key string, opts *AcquireOptions) (*Lease, error) {
	return c.tryAcquireKind(ctx, key, kind{}, opts)
}

// tryAcquireKind is TryAcquire for a lock or another kind.
func (c *Client) tryAcquireKind(ctx context.Context, key string, k kind, opts *AcquireOptions) (*Lease, error) {
	l, err := c.acquire(ctx, &attempt{key: key, noWait: true, opts: options{kind: k}}, opts)
	return l, wrap("acquire", key, err)
}

// Do acquires key, calls fn and releases, also when fn panics. fn's context ends
// when ctx ends and, with cause ErrLost, when the lease is lost; fn should pass
// lease.Token to what it writes to. Do panics at once where fn is nil, a bug of the
// caller's.
//
// Do returns the error of Acquire, or fn's error, or one that matches ErrLost if
// the lease ended before fn returned, or both of these. If it was Close that ended
// the lease, the error matches ErrClosed as well. Ask for ErrLost before any other:
// that error also matches what the last renewal failed with. A release that fails is
// reported to Hooks and does not change the error: the lock lapses by itself.
func (c *Client) Do(ctx context.Context, key string, opts *AcquireOptions, fn func(ctx context.Context, lease *Lease) error) error {
	return c.doKind(ctx, key, kind{}, opts, fn)
}

// doKind is Do for a lock or another kind.
func (c *Client) doKind(ctx context.Context, key string, k kind, opts *AcquireOptions, fn func(ctx context.Context, lease *Lease) error) (err error) {
	if fn == nil {
		panic("holdfast: Do: fn is nil; give the function to call under the lock")
	}
	lease, err := c.acquireKind(ctx, key, k, opts)
	if err != nil {
		return err
	}
	fctx, cancel := context.WithCancelCause(lease.Context())
	unlink := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	defer func() {
		unlink()
		cancel(nil)
		end := lease.lossCause()
		if failed := lease.release(context.WithoutCancel(ctx)); end == nil {
			end = failed
		}
		switch loss := wrap("do", key, end); {
		case !errors.Is(end, ErrLost):
		case err == nil:
			err = loss
		case errors.Is(err, end): // fn has returned the cause of its context
			err = wrap("do", key, err)
		default:
			err = fmt.Errorf("%w; %w", err, loss)
		}
	}()
	return fn(fctx, lease)
}

// nestedHold returns another hold of the live lease on its key from whose context a comes, ErrNested if
// the options do not allow that, or neither if there is no such lease. opts may be nil.
func (c *Client) nestedHold(ctx context.Context, a *attempt, opts *AcquireOptions) (*Lease, error) {
	if a.outer == nil {
		return nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for l := a.outer; l != nil; l = l.outer {
		key, its := l.slot.givenKey(l.Key()), &l.term.holder.opts
		wanted := &options{AcquireOptions: *cmp.Or(opts, &AcquireOptions{}), kind: a.opts.kind}
		if l.term.client != c || key != a.key || l.checkLive() != nil {
			continue
		}
		switch {
		case its.readers+wanted.readers > 0 && (its.shared != wanted.shared || (its.readers == 0) != (wanted.readers == 0)):
			return nil, errUpgrade(its, wanted)
		case (its.slots == 0) != (wanted.slots == 0):
			continue
		case !wanted.Reentrant:
			return nil, ErrNested
		}
		if !wanted.agrees(*its, l.slot.number) {
			return nil, invalid("a nested hold shares its lease: leave out TTL, NoRenew, RenewEvery, Margin, MaxHold, MinHold and Note, or give those of the lease")
		}
		return l.term.addHold(context.WithoutCancel(ctx), a.outer), nil
	}
	return nil, nil
}

// agrees reports whether a lease with the options of outer, on slot, does what o asks for.
func (o *options) agrees(outer options, slot int) bool {
	note := o.Note
	if note != "" && o.places() > 0 {
		note = o.noteFor(slot)
	}
	return (o.TTL == 0 || o.TTL == outer.TTL) && (o.MaxHold == 0 || o.MaxHold == outer.MaxHold) &&
		(o.MinHold == 0 || o.MinHold == outer.MinHold) && o.slots == outer.slots && o.readers == outer.readers && (!o.NoRenew || outer.NoRenew) &&
		(o.Margin == 0 || o.Margin == outer.Margin) && (o.RenewEvery == 0 || o.RenewEvery == outer.RenewEvery) && (note == "" || note == outer.Note)
}

// attempt is one call of Acquire, TryAcquire or Adopt, or what AcquireAll does for one of its keys.
type attempt struct {
	client    *Client
	ctx       context.Context // has the values of the caller's, for the lease, and no end
	wait      context.Context // the caller's, bounded by Wait
	outer     *Lease          // the lease that the caller's comes from, of any key; nil: none
	key       string
	opts      options
	noWait    bool     // returns at once if the lock is held
	silent    bool     // sends no FailedEvent
	isPart    bool     // acquires a part of a lease, and sends no events
	parent    *attempt // the call that it serves, to which its wait is reported; nil: itself
	slot      slotRef
	slotQueue *slotQueue  // that it asks for; nil: it asks for itself
	request   requestSpec // of a slot queue: what it asks for the first caller
	since     time.Time

	admitted bool      // MaxWaiters allows it to wait; guarded by Client.mu while it waits
	waitTold bool      // a WaitingEvent was sent, and no event of the end of the wait; guarded by Client.mu while it waits
	turn     chan turn // receives one turn while the attempt is in the queue
}

// acquire runs a, of which key, noWait and kind are set.
func (c *Client) acquire(ctx context.Context, a *attempt, opts *AcquireOptions) (*Lease, error) {
	o, err := c.checkOptions(a.key, a.opts.kind, opts)
	if err != nil {
		return nil, err
	}
	a.outer = leaseFromContext(ctx)
	if l, err := c.nestedHold(ctx, a, opts); l != nil || err != nil {
		return l, err
	}
	a.opts, a.wait = o, ctx
	if o.Wait > 0 && !a.noWait {
		var cancel context.CancelFunc
		a.wait, cancel = context.WithTimeout(ctx, o.Wait)
		defer cancel()
	}
	return c.runAttempt(ctx, a)
}

// runAttempt runs a, of which all is set and which is not nested, for a caller with ctx.
func (c *Client) runAttempt(ctx context.Context, a *attempt) (*Lease, error) {
	return c.runCall(ctx, a, func() (*Lease, error) {
		l, err := a.obtain()
		return l, a.explainEnd(ctx, err)
	})
}

// explainEnd returns err, or what it means where the wait has reached its end. caller is the context without Wait.
func (a *attempt) explainEnd(caller context.Context, err error) error {
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	last := obstacle.In(err)
	if end, ok := a.wait.Deadline(); ok && last != nil && time.Since(end) >= pace.Standstill() {
		last = &formerError{last, time.Since(end)}
		err = obstacle.With(context.DeadlineExceeded, last)
	}
	if caller.Err() == nil { // Wait is over, which is no fault of the caller's context
		return cmp.Or(last, a.client.tooShort())
	}
	return err
}

// runCall calls take for a, and tells the hook if it fails, unless a is silent. Close waits for it.
func (c *Client) runCall(ctx context.Context, a *attempt, take func() (*Lease, error)) (*Lease, error) {
	c.mu.Lock()
	if c.ending {
		c.mu.Unlock()
		return nil, ErrClosed
	}
	c.tasks.Add(1)
	c.mu.Unlock()
	defer c.tasks.Done()
	a.client, a.ctx, a.since = c, values{ctx}, time.Now()
	l, err := take()
	if err != nil && !a.silent {
		c.events.failed(FailedEvent{Context: a.ctx, Key: a.key, Waited: time.Since(a.since), Told: a.waitTold, Err: err})
	}
	return l, err
}

// obtain gets the lock in this process and at the service.
func (a *attempt) obtain() (*Lease, error) {
	c := a.client
	switch {
	case a.slot.semaphore != "" || a.parent != nil:
	case a.opts.slots > 0:
		return a.acquireSlot()
	case a.opts.readers > 0:
		return a.acquireSide()
	}
	for {
		if err := a.wait.Err(); err != nil {
			return nil, err
		}
		c.mu.Lock()
		if c.ending {
			c.mu.Unlock()
			return nil, ErrClosed
		}
		s := c.lockFor(a.key)
		if !s.isTaken() {
			s.startInquiry()
			c.mu.Unlock()
			return a.askService(s)
		}
		last := s.currentObstacle()
		switch {
		case !a.noWait:
			if err := a.checkMaxWaiters(last, s.waiterCount()); err != nil {
				c.mu.Unlock()
				return nil, err
			}
			return a.waitInQueue(s, last) // gives mu up
		case last != nil:
			c.mu.Unlock()
			return nil, last
		}
		if err := c.awaitObstacle(a.wait, s.asking); err != nil {
			return nil, err
		}
	}
}

// waitInQueue waits behind the other waiters of this process. last is their obstacle. The caller holds
// mu, which waitInQueue unlocks.
func (a *attempt) waitInQueue(s *localLock, last error) (*Lease, error) {
	a.turn = make(chan turn, 1)
	place := s.queue.PushBack(a)
	if last != nil {
		a.reportObstacle(last)
	}
	a.client.mu.Unlock()
	select {
	case t := <-a.turn:
		if t.lease != nil || t.err != nil {
			return t.lease, t.err
		}
		l, err := a.askService(s)
		return l, obstacle.With(err, last)
	case <-a.wait.Done():
		return nil, a.leaveQueue(s, place, last)
	}
}

// askService takes the lock from the service. The caller has the inquiry of s.
func (a *attempt) askService(s *localLock) (*Lease, error) {
	c := a.client
	asking, cancel := context.WithCancelCause(a.wait)
	defer cancel(nil)
	q := s.asking // nobody else changes it
	if err := a.beginAsking(s, cancel); err != nil {
		return nil, err
	}
	grant, err := c.drv.Acquire(asking, driver.Request{
		Key: s.key, TTL: a.opts.TTL, NoWait: a.noWait, Renews: a.opts.renewsSoon() && !c.isStarved(time.Now()), Adoptable: a.opts.Adoptable,
		Holder:   c.holderWithNote(a.opts.Note),
		Obstacle: func(err error) { a.noteObstacle(s, q, err) },
	})
	if err != nil {
		return nil, c.failAsking(asking, s, err)
	}
	return a.startLease(s, grant, time.Now())
}

// beginAsking registers cancel for the inquiry of s, which a has: Close and Shutdown call it and wait for the end of the
// inquiry, and so does a slot queue when another caller becomes its first.
func (a *attempt) beginAsking(s *localLock, cancel context.CancelCauseFunc) error {
	c := a.client
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending {
		c.askNext(s)
		return ErrClosed
	}
	if q := a.slotQueue; q != nil {
		if !q.copyFirstOptions(a) {
			c.askNext(s)
			return q.wait.Err()
		}
		spot := &q.slots[a.slot.number]
		spot.asks, spot.cancel = a.request, cancel
	}
	s.asking.cancel = cancel
	return nil
}

// failAsking ends an inquiry of s that failed with err. It returns err with the last obstacle, or the cause for
// which asking, the context of the inquiry, was cancelled.
func (c *Client) failAsking(asking context.Context, s *localLock, err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := s.asking
	q.publish(obstacle.In(err))
	c.askNext(s)
	if cause := context.Cause(asking); errors.Is(cause, ErrClosed) || errors.Is(cause, ErrHeld) || errors.Is(cause, errOtherWish) {
		return cause
	}
	return obstacle.With(err, q.obstacle)
}

// startLease makes a lease of a grant, for the receiver of a, and ends the inquiry of s.
func (a *attempt) startLease(s *localLock, grant driver.Grant, taken time.Time) (*Lease, error) {
	c := a.client
	c.mu.Lock()
	s.endInquiry()
	t := &term{client: c, lock: s, grant: grant, asked: a.opts.TTL, taken: taken, renewedAt: taken, keptUntil: grant.TrustedUntil, index: unscheduled}
	t.grantedFor = clock.Until(t.keptUntil, taken)
	s.term = t
	w := a.receiver()
	l := t.begin(cmp.Or(w, a), taken)
	if ending := c.ending; ending || w == nil {
		t.holder.opts.MinHold = 0 // no holder ever gets it
		c.mu.Unlock()
		l.Release(context.Background()) // reported to Hooks
		if ending {
			return nil, ErrClosed
		}
		return nil, cmp.Or(a.wait.Err(), errOtherWish)
	}
	defer c.mu.Unlock()
	if !w.isPart {
		c.events.acquired(AcquiredEvent{Context: w.ctx, Key: t.givenKey(), Owner: l.owner, Token: l.token, Waited: taken.Sub(w.since), Told: w.waitTold})
	}
	if w != a {
		w.waitTold = false // its context may end before it sees the lease: then it fails, and gives that back
		w.turn <- turn{lease: l}
	}
	return l, nil
}

// tooShort returns the error for a Wait that was over before any answer. It names the nodes that were asked: the Wait is too
// short, or they are slow.
func (c *Client) tooShort() error {
	text := "the wait was over before an answer"
	var names []string
	for _, n := range c.Nodes() {
		names = append(names, n.Node)
	}
	if len(names) > 0 {
		text += " of " + strings.Join(names, ", ")
	}
	return &UnavailableError{Err: errors.New(text)}
}

// formerError is an obstacle from before a standstill of this process. It matches the same kind of error, but names no
// holder and no node, as they may have changed since.
type formerError struct {
	obstacle error
	late     time.Duration // from the end of the wait to the end of the standstill
}

func (e *formerError) Error() string {
	before := "there was no answer of the service"
	if errors.Is(e.obstacle, ErrHeld) {
		before = "the lock was " + e.obstacle.Error()
	}
	return fmt.Sprintf("this process stood still until %v after the end of its wait; before that, %s; try again", e.late.Round(time.Millisecond), before)
}

func (e *formerError) Is(target error) bool {
	return (target == ErrHeld || target == ErrUnavailable) && errors.Is(e.obstacle, target)
}
