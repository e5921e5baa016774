package driverkit_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// errSilent is the error of a request without an answer.
var errSilent = &driver.UnavailableError{}

// newBusyLane returns a lane for one request, which is in progress until free is called.
func newBusyLane(states *driverkit.States) (l *driverkit.Lane, free func()) {
	l = driverkit.NewLane(states, 1)
	over := make(chan struct{})
	go l.Do(context.Background(), driverkit.Later, nil, func() error { <-over; return nil })
	synctest.Wait()
	return l, func() { close(over); synctest.Wait() }
}

func TestLaneServesInOrderOfArrival(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, free := newBusyLane(driverkit.NewStates("a"))
		var served []int
		ask := func(i int, rank driverkit.Rank) {
			go l.Do(t.Context(), rank, nil, func() error { served = append(served, i); return nil })
			synctest.Wait()
		}
		for i := range 3 {
			ask(i, driverkit.Later)
		}
		for i := 10; i < 16; i++ {
			ask(i, driverkit.Soon)
		}
		free()
		if want := []int{10, 11, 12, 0, 13, 14, 15, 1, 2}; !slices.Equal(served, want) {
			t.Errorf("served %v, want %v: urgent claims first, and the oldest every fourth time", served, want)
		}
	})
}

func TestCancelledLaneWaiterIsSkipped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, free := newBusyLane(driverkit.NewStates("a"))
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() {
			left <- l.Do(ctx, driverkit.Later, nil, func() error { t.Error("the cancelled waiter is still in the lane"); return nil })
		}()
		synctest.Wait()
		served := false
		go l.Do(t.Context(), driverkit.Later, nil, func() error { served = true; return nil })
		synctest.Wait()
		cancel()
		err := <-left
		if down, ok := errors.AsType[*driver.UnavailableError](err); !ok || len(down.Nodes) > 0 {
			t.Errorf("TakeTurn() = %v, want no node named", err)
		}
		free()
		if !served {
			t.Error("the next waiter did not get its turn")
		}
	})
}

// A waiter that received the lock confirms it without a turn.
func TestHandOverSkipsLaneQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, free := newBusyLane(driverkit.NewStates("a"))
		called, ran := make(chan struct{}, 1), make(chan struct{})
		go l.Do(t.Context(), driverkit.Soon, called, func() error { close(ran); return nil })
		called <- struct{}{}
		<-ran
		held := true
		go l.Do(t.Context(), driverkit.Later, nil, func() error { held = false; return nil })
		synctest.Wait()
		if !held {
			t.Error("the cancelled waiter gave up a turn that it never had")
		}
		free()
	})
}

func TestLaneErrorNamesDownNodes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		states := driverkit.NewStates("a", "b", "c")
		l, free := newBusyLane(states)
		defer free()
		states.Report(0, errors.New("refused"))
		states.Report(2, driverkit.StallError{Err: errors.New("silent")})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := l.Do(ctx, driverkit.Later, nil, nil)
		if down, ok := errors.AsType[*driver.UnavailableError](err); !ok || len(down.Nodes) != 2 {
			t.Errorf("TakeTurn() = %v, want two nodes down", err)
		}
	})
}

// Release waits as long as other requests get answers, and no longer.
func TestReleaseWaitsWhileLaneIsServed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		states, calls := driverkit.NewStates("a"), driverkit.NewCalls()
		l := driverkit.NewLane(states, 1)
		answer := func(err error) {
			l.Do(t.Context(), driverkit.Soon, nil, func() error { time.Sleep(time.Second); return err })
		}
		release := func(requests int, last error) (took time.Duration, err error) {
			for range requests {
				go answer(last)
				synctest.Wait()
			}
			begin := time.Now()
			err = calls.FinishRelease(t.Context(), states, l, func(begun func()) error {
				return l.Do(t.Context(), driverkit.Soon, nil, func() error { begun(); return nil })
			})
			return time.Since(begin), err
		}
		if took, err := release(10, nil); err != nil || took < 9*time.Second {
			t.Errorf("Release behind ten answered requests: %v after %v", err, took)
		}
		if took, err := release(10, errSilent); !errors.Is(err, driver.ErrUnavailable) || took > 3*time.Second {
			t.Errorf("Release behind ten unanswered requests: %v after %v", err, took)
		}
		time.Sleep(10 * time.Second) // until each has ended
		calls.Close()
	})
}

// Meanwhile another claim gets the turn.
func TestWaitForHolderFreesLane(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := driverkit.NewLane(driverkit.NewStates("a"), 1)
		free, served := make(chan struct{}), false
		held := func(context.Context) (*int, error) { return new(int), nil }
		go driverkit.TakeTurn(t.Context(), l, driver.Request{}, false, held, func(context.Context, *int) error { <-free; return driverkit.ErrRetryNow })
		synctest.Wait()
		err := driverkit.TakeTurn(t.Context(), l, driver.Request{}, false, func(context.Context) (*int, error) { served = true; return nil, nil },
			func(context.Context, *int) error { t.Error("the claim waited though it was first"); return nil })
		if err != nil || !served {
			t.Errorf("TakeTurn() = %v, served: %v", err, served)
		}
		close(free)
	})
}

func TestUrgentClaimComesBeforeOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, free := newBusyLane(driverkit.NewStates("a"))
		var served []string
		for _, name := range []string{"begins", "lapses"} {
			go driverkit.TakeTurn(t.Context(), l, driver.Request{}, name == "lapses", func(context.Context) (*int, error) {
				served = append(served, name)
				return nil, nil
			}, nil)
			synctest.Wait()
		}
		free()
		if want := []string{"lapses", "begins"}; !slices.Equal(served, want) {
			t.Errorf("served %v, want %v", served, want)
		}
	})
}

// The wait for a turn ends long before the wait of the caller.
func TestTryLeavesLaneAtItsTimeLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, free := newBusyLane(driverkit.NewStates("a"))
		defer free()
		begin, ttl := time.Now(), 10*time.Second
		err := driverkit.TakeTurn[int](t.Context(), l, driver.Request{TTL: ttl, NoWait: true}, false, nil, nil)
		if took := time.Since(begin); !errors.Is(err, driver.ErrUnavailable) || took != pace.RequestTime(ttl, pace.Members) {
			t.Errorf("TakeTurn() = %v after %v, want that it waits for the time of a request", err, took)
		}
	})
}
