package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
)

func TestPrintedLeaseShowsKeyAndToken(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", nil)
		want := fmt.Sprintf(`lease on "k", token %d`, l.Token())
		for _, text := range []string{fmt.Sprint(l), fmt.Sprintf("%+v", l)} {
			if text != want {
				t.Errorf("the lease prints as %q, want %q", text, want)
			}
		}
	})
}

// The next renewal restores the lock at nodes that forgot it. If a majority forgot it, the lease ends with
// that renewal, even if a caller calls Check before.
func TestCheckDoesNotChangeLease(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", nil)
		lose := func(nodes int) {
			for i := range nodes {
				b.drv.Node(i).DropLock("k")
			}
		}
		lose(2)
		b.drv.Node(2).Freeze()
		wantErr(t, l.Check(t.Context()), holdfast.ErrUnavailable)
		b.drv.Node(2).Start()
		if st, err := b.client.Inspect(t.Context(), "k"); err != nil || st.Nodes[0].Owner != "" || st.Nodes[1].Owner != "" {
			t.Errorf("after a check: %+v, %v", st.Nodes, err)
		}
		passTime(4 * time.Second)
		st, err := b.client.Inspect(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range st.Nodes {
			if n.Owner != l.Owner() || n.Token != l.Token() {
				t.Errorf("after the next renewal: %+v", n)
			}
		}
		lose(3)
		wantErr(t, l.Check(t.Context()), holdfast.ErrLost)
		if err := context.Cause(l.Context()); err != nil {
			t.Errorf("after a check: %v", err)
		}
		passTime(4 * time.Second)
		wantErr(t, context.Cause(l.Context()), holdfast.ErrLost)
	})
}

// A nested hold shares the lease, so it cannot have another TTL or end.
func TestNestingWithOtherOptionsIsRejected(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		opts := holdfast.AcquireOptions{TTL: 5 * time.Second, MaxHold: time.Minute, MinHold: time.Second, Reentrant: true}
		outer := b.acquire(b.client, "k", &opts)
		for i, other := range []holdfast.AcquireOptions{{TTL: 6 * time.Second}, {MaxHold: time.Second}, {MinHold: 2 * time.Second}, {NoRenew: true}} {
			other.Reentrant = true
			_, err := b.client.Acquire(outer.Context(), "k", &other)
			wantErr(t, err, holdfast.ErrInvalid)
			_, err = b.client.TryAcquire(outer.Context(), "k", &other)
			if !errors.Is(err, holdfast.ErrInvalid) {
				t.Errorf("options %d: %v, want ErrInvalid", i, err)
			}
		}
		for _, same := range []holdfast.AcquireOptions{opts, {Reentrant: true}, {Reentrant: true, Wait: time.Second}} {
			inner, err := b.client.Acquire(outer.Context(), "k", &same)
			if err != nil {
				t.Fatal(err)
			}
			b.release(inner)
		}
		b.release(outer)
	})
}

func TestCheckDistinguishesLossFromOutage(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", nil)
		for i := range 3 {
			b.drv.Node(i).Stop()
		}
		wantErr(t, l.Check(t.Context()), holdfast.ErrUnavailable)
		if l.Context().Err() != nil {
			t.Error("an unknown outcome ended the lease")
		}
		b.startNodes()
		b.release(l)
	})
}

func TestReleaseNearEndOfMinHoldSucceeds(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		for _, rest := range []time.Duration{1, time.Millisecond, 3 * time.Millisecond} {
			l := b.acquire(b.client, "k", &holdfast.AcquireOptions{MinHold: time.Second})
			passTime(time.Second - rest)
			b.release(l)
			passTime(20 * time.Millisecond)
			next, err := b.newPeer().TryAcquire(t.Context(), "k", nil)
			if err != nil {
				t.Fatalf("with %v of MinHold left: %v", rest, err)
			}
			b.release(next)
		}
	})
}

func TestLossEndsEveryNestedHold(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		outer := b.acquire(b.client, "k", &holdfast.AcquireOptions{TTL: time.Second})
		inner, err := b.client.Acquire(outer.Context(), "k", &holdfast.AcquireOptions{Reentrant: true})
		if err != nil {
			t.Fatal(err)
		}
		b.freezeNodes()
		<-inner.Context().Done()
		<-outer.Context().Done()
		wantErr(t, inner.Release(t.Context()), holdfast.ErrLost)
		wantErr(t, outer.Release(t.Context()), holdfast.ErrLost)
		b.startNodes()
	})
}

func TestContextOfLostLeaseMayAcquireAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		old := b.acquire(b.client, "k", &holdfast.AcquireOptions{TTL: time.Second, NoRenew: true})
		<-old.Context().Done()
		l, err := b.client.Acquire(context.WithoutCancel(old.Context()), "k", nil)
		if err != nil {
			t.Fatalf("Acquire with a lost lease's context = %v", err)
		}
		b.release(l)
	})
}

func TestExtendSetsTTLOfLaterRenewals(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", &holdfast.AcquireOptions{TTL: time.Second})
		if err := l.Extend(t.Context(), 20*time.Second); err != nil {
			t.Fatal(err)
		}
		if left := time.Until(l.Deadline()); left < 19*time.Second {
			t.Errorf("%v left after Extend(20 s)", left)
		}
		passTime(time.Minute)
		if left := time.Until(l.Deadline()); left < 12*time.Second {
			t.Errorf("%v left after later renewals, want two thirds of 20s", left)
		}
		if err := l.Extend(t.Context(), 500*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		passTime(20 * time.Second)
		if left := time.Until(l.Deadline()); left > 500*time.Millisecond {
			t.Errorf("%v left when the longer TTL is over, want at most 500ms", left)
		}
		if err := l.Check(t.Context()); err != nil {
			t.Errorf("Check() = %v", err)
		}
		wantErr(t, l.Extend(t.Context(), time.Millisecond), holdfast.ErrInvalid)
		b.release(l)
		wantErr(t, l.Extend(t.Context(), time.Second), holdfast.ErrLost)
	})
}

func TestShorterTTLDoesNotShortenLease(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", &holdfast.AcquireOptions{TTL: time.Minute, NoRenew: true})
		until := l.Deadline()
		if err := l.Extend(t.Context(), 2*time.Second); err != nil || !l.Deadline().Equal(until) {
			t.Errorf("Extend() = %v, trusted until %v, want %v", err, l.Deadline(), until)
		}
		b.freezeNodes()
		wantErr(t, l.Extend(t.Context(), 2*time.Second), holdfast.ErrUnavailable)
		if !l.Deadline().Equal(until) {
			t.Errorf("trusted until %v after a failed Extend, want %v", l.Deadline(), until)
		}
		b.startNodes()
		passTime(10 * time.Second)
		_, err := b.newPeer().TryAcquire(t.Context(), "k", nil)
		wantErr(t, err, holdfast.ErrHeld)
		b.release(l)
	})
}

func TestSlowRenewalDoesNotExtendTrust(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
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

func TestCloseKeepsMinHold(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		c := b.newPeer()
		b.acquire(c, "k", &holdfast.AcquireOptions{MinHold: time.Minute})
		c.Close()
		passTime(59 * time.Second)
		_, err := b.client.TryAcquire(t.Context(), "k", nil)
		wantErr(t, err, holdfast.ErrHeld)
		passTime(2 * time.Second)
		b.release(b.acquire(b.client, "k", &holdfast.AcquireOptions{Wait: time.Second}))
	})
}

func TestCancelledWaiterIgnoresMinHold(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		for range 50 {
			l := b.acquire(b.client, "k", nil)
			time.AfterFunc(time.Millisecond, func() { l.Release(context.Background()) })
			next, err := b.client.Acquire(t.Context(), "k", &holdfast.AcquireOptions{Wait: time.Millisecond, MinHold: time.Second})
			if err == nil {
				b.release(next)
				passTime(2 * time.Second)
			}
			synctest.Wait()
			b.release(b.acquire(b.newPeer(), "k", &holdfast.AcquireOptions{Wait: 100 * time.Millisecond}))
		}
	})
}

func TestEndedLeaseCannotBeNested(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.client, "k", &holdfast.AcquireOptions{TTL: 2 * time.Second, NoRenew: true})
		b.client.StopWatchdog()
		passTime(3 * time.Second)
		n, err := b.client.Acquire(l.Context(), "k", &holdfast.AcquireOptions{Reentrant: true, Wait: time.Second})
		if err == nil {
			t.Errorf("returned a hold that ended %v ago", time.Since(n.Deadline()))
		}
	})
}

// Inside Do, the lease's own context is the one that callers have.
func TestReleaseAcceptsLeasesOwnContext(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		for i := range 3 {
			b.drv.Node(i).Delay(5 * time.Millisecond)
		}
		l := b.acquire(b.client, "k", nil)
		ctx, cancel := context.WithTimeout(l.Context(), time.Second)
		defer cancel()
		if err := l.Release(ctx); err != nil {
			t.Errorf("Release = %v", err)
		}
	})
}

// After such an error the operator examines the named nodes.
func TestWaitWithoutAnswerNamesNodes(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		for i := range b.client.Nodes() {
			b.drv.Node(i).Delay(time.Hour)
			defer b.drv.Node(i).Delay(0)
		}
		_, err := b.client.Acquire(t.Context(), "k", &holdfast.AcquireOptions{Wait: time.Millisecond})
		wantErr(t, err, holdfast.ErrUnavailable)
		for _, n := range b.client.Nodes() {
			if err != nil && !strings.Contains(err.Error(), n.Node) {
				t.Errorf("Acquire() = %v, want it to name %s", err, n.Node)
			}
		}
	})
}
