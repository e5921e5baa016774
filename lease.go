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

// newLease returns the lease of h, or err.
func (c *Client) newLease(h *holder.Hold, err error) (*Lease, error) {
	if err != nil {
		return nil, err
	}
	return &Lease{client: c, hold: h}, nil
}

// Key returns the key that the lease is on.
func (l *Lease) Key() string { return l.hold.Key() }

// Slot is the slot of a semaphore that the lease is on, or its place among the readers, from 0 on; no other
// holder has it at the same time. It is 0 for a lock and for a writer, and where Adopt has taken the lease over: then
// Key alone names the slot.
func (l *Lease) Slot() int { return l.hold.Place().Number }

// Owner names the holder: no two leases have the same, but nested holds do. A
// storage compares it, in addition to the token, to know the same holder again.
func (l *Lease) Owner() string { return l.hold.Owner() }

// Token returns the lease's fencing token, greater than the token of every earlier lease
// on the key. Pass it to whatever is written under the lock. A reader's token is greater than the token of every
// writer before it, and a writer's is greater than the token of every reader and writer before it; readers that hold
// the key together have tokens in any order. It is not the token of a reader's place, which Inspect shows and
// ForceRelease takes.
func (l *Lease) Token() Token { return l.hold.Token() }

// String returns the key and the token, for logs: printing the fields would race with the client.
func (l *Lease) String() string { return fmt.Sprintf("lease on %q, token %d", l.Key(), l.Token()) }

// Context carries the values of the context that acquired the lease. It ends when
// the lease is released and, with a cause that matches ErrLost, when it is lost or
// Close releases it, where the cause matches ErrClosed as well. With a Margin it ends
// that much before Deadline. The end of the acquiring context does not end it.
func (l *Lease) Context() context.Context { return l.hold.Context() }

// Deadline returns the time until which the lease can be trusted unless a renewal moves it. A
// writer's is the earliest deadline of its locks. A lease that
// was handed over by another client may begin with less than its TTL, a second or a
// part of it, and its first renewal is then sent within 50 ms. So bound work by
// Context, not by this. It has a monotonic clock reading.
func (l *Lease) Deadline() time.Time { return l.hold.Deadline() }

// Check asks the service whether the lease still stands. It blocks for one answer.
// nil means that a quorum has just confirmed it, ErrLost that it has ended or that
// a quorum of nodes does not have it, ErrUnavailable that too few nodes answered.
// Check changes nothing: the next renewal ends the lease or, at a node that has just failed
// over, restores it. Until then Context and Deadline still hold, but a holder that can stop
// should stop.
func (l *Lease) Check(ctx context.Context) error {
	return wrapError("check", l.Key(), l.hold.Check(ctx))
}

// Extend renews the lease now, and sets the TTL that later renewals use; MaxHold
// stays its bound, and Margin and RenewEvery stay as they are. It blocks for one round
// of renewal. On ErrUnavailable the lease stands as it was, for as long as Deadline says.
//
// Extend never shortens a lease: with a shorter TTL the lease stands until the Deadline that
// it has, and the shorter TTL counts from the renewals that go beyond that. A request can
// reach the service late, after a longer one, and must not end what that has promised.
//
// Errors: ErrLost, ErrUnavailable, ctx.Err() with ErrUnavailable; ErrInvalid for a TTL
// that is out of bounds or leaves no time for Margin and RenewEvery; ErrUnsupported
// where the driver cannot change a TTL.
func (l *Lease) Extend(ctx context.Context, ttl time.Duration) error {
	err := l.client.checkTTL(ttl, ttl)
	if err == nil {
		err = l.hold.Extend(ctx, ttl)
	}
	return wrapError("extend", l.Key(), err)
}

// Release releases the lease. Each nested hold is released by itself, and the
// lock with the last. It blocks until the service has answered, for two seconds
// at most. ctx only shortens that, to a tenth of a second once it has ended: it may have
// ended before, as the context of a program that stops, or the lease's own after a loss.
// Release may be called again.
//
// Errors: ErrLost if the lease was lost before: with a Margin the lock is then released
// nevertheless. ErrUnavailable or ctx.Err() if the service did not confirm: the lock
// then lapses by itself. After Close, which has released the lease, Release returns nil.
func (l *Lease) Release(ctx context.Context) error {
	return wrapError("release", l.Key(), l.hold.Release(ctx))
}
