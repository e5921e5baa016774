package holder

import (
	"errors"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
)

// A waiter may leave, or StopAcquiring may dismiss it, just when its turn comes. Then no call uses the key.
func TestObstacleIsNilWithoutWaiters(t *testing.T) {
	t.Parallel()
	if err := (&lock{}).currentObstacleLocked(); err != nil {
		t.Errorf("obstacle = %v", err)
	}
}

// receivedTurn returns the turn of a call, if it has received one.
func receivedTurn(a *Call) (turn, bool) {
	select {
	case t := <-a.turn:
		return t, true
	default:
		return turn{}, false
	}
}

func TestWaitersAskInOrderOfArrival(t *testing.T) {
	t.Parallel()
	var w waitlist
	w.startInquiryLocked()
	w.asking.obstacle = driver.ErrUnavailable
	first, second := &Call{}, &Call{}
	w.joinLocked(first)
	w.joinLocked(second)
	w.passInquiryLocked()
	if got, ok := receivedTurn(first); !ok || got.err != nil || got.hold != nil {
		t.Errorf("first waiter: %v, %v; want it to ask the service", got, ok)
	}
	if _, ok := receivedTurn(second); ok {
		t.Error("two waiters ask the service at once")
	}
	if !errors.Is(w.asking.obstacle, driver.ErrUnavailable) {
		t.Errorf("obstacle = %v; want the last one until a newer one is known", w.asking.obstacle)
	}
	w.passInquiryLocked()
	if _, ok := receivedTurn(second); !ok {
		t.Error("the second waiter does not ask the service")
	}
	if w.passInquiryLocked(); w.asking != nil {
		t.Error("inquiry of an unused key")
	}
}

func TestWaiterBeyondMaxWaitersLeavesQueue(t *testing.T) {
	t.Parallel()
	k := &Keeper{events: &recorder{}}
	var w waitlist
	var all []*Call
	for _, bound := range []int{2, 2, 0} { // one call asks, and one waits in another process
		a := &Call{Options: Options{MaxWaiters: bound}, keeper: k}
		w.joinLocked(a)
		all = append(all, a)
	}
	w.reportLocked(&driver.HeldError{Waiters: 0})
	if _, ok := receivedTurn(all[0]); ok {
		t.Error("a waiter with one ahead and MaxWaiters 2 was rejected")
	}
	if got, ok := receivedTurn(all[1]); !ok || !errors.Is(got.err, driver.ErrHeld) {
		t.Errorf("a waiter with two ahead and MaxWaiters 2: %v, %v; want ErrHeld", got, ok)
	}
	w.reportLocked(&driver.HeldError{Waiters: 50}) // later waiters end no wait
	if n := w.queue.Len(); n != 2 {
		t.Errorf("%d callers wait, want 2", n)
	}
}
