package holdfast_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
)

// wantCrowdRejected checks that MaxWaiters of the given number rejects c at once, and that the error counts the given
// number of other waiters.
func (b *bench) wantCrowdRejected(c *holdfast.Client, most, others int) {
	b.t.Helper()
	begin := time.Now()
	_, err := c.Acquire(b.t.Context(), "k", &holdfast.AcquireOptions{MaxWaiters: most})
	held, ok := errors.AsType[*holdfast.HeldError](err)
	if !ok || !errors.Is(err, holdfast.ErrHeld) || held.Waiters != others || errors.Is(err, context.Canceled) {
		b.t.Errorf("MaxWaiters %d behind %d waiters: %v, %+v", most, others, err, held)
	}
	if took := time.Since(begin); took != 0 {
		b.t.Errorf("Acquire() was rejected after %v", took)
	}
}

// queueClients makes the clients wait for the key, one after the other, each with MaxWaiters set to most. leave
// ends all waits.
func (b *bench) queueClients(ctx context.Context, most int, clients ...*holdfast.Client) (leave func()) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for _, c := range clients {
		all.Go(func() {
			l, err := c.Acquire(ctx, "k", &holdfast.AcquireOptions{MaxWaiters: most})
			if err == nil {
				b.release(l)
			} else if ctx.Err() == nil {
				b.t.Errorf("Acquire() within MaxWaiters = %v", err)
			}
		})
		passTime(2 * time.Second) // the client is queued, and the renewal of the lock has counted it
	}
	return func() { cancel(); all.Wait() }
}

func TestFullQueueRejectsWaiters(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		holder := b.client
		l := b.acquire(holder, "k", &holdfast.AcquireOptions{TTL: 3 * time.Second})
		leave := b.queueClients(t.Context(), 3, b.newPeer(), b.newPeer(), b.newPeer()) // each finds fewer than three ahead
		for _, c := range []*holdfast.Client{holder, b.newPeer()} {
			b.wantCrowdRejected(c, 1, 3)
			b.wantCrowdRejected(c, 3, 3)
		}
		more := b.queueClients(t.Context(), 4, b.newPeer())
		last := b.queueClients(t.Context(), 0, b.newPeer(), holder)
		passTime(time.Minute) // waiters keep their positions when others queue behind them
		b.wantCrowdRejected(holder, 6, 6)
		b.release(l)
		passTime(time.Second)
		leave()
		more()
		last()
		b.wantFree(b.newPeer(), "k")
	})
}

func TestFullLocalQueueRejectsWaiters(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		other := b.newPeer()
		for _, holder := range []*holdfast.Client{b.client, other} {
			l := b.acquire(holder, "k", nil)
			leave := b.queueClients(t.Context(), 3, other, other, other)
			b.wantCrowdRejected(other, 3, 3)
			leave()
			b.release(l)
		}
	})
}

// Only the first caller asks the service. Its answer rejects the callers behind it.
func TestMaxWaitersLimitsConcurrentCallers(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		for i := range 5 {
			b.drv.Node(i).Delay(10 * time.Millisecond)
		}
		c := b.newPeer()
		l := b.acquire(b.client, "k", nil)
		var all sync.WaitGroup
		var away atomic.Int32
		for range 10 {
			all.Go(func() {
				l, err := c.Acquire(t.Context(), "k", &holdfast.AcquireOptions{MaxWaiters: 2})
				if err != nil {
					wantErr(t, err, holdfast.ErrHeld)
					away.Add(1)
					return
				}
				b.release(l)
			})
		}
		passTime(time.Second)
		synctest.Wait()
		if n := away.Load(); n != 8 {
			t.Errorf("%d of ten callers were rejected, want all but two", n)
		}
		b.release(l)
		all.Wait()
		if n := away.Load(); n != 8 {
			t.Errorf("%d of ten callers were rejected at the end", n)
		}
	})
}

func TestMaxWaitersIgnoresFreeLock(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.release(b.acquire(b.client, "k", &holdfast.AcquireOptions{MaxWaiters: 1}))
		_, err := b.client.Acquire(t.Context(), "k", &holdfast.AcquireOptions{MaxWaiters: -1})
		wantErr(t, err, holdfast.ErrInvalid)
		b.freezeNodes() // an outage is not a queue
		_, err = b.client.Acquire(t.Context(), "k", &holdfast.AcquireOptions{MaxWaiters: 1, Wait: 5 * time.Second})
		wantErr(t, err, holdfast.ErrUnavailable)
		b.startNodes()
	})
}
