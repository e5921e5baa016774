package holder

import (
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// maxHandOverTime bounds the time that a grant serves the waiters of this process before other clients get
// their turn.
const maxHandOverTime = 100 * time.Millisecond

// lock is one key in this process: its term, if it is held, and the waiting calls.
type lock struct {
	key  string
	term *term // nil: this process does not hold the lock
	waitlist
}

func (s *lock) isTakenLocked() bool { return s.term != nil || s.asking != nil }

// currentObstacleLocked returns the obstacle of calls in this process; nil: unknown, or none.
func (s *lock) currentObstacleLocked() error {
	switch {
	case s.asking != nil:
		return s.asking.obstacle
	case s.term == nil:
		return nil
	}
	return &driver.HeldError{
		Owner: s.term.grant.Owner, Holder: s.term.keeper.selfWithNote(s.term.user.Note), Since: s.term.user.since,
		Remaining: time.Until(s.term.trusted), Waiters: s.queue.Len(), SameClient: true,
	}
}

// waiterCountLocked returns the known number of waiters for the lock.
func (s *lock) waiterCountLocked() int {
	n := s.queue.Len()
	switch {
	case s.term != nil:
		n += s.term.waiters
	case s.asking != nil:
		if held, ok := errors.AsType[*driver.HeldError](s.asking.obstacle); ok { // the call that asks waits as well
			n += 1 + held.Waiters
		}
	}
	return n
}

// successorLocked returns the call that may get t next without asking the service, or nil. It returns nil if
// the lock is lost or kept for MinHold, if another process may adopt it, or if the next call wants another TTL
// or note, or an adoptable lease. It also returns nil when the tokens of the grant or its share of time are
// used up, so that other clients get their turn. And enough trust must be left: half of the granted time and,
// for a call that does not renew soon, half of its requested time.
func (t *term) successorLocked(now time.Time) *Call {
	next := t.lock.queue.Front()
	if next == nil {
		return nil
	}
	a, ttl, left := next.Value.(*Call), t.grant.TTL, pace.Until(t.keptUntil, now)
	if a.line != nil && !a.line.copyFirstOptionsLocked(a) {
		return nil
	}
	switch {
	case t.stopping, t.keepAfterReleaseLocked(now) > 0, driver.IsAdoptable(t.grant.Owner):
	case t.handOvers+1 >= t.grant.Block:
	case now.Sub(t.taken) >= maxHandOverTime:
	case a.TTL != t.asked:
	case a.Note != t.user.Note, a.Adoptable:
	case left <= t.grantedFor/2, !a.RenewsSoon() && left-a.Margin <= (ttl-a.Margin)/2:
	default:
		if a.line == nil { // the call of a line stays, for the next caller
			t.lock.queue.Remove(next)
		}
		return a.receiverLocked()
	}
	return nil
}

// handOverLocked ends the hold of t's present user and gives t to a.
func (t *term) handOverLocked(a *Call, now time.Time) followUp {
	e := t.endHoldsLocked(nil, now)
	for _, h := range t.user.holds {
		h.ended = true
	}
	e.others = append(e.others, t.releasePlacesLocked(now)...)
	t.handOvers++
	next := t.beginLocked(a, now)
	if e.event.Key != "" {
		t.keeper.events.Released(e.event) // sent now, because the next holder may release before the caller sends e
		e.event = Released{}
	}
	if !a.isPart {
		t.keeper.events.Acquired(Acquired{
			Context: a.Context, Key: t.givenKeyLocked(), Owner: next.owner, Token: next.token, Waited: now.Sub(a.since), WaitReported: a.waitReported, HandOver: true,
		})
		a.waitReported = false // its context may end before it sees the lease; then the call fails
	}
	a.turn <- turn{hold: next}
	return e
}
