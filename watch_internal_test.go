package holdfast

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/memory"
)

// During a suspend the monotonic clock stands still, and with it the timer of the next
// renewal. The watchdog finds the end by the wall clock within a second of waking. In real
// time, as no time in a bubble of package synctest has two readings.
func TestALeaseThatEndedDuringASuspendIsLostAtTheNextLook(t *testing.T) {
	t.Parallel()
	c, err := New(memory.New(1), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, err := c.Acquire(t.Context(), "k", &AcquireOptions{TTL: time.Minute, NoRenew: true})
	if err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	woke := time.Now().Add(-time.Second)
	l.term.keptUntil, l.term.trusted, l.term.ends = woke, woke, apart(woke, time.Minute)
	c.mu.Unlock()
	select {
	case <-l.Context().Done():
		if cause := context.Cause(l.Context()); !errors.Is(cause, ErrExpired) {
			t.Errorf("the lease ended with %v, want ErrExpired", cause)
		}
	case <-time.After(10 * time.Second):
		t.Error("10 s after the machine woke up the lease still stands")
	}
}
