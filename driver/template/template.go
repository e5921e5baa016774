// Package template is a complete driver over one map and one mutex. It is a model for authors of drivers, and
// shows that the interface of package driver is enough. Programs use package memory, whose nodes can fail.
//
// The type service stands for the lock service: where this driver calls its methods withLock and withHeldLock,
// a real driver sends a request. Words in brackets name the rules of package driver.
package template

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// minPause is the shortest pause after which a waiter asks again without a wake-up. The first waiter is woken,
// but over a network a wake-up can be lost.
const minPause = 100 * time.Millisecond

// Driver is the connection of one client to the service.
type Driver struct {
	service *service
	client  string // first part of every owner id of this client
	claims  atomic.Int64
	open    context.Context // ends with Close
	stop    context.CancelFunc
}

// New returns a driver over a new service.
func New() *Driver { return (&Driver{service: &service{locks: make(map[string]*lock)}}).Peer() }

// Peer returns the driver of another client of the same service.
func (d *Driver) Peer() *Driver {
	p := &Driver{service: d.service, client: rand.Text()}
	p.open, p.stop = context.WithCancel(context.Background())
	return p
}

// Limits implements driver.Driver. It declares the abilities that the methods below have, and no others.
func (d *Driver) Limits() driver.Limits {
	return driver.Limits{MinTTL: 10 * time.Millisecond, Token: true, Order: true, MinHold: true, ChangeTTL: true}
}

// trustedUntil returns the end of trust in a lock that was requested at sent [Trust]. The hundredth allows for
// clocks that run at different speeds on two machines.
func trustedUntil(sent time.Time, ttl time.Duration) time.Time { return sent.Add(ttl - ttl/100) }

// Acquire implements driver.Driver. It asks, waits until the answer may have changed, and asks again.
func (d *Driver) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	c := &claim{
		owner:  d.client + "." + strconv.FormatInt(d.claims.Add(1), 36), // no other claim ever has it [Owner]
		holder: req.Holder, since: time.Now(), wake: make(chan struct{}, 1),
	}
	defer d.service.withLock(req.Key, func(l *lock) { l.removeWaiter(c) }) // whatever ends the wait [Nothing stays]
	var held *driver.HeldError
	for {
		switch { // with the last obstacle, if it is known [End]
		case d.open.Err() != nil:
			return driver.Grant{}, driver.ErrClosed
		case ctx.Err() != nil && held != nil:
			return driver.Grant{}, fmt.Errorf("%w: %w", ctx.Err(), held)
		case ctx.Err() != nil:
			return driver.Grant{}, ctx.Err()
		}
		sent, first := time.Now(), held == nil
		d.service.withLock(req.Key, func(l *lock) { held = l.takeFor(c, req) })
		switch {
		case held == nil:
			return driver.Grant{Key: req.Key, Owner: c.owner, Token: c.token, TTL: req.TTL, TrustedUntil: trustedUntil(sent, req.TTL)}, nil
		case req.NoWait:
			return driver.Grant{}, held // one attempt [NoWait]
		case first && req.OnObstacle != nil:
			req.OnObstacle(held) // once, because this service has no other obstacle [Obstacle]
		}
		select {
		case <-c.wake:
		case <-time.After(max(held.Remaining, minPause)):
		case <-ctx.Done():
		case <-d.open.Done():
		}
	}
}

// Renew implements driver.Driver. ErrLost is an answer of the service. A missing answer would be another
// error, and would leave the old trust valid [Loss].
func (d *Driver) Renew(_ context.Context, grants []driver.Grant) []driver.Renewal {
	out := make([]driver.Renewal, len(grants))
	for i, g := range grants {
		sent := time.Now()
		out[i].Err = d.service.withHeldLock(g, func(l *lock) {
			if until := time.Now().Add(g.TTL); until.After(l.until) { // a renewal never shortens [Renew]
				l.until = until
			}
			out[i].TrustedUntil, out[i].Waiters = trustedUntil(sent, g.TTL), len(l.queue)
		})
	}
	return out
}

// Release implements driver.Driver. Over a network it would send the request with
// context.WithoutCancel [Release] and a time limit of two seconds [Prompt].
func (d *Driver) Release(_ context.Context, g driver.Grant, keep time.Duration) error {
	d.service.withHeldLock(g, func(l *lock) {
		l.until, l.kept = time.Now().Add(keep), true // nobody holds it until then [Keep]
		if keep <= 0 {
			l.has = nil
		}
	})
	return nil // also if another owner has the lock, or it was released before
}

// Close implements driver.Driver. The service stays available to other clients.
func (d *Driver) Close() error {
	d.stop()
	return nil
}

// Check implements driver.Checker.
func (d *Driver) Check(_ context.Context, g driver.Grant) error {
	return d.service.withHeldLock(g, func(*lock) {})
}

// Inspect implements driver.Inspector. Status.Nodes stays empty, because the service has no nodes.
func (d *Driver) Inspect(_ context.Context, key string) (driver.Status, error) {
	st := driver.Status{Key: key}
	d.service.withLock(key, func(l *lock) {
		st.Waiters = len(l.queue)
		if c := l.has; c != nil {
			st.Held, st.Kept, st.Owner, st.Holder, st.Since, st.Token = true, l.kept, c.owner, c.holder, c.since, c.token
			if st.Remaining = time.Until(l.until); l.kept {
				st.Token = 0
			}
		}
	})
	return st, nil
}

// List implements driver.Lister. It holds no mutex while it calls yield, which may call
// the driver.
func (d *Driver) List(ctx context.Context, prefix string, yield func(driver.Status) bool) error {
	d.service.mu.Lock()
	keys := slices.Collect(maps.Keys(d.service.locks))
	d.service.mu.Unlock()
	for _, key := range keys {
		st, _ := d.Inspect(ctx, key)
		if strings.HasPrefix(key, prefix) && (st.Held || st.Waiters > 0) && !yield(st) {
			break
		}
	}
	return nil
}

// Force implements driver.Forcer.
func (d *Driver) Force(_ context.Context, key string, token int64, _ string) (done bool, err error) {
	d.service.withLock(key, func(l *lock) {
		if done = l.has != nil && (!l.kept && l.has.token == token || l.kept && token == 0); done {
			l.has = nil
		}
	})
	return done, nil
}

// service keeps the locks.
type service struct {
	mu    sync.Mutex       // guards the fields below
	locks map[string]*lock // held or awaited locks
	last  int64            // the last token: one counter for all keys, which is never reset [Tokens]
}

type lock struct {
	service *service
	has     *claim    // the holder; nil: nobody
	until   time.Time // end of the holder's TTL
	kept    bool      // the holder has released it, and it stays held until then
	queue   []*claim  // the waiters, in order of arrival
}

// claim is one Acquire that waits for a lock, or has it.
type claim struct {
	owner  string
	holder driver.Holder
	since  time.Time
	token  int64         // set when the claim gets the lock
	wake   chan struct{} // receives an element when the claim should ask again
}

// withLock calls do with the present state of the lock on key. Then it wakes the first waiter if the lock is
// free, and deletes a lock that nobody holds or awaits.
func (s *service) withLock(key string, do func(*lock)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.locks[key]
	if l == nil {
		l = &lock{service: s}
		s.locks[key] = l
	}
	if !time.Now().Before(l.until) {
		l.has = nil
	}
	do(l)
	switch {
	case l.has != nil:
	case len(l.queue) == 0:
		delete(s.locks, key)
	default:
		select {
		case l.queue[0].wake <- struct{}{}:
		default: // the waiter is already awake
		}
	}
}

// withHeldLock calls do if g holds the lock, and otherwise returns ErrLost.
func (s *service) withHeldLock(g driver.Grant, do func(*lock)) error {
	err := driver.ErrLost
	s.withLock(g.Key, func(l *lock) {
		if l.has != nil && !l.kept && l.has.owner == g.Owner {
			do(l)
			err = nil
		}
	})
	return err
}

// takeFor gives the lock to c if it is free and no other claim is ahead of c [Order]. Otherwise it returns the
// holder or claim that is ahead, and c joins the queue if it waits.
func (l *lock) takeFor(c *claim, req driver.Request) *driver.HeldError {
	place := slices.Index(l.queue, c)
	if place < 0 {
		place = len(l.queue)
		if !req.NoWait {
			l.queue = append(l.queue, c)
		}
	}
	before, kept := l.has, l.kept
	if before == nil && place > 0 {
		before, kept = l.queue[0], false // it was woken and will take the lock
	}
	if before == nil {
		l.service.last++
		c.token, l.has, l.until, l.kept = l.service.last, c, time.Now().Add(req.TTL), false
		return nil
	}
	return &driver.HeldError{
		Owner: before.owner, Holder: before.holder, Since: before.since, Remaining: max(time.Until(l.until), 0), Kept: kept, Waiters: place,
	}
}

// removeWaiter removes c from the queue, after it got the lock or gave up.
func (l *lock) removeWaiter(c *claim) {
	l.queue = slices.DeleteFunc(l.queue, func(w *claim) bool { return w == c })
}
