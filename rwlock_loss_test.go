package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
)

func TestDeadReaderDelaysWriterByTTL(t *testing.T) {
	runOnNodeCounts(t, func(t *testing.T, b *bench) {
		dead := b.acquireAs(b.newPeer(), "k", &claim{readers: 4, shared: true, AcquireOptions: holdfast.AcquireOptions{TTL: 5 * time.Second, NoRenew: true}})
		begin := time.Now()
		w := b.acquireAs(b.client, "k", writerClaim(4))
		if waited := time.Since(begin); waited < 4*time.Second || waited > 6*time.Second {
			t.Errorf("the writer waited for %v", waited)
		}
		if dead.Context().Err() == nil || w.Token() <= dead.Token() {
			t.Errorf("the reader with token %d ended with %v, and the writer has token %d", dead.Token(), dead.Context().Err(), w.Token())
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

// A reader that loses the gate while it waits for a place queues again, behind the callers that passed the gate
// meanwhile.
func TestReaderQueuesAgainAfterLosingGate(t *testing.T) {
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
			t.Errorf("the writer lost its lease: %v", err)
		}
		b.release(w)
		if l := <-reader; l.Token() <= w.Token() {
			t.Errorf("reader token %d after writer token %d", l.Token(), w.Token())
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

func TestMaxHoldOfWriterBeginsWithItsLease(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		r := b.acquireAs(b.newPeer(), "k", readerClaim(3))
		got := b.acquireLater(b.client, &claim{readers: 3, AcquireOptions: holdfast.AcquireOptions{MaxHold: 20 * time.Second, MinHold: 15 * time.Second}})
		passTime(time.Minute)
		b.release(r)
		l := <-got
		passTime(10 * time.Second)
		if err := l.Context().Err(); err != nil {
			t.Fatalf("the lease was lost: %v", context.Cause(l.Context()))
		}
		begin := time.Now()
		b.release(l)
		next := b.acquireAs(b.client, "k", &claim{readers: 3, shared: true, AcquireOptions: holdfast.AcquireOptions{MaxHold: 20 * time.Second}})
		if waited := time.Since(begin); waited < 4*time.Second || waited > 6*time.Second {
			t.Errorf("a reader entered %v after a release 5 s before MinHold", waited)
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
					t.Errorf("Shutdown ended the lease: %v", err)
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
func TestCancelledReadersAndWritersFreeEverything(t *testing.T) {
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
