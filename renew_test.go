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

func TestMajorityLossIsNoticedAtNextRenewal(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", &holdfast.AcquireOptions{TTL: 9 * time.Second})
		status, err := b.client.Inspect(t.Context(), "k")
		if err != nil || !status.Held || status.Token != l.Token() {
			t.Fatalf("Inspect() = %+v, %v", status, err)
		}
		for i := range 5 {
			b.drv.Node(i).Wipe() // nobody notifies the holder, as ForceRelease would
		}
		b.acquire(b.newPeer(), "k", nil)
		begin := time.Now()
		<-l.Context().Done()
		if waited := time.Since(begin); waited > 3*time.Second {
			t.Errorf("noticed after %v, want at the next renewal", waited)
		}
		wantErr(t, context.Cause(l.Context()), holdfast.ErrLost)
	})
}

func TestMaxHoldStopsRenewals(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", &holdfast.AcquireOptions{TTL: 6 * time.Second, MaxHold: 20 * time.Second})
		wantEndAfter(t, l, 20*time.Second)
		b.release(b.acquire(b.newPeer(), "k", &holdfast.AcquireOptions{Wait: time.Millisecond})) // the lock was freed at once
	})
}

// Otherwise MaxHold, which releases the lock, would cut short a MinHold that others rely on.
func TestMaxHoldIsNoShorterThanMinHold(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		_, err := b.client.TryAcquire(t.Context(), "k", &holdfast.AcquireOptions{MinHold: 5 * time.Second, MaxHold: 100 * time.Millisecond})
		wantErr(t, err, holdfast.ErrInvalid)
		if text := fmt.Sprint(err); !strings.Contains(text, "MaxHold 100ms") || !strings.Contains(text, "MinHold 5s") {
			t.Errorf("error %q does not name both causes", text)
		}
		b.release(b.acquire(b.client, "k", &holdfast.AcquireOptions{MinHold: 5 * time.Second, MaxHold: 5 * time.Second}))
	})
}

// wantEndAfter checks that l ends because of MaxHold, after it was held for that long.
func wantEndAfter(t *testing.T, l *holdfast.Lease, held time.Duration) {
	t.Helper()
	begin := time.Now()
	<-l.Context().Done()
	if took := time.Since(begin); took != held {
		t.Errorf("held for %v, want %v", took, held)
	}
	if !time.Now().Equal(l.Deadline()) {
		t.Errorf("ended at %v, with the deadline at %v", time.Now(), l.Deadline())
	}
	cause := context.Cause(l.Context())
	wantErr(t, cause, holdfast.ErrLost)
	if !strings.Contains(cause.Error(), "its MaxHold") {
		t.Errorf("cause %v does not name MaxHold", cause)
	}
}

func TestMaxHoldBoundsExtendedAndUnrenewedLeases(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", &holdfast.AcquireOptions{TTL: 6 * time.Second, MaxHold: 20 * time.Second})
		passTime(15 * time.Second)
		if err := l.Extend(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		wantEndAfter(t, l, 5*time.Second)
		l = b.acquire(b.client, "k", &holdfast.AcquireOptions{TTL: 30 * time.Second, MaxHold: 20 * time.Second, NoRenew: true})
		wantEndAfter(t, l, 20*time.Second)
	})
}

// Each holder of a grant has its own MaxHold: the previous holder's MaxHold does not shorten it.
func TestMaxHoldEndsWithItsHolder(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", &holdfast.AcquireOptions{MaxHold: 50 * time.Millisecond})
		next := make(chan *holdfast.Lease)
		go func() { next <- b.acquire(b.client, "k", nil) }()
		passTime(40 * time.Millisecond)
		b.release(l)
		l = <-next
		passTime(time.Minute)
		if err := context.Cause(l.Context()); err != nil {
			t.Errorf("the next holder has %v left", err)
		}
		b.release(l)
	})
}

func TestLateAnswersKeepLease(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", &holdfast.AcquireOptions{TTL: 1500 * time.Millisecond})
		for i := range 5 {
			b.drv.Node(i).Delay(200 * time.Millisecond) // longer than the client waits for an answer
		}
		passTime(time.Minute)
		if err := context.Cause(l.Context()); err != nil {
			t.Errorf("lost behind slow nodes: %v", err)
		}
		wantErr(t, l.Release(t.Context()), holdfast.ErrUnavailable) // not confirmed in time, but still in progress
		b.release(b.acquire(b.newPeer(), "k", nil))
	})
}

func TestRenewalsOfManyLeasesTravelTogether(t *testing.T) {
	var renewed atomic.Int32
	inBubbleWith(t, &holdfast.Options{Hooks: holdfast.Hooks{Renewed: func(e holdfast.RenewedEvent) {
		if e.Err == nil {
			renewed.Add(1)
		}
	}}}, func(t *testing.T, b *bench) {
		for i := range 1000 {
			b.acquire(b.client, "k"+strings.Repeat("x", i%100)+string(rune('a'+i/100)), &holdfast.AcquireOptions{TTL: 3 * time.Second})
		}
		passTime(3500 * time.Millisecond)
		if n := renewed.Load(); n < 3000 {
			t.Errorf("%d renewals in 3.5s of 1000 leases with a TTL of 3s", n)
		}
	})
}

// One call of Renew serves all due leases. A lease that is nearly over leaves little time for the answers.
func TestExpiringLeaseDoesNotShortenOtherRenewals(t *testing.T) {
	// The renewals of the ending lease take a second each, with a second between them; the last begins 200 ms
	// before its end.
	renewBesideEndingLease(t, 57780*time.Millisecond, 200*time.Millisecond, minuteTTL, func(t *testing.T, ends, _ time.Duration) {
		if ends > 100*time.Millisecond {
			t.Fatalf("the last renewal of the expiring lease ended %v before its deadline", ends)
		}
	})
}

// A lease with a long TTL gives its nodes more time to answer.
func TestExpiringLeaseDoesNotDelayOtherRenewals(t *testing.T) {
	short := &holdfast.AcquireOptions{TTL: 3 * time.Second}
	renewBesideEndingLease(t, 59760*time.Millisecond, 20*time.Millisecond, short, func(t *testing.T, _, sound time.Duration) {
		if sound < 1900*time.Millisecond {
			t.Errorf("a renewal of a healthy lease ended with %v left", sound)
		}
	})
}

// renewBesideEndingLease runs one lease whose renewals all fail, because a majority of the nodes does not have
// it, beside healthy leases with the options opts. No renewal of a healthy lease may fail. It calls check with
// the time that was left of the ending lease after its last renewal, and with the shortest time that was left
// of a sound one.
func renewBesideEndingLease(t *testing.T, ttl, slow time.Duration, opts *holdfast.AcquireOptions, check func(t *testing.T, ends, sound time.Duration)) {
	var mu sync.Mutex
	failed, ends, sound := 0, time.Hour, time.Hour
	hooks := holdfast.Hooks{Renewed: func(e holdfast.RenewedEvent) {
		mu.Lock()
		defer mu.Unlock()
		if e.Key == "ends" {
			ends = e.Remaining
			return
		}
		sound = min(sound, e.Remaining)
		if e.Err != nil {
			failed++
		}
	}}
	inBubbleWith(t, &holdfast.Options{Hooks: hooks}, func(t *testing.T, b *bench) {
		one := b.acquire(b.client, "ends", &holdfast.AcquireOptions{TTL: ttl})
		for i := range 2 {
			b.drv.Node(i).DropLock("ends")
		}
		b.drv.Node(2).Freeze() // two of five nodes can renew it and two cannot
		for i := 3; i < 5; i++ {
			b.drv.Node(i).Delay(slow)
		}
		for i := 0; one.Context().Err() == nil; i++ { // at any time, a renewal of a sound lease is due
			b.acquire(b.client, fmt.Sprint("sound", i), opts)
			passTime(500 * time.Millisecond)
		}
		mu.Lock()
		defer mu.Unlock()
		check(t, ends, sound)
		if failed > 0 {
			t.Errorf("%d renewals of healthy leases failed", failed)
		}
		b.drv.Node(2).Start()
	})
}

// unansweringDriver is a driver that answers no renewal. It records the grants of each request.
type unansweringDriver struct {
	*memory.Driver
	mu    sync.Mutex
	asked map[string]time.Time // time of the first request, by key
}

func (d *unansweringDriver) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	d.mu.Lock()
	for _, g := range grants {
		if d.asked[g.Key].IsZero() {
			d.asked[g.Key] = time.Now()
		}
	}
	d.mu.Unlock()
	<-ctx.Done()
	out := make([]driver.Renewal, len(grants))
	for i := range out {
		out[i].Err = ctx.Err()
	}
	return out
}

// Otherwise the last batches would begin when no time is left, however few leases of the first batches caused
// the delay.
func TestBatchesDueTogetherShareRemainingTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const leases = 4000 // eight batches
		drv := &unansweringDriver{Driver: memory.New(1), asked: make(map[string]time.Time)}
		c := openClient(t, drv, nil)
		begin := time.Now()
		for i := range leases {
			if _, err := c.Acquire(t.Context(), fmt.Sprint(i), &holdfast.AcquireOptions{TTL: 9 * time.Second}); err != nil {
				t.Fatal(err)
			}
		}
		passTime(8 * time.Second)
		drv.mu.Lock()
		defer drv.mu.Unlock()
		if len(drv.asked) != leases {
			t.Errorf("%d of %d leases were renewed in time", len(drv.asked), leases)
		}
		for key, at := range drv.asked {
			if after := at.Sub(begin); after > 4500*time.Millisecond { // the first renewal after a third of the TTL, and a quarter of the time left then
				t.Fatalf("the first renewal of lease %s began %v after its grant, want all within 4.5 s", key, after)
			}
		}
	})
}

// rejectingDriver is a driver whose renewals fail with an error that the test sets.
type rejectingDriver struct {
	*memory.Driver
	err atomic.Pointer[error]
}

func (d *rejectingDriver) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	out := d.Driver.Renew(ctx, grants)
	if err := d.err.Load(); err != nil {
		for i := range out {
			out[i] = driver.Renewal{Err: *err}
		}
	}
	return out
}

// The error tells the holder and the operator what to fix.
func TestExpiredLeaseNamesFailedRenewal(t *testing.T) {
	denied := errors.New("access denied; grant the role lockers to this user")
	for name, opts := range map[string]*holdfast.AcquireOptions{
		"at its deadline": {TTL: 6 * time.Second},
		"with a margin":   {TTL: 6 * time.Second, Margin: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				drv := &rejectingDriver{Driver: memory.New(3)}
				var reason atomic.Value
				c := openClient(t, drv, &holdfast.Options{Hooks: holdfast.Hooks{Lost: func(e holdfast.LostEvent) { reason.Store(e.Reason) }}})
				l := acquire(t, c, "k", opts)
				for _, cause := range []error{errors.New("an older one"), &driver.UnavailableError{Err: denied}} {
					drv.err.Store(&cause)
					passTime(2100 * time.Millisecond)
				}
				<-l.Context().Done()
				awaitHooks()
				lost, _ := reason.Load().(error)
				for _, err := range []error{context.Cause(l.Context()), lost, l.Release(t.Context())} {
					wantErr(t, err, holdfast.ErrLost, holdfast.ErrExpired, denied)
					if text := fmt.Sprint(err); !strings.Contains(text, "renewed") || !strings.HasSuffix(text, "the last renewal failed: "+denied.Error()) {
						t.Errorf("cause %q does not contain the last renewal's error", text)
					}
				}
			})
		})
	}
}

// The last attempt is too short to blame a node. The lease reports the causes of the attempt before it.
func TestLossNamesSilentNodes(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		for ttl := time.Second; ttl < 10*time.Second; ttl += 700 * time.Millisecond {
			l := b.acquire(b.client, "k", &holdfast.AcquireOptions{TTL: ttl})
			passTime(ttl)
			for i := range 3 {
				b.drv.Node(i).Freeze()
			}
			<-l.Context().Done()
			cause := context.Cause(l.Context())
			wantErr(t, cause, holdfast.ErrExpired, holdfast.ErrUnavailable)
			if down, ok := errors.AsType[*holdfast.UnavailableError](cause); !ok || len(down.Nodes) != 3 || !strings.Contains(fmt.Sprint(cause), "no answer in time") {
				t.Errorf("with a TTL of %v the cause is %v, want the three silent nodes", ttl, cause)
			}
			b.startNodes()
		}
	})
}

// A failed renewal does not explain the loss if a later renewal succeeded.
func TestLossOmitsOlderFailedRenewal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		drv := &rejectingDriver{Driver: memory.New(3)}
		c := openClient(t, drv, nil)
		l := acquire(t, c, "k", &holdfast.AcquireOptions{TTL: 6 * time.Second})
		old := errors.New("an old one")
		drv.err.Store(&old)
		passTime(2500 * time.Millisecond)
		drv.err.Store(nil)
		passTime(10 * time.Second)
		c.StopWatchdog()
		passTime(10 * time.Second)
		err := l.Release(t.Context())
		wantErr(t, err, holdfast.ErrExpired)
		if errors.Is(err, old) || !strings.Contains(fmt.Sprint(err), "no renewal failed") {
			t.Errorf("cause %v, want no failed renewal", err)
		}
	})
}

// overlapDriver is a driver whose renewals take a second. It counts simultaneous renewals of the same grant.
type overlapDriver struct {
	*memory.Driver
	mu       sync.Mutex
	underway map[string]int
	total    int
	most     int
}

func (d *overlapDriver) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	count := func(by int) {
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, g := range grants {
			d.underway[g.Owner] += by
			d.most = max(d.most, d.underway[g.Owner])
			d.total += max(by, 0)
		}
	}
	count(1)
	defer count(-1)
	time.Sleep(time.Second)
	return d.Driver.Renew(ctx, grants)
}

func TestHandOverKeepsOneRenewal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		drv := &overlapDriver{Driver: memory.New(1), underway: make(map[string]int)}
		c := openClient(t, drv, nil)
		opts := &holdfast.AcquireOptions{RenewEvery: 10 * time.Millisecond}
		first := acquire(t, c, "k", opts)
		next := make(chan *holdfast.Lease, 1)
		go func() {
			l, _ := c.Acquire(t.Context(), "k", opts)
			next <- l
		}()
		time.Sleep(50 * time.Millisecond) // the first renewal is in progress
		first.Release(t.Context())
		second := <-next
		if second == nil || !strings.HasPrefix(second.Owner(), first.Owner()+"+") {
			t.Fatal("the lease was not handed over")
		}
		time.Sleep(3 * time.Second)
		drv.mu.Lock()
		if drv.most != 1 || drv.total < 3 {
			t.Errorf("%d renewals in 3 s, of which %d at once", drv.total, drv.most)
		}
		drv.mu.Unlock()
		second.Release(t.Context())
	})
}
