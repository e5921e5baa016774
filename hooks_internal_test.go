package holdfast

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// The goroutine stays while there are events, and does not stay for ever.
func TestTheGoroutineOfTheHooksEndsWhenIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told []time.Duration
		begin := time.Now()
		h := herald{hurry: make(chan struct{})}
		lives := func() bool {
			synctest.Wait()
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.done != nil
		}
		put := func() { h.put(func() { told = append(told, time.Since(begin)) }) }
		put()
		synctest.Wait()
		if len(told) != 1 {
			t.Error("the first event waits")
		}
		for range 10 * lulls {
			time.Sleep(lull / 2)
			put()
			at := time.Since(begin)
			if !lives() {
				t.Fatal("the goroutine ended while events came")
			}
			time.Sleep(lull)
			synctest.Wait()
			if late := told[len(told)-1] - at; late > lull {
				t.Errorf("an event was told after %v, want %v at most", late, lull)
			}
		}
		if time.Sleep(lull * (lulls + 2)); lives() {
			t.Error("the goroutine stays without an event")
		}
		put()
		synctest.Wait()
		put()
		closed := time.Now()
		h.drain(context.Background())
		if took := time.Since(closed); took > 0 || len(told) != 10*lulls+3 {
			t.Errorf("drain took %v, and %d events were told; want all at once", took, len(told))
		}
		if put(); lives() {
			t.Error("the goroutine stays after the end")
		}
	})
}
