package holdfast

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/memory"
)

// During a suspend the monotonic clock stands still, and with it the timer of the next
// renewal. The watchdog finds the end by the wall clock within a second of waking. In real
// time, as no time in a bubble of package synctest has two readings.
func TestLeaseEndedDuringSuspendIsLost(t *testing.T) {
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
	until(t, c, func() bool { return !c.looked.IsZero() }) // the next full look is a second away
	c.mu.Lock()
	woke := time.Now().Add(-time.Second)
	l.term.keptUntil, l.term.trusted, l.term.endsAt = woke, woke, apart(woke, time.Minute)
	c.mu.Unlock()
	select {
	case <-l.Context().Done():
		if cause := context.Cause(l.Context()); !errors.Is(cause, ErrExpired) {
			t.Errorf("the lease ended with %v, want ErrExpired", cause)
		}
	case <-time.After(30 * time.Second): // half of the TTL
		t.Error("30 s after the machine woke up the lease still stands")
	}
}

// The locks of a writer may reach their Margin together, and the watchdog find them in any order, as after a suspend. The one
// that it finds first ends the lease, and no other takes from the work the time to stop.
func TestWriterHasItsMarginForAllItsLocks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		drv := memory.New(1)
		c, err := New(drv, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		var all []*Lease
		for i := range 8 {
			l, err := c.RWLock(fmt.Sprint(i), 4).AcquireWrite(t.Context(), &AcquireOptions{TTL: 10 * time.Second, Margin: 3 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, l)
		}
		time.Sleep(20 * time.Second)
		drv.Node(0).Freeze()
		defer drv.Node(0).Start()
		time.Sleep(time.Until(all[0].Deadline().Add(-4 * time.Second)))
		c.mu.Lock()
		c.looked = time.Time{}
		c.mu.Unlock()
		_, lost := c.collectDue(all[0].Deadline().Add(-time.Second))
		c.carryOut(lost...)
		for _, l := range all {
			c.mu.Lock()
			over := l.term.ended
			c.mu.Unlock()
			if cause := context.Cause(l.Context()); over || !errors.Is(cause, ErrExpired) {
				t.Errorf("%q: the lock is let go: %v, and the context ended with %v; want that alone, 1 s before the deadline", l.Key(), over, cause)
			}
		}
	})
}

// asking is a driver that keeps the last request for a lock.
type asking struct {
	*memory.Driver
	last driver.Request
}

func (d *asking) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	d.last = req
	return d.Driver.Acquire(ctx, req)
}

func TestStarvedClientAsksForAllOfTheTrust(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		drv := &asking{Driver: memory.New(1)}
		c, err := New(drv, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Acquire(t.Context(), "held", nil); err != nil { // the watchdog looks each second
			t.Fatal(err)
		}
		renews := func() bool {
			l, err := c.Acquire(t.Context(), "k", nil)
			if err != nil {
				t.Fatal(err)
			}
			l.Release(t.Context())
			return drv.last.Renews
		}
		time.Sleep(5500 * time.Millisecond)
		if !renews() {
			t.Error("a watchdog in time asks for a confirmation")
		}
		c.mu.Lock()
		late := c.sleeps.Add(300 * time.Millisecond)
		c.mu.Unlock()
		c.collectDue(late)
		if renews() {
			t.Error("a watchdog that comes late asks for no confirmation")
		}
		time.Sleep(time.Minute)
		if !renews() {
			t.Error("a watchdog that is in time again still asks for a confirmation")
		}
	})
}
