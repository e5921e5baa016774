package engine

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/quorum"
)

// pauseTime returns the pause of a subscribed waiter whose lock holder has the lock for a long time.
func pauseTime(t *testing.T, e *Engine, manual []*manualNode, holder string) time.Duration {
	t.Helper()
	for n := range manual {
		e.SetSubscribed(n, true)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go e.Acquire(ctx, driver.Request{Key: "k", TTL: 10 * time.Second})
	for _, d := range manual {
		d.nextRequest(t, quorum.AskAcquire).Denied(int64(time.Hour), holder, 0)
	}
	synctest.Wait()
	since := time.Now()
	for _, d := range manual {
		d.nextRequest(t, quorum.AskAcquire).Denied(int64(time.Hour), holder, 0)
	}
	took := time.Since(since)
	cancel()
	synctest.Wait()
	for _, d := range manual {
		for len(d.in) > 0 {
			(<-d.in).Freed()
		}
	}
	return took
}

// A release by another library sends no wake-up.
func TestWaiterPollsSharedLockOften(t *testing.T) {
	const often, seldom = 105 * time.Millisecond, time.Second
	runWithManualNodes(t, func(t *testing.T, e *Engine, manual []*manualNode) {
		if d := pauseTime(t, e, manual, ownerID("a")); d < seldom {
			t.Errorf("behind another Holdfast client: pause %v", d)
		}
		for _, holder := range []string{"theirs", "(hash)", ""} {
			if d := pauseTime(t, e, manual, holder); d < 20*time.Millisecond || d > often {
				t.Errorf("behind %q: pause %v", holder, d)
			}
		}
		e.yields = new(yieldTable)
		if d := pauseTime(t, e, manual, ownerID("a")); d < 20*time.Millisecond || d > often {
			t.Errorf("on a shared lock: pause %v", d)
		}
	})
}

// handOverTime acquires a lock, holds it for the time held and releases it. It returns the time of the hand-over
// to the next waiter, in ns; 0: no hand-over.
func handOverTime(t *testing.T, e *Engine, manual []*manualNode, held time.Duration) int64 {
	t.Helper()
	g := acquireAll(t, e, manual)
	time.Sleep(held)
	out := make(chan error, 1)
	go func() { out <- e.Release(t.Context(), g, 0) }()
	var handOver int64
	for _, d := range manual {
		r := d.nextRequest(t, quorum.AskRelease)
		handOver = r.HandOver
		r.Freed()
	}
	if err := receiveSoon(t, out); err != nil {
		t.Fatal(err)
	}
	return handOver
}

func TestSharedLockIsReleasedRegularly(t *testing.T) {
	runWithManualNodes(t, func(t *testing.T, e *Engine, manual []*manualNode) {
		if handOverTime(t, e, manual, time.Second) == 0 {
			t.Error("a lock used only by Holdfast clients was not handed over")
		}
		e.yields = new(yieldTable)
		if handOverTime(t, e, manual, 0) == 0 {
			t.Error("an unused lock was not handed over")
		}
		if handOverTime(t, e, manual, yieldEvery) != 0 {
			t.Errorf("a lock used for %v was handed over", yieldEvery)
		}
		const tries = 100
		free := func() (n int) {
			for range tries {
				if handOverTime(t, e, manual, yieldEveryContended) == 0 {
					n++
				}
			}
			return n
		}
		if n := free(); n == 0 || n > tries/2 {
			t.Errorf("%d of %d times a lock used for %v was freed", n, tries, yieldEveryContended)
		}
		pauseTime(t, e, manual, "theirs")
		if n := free(); n != tries {
			t.Errorf("after another library used the lock: %d of %d times", n, tries)
		}
		time.Sleep(foreignMemory)
		if n := free(); n > tries/2 {
			t.Errorf("long after another library used the lock: %d of %d times", n, tries)
		}
	})
}

// A client that yields the lock leaves other programs time to acquire it.
func TestYieldingClientLetsOthersAcquire(t *testing.T) {
	runWithManualNodes(t, func(t *testing.T, e *Engine, manual []*manualNode) {
		e.yields = new(yieldTable)
		asks := func(req driver.Request, most time.Duration) (after time.Duration) {
			t.Helper()
			if handOverTime(t, e, manual, yieldEvery) != 0 {
				t.Fatal("the lock was handed over")
			}
			ctx, cancel := context.WithTimeout(t.Context(), most)
			defer cancel()
			req.TTL = 10 * time.Second
			since := time.Now()
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				e.Acquire(ctx, req)
			}()
			first := []*Request{<-manual[0].in, <-manual[1].in, <-manual[2].in}
			after = time.Since(since)
			for _, r := range first {
				r.Granted(1000)
			}
			<-ended
			return after
		}
		if d := asks(driver.Request{Key: "k"}, time.Hour); d < minHoldBack || d > maxHoldBack {
			t.Errorf("retried after %v, want %v to %v", d, minHoldBack, maxHoldBack)
		}
		if d := asks(driver.Request{Key: "k", NoWait: true}, time.Hour); d != 0 {
			t.Errorf("TryAcquire asked after %v", d)
		}
		if d := asks(driver.Request{Key: "another"}, time.Hour); d != 0 {
			t.Errorf("asked for another lock after %v", d)
		}
		if d := asks(driver.Request{Key: "k"}, 10*time.Millisecond); d > 5*time.Millisecond {
			t.Errorf("a caller with 10ms left asked after %v", d)
		}
	})
}

func TestSharedLockMemoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(yieldTable)
		for i := range 10 * minSweep {
			s.noteForeignHolder(strconv.Itoa(i))
			time.Sleep(2 * foreignMemory / minSweep)
		}
		if n := len(s.locks); n > minSweep+1 {
			t.Errorf("%d locks are remembered", n)
		}
	})
}

// The engine scans the table of locks with foreign holders rarely, not at each denial.
func TestDenialDoesNotScanAllLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(yieldTable)
		for i := range 3 * minSweep {
			s.noteForeignHolder(strconv.Itoa(i))
		}
		if s.sweep <= len(s.locks) {
			t.Errorf("with %d locks, scanned from %d on", len(s.locks), s.sweep)
		}
	})
}
