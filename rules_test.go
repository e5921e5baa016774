package holdfast_test

import (
	"context"
	"errors"
	"fmt"
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

// grantCounter counts hand-overs inside the process, and grants of the service.
type grantCounter struct{ local, service atomic.Int32 }

func (g *grantCounter) count(e holdfast.AcquiredEvent) {
	if e.HandOver {
		g.local.Add(1)
	} else {
		g.service.Add(1)
	}
}

func TestReleaseAfterDeadlineIsLoss(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", &holdfast.AcquireOptions{TTL: 2 * time.Second, NoRenew: true})
		b.client.StopWatchdog()
		passTime(3 * time.Second)
		wantErr(t, l.Release(t.Context()), holdfast.ErrLost)
		wantErr(t, context.Cause(l.Context()), holdfast.ErrLost)
	})
}

// slowRenewals is a driver that confirms each renewal after a delay.
type slowRenewals struct {
	*memory.Driver
	after time.Duration
}

func (d slowRenewals) Renew(_ context.Context, grants []driver.Grant) []driver.Renewal {
	passTime(d.after)
	out := make([]driver.Renewal, len(grants))
	for i, g := range grants {
		out[i].TrustedUntil = time.Now().Add(g.TTL)
	}
	return out
}

func TestLateRenewalIsLoss(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t}
		client := openClient(t, slowRenewals{memory.New(3), 9 * time.Second}, nil)
		b.client = client
		l := b.acquire(client, "k", &holdfast.AcquireOptions{TTL: 9 * time.Second})
		passTime(3 * time.Second) // from here on, a renewal is in progress
		client.StopWatchdog()
		passTime(10 * time.Second)
		if err := context.Cause(l.Context()); !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("after a renewal answered 3 s after the deadline: lease state %v", err)
		}
	})
}

func TestLocalHandOverNeedsEqualTTL(t *testing.T) {
	var g grantCounter
	inBubbleWith(t, &holdfast.Options{Hooks: holdfast.Hooks{Acquired: g.count}}, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", nil)
		var wg sync.WaitGroup
		wg.Go(func() {
			next := b.acquire(b.client, "k", &holdfast.AcquireOptions{TTL: 2 * time.Second})
			if left := time.Until(next.Deadline()); left > 2*time.Second {
				t.Errorf("%v left of a TTL of 2 s", left)
			}
			b.release(next)
		})
		synctest.Wait()
		b.release(l)
		wg.Wait()
		synctest.Wait()
		if g.local.Load() != 0 {
			t.Error("the lease was handed over to a waiter with another TTL")
		}
	})
}

func TestLocalHandOverNeedsHalfTheTTL(t *testing.T) {
	for name, tt := range map[string]struct {
		noRenew bool
		held    time.Duration // the lease may be passed on for 100 ms
	}{
		"half of what it was given": {false, 80 * time.Millisecond},
		"half of what it asked for": {true, 60 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			var g grantCounter
			inBubbleWith(t, &holdfast.Options{Hooks: holdfast.Hooks{Acquired: g.count}}, func(t *testing.T, b *bench) {
				for i := range 5 {
					b.drv.Node(i).Delay(45 * time.Millisecond) // the lease begins 45 ms after the request
				}
				opts := &holdfast.AcquireOptions{TTL: 200 * time.Millisecond, NoRenew: tt.noRenew}
				l := b.acquire(b.client, "k", opts)
				var wg sync.WaitGroup
				wg.Go(func() { b.release(b.acquire(b.client, "k", opts)) })
				for i := range 3 {
					b.drv.Node(i).Stop() // so it is not renewed
				}
				passTime(tt.held)
				for i := range 3 {
					b.drv.Node(i).Start()
				}
				b.release(l)
				wg.Wait()
				synctest.Wait()
				if g.local.Load() != 0 || g.service.Load() != 2 {
					t.Errorf("%d hand-overs, %d grants; want none and 2", g.local.Load(), g.service.Load())
				}
			})
		})
	}
}

func TestLostLeaseIsNotHandedOver(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", nil)
		var inside atomic.Int32
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				next := b.acquire(b.client, "k", nil)
				if inside.Add(1) > 1 {
					t.Error("two leases at the same time")
				}
				passTime(time.Second)
				inside.Add(-1)
				b.release(next)
			})
		}
		synctest.Wait()
		if err := b.newPeer().ForceRelease(t.Context(), "k", l.Token(), ""); err != nil {
			t.Fatal(err)
		}
		wantErr(t, l.Extend(t.Context(), 10*time.Second), holdfast.ErrLost)
		synctest.Wait()
		wantErr(t, l.Release(t.Context()), holdfast.ErrLost)
		wg.Wait()
	})
}

// A waiter whose context ends just when its turn comes passes the turn on. The test repeats this, because the
// scheduler decides whether the waiter sees its turn or the cancellation first.
func TestCancelledWaiterPassesItsTurnOn(t *testing.T) {
	for _, ttl := range []time.Duration{10 * time.Second, 9 * time.Second} { // handed over inside the process, and freed at the nodes
		t.Run(ttl.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				for range 1000 {
					l := b.acquire(b.client, "k", nil)
					ctx, cancel := context.WithCancel(t.Context())
					var wg sync.WaitGroup
					wg.Go(func() {
						if l, err := b.client.Acquire(ctx, "k", &holdfast.AcquireOptions{TTL: ttl}); err == nil {
							b.release(l)
						}
					})
					synctest.Wait()
					cancel()
					b.release(l)
					wg.Wait()
					l, err := b.client.Acquire(t.Context(), "k", &holdfast.AcquireOptions{Wait: time.Second})
					if err != nil {
						t.Fatalf("the lock is free, and Acquire() = %v", err)
					}
					b.release(l)
				}
			})
		})
	}
}

// A waiter whose context ended before its turn frees the lock at once, without MinHold.
func TestWaiterGoneAtItsTurnFreesLock(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		other, left := b.newPeer(), 0
		for left < 20 { // the scheduler decides which of the two the waiter sees first
			l := b.acquire(b.client, "k", nil)
			ctx, cancel := context.WithCancel(t.Context())
			had := make(chan *holdfast.Lease)
			go func() {
				l, _ := b.client.Acquire(ctx, "k", &holdfast.AcquireOptions{MinHold: 5 * time.Second})
				had <- l
			}()
			synctest.Wait()
			cancel()
			b.release(l)
			if l := <-had; l != nil {
				b.release(l)
				passTime(5 * time.Second)
				continue
			}
			left++
			synctest.Wait()
			next, err := other.TryAcquire(t.Context(), "k", nil)
			if err != nil {
				t.Fatalf("after a waiter was cancelled: %v, want the lock", err)
			}
			b.release(next)
		}
	})
}

func TestCancelledAcquireDoesNotKeepLock(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		ctx, cancel := context.WithCancel(t.Context())
		l := b.acquire(b.client, "k", nil)
		cancel()
		l.Release(ctx)
		synctest.Wait()
		next, err := b.newPeer().TryAcquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatalf("after a release with a cancelled context: %v", err)
		}
		b.release(next)
	})
}

// The duration of a grant limits its hand-overs. The number of its tokens does not.
func TestLocalHandOverYieldsAfterItsTime(t *testing.T) {
	var g grantCounter
	inBubbleWith(t, &holdfast.Options{Hooks: holdfast.Hooks{Acquired: g.count}}, func(t *testing.T, b *bench) {
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				l := b.acquire(b.client, "k", nil)
				passTime(30 * time.Millisecond)
				b.release(l)
			})
		}
		wg.Wait()
		synctest.Wait()
		if g.local.Load() != 15 || g.service.Load() != 5 { // 30, 60, 90 and 120 ms after the grant
			t.Errorf("%d hand-overs and %d grants, want 15 and 5", g.local.Load(), g.service.Load())
		}
	})
}

// After an outage a waiter queues under a new owner id.
func TestLeaseUnderNewIDIsRenewed(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		held := b.acquire(b.newPeer(), "k", &holdfast.AcquireOptions{TTL: 2 * time.Second, NoRenew: true})
		var wg sync.WaitGroup
		wg.Go(func() {
			l := b.acquire(b.client, "k", &holdfast.AcquireOptions{TTL: time.Second})
			passTime(5 * time.Second)
			b.release(l)
		})
		synctest.Wait()
		for i := range 5 {
			b.drv.Node(i).Stop()
		}
		<-held.Context().Done()
		b.startNodes()
		wg.Wait()
	})
}

func TestErrorNamesRejectedOption(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		for _, tt := range []struct {
			key  string
			opts holdfast.AcquireOptions
			want string
		}{
			{"k", holdfast.AcquireOptions{Wait: -1}, "Wait -1ns is negative"},
			{"k", holdfast.AcquireOptions{RenewEvery: -time.Second}, "RenewEvery -1s is negative"},
			{"k", holdfast.AcquireOptions{TTL: 1000 * time.Hour}, "TTL 1000h0m0s is too long"},
			{"k", holdfast.AcquireOptions{MinHold: 1000 * time.Hour}, "MinHold 1000h0m0s is too long"},
			{"k", holdfast.AcquireOptions{TTL: time.Second, Margin: 2 * time.Second}, "Margin 2s leaves no time to renew a TTL of 1s"},
			{"k", holdfast.AcquireOptions{TTL: time.Second, RenewEvery: 2 * time.Second}, "RenewEvery 2s leaves no time to renew a TTL of 1s"},
			{
				"k",
				holdfast.AcquireOptions{TTL: time.Second, Margin: time.Second / 2, RenewEvery: time.Second},
				"Margin 500ms and RenewEvery 1s leave no time to renew a TTL of 1s",
			},
			{strings.Repeat("k", 600), holdfast.AcquireOptions{}, "kkk…\": invalid argument: the key has 600 bytes"},
		} {
			_, err := b.client.TryAcquire(t.Context(), tt.key, &tt.opts)
			wantErr(t, err, holdfast.ErrInvalid)
			if text := fmt.Sprint(err); !strings.Contains(text, tt.want) || len(text) > 300 {
				t.Errorf("%+v: %q, want %q", tt.opts, text, tt.want)
			}
		}
	})
}
