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

// Acquire acquires the lock on key and returns its lease. It blocks until the lock is granted, ctx ends,
// opts.Wait has passed, or the service reports an error that waiting cannot fix. An outage is such a wait too:
// Acquire waits until the service answers again. opts may be nil. ctx bounds the wait only: the lease has the
// values of ctx, and outlives it.
//
// Errors: when opts.Wait has passed, ErrHeld or ErrUnavailable, whichever was the last obstacle.
// ErrUnavailable at once for an obstacle that time does not remove, such as a wrong password. When ctx ends,
// an error that matches both ctx.Err() and the last obstacle, if one is known. ErrNested, ErrInvalid,
// ErrClosed. Test for ErrHeld and ErrUnavailable with errors.Is: if the process was paused past the end of the
// wait, the error contains no *HeldError and no *UnavailableError. After an error the caller holds nothing and
// waits for nothing.
func (c *Client) Acquire(ctx context.Context, key string, opts *AcquireOptions) (*Lease, error) {
	return c.acquireKind(ctx, key, nil, opts, false)
}

// TryAcquire makes one attempt and does not wait for a holder. If this client holds the key, TryAcquire
// returns at once. If another caller of this client is asking the service for the key, TryAcquire waits for
// the service's first answer to that caller and returns its obstacle.
func (c *Client) TryAcquire(ctx context.Context, key string, opts *AcquireOptions) (*Lease, error) {
	return c.acquireKind(ctx, key, nil, opts, true)
}

// Do acquires key, calls fn and releases the lock, also when fn panics. The context of fn ends when ctx ends
// and, with cause ErrLost, when the lease is lost. fn should pass lease.Token to each storage that it writes
// to. Do panics at once if fn is nil, because that is a bug of the caller.
//
// Do returns the error of Acquire or of fn. If the lease ended before fn returned, the error matches ErrLost,
// and the error of fn as well. If Close ended the lease, it also matches ErrClosed. Test for ErrLost before
// other errors: an error that matches ErrLost also matches the error of the last renewal. A failed release is
// reported to Hooks and does not change the error: the lock then expires with its TTL.
func (c *Client) Do(ctx context.Context, key string, opts *AcquireOptions, fn func(ctx context.Context, lease *Lease) error) error {
	return c.doKind(ctx, key, nil, opts, fn)
}

// doKind implements Do for every use of a key: as a plain lock, a semaphore, or one side of a read and write
// lock.
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
		end := lease.hold.LossReason()
		if failed := lease.hold.Release(context.WithoutCancel(ctx)); end == nil {
			end = failed
		}
		switch loss := wrapError("do", key, end); {
		case !errors.Is(end, ErrLost):
		case err == nil:
			err = loss
		case errors.Is(err, end): // fn returned the cause of its own context
			err = wrapError("do", key, err)
		default:
			err = fmt.Errorf("%w; %w", err, loss)
		}
	}()
	return fn(fctx, lease)
}

// acquireKind implements Acquire or, with once, TryAcquire for every use of a key.
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
	a := &holder.Call{Options: o.keeperOptions(), Wait: ctx, Outer: outer, Key: key, Kind: k, NoWait: once}
	if o.Wait > 0 && !once {
		var cancel context.CancelFunc
		a.Wait, cancel = context.WithTimeout(ctx, o.Wait)
		defer cancel()
	}
	h, err := c.obtainHold(ctx, a, k)
	if errors.Is(err, ErrUnavailable) && a.Wait.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("waited %v: %w", o.Wait, err)
	}
	return h, err
}

// nestHold returns another hold of the live lease on key that outer belongs to. It returns an error if the
// options do not allow nesting, and (nil, nil) if there is no such lease. opts may be nil.
func (c *Client) nestHold(ctx context.Context, outer *holder.Hold, key string, k kind, opts *AcquireOptions) (*holder.Hold, error) {
	if outer == nil {
		return nil, nil
	}
	wanted := cmp.Or(opts, &AcquireOptions{})
	return c.keeper.NestHold(ctx, outer, key, func(o *holder.Options, its holder.Kind, place holder.Place) (bool, error) {
		switch {
		case isReaderOrWriter(its) != isReaderOrWriter(k) || isReaderOrWriter(k) && isReader(its) != isReader(k):
			return false, upgradeError(its, k)
		case (its == nil) != (k == nil): // a plain lock and a semaphore with the same name
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

// agreesWith reports whether a lease with the options of outer satisfies o. The lease is on place at of key,
// used as k.
func (o *AcquireOptions) agreesWith(outer *holder.Options, k kind, place int) bool {
	note := o.Note
	if note != "" && k != nil {
		note = k.NoteAt(place, note)
	}
	return (o.TTL == 0 || o.TTL == outer.TTL) && (o.MaxHold == 0 || o.MaxHold == outer.MaxHold) &&
		(o.MinHold == 0 || o.MinHold == outer.MinHold) && (!o.NoRenew || outer.NoRenew) &&
		(o.Margin == 0 || o.Margin == outer.Margin) && (o.RenewEvery == 0 || o.RenewEvery == outer.RenewEvery) && (note == "" || note == outer.Note)
}

// obtainHold obtains a lease for the call a. ctx is the context of the caller, and k the use of the key.
func (c *Client) obtainHold(ctx context.Context, a *holder.Call, k kind) (*holder.Hold, error) {
	return c.keeper.Run(ctx, a, func() (h *holder.Hold, err error) {
		if k == nil {
			h, err = a.Acquire()
		} else {
			h, err = k.obtain(c, a)
		}
		return h, c.explainEnd(ctx, a, err)
	})
}

// explainEnd returns the error that the caller gets for err, which ended a. If the wait timed out, that is the
// last obstacle. caller is the context of the caller, without the timeout that Wait adds.
func (c *Client) explainEnd(caller context.Context, a *holder.Call, err error) error {
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	last := driverkit.ObstacleIn(err)
	if end, ok := a.Wait.Deadline(); ok && last != nil && time.Since(end) >= pace.StandstillTime() {
		last = &outdatedObstacle{last, time.Since(end)}
		err = driverkit.WithObstacle(context.DeadlineExceeded, last)
	}
	switch {
	case caller.Err() == nil: // Wait ended the call, not the caller's context
		return cmp.Or(last, c.waitTooShortError())
	case last == nil:
		return fmt.Errorf("%w before an answer came%s", err, c.nodeNames())
	}
	return err
}

// waitTooShortError returns the error for a Wait that ended before any answer. It names the nodes that were asked:
// either Wait is too short or these nodes are slow.
func (c *Client) waitTooShortError() error {
	return &UnavailableError{Err: fmt.Errorf("the wait ended before an answer came%s", c.nodeNames())}
}

// nodeNames returns the names of the nodes as the end of a sentence; "" if the driver has no nodes.
func (c *Client) nodeNames() string {
	var names []string
	for _, n := range c.Nodes() {
		names = append(names, n.Node)
	}
	if len(names) == 0 {
		return ""
	}
	return " of " + strings.Join(names, ", ")
}

// outdatedObstacle is an obstacle from before this process was suspended. It matches the same sentinel error,
// but names no holder and no node, because they may have changed since.
type outdatedObstacle struct {
	obstacle error
	late     time.Duration // time from the end of the wait until the process ran again
}

func (e *outdatedObstacle) Error() string {
	before := "the service did not answer"
	if errors.Is(e.obstacle, ErrHeld) {
		before = "the lock was " + e.obstacle.Error()
	}
	return fmt.Sprintf("this process stood still until %v after the end of its wait; before that, %s; try again", e.late.Round(time.Millisecond), before)
}

func (e *outdatedObstacle) Is(target error) bool {
	return (target == ErrHeld || target == ErrUnavailable) && errors.Is(e.obstacle, target)
}
