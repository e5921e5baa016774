package holdfast

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/memory"
)

// A waiter in line may leave in the moment in which the slot is granted to it: then the slot is given back. In real time, as
// the test holds up the grant by a mutex.
func TestSlotGrantedToALeaverIsReturned(t *testing.T) {
	t.Parallel()
	drv := memory.New(1)
	c, err := New(drv, &Options{Hooks: Hooks{Acquired: func(AcquiredEvent) {}}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	peer, err := New(drv.Peer(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	held, err := peer.Semaphore("k", 1).Acquire(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	o, err := c.checkOptions("k", kind{slots: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	left := make(chan error)
	go func() {
		l, err := c.runAttempt(ctx, &attempt{key: "k", opts: o, wait: ctx, silent: true})
		if err == nil {
			err = l.Release(context.Background())
		}
		left <- err
	}()
	until(t, c, func() bool {
		return len(c.slotQueues) == 1 && c.locks["k#0"] != nil && c.locks["k#0"].currentObstacle() != nil
	})
	c.events.mu.Lock() // where the grant is told
	if err := held.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 100 { // until it is granted; the grant may keep the mutex until it has told of it
		if c.mu.TryLock() {
			granted := len(c.slotQueues) == 0
			c.mu.Unlock()
			if granted {
				break
			}
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	time.Sleep(10 * time.Millisecond) // the waiter has seen that by now, or else the test shows less
	c.events.mu.Unlock()
	if err := <-left; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := peer.Semaphore("k", 1).Acquire(ctx, nil); err != nil {
		t.Errorf("the slot that nobody has: %v", err)
	}
}

// until waits until holds says so, under the client's mutex.
func until(t *testing.T, c *Client, holds func() bool) {
	t.Helper()
	for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(100 * time.Microsecond) {
		c.mu.Lock()
		done := holds()
		c.mu.Unlock()
		if done {
			return
		}
	}
	t.Fatal("not within a minute")
}
