package holdfast_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
)

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
					t.Errorf("under a %s: %v, want an error that contains %q", name, err, c.says)
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

func TestDowngradeExcludesOtherWriters(t *testing.T) {
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
			t.Errorf("reader %q has token %d, and the writer had %d: %v", r.Key(), r.Token(), w.Token(), context.Cause(r.Context()))
		}
		if !errors.Is(w.Context().Err(), context.Canceled) || !errors.Is(w.Check(t.Context()), holdfast.ErrLost) {
			t.Errorf("the writer's lease is still held: %v", w.Check(t.Context()))
		}
		end := r.Deadline()
		wantErr(t, w.Extend(t.Context(), 30*time.Second), holdfast.ErrLost)
		if !r.Deadline().Equal(end) {
			t.Errorf("the ended writer's lease moved the reader's deadline from %v to %v", end, r.Deadline())
		}
		l := <-beside
		if l.Token() <= r.Token() {
			t.Errorf("the admitted reader has token %d after %d", l.Token(), r.Token())
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

func TestDowngradedWriterNeverMeetsWriter(t *testing.T) {
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
				t.Errorf("the lease changed: %v", err)
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
				t.Errorf("the remaining hold: %v", err)
			}
			_, err = tryAcquire(t.Context(), b.newPeer(), "k", writerClaim(2))
			wantErr(t, err, holdfast.ErrHeld)
			b.release(again)
			b.wantAllFree("k", 2)
		}
	})
}

// A downgraded writer can nest reads. A nested write would deadlock.
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
			t.Fatalf("Acquire under the reader's lease = %v, %v; want a nested hold", again, err)
		}
		b.release(again, r)
		b.wantAllFree("k", 2)
	})
}
