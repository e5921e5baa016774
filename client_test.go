package holdfast_test

import (
	"context"
	"errors"
	"math"
	"slices"
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

// bench is one client of fresh nodes, inside a synctest bubble.
type bench struct {
	t      *testing.T
	drv    *memory.Driver
	client *holdfast.Client
}

// in runs fn in a bubble of virtual time, with a client of five nodes.
func in(t *testing.T, fn func(t *testing.T, b *bench)) { inWith(t, nil, fn) }

func inWith(t *testing.T, opts *holdfast.Options, fn func(t *testing.T, b *bench)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		drv := memory.New(5)
		b := &bench{t: t, drv: drv}
		b.client = b.open(drv, opts)
		fn(t, b)
	})
}

func (b *bench) open(drv *memory.Driver, opts *holdfast.Options) *holdfast.Client {
	b.t.Helper()
	c, err := holdfast.New(drv, opts)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { c.Close() })
	return c
}

// peer is another client of the same nodes.
func (b *bench) peer() *holdfast.Client { return b.open(b.drv.Peer(), nil) }

func (b *bench) acquire(c *holdfast.Client, key string, opts *holdfast.AcquireOptions) *holdfast.Lease {
	b.t.Helper()
	l, err := c.Acquire(b.t.Context(), key, opts)
	if err != nil {
		b.t.Fatalf("Acquire(%q) = %v", key, err)
	}
	return l
}

func (b *bench) release(l *holdfast.Lease) {
	b.t.Helper()
	if err := l.Release(b.t.Context()); err != nil {
		b.t.Fatalf("Release() = %v", err)
	}
}

// freeze cuts the service off.
func (b *bench) freeze() {
	for i := range 5 {
		b.drv.Node(i).Freeze()
	}
}

func (b *bench) start() {
	for i := range 5 {
		b.drv.Node(i).Start()
	}
}

func wantErr(t *testing.T, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("error %v does not match %v", err, w)
		}
	}
}

func TestOneHolderAtATime(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", nil)
		_, err := b.peer().TryAcquire(t.Context(), "k", nil)
		wantErr(t, err, holdfast.ErrHeld)
		held, ok := errors.AsType[*holdfast.HeldError](err)
		if !ok || held.Holder.PID == 0 || held.Remaining <= 0 || held.Since.IsZero() {
			t.Errorf("HeldError = %+v, want holder, age and time left", held)
		}
		b.release(l)
		b.release(b.acquire(b.peer(), "k", nil))
	})
}

func TestTokensRiseWithEachHolder(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		clients := []*holdfast.Client{b.client, b.peer(), b.peer()}
		var last holdfast.Token
		for i := range 100 {
			l := b.acquire(clients[i%3], "k", nil)
			if l.Token() <= last {
				t.Fatalf("token %d after %d", l.Token(), last)
			}
			last = l.Token()
			b.release(l)
		}
	})
}

func TestLeaseIsRenewedUntilReleased(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", &holdfast.AcquireOptions{TTL: time.Second})
		other := b.peer()
		for range 60 {
			time.Sleep(time.Second)
			if _, err := other.TryAcquire(t.Context(), "k", nil); !errors.Is(err, holdfast.ErrHeld) {
				t.Fatalf("after renewals: %v, want ErrHeld", err)
			}
		}
		if err := l.Context().Err(); err != nil {
			t.Fatalf("context ended: %v", context.Cause(l.Context()))
		}
		b.release(l)
		if l.Context().Err() == nil || errors.Is(context.Cause(l.Context()), holdfast.ErrLost) {
			t.Errorf("cause after release = %v, want an end without ErrLost", context.Cause(l.Context()))
		}
	})
}

func TestNoRenewEndsByItself(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		begin := time.Now()
		l := b.acquire(b.client, "k", &holdfast.AcquireOptions{TTL: time.Second, NoRenew: true})
		<-l.Context().Done()
		if held := time.Since(begin); held > time.Second {
			t.Errorf("trusted for %v, longer than the TTL", held)
		}
		wantErr(t, context.Cause(l.Context()), holdfast.ErrLost)
		wantErr(t, l.Release(t.Context()), holdfast.ErrLost)
		wantErr(t, l.Release(t.Context()), holdfast.ErrLost)
	})
}

func TestContextEndsByTheDeadlineWhenCutOff(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		var lost []holdfast.LostEvent
		c := b.open(b.drv.Peer(), &holdfast.Options{Hooks: holdfast.Hooks{
			Lost: func(e holdfast.LostEvent) { lost = append(lost, e) },
		}})
		l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: 3 * time.Second})
		time.Sleep(10 * time.Second)
		b.freeze()
		deadline := l.Deadline()
		<-l.Context().Done()
		if time.Now().After(deadline) {
			t.Errorf("context ended %v after the deadline", time.Since(deadline))
		}
		wantErr(t, context.Cause(l.Context()), holdfast.ErrLost)
		b.start()
		time.Sleep(time.Second)
		synctest.Wait()
		if len(lost) != 1 || !errors.Is(lost[0].Reason, holdfast.ErrLost) {
			t.Errorf("Lost hook got %+v, want one ErrLost", lost)
		}
		b.release(b.acquire(b.peer(), "k", nil)) // a late renewal left nothing behind
	})
}

func TestLeaseOutlastsAMinority(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", &holdfast.AcquireOptions{TTL: time.Second})
		b.drv.Node(0).Stop()
		b.drv.Node(1).Freeze()
		time.Sleep(time.Minute)
		if err := l.Check(t.Context()); err != nil {
			t.Errorf("Check() = %v with three of five nodes", err)
		}
		b.release(l)
		b.release(b.acquire(b.client, "k", nil))
	})
}

func TestLostByMajorityIsNoticedAtTheNextRenewal(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", &holdfast.AcquireOptions{TTL: 9 * time.Second})
		status, err := b.client.Inspect(t.Context(), "k")
		if err != nil || !status.Held || status.Token != l.Token() || status.Holds != 1 {
			t.Fatalf("Inspect() = %+v, %v", status, err)
		}
		if err := b.peer().ForceRelease(t.Context(), "k", l.Token()); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		<-l.Context().Done()
		if waited := time.Since(begin); waited > 3*time.Second {
			t.Errorf("noticed after %v, want at the next renewal", waited)
		}
		wantErr(t, context.Cause(l.Context()), holdfast.ErrLost)
	})
}

func TestCheckNoticesALossAtOnce(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", nil)
		if err := l.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := b.client.ForceRelease(t.Context(), "k", l.Token()); err != nil {
			t.Fatal(err)
		}
		wantErr(t, l.Check(t.Context()), holdfast.ErrLost)
		wantErr(t, context.Cause(l.Context()), holdfast.ErrLost)
	})
}

func TestCheckTellsLostFromUnknown(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", nil)
		for i := range 3 {
			b.drv.Node(i).Stop()
		}
		wantErr(t, l.Check(t.Context()), holdfast.ErrUnavailable)
		if l.Context().Err() != nil {
			t.Error("an unknown outcome ended the lease")
		}
		b.start()
		b.release(l)
	})
}

func TestForceReleaseNeverHitsANewerHolder(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		old := b.acquire(b.client, "k", nil)
		b.release(old)
		l := b.acquire(b.peer(), "k", nil)
		wantErr(t, b.client.ForceRelease(t.Context(), "k", old.Token()), holdfast.ErrLost)
		if err := l.Check(t.Context()); err != nil {
			t.Errorf("Check() = %v after a force release with an old token", err)
		}
		b.release(l)
	})
}

func TestMaxHoldStopsTheWatchdog(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		begin := time.Now()
		l := b.acquire(b.client, "k", &holdfast.AcquireOptions{TTL: time.Second, MaxHold: 5 * time.Second})
		<-l.Context().Done()
		if held := time.Since(begin); held < 4*time.Second || held > 6*time.Second {
			t.Errorf("held for %v, want MaxHold and at most a TTL more", held)
		}
		wantErr(t, context.Cause(l.Context()), holdfast.ErrLost)
		if cause := context.Cause(l.Context()); !strings.Contains(cause.Error(), "MaxHold") {
			t.Errorf("cause %v does not name MaxHold", cause)
		}
	})
}

func TestMinHoldKeepsTheLockAfterRelease(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		begin := time.Now()
		b.release(b.acquire(b.client, "k", &holdfast.AcquireOptions{MinHold: 5 * time.Second}))
		if time.Since(begin) > time.Second {
			t.Errorf("Release waited for MinHold")
		}
		l := b.acquire(b.peer(), "k", nil)
		if waited := time.Since(begin); waited < 5*time.Second || waited > 7*time.Second {
			t.Errorf("next holder after %v, want about 5s", waited)
		}
		b.release(l)
	})
}

func TestReleaseRightBeforeTheEndOfMinHoldIsNoFailure(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		for _, rest := range []time.Duration{1, time.Millisecond, 3 * time.Millisecond} {
			l := b.acquire(b.client, "k", &holdfast.AcquireOptions{MinHold: time.Second})
			time.Sleep(time.Second - rest)
			b.release(l)
			time.Sleep(20 * time.Millisecond)
			next, err := b.peer().TryAcquire(t.Context(), "k", nil)
			if err != nil {
				t.Fatalf("with %v of MinHold left: %v", rest, err)
			}
			b.release(next)
		}
	})
}

func TestNestingNeedsReentrant(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		outer := b.acquire(b.client, "k", nil)
		_, err := b.client.Acquire(outer.Context(), "k", nil)
		wantErr(t, err, holdfast.ErrReentrant)
		between := func() *holdfast.Lease {
			l, err := b.client.Acquire(outer.Context(), "other", nil)
			if err != nil {
				t.Fatal(err)
			}
			return l
		}()
		inner, err := b.client.Acquire(between.Context(), "k", &holdfast.AcquireOptions{Reentrant: true})
		if err != nil {
			t.Fatal(err)
		}
		if inner.Token() != outer.Token() || inner.ID() != outer.ID() {
			t.Errorf("nested hold has token %d and ID %s, want %d and %s", inner.Token(), inner.ID(), outer.Token(), outer.ID())
		}
		if st, _ := b.client.Inspect(t.Context(), "k"); st.Holds != 2 {
			t.Errorf("Holds = %d, want 2", st.Holds)
		}
		b.release(outer)
		if inner.Context().Err() != nil {
			t.Error("releasing one hold ended the other")
		}
		_, err = b.peer().TryAcquire(t.Context(), "k", nil)
		wantErr(t, err, holdfast.ErrHeld)
		b.release(inner)
		b.release(between)
		b.release(b.acquire(b.peer(), "k", nil))
	})
}

func TestLossEndsEveryNestedHold(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		outer := b.acquire(b.client, "k", &holdfast.AcquireOptions{TTL: time.Second})
		inner, err := b.client.Acquire(outer.Context(), "k", &holdfast.AcquireOptions{Reentrant: true})
		if err != nil {
			t.Fatal(err)
		}
		b.freeze()
		<-inner.Context().Done()
		<-outer.Context().Done()
		wantErr(t, inner.Release(t.Context()), holdfast.ErrLost)
		wantErr(t, outer.Release(t.Context()), holdfast.ErrLost)
		b.start()
	})
}

func TestAContextOfALostLeaseMayAcquireAgain(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		old := b.acquire(b.client, "k", &holdfast.AcquireOptions{TTL: time.Second, NoRenew: true})
		<-old.Context().Done()
		l, err := b.client.Acquire(context.WithoutCancel(old.Context()), "k", nil)
		if err != nil {
			t.Fatalf("Acquire with the context of a lost lease = %v", err)
		}
		b.release(l)
	})
}

func TestExtendSetsTheTTLOfLaterRenewals(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", &holdfast.AcquireOptions{TTL: time.Second})
		if err := l.Extend(t.Context(), 20*time.Second); err != nil {
			t.Fatal(err)
		}
		if left := time.Until(l.Deadline()); left < 19*time.Second {
			t.Errorf("%v left after Extend to 20s", left)
		}
		time.Sleep(time.Minute)
		if left := time.Until(l.Deadline()); left < 12*time.Second {
			t.Errorf("%v left after later renewals, want two thirds of 20s", left)
		}
		if err := l.Extend(t.Context(), 500*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		if left := time.Until(l.Deadline()); left > 500*time.Millisecond {
			t.Errorf("%v left after Extend to 500ms", left)
		}
		time.Sleep(10 * time.Second)
		if err := l.Check(t.Context()); err != nil {
			t.Errorf("Check() = %v", err)
		}
		wantErr(t, l.Extend(t.Context(), time.Millisecond), holdfast.ErrInvalid)
		b.release(l)
		wantErr(t, l.Extend(t.Context(), time.Second), holdfast.ErrLost)
	})
}

func TestAShorterTTLCountsBeforeItsAnswer(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", &holdfast.AcquireOptions{TTL: time.Minute, NoRenew: true})
		b.freeze()
		begin := time.Now()
		wantErr(t, l.Extend(t.Context(), 2*time.Second), holdfast.ErrUnavailable)
		if l.Deadline().After(begin.Add(2 * time.Second)) {
			t.Errorf("trusted until %v after the request, nodes may keep it for 2s", l.Deadline().Sub(begin))
		}
		<-l.Context().Done()
		b.start()
	})
}

func TestSlowRenewalDoesNotExtendTrust(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", &holdfast.AcquireOptions{TTL: 10 * time.Second, NoRenew: true})
		for i := range 5 {
			b.drv.Node(i).Delay(400 * time.Millisecond)
		}
		begin := time.Now()
		if err := l.Extend(t.Context(), 10*time.Second); err != nil {
			t.Fatal(err)
		}
		if l.Deadline().After(begin.Add(10 * time.Second)) {
			t.Errorf("trusted until %v after the request was sent, with a TTL of 10s", l.Deadline().Sub(begin))
		}
		b.release(l)
	})
}

func TestLateAnswersKeepALease(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", &holdfast.AcquireOptions{TTL: 1500 * time.Millisecond})
		for i := range 5 {
			b.drv.Node(i).Delay(200 * time.Millisecond) // longer than a request counts as under way
		}
		time.Sleep(time.Minute)
		if err := context.Cause(l.Context()); err != nil {
			t.Errorf("lost behind slow nodes: %v", err)
		}
		wantErr(t, l.Release(t.Context()), holdfast.ErrUnavailable) // not confirmed in time, but on its way
		b.release(b.acquire(b.peer(), "k", nil))
	})
}

func TestReleaseWorksWithACancelledContext(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", nil)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := l.Release(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("Release() = %v", err)
		}
		b.release(b.acquire(b.peer(), "k", nil))
	})
}

func TestDoJoinsTheLossToTheError(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		mine := errors.New("mine")
		opts := &holdfast.AcquireOptions{TTL: time.Second}
		err := b.client.Do(t.Context(), "k", opts, func(ctx context.Context, _ *holdfast.Lease) error {
			b.freeze()
			<-ctx.Done()
			wantErr(t, context.Cause(ctx), holdfast.ErrLost)
			return mine
		})
		wantErr(t, err, mine, holdfast.ErrLost)
		b.start()
		if err := b.client.Do(t.Context(), "k", opts, func(context.Context, *holdfast.Lease) error { return nil }); err != nil {
			t.Errorf("Do() = %v", err)
		}
	})
}

func TestDoReleasesOnPanic(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		func() {
			defer func() { recover() }()
			b.client.Do(t.Context(), "k", nil, func(context.Context, *holdfast.Lease) error { panic("x") })
		}()
		l, err := b.peer().TryAcquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatalf("after a panic: %v", err)
		}
		b.release(l)
	})
}

func TestDoEndsWithTheCallersContext(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		ctx, cancel := context.WithCancel(t.Context())
		err := b.client.Do(ctx, "k", nil, func(ctx context.Context, l *holdfast.Lease) error {
			cancel()
			<-ctx.Done()
			if l.Context().Err() != nil {
				t.Error("the caller's end touched the lease")
			}
			return ctx.Err()
		})
		wantErr(t, err, context.Canceled)
		if errors.Is(err, holdfast.ErrLost) {
			t.Errorf("Do() = %v, the lease was not lost", err)
		}
	})
}

func TestWaitOverIsHeldAndCancelIsBoth(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", nil)
		for _, c := range []*holdfast.Client{b.client, b.peer()} {
			begin := time.Now()
			_, err := c.Acquire(t.Context(), "k", &holdfast.AcquireOptions{Wait: 3 * time.Second})
			wantErr(t, err, holdfast.ErrHeld)
			if errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v blames the caller's context", err)
			}
			if waited := time.Since(begin); waited != 3*time.Second {
				t.Errorf("waited %v", waited)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err = c.Acquire(ctx, "k", nil)
			wantErr(t, err, holdfast.ErrHeld, context.DeadlineExceeded)
			cancel()
		}
		b.release(l)
		for i := range 5 {
			b.drv.Node(i).Stop()
		}
		_, err := b.client.Acquire(t.Context(), "k", nil)
		wantErr(t, err, holdfast.ErrUnavailable)
		b.start()
	})
}

func TestWaitersSurviveAnOutage(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", &holdfast.AcquireOptions{TTL: time.Minute})
		got := make(chan error, 1)
		other := b.peer()
		go func() {
			lease, err := other.Acquire(t.Context(), "k", nil)
			if err == nil {
				err = lease.Release(t.Context())
			}
			got <- err
		}()
		time.Sleep(2 * time.Second)
		for i := range 5 {
			b.drv.Node(i).Stop()
		}
		time.Sleep(10 * time.Second)
		b.start()
		b.release(l)
		if err := <-got; err != nil {
			t.Errorf("waiter got %v", err)
		}
	})
}

func TestLocalWaitersAreServedInOrder(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", nil)
		var order []int
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				l, err := b.client.Acquire(t.Context(), "k", nil)
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, i) // under the lock
				b.release(l)
			})
			synctest.Wait()
		}
		b.release(l)
		wg.Wait()
		if !slices.IsSorted(order) || len(order) != 100 {
			t.Errorf("order %v", order)
		}
	})
}

func TestLocalHandOverSpendsTheTokensOfItsBlock(t *testing.T) {
	var local, fromNodes atomic.Int32
	hooks := holdfast.Hooks{Acquired: func(e holdfast.AcquiredEvent) {
		if e.HandOver {
			local.Add(1)
		} else {
			fromNodes.Add(1)
		}
	}}
	inWith(t, &holdfast.Options{Hooks: hooks}, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", nil)
		var last holdfast.Token
		ids := make(map[string]bool)
		var wg sync.WaitGroup
		for range 99 {
			wg.Go(func() {
				l := b.acquire(b.client, "k", nil)
				if l.Token() <= last || ids[l.ID()] {
					t.Errorf("token %d, ID %s after token %d", l.Token(), l.ID(), last)
				}
				last, ids[l.ID()] = l.Token(), true
				b.release(l)
			})
		}
		synctest.Wait()
		b.release(l)
		wg.Wait()
		synctest.Wait()
		if local.Load() != 96 || fromNodes.Load() != 4 {
			t.Errorf("%d hand-overs and %d grants for 100 leases, want 96 and 4: 32 tokens each", local.Load(), fromNodes.Load())
		}
	})
}

func TestLocalHandOverYieldsToOtherClients(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for range 4 { // keep the key busy in this process
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					l := b.acquire(b.client, "k", nil)
					time.Sleep(5 * time.Millisecond)
					b.release(l)
				}
			})
		}
		time.Sleep(time.Second)
		begin := time.Now()
		l := b.acquire(b.peer(), "k", nil)
		if waited := time.Since(begin); waited > 300*time.Millisecond {
			t.Errorf("another client waited %v", waited)
		}
		close(stop)
		b.release(l)
		wg.Wait()
	})
}

func TestCancelledLocalWaiterLeavesTheOthersInOrder(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", nil)
		var order []int
		var wg sync.WaitGroup
		for i := range 50 {
			ctx, cancel := context.WithCancel(t.Context())
			wg.Go(func() {
				defer cancel()
				l, err := b.client.Acquire(ctx, "k", nil)
				if i%3 == 0 {
					wantErr(t, err, context.Canceled, holdfast.ErrHeld)
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, i)
				b.release(l)
			})
			synctest.Wait()
			if i%3 == 0 {
				cancel()
			}
		}
		b.release(l)
		wg.Wait()
		if !slices.IsSorted(order) || len(order) != 33 {
			t.Errorf("order %v", order)
		}
		b.release(b.acquire(b.peer(), "k", nil))
	})
}

func TestTryOnAKeyHeldHereNeedsNoNetwork(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", nil)
		b.freeze()
		begin := time.Now()
		_, err := b.client.TryAcquire(t.Context(), "k", nil)
		wantErr(t, err, holdfast.ErrHeld)
		if time.Since(begin) != 0 {
			t.Errorf("took %v", time.Since(begin))
		}
		b.start()
		b.release(l)
	})
}

func TestCloseReleasesAndEndsWaits(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		c, other := b.peer(), b.peer()
		l := b.acquire(c, "k", nil)
		m := b.acquire(other, "m", nil)
		var wg sync.WaitGroup
		for _, key := range []string{"k", "m", "m"} {
			wg.Go(func() {
				_, err := c.Acquire(t.Context(), key, nil)
				wantErr(t, err, holdfast.ErrClosed)
			})
		}
		synctest.Wait()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		wantErr(t, context.Cause(l.Context()), holdfast.ErrClosed)
		_, err := c.Acquire(t.Context(), "k", nil)
		wantErr(t, err, holdfast.ErrClosed)
		b.release(b.acquire(other, "k", nil))
		b.release(m)
		if err := c.Close(); err != nil {
			t.Errorf("second Close() = %v", err)
		}
	})
}

func TestListShowsWhatIsHeld(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		for _, key := range []string{"a/1", "a/2", "b/1"} {
			b.acquire(b.client, key, nil)
		}
		var keys []string
		for st, err := range b.peer().List(t.Context(), "a/") {
			if err != nil {
				t.Fatal(err)
			}
			keys = append(keys, st.Key)
		}
		if !slices.Equal(keys, []string{"a/1", "a/2"}) {
			t.Errorf("List(a/) = %v", keys)
		}
	})
}

func TestBadArgumentsAreRefusedAndChangeNothing(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		b.freeze() // nothing may be asked
		bad := map[string]*holdfast.AcquireOptions{
			"k":                      {TTL: 9 * time.Millisecond},
			"l":                      {Wait: -1},
			"m":                      {MinHold: -1},
			"n":                      {MaxHold: -1},
			"":                       nil,
			"a\x00b":                 nil,
			"a\u0085b":               nil,
			"\xff":                   nil,
			"holdfast:x":             nil,
			strings.Repeat("x", 513): nil,
		}
		for key, opts := range bad {
			_, err := b.client.Acquire(t.Context(), key, opts)
			wantErr(t, err, holdfast.ErrInvalid)
		}
		_, err := holdfast.New(nil, nil)
		wantErr(t, err, holdfast.ErrInvalid)
		b.start()
	})
}

func TestAdoptContinuesALeaseOfAnotherProcess(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		first := b.peer()
		l := b.acquire(first, "k", &holdfast.AcquireOptions{TTL: 5 * time.Second, NoRenew: true})
		second := b.peer()
		m, err := second.Adopt(t.Context(), "k", l.ID(), l.Token(), &holdfast.AcquireOptions{TTL: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if err := m.Check(t.Context()); err != nil || m.Token() != l.Token() {
			t.Errorf("Check() = %v, token %d, want %d", err, m.Token(), l.Token())
		}
		b.release(m)
		_, err = second.Adopt(t.Context(), "k", "nobody.1", 7, nil)
		wantErr(t, err, holdfast.ErrLost)
	})
}

func TestRenewalsOfManyLeasesTravelTogether(t *testing.T) {
	var renewed atomic.Int32
	inWith(t, &holdfast.Options{Hooks: holdfast.Hooks{Renewed: func(e holdfast.RenewedEvent) {
		if e.Err == nil {
			renewed.Add(1)
		}
	}}}, func(t *testing.T, b *bench) {
		for i := range 1000 {
			b.acquire(b.client, "k"+strings.Repeat("x", i%100)+string(rune('a'+i/100)), &holdfast.AcquireOptions{TTL: 3 * time.Second})
		}
		time.Sleep(3500 * time.Millisecond)
		if n := renewed.Load(); n < 3000 {
			t.Errorf("%d renewals in 3.5s of 1000 leases with a TTL of 3s", n)
		}
	})
}

// A turn that comes at the very end of a wait is none.
func TestWaitThatEndsWithItsTurnIsHeld(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		for range 50 {
			l := b.acquire(b.client, "k", nil)
			time.AfterFunc(time.Second, func() { l.Release(context.Background()) })
			next, err := b.client.Acquire(t.Context(), "k", &holdfast.AcquireOptions{Wait: time.Second, TTL: 5 * time.Second})
			if err != nil {
				wantErr(t, err, holdfast.ErrHeld)
				continue
			}
			b.release(next)
		}
	})
}

func TestWaitThatIsOverBeforeItBegins(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := b.client.Acquire(ended, "k", nil)
		wantErr(t, err, context.Canceled, holdfast.ErrUnavailable)
	})
}

func TestTTLThatWouldOverflowIsRefused(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		for _, o := range []holdfast.AcquireOptions{{TTL: math.MaxInt64}, {MinHold: math.MaxInt64}} {
			_, err := b.client.TryAcquire(t.Context(), "k", &o)
			wantErr(t, err, holdfast.ErrInvalid)
		}
		l := b.acquire(b.client, "k", &holdfast.AcquireOptions{TTL: 365 * 24 * time.Hour, Wait: time.Second})
		wantErr(t, l.Extend(t.Context(), math.MaxInt64), holdfast.ErrInvalid)
		_, err := b.peer().TryAcquire(t.Context(), "k", nil)
		wantErr(t, err, holdfast.ErrHeld)
		b.release(l)
	})
}

func TestCloseKeepsMinHold(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		c := b.peer()
		b.acquire(c, "k", &holdfast.AcquireOptions{MinHold: time.Minute})
		c.Close()
		time.Sleep(59 * time.Second)
		_, err := b.client.TryAcquire(t.Context(), "k", nil)
		wantErr(t, err, holdfast.ErrHeld)
		time.Sleep(2 * time.Second)
		b.release(b.acquire(b.client, "k", &holdfast.AcquireOptions{Wait: time.Second}))
	})
}

func TestMinHoldBindsNobodyWhoDidNotHold(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		for range 50 {
			l := b.acquire(b.client, "k", nil)
			time.AfterFunc(time.Millisecond, func() { l.Release(context.Background()) })
			next, err := b.client.Acquire(t.Context(), "k", &holdfast.AcquireOptions{Wait: time.Millisecond, MinHold: time.Second})
			if err == nil {
				b.release(next)
				time.Sleep(2 * time.Second)
			}
			synctest.Wait()
			b.release(b.acquire(b.peer(), "k", &holdfast.AcquireOptions{Wait: 100 * time.Millisecond}))
		}
	})
}

func TestNoHoldOfALeaseThatIsOver(t *testing.T) {
	hooks := holdfast.Hooks{Lost: func(holdfast.LostEvent) { time.Sleep(time.Minute) }} // the watchdog hangs
	inWith(t, &holdfast.Options{Hooks: hooks}, func(t *testing.T, b *bench) {
		b.acquire(b.client, "other", &holdfast.AcquireOptions{TTL: time.Second, NoRenew: true})
		l := b.acquire(b.client, "k", &holdfast.AcquireOptions{TTL: 2 * time.Second, NoRenew: true})
		time.Sleep(3 * time.Second)
		n, err := b.client.Acquire(l.Context(), "k", &holdfast.AcquireOptions{Reentrant: true})
		if err == nil {
			t.Errorf("a hold that ended %v ago was given out", time.Since(n.Deadline()))
		}
	})
}

func TestWaitingTellsWhoHolds(t *testing.T) {
	var held atomic.Pointer[holdfast.HeldError]
	hooks := holdfast.Hooks{Waiting: func(e holdfast.WaitingEvent) { held.Store(e.Held) }}
	inWith(t, &holdfast.Options{Hooks: hooks}, func(t *testing.T, b *bench) {
		l := b.acquire(b.peer(), "k", nil)
		_, err := b.client.Acquire(t.Context(), "k", &holdfast.AcquireOptions{Wait: time.Second})
		wantErr(t, err, holdfast.ErrHeld)
		if h := held.Load(); h == nil || h.Holder.PID == 0 {
			t.Errorf("Waiting was told of %+v, want the holder's process", h)
		}
		b.release(l)
	})
}

// adopting lets a test act while a lease is adopted.
type adopting struct {
	*memory.Driver
	meanwhile func()
}

func (d *adopting) Adopt(ctx context.Context, g driver.Grant) (driver.Grant, error) {
	defer d.meanwhile()
	return d.Driver.Adopt(ctx, g)
}

func TestAdoptDuringCloseLeavesNothing(t *testing.T) {
	in(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", &holdfast.AcquireOptions{NoRenew: true})
		drv := &adopting{Driver: b.drv.Peer()}
		c, err := holdfast.New(drv, nil)
		if err != nil {
			t.Fatal(err)
		}
		drv.meanwhile = func() { go c.Close(); synctest.Wait() }
		if adopted, err := c.Adopt(t.Context(), "k", l.ID(), l.Token(), nil); err == nil {
			t.Errorf("a closed client has a lease until %v, which nobody watches", adopted.Deadline())
		}
	})
}
