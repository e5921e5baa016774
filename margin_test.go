package holdfast_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver/template"
	"github.com/holdfast-go/holdfast/memory"
)

const margin = 2 * time.Second

// wantEarlyStop waits for the end of l's context. Margin has to be left then, and the lock has to stay held,
// without further renewals.
func (b *bench) wantEarlyStop(l *holdfast.Lease, kind error) {
	b.t.Helper()
	<-l.Context().Done()
	if left := time.Until(l.Deadline()); left != margin {
		b.t.Errorf("the context ended %v before the deadline, want %v", left, margin)
	}
	cause := context.Cause(l.Context())
	wantErr(b.t, cause, holdfast.ErrLost, kind)
	if text := cause.Error(); !strings.Contains(text, "2s") || !strings.Contains(text, "the holder stops") {
		b.t.Errorf("cause %q does not name Margin", cause)
	}
	wantErr(b.t, l.Extend(b.t.Context(), 10*time.Second), holdfast.ErrLost)
	wantErr(b.t, l.Check(b.t.Context()), holdfast.ErrLost)
	wantErr(b.t, l.Detach(), holdfast.ErrLost)
}

// wantLockHeld checks that the lock on k is held.
func (b *bench) wantLockHeld() {
	b.t.Helper()
	if _, err := b.newPeer().TryAcquire(b.t.Context(), "k", nil); !errors.Is(err, holdfast.ErrHeld) {
		b.t.Errorf("the lock is not held: %v", err)
	}
}

// wantLockFree checks that the lock on k is free now.
func (b *bench) wantLockFree() {
	b.t.Helper()
	l, err := b.newPeer().TryAcquire(b.t.Context(), "k", nil)
	if err != nil {
		b.t.Errorf("the lock is not free: %v", err)
		return
	}
	b.release(l)
}

func TestMarginLeavesTimeBeforeNextHolder(t *testing.T) {
	for name, tt := range map[string]struct {
		opts holdfast.AcquireOptions
		kind error
		cut  bool
	}{
		"not renewed in time": {holdfast.AcquireOptions{Margin: margin}, holdfast.ErrExpired, true},
		"NoRenew":             {holdfast.AcquireOptions{Margin: margin, NoRenew: true}, holdfast.ErrExpired, false},
		"MaxHold":             {holdfast.AcquireOptions{Margin: margin, MaxHold: 30 * time.Second}, holdfast.ErrMaxHold, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				l := b.acquire(b.client, "k", &tt.opts)
				if tt.cut {
					passTime(time.Minute)
					b.freezeNodes()
				}
				b.wantEarlyStop(l, tt.kind)
				b.startNodes()
				passTime(time.Second)
				b.wantLockHeld()
				wantErr(t, l.Release(t.Context()), holdfast.ErrLost, tt.kind)
				b.wantLockFree()
				wantErr(t, l.Release(t.Context()), holdfast.ErrLost)
			})
		})
	}
}

func TestLockExpiresAtDeadlineDespiteMargin(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", &holdfast.AcquireOptions{Margin: margin, MaxHold: 30 * time.Second})
		b.wantEarlyStop(l, holdfast.ErrMaxHold)
		passTime(margin - time.Millisecond)
		b.wantLockHeld()
		passTime(time.Millisecond)
		synctest.Wait()
		b.wantLockFree()
		wantErr(t, l.Release(t.Context()), holdfast.ErrLost)
		b.release(b.acquire(b.client, "k", nil))
	})
}

func TestRenewalStopsAtMargin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var renewed atomic.Int32
		client := openClient(t, slowRenewals{memory.New(1), 7 * time.Second}, &holdfast.Options{Hooks: holdfast.Hooks{
			Renewed: func(holdfast.RenewedEvent) { renewed.Add(1) },
		}})
		b := &bench{t: t, client: client}
		l := b.acquire(client, "k", &holdfast.AcquireOptions{TTL: 10 * time.Second, Margin: margin})
		deadline := l.Deadline()
		<-l.Context().Done()
		passTime(margin - time.Millisecond) // the renewal has been answered by now
		if !l.Deadline().Equal(deadline) || renewed.Load() != 0 {
			t.Errorf("a renewal that was answered after the end moved the deadline by %v", l.Deadline().Sub(deadline))
		}
		wantErr(t, l.Release(t.Context()), holdfast.ErrLost)
	})
}

func TestLossWithMarginIsReportedOnce(t *testing.T) {
	for name, end := range map[string]func(*bench, *holdfast.Lease){
		"Release": func(b *bench, l *holdfast.Lease) { wantErr(b.t, l.Release(b.t.Context()), holdfast.ErrLost) },
		"lapse":   func(*bench, *holdfast.Lease) { passTime(2 * margin) },
		"Close":   func(b *bench, _ *holdfast.Lease) { b.client.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			var lost, released atomic.Int32
			hooks := holdfast.Hooks{
				Lost:     func(holdfast.LostEvent) { lost.Add(1) },
				Released: func(holdfast.ReleasedEvent) { released.Add(1) },
			}
			inBubbleWith(t, &holdfast.Options{Hooks: hooks}, func(t *testing.T, b *bench) {
				l := b.acquire(b.client, "k", &holdfast.AcquireOptions{Margin: margin, NoRenew: true})
				b.wantEarlyStop(l, holdfast.ErrExpired)
				synctest.Wait()
				if lost.Load() != 1 {
					t.Errorf("%d Lost events when the context ended, want one", lost.Load())
				}
				end(b, l)
				synctest.Wait()
				if lost.Load() != 1 || released.Load() != 0 {
					t.Errorf("%d Lost and %d Released events, want one and none", lost.Load(), released.Load())
				}
				b.wantLockFree()
			})
		})
	}
}

func TestMarginAppliesToNestedHolds(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		outer := b.acquire(b.client, "k", &holdfast.AcquireOptions{Margin: margin, NoRenew: true})
		inner, err := b.client.Acquire(outer.Context(), "k", &holdfast.AcquireOptions{Reentrant: true, Margin: margin})
		if err != nil {
			t.Fatal(err)
		}
		_, err = b.client.Acquire(outer.Context(), "k", &holdfast.AcquireOptions{Reentrant: true, Margin: time.Second})
		wantErr(t, err, holdfast.ErrInvalid)
		b.wantEarlyStop(outer, holdfast.ErrExpired)
		b.wantEarlyStop(inner, holdfast.ErrExpired)
		wantErr(t, inner.Release(t.Context()), holdfast.ErrLost)
		b.wantLockHeld()
		wantErr(t, outer.Release(t.Context()), holdfast.ErrLost)
		b.wantLockFree()
	})
}

func TestHandedOverLeaseKeepsMargin(t *testing.T) {
	t.Run("inside the process", func(t *testing.T) {
		var g grantCounter
		inBubbleWith(t, &holdfast.Options{Hooks: holdfast.Hooks{Acquired: g.count}}, func(t *testing.T, b *bench) {
			first := b.acquire(b.client, "k", nil)
			next := make(chan *holdfast.Lease)
			go func() {
				next <- b.acquire(b.client, "k", &holdfast.AcquireOptions{Margin: margin, MaxHold: 20 * time.Second})
			}()
			synctest.Wait()
			b.release(first)
			l := <-next
			awaitHooks()
			if g.local.Load() != 1 {
				t.Errorf("%d hand-overs, want one", g.local.Load())
			}
			b.wantEarlyStop(l, holdfast.ErrMaxHold)
			wantErr(t, l.Release(t.Context()), holdfast.ErrLost)
		})
	})
	t.Run("by another client", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *bench) {
			first := b.acquire(b.newPeer(), "k", nil)
			next := make(chan *holdfast.Lease)
			go func() { next <- b.acquire(b.client, "k", &holdfast.AcquireOptions{Margin: margin}) }()
			synctest.Wait()
			b.release(first)
			l := <-next
			if left := time.Until(l.Deadline()); left < 9*time.Second {
				t.Errorf("the next lease begins with %v", left)
			}
			passTime(time.Minute)
			if err := context.Cause(l.Context()); err != nil {
				t.Error(err)
			}
			b.release(l)
		})
	})
}

func TestHandOverStopsAtMargin(t *testing.T) {
	var g grantCounter
	inBubbleWith(t, &holdfast.Options{Hooks: holdfast.Hooks{Acquired: g.count}}, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", &holdfast.AcquireOptions{TTL: 300 * time.Millisecond, NoRenew: true, Margin: 200 * time.Millisecond})
		next := make(chan *holdfast.Lease)
		go func() { next <- b.acquire(b.client, "k", &holdfast.AcquireOptions{TTL: 150 * time.Millisecond}) }()
		<-l.Context().Done()
		wantErr(t, l.Release(t.Context()), holdfast.ErrLost)
		b.release(<-next)
		synctest.Wait()
		if g.local.Load() != 0 {
			t.Error("a lost lease was handed over")
		}
	})
}

func TestExtendKeepsMargin(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", &holdfast.AcquireOptions{Margin: margin})
		wantErr(t, l.Extend(t.Context(), 2200*time.Millisecond), holdfast.ErrInvalid)
		if err := l.Extend(t.Context(), 5*time.Second); err != nil {
			t.Fatal(err)
		}
		passTime(time.Minute)
		b.freezeNodes()
		b.wantEarlyStop(l, holdfast.ErrExpired)
		b.startNodes()
		wantErr(t, l.Release(t.Context()), holdfast.ErrLost)
	})
}

func TestShutdownWaitsForStoppingWork(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", &holdfast.AcquireOptions{Margin: margin, MaxHold: 20 * time.Second})
		<-l.Context().Done()
		done := make(chan error)
		go func() { done <- b.client.Shutdown(t.Context()) }()
		passTime(time.Second)
		select {
		case err := <-done:
			t.Fatalf("Shutdown() = %v before the release", err)
		default:
		}
		wantErr(t, l.Release(t.Context()), holdfast.ErrLost)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestDoReleasesWhenItsFunctionReturns(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		err := b.client.Do(t.Context(), "k", &holdfast.AcquireOptions{Margin: margin, MaxHold: 20 * time.Second}, func(ctx context.Context, _ *holdfast.Lease) error {
			<-ctx.Done()
			passTime(time.Second)
			b.wantLockHeld()
			return nil
		})
		wantErr(t, err, holdfast.ErrLost, holdfast.ErrMaxHold)
		b.wantLockFree()
	})
}

func TestMarginAndRenewEveryLeaveTimeToRenew(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		const s = time.Second
		for _, bad := range []holdfast.AcquireOptions{
			{Margin: -1},
			{RenewEvery: -1},
			{RenewEvery: time.Millisecond},
			{RenewEvery: s, NoRenew: true},
			{Margin: 10 * s},
			{Margin: 9 * s, NoRenew: true},
			{Margin: 17 * s / 2},
			{RenewEvery: 10 * s},
			{RenewEvery: 5 * s, Margin: 4 * s},
			{TTL: 100 * time.Millisecond, Margin: 80 * time.Millisecond}, // a request may take 50 ms
			{TTL: 10 * time.Millisecond, Margin: 6 * time.Millisecond},
			{Margin: 2 * s, MaxHold: 2 * s},
		} {
			if l, err := b.client.TryAcquire(t.Context(), "k", &bad); !errors.Is(err, holdfast.ErrInvalid) {
				t.Fatalf("%+v: %v, %v, want ErrInvalid", bad, l, err)
			}
		}
		for _, good := range []holdfast.AcquireOptions{
			{Margin: 7 * s},
			{RenewEvery: 8 * s},
			{RenewEvery: 4 * s, Margin: 4 * s},
			{RenewEvery: 5 * time.Millisecond},
			{TTL: 100 * time.Millisecond, Margin: 20 * time.Millisecond},
		} {
			l := b.acquire(b.client, "k", &good)
			passTime(15 * time.Second)
			if err := context.Cause(l.Context()); err != nil {
				t.Errorf("%+v: %v", good, err)
			}
			b.release(l)
		}
	})
}

func TestMarginLeavesTimeForSingleServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openClient(t, template.New(), nil) // its answer may take a quarter of the TTL
		for margin, want := range map[time.Duration]error{7 * time.Second: holdfast.ErrInvalid, 6 * time.Second: nil} {
			l, err := c.TryAcquire(t.Context(), "k", &holdfast.AcquireOptions{Margin: margin})
			if !errors.Is(err, want) {
				t.Errorf("Margin %v of a TTL of 10 s: %v, want %v", margin, err, want)
			}
			if err == nil {
				l.Release(t.Context())
			}
		}
	})
}

func TestRenewEverySetsRenewalInterval(t *testing.T) {
	for every, want := range map[time.Duration]int32{0: 18, time.Second: 60, 6 * time.Second: 10, 50 * time.Millisecond: 1200} {
		t.Run(every.String(), func(t *testing.T) {
			var renewed atomic.Int32
			hooks := holdfast.Hooks{Renewed: func(holdfast.RenewedEvent) { renewed.Add(1) }}
			inBubbleWith(t, &holdfast.Options{Hooks: hooks}, func(t *testing.T, b *bench) {
				l := b.acquire(b.client, "k", &holdfast.AcquireOptions{RenewEvery: every})
				passTime(time.Minute + time.Millisecond)
				synctest.Wait()
				if n := renewed.Load(); n < want || n > want+want/10 { // some renewals come early, to travel with others
					t.Errorf("%d renewals in a minute, want %d", n, want)
				}
				b.release(l)
			})
		})
	}
}

func TestEachEndOfLeaseHasItsCause(t *testing.T) {
	kinds := []error{holdfast.ErrExpired, holdfast.ErrMaxHold, holdfast.ErrGone, holdfast.ErrClosed, holdfast.ErrDetached}
	for name, tt := range map[string]struct {
		end  func(*bench, *holdfast.Lease)
		kind error
		lost bool
	}{
		"clock":   {func(b *bench, _ *holdfast.Lease) { b.freezeNodes() }, holdfast.ErrExpired, true},
		"MaxHold": {func(*bench, *holdfast.Lease) {}, holdfast.ErrMaxHold, true},
		"service": {func(b *bench, l *holdfast.Lease) { b.newPeer().ForceRelease(b.t.Context(), "k", l.Token(), "") }, holdfast.ErrGone, true},
		"force":   {func(b *bench, l *holdfast.Lease) { b.client.ForceRelease(b.t.Context(), "k", l.Token(), "") }, holdfast.ErrGone, true},
		"Close":   {func(b *bench, _ *holdfast.Lease) { b.client.Close() }, holdfast.ErrClosed, true},
		"Detach":  {func(_ *bench, l *holdfast.Lease) { l.Detach() }, holdfast.ErrDetached, false},
		"Release": {func(b *bench, l *holdfast.Lease) { l.Release(b.t.Context()) }, context.Canceled, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				l := b.acquire(b.client, "k", &holdfast.AcquireOptions{TTL: 3 * time.Second, MaxHold: 10 * time.Second, Adoptable: name == "Detach"})
				tt.end(b, l)
				<-l.Context().Done()
				b.startNodes()
				cause := context.Cause(l.Context())
				wantErr(t, cause, tt.kind)
				if errors.Is(cause, holdfast.ErrLost) != tt.lost {
					t.Errorf("cause %v: it matches ErrLost: %v", cause, !tt.lost)
				}
				for _, other := range kinds {
					if !errors.Is(tt.kind, other) && errors.Is(cause, other) {
						t.Errorf("cause %v also matches %v", cause, other)
					}
				}
			})
		})
	}
}

func TestForceReleaseEndsOwnLeaseAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", nil)
		if err := b.client.ForceRelease(t.Context(), "k", l.Token(), ""); err != nil {
			t.Fatal(err)
		}
		wantErr(t, context.Cause(l.Context()), holdfast.ErrLost, holdfast.ErrGone)
		wantErr(t, l.Release(t.Context()), holdfast.ErrLost)
		synctest.Wait()
		b.wantLockFree()
	})
}
