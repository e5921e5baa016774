package holdfast

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/internal/holder"
)

// Lease is one hold of a lock. It is safe for concurrent use.
type Lease struct {
	client *Client
	hold   *holder.Hold
}

// newLease wraps h in a lease, or returns err.
func (c *Client) newLease(h *holder.Hold, err error) (*Lease, error) {
	if err != nil {
		return nil, err
	}
	return &Lease{client: c, hold: h}, nil
}

// Key returns the key of the lock that the lease is on.
func (l *Lease) Key() string { return l.hold.Key() }

// Slot returns the number of the semaphore slot or the reader's place that the lease is on, from 0 on. No
// other holder has the same number at the same time. Slot is 0 for a lock and for a writer. It is also 0 after
// Adopt: then only Key names the slot.
func (l *Lease) Slot() int { return l.hold.Place().Number }

// Owner returns the id of the holder. No two leases have the same owner; nested holds of one lease share it. A
// storage compares it, in addition to the token, to recognise the same holder.
func (l *Lease) Owner() string { return l.hold.Owner() }

// Token returns the lease's fencing token, greater than the token of every earlier lease on the key. Pass it
// to each storage that is written under the lock. A reader's token is greater than the token of every writer
// before it, and a writer's token is greater than the token of every reader and writer before it. Readers that
// hold the key together have tokens in any order. A reader's place has another token: Inspect shows it and
// ForceRelease takes it.
func (l *Lease) Token() Token { return l.hold.Token() }

// String returns the key and the token, for logs: printing the fields would race with the client.
func (l *Lease) String() string { return fmt.Sprintf("lease on %q, token %d", l.Key(), l.Token()) }

// Context returns a context with the values of the context that acquired the lease. It ends when the lease is
// released and, with a cause that matches ErrLost, when the lease is lost. If Close releases the lease, the
// cause matches ErrClosed as well. With a Margin the context ends that much before Deadline. The end of the
// acquiring context does not end it.
func (l *Lease) Context() context.Context { return l.hold.Context() }

// Deadline returns the time at which the lease ends unless a renewal moves it. A writer's deadline is the
// earliest deadline of its locks. A lease that another client handed over may begin with a second or less; its
// first renewal is then sent within 50 ms. So bound work by Context, not by Deadline. The time has a monotonic
// clock reading.
func (l *Lease) Deadline() time.Time { return l.hold.Deadline() }

// Check asks the service whether it still has the lease. It blocks for one answer. nil means that a quorum has
// just confirmed the lease. ErrLost means that the lease has ended, or that a quorum of nodes does not have
// it. ErrUnavailable means that too few nodes answered. Check changes nothing: the next renewal ends the lease
// or, at a node that has just failed over, restores it. Until then Context and Deadline stay as they are, but
// a holder that can stop should stop.
func (l *Lease) Check(ctx context.Context) error {
	return wrapError("check", l.Key(), l.hold.Check(ctx))
}

// Extend renews the lease now, and sets the TTL for this and later renewals. MaxHold, Margin and RenewEvery
// stay as they are. It blocks for one round of renewal. After ErrUnavailable the lease is unchanged, and lasts
// until its Deadline.
//
// Extend never shortens a lease. A shorter TTL takes effect with the first renewal that would go beyond the
// present Deadline. Otherwise a request that arrives late could end a lease before the Deadline that a longer
// request has set.
//
// Errors: ErrLost, ErrUnavailable, ctx.Err() with ErrUnavailable; ErrInvalid for a TTL that is out of bounds
// or leaves no time for Margin and RenewEvery; ErrUnsupported if the driver cannot change a TTL.
func (l *Lease) Extend(ctx context.Context, ttl time.Duration) error {
	err := l.client.checkTTL("TTL", ttl)
	if err == nil {
		err = l.hold.Extend(ctx, ttl)
	}
	return wrapError("extend", l.Key(), err)
}

// Release releases the lease. Nested holds are released one by one, and the last release frees the lock.
// Release blocks until the service has answered, at most for two seconds. If ctx ends before, Release waits
// another tenth of a second at most. So ctx may have ended already, like the context of a program that stops,
// or the lease's own after a loss. A second call is allowed.
//
// Errors: ErrLost if the lease was lost before; with a Margin, Release frees the lock nevertheless.
// ErrUnavailable or ctx.Err() if the service did not confirm: the lock then expires with its TTL. After Close,
// which has released the lease, Release returns nil.
func (l *Lease) Release(ctx context.Context) error {
	return wrapError("release", l.Key(), l.hold.Release(ctx))
}
