package holdfast_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/memory"
)

// wantSlotsFree checks that all slots are free and have no waiters.
func (b *bench) wantSlotsFree(key string, slots int) {
	b.t.Helper()
	synctest.Wait()
	for slot := range slots {
		st, err := b.client.Inspect(b.t.Context(), fmt.Sprintf("%s#%d", key, slot))
		if err != nil || st.Held || st.Waiters != 0 {
			b.t.Errorf("slot %d of %q: %+v, %v", slot, key, st, err)
		}
	}
}

func TestSlotWaitersAreServedInOrder(t *testing.T) {
	for _, slots := range []int{1, 3, 8} {
		for _, together := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d slots, one process %v", slots, together), func(t *testing.T) {
				inBubble(t, func(t *testing.T, b *bench) {
					opts := &claim{slots: slots}
					holder := b.newPeer()
					var held []*holdfast.Lease
					for range slots {
						held = append(held, b.acquireAs(holder, "k", opts))
					}
					var mu sync.Mutex
					var order []int
					var all sync.WaitGroup
					for i := range 50 {
						c := b.client
						if !together {
							c = b.newPeer()
						}
						all.Go(func() {
							l := b.acquireAs(c, "k", opts)
							mu.Lock()
							order = append(order, i)
							mu.Unlock()
							time.Sleep(time.Second)
							b.release(l)
						})
						time.Sleep(50 * time.Millisecond)
					}
					b.release(held...)
					all.Wait()
					for at, i := range order {
						// callers that get a slot at the same moment report it in any order
						if i <= at-slots || i >= at+slots {
							t.Errorf("waiter %d got a slot as number %d: %v", i, at, order)
						}
					}
					b.wantSlotsFree("k", slots)
				})
			})
		}
	}
}

// countingDriver is a driver that counts its calls.
type countingDriver struct {
	*memory.Driver
	acquires, releases atomic.Int32
}

func (d *countingDriver) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	d.acquires.Add(1)
	return d.Driver.Acquire(ctx, req)
}

func (d *countingDriver) Release(ctx context.Context, g driver.Grant, keep time.Duration) error {
	d.releases.Add(1)
	return d.Driver.Release(ctx, g, keep)
}

// newCountedClient returns another client of the same nodes, and the driver that counts its calls.
func (b *bench) newCountedClient() (*holdfast.Client, *countingDriver) {
	d := &countingDriver{Driver: b.drv.Peer()}
	c := openClient(b.t, d, nil)
	return c, d
}

// wantCalls checks the number of calls since the last wantCalls.
func (d *countingDriver) wantCalls(t *testing.T, what string, acquires, releases int32) {
	t.Helper()
	if a, r := d.acquires.Swap(0), d.releases.Swap(0); a != acquires || r != releases {
		t.Errorf("%s: %d calls to acquire and %d to release, want %d and %d", what, a, r, acquires, releases)
	}
}

// holdSlots has another client hold the given number of slots of k.
func (b *bench) holdSlots(slots, held int) (all []*holdfast.Lease) {
	other := b.newPeer()
	for range held {
		all = append(all, b.acquireAs(other, "k", &claim{slots: slots}))
	}
	return all
}

func TestFreeSemaphoreCostsOneRequest(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		const way = 20 * time.Millisecond
		for i := range 5 {
			b.drv.Node(i).Delay(way)
		}
		c, d := b.newCountedClient()
		for slots := range 65 { // 0: a lock
			begin := time.Now()
			l := b.acquireAs(c, "k", &claim{slots: slots})
			if took := time.Since(begin); took != way {
				t.Errorf("%d slots: took %v, want one round trip of %v", slots, took, way)
			}
			b.release(l)
			d.wantCalls(t, fmt.Sprintf("%d slots", slots), 1, 1)
		}
	})
}

func TestReleasedSlotIsTriedFirst(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		held := b.holdSlots(8, 7)
		c, d := b.newCountedClient()
		opts := &claim{slots: 8}
		for range 10 {
			b.release(b.acquireAs(c, "another", opts))
			b.release(b.acquireAs(c, "k", opts)) // the first slot to try was chosen at random
			b.release(b.acquire(c, "a lock", nil))
			d.acquires.Store(0)
			d.releases.Store(0)
			b.release(b.acquireAs(c, "k", opts))
			d.wantCalls(t, "the next time", 1, 1)
		}
		b.release(held...)
	})
}

// Only a dead client, or a caller that uses a slot as a lock, waits for a single slot.
func TestWaiterForOneSlotDoesNotHideOthers(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		first := b.acquire(b.newPeer(), "k#0", nil)
		var all sync.WaitGroup
		waiter := b.newPeer()
		all.Go(func() { b.release(b.acquire(waiter, "k#0", nil)) })
		time.Sleep(time.Second)
		opts := &claim{slots: 3}
		for range 10 {
			c := b.newPeer() // a client that has tried no slot before
			l, err := tryAcquire(t.Context(), c, "k", opts)
			if err != nil {
				t.Fatal(err)
			}
			b.release(l)
			begin := time.Now()
			other := b.newPeer()
			b.release(b.acquireAs(other, "k", opts))
			if took := time.Since(begin); took > 100*time.Millisecond {
				t.Errorf("acquiring a free slot took %v", took)
			}
		}
		b.release(first)
		all.Wait()
		b.wantSlotsFree("k", 3)
	})
}

func TestWaiterBehindOthersTriesOneSlot(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		opts := &claim{slots: 8}
		held := b.holdSlots(8, 8)
		first, asked := b.newCountedClient()
		var all sync.WaitGroup
		all.Go(func() { b.release(b.acquireAs(first, "k", opts)) })
		time.Sleep(time.Second)
		asked.wantCalls(t, "the first to wait", 16, 0) // it tries each slot and joins the queue of each
		second, asked := b.newCountedClient()
		all.Go(func() { b.release(b.acquireAs(second, "k", opts)) })
		time.Sleep(time.Second)
		asked.wantCalls(t, "the second", 9, 0)
		_, err := tryAcquire(t.Context(), second, "k", opts)
		wantErr(t, err, holdfast.ErrHeld)
		b.release(held...)
		all.Wait()
		b.wantSlotsFree("k", 8)
	})
}

func TestCancelledSlotWaiterLeavesQueue(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		opts := &claim{slots: 3}
		holder := b.newPeer()
		var held []*holdfast.Lease
		for range 3 {
			held = append(held, b.acquireAs(holder, "k", opts))
		}
		begin := time.Now()
		_, err := acquireAs(t.Context(), b.client, "k", &claim{slots: 3, AcquireOptions: holdfast.AcquireOptions{Wait: time.Second}})
		wantErr(t, err, holdfast.ErrHeld)
		if waited := time.Since(begin); waited != time.Second || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v after %v", err, waited)
		}
		_, err = tryAcquire(t.Context(), b.client, "k", opts)
		wantErr(t, err, holdfast.ErrHeld)
		if !strings.Contains(err.Error(), `acquire "k": none of its 3 slots is free; the last one is held by`) {
			t.Errorf("the error is %q", err)
		}
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second+rand.N(50*time.Millisecond))
				defer cancel()
				if l, err := acquireAs(ctx, b.client, "k", opts); err == nil {
					b.release(l)
				}
			})
		}
		time.Sleep(time.Second + rand.N(50*time.Millisecond))
		b.release(held...)
		all.Wait()
		time.Sleep(time.Second) // late grants are released in the background
		b.wantSlotsFree("k", 3)
	})
}

func TestCloseEndsWaitForSlot(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		opts := &claim{slots: 2}
		other := b.newPeer()
		held := []*holdfast.Lease{b.acquireAs(other, "k", opts), b.acquireAs(other, "k", opts)}
		failed := make(chan error, 3)
		for range 3 {
			go func() {
				_, err := acquireAs(t.Context(), b.client, "k", opts)
				failed <- err
			}()
		}
		time.Sleep(time.Second)
		if err := b.client.Close(); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			wantErr(t, <-failed, holdfast.ErrClosed)
		}
		b.release(held...)
		l := b.acquireAs(other, "k", opts)
		b.release(l)
	})
}

func TestSlotOfDeadHolderGoesToWaiter(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		opts := &claim{slots: 2, AcquireOptions: holdfast.AcquireOptions{TTL: 5 * time.Second, NoRenew: true}}
		other := b.newPeer()
		first, second := b.acquireAs(other, "k", opts), b.acquireAs(other, "k", &claim{slots: 2})
		begin := time.Now()
		l := b.acquireAs(b.client, "k", &claim{slots: 2})
		if waited := time.Since(begin); waited > 6*time.Second || l.Slot() != first.Slot() || first.Context().Err() == nil {
			t.Errorf("slot %d after %v, while slot %d of the dead holder is held: %v", l.Slot(), waited, first.Slot(), first.Context().Err())
		}
		if err := b.client.ForceRelease(t.Context(), second.Key(), second.Token(), "test"); err != nil {
			t.Fatal(err)
		}
		third := b.acquireAs(b.client, "k", &claim{slots: 2})
		if third.Slot() != second.Slot() || third.Token() <= second.Token() {
			t.Errorf("slot %d with token %d, want slot %d with more than %d", third.Slot(), third.Token(), second.Slot(), second.Token())
		}
		b.release(l, third)
	})
}

func TestAnotherNumberOfSlotsIsReported(t *testing.T) {
	var said bytes.Buffer
	var told []holdfast.SizeMismatchEvent
	opts := &holdfast.Options{
		Logger: slog.New(slog.NewTextHandler(&said, nil)),
		Hooks:  holdfast.Hooks{SizeMismatch: func(e holdfast.SizeMismatchEvent) { told = append(told, e) }},
	}
	inBubbleWith(t, opts, func(t *testing.T, b *bench) {
		other := b.newPeer()
		var held []*holdfast.Lease
		for range 4 {
			held = append(held, b.acquireAs(other, "k", &claim{slots: 4, AcquireOptions: holdfast.AcquireOptions{Note: "n"}}))
		}
		_, err := tryAcquire(t.Context(), b.client, "k", &claim{slots: 3})
		wantErr(t, err, holdfast.ErrHeld)
		if e, _ := errors.AsType[*holdfast.HeldError](err); e == nil || !strings.HasSuffix(e.Holder.Note, " of 4: n") {
			t.Errorf("the error is %v", err)
		}
		b.release(held...)
		held = []*holdfast.Lease{b.acquireAs(other, "one", &claim{slots: 1}), b.acquireAs(b.client, "one", &claim{slots: 2})}
		_, err = tryAcquire(t.Context(), b.client, "one", &claim{slots: 2})
		wantErr(t, err, holdfast.ErrHeld)
		b.release(held...)
		b.client.Close() // flushes the events
		if !strings.Contains(said.String(), "differ in its slots") || !strings.Contains(said.String(), `gave="3 slots" others="4 slots"`) {
			t.Errorf("said %q", said.String())
		}
		if len(told) == 0 || told[0].Key != "k" || told[0].Requested != "3 slots" || told[0].Existing != "4 slots" {
			t.Errorf("told %v", told)
		}
		if last := told[len(told)-1]; last.Key != "one" || last.Existing != "1 slot" {
			t.Errorf("last Waiting event: %v", last)
		}
	})
}

func TestSlotWaitersSurviveOutageInOrder(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.freezeNodes()
		var got atomic.Int32
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				l := b.acquireAs(b.client, "k", &claim{slots: 2})
				got.Add(1)
				time.Sleep(100 * time.Millisecond)
				b.release(l)
			})
		}
		time.Sleep(time.Minute)
		if got.Load() != 0 {
			t.Error("acquired a slot while the service was cut off")
		}
		b.startNodes()
		all.Wait()
		b.wantSlotsFree("k", 2)
	})
}

func TestBadSlotCallsAreRejected(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		for name, o := range map[string]claim{
			"-1 slots": {slots: -1}, "65 slots": {slots: 65},
			"the note has 49 bytes": {slots: 2, AcquireOptions: holdfast.AcquireOptions{Note: strings.Repeat("x", 49)}},
		} {
			_, err := acquireAs(t.Context(), b.client, "k", &o)
			wantErr(t, err, holdfast.ErrInvalid)
			if !strings.Contains(err.Error(), name) {
				t.Errorf("error %q does not contain %q", err, name)
			}
		}
		_, err := b.client.Semaphore(strings.Repeat("k", 511), 2).Acquire(t.Context(), nil)
		wantErr(t, err, holdfast.ErrInvalid)
		_, err = b.client.Semaphore("k", 0).Acquire(t.Context(), nil)
		wantErr(t, err, holdfast.ErrInvalid)
		if text := fmt.Sprint(err); !strings.Contains(text, " 0 slots") {
			t.Errorf("error %q does not contain \"0 slots\"", text)
		}
	})
}

func TestSlotLeaseNestsInItself(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		l := b.acquireAs(b.client, "k", &claim{slots: 2})
		_, err := acquireAs(l.Context(), b.client, "k", &claim{slots: 2})
		wantErr(t, err, holdfast.ErrNested)
		again, err := acquireAs(l.Context(), b.client, "k", &claim{slots: 2, AcquireOptions: holdfast.AcquireOptions{Reentrant: true}})
		if err != nil || again.Slot() != l.Slot() || again.Token() != l.Token() {
			t.Fatalf("a nested hold: %v, %v", again, err)
		}
		lock, err := b.client.Acquire(l.Context(), "k", nil) // the lock of that name is not one of the slots
		if err != nil {
			t.Fatal(err)
		}
		b.release(lock, again, l)
		b.wantSlotsFree("k", 2)
	})
}

func TestMaxWaitersBoundsSlotWaiters(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		other := b.newPeer()
		held := []*holdfast.Lease{b.acquireAs(other, "k", &claim{slots: 2}), b.acquireAs(other, "k", &claim{slots: 2})}
		opts := &claim{slots: 2, AcquireOptions: holdfast.AcquireOptions{MaxWaiters: 3}}
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() { b.release(b.acquireAs(b.client, "k", opts)) })
			time.Sleep(time.Second)
		}
		_, err := acquireAs(t.Context(), b.client, "k", opts)
		wantErr(t, err, holdfast.ErrHeld)
		if !strings.Contains(err.Error(), "3 wait for it already") {
			t.Errorf("the error is %q", err)
		}
		_, err = acquireAs(t.Context(), b.newPeer(), "k", &claim{slots: 2, AcquireOptions: holdfast.AcquireOptions{MaxWaiters: 1}})
		wantErr(t, err, holdfast.ErrHeld)
		b.release(held...)
		all.Wait()
	})
}

// Wait may elapse after one slot was checked and before the next.
func TestSlotWaitEndedDuringSearchIsHeld(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		p := b.newPeer()
		held := []*holdfast.Lease{b.acquireAs(p, "k", &claim{slots: 2}), b.acquireAs(p, "k", &claim{slots: 2})}
		for i := range 5 {
			b.drv.Node(i).Delay(60 * time.Millisecond)
		}
		_, err := acquireAs(t.Context(), b.client, "k", &claim{slots: 2, AcquireOptions: holdfast.AcquireOptions{Wait: 100 * time.Millisecond}})
		wantErr(t, err, holdfast.ErrHeld)
		b.release(held...)
	})
}

func TestSlotWaitNamesHeldSlot(t *testing.T) {
	var waits []holdfast.WaitingEvent
	opts := &holdfast.Options{Hooks: holdfast.Hooks{Waiting: func(e holdfast.WaitingEvent) { waits = append(waits, e) }}}
	inBubbleWith(t, opts, func(t *testing.T, b *bench) {
		held := b.holdSlots(2, 2)
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() { b.release(b.acquireAs(b.client, "k", &claim{slots: 2})) })
			time.Sleep(time.Second)
		}
		awaitHooks()
		for _, e := range waits {
			st, err := b.client.Inspect(t.Context(), e.Lock)
			if err != nil || e.Key != "k" || st.Owner != e.Held.Owner {
				t.Errorf("the wait is for %q, held by %v; holder %+v, %v", e.Lock, e.Held, st, err)
			}
		}
		if len(waits) != 3 {
			t.Errorf("%d Waiting events, want 3", len(waits))
		}
		b.release(held...)
		all.Wait()
	})
}
