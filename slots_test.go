package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/memory"
)

// partlyDownDriver is a driver that cannot ask for some keys, like a driver over several sets of which one is down.
type partlyDownDriver struct {
	*memory.Driver
	down func(driver.Request) error // nil error: the service answers
}

func (d *partlyDownDriver) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	if err := d.down(req); err != nil {
		if !errors.Is(err, driver.ErrAuth) && !req.NoWait {
			req.OnObstacle(err)
			<-ctx.Done()
			err = fmt.Errorf("%w: %w", ctx.Err(), err)
		}
		return driver.Grant{}, err
	}
	return d.Driver.Acquire(ctx, req)
}

// newPartlyDownClient returns another client of the same nodes. down may answer in place of the service.
func (b *bench) newPartlyDownClient(down func(driver.Request) error) *holdfast.Client {
	return openClient(b.t, &partlyDownDriver{b.drv.Peer(), down}, nil)
}

// failKeys fails the requests for keys, like a set that is down.
func failKeys(keys ...string) func(driver.Request) error {
	return func(req driver.Request) error {
		if slices.Contains(keys, req.Key) {
			return &driver.UnavailableError{Err: errors.New("the set of " + req.Key + " is down")}
		}
		return nil
	}
}

func TestFreeSlotIsFoundDespiteDeadSets(t *testing.T) {
	for name, opts := range map[string]claim{"slots": {slots: 4}, "readers": {readers: 4, shared: true}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				for range 20 { // the first slot to try is random
					c := b.newPartlyDownClient(failKeys("k#0", "k#1", "k#3"))
					l, err := tryAcquire(t.Context(), c, "k", &opts)
					if err != nil {
						t.Fatalf("beside a free slot: %v", err)
					}
					if l.Slot() != 2 {
						t.Errorf("slot %d, want one of the 2 free slots", l.Slot())
					}
					b.release(l)
				}
				held := b.acquire(b.newPeer(), "k#2", nil)
				for range 20 {
					_, err := tryAcquire(t.Context(), b.newPartlyDownClient(failKeys("k#0", "k#1", "k#3")), "k", &opts)
					if !errors.Is(err, holdfast.ErrUnavailable) || errors.Is(err, holdfast.ErrHeld) {
						t.Fatalf("some slots are unknown and the others held: %v", err)
					}
				}
				b.release(held)
			})
		})
	}
}

// A request to a set that does not answer takes a second to fail, for each slot.
func TestSilentSlotsDelayTryOnce(t *testing.T) {
	silent := func(req driver.Request) error {
		if req.Key == "k#9" {
			return nil
		}
		time.Sleep(time.Second)
		return failKeys(req.Key)(req)
	}
	inBubble(t, func(t *testing.T, b *bench) {
		for range 10 {
			begin := time.Now()
			l, err := tryAcquire(t.Context(), b.newPartlyDownClient(silent), "k", &claim{slots: 64})
			if err != nil {
				t.Fatal(err)
			}
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("found the answering slot after %v", took)
			}
			b.release(l)
		}
		time.Sleep(time.Second)
		b.wantSlotsFree("k", 64)
	})
}

func TestDeniedSlotsDoNotHideOthers(t *testing.T) {
	refuse := func(keys ...string) func(driver.Request) error {
		return func(req driver.Request) error {
			if slices.Contains(keys, req.Key) {
				return &driver.UnavailableError{Err: driver.ErrAuth}
			}
			return nil
		}
	}
	inBubble(t, func(t *testing.T, b *bench) {
		held := b.acquire(b.newPeer(), "k#1", nil)
		c := b.newPartlyDownClient(refuse("k#0", "k#2"))
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() { b.release(b.acquireAs(c, "k", &claim{slots: 3})) })
		}
		time.Sleep(time.Minute)
		b.release(held)
		all.Wait()
		_, err := b.newPartlyDownClient(refuse("k#0", "k#1", "k#2")).Semaphore("k", 3).Acquire(t.Context(), nil)
		wantErr(t, err, holdfast.ErrAuth, holdfast.ErrUnavailable)
	})
}

// Only a dead client, or a caller that uses a slot as a lock, waits for a single slot.
func TestMaxWaitersAllowsFreeSlots(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		first := b.acquire(b.newPeer(), "k#0", nil)
		var all sync.WaitGroup
		waiter := b.newPeer()
		all.Go(func() { b.release(b.acquire(waiter, "k#0", nil)) })
		time.Sleep(time.Second)
		for range 20 {
			l, err := acquireAs(t.Context(), b.newPeer(), "k", &claim{slots: 3, AcquireOptions: holdfast.AcquireOptions{MaxWaiters: 1}})
			if err != nil {
				t.Fatal(err)
			}
			b.release(l)
		}
		others := []*holdfast.Lease{b.acquire(b.newPeer(), "k#1", nil), b.acquire(b.newPeer(), "k#2", nil)}
		for range 20 {
			_, err := acquireAs(t.Context(), b.newPeer(), "k", &claim{slots: 3, AcquireOptions: holdfast.AcquireOptions{MaxWaiters: 1}})
			wantErr(t, err, holdfast.ErrHeld)
		}
		b.release(first)
		b.release(others...)
		all.Wait()
	})
}

// The answers about the slots arrive one after the other.
func TestMaxWaitersAwaitsAnswersOfAllSlots(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		first := b.acquire(b.newPeer(), "k#0", nil)
		var all sync.WaitGroup
		waiter := b.newPeer()
		all.Go(func() { b.release(b.acquire(waiter, "k#0", nil)) })
		time.Sleep(time.Second)
		for range 10 {
			l, err := b.newPartlyDownClient(func(req driver.Request) error {
				if req.Key == "k#1" && req.NoWait {
					return failKeys("k#1")(req)
				}
				if req.Key == "k#1" {
					time.Sleep(50 * time.Millisecond)
				}
				return nil
			}).Semaphore("k", 2).Acquire(t.Context(), &holdfast.AcquireOptions{MaxWaiters: 1})
			if err != nil {
				t.Fatal(err)
			}
			b.release(l)
		}
		b.release(first)
		all.Wait()
	})
}

// differingClaim returns different options for each caller, so that no two callers can share a request.
func differingClaim(slots, i int) *claim {
	o := &claim{slots: slots, AcquireOptions: holdfast.AcquireOptions{Note: fmt.Sprint("job ", i)}}
	switch i % 4 {
	case 1:
		o.TTL = 20 * time.Second
	case 2:
		o.NoRenew = true
	case 3:
		o.Adoptable = true
	}
	return o
}

func TestSlotOrderIgnoresOptions(t *testing.T) {
	for _, slots := range []int{1, 3} {
		t.Run(fmt.Sprint(slots), func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				held := b.holdSlots(slots, slots)
				var mu sync.Mutex
				var order []int
				var all sync.WaitGroup
				for i := range 24 {
					all.Go(func() {
						l := b.acquireAs(b.client, "k", differingClaim(slots, i/4))
						mu.Lock()
						order = append(order, i)
						mu.Unlock()
						st, err := b.client.Inspect(t.Context(), l.Key())
						if want := fmt.Sprintf("slot %d of %d: job %d", l.Slot(), slots, i/4); err != nil || st.Holder.Note != want {
							t.Errorf("note = %q, %v, want %q", st.Holder.Note, err, want)
						}
						time.Sleep(time.Second)
						if until := time.Until(l.Deadline()); i/4%4 == 1 && until < 15*time.Second {
							t.Errorf("trusted for %v with a TTL of 20 s", until)
						}
						b.release(l)
					})
					time.Sleep(50 * time.Millisecond)
				}
				for _, l := range held {
					b.release(l)
					time.Sleep(300 * time.Millisecond)
				}
				all.Wait()
				if !slices.IsSorted(order) {
					t.Errorf("served in the order %v", order)
				}
				b.wantSlotsFree("k", slots)
			})
		})
	}
}

func TestSlotsFreedTogetherKeepOrder(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		const slots = 4
		held := b.holdSlots(slots, slots)
		for i := range 5 {
			b.drv.Node(i).Delay(5 * time.Millisecond)
		}
		var mu sync.Mutex
		var order []int
		var all sync.WaitGroup
		for i := range 12 {
			all.Go(func() {
				l := b.acquireAs(b.client, "k", differingClaim(slots, i/2))
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				time.Sleep(time.Second)
				b.release(l)
			})
			time.Sleep(50 * time.Millisecond)
		}
		var together sync.WaitGroup
		for _, l := range held {
			together.Go(func() { b.release(l) })
		}
		together.Wait()
		all.Wait()
		for at, i := range order { // callers that get a slot at the same moment report it in any order
			if i <= at-slots || i >= at+slots {
				t.Errorf("order = %v", order)
				break
			}
		}
		b.wantSlotsFree("k", slots)
	})
}

func TestMaxWaitersCountsWaitersWithOtherOptions(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		held := b.holdSlots(4, 4)
		var refused atomic.Int32
		var all sync.WaitGroup
		for i := range 50 {
			all.Go(func() {
				opts := differingClaim(4, i)
				opts.MaxWaiters = 3
				l, err := acquireAs(t.Context(), b.client, "k", opts)
				if errors.Is(err, holdfast.ErrHeld) {
					refused.Add(1)
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				b.release(l)
			})
			time.Sleep(10 * time.Millisecond)
		}
		if n := refused.Load(); n != 47 {
			t.Errorf("%d of 50 callers were rejected with MaxWaiters 3, want 47", n)
		}
		b.release(held...)
		all.Wait()
	})
}

func TestSlotWaiterCostsOneGoroutine(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		const slots, waiters = 64, 1000
		held := b.holdSlots(slots, slots)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var all sync.WaitGroup
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		goroutines := runtime.NumGoroutine()
		for i := range waiters {
			all.Go(func() {
				acquireAs(ctx, b.client, "k", &claim{slots: slots, AcquireOptions: holdfast.AcquireOptions{Note: fmt.Sprint(i)}})
			})
		}
		time.Sleep(time.Second)
		runtime.GC()
		runtime.ReadMemStats(&after)
		if n := runtime.NumGoroutine() - goroutines; n > waiters+5*slots {
			t.Errorf("%d waiters have %d goroutines", waiters, n)
		}
		t.Logf("%d bytes each", (int64(after.HeapInuse+after.StackInuse)-int64(before.HeapInuse+before.StackInuse))/waiters)
		cancel()
		all.Wait()
		b.release(held...)
		b.wantSlotsFree("k", slots)
	})
}
