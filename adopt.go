package holdfast

import (
	"context"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/holder"
)

// Detach stops managing the lease and leaves the lock in place, so that another process can continue it: that
// process passes the lease's Key, Owner and Token to Adopt. If no process does, the lock expires at Deadline.
// From then on this client neither renews nor releases the lease, the contexts of all its holds end with cause
// ErrDetached, and waiters of this process ask the service for the key. Detach does not block. The lease must
// have been acquired with Adoptable. Errors: ErrLost if the lease has ended; ErrInvalid if it is not
// adoptable; ErrUnsupported.
func (l *Lease) Detach() (err error) {
	defer func() { err = wrapError("detach", l.Key(), err) }()
	a, ok := l.client.drv.(driver.Adopter)
	if !ok {
		return errOneProcess
	}
	return l.hold.Detach(a)
}

// canAdopt reports whether another process can adopt grants of this driver.
func (c *Client) canAdopt() bool {
	_, ok := c.drv.(driver.Adopter)
	return ok
}

var errOneProcess = unsupportedError("its leases cannot be continued by another process")

// Adopt takes over a lease that another client has acquired with Adoptable. It returns a new lease with its
// own Owner and a higher Token, which can be adopted as well; the watchdog renews it like any other. If
// several clients adopt the same lease, one of them succeeds. A holder that still works under the old lease
// has lost it, but learns that only at its next renewal or at its Deadline. So detach a lease before another
// client adopts it.
//
// Adopt blocks until the service confirms or denies the takeover, for at most opts.TTL. Errors: ErrLost if the
// lease was released, has expired or belongs to another holder, also while MinHold still keeps its lock;
// ErrUnavailable if too few nodes answered: then no client has adopted the lease, and it expires; ErrInvalid,
// also for a lease that was acquired without Adoptable; ErrHeld if this client itself holds the key or waits
// for it; ErrUnsupported.
func (c *Client) Adopt(ctx context.Context, key, owner string, token Token, opts *AcquireOptions) (l *Lease, err error) {
	defer func() { err = wrapError("adopt", key, err) }()
	o, err := c.checkOptions(key, nil, opts)
	if err != nil {
		return nil, err
	}
	adopter, ok := c.drv.(driver.Adopter)
	if !ok {
		return nil, errOneProcess
	}
	if owner == "" || token <= 0 {
		return nil, invalidError("give the owner and the token that Acquire returned")
	}
	if o.Note != "" {
		return nil, invalidError("Note %q: an adopted lease keeps the note that it has", o.Note)
	}
	if !driver.IsAdoptable(owner) {
		return nil, holder.ErrNotAdoptable
	}
	a := &holder.Call{Options: o.keeperOptions(), Wait: ctx, Outer: holder.FromContext(ctx), Key: key}
	return c.newLease(c.keeper.Run(ctx, a, func() (*holder.Hold, error) {
		grant, first := driver.GrantOf(owner, token)
		return a.Adopt(adopter, driver.Grant{Key: key, Owner: grant, Token: first, TTL: o.TTL})
	}))
}
