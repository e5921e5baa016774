package holdfast

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/internal/holder"
)

func TestIdleHookGoroutineEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told []time.Duration
		begin := time.Now()
		h := eventQueue{hurry: make(chan struct{})}
		lives := func() bool {
			synctest.Wait()
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.done != nil
		}
		put := func() { h.enqueue(func() { told = append(told, time.Since(begin)) }) }
		put()
		synctest.Wait()
		if len(told) != 1 {
			t.Error("the first event was not delivered")
		}
		for range 10 * maxIdlePolls {
			time.Sleep(pollInterval / 2)
			put()
			at := time.Since(begin)
			if !lives() {
				t.Fatal("the goroutine ended while events arrived")
			}
			time.Sleep(pollInterval)
			synctest.Wait()
			if late := told[len(told)-1] - at; late > pollInterval {
				t.Errorf("an event was delivered after %v, want at most %v", late, pollInterval)
			}
		}
		if time.Sleep(pollInterval * (maxIdlePolls + 2)); lives() {
			t.Error("the idle goroutine did not end")
		}
		put()
		synctest.Wait()
		put()
		closed := time.Now()
		h.drain(context.Background())
		if took := time.Since(closed); took > 0 || len(told) != 10*maxIdlePolls+3 {
			t.Errorf("drain took %v and delivered %d events; want all at once", took, len(told))
		}
		if put(); lives() {
			t.Error("the goroutine did not end after drain")
		}
	})
}

// BenchmarkEventsWithoutHooks measures the cost of the events of one lock and one renewal without hooks.
func BenchmarkEventsWithoutHooks(b *testing.B) {
	h := &eventQueue{hurry: make(chan struct{})}
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		h.Acquired(holder.Acquired{Context: holder.Values{Context: ctx}, Key: "order/1", Owner: "owner", Token: 1, Waited: time.Millisecond})
		h.Renewed(holder.Renewed{Key: "order/1", Owner: "owner", Token: 1, Remaining: time.Second})
		h.Released(holder.Released{Context: ctx, Key: "order/1", Owner: "owner", Token: 1, Held: time.Millisecond})
	}
}
