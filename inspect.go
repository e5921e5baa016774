package holdfast

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Status is what is known about one lock.
type Status = driver.Status

// NodeView is what one node knows about a lock.
type NodeView = driver.NodeView

// Waiter is one who waits for a lock.
type Waiter = driver.Waiter

// Inspect reports who holds key, without changing anything. Like Queue and ForceRelease it takes
// each key that List yields, also one of another program with control characters. It blocks for one
// answer of the service. Errors: ErrUnavailable, ErrUnsupported, ErrInvalid, ErrClosed.
func (c *Client) Inspect(ctx context.Context, key string) (st Status, err error) {
	defer func() { err = wrap("inspect", key, err) }()
	if err := cmp.Or(checkSeen(key), c.open()); err != nil {
		return st, err
	}
	in, ok := c.drv.(driver.Inspector)
	if !ok {
		return st, unsupported("it cannot say who holds a lock")
	}
	seen, err := in.Inspect(ctx, key)
	return c.status(seen), err
}

// open returns ErrClosed once the client is closed.
func (c *Client) open() error {
	select {
	case <-c.closed:
		return ErrClosed
	default:
		return nil
	}
}

// Queue returns the first of those that wait for key, most at most, in the order in
// which they get the lock. Of those that wait in one process it shows the first. It
// blocks for one answer of the service. Errors: ErrUnavailable, ErrUnsupported,
// ErrInvalid.
func (c *Client) Queue(ctx context.Context, key string, most int) (waiters []Waiter, err error) {
	defer func() { err = wrap("queue", key, err) }()
	if err := checkSeen(key); err != nil {
		return nil, err
	}
	q, ok := c.drv.(driver.Queuer)
	if !ok {
		return nil, unsupported("it cannot say who waits for a lock")
	}
	return q.Queue(ctx, key, most)
}

// List yields the locks that are held or waited for and whose key begins with
// prefix. An error ends the sequence.
func (c *Client) List(ctx context.Context, prefix string) iter.Seq2[Status, error] {
	return func(yield func(Status, error) bool) {
		l, ok := c.drv.(driver.Lister)
		if !ok {
			yield(Status{}, wrap("list", "", unsupported("it cannot list locks")))
			return
		}
		err := l.List(ctx, prefix, func(st Status) bool { return yield(c.status(st), nil) })
		if err != nil {
			yield(Status{}, wrap("list", "", err))
		}
	}
}

// Finding is what one check of Diagnose has found.
type Finding = driver.Finding

// Verdict is how bad a Finding is.
type Verdict = driver.Verdict

// The verdicts of a check.
const (
	VerdictOK      = driver.VerdictOK
	VerdictSkipped = driver.VerdictSkipped // could not be looked at, for want of a right that locks do not need
	VerdictWarning = driver.VerdictWarning // locks work now
	VerdictFault   = driver.VerdictFault   // locks do not work there, or can be given to two
)

// Diagnose looks for what an operator should mend: nodes that cannot be reached, may lose
// locks, are full or slow, refuse rights, and so on. It returns what each check has found,
// also where all is well; see Finding.Bad. ttl is that of the leases, against which round
// trips are held; 0 stands for 10 s. It changes nothing, and blocks for some seconds at
// most, or until ctx ends. Errors: ErrUnsupported.
//
// A service that is so ill that no driver can be opened for locks is diagnosed over one that was
// opened with the option NoCheck.
func (c *Client) Diagnose(ctx context.Context, ttl time.Duration) ([]Finding, error) {
	d, ok := c.drv.(driver.Doctor)
	if !ok {
		return nil, wrap("diagnose", "", unsupported("it has no checks of its service"))
	}
	return d.Diagnose(ctx, ttl), nil
}

// ForceRelease takes the lock away from the grant that token belongs to, with the token that
// Inspect shows or that a lease has. It never takes it from a newer grant. One grant may serve
// several leases of one process, which follow one another within a tenth of a second: whichever
// of their tokens is given, the one that has the lock now loses it. A reader loses its place by the
// token that Inspect shows for that. The old holder cannot renew
// any more, and storages that check tokens refuse it once the next holder has written. Token 0
// stands for a lock without one: that of another library, or one that was released and stands
// for its MinHold (Status.Kept), which no other token ends.
//
// The holder loses its lease at once, if the driver is a driver.Alerter and the holder's
// client can be reached, and otherwise at its next renewal. In the first case the cause of
// its context has why: say who takes the lock and what for, in a line of at most 200 bytes.
// What is longer is cut.
//
// ErrUnconfirmed says that the lock has been taken away, and that a replica which takes over now may not know it: then the old
// holder, if it has heard nothing, goes on until its lease ends. Where a server may fail over, ForceRelease waits up to a
// second for one replica.
//
// Errors: ErrLost when token does not belong to the present holder,
// ErrUnavailable, ErrUnsupported, ErrUnconfirmed.
func (c *Client) ForceRelease(ctx context.Context, key string, token Token, why string) (err error) {
	defer func() { err = wrap("force release", key, err) }()
	if err := checkSeen(key); err != nil {
		return err
	}
	f, ok := c.drv.(driver.Forcer)
	if !ok {
		return unsupported("it cannot take a lock from its holder")
	}
	why = oneLine(why)
	done, err := f.Force(ctx, key, int64(token), why)
	switch {
	case err != nil && !errors.Is(err, ErrUnconfirmed):
		return err
	case !done:
		return strangerError(token)
	}
	c.carryOut(c.forced(key, int64(token), why))
	return err
}

// forced ends the lease on key if it is this client's and token belongs to it.
func (c *Client) forced(key string, token int64, why string) followUp {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.locals[key]
	if s == nil || s.term == nil {
		return followUp{}
	}
	if first := s.term.grant.Token; token < first || token >= first+int64(max(s.term.grant.Block, 1)) {
		return followUp{}
	}
	return s.term.end(forcedError(why), time.Now())
}

// strangerError is a token that is not the present holder's.
type strangerError Token

func (t strangerError) Error() string {
	return fmt.Sprintf("token %d does not belong to the present holder; nothing was released", Token(t))
}

func (strangerError) Is(target error) bool { return target == ErrLost }

// status adds the waiters of this process.
func (c *Client) status(st Status) Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.locals[st.Key]; s != nil {
		st.Waiters += s.queue.Len()
	}
	return st
}
