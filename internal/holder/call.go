package holder

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// Call is one call for a lease, or one of several requests that serve such a call. Keeper.Run prepares it.
type Call struct {
	Options
	Context context.Context // values of the caller's context without its end, for the lease; set by Run
	Wait    context.Context // ends the wait
	Outer   *Hold           // the hold that the caller's context comes from, of any key; nil: none
	Key     string
	Kind    Kind  // use of the key; nil: a plain lock
	Place   Place // the lock to acquire, as a place of a key; zero: it is no place
	NoWait  bool  // fail if the lock is held
	Silent  bool  // send no Failed event

	// Admitted reports that MaxWaiters allows the call to wait, now and later. Keeper.mu guards it while the
	// call waits.
	Admitted bool

	keeper       *Keeper
	parent       *Call       // the call that this one serves, whose caller gets the events of the wait; nil: itself
	line         *line       // the line for which the call acquires a place; nil: for itself
	request      requestSpec // of a line: the request for its first caller
	since        time.Time
	isPart       bool      // acquires a part of a lease, and sends no events
	waitReported bool      // a Waiting event was sent, but no event of the end of the wait; Keeper.mu guards it while the call waits
	turn         chan turn // receives one turn while the call is in a queue
}

// Kind is the kind of a lock with several slots: semaphore, reader or writer. Values must be comparable.
type Kind interface {
	// Places returns the number of locks that belong to the key, in addition to its own.
	Places() int
	// NoteAt returns the note for the lock on a place. It includes the caller's note.
	NoteAt(place int, note string) string
}

// NewPart returns a call for the lock on key as a part of a. MaxHold and MinHold apply to the whole lease, once
// all its parts are held.
func (a *Call) NewPart(wait context.Context, key string) *Call {
	p := *a
	p.parent, p.isPart, p.Silent = a, true, true
	p.Key, p.Wait = key, wait
	p.MaxHold, p.MinHold = 0, 0
	return &p
}

// Acquire acquires the lock on a.Key, first in this process and then at the service.
func (a *Call) Acquire() (*Hold, error) {
	for {
		if err := a.Wait.Err(); err != nil {
			return nil, err
		}
		e, err := a.enterLock()
		switch {
		case err != nil:
			return nil, err
		case e.place != nil:
			return a.awaitTurn(e)
		case e.known == nil:
			return a.askService(e.lock)
		}
		if err := a.awaitObstacle(e); err != nil {
			return nil, err
		}
	}
}

// entry is the role of a call at its lock.
type entry struct {
	lock     *lock
	place    *list.Element // in the queue of the lock; nil: the call is not queued
	obstacle error         // obstacle of the call; nil: unknown
	known    <-chan struct{}
	inquiry  *inquiry // inquiry of another caller, which closes known at the next obstacle; nil: this call asks the service
}

// enterLock decides the role of a at its lock: a asks the service, waits in the queue or, if it does not wait
// for a holder, waits for the obstacle of another caller's inquiry.
func (a *Call) enterLock() (e entry, err error) {
	k := a.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ending {
		return e, driver.ErrClosed
	}
	s := k.getLockLocked(a.Key)
	if !s.isTakenLocked() {
		s.startInquiryLocked()
		return entry{lock: s}, nil
	}
	last := s.currentObstacleLocked()
	switch {
	case a.NoWait && last != nil:
		return e, last
	case a.NoWait:
		return entry{lock: s, inquiry: s.asking, known: s.asking.updatedLocked()}, nil
	}
	if err := a.checkMaxWaitersLocked(last, s.waiterCountLocked()); err != nil {
		return e, err
	}
	e = entry{lock: s, place: s.joinLocked(a), obstacle: last}
	if last != nil {
		a.reportObstacleLocked(last)
	}
	return e, nil
}

// awaitObstacle waits for the next obstacle, or for the end, of another caller's inquiry. It returns the
// obstacle, or nil if there is none.
func (a *Call) awaitObstacle(e entry) error {
	select {
	case <-e.known:
	case <-a.Wait.Done():
		return a.Wait.Err()
	}
	a.keeper.mu.Lock()
	defer a.keeper.mu.Unlock()
	return e.inquiry.obstacle
}

// awaitTurn waits behind the other waiters of this process.
func (a *Call) awaitTurn(e entry) (*Hold, error) {
	select {
	case t := <-a.turn:
		if t.hold != nil || t.err != nil {
			return t.hold, t.err
		}
		h, err := a.askService(e.lock)
		return h, driverkit.WithObstacle(err, e.obstacle)
	case <-a.Wait.Done():
		return nil, a.leaveQueue(e)
	}
}

// leaveQueue removes a call whose context ended from the queue. If its turn came at the same time, it passes
// the turn on, so that no waiter waits for a free lock.
func (a *Call) leaveQueue(e entry) error {
	k, s := a.keeper, e.lock
	k.mu.Lock()
	defer k.mu.Unlock()
	last := cmp.Or(s.currentObstacleLocked(), e.obstacle)
	select {
	case t := <-a.turn:
		switch {
		case t.hold != nil:
			k.returnHoldLocked(t.hold)
		case t.err == nil:
			k.askNextLocked(s)
		}
	default:
		s.queue.Remove(e.place)
		k.forgetIfIdleLocked(s)
	}
	return driverkit.WithObstacle(a.Wait.Err(), last)
}

// returnHoldLocked releases a hold whose caller has left. h may be nil.
func (k *Keeper) returnHoldLocked(h *Hold) {
	if h == nil {
		return
	}
	h.term.user.MinHold = 0 // it had no holder
	go h.Release(k.alive)   // a failure is an event; then the lock expires with its TTL
}

// KeepFirst returns the first hold in all that is not nil, and releases the others, because their call needs
// one.
func (k *Keeper) KeepFirst(all []*Hold) (first *Hold) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, h := range all {
		if first == nil {
			first = h
		} else {
			k.returnHoldLocked(h)
		}
	}
	return first
}

// askService acquires the lock at the service. s.asking is already the inquiry of this call.
func (a *Call) askService(s *lock) (*Hold, error) {
	k := a.keeper
	asking, cancel := context.WithCancelCause(a.Wait)
	defer cancel(nil)
	q := s.asking // only this call changes it
	if err := a.beginAsking(s, cancel); err != nil {
		return nil, err
	}
	grant, err := k.drv.Acquire(asking, driver.Request{
		Key: s.key, TTL: a.TTL, NoWait: a.NoWait, WillRenew: a.RenewsSoon() && !k.isStarved(time.Now()), Adoptable: a.Adoptable,
		Holder:     k.selfWithNote(a.Note),
		OnObstacle: func(err error) { a.noteObstacle(s, q, err) },
	})
	if err != nil {
		return nil, k.failAsking(asking, s, err)
	}
	return a.startLease(s, grant, time.Now())
}

// beginAsking registers cancel for s.asking, the inquiry of this call. StopAcquiring calls cancel and waits
// for the end of the inquiry. A line calls cancel when another caller becomes its first.
func (a *Call) beginAsking(s *lock, cancel context.CancelCauseFunc) error {
	k := a.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ending {
		k.askNextLocked(s)
		return driver.ErrClosed
	}
	if q := a.line; q != nil {
		if !q.copyFirstOptionsLocked(a) {
			k.askNextLocked(s)
			return q.wait.Err()
		}
		place := &q.places[a.Place.Number]
		place.request, place.cancel = a.request, cancel
	}
	s.asking.cancel = cancel
	return nil
}

// noteObstacle stores the obstacle of q, the inquiry of a, and reports it to the waiting callers.
func (a *Call) noteObstacle(s *lock, q *inquiry, obstacle error) {
	a.keeper.mu.Lock()
	defer a.keeper.mu.Unlock()
	if s.asking != q { // q has ended
		return
	}
	held, _ := errors.AsType[*driver.HeldError](obstacle)
	if held != nil {
		if err := a.checkMaxWaitersLocked(held, held.Waiters); err != nil {
			q.cancel(err)
			return // the next call asks the service itself
		}
	}
	q.publishLocked(obstacle)
	a.reportObstacleLocked(obstacle)
	s.reportLocked(obstacle)
}

// failAsking ends an inquiry of s that failed with err. It returns err with the last obstacle, or the cause
// with which the context of the inquiry was cancelled.
func (k *Keeper) failAsking(asking context.Context, s *lock, err error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	q := s.asking
	q.publishLocked(driverkit.ObstacleIn(err))
	k.askNextLocked(s)
	if cause := context.Cause(asking); errors.Is(cause, driver.ErrClosed) || errors.Is(cause, driver.ErrHeld) || errors.Is(cause, errOtherRequest) {
		return cause
	}
	return driverkit.WithObstacle(err, q.obstacle)
}

// startLease turns a grant into a lease for the receiver of a, and ends the inquiry of s.
func (a *Call) startLease(s *lock, grant driver.Grant, taken time.Time) (*Hold, error) {
	h, err := a.createHold(s, grant, taken)
	if err != nil {
		h.Release(context.Background()) // a failure is reported as an event
		return nil, err
	}
	return h, nil
}

// createHold does the work of startLease. After an error it returns a hold that the caller has to release.
func (a *Call) createHold(s *lock, grant driver.Grant, taken time.Time) (*Hold, error) {
	k := a.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	s.endInquiryLocked()
	t := &term{keeper: k, lock: s, grant: grant, asked: a.TTL, taken: taken, renewedAt: taken, keptUntil: grant.TrustedUntil, index: unscheduled}
	t.grantedFor = pace.Until(t.keptUntil, taken)
	s.term = t
	w := a.receiverLocked()
	h := t.beginLocked(cmp.Or(w, a), taken)
	if k.ending || w == nil {
		t.user.MinHold = 0 // no caller gets it
		if k.ending {
			return h, driver.ErrClosed
		}
		return h, cmp.Or(a.Wait.Err(), errOtherRequest)
	}
	if !w.isPart {
		k.events.Acquired(Acquired{
			Context: w.Context, Key: t.givenKeyLocked(), Owner: h.owner, Token: h.token, Waited: taken.Sub(w.since), WaitReported: w.waitReported,
		})
	}
	if w != a {
		w.waitReported = false // its context may end before it sees the lease; then the call fails and releases the lease
		w.turn <- turn{hold: h}
	}
	return h, nil
}

// errAskedConcurrently is the obstacle of an Adopt while another call of this client waits for an answer of the
// service.
var errAskedConcurrently error = &driver.UnavailableError{Err: errors.New("this client is asking for the lock at the same time")}

// Adopt takes the lock over from grant, which another client holds.
func (a *Call) Adopt(adopter driver.Adopter, grant driver.Grant) (*Hold, error) {
	asking, cancel := context.WithCancelCause(a.Wait)
	defer cancel(nil)
	s, err := a.keeper.beginAdopting(a.Key, cancel)
	if err != nil {
		return nil, err
	}
	adopted, err := adopter.Adopt(asking, grant)
	if err != nil {
		return nil, a.keeper.failAsking(asking, s, err)
	}
	return a.startLease(s, adopted, a.since)
}

// beginAdopting starts the inquiry of key, unless another caller has one. It registers cancel as beginAsking
// does.
func (k *Keeper) beginAdopting(key string, cancel context.CancelCauseFunc) (*lock, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ending {
		return nil, driver.ErrClosed
	}
	s := k.getLockLocked(key)
	if s.isTakenLocked() {
		return nil, cmp.Or(s.currentObstacleLocked(), errAskedConcurrently)
	}
	s.startInquiryLocked()
	s.asking.cancel = cancel
	return s, nil
}
