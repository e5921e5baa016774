package holdfast_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
)

func TestDetachedLeaseLastsUntilItsDeadline(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		c, other := b.newPeer(), b.newPeer()
		l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: 5 * time.Second, Adoptable: true})
		passTime(time.Minute)
		if err := l.Detach(); err != nil {
			t.Fatal(err)
		}
		if cause := context.Cause(l.Context()); !errors.Is(cause, holdfast.ErrDetached) {
			t.Errorf("the lease context ended with %v", cause)
		}
		wantErr(t, l.Detach(), holdfast.ErrLost)
		wantErr(t, l.Check(t.Context()), holdfast.ErrLost)
		if err := l.Release(t.Context()); err != nil {
			t.Errorf("Release() after adoption = %v", err)
		}
		passTime(time.Until(l.Deadline()))
		_, err := other.TryAcquire(t.Context(), "k", nil)
		wantErr(t, err, holdfast.ErrHeld)
		passTime(200 * time.Millisecond)
		b.release(b.acquire(other, "k", nil))
	})
}

func TestWaiterAsksServiceAfterDetach(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		c := b.newPeer()
		l := b.acquire(c, "k", &holdfast.AcquireOptions{TTL: 5 * time.Second, Adoptable: true})
		next := make(chan *holdfast.Lease, 1)
		go func() {
			m, err := c.Acquire(t.Context(), "k", nil)
			if err != nil {
				t.Error(err)
			}
			next <- m
		}()
		synctest.Wait()
		if err := l.Detach(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-next:
			t.Fatal("Adopt() succeeded while the detached lease was held")
		case <-time.After(4 * time.Second):
		}
		b.release(<-next)
	})
}

// The old holder has not detached its lease, and learns of the loss at its next renewal.
func TestOneAdopterGetsLease(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		l := b.acquire(b.newPeer(), "k", &holdfast.AcquireOptions{TTL: 6 * time.Second, Adoptable: true})
		var won []*holdfast.Lease
		for range 3 {
			switch m, err := b.newPeer().Adopt(t.Context(), "k", l.Owner(), l.Token(), nil); {
			case err == nil:
				won = append(won, m)
			default:
				wantErr(t, err, holdfast.ErrLost)
			}
		}
		if len(won) != 1 {
			t.Fatalf("%d clients adopted one lease, want 1", len(won))
		}
		passTime(3 * time.Second)
		if context.Cause(l.Context()) == nil {
			t.Error("the former holder's lease context is still alive")
		}
		if err := won[0].Check(t.Context()); err != nil {
			t.Error(err)
		}
		b.release(won[0])
	})
}

func TestCloseEndsWaitOfAdopt(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		c := b.newPeer()
		l := b.acquire(b.client, "k", &holdfast.AcquireOptions{Adoptable: true})
		if err := l.Detach(); err != nil {
			t.Fatal(err)
		}
		b.freezeNodes()
		adopted := make(chan error)
		go func() {
			_, err := c.Adopt(t.Context(), "k", l.Owner(), l.Token(), nil)
			adopted <- err
		}()
		synctest.Wait()
		begin := time.Now()
		go c.Close()
		wantErr(t, <-adopted, holdfast.ErrClosed)
		if took := time.Since(begin); took > 0 {
			t.Errorf("Adopt() returned %v after Close, want at once", took)
		}
		b.startNodes()
	})
}
