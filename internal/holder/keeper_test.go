package holder

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/memory"
)

// A waiter may be cancelled just when it is granted the slot. The slot is then released. The test runs in real
// time, because it delays the grant with a mutex.
func TestSlotGrantedToCancelledWaiterIsReturned(t *testing.T) {
	t.Parallel()
	drv, events := memory.New(1), &recorder{}
	k, peer := startKeeper(t, drv, events), startKeeper(t, drv.Peer(), &recorder{})
	held := mustObtain(t, peer, "k#0")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	left := make(chan error)
	go func() {
		a := newCall(ctx, "k")
		a.Kind, a.Silent = testPlaces(1), true
		h, err := k.Run(ctx, a, func() (*Hold, error) { return a.AwaitPlace(nil, nil) })
		if err == nil {
			err = h.Release(context.Background())
		}
		left <- err
	}()
	waitUntil(t, k, func() bool {
		return len(k.lines) == 1 && k.locks["k#0"] != nil && k.locks["k#0"].currentObstacleLocked() != nil
	})
	events.mu.Lock() // the grant locks this mutex to report itself
	if err := held.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 100 { // until the slot is granted; the grant may hold the mutex until it has reported itself
		if k.mu.TryLock() {
			granted := len(k.lines) == 0
			k.mu.Unlock()
			if granted {
				break
			}
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	time.Sleep(10 * time.Millisecond) // the waiter has most likely left by now; otherwise the test shows less
	events.mu.Unlock()
	if err := <-left; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := obtain(ctx, peer, "k#0"); err != nil {
		t.Errorf("freed an unused slot: %v", err)
	}
}

// The next holder may release the lease before the previous holder's goroutine continues. The hand-over event
// still comes first.
func TestHandOverEventPrecedesNextRelease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		events := &recorder{}
		k := startKeeper(t, memory.New(1), events)
		first := mustObtain(t, k, "k")
		go func() {
			next, err := obtain(t.Context(), k, "k")
			if err == nil {
				err = next.Release(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		_, e, _ := first.endAt(time.Now())
		time.Sleep(time.Second) // the next holder has released by then
		e.sendEvents(k)
		if err := k.releaseOnService(t.Context(), e); err != nil {
			t.Error(err)
		}
		closeKeeper(k)
		one, two := first.Token(), first.Token()+1
		want := []string{fmt.Sprint("acquired ", one), "waiting k", fmt.Sprint("released ", one), fmt.Sprint("acquired ", two), fmt.Sprint("released ", two)}
		if got := events.all(); !slices.Equal(got, want) {
			t.Errorf("events %q, want %q", got, want)
		}
	})
}

// During a suspend the monotonic clock stops, and with it the timer of the next renewal. The watchdog finds
// the end by the wall clock within a second after waking. The test runs in real time, because times in a
// bubble of package synctest have no two readings.
func TestLeaseEndedDuringSuspendIsLost(t *testing.T) {
	t.Parallel()
	k := startKeeper(t, memory.New(1), &recorder{})
	a := &Call{Options: Options{TTL: time.Minute, NoRenew: true}, Wait: t.Context(), Key: "k"}
	h, err := k.Run(t.Context(), a, a.Acquire)
	if err != nil {
		t.Fatal(err)
	}
	waitUntil(t, k, func() bool { return !k.watch.looked.IsZero() }) // the next full look is a second away
	k.mu.Lock()
	woke := time.Now().Add(-time.Second)
	h.term.keptUntil, h.term.trusted, h.term.endsAt = woke, woke, shiftMonotonic(woke, time.Minute)
	k.mu.Unlock()
	select {
	case <-h.Context().Done():
		if cause := context.Cause(h.Context()); !errors.Is(cause, ErrExpired) {
			t.Errorf("the lease ended with %v, want ErrExpired", cause)
		}
	case <-time.After(30 * time.Second): // half of the TTL
		t.Error("the lease is still held 30 s after the suspend")
	}
}

// obtainJoint returns a joint lease on key and n places.
func obtainJoint(ctx context.Context, k *Keeper, key string, n int, o Options) (*Hold, error) {
	a := &Call{Options: o, Wait: ctx, Key: key, Kind: testPlaces(n)}
	return k.Run(ctx, a, func() (*Hold, error) {
		lead, err := a.NewPart(ctx, key).Acquire()
		if err != nil {
			return nil, err
		}
		parts := []*Hold{lead}
		for number := range n {
			place := Place{Of: key, Number: number}
			p := a.NewPart(ctx, place.Key())
			p.Place = place
			h, err := p.Acquire()
			if err != nil {
				return nil, err
			}
			parts = append(parts, h)
		}
		if !a.JoinParts(lead, parts) {
			return nil, errors.New("a part was lost")
		}
		return lead, nil
	})
}

// The locks of a writer may reach their Margin at the same time, as after a suspend, and the watchdog finds
// them in any order. The first that it finds ends the lease, and the others must not take away the time that
// the work has to stop.
func TestWriterMarginCoversAllItsLocks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		drv := memory.New(1)
		k := startKeeper(t, drv, &recorder{})
		var all []*Hold
		for i := range 8 {
			h, err := obtainJoint(t.Context(), k, fmt.Sprint(i), 4, Options{TTL: 10 * time.Second, Margin: 3 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, h)
		}
		time.Sleep(20 * time.Second)
		drv.Node(0).Freeze()
		defer drv.Node(0).Start()
		time.Sleep(time.Until(all[0].Deadline().Add(-4 * time.Second)))
		k.mu.Lock()
		k.watch.looked = time.Time{}
		k.mu.Unlock()
		_, lost := k.collectDue(all[0].Deadline().Add(-time.Second))
		k.carryOut(lost...)
		for _, h := range all {
			k.mu.Lock()
			over := h.term.ended
			k.mu.Unlock()
			if cause := context.Cause(h.Context()); over || !errors.Is(cause, ErrExpired) {
				t.Errorf("%q: released: %v, context ended with %v; want only that, 1 s before the deadline", h.Key(), over, cause)
			}
		}
	})
}

// lastRequestDriver is a driver that stores the last request for a lock.
type lastRequestDriver struct {
	*memory.Driver
	last driver.Request
}

func (d *lastRequestDriver) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	d.last = req
	return d.Driver.Acquire(ctx, req)
}

func TestStarvedClientRequestsWholeTTL(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		drv := &lastRequestDriver{Driver: memory.New(1)}
		k := startKeeper(t, drv, &recorder{})
		mustObtain(t, k, "held") // keeps the watchdog looking each second
		renews := func() bool {
			mustObtain(t, k, "k").Release(t.Context())
			return drv.last.WillRenew
		}
		time.Sleep(5500 * time.Millisecond)
		if !renews() {
			t.Error("a punctual watchdog wants confirmation")
		}
		k.mu.Lock()
		late := k.watch.sleeps.Add(300 * time.Millisecond)
		k.mu.Unlock()
		k.collectDue(late)
		if renews() {
			t.Error("a late watchdog wants no confirmation")
		}
		time.Sleep(time.Minute)
		if !renews() {
			t.Error("a punctual watchdog still wants confirmation")
		}
	})
}

// The test is not parallel, because it counts allocations.
func TestEventContextFindsValuesWithoutAllocation(t *testing.T) {
	type key struct{}
	ctx, cancel := context.WithCancelCause(context.WithValue(context.Background(), key{}, "value"))
	cancel(context.DeadlineExceeded)
	var c context.Context = Values{ctx}
	if c.Err() != nil || context.Cause(c) != nil || c.Done() != nil {
		t.Errorf("it ends: %v, %v", c.Err(), context.Cause(c))
	}
	child, cancelChild := context.WithCancel(c)
	defer cancelChild()
	if child.Err() != nil {
		t.Error("the child context ended")
	}
	if n := testing.AllocsPerRun(100, func() {
		if c.Value(key{}) != "value" {
			t.Error("the context lost its value")
		}
	}); n > 0 {
		t.Errorf("%v allocations for a value", n)
	}
}
