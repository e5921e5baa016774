package engine

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/quorum"
)

// rest is how long a waiter rests that hears its wake-ups and was told that holder
// has the lock, for long.
func rest(t *testing.T, e *Engine, desks []*desk, holder string) time.Duration {
	t.Helper()
	for n := range desks {
		e.Hears(n, true)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go e.Acquire(ctx, driver.Request{Key: "k", TTL: 10 * time.Second})
	for _, d := range desks {
		d.next(t, quorum.AskAcquire).Denied(int64(time.Hour), holder, 0)
	}
	synctest.Wait()
	since := time.Now()
	for _, d := range desks {
		d.next(t, quorum.AskAcquire).Denied(int64(time.Hour), holder, 0)
	}
	took := time.Since(since)
	cancel()
	synctest.Wait()
	for _, d := range desks {
		for len(d.in) > 0 {
			(<-d.in).Freed()
		}
	}
	return took
}

// What another library frees wakes nobody.
func TestAWaiterAsksOftenWhereOthersTakeTheLockToo(t *testing.T) {
	const often, seldom = 105 * time.Millisecond, time.Second
	office(t, func(t *testing.T, e *Engine, desks []*desk) {
		if d := rest(t, e, desks, ours("a")); d < seldom {
			t.Errorf("behind a client of this protocol it rests %v", d)
		}
		for _, holder := range []string{"theirs", "(hash)", ""} {
			if d := rest(t, e, desks, holder); d < 20*time.Millisecond || d > often {
				t.Errorf("behind %q it rests %v", holder, d)
			}
		}
		e.shared = true
		if d := rest(t, e, desks, ours("a")); d < 20*time.Millisecond || d > often {
			t.Errorf("on a lock that is shared it rests %v", d)
		}
	})
}
