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

// maxHandOverTime bounds how long a grant serves the waiters of this process
// before the other clients get their turn.
const maxHandOverTime = 100 * time.Millisecond

// Waiters of one process queue in the localLock of their key, first come first, and the first
// alone asks the service. A lease may pass to the next of them without the service:
// term.successor says when.

// localLock is one key in this process: the attempt that holds it or asks the service
// for it, and the attempts that wait behind. Only one of them asks the service.
type localLock struct {
	key    string
	term   *term     // the grant held; nil: none
	asking *inquiry  // of the caller that asks the service, or releases; nil: there is none
	queue  list.List // of *attempt, first come first
}

// inquiry is one caller's request to the service, and what the other callers
// learn of it. Client.mu guards it.
type inquiry struct {
	cancel   context.CancelCauseFunc // nil: it has not begun
	obstacle error                   // the last obstacle; nil: none is known yet
	known    chan struct{}           // closed when there is an obstacle or it is over; nil: no goroutine waits for that
}

// publish reports the obstacle, or, with nil, that the inquiry is over.
func (q *inquiry) publish(obstacle error) {
	if obstacle != nil {
		q.obstacle = obstacle
	}
	if q.known != nil {
		close(q.known)
		q.known = nil
	}
}

// updated returns a channel that is closed with the next tell.
func (q *inquiry) updated() <-chan struct{} {
	if q.known == nil {
		q.known = make(chan struct{})
	}
	return q.known
}

// turn ends the wait of a waiter in the queue.
type turn struct {
	lease *Lease // with the lock; nil: the waiter asks the service
	err   error
}

// lockFor returns the localLock of key. The caller holds mu.
func (c *Client) lockFor(key string) *localLock {
	s := c.locks[key]
	if s == nil {
		s = &localLock{key: key}
		c.locks[key] = s
	}
	return s
}

func (s *localLock) isTaken() bool { return s.term != nil || s.asking != nil }

// startInquiry lets the caller, or a waiter, ask the service. The caller holds mu.
func (s *localLock) startInquiry() { s.asking = &inquiry{} }

// endInquiry ends the inquiry: it has an answer. The caller holds mu.
func (s *localLock) endInquiry() {
	if s.asking != nil {
		s.asking.publish(nil)
	}
	s.asking = nil
}

// forgetIfIdle removes a localLock that no attempt uses. The caller holds mu.
func (c *Client) forgetIfIdle(s *localLock) {
	if s.isTaken() || s.queue.Len() > 0 {
		return
	}
	delete(c.locks, s.key)
	if c.ending && len(c.locks) == 0 {
		close(c.vacant)
	}
}

// askNext lets the next waiter ask the service, if there is one. The caller holds mu.
func (c *Client) askNext(s *localLock) {
	last := s.asking
	s.endInquiry()
	if next := s.queue.Front(); next != nil {
		s.startInquiry()
		if last != nil { // it stands until there is a newer one
			s.asking.obstacle = last.obstacle
		}
		s.queue.Remove(next).(*attempt).turn <- turn{}
	}
	c.forgetIfIdle(s)
}

// dismissWaiters sends all waiters away. The caller holds mu.
func (s *localLock) dismissWaiters() {
	for e := s.queue.Front(); e != nil; e = s.queue.Front() {
		s.queue.Remove(e).(*attempt).turn <- turn{err: ErrClosed}
	}
}

// awaitObstacle waits for the next obstacle, or the end, of q, the inquiry of another
// caller, and returns the obstacle; nil: there is none. The caller holds mu, which
// awaitObstacle unlocks.
func (c *Client) awaitObstacle(wait context.Context, q *inquiry) error {
	known := q.updated()
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

// waiterCount returns the known number of waiters for the key of s. The caller holds mu.
func (s *localLock) waiterCount() int {
	n := s.queue.Len()
	switch {
	case s.term != nil:
		n += s.term.waiters
	case s.asking != nil:
		if held, ok := errors.AsType[*HeldError](s.asking.obstacle); ok { // and the caller that asks waits too
			n += 1 + held.Waiters
		}
	}
	return n
}

// checkMaxWaiters returns the error of a if others, the number of waiters before it, reaches its MaxWaiters. It counts
// once, at the first answer: waiters that come later do not end the wait of a. The caller holds mu.
func (a *attempt) checkMaxWaiters(obstacle error, others int) error {
	held, ok := errors.AsType[*HeldError](obstacle)
	if !ok || a.admitted {
		return nil
	}
	if a.opts.MaxWaiters == 0 || others < a.opts.MaxWaiters {
		a.admitted = true
		return nil
	}
	full := *held
	full.Waiters = others
	return fmt.Errorf("%d wait for it already, and MaxWaiters is %d: %w", others, a.opts.MaxWaiters, &full)
}

// reportWaiting sends a WaitingEvent, once, for the caller of a, which waits for the holder of lock. The caller holds mu.
func (a *attempt) reportWaiting(lock string, obstacle error) {
	caller := cmp.Or(a.parent, a)
	if held, ok := errors.AsType[*HeldError](obstacle); ok && held != nil && !caller.waitTold {
		caller.waitTold = true
		if caller != a {
			caller.reportDiffering(held)
		}
		a.client.events.waiting(WaitingEvent{Context: a.ctx, Key: caller.key, Lock: lock, Held: held})
	}
}

// reportObstacle reports the obstacle to the callers that a asks for. The caller holds mu.
func (a *attempt) reportObstacle(obstacle error) {
	if a.slotQueue != nil {
		a.slotQueue.noteObstacle(a.slot.number, obstacle)
		return
	}
	a.reportWaiting(a.key, obstacle)
}

// currentObstacle returns the obstacle of a key in this process; nil: there is none, or it is still unknown. The caller holds mu.
func (s *localLock) currentObstacle() error {
	switch {
	case s.asking != nil:
		return s.asking.obstacle
	case s.term == nil:
		return nil
	}
	return &HeldError{
		Owner: s.term.grant.Owner, Holder: s.term.client.holderWithNote(s.term.holder.opts.Note), Since: s.term.holder.since,
		Remaining: time.Until(s.term.trusted), Waiters: s.queue.Len(), Here: true,
	}
}

// leaveQueue takes an attempt whose context ended out of the queue. A turn that came at
// the same time is passed on: no waiter may wait for a free lock. last is the
// obstacle at the start of the wait.
func (a *attempt) leaveQueue(s *localLock, place *list.Element, last error) error {
	c := a.client
	c.mu.Lock()
	defer c.mu.Unlock()
	last = cmp.Or(s.currentObstacle(), last)
	select {
	case t := <-a.turn:
		switch {
		case t.lease != nil:
			c.returnLease(t.lease)
		case t.err == nil:
			c.askNext(s)
		}
	default:
		s.queue.Remove(place)
		c.forgetIfIdle(s)
	}
	return obstacle.With(a.wait.Err(), last)
}

// returnLease releases a lease whose receiver has left; l may be nil. The caller holds mu.
func (c *Client) returnLease(l *Lease) {
	if l == nil {
		return
	}
	l.term.holder.opts.MinHold = 0 // no holder ever had it
	go l.Release(c.alive)          // reported to Hooks; at the worst it lapses by itself
}

// noteObstacle stores the obstacle of q, the inquiry of a, and reports it to the callers that wait for it.
func (a *attempt) noteObstacle(s *localLock, q *inquiry, obstacle error) {
	c := a.client
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.asking != q { // it is over
		return
	}
	held, _ := errors.AsType[*HeldError](obstacle)
	if held != nil {
		if err := a.checkMaxWaiters(held, held.Waiters); err != nil {
			q.cancel(err)
			return // the next attempt asks the service itself
		}
	}
	q.publish(obstacle)
	a.reportObstacle(obstacle)
	s.reportToQueue(obstacle)
}

// reportToQueue reports the obstacle to the waiters in the queue, behind the caller that asks. A waiter leaves if too many
// are before it. The caller holds mu.
func (s *localLock) reportToQueue(obstacle error) {
	held, _ := errors.AsType[*HeldError](obstacle)
	ahead := 1
	for e := s.queue.Front(); e != nil; {
		w, place := e.Value.(*attempt), e
		e = e.Next()
		if held != nil {
			if err := w.checkMaxWaiters(held, held.Waiters+ahead); err != nil {
				s.queue.Remove(place)
				w.turn <- turn{err: err}
				continue
			}
		}
		ahead++
		w.reportObstacle(obstacle)
	}
}

// successor returns the attempt that may have t next without asking the service, or nil. There
// is none where the lock is lost or kept for MinHold, where another process may adopt it, or
// where the attempt wants another TTL or note, or a lease that can be adopted. Other clients
// get their turn when the grant's tokens or its share of time are used up. And trust must be
// left: half of what was granted and, for an attempt that does not renew soon, half of what it
// asked for. The caller holds mu.
func (t *term) successor(now time.Time) *attempt {
	next := t.lock.queue.Front()
	if next == nil {
		return nil
	}
	w, ttl, left := next.Value.(*attempt), t.grant.TTL, clock.Until(t.keptUntil, now)
	if w.slotQueue != nil && !w.slotQueue.copyFirstOptions(w) {
		return nil
	}
	switch {
	case t.stopping, t.keepAfterRelease(now) > 0, driver.IsAdoptable(t.grant.Owner):
	case t.handOvers+1 >= t.grant.Block:
	case now.Sub(t.taken) >= maxHandOverTime:
	case w.opts.TTL != t.asked:
	case w.opts.Note != t.holder.opts.Note, w.opts.Adoptable:
	case left <= t.grantedFor/2, !w.opts.renewsSoon() && left-w.opts.Margin <= (ttl-w.opts.Margin)/2:
	default:
		if w.slotQueue == nil { // the attempt of a slot queue stays for its next caller
			t.lock.queue.Remove(next)
		}
		return w.receiver()
	}
	return nil
}

// handOver ends t's present holder and gives t to w. The caller holds mu.
func (t *term) handOver(w *attempt, now time.Time) followUp {
	e := t.endHolds(nil, now)
	for _, l := range t.holder.holds {
		l.ended = true
	}
	e.others = append(e.others, t.leavePlaces(now)...)
	t.handOvers++
	next := t.begin(w, now)
	if e.event.Key != "" {
		t.client.events.released(e.event) // now, as the next may end before the caller tells of e
		e.event = ReleasedEvent{}
	}
	if !w.isPart {
		t.client.events.acquired(AcquiredEvent{
			Context: w.ctx, Key: t.givenKey(), Owner: next.owner, Token: next.token, Waited: now.Sub(w.since), Told: w.waitTold, HandOver: true,
		})
		w.waitTold = false // its context may end before it sees the lease: then it fails
	}
	w.turn <- turn{lease: next}
	return e
}
