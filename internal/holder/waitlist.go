package holder

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/driver"
)

// waitlist orders the calls for one key in this process, first come first served. One call asks the service,
// and the others wait behind it. waitlist knows neither leases nor the service. Keeper.mu guards it.
type waitlist struct {
	asking *inquiry  // of the call that asks the service, or of a release; nil: none
	queue  list.List // of *Call, in order of arrival
}

// inquiry is the request of one call to the service, and the obstacles that it reports to the other calls.
type inquiry struct {
	cancel   context.CancelCauseFunc // nil: it has not begun
	obstacle error                   // the last obstacle; nil: none is known
	known    chan struct{}           // closed at the next obstacle or the end of the inquiry; nil: no goroutine waits for that
}

// turn ends the wait of a call in a queue.
type turn struct {
	hold *Hold // with the lock; nil: the call asks the service now
	err  error
}

// publishLocked reports the obstacle or, with nil, the end of the inquiry.
func (q *inquiry) publishLocked(obstacle error) {
	if obstacle != nil {
		q.obstacle = obstacle
	}
	if q.known != nil {
		close(q.known)
		q.known = nil
	}
}

// updatedLocked returns a channel that the next publishLocked closes.
func (q *inquiry) updatedLocked() <-chan struct{} {
	if q.known == nil {
		q.known = make(chan struct{})
	}
	return q.known
}

// startInquiryLocked begins an inquiry, of the caller or of a waiter.
func (w *waitlist) startInquiryLocked() { w.asking = &inquiry{} }

// endInquiryLocked ends the inquiry after its answer.
func (w *waitlist) endInquiryLocked() {
	if w.asking != nil {
		w.asking.publishLocked(nil)
	}
	w.asking = nil
}

// passInquiryLocked ends the inquiry and lets the first waiter, if there is one, ask the service. The last
// obstacle counts until there is a newer one.
func (w *waitlist) passInquiryLocked() {
	last := w.asking
	w.endInquiryLocked()
	next := w.queue.Front()
	if next == nil {
		return
	}
	w.startInquiryLocked()
	if last != nil {
		w.asking.obstacle = last.obstacle
	}
	w.queue.Remove(next).(*Call).turn <- turn{}
}

// cancelInquiryLocked cancels the request to the service, with cause.
func (w *waitlist) cancelInquiryLocked(cause error) {
	if w.asking != nil && w.asking.cancel != nil {
		w.asking.cancel(cause)
	}
}

// joinLocked appends a to the queue.
func (w *waitlist) joinLocked(a *Call) *list.Element {
	a.turn = make(chan turn, 1)
	return w.queue.PushBack(a)
}

// dismissLocked ends all waits with err.
func (w *waitlist) dismissLocked(err error) {
	for e := w.queue.Front(); e != nil; e = w.queue.Front() {
		w.queue.Remove(e).(*Call).turn <- turn{err: err}
	}
}

// reportLocked reports the obstacle to the waiters in the queue, behind the call that asks. A waiter leaves if
// too many are ahead of it.
func (w *waitlist) reportLocked(obstacle error) {
	reportToQueueLocked(&w.queue, obstacle, 1, func(a *Call) { a.reportObstacleLocked(obstacle) })
}

// reportToQueueLocked calls report for the calls in the queue. A call that has more waiters ahead than it
// allows ends with an error. Waiters ahead are: the number ahead, the waiters that the obstacle counts, and
// the calls before it that stay.
func reportToQueueLocked(queue *list.List, obstacle error, ahead int, report func(*Call)) {
	held, _ := errors.AsType[*driver.HeldError](obstacle)
	for e := queue.Front(); e != nil; {
		a, place := e.Value.(*Call), e
		e = e.Next()
		if held != nil {
			if err := a.checkMaxWaitersLocked(held, held.Waiters+ahead); err != nil {
				queue.Remove(place)
				a.turn <- turn{err: err}
				continue
			}
		}
		ahead++
		report(a)
	}
}

// checkMaxWaitersLocked returns the error of a if others, the number of waiters ahead of it, reaches its
// MaxWaiters. It decides once, at the first answer: waiters that come later do not end the wait of a.
func (a *Call) checkMaxWaitersLocked(obstacle error, others int) error {
	held, ok := errors.AsType[*driver.HeldError](obstacle)
	if !ok || a.Admitted {
		return nil
	}
	if a.MaxWaiters == 0 || others < a.MaxWaiters {
		a.Admitted = true
		return nil
	}
	full := *held
	full.Waiters = others
	return fmt.Errorf("%d wait for it already, and MaxWaiters is %d: %w", others, a.MaxWaiters, &full)
}

// reportWaitingLocked sends a Waiting event, once, for the caller of a, which waits for the holder of the lock
// on key.
func (a *Call) reportWaitingLocked(key string, obstacle error) {
	caller := cmp.Or(a.parent, a)
	if held, ok := errors.AsType[*driver.HeldError](obstacle); ok && held != nil && !caller.waitReported {
		caller.waitReported = true
		if caller != a {
			a.keeper.events.ObstacleMet(caller.Kind, caller.Key, held)
		}
		a.keeper.events.Waiting(Waiting{Context: a.Context, Key: caller.Key, Lock: key, Held: held})
	}
}

// reportObstacleLocked reports the obstacle to the callers for which a asks.
func (a *Call) reportObstacleLocked(obstacle error) {
	if a.line != nil {
		a.line.noteObstacleLocked(a.Place.Number, obstacle)
		return
	}
	a.reportWaitingLocked(a.Key, obstacle)
}
