package locktest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast"
)

var severalCases = []testCase{
	{"AcquireAllIsAllOrNothing", acquireAllOrNothing},
	{"AcquireAllDoesNotDeadlock", acquireAllDoesNotDeadlock},
	{"SlotsBoundHolders", slotsBoundHolders},
	{"SlotWaitersAreServedInOrder", slotsInOrder},
	{"ReadersShareAndWritersExclude", writersExcludeReaders},
	{"WaitingWriterBlocksNewReaders", waitingWriterBlocksReaders},
}

func acquireAllOrNothing(b *bench) {
	c, other := b.newClient(), b.newClient()
	keys := []string{"k", "another", "k2"}
	l := b.acquire(other, "k", nil)
	var err error
	b.checkNoError(b.retryLate(func() error {
		if _, err = c.TryAcquireAll(b.Context(), keys, nil); b.isStall(err) {
			return err
		}
		return nil
	}))
	b.checkError(err, holdfast.ErrHeld)
	b.checkFree(other, "another")
	b.checkFree(other, "k2")
	done := make(chan *holdfast.Leases)
	go func() { done <- b.acquireAll(c, keys) }()
	b.awaitWait(other, "k", 1)
	b.checkHeld(other, "another")
	b.release(l)
	all := <-done
	if all == nil {
		return
	}
	for _, key := range keys {
		b.checkHeld(other, key)
	}
	if err := all.Release(b.Context()); err != nil && !b.isStall(err) {
		b.Errorf("Release() = %v", err)
	}
	b.checkCleared()
}

// acquireAll returns nil if it fails.
func (b *bench) acquireAll(c *holdfast.Client, keys []string) (all *holdfast.Leases) {
	err := b.retryLate(func() (err error) {
		all, err = c.AcquireAll(b.boundedContext(), keys, &holdfast.AcquireOptions{TTL: b.long})
		return err
	})
	if err != nil {
		b.Errorf("AcquireAll(%q) = %v", keys, err)
	}
	return all
}

// acquireAllDoesNotDeadlock lets clients acquire overlapping sets of locks, named in any order.
func acquireAllDoesNotDeadlock(b *bench) {
	const clients, names = 4, 6
	var locks [names]guardedSection
	for i := range locks {
		locks[i].b = b
	}
	all := b.newClients(clients)
	runTogether(clients, func(i int) {
		for range b.roundCount(60, 12) {
			set := rand.Perm(names)[:1+rand.N(4)]
			var keys []string
			for _, n := range set {
				keys = append(keys, keyOf(n))
			}
			leases := b.acquireAll(all[i], keys)
			if leases == nil {
				return
			}
			for _, n := range set {
				locks[n].enter(leases.Lease(keyOf(n)))
			}
			time.Sleep(randomUpTo(2 * time.Millisecond)) // otherwise two holders would never meet
			for _, n := range set {
				locks[n].leave(leases.Lease(keyOf(n)))
			}
			if err := leases.Release(b.Context()); err != nil && !b.isStall(err) {
				b.Errorf("Release() = %v", err)
			}
		}
	})
	b.checkCleared()
}

// acquireSlot returns nil if it fails.
func (b *bench) acquireSlot(c *holdfast.Client, slots int) (l *holdfast.Lease) {
	err := b.retryLate(func() (err error) {
		l, err = c.Semaphore("k", slots).Acquire(b.boundedContext(), &holdfast.AcquireOptions{TTL: b.long})
		return err
	})
	if err != nil {
		b.Errorf("Acquire() = %v", err)
	}
	return l
}

// slotsBoundHolders lets more callers than slots, some in one process, hold slots in turn.
func slotsBoundHolders(b *bench) {
	const clients, callers, slots = 3, 3, 3
	var all holders
	var highest atomic.Int64
	var each [slots]guardedSection
	for i := range each {
		each[i].b = b
	}
	some := b.newClients(clients)
	runTogether(clients*callers, func(i int) {
		for range b.roundCount(40, 8) {
			l := b.acquireSlot(some[i%clients], slots)
			if l == nil {
				return
			}
			if l.Key() != fmt.Sprintf("k#%d", l.Slot()) {
				b.Errorf("slot %d has the key %q", l.Slot(), l.Key())
			}
			each[l.Slot()].enter(l)
			_, n := all.enter(l, true)
			raiseMax(&highest, int64(n))
			time.Sleep(randomUpTo(5 * time.Millisecond)) // otherwise two holders would never meet
			all.leave(l)
			each[l.Slot()].leave(l)
			b.release(l)
		}
	})
	if n := highest.Load(); n > slots || n == 1 || b.virtual && n < slots {
		b.Errorf("%d holders of %d slots at once", n, slots)
	}
	b.checkCleared()
}

// slotsInOrder frees a slot for one waiter after the other. Like inOrder, it makes up to three attempts on a
// real service.
func slotsInOrder(b *bench) {
	b.skipWithout(b.limits.Order, "Limits.Order")
	b.skipWithout(b.can.inspect, "driver.Inspector")
	const slots, waiters = 2, 5
	var want, order []int
	for i := range waiters {
		want = append(want, i)
	}
	for range b.roundCount(1, 3) {
		holder := b.newClient()
		held := []*holdfast.Lease{b.acquireSlot(holder, slots), b.acquireSlot(holder, slots)}
		order = nil
		var mu sync.Mutex // guards order
		var waiting sync.WaitGroup
		all := b.newClients(waiters)
		served := make(chan *holdfast.Lease)
		for i, c := range all {
			waiting.Go(func() {
				l := b.acquireSlot(c, slots)
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				served <- l
			})
			for slot := range slots {
				b.awaitWaiters(holder, fmt.Sprintf("k#%d", slot), i+1)
			}
			time.Sleep(time.Millisecond) // in a bubble the next could otherwise come at the same time
		}
		b.release(held[0])
		for range waiters {
			if l := <-served; l != nil { // the other slot is held, so one waiter at a time gets a slot
				b.release(l)
			}
		}
		waiting.Wait()
		b.release(held[1])
		if slices.Equal(order, want) {
			break
		}
	}
	if !slices.Equal(order, want) {
		b.Errorf("served in the order %v, want %v", order, want)
	}
	b.checkCleared()
}

// acquireReaderOrWriter acquires k as a reader or as the writer, with that many readers. It returns nil if it fails.
func (b *bench) acquireReaderOrWriter(c *holdfast.Client, readers int, shared bool) (l *holdfast.Lease) {
	acquire := c.RWLock("k", readers).AcquireWrite
	if shared {
		acquire = c.RWLock("k", readers).AcquireRead
	}
	err := b.retryLate(func() (err error) {
		l, err = acquire(b.boundedContext(), &holdfast.AcquireOptions{TTL: b.long})
		return err
	})
	if err != nil {
		b.Errorf("Acquire() = %v", err)
	}
	return l
}

// raiseMax sets v to at least n.
func raiseMax(v *atomic.Int64, n int64) {
	for was := v.Load(); n > was && !v.CompareAndSwap(was, n); was = v.Load() {
	}
}

// writersExcludeReaders lets readers and writers, some in one process, hold a lock in turn.
func writersExcludeReaders(b *bench) {
	b.skipWithout(b.limits.NoRWLock == "", "read and write locks")
	const clients, callers, readers = 3, 3, 4
	var inside holders
	var highest, highestWrite atomic.Int64
	check := func(l *holdfast.Lease, shared bool) {
		w, r := inside.enter(l, shared)
		if w+r == 0 {
			return
		}
		if w > 1 || w == 1 && r > 0 || r > readers {
			b.Errorf("%d writers and %d readers at once", w, r)
		}
		token := int64(l.Token())
		if b.limits.Token && (token <= highestWrite.Load() || !shared && token <= highest.Load()) {
			b.Errorf("token %d after %d, and a writer's token %d", token, highest.Load(), highestWrite.Load())
		}
		raiseMax(&highest, token)
		if !shared {
			highestWrite.Store(token)
		}
	}
	all := b.newClients(clients)
	runTogether(clients*callers, func(i int) {
		for n := range b.roundCount(40, 8) {
			shared := (i+n)%3 > 0
			l := b.acquireReaderOrWriter(all[i%clients], readers, shared)
			if l == nil {
				return
			}
			check(l, shared)
			time.Sleep(randomUpTo(5 * time.Millisecond)) // otherwise two holders would never meet
			inside.leave(l)
			b.release(l)
		}
	})
	var held []*holdfast.Lease
	for _, c := range all { // each while those before hold it
		if l := b.acquireReaderOrWriter(c, readers, true); l != nil {
			held = append(held, l)
		}
	}
	b.release(held...)
	b.checkCleared()
}

// waitingWriterBlocksReaders lets readers queue behind a waiting writer, and enter beside it after its Downgrade.
func waitingWriterBlocksReaders(b *bench) {
	b.skipWithout(b.limits.NoRWLock == "", "read and write locks")
	b.skipWithout(b.limits.Order, "Limits.Order")
	b.skipWithout(b.can.inspect, "driver.Inspector")
	const readers = 4
	all := b.newClients(4)
	first := b.acquireReaderOrWriter(all[0], readers, true)
	if first == nil {
		return
	}
	ask := func(c *holdfast.Client, shared bool) <-chan *holdfast.Lease {
		got := make(chan *holdfast.Lease, 1)
		go func() { got <- b.acquireReaderOrWriter(c, readers, shared) }()
		return got
	}
	writer := ask(all[1], false)
	b.awaitWait(all[0], first.Key(), 1)
	later := []<-chan *holdfast.Lease{ask(all[2], true), ask(all[3], true)}
	b.awaitWait(all[0], "k", 2)
	select {
	case <-writer:
		b.Fatal("a writer entered beside a reader")
	case <-later[0]:
		b.Fatal("a reader overtook the writer")
	case <-later[1]:
		b.Fatal("a reader overtook the writer")
	default:
	}
	b.release(first)
	w := <-writer
	select {
	case <-later[0]:
		b.Fatal("a reader entered beside a writer")
	case <-later[1]:
		b.Fatal("a reader entered beside a writer")
	default:
	}
	if w == nil {
		return
	}
	reader, err := w.Downgrade(b.boundedContext())
	if err != nil {
		b.Fatalf("Downgrade() = %v", err)
	}
	one, two := <-later[0], <-later[1] // none releases before all have entered
	if one == nil || two == nil {
		return
	}
	if b.limits.Token && (w.Token() <= first.Token() || min(one.Token(), two.Token()) <= w.Token()) {
		b.Errorf("tokens %d, then %d of the writer, then %d and %d", first.Token(), w.Token(), one.Token(), two.Token())
	}
	b.release(reader, one, two)
	b.checkCleared()
}
