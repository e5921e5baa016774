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

// Leases are the leases on several keys that one call of AcquireAll has acquired. Each of them is renewed, and
// can be extended and checked, separately. It is safe for concurrent use.
type Leases struct {
	leases []*Lease // sorted by key
	ctx    context.Context
	cancel context.CancelCauseFunc
	unlink []func() bool
}

// AcquireAll acquires the locks on all of keys, or none of them. opts applies to each lock, except that Wait
// bounds the whole call; opts may be nil. It blocks as Acquire does, and returns the errors of Acquire, with
// the key of the lock that it did not get. After an error the caller holds none of the locks.
//
// Calls of AcquireAll cannot deadlock: each client acquires the locks in the byte order of their keys,
// whatever the order of keys. It first asks for all of them at once, and keeps the locks before the first one
// that it does not get. Then it waits for one lock after the other, while the watchdog renews the locks that it
// holds. If one of these is lost, AcquireAll begins again. MaxHold and MinHold count from when it holds all
// locks. A key that is given twice counts once.
//
// If ctx comes from a live lease on one of the keys, Reentrant means the same as for Acquire. ErrInvalid is
// also returned for an empty list of keys, and for NoRenew with several keys, because the first lease would
// end while the last lock is awaited. It is returned, too, for a key that sorts before the key of the lease
// that ctx comes from, if that key is among keys or belongs to Leases: two such calls could wait for one
// another. So acquire these locks in one call, or by TryAcquireAll, which does not wait. If a program nests
// locks that it acquired separately, it has to keep an order itself.
//
// The order protects plain locks only. A writer of an RWLock waits for all its places at once: a writer that
// holds k#1 and a call of AcquireAll that holds k#0 wait for each other without end. So do not pass keys with
// slots or readers, or the keys of their places, to calls that acquire plain locks.
func (c *Client) AcquireAll(ctx context.Context, keys []string, opts *AcquireOptions) (*Leases, error) {
	return c.acquireAll(ctx, keys, opts, false)
}

// TryAcquireAll makes one attempt and does not wait for a holder, as TryAcquire does for one lock. It returns
// the error of the first key, in byte order, that it did not get.
func (c *Client) TryAcquireAll(ctx context.Context, keys []string, opts *AcquireOptions) (*Leases, error) {
	return c.acquireAll(ctx, keys, opts, true)
}

// Context returns a context with the values of the context that acquired the leases. It ends when the leases
// are released and, with the same cause, when any of them ends. If a lease was lost, the cause names its key
// and matches ErrLost.
func (a *Leases) Context() context.Context { return a.ctx }

// Deadline returns the earliest deadline of the leases: the time until which all of them are valid unless
// renewals move it.
func (a *Leases) Deadline() time.Time {
	first := a.leases[0].Deadline()
	for _, l := range a.leases[1:] {
		if d := l.Deadline(); d.Before(first) {
			first = d
		}
	}
	return first
}

// All returns the leases, sorted by key. Each key has tokens of its own.
func (a *Leases) All() []*Lease { return slices.Clone(a.leases) }

// Lease returns the lease on key, or nil if there is none.
func (a *Leases) Lease(key string) *Lease {
	i, found := slices.BinarySearchFunc(a.leases, key, func(l *Lease, key string) int { return strings.Compare(l.Key(), key) })
	if !found {
		return nil
	}
	return a.leases[i]
}

// Release releases all leases at the same time, so that a slow or failed release does not delay the others. It
// blocks as Lease.Release does. It returns the errors of all leases that failed, joined, each with its key.
func (a *Leases) Release(ctx context.Context) (err error) {
	holds := holdsOf(a.leases)
	ctx, cancel := holder.ReleaseContext(ctx, holds...)
	defer cancel()
	for i, l := range a.leases {
		a.unlink[i]()
		if lost := l.hold.LossReason(); lost != nil {
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

// withKey adds the key of l to cause if there are several leases.
func (a *Leases) withKey(l *Lease, cause error) error {
	if len(a.leases) == 1 {
		return cause
	}
	return l.hold.WithKey(cause)
}

// severalCall is one call of AcquireAll or TryAcquireAll. Each lock is safe by itself. The order of the keys
// prevents deadlock: a call that waits for a key holds only lower keys. During its first step, which asks for
// all keys, it may hold others, but it waits for no holder then and releases them right afterwards.
type severalCall struct {
	client *Client
	ctx    context.Context // the caller's context
	wait   context.Context // ctx, bounded by Wait
	given  *AcquireOptions // the caller's options; nil: none
	opts   AcquireOptions  // given, with defaults
	outer  *holder.Hold    // the hold that ctx comes from, of any key; nil: none
	noWait bool            // true: do not wait for held locks

	nested []*holder.Hold // further holds of leases that ctx comes from
	keys   []string       // the other keys
	held   []*holder.Hold // holds on the first of keys
}

// errGateLostMidway ends a wait because the call has lost a lease that it already had.
var errGateLostMidway = errors.New("a lease was lost while another was waited for")

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
		if err != nil && !errors.Is(err, errGateLostMidway) {
			return nil, wrapError("acquire", key, err)
		}
	}
}

// checkKeys sorts keys and removes duplicates. For an invalid key it returns the key and an error.
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

// takeAll acquires the locks on keys. After an error, key names its lock, and some locks may be held or
// nested.
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

// checkOrder rejects a wait for a key that sorts before a lease of ctx: the holder of that key may wait for
// the lease.
func (s *severalCall) checkOrder() (key string, err error) {
	if len(s.keys) == 0 {
		return "", nil
	}
	if later := s.client.keeper.LaterHold(s.keys[0], s.outer, s.nested); later != nil {
		return s.keys[0], invalidError("the context comes from a lease on %q, which comes later in the order of keys; "+
			"take all keys in one call, or use TryAcquireAll, which does not wait", later.Key())
	}
	return "", nil
}

// newCall returns a call for the lock on key, without MinHold and MaxHold: these count for all keys together,
// once all are held.
func (s *severalCall) newCall(wait context.Context, key string) *holder.Call {
	a := &holder.Call{Options: s.opts.keeperOptions(), Wait: wait, Outer: s.outer, Key: key}
	a.MinHold, a.MaxHold = 0, 0
	return a
}

// tryAll asks for all keys at once, so that the requests travel together. It keeps the locks before the first
// key that it does not get, and returns that key.
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

// acquireNext waits for the lock on key, as long as the locks that are held last.
func (s *severalCall) acquireNext(key string) error {
	wait, cancel := context.WithCancelCause(s.wait)
	defer cancel(nil)
	for _, h := range slices.Concat(s.nested, s.held) {
		defer context.AfterFunc(h.Context(), func() { cancel(errGateLostMidway) })()
	}
	h, err := s.client.obtainHold(s.ctx, s.newCall(wait, key), nil)
	switch {
	case err == nil:
		s.held = append(s.held, h)
	case errors.Is(context.Cause(wait), errGateLostMidway):
		return errGateLostMidway
	}
	return err
}

// makeLeases joins all leases into one value, or returns nil if one of them is lost.
func (s *severalCall) makeLeases() *Leases {
	holds := slices.Concat(s.nested, s.held)
	slices.SortFunc(holds, func(a, b *holder.Hold) int { return strings.Compare(a.Key(), b.Key()) })
	last := s.client.keeper.ChainHolds(s.outer, holds, s.held, s.opts.MaxHold, s.opts.MinHold)
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
