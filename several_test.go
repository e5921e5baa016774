package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
)

func (b *bench) acquireAll(c *holdfast.Client, opts *holdfast.AcquireOptions, keys ...string) *holdfast.Leases {
	b.t.Helper()
	all, err := c.AcquireAll(b.t.Context(), keys, opts)
	if err != nil {
		b.t.Fatalf("AcquireAll(%q) = %v", keys, err)
	}
	return all
}

// wantFree checks that another client can acquire the locks, and releases them.
func (b *bench) wantFree(c *holdfast.Client, keys ...string) {
	b.t.Helper()
	for _, key := range keys {
		l, err := c.TryAcquire(b.t.Context(), key, nil)
		if err != nil {
			b.t.Fatalf("%q is not free: %v", key, err)
		}
		b.release(l)
	}
}

// keyOf returns the key in err.
func keyOf(err error) string {
	e, _ := errors.AsType[*holdfast.Error](err)
	if e == nil {
		return ""
	}
	return e.Key
}

func TestAcquireAllTakesAllOrNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		other := b.newPeer()
		theirs := b.acquire(other, "b", nil)
		_, err := b.client.TryAcquireAll(t.Context(), []string{"c", "b", "a"}, nil)
		wantErr(t, err, holdfast.ErrHeld)
		if keyOf(err) != "b" {
			t.Errorf("error %v does not name the held key", err)
		}
		begin := time.Now()
		_, err = b.client.AcquireAll(t.Context(), []string{"c", "b", "a"}, &holdfast.AcquireOptions{Wait: 3 * time.Second, MinHold: time.Minute})
		wantErr(t, err, holdfast.ErrHeld)
		if waited := time.Since(begin); waited != 3*time.Second || errors.Is(err, context.DeadlineExceeded) || keyOf(err) != "b" {
			t.Errorf("%v after %v", err, waited)
		}
		b.wantFree(other, "a", "c")
		b.release(theirs)

		all := b.acquireAll(b.client, nil, "c", "a", "b", "a")
		var keys []string
		for _, l := range all.All() {
			keys = append(keys, l.Key())
			if l.Token() == 0 || all.Lease(l.Key()) != l {
				t.Errorf("the lease on %q has token %d, and Lease returns %v", l.Key(), l.Token(), all.Lease(l.Key()))
			}
		}
		if !slices.Equal(keys, []string{"a", "b", "c"}) || all.Lease("ab") != nil {
			t.Errorf("leases on %q", keys)
		}
		for _, key := range keys {
			_, err := other.TryAcquire(t.Context(), key, nil)
			wantErr(t, err, holdfast.ErrHeld)
		}
		if err := all.Release(all.Context()); err != nil || !errors.Is(context.Cause(all.Context()), context.Canceled) {
			t.Errorf("Release() = %v, cause %v", err, context.Cause(all.Context()))
		}
		b.wantFree(other, keys...)
		for _, bad := range [][]string{nil, {"a", ""}, {"a", "holdfast:x"}} {
			_, err := b.client.AcquireAll(t.Context(), bad, nil)
			wantErr(t, err, holdfast.ErrInvalid)
		}
		_, err = b.client.AcquireAll(t.Context(), []string{"a", "b"}, &holdfast.AcquireOptions{NoRenew: true})
		wantErr(t, err, holdfast.ErrInvalid)
	})
}

func TestFreeLocksTakeOneRoundTripTogether(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		const way = 20 * time.Millisecond
		for i := range 5 {
			b.drv.Node(i).Delay(way)
		}
		keys := []string{"a", "b", "c", "d", "e", "f"}
		begin := time.Now()
		all := b.acquireAll(b.client, nil, keys...)
		if took := time.Since(begin); took != way {
			t.Errorf("six locks took %v, want one round trip of %v", took, way)
		}
		begin = time.Now()
		release(t, all)
		if took := time.Since(begin); took != way {
			t.Errorf("Release took %v, want one round trip of %v", took, way)
		}
	})
}

func TestLeasesEndWithFirstLostLease(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		operator := b.newPeer()
		all := b.acquireAll(b.client, nil, "a", "b", "c")
		if err := operator.ForceRelease(t.Context(), "b", all.Lease("b").Token(), "maintenance"); err != nil {
			t.Fatal(err)
		}
		<-all.Context().Done()
		cause := context.Cause(all.Context())
		wantErr(t, cause, holdfast.ErrLost, holdfast.ErrGone)
		if text := cause.Error(); !strings.HasPrefix(text, `"b": `) || !strings.HasSuffix(text, "maintenance") {
			t.Errorf("cause %q does not name the lost lease and its cause", text)
		}
		if all.Lease("a").Context().Err() != nil {
			t.Error("another lease ended too")
		}
		_, err := operator.TryAcquire(t.Context(), "c", nil)
		wantErr(t, err, holdfast.ErrHeld)
		err = all.Release(t.Context())
		wantErr(t, err, holdfast.ErrLost)
		if keyOf(err) != "b" {
			t.Errorf("Release() = %v", err)
		}
		b.wantFree(operator, "a", "b", "c")

		b.freezeNodes()
		_, err = b.client.TryAcquireAll(t.Context(), []string{"a", "b"}, nil)
		wantErr(t, err, holdfast.ErrUnavailable)
		b.startNodes()
	})
}

// The nodes hang while one of the leases is released a second time.
func TestFailedReleaseFreesOtherLeases(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		all := b.acquireAll(b.client, nil, "a", "b", "c")
		b.freezeNodes()
		begin := time.Now()
		err := all.Release(t.Context())
		wantErr(t, err, holdfast.ErrUnavailable)
		if took := time.Since(begin); took > 2*time.Second {
			t.Errorf("Release took %v: releases ran one after another", took)
		}
		if n := strings.Count(err.Error(), "release"); n < 3 {
			t.Errorf("error %v does not name all three keys", err)
		}
		b.startNodes()
		passTime(10 * time.Second)
		b.wantFree(b.newPeer(), "a", "b", "c")
	})
}

func TestFirstLeaseLastsWhileLastIsAwaited(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		const ttl = 2 * time.Second
		other := b.newPeer()
		theirs := b.acquire(other, "z", nil)
		got := make(chan *holdfast.Leases)
		go func() {
			got <- b.acquireAll(b.client, &holdfast.AcquireOptions{TTL: ttl, MaxHold: 5 * ttl}, "a", "m", "z")
		}()
		passTime(time.Second)
		for range 20 {
			passTime(ttl / 2)
			for _, key := range []string{"a", "m"} {
				_, err := other.TryAcquire(t.Context(), key, nil)
				wantErr(t, err, holdfast.ErrHeld)
			}
		}
		b.release(theirs)
		all := <-got
		passTime(100 * time.Millisecond) // a handed-over lease begins with a part of its TTL, and its first renewal follows at once
		if left := time.Until(all.Deadline()); left < ttl/2 || left > ttl {
			t.Errorf("%v of the leases are still held", left)
		}
		passTime(4 * ttl) // MaxHold counts from when all locks were held
		if err := all.Context().Err(); err != nil {
			t.Fatalf("the leases ended with %v", context.Cause(all.Context()))
		}
		passTime(ttl + time.Millisecond)
		wantErr(t, context.Cause(all.Context()), holdfast.ErrMaxHold)
		wantErr(t, all.Release(t.Context()), holdfast.ErrMaxHold)
		b.wantFree(other, "a", "m", "z")
	})
}

func TestLeaseLostMidwayIsAcquiredAgain(t *testing.T) {
	var failed []string
	hooks := holdfast.Hooks{Failed: func(e holdfast.FailedEvent) { failed = append(failed, e.Key) }}
	inBubbleWith(t, &holdfast.Options{Hooks: hooks}, func(t *testing.T, b *bench) {
		other := b.newPeer()
		theirs := b.acquire(other, "z", nil)
		got := make(chan *holdfast.Leases)
		go func() { got <- b.acquireAll(b.client, nil, "a", "z") }()
		passTime(time.Second)
		st, err := other.Inspect(t.Context(), "a")
		if err != nil || !st.Held {
			t.Fatalf("%+v, %v", st, err)
		}
		if err := other.ForceRelease(t.Context(), "a", st.Token, ""); err != nil {
			t.Fatal(err)
		}
		passTime(time.Second)
		b.release(theirs)
		all := <-got
		if token := all.Lease("a").Token(); token <= st.Token {
			t.Errorf("token %d after the forced %d", token, st.Token)
		}
		if err := errors.Join(all.Release(t.Context())); err != nil {
			t.Error(err)
		}
		awaitHooks()
		if !slices.Equal(failed, []string{"z"}) {
			t.Errorf("FailedEvents of %q, want only the event of the ended wait", failed)
		}
	})
}

func TestCancelledAcquireAllReleasesEverything(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		keys := []string{"a", "b", "c", "d"}
		clients := []*holdfast.Client{b.client, b.newPeer(), b.newPeer()}
		for i := range 5 {
			b.drv.Node(i).Delay(time.Millisecond)
		}
		var all sync.WaitGroup
		for _, c := range clients {
			all.Go(func() {
				for range 200 {
					ctx, cancel := context.WithTimeout(t.Context(), rand.N(12*time.Millisecond))
					leases, err := c.AcquireAll(ctx, keys[rand.N(3):], &holdfast.AcquireOptions{MinHold: time.Second})
					if err == nil {
						for _, l := range leases.All() { // because MinHold would keep the lock, as it should
							b.release(l)
						}
						leases.Release(ctx)
						passTime(time.Second)
					} else if !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("AcquireAll() = %v", err)
					}
					cancel()
				}
			})
		}
		all.Wait()
		passTime(time.Second)
		for st, err := range b.client.List(t.Context(), "") {
			t.Errorf("left: %+v, %v", st, err)
		}
	})
}

func TestNestedAcquireAllKeepsKeyOrder(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		again := &holdfast.AcquireOptions{Reentrant: true}
		outer := b.acquire(b.client, "b", nil)
		within := outer.Context()

		_, err := b.client.AcquireAll(within, []string{"b", "c"}, nil)
		wantErr(t, err, holdfast.ErrNested)
		_, err = b.client.AcquireAll(within, []string{"a", "b"}, again)
		wantErr(t, err, holdfast.ErrInvalid)
		if keyOf(err) != "a" {
			t.Errorf("error %v does not name the key that is out of order", err)
		}
		trial, err := b.client.TryAcquireAll(within, []string{"a", "b"}, again)
		if err != nil {
			t.Fatalf("TryAcquireAll, which does not wait: %v", err)
		}
		if trial.Lease("b").Token() != outer.Token() {
			t.Error("the nested hold does not belong to the lease")
		}
		release(t, trial)
		other, err := b.client.AcquireAll(within, []string{"a", "c"}, nil) // a key that the lease is not on
		if err != nil {
			t.Fatal(err)
		}
		release(t, other)

		all, err := b.client.AcquireAll(within, []string{"b", "c", "d"}, again)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"b", "c", "d"} { // each of them is held
			_, err := b.client.TryAcquire(all.Context(), key, nil)
			wantErr(t, err, holdfast.ErrNested)
		}
		_, err = b.client.AcquireAll(all.Context(), []string{"a"}, nil)
		wantErr(t, err, holdfast.ErrInvalid)
		more, err := b.client.AcquireAll(all.Context(), []string{"e"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		b.release(outer)
		if err := errors.Join(more.Release(t.Context()), all.Context().Err(), all.Release(t.Context())); err != nil {
			t.Error(err)
		}
		b.wantFree(b.newPeer(), "a", "b", "c", "d", "e")
	})
}

// The test runs the recipe of docs/kinds.md.
func TestFinishWaitsForDeadWorkers(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		const ttl = 5 * time.Second
		workers := []string{"import/0", "import/1", "import/2"}
		var leases []*holdfast.Lease
		for _, name := range workers {
			leases = append(leases, b.acquire(b.newPeer(), name, &holdfast.AcquireOptions{TTL: ttl, Adoptable: true}))
		}
		finished := make(chan error, 1)
		begin := time.Now()
		go func() { finished <- Finish(t.Context(), b.client, workers) }()
		passTime(20 * time.Second)
		b.release(leases[2], leases[0])
		passTime(20 * time.Second)
		if len(finished) > 0 {
			t.Fatal("Finish returned while a worker ran")
		}
		if err := leases[1].Detach(); err != nil { // like a worker that died
			t.Fatal(err)
		}
		if err := <-finished; err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took > 40*time.Second+ttl+time.Second {
			t.Errorf("Finish took %v", took)
		}
		b.wantFree(b.client, workers...)
	})
}

func TestCloseEndsAcquireAll(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		other, closing := b.newPeer(), b.newPeer()
		theirs := b.acquire(other, "b", nil)
		got := make(chan error)
		go func() {
			_, err := closing.AcquireAll(t.Context(), []string{"a", "b", "c"}, nil)
			got <- err
		}()
		passTime(time.Second)
		if err := closing.Close(); err != nil {
			t.Error(err)
		}
		wantErr(t, <-got, holdfast.ErrClosed)
		b.wantFree(other, "a", "c")
		b.release(theirs)
	})
}

// disturbNodes makes a minority of the nodes fail for long and all of them for short times, until ctx ends.
func (b *bench) disturbNodes(ctx context.Context) {
	for ctx.Err() == nil {
		first, some := rand.N(5), 1+rand.N(2)
		most := 20 * time.Second
		if rand.N(5) == 0 {
			some, most = 5, 12*time.Second
		}
		kind := rand.N(4)
		for i := range some {
			n := b.drv.Node((first + i) % 5)
			switch kind {
			case 0:
				n.Stop()
			case 1:
				n.Freeze()
			case 2:
				n.Delay(rand.N(300 * time.Millisecond))
			default:
				n.LoseReplies(rand.N(40))
			}
		}
		passTime(rand.N(most))
		for i := range 5 {
			b.drv.Node(i).Delay(0)
			b.drv.Node(i).LoseReplies(0)
		}
		b.startNodes()
		passTime(rand.N(5 * time.Second))
	}
}

// Sixteen clients acquire random sets of twelve locks, in any order, for ten minutes in which nodes fail.
func TestRandomSetsDoNotDeadlock(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		keys := make([]string, 12)
		for i := range keys {
			keys[i] = fmt.Sprintf("account/%d", i)
		}
		inside, last := make([]atomic.Pointer[holdfast.Lease], len(keys)), make([]atomic.Int64, len(keys))
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Minute)
		defer stop()
		var taken, lost atomic.Int32
		var longest atomic.Int64
		var all sync.WaitGroup
		for range 16 {
			c := b.newPeer()
			all.Go(func() {
				for ctx.Err() == nil {
					var set []string
					for range 1 + rand.N(5) {
						set = append(set, keys[rand.N(len(keys))])
					}
					begin := time.Now()
					leases, err := c.AcquireAll(ctx, set, &holdfast.AcquireOptions{TTL: 6 * time.Second})
					if err != nil {
						if ctx.Err() == nil {
							t.Errorf("AcquireAll(%q) = %v", set, err)
						}
						return
					}
					longest.Store(max(longest.Load(), int64(time.Since(begin))))
					taken.Add(1)
					for _, l := range leases.All() {
						i := slices.Index(keys, l.Key())
						// A new holder may acquire the lock before the goroutine of the lost lease notices the
						// loss.
						if other := inside[i].Swap(l); other != nil && other.Context().Err() == nil {
							t.Errorf("%s and %s have %q", other.Owner(), l.Owner(), l.Key())
						}
						if before := last[i].Swap(l.Token()); before >= l.Token() {
							t.Errorf("token %d of %q after %d", l.Token(), l.Key(), before)
						}
					}
					select {
					case <-time.After(rand.N(400 * time.Millisecond)):
					case <-leases.Context().Done():
						lost.Add(1)
					}
					for _, l := range leases.All() {
						inside[slices.Index(keys, l.Key())].CompareAndSwap(l, nil)
					}
					leases.Release(ctx) // without confirmation the locks expire
				}
			})
		}
		b.disturbNodes(ctx)
		all.Wait()
		t.Logf("%d sets acquired, %d lost, longest wait %v", taken.Load(), lost.Load(), time.Duration(longest.Load()))
		if taken.Load() < 1000 || time.Duration(longest.Load()) > 2*time.Minute {
			t.Errorf("%d sets acquired, longest wait %v", taken.Load(), time.Duration(longest.Load()))
		}
		passTime(70 * time.Second) // for locks that could not be released, and queue entries
		for st, err := range b.client.List(t.Context(), "") {
			t.Errorf("left: %+v, %v", st, err)
		}
	})
}
