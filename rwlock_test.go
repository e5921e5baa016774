package holdfast_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
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

// readWriteWatch checks which holders are inside at the same time, and that their tokens rise.
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
		h.t.Errorf("%d writers and %d readers are inside together", h.writers, h.readers)
	}
	if below := h.highestWrite; reads && l.Token() <= below {
		h.t.Errorf("a reader has the token %d after a writer with %d", l.Token(), below)
	}
	if !reads && l.Token() <= h.highest {
		h.t.Errorf("a writer has the token %d after %d", l.Token(), h.highest)
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
				b.client = b.openClient(drv, nil)
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
		t.Fatalf("%s was let in, with token %d", who, l.Token())
	default:
	}
}

func TestWriterExcludesEverybody(t *testing.T) {
	runOnNodeCounts(t, func(t *testing.T, b *bench) {
		h := readWriteWatch{t: t}
		var all sync.WaitGroup
		for i := range 4 {
			c := b.newPeer()
			for j := range 6 {
				all.Go(func() {
					for range 8 {
						opts := writerClaim(4)
						if j > 1 {
							opts = readerClaim(4)
						}
						opts.TTL = time.Duration(5+i%2) * time.Second
						err := doAs(t.Context(), c, "k", opts, func(_ context.Context, l *holdfast.Lease) error {
							h.enter(l, opts.shared)
							defer h.leave(opts.shared)
							passTime(rand.N(20 * time.Millisecond))
							return nil
						})
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		all.Wait()
		if h.most < 2 {
			t.Errorf("%d readers were inside together", h.most)
		}
		b.wantAllFree("k", 4)
	})
}

func TestReadersHoldTogetherAndWritersAlone(t *testing.T) {
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
			t.Errorf("%d readers were inside together, want 64", h.most)
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
			t.Errorf("the writer has the key %q and token %d after %d", w.Key(), w.Token(), first.Token())
		}
		passTime(time.Minute)
		for _, r := range later {
			wantWaiting(t, "a reader beside the writer", r)
		}
		b.release(w)
		for _, r := range later { // none of them releases before all have entered
			l := <-r
			if l.Token() <= w.Token() || l.Key() != fmt.Sprintf("k#%d", l.Slot()) {
				t.Errorf("a reader has the key %q and token %d after %d", l.Key(), l.Token(), w.Token())
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
						t.Fatalf("the order is %v, want %v at %d", order, group, at)
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
			t.Errorf("the error %q does not say %q", err, want)
		}
		third := b.acquireLater(b.client, readerClaim(2))
		wantWaiting(t, "a third reader", third)
		b.release(held[0])
		b.release(<-third, held[1])
		b.wantAllFree("k", 2)
	})
}

func TestDeadReaderDelaysWriterByTTL(t *testing.T) {
	runOnNodeCounts(t, func(t *testing.T, b *bench) {
		dead := b.acquireAs(b.newPeer(), "k", &claim{readers: 4, shared: true, AcquireOptions: holdfast.AcquireOptions{TTL: 5 * time.Second, NoRenew: true}})
		begin := time.Now()
		w := b.acquireAs(b.client, "k", writerClaim(4))
		if waited := time.Since(begin); waited < 4*time.Second || waited > 6*time.Second {
			t.Errorf("the writer waited for %v", waited)
		}
		if dead.Context().Err() == nil || w.Token() <= dead.Token() {
			t.Errorf("the reader with token %d ended with %v, and the writer has %d", dead.Token(), dead.Context().Err(), w.Token())
		}
		b.release(w)
	})
}

func TestLostPlaceEndsWriter(t *testing.T) {
	for name, margin := range map[string]time.Duration{"at once": 0, "with a margin": time.Second} {
		t.Run(name, func(t *testing.T) {
			runOnNodeCounts(t, func(t *testing.T, b *bench) {
				other := b.newPeer()
				w := b.acquireAs(b.client, "k", &claim{readers: 4, AcquireOptions: holdfast.AcquireOptions{Margin: margin}})
				b.forceLock(other, "k#2")
				reader := b.acquireLater(other, readerClaim(4))
				cause := context.Cause(w.Context())
				wantErr(t, cause, holdfast.ErrLost, holdfast.ErrGone)
				if cause == nil || !strings.Contains(cause.Error(), `"k#2": `) {
					t.Fatalf("the cause is %v", cause)
				}
				if margin > 0 {
					wantWaiting(t, "a reader, while the writer has time to stop", reader)
					if err := w.Release(t.Context()); !errors.Is(err, holdfast.ErrLost) {
						t.Errorf("Release() = %v", err)
					}
				}
				l := <-reader
				wantErr(t, w.Release(t.Context()), holdfast.ErrLost)
				wantErr(t, w.Check(t.Context()), holdfast.ErrLost)
				b.release(l)
				b.wantAllFree("k", 4)
			})
		})
	}
}

func TestWriterWithoutGateFreesPlaces(t *testing.T) {
	runOnNodeCounts(t, func(t *testing.T, b *bench) {
		w := b.acquireAs(b.client, "k", writerClaim(4))
		if err := b.newPeer().ForceRelease(t.Context(), "k", w.Token(), "test"); err != nil {
			t.Fatal(err)
		}
		l := b.acquireAs(b.newPeer(), "k", writerClaim(4))
		wantErr(t, context.Cause(w.Context()), holdfast.ErrGone)
		if l.Token() <= w.Token() {
			t.Errorf("token %d after %d", l.Token(), w.Token())
		}
		b.release(l)
		b.wantAllFree("k", 4)
	})
}

// A reader whose gate is taken away while it waits for a place queues again, behind the callers that passed
// the gate meanwhile.
func TestGateLostMidwayGrantsNothing(t *testing.T) {
	runOnNodeCounts(t, func(t *testing.T, b *bench) {
		other := b.newPeer()
		held := []*holdfast.Lease{b.acquireAs(other, "k", readerClaim(2)), b.acquireAs(other, "k", readerClaim(2))}
		reader := b.acquireLater(b.client, readerClaim(2))
		writer := b.acquireLater(b.newPeer(), writerClaim(2))
		forced := b.forceLock(other, "k")
		passTime(time.Second)
		b.release(held...)
		w := <-writer
		passTime(time.Minute)
		wantWaiting(t, "the reader", reader)
		b.release(w)
		l := <-reader
		if l.Token() <= w.Token() || w.Token() <= forced {
			t.Errorf("tokens %d, %d, %d do not rise", forced, w.Token(), l.Token())
		}
		b.release(l)
		b.wantAllFree("k", 2)
	})
}

func TestMaxWaitersSparesCallerThatLostGate(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		other := b.newPeer()
		held := []*holdfast.Lease{b.acquireAs(other, "k", readerClaim(2)), b.acquireAs(other, "k", readerClaim(2))}
		opts := readerClaim(2)
		opts.MaxWaiters = 1
		reader := b.acquireLater(b.client, opts)
		writers := []<-chan *holdfast.Lease{b.acquireLater(b.newPeer(), writerClaim(2)), b.acquireLater(b.newPeer(), writerClaim(2))}
		b.forceLock(other, "k")
		passTime(time.Second)
		wantWaiting(t, "the reader", reader)
		b.release(held...)
		for _, waiting := range append(writers, reader) {
			b.release(<-waiting)
		}
	})
}

// A starved reader may be granted its place after its gate has expired. It returns the place, because a writer may
// hold the key.
func TestReaderWithoutGateReturnsPlace(t *testing.T) {
	runOnNodeCounts(t, func(t *testing.T, b *bench) {
		other, starved := b.newPeer(), b.newPeer()
		held := []*holdfast.Lease{b.acquireAs(other, "k", readerClaim(2)), b.acquireAs(other, "k", readerClaim(2))}
		reader := b.acquireLater(starved, &claim{readers: 2, shared: true, AcquireOptions: holdfast.AcquireOptions{TTL: time.Second}})
		starved.StopWatchdog()
		passTime(5 * time.Second) // its gate has expired, and nobody has notified it
		writer := b.acquireLater(b.client, writerClaim(2))
		b.release(held...)
		w := <-writer
		wantWaiting(t, "the reader", reader)
		passTime(time.Second)
		wantWaiting(t, "the reader", reader)
		if err := context.Cause(w.Context()); err != nil {
			t.Errorf("the writer has lost its lease: %v", err)
		}
		b.release(w)
		if l := <-reader; l.Token() <= w.Token() {
			t.Errorf("a reader has the token %d after a writer with %d", l.Token(), w.Token())
		}
	})
}

func TestReadersAndWritersSurviveOutage(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		h := readWriteWatch{t: t}
		var all sync.WaitGroup
		for i := range 4 {
			c := b.newPeer()
			for j := range 4 {
				opts := writerClaim(3)
				opts.shared = (i+j)%3 > 0
				opts.TTL = 2 * time.Second
				all.Go(func() {
					for range 6 {
						l := b.acquireAs(c, "k", opts)
						h.enter(l, opts.shared)
						select {
						case <-l.Context().Done():
						case <-time.After(rand.N(2 * time.Second)):
						}
						h.leave(opts.shared)
						l.Release(t.Context())
					}
				})
			}
		}
		for range 5 {
			passTime(rand.N(3 * time.Second))
			b.freezeNodes()
			passTime(rand.N(6 * time.Second))
			b.startNodes()
		}
		all.Wait()
		passTime(10 * time.Second) // locks that could not be released have expired
		b.wantAllFree("k", 3)
	})
}

func TestUpgradeUnderLeaseIsRejected(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		type call struct {
			opts *claim
			says string
		}
		slots := &claim{slots: 2}
		lock := &claim{AcquireOptions: holdfast.AcquireOptions{Reentrant: true}}
		again := &claim{readers: 2, shared: true, AcquireOptions: holdfast.AcquireOptions{Reentrant: true}}
		for name, tt := range map[string]struct {
			under   *claim
			refused []call
		}{
			"reader": {readerClaim(2), []call{{writerClaim(2), "release that first, or begin as a writer"}, {lock, "of another kind"}, {slots, "of another kind"}}},
			"writer": {writerClaim(2), []call{{again, "with which it may read as well"}, {nil, "of another kind"}, {slots, "of another kind"}}},
			"lock":   {nil, []call{{readerClaim(2), "of another kind"}, {writerClaim(2), "of another kind"}}},
			"slot":   {slots, []call{{readerClaim(2), "of another kind"}, {writerClaim(2), "of another kind"}}},
			"reads on": {writerClaim(2), []call{
				{writerClaim(2), "release that first, or begin as a writer"}, {lock, "of another kind"}, {slots, "of another kind"},
			}},
		} {
			l := b.acquireAs(b.client, name, tt.under)
			if name == "reads on" {
				var err error
				if l, err = l.Downgrade(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithTimeout(l.Context(), time.Minute) // a call that is not rejected may wait for itself
			for _, c := range tt.refused {
				if _, err := acquireAs(ctx, b.client, name, c.opts); !errors.Is(err, holdfast.ErrInvalid) || !strings.Contains(err.Error(), c.says) {
					t.Errorf("under a %s: %v, want an error that says %q", name, err, c.says)
				}
			}
			_, err := b.client.AcquireAll(ctx, []string{"a", name}, nil)
			cancel()
			if tt.under != nil && tt.under.readers > 0 {
				wantErr(t, err, holdfast.ErrInvalid)
			}
			b.release(l)
		}
	})
}

func TestDowngradeAdmitsNoOtherWriter(t *testing.T) {
	runOnNodeCounts(t, func(t *testing.T, b *bench) {
		type tag struct{}
		w, err := acquireAs(context.WithValue(t.Context(), tag{}, "mine"), b.client, "k", writerClaim(3))
		if err != nil {
			t.Fatal(err)
		}
		beside := b.acquireLater(b.newPeer(), readerClaim(3))
		wantWaiting(t, "a reader beside the writer", beside)
		writer := b.acquireLater(b.newPeer(), writerClaim(3))
		behind := b.acquireLater(b.newPeer(), readerClaim(3))
		r, err := w.Downgrade(w.Context())
		if err != nil {
			t.Fatal(err)
		}
		if r.Token() != w.Token() || r.Key() != "k#0" || r.Context().Value(tag{}) != "mine" || r.Context().Err() != nil {
			t.Errorf("the reader has %q with token %d, and the writer had %d: %v", r.Key(), r.Token(), w.Token(), context.Cause(r.Context()))
		}
		if !errors.Is(w.Context().Err(), context.Canceled) || !errors.Is(w.Check(t.Context()), holdfast.ErrLost) {
			t.Errorf("the writer's lease goes on: %v", w.Check(t.Context()))
		}
		end := r.Deadline()
		wantErr(t, w.Extend(t.Context(), 30*time.Second), holdfast.ErrLost)
		if !r.Deadline().Equal(end) {
			t.Errorf("the writer's lease, which has ended, moved the reader's deadline from %v to %v", end, r.Deadline())
		}
		l := <-beside
		if l.Token() <= r.Token() {
			t.Errorf("the reader that came in has token %d after %d", l.Token(), r.Token())
		}
		passTime(time.Minute) // the lease is renewed
		if err := r.Check(t.Context()); err != nil {
			t.Error(err)
		}
		b.release(l)
		wantWaiting(t, "a writer beside the one that reads on", writer)
		b.release(r, w)
		next := <-writer
		wantWaiting(t, "a reader before the writer that came first", behind)
		if next.Token() <= l.Token() {
			t.Errorf("the next writer has token %d after %d", next.Token(), l.Token())
		}
		b.release(next)
		b.release(<-behind)
		b.wantAllFree("k", 3)
	})
}

func TestDowngradedWritersOnlyMeetReaders(t *testing.T) {
	runOnNodeCounts(t, func(t *testing.T, b *bench) {
		h := readWriteWatch{t: t}
		var all sync.WaitGroup
		for range 3 {
			c := b.newPeer()
			for j := range 4 {
				all.Go(func() {
					for range 8 {
						opts := writerClaim(3)
						opts.shared = j > 1
						l := b.acquireAs(c, "k", opts)
						h.enter(l, opts.shared)
						passTime(rand.N(20 * time.Millisecond))
						if !opts.shared {
							h.mu.Lock()
							h.writers, h.readers = h.writers-1, h.readers+1
							h.mu.Unlock()
							var err error
							if l, err = l.Downgrade(t.Context()); err != nil {
								t.Error(err)
								return
							}
							passTime(rand.N(20 * time.Millisecond))
						}
						h.leave(true)
						b.release(l)
					}
				})
			}
		}
		all.Wait()
		b.wantAllFree("k", 3)
	})
}

func TestOnlyUnnestedWriterDowngrades(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		for _, opts := range []*claim{nil, {slots: 2}, readerClaim(2)} {
			l := b.acquireAs(b.client, "k", opts)
			_, err := l.Downgrade(t.Context())
			wantErr(t, err, holdfast.ErrInvalid)
			if err := l.Check(t.Context()); err != nil {
				t.Errorf("it has not stayed as it was: %v", err)
			}
			b.release(l)
		}
		opts := writerClaim(2)
		opts.Reentrant, opts.MaxHold = true, time.Minute
		l := b.acquireAs(b.client, "k", opts)
		again, err := acquireAs(l.Context(), b.client, "k", opts)
		if err != nil {
			t.Fatal(err)
		}
		_, err = l.Downgrade(t.Context())
		wantErr(t, err, holdfast.ErrInvalid)
		b.release(again)
		passTime(40 * time.Second)
		r, err := l.Downgrade(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = l.Downgrade(t.Context())
		wantErr(t, err, holdfast.ErrLost)
		passTime(21 * time.Second)
		wantErr(t, context.Cause(r.Context()), holdfast.ErrMaxHold)
		lost := b.acquireAs(b.client, "k", writerClaim(2))
		for i := range 5 {
			b.drv.Node(i).DropLock("k#0")
		}
		passTime(10 * time.Second)
		_, err = lost.Downgrade(t.Context())
		wantErr(t, err, holdfast.ErrLost)
		b.wantAllFree("k", 2)
	})
}

func TestReadersAndWritersNestInTheirOwnKind(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		for _, opts := range []*claim{readerClaim(2), writerClaim(2)} {
			opts.Note = "n"
			l := b.acquireAs(b.client, "k", opts)
			_, err := acquireAs(l.Context(), b.client, "k", opts)
			wantErr(t, err, holdfast.ErrNested)
			opts.Reentrant = true
			again, err := acquireAs(l.Context(), b.client, "k", opts)
			if err != nil || again.Key() != l.Key() || again.Token() != l.Token() {
				t.Fatalf("a nested hold: %v, %v", again, err)
			}
			opts.readers = 3
			_, err = acquireAs(l.Context(), b.client, "k", opts)
			wantErr(t, err, holdfast.ErrInvalid)
			b.release(l)
			if err := again.Check(t.Context()); err != nil {
				t.Errorf("the hold that is left: %v", err)
			}
			_, err = tryAcquire(t.Context(), b.newPeer(), "k", writerClaim(2))
			wantErr(t, err, holdfast.ErrHeld)
			b.release(again)
			b.wantAllFree("k", 2)
		}
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

func TestMaxHoldOfWriterBeginsWithItsLease(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		r := b.acquireAs(b.newPeer(), "k", readerClaim(3))
		got := b.acquireLater(b.client, &claim{readers: 3, AcquireOptions: holdfast.AcquireOptions{MaxHold: 20 * time.Second, MinHold: 15 * time.Second}})
		passTime(time.Minute)
		b.release(r)
		l := <-got
		passTime(10 * time.Second)
		if err := l.Context().Err(); err != nil {
			t.Fatalf("it has ended: %v", context.Cause(l.Context()))
		}
		begin := time.Now()
		b.release(l)
		next := b.acquireAs(b.client, "k", &claim{readers: 3, shared: true, AcquireOptions: holdfast.AcquireOptions{MaxHold: 20 * time.Second}})
		if waited := time.Since(begin); waited < 4*time.Second || waited > 6*time.Second {
			t.Errorf("a reader came %v after a release 5 s before MinHold", waited)
		}
		passTime(21 * time.Second)
		wantErr(t, context.Cause(next.Context()), holdfast.ErrMaxHold)
		b.wantAllFree("k", 3)
	})
}

func TestCloseAndShutdownEndReadersAndWriters(t *testing.T) {
	for _, opts := range []*claim{readerClaim(2), writerClaim(2)} {
		t.Run(fmt.Sprint(opts.shared), func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				other := b.newPeer()
				held := []*holdfast.Lease{b.acquireAs(other, "k", readerClaim(2)), b.acquireAs(other, "k", readerClaim(2))}
				failed := make(chan error, 3)
				for range 3 {
					go func() {
						_, err := acquireAs(t.Context(), b.client, "k", opts)
						failed <- err
					}()
				}
				passTime(time.Second)
				if err := b.client.Close(); err != nil {
					t.Fatal(err)
				}
				for range 3 {
					wantErr(t, <-failed, holdfast.ErrClosed)
				}
				b.release(held...)
				c := b.newPeer()
				l := b.acquireAs(c, "k", opts)
				ended := make(chan error)
				go func() { ended <- c.Shutdown(t.Context()) }()
				passTime(time.Minute)
				if err := l.Context().Err(); err != nil {
					t.Errorf("Shutdown has ended the lease: %v", err)
				}
				b.release(l)
				if err := <-ended; err != nil {
					t.Errorf("Shutdown() = %v", err)
				}
				c = b.newPeer()
				l = b.acquireAs(c, "k", opts)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := c.Shutdown(ctx); err == nil || !strings.Contains(err.Error(), "locks still held, and released: 1") {
					t.Errorf("Shutdown() = %v", err)
				}
				wantErr(t, context.Cause(l.Context()), holdfast.ErrLost, holdfast.ErrClosed)
				wantWriteAtOnce(t, other)
			})
		})
	}
}

// wantWriteAtOnce checks that c can acquire k as a writer at once.
func wantWriteAtOnce(t *testing.T, c *holdfast.Client) {
	t.Helper()
	l, err := tryAcquire(t.Context(), c, "k", writerClaim(2))
	if err != nil {
		t.Fatal(err)
	}
	l.Release(t.Context())
}

// A caller whose context ends at any step leaves no lock and no queue entry.
func TestCancelledReaderOrWriterLeavesNothing(t *testing.T) {
	for _, opts := range []*claim{readerClaim(3), writerClaim(3)} {
		t.Run(fmt.Sprint(opts.shared), func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				for i := range 5 {
					b.drv.Node(i).Delay(time.Duration(i+1) * time.Millisecond)
				}
				other := b.newPeer()
				for after := time.Duration(0); after < 40*time.Millisecond; after += 500 * time.Microsecond {
					for _, inside := range []int{0, 1, 3} {
						var held []*holdfast.Lease
						for range inside {
							held = append(held, b.acquireAs(other, "k", readerClaim(3)))
						}
						ctx, cancel := context.WithTimeout(t.Context(), after)
						l, err := acquireAs(ctx, b.client, "k", opts)
						cancel()
						if err == nil {
							b.release(l)
						} else {
							wantErr(t, err, context.DeadlineExceeded)
						}
						b.release(held...)
						b.wantAllFree("k", 3)
					}
				}
			})
		})
	}
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
				t.Errorf("the error %v does not say %q", err, says)
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
func TestReadersNoRenewTTLBeginsWithItsPlace(t *testing.T) {
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

// A downgraded writer can nest further reads. A nested write would wait for itself.
func TestDowngradedWriterNestsLikeReader(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		w := b.acquireAs(b.client, "k", writerClaim(2))
		r, err := w.Downgrade(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		opts := readerClaim(2)
		_, err = tryAcquire(r.Context(), b.client, "k", opts)
		wantErr(t, err, holdfast.ErrNested)
		upgrade := writerClaim(2)
		upgrade.Wait = time.Second
		_, err = acquireAs(r.Context(), b.client, "k", upgrade)
		wantErr(t, err, holdfast.ErrInvalid)
		opts.Reentrant, opts.Wait = true, time.Second
		again, err := acquireAs(r.Context(), b.client, "k", opts)
		if err != nil || again.Owner() != r.Owner() || again.Token() != r.Token() {
			t.Fatalf("Acquire under the reader's lease = %v, %v; want another hold of it", again, err)
		}
		b.release(again, r)
		b.wantAllFree("k", 2)
	})
}
