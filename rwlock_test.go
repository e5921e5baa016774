package holdfast_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/memory"
)

// readerClaim is one of n readers, and writerClaim is a writer beside n readers.
func readerClaim(n int) *claim { return &claim{readers: n, shared: true} }

func writerClaim(n int) *claim { return &claim{readers: n} }

// readWriteWatch checks that writers exclude all others, and that tokens rise.
type readWriteWatch struct {
	t                     *testing.T
	mu                    sync.Mutex
	readers, writers      int
	most                  int            // highest number of readers at once
	highest, highestWrite holdfast.Token // highest tokens of all holders, and of the writers
}

func (h *readWriteWatch) enter(l *holdfast.Lease, reads bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if reads {
		h.readers++
		h.most = max(h.most, h.readers)
	} else {
		h.writers++
	}
	if h.writers > 1 || h.writers == 1 && h.readers > 0 {
		h.t.Errorf("%d writers and %d readers at once", h.writers, h.readers)
	}
	if below := h.highestWrite; reads && l.Token() <= below {
		h.t.Errorf("reader token %d after writer token %d", l.Token(), below)
	}
	if !reads && l.Token() <= h.highest {
		h.t.Errorf("writer token %d after %d", l.Token(), h.highest)
	}
	h.highest = max(h.highest, l.Token())
	if !reads {
		h.highestWrite = l.Token()
	}
}

func (h *readWriteWatch) leave(reads bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if reads {
		h.readers--
	} else {
		h.writers--
	}
}

// runOnNodeCounts runs fn in three bubbles, with clients of 1, 3 and 5 nodes.
func runOnNodeCounts(t *testing.T, fn func(t *testing.T, b *bench)) {
	t.Parallel()
	for _, nodes := range []int{1, 3, 5} {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				drv := memory.New(nodes)
				b := &bench{t: t, drv: drv}
				b.client = openClient(b.t, drv, nil)
				fn(t, b)
			})
		})
	}
}

// wantAllFree checks that nobody holds or awaits the gate or a place.
func (b *bench) wantAllFree(key string, n int) {
	b.t.Helper()
	passTime(time.Second) // late grants are released in the background
	b.wantSlotsFree(key, n)
	if st, err := b.client.Inspect(b.t.Context(), key); err != nil || st.Held || st.Waiters != 0 {
		b.t.Errorf("the gate of %q: %+v, %v", key, st, err)
	}
}

// acquireLater starts to acquire k with c in the background.
func (b *bench) acquireLater(c *holdfast.Client, opts *claim) <-chan *holdfast.Lease {
	b.t.Helper()
	got := make(chan *holdfast.Lease, 1)
	go func() {
		l, err := acquireAs(b.t.Context(), c, "k", opts)
		if err != nil {
			b.t.Errorf("Acquire() = %v", err)
		}
		got <- l
	}()
	passTime(10 * time.Millisecond)
	return got
}

func wantWaiting(t *testing.T, who string, got <-chan *holdfast.Lease) {
	t.Helper()
	select {
	case l := <-got:
		t.Fatalf("%s was admitted with token %d", who, l.Token())
	default:
	}
}

func TestDoHoldsSlotOrPlace(t *testing.T) {
	mine := errors.New("mine")
	for name, w := range map[string]*claim{"slot": {slots: 2}, "reader": readerClaim(2), "writer": writerClaim(2)} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				err := doAs(t.Context(), b.client, "k", w, func(_ context.Context, l *holdfast.Lease) error {
					if st, err := b.newPeer().Inspect(t.Context(), l.Key()); err != nil || !st.Held {
						t.Errorf("during Do, %q is %+v, %v", l.Key(), st, err)
					}
					return mine
				})
				wantErr(t, err, mine)
				b.wantAllFree("k", 2)
			})
		})
	}
}

func TestReadersShareAndWritersExclude(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		h := readWriteWatch{t: t}
		var all sync.WaitGroup
		var clients []*holdfast.Client
		for range 4 {
			clients = append(clients, b.newPeer())
		}
		for i := range 64 {
			all.Go(func() {
				l := b.acquireAs(clients[i%4], "k", readerClaim(64))
				h.enter(l, true)
				passTime(10 * time.Second)
				h.leave(true)
				b.release(l)
			})
		}
		passTime(time.Second)
		l := b.acquireAs(b.client, "k", writerClaim(64))
		h.mu.Lock()
		if h.most != 64 {
			t.Errorf("%d readers at once, want 64", h.most)
		}
		h.mu.Unlock()
		h.enter(l, false)
		h.leave(false)
		b.release(l)
		all.Wait()
		b.wantAllFree("k", 64)
	})
}

func TestWaitingWriterBlocksNewReaders(t *testing.T) {
	runOnNodeCounts(t, func(t *testing.T, b *bench) {
		first := b.acquireAs(b.newPeer(), "k", readerClaim(8))
		writer := b.acquireLater(b.newPeer(), writerClaim(8))
		var later []<-chan *holdfast.Lease
		for i := range 5 {
			c := b.client
			if i%2 == 0 {
				c = b.newPeer()
			}
			later = append(later, b.acquireLater(c, readerClaim(8)))
		}
		passTime(time.Minute) // the locks of all waiters are renewed meanwhile
		wantWaiting(t, "the writer", writer)
		for _, r := range later {
			wantWaiting(t, "a reader behind the writer", r)
		}
		b.release(first)
		w := <-writer
		if w.Token() <= first.Token() || w.Key() != "k" {
			t.Errorf("writer has key %q and token %d after %d", w.Key(), w.Token(), first.Token())
		}
		passTime(time.Minute)
		for _, r := range later {
			wantWaiting(t, "a reader beside the writer", r)
		}
		b.release(w)
		for _, r := range later { // none of them releases before all have entered
			l := <-r
			if l.Token() <= w.Token() || l.Key() != fmt.Sprintf("k#%d", l.Slot()) {
				t.Errorf("reader has key %q and token %d after %d", l.Key(), l.Token(), w.Token())
			}
			defer b.release(l)
		}
	})
}

func TestReadersAndWritersEnterInArrivalOrder(t *testing.T) {
	for name, together := range map[string]bool{"one process": true, "each its own": false} {
		t.Run(name, func(t *testing.T) {
			runOnNodeCounts(t, func(t *testing.T, b *bench) {
				first := b.acquireAs(b.client, "k", writerClaim(3))
				var mu sync.Mutex
				var order []int
				var all sync.WaitGroup
				for i, reads := range []bool{true, false, true, true, false, false, true, true, true} {
					c := b.client
					if !together {
						c = b.newPeer()
					}
					opts := writerClaim(3)
					opts.shared = reads
					all.Go(func() {
						l := b.acquireAs(c, "k", opts)
						mu.Lock()
						order = append(order, i)
						mu.Unlock()
						passTime(time.Second)
						b.release(l)
					})
					passTime(50 * time.Millisecond)
				}
				b.release(first)
				all.Wait()
				at := 0
				for _, group := range [][]int{{0}, {1}, {2, 3}, {4}, {5}, {6, 7, 8}} { // readers that enter together report in any order
					got := slices.Sorted(slices.Values(order[at : at+len(group)]))
					if !slices.Equal(got, group) {
						t.Fatalf("order = %v, want %v at %d", order, group, at)
					}
					at += len(group)
				}
				b.wantAllFree("k", 3)
			})
		})
	}
}

func TestTryWaitsForEnteringReader(t *testing.T) {
	runOnNodeCounts(t, func(t *testing.T, b *bench) {
		b.drv.Node(0).Delay(20 * time.Millisecond)
		var held []*holdfast.Lease
		for range 8 { // each comes before the one ahead has released the gate
			l, err := tryAcquire(t.Context(), b.newPeer(), "k", readerClaim(8))
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, l)
		}
		for name, opts := range map[string]*claim{"reader": readerClaim(8), "writer": writerClaim(8)} {
			begin := time.Now()
			_, err := tryAcquire(t.Context(), b.client, "k", opts)
			wantErr(t, err, holdfast.ErrHeld)
			if waited := time.Since(begin); waited > time.Second || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v after %v", name, err, waited)
			}
		}
		b.release(held...)
		b.wantAllFree("k", 8)
	})
}

func TestReadersBeyondLimitWait(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		held := []*holdfast.Lease{b.acquireAs(b.client, "k", readerClaim(2)), b.acquireAs(b.newPeer(), "k", readerClaim(2))}
		_, err := tryAcquire(t.Context(), b.client, "k", readerClaim(2))
		wantErr(t, err, holdfast.ErrHeld)
		if want := "none of its 2 places for readers is free"; !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not contain %q", err, want)
		}
		third := b.acquireLater(b.client, readerClaim(2))
		wantWaiting(t, "a third reader", third)
		b.release(held[0])
		b.release(<-third, held[1])
		b.wantAllFree("k", 2)
	})
}

func TestEachLeaseHasOneEventOfEachKind(t *testing.T) {
	for name, opts := range map[string]*claim{"reader": readerClaim(8), "writer": writerClaim(8)} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var said []string
			var last holdfast.AcquiredEvent
			note := func(what, key string) {
				mu.Lock()
				defer mu.Unlock()
				said = append(said, what+" "+key)
			}
			in8 := holdfast.Hooks{
				Waiting: func(e holdfast.WaitingEvent) {
					if !strings.HasPrefix(e.Lock, "k") || e.Held == nil {
						t.Errorf("the event is %+v", e)
					}
					note("waiting", e.Key)
				},
				Acquired: func(e holdfast.AcquiredEvent) { last = e; note("acquired", e.Key) },
				Failed:   func(e holdfast.FailedEvent) { note("failed", e.Key) },
				Renewed:  func(e holdfast.RenewedEvent) { note("renewed", e.Key) },
				Lost:     func(e holdfast.LostEvent) { note("lost", e.Key) },
				Released: func(e holdfast.ReleasedEvent) { note("released", e.Key) },
			}
			inBubbleWith(t, &holdfast.Options{Hooks: in8}, func(t *testing.T, b *bench) {
				other := b.newPeer()
				want := func(events ...string) {
					t.Helper()
					awaitHooks()
					mu.Lock()
					defer mu.Unlock()
					if !slices.Equal(said, events) {
						t.Errorf("said %q, want %q", said, events)
					}
					said = nil
				}
				l := b.acquireAs(b.client, "k", opts)
				want("acquired k")
				passTime(2 * time.Second) // the first event follows soon
				want("renewed k")
				b.release(l)
				want("released k")

				held := b.acquireAs(other, "k", writerClaim(8))
				_, err := tryAcquire(t.Context(), b.client, "k", opts)
				wantErr(t, err, holdfast.ErrHeld)
				want("failed k")
				waiting := b.acquireLater(b.client, opts)
				want("waiting k")
				passTime(time.Second)
				b.release(held)
				l = <-waiting
				want("acquired k")
				if last.Waited < time.Second || !last.WaitReported || last.Token != l.Token() || last.Owner != l.Owner() {
					t.Errorf("the event is %+v", last)
				}
				b.forceLock(other, l.Key())
				passTime(time.Second)
				want("lost k")

				var places []*holdfast.Lease
				for range 8 {
					places = append(places, b.acquireAs(other, "k", readerClaim(8)))
				}
				passTime(time.Second) // the last reader releases the gate in the background
				_, err = acquireAs(t.Context(), b.client, "k", &claim{readers: 8, shared: opts.shared, AcquireOptions: holdfast.AcquireOptions{Wait: time.Second}})
				wantErr(t, err, holdfast.ErrHeld)
				awaitHooks()
				want("waiting k", "failed k")
				b.release(places...)
			})
		})
	}
}

func TestWriterExtendsAndChecksAllItsLocks(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		l := b.acquireAs(b.client, "k", &claim{readers: 3, AcquireOptions: holdfast.AcquireOptions{TTL: time.Second, MaxHold: time.Minute}})
		if err := l.Extend(t.Context(), 20*time.Second); err != nil {
			t.Fatal(err)
		}
		if left := time.Until(l.Deadline()); left < 15*time.Second {
			t.Errorf("the deadline is in %v", left)
		}
		b.client.StopWatchdog()
		passTime(15 * time.Second)
		if err := l.Check(t.Context()); err != nil {
			t.Error(err)
		}
		for i := range 3 { // the places last as long as the gate
			if st, err := b.newPeer().Inspect(t.Context(), fmt.Sprintf("k#%d", i)); err != nil || !st.Held || st.Holder.Note != "writer of 3" {
				t.Errorf("place %d: %+v, %v", i, st, err)
			}
		}
		for i := range 5 {
			b.drv.Node(i).DropLock("k#1")
		}
		wantErr(t, l.Check(t.Context()), holdfast.ErrLost)
	})
}

func TestMaxWaitersCountsWaitersAtGate(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		w := b.acquireAs(b.newPeer(), "k", writerClaim(2))
		opts := &claim{readers: 2, shared: true, AcquireOptions: holdfast.AcquireOptions{MaxWaiters: 2}}
		waiting := []<-chan *holdfast.Lease{b.acquireLater(b.client, opts), b.acquireLater(b.client, opts)}
		_, err := acquireAs(t.Context(), b.client, "k", opts)
		wantErr(t, err, holdfast.ErrHeld)
		if !strings.Contains(err.Error(), "2 wait for it already") {
			t.Errorf("the error is %q", err)
		}
		b.release(w)
		b.release(<-waiting[0], <-waiting[1])
	})
}

func TestAnotherNumberOfReadersIsReported(t *testing.T) {
	var said bytes.Buffer
	opts := &holdfast.Options{Logger: slog.New(slog.NewTextHandler(&said, nil))}
	inBubbleWith(t, opts, func(t *testing.T, b *bench) {
		w := b.acquireAs(b.newPeer(), "k", &claim{readers: 4, AcquireOptions: holdfast.AcquireOptions{Note: "n"}})
		_, err := tryAcquire(t.Context(), b.client, "k", readerClaim(3))
		wantErr(t, err, holdfast.ErrHeld)
		if e, _ := errors.AsType[*holdfast.HeldError](err); e == nil || e.Holder.Note != "writer of 4: n" {
			t.Errorf("the error is %v", err)
		}
		got := b.acquireLater(b.client, readerClaim(5))
		b.release(w)
		b.release(<-got)
		b.client.Close() // flushes the events
		for _, want := range []string{"differ in its slots or readers", `gave="3 readers" others="4 readers"`, `gave="5 readers" others="4 readers"`} {
			if !strings.Contains(said.String(), want) {
				t.Errorf("said %q, without %q", said.String(), want)
			}
		}
	})
}

func TestBadReaderCallsAreRejected(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		for says, o := range map[string]claim{
			"-1 readers": {readers: -1}, "1 readers": {readers: 1}, "65 readers": {readers: 65},
			"Adoptable":             {readers: 2, shared: true, AcquireOptions: holdfast.AcquireOptions{Adoptable: true}},
			"NoRenew for a writer":  {readers: 2, AcquireOptions: holdfast.AcquireOptions{NoRenew: true}},
			"the note has 49 bytes": {readers: 2, AcquireOptions: holdfast.AcquireOptions{Note: strings.Repeat("x", 49)}},
		} {
			_, err := acquireAs(t.Context(), b.client, "k", &o)
			wantErr(t, err, holdfast.ErrInvalid)
			if !strings.Contains(fmt.Sprint(err), says) {
				t.Errorf("error %v does not contain %q", err, says)
			}
		}
		_, err := acquireAs(t.Context(), b.client, strings.Repeat("k", 511), readerClaim(2))
		wantErr(t, err, holdfast.ErrInvalid)
		_, err = b.client.RWLock("k", 0).AcquireRead(t.Context(), nil)
		wantErr(t, err, holdfast.ErrInvalid)
		l := b.acquireAs(b.client, "k", writerClaim(2))
		wantErr(t, l.Detach(), holdfast.ErrInvalid)
		b.release(l)
	})
}

// A reader's lease with NoRenew lasts one TTL from when it got its place, however long it waited.
func TestUnrenewedReaderKeepsPlaceForWholeTTL(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		w := b.acquireAs(b.newPeer(), "k", writerClaim(2))
		got := b.acquireLater(b.client, &claim{readers: 2, shared: true, AcquireOptions: holdfast.AcquireOptions{NoRenew: true, TTL: 5 * time.Second}})
		passTime(time.Minute)
		b.release(w)
		l := <-got
		if left := time.Until(l.Deadline()); left < 4*time.Second {
			t.Errorf("%v is left", left)
		}
		passTime(6 * time.Second)
		wantErr(t, context.Cause(l.Context()), holdfast.ErrExpired)
	})
}
