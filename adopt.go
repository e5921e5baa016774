package holdfast

import (
	"context"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/holder"
)

// Detach leaves the lock of a lease that is Adoptable standing for another process, which can
// Adopt it by the lease's Key, Owner and Token: it lapses at Deadline unless that happens. This
// client forgets it: the contexts of all its holds end with cause ErrDetached,
// the client neither renews nor releases it any more, and a waiter for the key
// in this process asks the service. It does not block. Errors: ErrLost, when the
// lease has ended before; ErrInvalid, when it is not Adoptable; ErrUnsupported.
func (l *Lease) Detach() (err error) {
	defer func() { err = wrapError("detach", l.Key(), err) }()
	a, ok := l.client.drv.(driver.Adopter)
	if !ok {
		return errOneProcess
	}
	return l.hold.Detach(a)
}

// canAdopt reports whether another process can continue the driver's grants.
func (c *Client) canAdopt() bool {
	_, ok := c.drv.(driver.Adopter)
	return ok
}

var errOneProcess = unsupportedError("its leases cannot be continued by another process")

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
	a := &holder.Call{Options: o.forKeeper(), Wait: ctx, Outer: holder.FromContext(ctx), Key: key}
	return c.newLease(c.keeper.Run(ctx, a, func() (*holder.Hold, error) {
		grant, first := driver.GrantOf(owner, token)
		return a.Adopt(adopter, driver.Grant{Key: key, Owner: grant, Token: first, TTL: o.TTL})
	}))
}
