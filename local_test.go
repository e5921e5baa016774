package holdfast_test

import (
	"context"
	"errors"
	"fmt"
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

func TestWaitEndAndCancelReturnDifferentErrors(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", nil)
		for _, c := range []*holdfast.Client{b.client, b.newPeer()} {
			begin := time.Now()
			_, err := c.Acquire(t.Context(), "k", &holdfast.AcquireOptions{Wait: 3 * time.Second})
			wantErr(t, err, holdfast.ErrHeld)
			if errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v names the caller's context", err)
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
		begin := time.Now()
		_, err := b.client.Acquire(t.Context(), "k", &holdfast.AcquireOptions{Wait: 3 * time.Second})
		wantErr(t, err, holdfast.ErrUnavailable)
		if waited := time.Since(begin); waited != 3*time.Second || !strings.Contains(fmt.Sprint(err), `acquire "k": waited 3s: `) {
			t.Errorf("waited %v for nodes that are down: %v", waited, err)
		}
		_, err = b.client.TryAcquire(t.Context(), "k", nil)
		wantErr(t, err, holdfast.ErrUnavailable)
		b.startNodes()
	})
}

func TestLocalHandOverUsesTokensOfItsBlock(t *testing.T) {
	var local, fromNodes atomic.Int32
	hooks := holdfast.Hooks{Acquired: func(e holdfast.AcquiredEvent) {
		if e.HandOver {
			local.Add(1)
		} else {
			fromNodes.Add(1)
		}
	}}
	inBubbleWith(t, &holdfast.Options{Hooks: hooks}, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", nil)
		var last holdfast.Token
		ids := make(map[string]bool)
		var wg sync.WaitGroup
		for range 99 {
			wg.Go(func() {
				l := b.acquire(b.client, "k", nil)
				if l.Token() <= last || ids[l.Owner()] {
					t.Errorf("token %d, ID %s after token %d", l.Token(), l.Owner(), last)
				}
				last, ids[l.Owner()] = l.Token(), true
				b.release(l)
			})
		}
		synctest.Wait()
		b.release(l)
		wg.Wait()
		awaitHooks()
		if local.Load() != 96 || fromNodes.Load() != 4 {
			t.Errorf("%d hand-overs and %d grants for 100 leases, want 96 and 4: 32 tokens each", local.Load(), fromNodes.Load())
		}
	})
}

var minuteTTL = &holdfast.AcquireOptions{TTL: time.Minute}

// handOver returns a lease that another client has handed over to c.
func (b *bench) handOver(c *holdfast.Client, key string, opts *holdfast.AcquireOptions) *holdfast.Lease {
	b.t.Helper()
	l := b.acquire(b.client, key, nil)
	next := make(chan *holdfast.Lease)
	go func() { next <- b.acquire(c, key, opts) }()
	passTime(300 * time.Millisecond)
	b.release(l)
	return <-next
}

// A handed-over lease begins with a second of trust. The new holder has the lock at once, and its first
// renewal soon gives it the whole TTL.
func TestHandedOverLeaseIsRenewedSoon(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		l := b.handOver(b.newPeer(), "k", minuteTTL)
		if left := time.Until(l.Deadline()); left > time.Second {
			t.Errorf("trusted for %v before any node answered", left)
		}
		passTime(50 * time.Millisecond)
		if left := time.Until(l.Deadline()); left < 59*time.Second {
			t.Errorf("trusted for %v", left)
		}
		passTime(time.Hour)
		b.release(l)
	})
}

func TestHandedOverLeaseSurvivesFailedRenewal(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		l := b.handOver(b.newPeer(), "k", minuteTTL)
		for i := range 5 {
			b.drv.Node(i).Stop()
		}
		passTime(400 * time.Millisecond) // its first renewals fail
		b.startNodes()
		passTime(time.Hour)
		b.release(l)
	})
}

// A failed Extend leaves the lease as it was.
func TestHandedOverLeaseSurvivesFailedExtend(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		for i := range 5 {
			b.drv.Node(i).Delay(20 * time.Millisecond)
		}
		l := b.handOver(b.newPeer(), "k", minuteTTL)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		wantErr(t, l.Extend(ctx, time.Minute), holdfast.ErrUnavailable)
		passTime(time.Hour)
		b.release(l)
	})
}

// One call of Renew serves all due leases. A renewal without an answer must not delay the others.
func TestHungRenewalDoesNotDelayHandedOverLease(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		other := b.newPeer()
		first := map[string]*holdfast.Lease{"slow": b.acquire(b.client, "slow", nil), "k": b.acquire(b.client, "k", nil)}
		next := make(chan *holdfast.Lease)
		for key := range first {
			go func() { next <- b.acquire(other, key, minuteTTL) }()
		}
		passTime(300 * time.Millisecond)
		second := make(map[string]*holdfast.Lease)
		for _, l := range first {
			b.release(l)
			l = <-next
			second[l.Key()] = l
		}
		for i := range 2 {
			b.drv.Node(i).DropLock("slow")
		}
		b.drv.Node(2).Freeze() // two of five nodes can renew it and two cannot
		passTime(5 * time.Second)
		if l := second["k"]; l.Context().Err() != nil {
			t.Errorf("lost: %v", context.Cause(l.Context()))
		}
		b.drv.Node(2).Start()
		b.release(second["k"])
		second["slow"].Release(t.Context())
	})
}

func TestNoRenewLeaseGetsWholeTTL(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		once := &holdfast.AcquireOptions{TTL: time.Minute, NoRenew: true}
		l := b.handOver(b.newPeer(), "k", once)
		if left := time.Until(l.Deadline()); left < 59*time.Second {
			t.Errorf("trusted for %v after a hand-over from another client", left)
		}
		next := make(chan *holdfast.Lease)
		for _, opts := range []*holdfast.AcquireOptions{minuteTTL, once} {
			go func() { next <- b.acquire(b.client, "k", opts) }()
			synctest.Wait()
		}
		b.release(l)
		b.release(<-next) // it began with a second of trust
		l = <-next
		if left := time.Until(l.Deadline()); left < 59*time.Second {
			t.Errorf("trusted for %v after a local hand-over", left)
		}
		b.release(l)
	})
}

// A lease can be handed to the next local waiter before its first renewal.
func TestHandedOverLeaseIsPassedOnLocally(t *testing.T) {
	var local atomic.Int32
	hooks := holdfast.Hooks{Acquired: func(e holdfast.AcquiredEvent) {
		if e.HandOver {
			local.Add(1)
		}
	}}
	inBubbleWith(t, &holdfast.Options{Hooks: hooks}, func(t *testing.T, b *bench) {
		l := b.acquire(b.newPeer(), "k", nil)
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() { b.release(b.acquire(b.client, "k", nil)) })
		}
		synctest.Wait()
		b.release(l)
		wg.Wait()
		awaitHooks()
		if local.Load() != 9 {
			t.Errorf("%d local hand-overs, want 9", local.Load())
		}
	})
}

func TestLocalHandOverYieldsToOtherClients(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
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
					passTime(5 * time.Millisecond)
					b.release(l)
				}
			})
		}
		passTime(time.Second)
		begin := time.Now()
		l := b.acquire(b.newPeer(), "k", nil)
		if waited := time.Since(begin); waited > 300*time.Millisecond {
			t.Errorf("another client waited %v", waited)
		}
		close(stop)
		b.release(l)
		wg.Wait()
	})
}

func TestCancelledLocalWaiterKeepsOrderOfOthers(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
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
		b.release(b.acquire(b.newPeer(), "k", nil))
	})
}

func TestHeldErrorNamesHolderInThisProcess(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		here, other := b.clientOnHost("vm", holdfast.Hooks{}), b.clientOnHost("vm", holdfast.Hooks{})
		l := b.acquire(here, "k", nil)
		for c, want := range map[*holdfast.Client]string{here: "held by this process, vm pid 1", other: "held by vm pid 1"} {
			_, atOnce := c.TryAcquire(t.Context(), "k", nil)
			_, waited := c.Acquire(t.Context(), "k", &holdfast.AcquireOptions{Wait: time.Second})
			for _, err := range []error{atOnce, waited} {
				if !strings.HasSuffix(fmt.Sprint(err), want) {
					t.Errorf("%v, want %q", err, want)
				}
			}
		}
		b.release(l)
	})
}

func TestTryOnLocallyHeldKeyFailsLocally(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", nil)
		b.freezeNodes()
		begin := time.Now()
		_, err := b.client.TryAcquire(t.Context(), "k", nil)
		wantErr(t, err, holdfast.ErrHeld)
		if time.Since(begin) != 0 {
			t.Errorf("took %v", time.Since(begin))
		}
		b.startNodes()
		b.release(l)
	})
}

// A waiter that gets its turn just when its Wait ends returns ErrHeld.
func TestWaitEndingAtItsTurnIsHeld(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
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

// A caller that cancels before the service answers was not blocked by an outage, so its error names none.
func TestCancelBeforeAnswerIsNotOutage(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for i := range 5 {
			b.drv.Node(i).Delay(20 * time.Millisecond)
		}
		leading := make(chan error)
		go func() {
			_, err := b.client.Acquire(ended, "k", nil)
			leading <- err
		}()
		bare := func(what string, err, want error) {
			t.Helper()
			wantErr(t, err, want)
			if errors.Is(err, holdfast.ErrUnavailable) || errors.Is(err, holdfast.ErrHeld) {
				t.Errorf("%s: %v, want no obstacle", what, err)
			}
			if errors.Is(want, context.DeadlineExceeded) && !strings.Contains(fmt.Sprint(err), "before an answer came of memory-1, memory-2") {
				t.Errorf("%s: %v does not name the nodes", what, err)
			}
		}
		bare("ended before", <-leading, context.Canceled)
		var all sync.WaitGroup
		for range 3 { // one caller asks, two queue behind it
			all.Go(func() {
				short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
				defer cancel()
				_, err := b.client.Acquire(short, "k", nil)
				bare("Acquire", err, context.DeadlineExceeded)
			})
			all.Go(func() {
				short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
				defer cancel()
				_, err := b.client.TryAcquire(short, "k", nil)
				bare("TryAcquire", err, context.DeadlineExceeded)
			})
		}
		all.Wait()
		_, err := b.client.Acquire(t.Context(), "k", &holdfast.AcquireOptions{Wait: 10 * time.Millisecond})
		wantErr(t, err, holdfast.ErrUnavailable) // Wait promises ErrHeld or ErrUnavailable
		if errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v names the caller's context", err)
		}
	})
}

// clientOnHost returns another client, whose Holder names host.
func (b *bench) clientOnHost(host string, hooks holdfast.Hooks) *holdfast.Client {
	b.t.Helper()
	return openClient(b.t, b.drv.Peer(), &holdfast.Options{Holder: holdfast.Holder{Host: host, PID: 1}, Hooks: hooks})
}

// wantHeldBy checks that err names l and its holder as the obstacle.
func wantHeldBy(t *testing.T, err error, l *holdfast.Lease, host string) {
	t.Helper()
	held, ok := errors.AsType[*holdfast.HeldError](err)
	if !ok || held.Owner != l.Owner() || held.Holder.Host != host || held.Remaining <= 0 {
		t.Errorf("%v (%+v), want the lease of %s, ID %s", err, held, host, l.Owner())
	}
	if !strings.Contains(fmt.Sprint(err), host+" pid 1") || errors.Is(err, holdfast.ErrUnavailable) {
		t.Errorf("error %v does not name %s", err, host)
	}
}

// A caller behind a waiter gets the name of the holder, not of the waiter.
func TestCallerBehindLocalWaiterLearnsHolder(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		var told []*holdfast.HeldError
		c := b.clientOnHost("waits", holdfast.Hooks{Waiting: func(e holdfast.WaitingEvent) { told = append(told, e.Held) }})
		l := b.acquire(b.clientOnHost("holds", holdfast.Hooks{}), "k", nil)
		for i := range 5 {
			b.drv.Node(i).Delay(20 * time.Millisecond)
		}
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				_, err := c.Acquire(ctx, "k", nil)
				wantErr(t, err, context.DeadlineExceeded)
				wantHeldBy(t, err, l, "holds")
			})
			all.Go(func() {
				_, err := c.TryAcquire(t.Context(), "k", nil) // before the first answer
				wantHeldBy(t, err, l, "holds")
			})
			all.Go(func() {
				_, err := c.Acquire(t.Context(), "k", &holdfast.AcquireOptions{Wait: time.Second})
				wantHeldBy(t, err, l, "holds")
			})
		}
		passTime(2 * time.Second)
		begin := time.Now()
		_, err := c.TryAcquire(t.Context(), "k", nil)
		wantHeldBy(t, err, l, "holds")
		if took := time.Since(begin); took > 0 {
			t.Errorf("TryAcquire behind a waiter took %v", took)
		}
		all.Wait()
		synctest.Wait()
		if len(told) != 6 {
			t.Errorf("%d Waiting events, want 6", len(told))
		}
		for _, held := range told {
			wantHeldBy(t, held, l, "holds")
		}
		b.release(l)
	})
}

func TestCallerBehindLocalWaiterLearnsOutage(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		for i := range 5 {
			b.drv.Node(i).Stop()
		}
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() {
			_, err := b.client.Acquire(ctx, "k", nil)
			wantErr(t, err, context.Canceled, holdfast.ErrUnavailable)
		})
		passTime(time.Second)
		_, atOnce := b.client.TryAcquire(t.Context(), "k", nil)
		_, later := b.client.Acquire(t.Context(), "k", &holdfast.AcquireOptions{Wait: time.Second})
		for _, err := range []error{atOnce, later} {
			wantErr(t, err, holdfast.ErrUnavailable)
			if down, ok := errors.AsType[*holdfast.UnavailableError](err); !ok || len(down.Nodes) != 5 || errors.Is(err, holdfast.ErrHeld) {
				t.Errorf("error %v, want five nodes down and no holder", err)
			}
		}
		cancel()
		all.Wait()
		b.startNodes()
	})
}

func TestTryDuringWinningAcquireIsHeldLocally(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		for i := range 5 {
			b.drv.Node(i).Delay(20 * time.Millisecond)
		}
		c := b.clientOnHost("here", holdfast.Hooks{})
		got := make(chan *holdfast.Lease, 1)
		go func() { got <- b.acquire(c, "k", nil) }()
		passTime(time.Millisecond)
		_, err := c.TryAcquire(t.Context(), "k", nil)
		l := <-got
		wantHeldBy(t, err, l, "here")
		b.release(l)
	})
}

func TestWaitingEventNamesHolder(t *testing.T) {
	var held atomic.Pointer[holdfast.HeldError]
	hooks := holdfast.Hooks{Waiting: func(e holdfast.WaitingEvent) { held.Store(e.Held) }}
	inBubbleWith(t, &holdfast.Options{Hooks: hooks}, func(t *testing.T, b *bench) {
		l := b.acquire(b.newPeer(), "k", nil)
		_, err := b.client.Acquire(t.Context(), "k", &holdfast.AcquireOptions{Wait: time.Second})
		wantErr(t, err, holdfast.ErrHeld)
		if h := held.Load(); h == nil || h.Holder.PID == 0 {
			t.Errorf("Waiting event %+v, want the holder's process", h)
		}
		b.release(l)
	})
}

// TryAcquire waits for a release in progress. It does not name its own process as the holder.
func TestTryAcquireWaitsForOwnRelease(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		for i := range 3 {
			b.drv.Node(i).Delay(5 * time.Millisecond)
		}
		l := b.acquire(b.client, "k", nil)
		go l.Release(t.Context())
		synctest.Wait()
		again, err := b.client.TryAcquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		b.release(again)
	})
}

// pausedDriver is a driver whose process is suspended when the context of an Acquire ends.
type pausedDriver struct {
	*memory.Driver
	stands time.Duration
}

func (d *pausedDriver) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	g, err := d.Driver.Acquire(ctx, req)
	if ctx.Err() != nil {
		passTime(d.stands)
	}
	return g, err
}

// The holder from before the suspend may be dead, and the nodes that had no time to answer may be healthy.
func TestWaitEndedBySuspendOmitsOldHolder(t *testing.T) {
	for name, tt := range map[string]struct {
		stands time.Duration
		down   bool
		kind   error
	}{
		"held":      {10 * time.Second, false, holdfast.ErrHeld},
		"down":      {10 * time.Second, true, holdfast.ErrUnavailable},
		"on time":   {0, false, holdfast.ErrHeld},
		"a stumble": {500 * time.Millisecond, true, holdfast.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				if tt.down {
					for i := range 3 {
						b.drv.Node(i).Stop()
					}
					defer b.startNodes()
				} else {
					l := b.acquire(b.clientOnHost("web-3", holdfast.Hooks{}), "k", nil)
					defer b.release(l)
				}
				c := openClient(t, &pausedDriver{b.drv.Peer(), tt.stands}, nil)
				short, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				_, waited := c.Acquire(t.Context(), "k", &holdfast.AcquireOptions{Wait: 3 * time.Second})
				_, ended := c.Acquire(short, "k", nil)
				wantErr(t, ended, context.DeadlineExceeded)
				if errors.Is(waited, context.DeadlineExceeded) {
					t.Errorf("error %v names the caller's context", waited)
				}
				for _, err := range []error{waited, ended} {
					wantErr(t, err, tt.kind)
					_, held := errors.AsType[*holdfast.HeldError](err)
					_, down := errors.AsType[*holdfast.UnavailableError](err)
					past := strings.Contains(fmt.Sprint(err), "this process stood still until 10s after the end of its wait")
					if still := tt.stands > time.Second; (held || down) == still || past != still {
						t.Errorf("error %v (held %v, down %v) after a pause of %v", err, held, down, tt.stands)
					}
				}
			})
		})
	}
}
