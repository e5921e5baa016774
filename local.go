package holdfast

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/clock"
	"github.com/holdfast-go/holdfast/internal/obstacle"
)

// handOverMost bounds how long a grant serves the waiters of this process
// before the other clients get their turn.
const handOverMost = 100 * time.Millisecond

// Waiters of one process queue in the local of their key, first come first, and the first
// alone asks the service. A lease may pass to the next of them without the service:
// term.successor says when.

// local is one key in this process: the attempt that holds it or asks the service
// for it, and the attempts that wait behind. Only one of them asks the service.
type local struct {
	key    string
	term   *term     // the grant held; nil: none
	asking *inquiry  // of the caller that leads: it asks the service, or releases; nil: none does
	queue  list.List // of *attempt, first come first
}

// inquiry is one caller's request to the service, and what the other callers
// learn of it. Client.mu guards it.
type inquiry struct {
	cancel   context.CancelCauseFunc // nil: it has not begun
	obstacle error                   // the last obstacle; nil: none is known yet
	known    chan struct{}           // closed when there is an obstacle or it is over; nil: no goroutine waits for that
}

// tell reports the obstacle, or, with nil, that the inquiry is over.
func (q *inquiry) tell(obstacle error) {
	if obstacle != nil {
		q.obstacle = obstacle
	}
	if q.known != nil {
		close(q.known)
		q.known = nil
	}
}

// await returns a channel that is closed with the next tell.
func (q *inquiry) await() <-chan struct{} {
	if q.known == nil {
		q.known = make(chan struct{})
	}
	return q.known
}

// turn is what a waiter gets.
type turn struct {
	lease *Lease // with the lock; nil: the waiter asks the service
	err   error
}

// local returns what is local of key. The caller holds mu.
func (c *Client) local(key string) *local {
	s := c.locals[key]
	if s == nil {
		s = &local{key: key}
		c.locals[key] = s
	}
	return s
}

func (s *local) busy() bool { return s.term != nil || s.asking != nil }

// inquire lets the caller, or a waiter, ask the service. The caller holds mu.
func (s *local) inquire() { s.asking = &inquiry{} }

// answered says that the caller that asked has an answer. The caller holds mu.
func (s *local) answered() {
	if s.asking != nil {
		s.asking.tell(nil)
	}
	s.asking = nil
}

// tidy forgets a local that no attempt uses. The caller holds mu.
func (c *Client) tidy(s *local) {
	if s.busy() || s.queue.Len() > 0 {
		return
	}
	delete(c.locals, s.key)
	if c.ending && len(c.locals) == 0 {
		close(c.vacant)
	}
}

// lead lets the next waiter ask the service, if there is one. The caller holds mu.
func (c *Client) lead(s *local) {
	last := s.asking
	s.answered()
	if next := s.queue.Front(); next != nil {
		s.inquire()
		if last != nil { // it stands until there is a newer one
			s.asking.obstacle = last.obstacle
		}
		s.queue.Remove(next).(*attempt).turn <- turn{}
	}
	c.tidy(s)
}

// dismiss sends all waiters away. The caller holds mu.
func (s *local) dismiss() {
	for e := s.queue.Front(); e != nil; e = s.queue.Front() {
		s.queue.Remove(e).(*attempt).turn <- turn{err: ErrClosed}
	}
}

// overhear waits for the next obstacle, or the end, of q, the inquiry of another
// caller, and returns the obstacle; nil: there is none. The caller holds mu, which
// overhear unlocks.
func (c *Client) overhear(wait context.Context, q *inquiry) error {
	known := q.await()
	c.mu.Unlock()
	select {
	case <-known:
	case <-wait.Done():
		return wait.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return q.obstacle
}

// waiters is how many wait for the key of s, as far as is known. The caller holds mu.
func (s *local) waiters() int {
	n := s.queue.Len()
	switch {
	case s.term != nil:
		n += s.term.waiters
	case s.asking != nil:
		if held, ok := errors.AsType[*HeldError](s.asking.obstacle); ok { // and the one that asks waits too
			n += 1 + held.Waiters
		}
	}
	return n
}

// crowded returns the error of a where a holder stands in the way of others, more than a waits
// behind. It asks once, as the first answer comes: a does not leave for those that come later. The
// caller holds mu.
func (a *attempt) crowded(obstacle error, others int) error {
	held, ok := errors.AsType[*HeldError](obstacle)
	if !ok || a.joined {
		return nil
	}
	if a.opts.MaxWaiters == 0 || others < a.opts.MaxWaiters {
		a.joined = true
		return nil
	}
	full := *held
	full.Waiters = others
	return fmt.Errorf("%d wait for it already, and MaxWaiters is %d: %w", others, a.opts.MaxWaiters, &full)
}

// announce tells the hook, once, that the caller of a waits for the holder of lock. The caller holds mu.
func (a *attempt) announce(lock string, obstacle error) {
	caller := cmp.Or(a.of, a)
	if held, ok := errors.AsType[*HeldError](obstacle); ok && held != nil && !caller.told {
		caller.told = true
		if caller != a {
			caller.compare(held)
		}
		a.client.events.waiting(WaitingEvent{Context: a.ctx, Key: caller.key, Lock: lock, Held: held})
	}
}

// meet tells the callers for whom a asks what stands in the way. The caller holds mu.
func (a *attempt) meet(obstacle error) {
	if a.line != nil {
		a.line.meet(a.share.slot, obstacle)
		return
	}
	a.announce(a.key, obstacle)
}

// obstacle is the obstacle of a key in this process; nil: none, or it is not known
// yet. The caller holds mu.
func (s *local) obstacle() error {
	switch {
	case s.asking != nil:
		return s.asking.obstacle
	case s.term == nil:
		return nil
	}
	return &HeldError{
		Owner: s.term.grant.Owner, Holder: s.term.client.named(s.term.now.opts.Note), Since: s.term.now.since,
		Remaining: time.Until(s.term.trusted), Waiters: s.queue.Len(), Here: true,
	}
}

// leave takes an attempt whose context ended out of the queue. A turn that came at
// the same time is passed on: no waiter may wait for a free lock. last is the
// obstacle when the wait began.
func (a *attempt) leave(s *local, place *list.Element, last error) error {
	c := a.client
	c.mu.Lock()
	defer c.mu.Unlock()
	last = cmp.Or(s.obstacle(), last)
	select {
	case t := <-a.turn:
		switch {
		case t.lease != nil:
			c.giveBack(t.lease)
		case t.err == nil:
			c.lead(s)
		}
	default:
		s.queue.Remove(place)
		c.tidy(s)
	}
	return obstacle.With(a.wait.Err(), last)
}

// giveBack releases a lease that came when its taker had left; nil: there is none. The caller holds mu.
func (c *Client) giveBack(l *Lease) {
	if l == nil {
		return
	}
	l.term.now.opts.MinHold = 0 // no holder ever had it
	go l.Release(c.alive)       // reported to Hooks; at the worst it lapses by itself
}

// stands notes the obstacle of q, the inquiry of a, and reports it to those that
// wait for it.
func (a *attempt) stands(s *local, q *inquiry, obstacle error) {
	c := a.client
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.asking != q { // it is over
		return
	}
	held, _ := errors.AsType[*HeldError](obstacle)
	if held != nil {
		if err := a.crowded(held, held.Waiters); err != nil {
			q.cancel(err)
			return // the next attempt asks for itself
		}
	}
	q.tell(obstacle)
	a.meet(obstacle)
	s.meet(obstacle)
}

// meet tells those in the queue, who stand behind the one that asks, what stands in the way. Those leave for whom too
// many wait. The caller holds mu.
func (s *local) meet(obstacle error) {
	held, _ := errors.AsType[*HeldError](obstacle)
	ahead := 1
	for e := s.queue.Front(); e != nil; {
		w, place := e.Value.(*attempt), e
		e = e.Next()
		if held != nil {
			if err := w.crowded(held, held.Waiters+ahead); err != nil {
				s.queue.Remove(place)
				w.turn <- turn{err: err}
				continue
			}
		}
		ahead++
		w.meet(obstacle)
	}
}

// successor returns the attempt that may have t next without asking the service, or nil. There
// is none where the lock is lost or kept for MinHold, where another process may adopt it, or
// where the attempt wants another TTL or note, or a lease that can be adopted. Other clients
// get their turn when the grant's tokens or its share of time are used up. And trust must be
// left: half of what was granted and, for an attempt that does not renew soon, half of what it
// asked for. The caller holds mu.
func (t *term) successor(now time.Time) *attempt {
	next := t.local.queue.Front()
	if next == nil {
		return nil
	}
	w, ttl, left := next.Value.(*attempt), t.grant.TTL, clock.Until(t.keptUntil, now)
	if w.line != nil && !w.line.dress(w) {
		return nil
	}
	switch {
	case t.stopping, t.keep(now) > 0, driver.IsAdoptable(t.grant.Owner):
	case t.passed+1 >= t.grant.Block:
	case now.Sub(t.taken) >= handOverMost:
	case w.opts.TTL != t.asked:
	case w.opts.Note != t.now.opts.Note, w.opts.Adoptable:
	case left <= t.given/2, !w.opts.renewsSoon() && left-w.opts.Margin <= (ttl-w.opts.Margin)/2:
	default:
		if w.line == nil { // that of a line stays for the next in it
			t.local.queue.Remove(next)
		}
		return w.taker()
	}
	return nil
}

// handOver ends t's present holder and gives t to w. The caller holds mu.
func (t *term) handOver(w *attempt, now time.Time) followUp {
	e := t.part(nil, now)
	for _, l := range t.now.holds {
		l.done = true
	}
	e.rest = append(e.rest, t.leaveRest(now)...)
	t.passed++
	next := t.begin(w, now)
	if e.event.Key != "" {
		t.client.events.released(e.event) // now, as the next may end before the caller tells of e
		e.event = ReleasedEvent{}
	}
	if !w.inner {
		t.client.events.acquired(AcquiredEvent{
			Context: w.ctx, Key: t.givenKey(), Owner: next.owner, Token: next.token, Waited: now.Sub(w.since), Told: w.told, HandOver: true,
		})
		w.told = false // its context may end before it sees the lease: then it fails
	}
	w.turn <- turn{lease: next}
	return e
}
