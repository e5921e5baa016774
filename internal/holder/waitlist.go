package holder

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/driver"
)

// waitlist orders the calls for one key in this process, first come first served. Only one of them asks the service, and the
// others wait behind it. It knows neither leases nor the service. Keeper.mu guards it.
type waitlist struct {
	asking *inquiry  // of the call that asks the service, or of a release; nil: there is none
	queue  list.List // of *Call, first come first
}

// inquiry is the request of one call to the service, and the news that the other calls get of it.
type inquiry struct {
	cancel   context.CancelCauseFunc // nil: it has not begun
	obstacle error                   // the last obstacle; nil: none is known
	known    chan struct{}           // closed when there is an obstacle or it is over; nil: no goroutine waits for that
}

// turn ends the wait of a call in a queue.
type turn struct {
	hold *Hold // with the lock; nil: the call asks the service
	err  error
}

// publishLocked reports the obstacle or, with nil, that the inquiry is over.
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

// startInquiryLocked lets the caller, or a waiter, ask the service.
func (w *waitlist) startInquiryLocked() { w.asking = &inquiry{} }

// endInquiryLocked ends the inquiry: it has an answer.
func (w *waitlist) endInquiryLocked() {
	if w.asking != nil {
		w.asking.publishLocked(nil)
	}
	w.asking = nil
}

// passInquiryLocked ends the inquiry and lets the first waiter ask the service, if there is one. The last obstacle counts until
// there is a newer one.
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

// cancelInquiryLocked ends the request to the service for cause.
func (w *waitlist) cancelInquiryLocked(cause error) {
	if w.asking != nil && w.asking.cancel != nil {
		w.asking.cancel(cause)
	}
}

// joinLocked puts a at the end of the queue.
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

// reportLocked reports the obstacle to the waiters in the queue, behind the call that asks. A waiter leaves if too many are before it.
func (w *waitlist) reportLocked(obstacle error) {
	reportToQueueLocked(&w.queue, obstacle, 1, func(a *Call) { a.reportObstacleLocked(obstacle) })
}

// reportToQueueLocked calls report for the calls in the queue. Those that have more before them than they allow end with an error:
// ahead, the waiters whom the obstacle names, and the calls that stay.
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

// checkMaxWaitersLocked returns the error of a if others, the number of waiters before it, reaches its MaxWaiters. It counts
// once, at the first answer: waiters that come later do not end the wait of a.
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

// reportWaitingLocked sends a Waiting event, once, for the caller of a, which waits for the holder of the lock on key.
func (a *Call) reportWaitingLocked(key string, obstacle error) {
	caller := cmp.Or(a.parent, a)
	if held, ok := errors.AsType[*driver.HeldError](obstacle); ok && held != nil && !caller.told {
		caller.told = true
		if caller != a {
			a.keeper.events.Met(caller.Kind, caller.Key, held)
		}
		a.keeper.events.Waiting(Waiting{Context: a.Context, Key: caller.Key, Lock: key, Held: held})
	}
}

// reportObstacleLocked reports the obstacle to the callers that a asks for.
func (a *Call) reportObstacleLocked(obstacle error) {
	if a.line != nil {
		a.line.noteObstacleLocked(a.Place.Number, obstacle)
		return
	}
	a.reportWaitingLocked(a.Key, obstacle)
}
