package holdfast

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/holder"
)

// Status describes one lock.
type Status = driver.Status

// NodeView describes a lock as one node sees it.
type NodeView = driver.NodeView

// Waiter describes a client that waits for a lock.
type Waiter = driver.Waiter

// Inspect returns the state of the lock on key: its holder and its waiters. It changes nothing. Inspect, Queue
// and ForceRelease take each key that List yields, also the keys of other programs, which may contain control
// characters. It blocks for one answer of the service. Errors: ErrUnavailable, ErrUnsupported, ErrInvalid,
// ErrClosed.
func (c *Client) Inspect(ctx context.Context, key string) (st Status, err error) {
	defer func() { err = wrapError("inspect", key, err) }()
	if err := cmp.Or(checkInspectedKey(key), c.checkOpen()); err != nil {
		return st, err
	}
	in, ok := c.drv.(driver.Inspector)
	if !ok {
		return st, unsupportedError("it cannot say who holds a lock")
	}
	seen, err := in.Inspect(ctx, key)
	return c.addLocalWaiters(seen), err
}

// checkOpen returns ErrClosed once the client is closed.
func (c *Client) checkOpen() error {
	select {
	case <-c.closed:
		return ErrClosed
	default:
		return nil
	}
}

// Queue returns the first waiters for key, in the order in which they will get the lock, and at most limit of
// them. Of the waiters of one process it returns the first only. It blocks for one answer of the service.
// Errors: ErrUnavailable, ErrUnsupported, ErrInvalid.
func (c *Client) Queue(ctx context.Context, key string, limit int) (waiters []Waiter, err error) {
	defer func() { err = wrapError("queue", key, err) }()
	if err := checkInspectedKey(key); err != nil {
		return nil, err
	}
	q, ok := c.drv.(driver.Queuer)
	if !ok {
		return nil, unsupportedError("it cannot say who waits for a lock")
	}
	return q.Queue(ctx, key, limit)
}

// List yields the locks whose key begins with prefix and that somebody holds or waits for. An error ends the
// sequence.
func (c *Client) List(ctx context.Context, prefix string) iter.Seq2[Status, error] {
	return func(yield func(Status, error) bool) {
		l, ok := c.drv.(driver.Lister)
		if !ok {
			yield(Status{}, wrapError("list", "", unsupportedError("it cannot list locks")))
			return
		}
		err := l.List(ctx, prefix, func(st Status) bool { return yield(c.addLocalWaiters(st), nil) })
		if err != nil {
			yield(Status{}, wrapError("list", "", err))
		}
	}
}

// Finding is the result of one check of Diagnose.
type Finding = driver.Finding

// Verdict grades a Finding.
type Verdict = driver.Verdict

// The verdicts of a check.
const (
	VerdictOK      = driver.VerdictOK
	VerdictSkipped = driver.VerdictSkipped // not checked, because a permission is missing that locks do not need
	VerdictWarning = driver.VerdictWarning // locks work, but something should be fixed
	VerdictFault   = driver.VerdictFault   // locks do not work, or two clients can get the same lock
)

// Diagnose looks for problems that an operator should fix: nodes that cannot be reached, may lose locks, are
// full or slow, or deny permissions. It returns the result of each check, good or bad; see Finding.Bad. It
// compares response times with ttl, the TTL of the leases; 0 means 10 s. Diagnose changes nothing, and blocks
// for some seconds at most, or until ctx ends. Errors: ErrUnsupported.
//
// If the service is in such a state that no driver can be opened for locks, open the driver with the option
// NoCheck to diagnose it.
func (c *Client) Diagnose(ctx context.Context, ttl time.Duration) ([]Finding, error) {
	d, ok := c.drv.(driver.Doctor)
	if !ok {
		return nil, wrapError("diagnose", "", unsupportedError("it has no checks of its service"))
	}
	return d.Diagnose(ctx, ttl), nil
}

// ForceRelease takes the lock away from the holder with this token. Inspect shows the token, and Lease.Token
// returns it. ForceRelease never takes the lock from a newer grant. Within a tenth of a second, one grant may
// serve several leases of one process in turn: the token of any of them takes the lock from the current one. A
// reader loses its place by the token that Inspect shows for the place. The old holder cannot renew any more,
// and storages that check tokens reject it once the next holder has written. Token 0 stands for a lock without
// a token: the lock of another library, or a released lock that its MinHold still keeps (Status.Kept), which
// no other token ends.
//
// The holder loses its lease at once if the driver is a driver.Alerter and the holder's client can be reached,
// otherwise at its next renewal. In the first case the cause of its context includes reason: give the reason and
// who takes the lock, in a line of at most 200 bytes. A longer text is cut.
//
// ErrUnconfirmed means that the lock was taken away, but a replica that takes over now may not know it. A
// holder that was not notified may then continue until its lease ends. If a server may fail over, ForceRelease
// waits up to a second for one replica.
//
// Errors: ErrLost if token does not belong to the present holder, ErrUnavailable, ErrUnsupported,
// ErrUnconfirmed.
func (c *Client) ForceRelease(ctx context.Context, key string, token Token, reason string) (err error) {
	defer func() { err = wrapError("force release", key, err) }()
	if err := checkInspectedKey(key); err != nil {
		return err
	}
	f, ok := c.drv.(driver.Forcer)
	if !ok {
		return unsupportedError("it cannot take a lock from its holder")
	}
	reason = holder.OneLine(reason)
	done, err := f.Force(ctx, key, token, reason)
	switch {
	case err != nil && !errors.Is(err, ErrUnconfirmed):
		return err
	case !done:
		return unknownTokenError(token)
	}
	c.keeper.EndForced(key, token, reason)
	return err
}

// unknownTokenError rejects a token that does not belong to the present holder.
type unknownTokenError Token

func (t unknownTokenError) Error() string {
	return fmt.Sprintf("token %d does not belong to the present holder; nothing was released", Token(t))
}

func (unknownTokenError) Is(target error) bool { return target == ErrLost }

// addLocalWaiters adds the waiters of this process to st.
func (c *Client) addLocalWaiters(st Status) Status {
	st.Waiters += c.keeper.WaiterCount(st.Key)
	return st
}
