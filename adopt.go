package holdfast

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Detach leaves the lock of a lease that is Adoptable standing for another process, which can
// Adopt it by the lease's Key, Owner and Token: it lapses at Deadline unless that happens. This
// client forgets it: the contexts of all its holds end with cause ErrDetached,
// the client neither renews nor releases it any more, and a waiter for the key
// in this process asks the service. It does not block. Errors: ErrLost, when the
// lease has ended before; ErrInvalid, when it is not Adoptable; ErrUnsupported.
func (l *Lease) Detach() (err error) {
	defer func() { err = wrap("detach", l.Key(), err) }()
	t := l.term
	c := t.client
	a, ok := c.drv.(driver.Adopter)
	if !ok {
		return errOneProcess
	}
	c.mu.Lock()
	if err := l.checkLive(); err != nil {
		c.mu.Unlock()
		return err
	}
	if !driver.IsAdoptable(t.grant.Owner) {
		c.mu.Unlock()
		return errNotAdoptable
	}
	end := t.end(ErrDetached, time.Now())
	c.mu.Unlock()
	end.cancelContexts()
	a.Detach(t.grant)
	c.mu.Lock()
	c.askNext(t.lock)
	c.mu.Unlock()
	end.event.Detached = true
	c.events.released(end.event)
	return nil
}

// errElsewhere is the obstacle of an Adopt while an Acquire of this client has no
// answer yet.
var errElsewhere error = &UnavailableError{Err: errors.New("this client is asking for the lock at the same time")}

var errNotAdoptable = invalid("the lease cannot be continued by another process; acquire it with AcquireOptions.Adoptable")

// adopts reports whether another process can continue the driver's grants.
func (c *Client) adopts() bool {
	_, ok := c.drv.(driver.Adopter)
	return ok
}

var errOneProcess = unsupported("its leases cannot be continued by another process")

// leadAt starts the inquiry of key, unless another caller has it; cancel is registered as by beginAsking.
func (c *Client) leadAt(key string, cancel context.CancelCauseFunc) (*localLock, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending {
		return nil, ErrClosed
	}
	s := c.lockFor(key)
	if s.isTaken() {
		if obstacle := s.currentObstacle(); obstacle != nil {
			return nil, obstacle
		}
		return nil, errElsewhere
	}
	s.startInquiry()
	s.asking.cancel = cancel
	return s, nil
}

// Adopt takes over a lease that another client has acquired with Adoptable, by its Key, Owner
// and Token, and returns a lease with an Owner and a Token of its own, later than the old one,
// which can be adopted as well. Of
// several clients that adopt one lease, one succeeds. A holder that still works under the
// old lease has lost it, and learns that at its next renewal or at its Deadline, not
// before. So detach a lease before another client adopts it. The watchdog treats it like
// any other.
//
// Adopt blocks until the lease is its own or known to be over, at most for opts.TTL.
// Errors: ErrLost when it was released, also where the lock still stands for its MinHold, has
// lapsed or is another's; ErrUnavailable when too few nodes have answered: then no client has
// adopted it, and it lapses; ErrInvalid, also for a lease that was acquired without Adoptable;
// ErrUnsupported, ErrHeld when this client itself holds or awaits the key.
func (c *Client) Adopt(ctx context.Context, key, owner string, token Token, opts *AcquireOptions) (l *Lease, err error) {
	defer func() { err = wrap("adopt", key, err) }()
	o, err := c.checkOptions(key, kind{}, opts)
	if err != nil {
		return nil, err
	}
	adopter, ok := c.drv.(driver.Adopter)
	if !ok {
		return nil, errOneProcess
	}
	if owner == "" || token <= 0 {
		return nil, invalid("give the owner and the token that Acquire returned")
	}
	if o.Note != "" {
		return nil, invalid("Note %q: an adopted lease keeps the note that it has", o.Note)
	}
	if !driver.IsAdoptable(owner) {
		return nil, errNotAdoptable
	}
	a := &attempt{key: key, opts: o, wait: ctx, outer: leaseFromContext(ctx)}
	return c.runCall(ctx, a, func() (*Lease, error) {
		grant, first := driver.GrantOf(owner, int64(token))
		return a.adopt(adopter, driver.Grant{Key: key, Owner: grant, Token: first, TTL: o.TTL})
	})
}

// adopt takes the lock over from grant.
func (a *attempt) adopt(adopter driver.Adopter, grant driver.Grant) (*Lease, error) {
	c := a.client
	asking, cancel := context.WithCancelCause(a.wait)
	defer cancel(nil)
	s, err := c.leadAt(a.key, cancel)
	if err != nil {
		return nil, err
	}
	adopted, err := adopter.Adopt(asking, grant)
	if err != nil {
		return nil, c.failAsking(asking, s, err)
	}
	return a.startLease(s, adopted, a.since)
}
