package holdfast

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/holder"
)

// Leases are leases on several keys that AcquireAll has taken together. Each is renewed,
// and can be extended and checked, by itself. It is safe for concurrent use.
type Leases struct {
	leases []*Lease // by key
	ctx    context.Context
	cancel context.CancelCauseFunc
	unlink []func() bool
}

// AcquireAll takes the locks on all of keys, or none of them. opts, which may be nil, hold
// for each, and Wait for all together. It blocks as Acquire does, and returns the errors of
// Acquire, with the key that stood in the way. After an error nothing stays behind.
//
// Calls do not wait for one another in a circle: each client takes the locks in the
// byte order of their keys, whatever the order in which it was given them. It asks for all at
// once, and keeps those before the first that it does not get; then it waits for one after the
// other. The watchdog renews what it has meanwhile. Where that is lost all the same, AcquireAll
// begins again. MaxHold and MinHold count from when all are there. A key that is given twice
// counts once.
//
// Where ctx comes from a live lease on one of the keys, Reentrant is as for Acquire. ErrInvalid
// also stands for no keys at all, for NoRenew with several keys, as the first lease would end
// while the last is waited for, and for a key that comes before one that ctx has the lease on,
// if that is among keys or is one of Leases: two such calls could wait for one another. So
// take them in one call, or by TryAcquireAll, which does not wait. Locks that
// Acquire has taken under other names have an order that is the caller's to keep.
//
// The order counts for locks only. A writer of an RWLock waits for all of its places at once: one that has
// k#1 and a call of AcquireAll that has k#0 wait for each other without end. So give a key that has slots or readers, and
// the keys of its places, to no call that takes them as locks.
func (c *Client) AcquireAll(ctx context.Context, keys []string, opts *AcquireOptions) (*Leases, error) {
	return c.acquireAll(ctx, keys, opts, false)
}

// TryAcquireAll makes one attempt: it is AcquireAll without the wait, as TryAcquire is Acquire.
// Its error is the error of the first key, in their order, that it did not get.
func (c *Client) TryAcquireAll(ctx context.Context, keys []string, opts *AcquireOptions) (*Leases, error) {
	return c.acquireAll(ctx, keys, opts, true)
}

// Context carries the values of the context that acquired the leases. It ends when they are
// released and, with its cause, when any of them ends. Where that was lost, the cause names the
// key and matches ErrLost.
func (a *Leases) Context() context.Context { return a.ctx }

// Deadline returns the time until which all of the leases can be trusted unless renewals move it: the
// earliest of their deadlines.
func (a *Leases) Deadline() time.Time {
	first := a.leases[0].Deadline()
	for _, l := range a.leases[1:] {
		if d := l.Deadline(); d.Before(first) {
			first = d
		}
	}
	return first
}

// All returns the leases, in the order of their keys. Each key has tokens of its own.
func (a *Leases) All() []*Lease { return slices.Clone(a.leases) }

// Lease returns the lease on key, or nil if there is none.
func (a *Leases) Lease(key string) *Lease {
	i, found := slices.BinarySearchFunc(a.leases, key, func(l *Lease, key string) int { return strings.Compare(l.Key(), key) })
	if !found {
		return nil
	}
	return a.leases[i]
}

// Release releases all of the leases, at the same time, so that one that fails or takes long
// holds up no other. Otherwise it is as Release of a Lease. Its error joins the errors of
// the leases that failed, each with its key.
func (a *Leases) Release(ctx context.Context) (err error) {
	holds := holdsOf(a.leases)
	ctx, cancel := holder.ReleaseContext(ctx, holds...)
	defer cancel()
	for i, l := range a.leases {
		a.unlink[i]()
		if lost := l.hold.Loss(); lost != nil {
			a.cancel(a.withKey(l, lost))
		}
	}
	a.cancel(nil)
	errs := make([]error, len(a.leases))
	holder.ForEach(holds, func(i int, _ *holder.Hold) { errs[i] = a.leases[i].Release(ctx) })
	for _, failed := range errs {
		switch {
		case failed == nil:
		case err == nil:
			err = failed
		default:
			err = fmt.Errorf("%w; %w", err, failed)
		}
	}
	return err
}

// withKey returns cause, with the key of l if there are several.
func (a *Leases) withKey(l *Lease, cause error) error {
	if len(a.leases) == 1 {
		return cause
	}
	return l.hold.WithKey(cause)
}

// severalCall is one call of AcquireAll or TryAcquireAll. Each lock is safe by itself. Calls do not wait
// in a circle because of the order: a call that waits for a key has leases on lower keys only. It has
// others for as long as the first step and the releases after it take, and waits for no holder meanwhile.
type severalCall struct {
	client *Client
	ctx    context.Context // the caller's
	wait   context.Context // the same, bounded by Wait
	given  *AcquireOptions // the caller's; nil: none
	opts   AcquireOptions  // the same, with defaults
	outer  *holder.Hold    // the hold that ctx comes from, of any key; nil: none
	noWait bool            // it does not wait for a lock that is held

	nested []*holder.Hold // further holds of leases that ctx comes from
	keys   []string       // the others
	held   []*holder.Hold // on the first of keys
}

// errMidway ends a wait because the call has lost a lease that it had already.
var errMidway = errors.New("a lease was lost while another was waited for")

func (c *Client) acquireAll(ctx context.Context, keys []string, opts *AcquireOptions, once bool) (*Leases, error) {
	s := &severalCall{client: c, ctx: ctx, wait: ctx, given: opts, outer: holder.FromContext(ctx), noWait: once}
	all, key, err := s.checkKeys(keys)
	if err != nil {
		return nil, wrapError("acquire", key, err)
	}
	if s.opts.Wait > 0 && !once {
		var cancel context.CancelFunc
		s.wait, cancel = context.WithTimeout(ctx, s.opts.Wait)
		defer cancel()
	}
	for {
		key, err := s.takeAll(all)
		if err == nil {
			if leases := s.makeLeases(); leases != nil {
				return leases, nil
			}
		}
		holder.ReleaseUnused(s.wait, slices.Concat(s.nested, s.held))
		if err != nil && !errors.Is(err, errMidway) {
			return nil, wrapError("acquire", key, err)
		}
	}
}

// checkKeys returns keys in their order, each once, or what is wrong with which of them.
func (s *severalCall) checkKeys(keys []string) (all []string, key string, err error) {
	if len(keys) == 0 {
		return nil, "", invalidError("no keys; give at least one")
	}
	all = slices.Compact(slices.Sorted(slices.Values(keys)))
	for _, key := range all {
		if s.opts, err = s.client.checkOptions(key, nil, s.given); err != nil {
			return nil, key, err
		}
	}
	if s.opts.NoRenew && len(all) > 1 {
		return nil, "", invalidError(
			"NoRenew with several keys: the first lease would end while the last is waited for; leave it out, and bound the leases by MaxHold")
	}
	return all, "", nil
}

// takeAll gets the locks on keys. After an error some may be held or nested; key is the one that
// it is about.
func (s *severalCall) takeAll(keys []string) (key string, err error) {
	s.nested, s.keys, s.held = nil, nil, nil
	for _, key := range keys {
		switch h, err := s.client.nestHold(s.ctx, s.outer, key, nil, s.given); {
		case err != nil:
			return key, err
		case h != nil:
			s.nested = append(s.nested, h)
		default:
			s.keys = append(s.keys, key)
		}
	}
	if !s.noWait {
		if key, err := s.checkOrder(); err != nil {
			return key, err
		}
	}
	if s.noWait || len(s.keys) > 1 {
		if key, err := s.tryAll(); s.noWait {
			return key, err
		}
	}
	for _, key := range s.keys[len(s.held):] {
		if err := s.acquireNext(key); err != nil {
			return key, err
		}
	}
	return "", nil
}

// checkOrder rejects a wait for a key under a lease that another call, which has that key, may wait for.
func (s *severalCall) checkOrder() (key string, err error) {
	if len(s.keys) == 0 {
		return "", nil
	}
	if later := s.client.keeper.LaterThan(s.keys[0], s.outer, s.nested); later != nil {
		return s.keys[0], invalidError("the context comes from a lease on %q, which comes later in the order of keys; "+
			"take all keys in one call, or use TryAcquireAll, which does not wait", later.Key())
	}
	return "", nil
}

// newCall returns a call for the lock on key. MinHold and MaxHold count for all keys together, once they are held.
func (s *severalCall) newCall(wait context.Context, key string) *holder.Call {
	a := &holder.Call{Options: s.opts.forKeeper(), Wait: wait, Outer: s.outer, Key: key}
	a.MinHold, a.MaxHold = 0, 0
	return a
}

// tryAll asks for all keys at once, so that the requests travel together, and keeps those
// before the first that it does not get, which it returns.
func (s *severalCall) tryAll() (key string, err error) {
	began := time.Now()
	holds, errs := make([]*holder.Hold, len(s.keys)), make([]error, len(s.keys))
	var all sync.WaitGroup
	for i, key := range s.keys {
		a := s.newCall(s.wait, key)
		a.NoWait, a.Silent = true, true
		all.Go(func() { holds[i], errs[i] = s.client.obtainHold(s.ctx, a, nil) })
	}
	all.Wait()
	first := slices.IndexFunc(errs, func(err error) bool { return err != nil })
	if first < 0 {
		s.held = holds
		return "", nil
	}
	s.held = holds[:first:first]
	holder.ReleaseUnused(s.wait, holds[first:])
	if s.noWait {
		s.client.events.Failed(holder.Failed{Context: holder.Values{Context: s.ctx}, Key: s.keys[first], Waited: time.Since(began), Err: errs[first]})
	}
	return s.keys[first], errs[first]
}

// acquireNext waits for the lock on key, for as long as the others last.
func (s *severalCall) acquireNext(key string) error {
	wait, cancel := context.WithCancelCause(s.wait)
	defer cancel(nil)
	for _, h := range slices.Concat(s.nested, s.held) {
		defer context.AfterFunc(h.Context(), func() { cancel(errMidway) })()
	}
	h, err := s.client.obtainHold(s.ctx, s.newCall(wait, key), nil)
	switch {
	case err == nil:
		s.held = append(s.held, h)
	case errors.Is(context.Cause(wait), errMidway):
		return errMidway
	}
	return err
}

// makeLeases joins all leases, or returns nil if one is lost.
func (s *severalCall) makeLeases() *Leases {
	holds := slices.Concat(s.nested, s.held)
	slices.SortFunc(holds, func(a, b *holder.Hold) int { return strings.Compare(a.Key(), b.Key()) })
	last := s.client.keeper.Together(s.outer, holds, s.held, s.opts.MaxHold, s.opts.MinHold)
	if last == nil {
		return nil
	}
	all := &Leases{}
	all.ctx, all.cancel = context.WithCancelCause(last.NewContext(s.ctx))
	for _, h := range holds {
		all.leases = append(all.leases, &Lease{client: s.client, hold: h})
	}
	for _, l := range all.leases {
		all.unlink = append(all.unlink, context.AfterFunc(l.Context(), func() { all.cancel(all.withKey(l, context.Cause(l.Context()))) }))
	}
	return all
}

// holdsOf returns the holds of leases.
func holdsOf(leases []*Lease) (holds []*holder.Hold) {
	for _, l := range leases {
		holds = append(holds, l.hold)
	}
	return holds
}
