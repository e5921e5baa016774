package holdfast

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/holder"
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
	return c.acquireKind(ctx, key, nil, opts, false)
}

// TryAcquire makes one attempt: it is Acquire without the wait. When this client
// holds the key, TryAcquire answers at once. When another caller of this client
// asks for the key, TryAcquire waits for the first answer to that caller and
// returns its obstacle.
func (c *Client) TryAcquire(ctx context.Context, key string, opts *AcquireOptions) (*Lease, error) {
	return c.acquireKind(ctx, key, nil, opts, true)
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
	return c.doKind(ctx, key, nil, opts, fn)
}

// doKind does what Do does, for a key that is used as k.
func (c *Client) doKind(ctx context.Context, key string, k kind, opts *AcquireOptions, fn func(ctx context.Context, lease *Lease) error) (err error) {
	if fn == nil {
		panic("holdfast: Do: fn is nil; give the function to call under the lock")
	}
	lease, err := c.acquireKind(ctx, key, k, opts, false)
	if err != nil {
		return err
	}
	fctx, cancel := context.WithCancelCause(lease.Context())
	unlink := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	defer func() {
		unlink()
		cancel(nil)
		end := lease.hold.Loss()
		if failed := lease.hold.Release(context.WithoutCancel(ctx)); end == nil {
			end = failed
		}
		switch loss := wrapError("do", key, end); {
		case !errors.Is(end, ErrLost):
		case err == nil:
			err = loss
		case errors.Is(err, end): // fn has returned the cause of its context
			err = wrapError("do", key, err)
		default:
			err = fmt.Errorf("%w; %w", err, loss)
		}
	}()
	return fn(fctx, lease)
}

// acquireKind does what Acquire or, with once, TryAcquire does, for a key that is used as k.
func (c *Client) acquireKind(ctx context.Context, key string, k kind, opts *AcquireOptions, once bool) (*Lease, error) {
	h, err := c.acquireHold(ctx, key, k, opts, once)
	return c.newLease(h, wrapError("acquire", key, err))
}

func (c *Client) acquireHold(ctx context.Context, key string, k kind, opts *AcquireOptions, once bool) (*holder.Hold, error) {
	o, err := c.checkOptions(key, k, opts)
	if err != nil {
		return nil, err
	}
	outer := holder.FromContext(ctx)
	if h, err := c.nestHold(ctx, outer, key, k, opts); h != nil || err != nil {
		return h, err
	}
	a := &holder.Call{Options: o.forKeeper(), Wait: ctx, Outer: outer, Key: key, Kind: k, NoWait: once}
	if o.Wait > 0 && !once {
		var cancel context.CancelFunc
		a.Wait, cancel = context.WithTimeout(ctx, o.Wait)
		defer cancel()
	}
	return c.obtainHold(ctx, a, k)
}

// nestHold returns another hold of the live lease on key, used as k, that outer comes from, an error if
// the options do not allow that, or neither if there is no such lease. opts may be nil.
func (c *Client) nestHold(ctx context.Context, outer *holder.Hold, key string, k kind, opts *AcquireOptions) (*holder.Hold, error) {
	if outer == nil {
		return nil, nil
	}
	wanted := cmp.Or(opts, &AcquireOptions{})
	return c.keeper.Nest(ctx, outer, key, func(o *holder.Options, its holder.Kind, place holder.Place) (bool, error) {
		switch {
		case isSide(its) != isSide(k) || isSide(k) && isReader(its) != isReader(k):
			return false, errUpgrade(its, k)
		case (its == nil) != (k == nil): // a lock and a semaphore
			return false, nil
		case !wanted.Reentrant:
			return false, ErrNested
		case its != holder.Kind(k) || !wanted.agreesWith(o, k, place.Number):
			return false, invalidError(
				"a nested hold shares its lease: leave out TTL, NoRenew, RenewEvery, Margin, MaxHold, MinHold and Note, or give those of the lease")
		}
		return true, nil
	})
}

// agreesWith reports whether a lease with the options of outer, on a key used as k and its place, does what o asks for.
func (o *AcquireOptions) agreesWith(outer *holder.Options, k kind, place int) bool {
	note := o.Note
	if note != "" && k != nil {
		note = k.NoteAt(place, note)
	}
	return (o.TTL == 0 || o.TTL == outer.TTL) && (o.MaxHold == 0 || o.MaxHold == outer.MaxHold) &&
		(o.MinHold == 0 || o.MinHold == outer.MinHold) && (!o.NoRenew || outer.NoRenew) &&
		(o.Margin == 0 || o.Margin == outer.Margin) && (o.RenewEvery == 0 || o.RenewEvery == outer.RenewEvery) && (note == "" || note == outer.Note)
}

// obtainHold gets a lease for a, for a caller with ctx that uses the key as k.
func (c *Client) obtainHold(ctx context.Context, a *holder.Call, k kind) (*holder.Hold, error) {
	return c.keeper.Run(ctx, a, func() (h *holder.Hold, err error) {
		if k == nil {
			h, err = a.Obtain()
		} else {
			h, err = k.obtain(c, a)
		}
		return h, c.explainEnd(ctx, a, err)
	})
}

// explainEnd returns err, the end of a, or the error that the caller gets if the wait has reached its end. caller is the context
// without Wait.
func (c *Client) explainEnd(caller context.Context, a *holder.Call, err error) error {
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	last := driverkit.ObstacleIn(err)
	if end, ok := a.Wait.Deadline(); ok && last != nil && time.Since(end) >= pace.Standstill() {
		last = &formerError{last, time.Since(end)}
		err = driverkit.WithObstacle(context.DeadlineExceeded, last)
	}
	if caller.Err() == nil { // Wait is over, which is no fault of the caller's context
		return cmp.Or(last, c.tooShort())
	}
	return err
}

// tooShort returns the error for a Wait that was over before any answer. It names the nodes that were asked: the Wait is too
// short, or they are slow.
func (c *Client) tooShort() error {
	text := "the wait ended before an answer came"
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
	before := "the service did not answer"
	if errors.Is(e.obstacle, ErrHeld) {
		before = "the lock was " + e.obstacle.Error()
	}
	return fmt.Sprintf("this process stood still until %v after the end of its wait; before that, %s; try again", e.late.Round(time.Millisecond), before)
}

func (e *formerError) Is(target error) bool {
	return (target == ErrHeld || target == ErrUnavailable) && errors.Is(e.obstacle, target)
}
