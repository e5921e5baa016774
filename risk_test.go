package holdfast_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/memory"
)

// The first renewal adds the nodes that were down, or that a rival had, at the time of the grant. It comes
// early, because another node may stop next.
func TestBareMajorityLeaseSoonHasAllNodes(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		const ttl = 10 * time.Second
		b.drv.Node(3).Stop()
		b.drv.Node(4).Stop()
		l := b.acquire(b.client, "k", &holdfast.AcquireOptions{TTL: ttl})
		b.drv.Node(3).Start()
		b.drv.Node(4).Start()
		passTime(ttl / 16)
		for i := range 2 {
			b.drv.Node(i).Stop()
		}
		passTime(time.Minute)
		if err := l.Context().Err(); err != nil {
			t.Errorf("two nodes of the grant are down, and the others are up: %v", context.Cause(l.Context()))
		}
	})
}

// The test begins between the first renewal and the next.
func TestPassedOnLeaseKeepsItsRenewalTime(t *testing.T) {
	var renewed atomic.Int32
	hooks := holdfast.Hooks{Renewed: func(holdfast.RenewedEvent) { renewed.Add(1) }}
	inBubbleWith(t, &holdfast.Options{Hooks: hooks}, func(t *testing.T, b *bench) {
		opts := &holdfast.AcquireOptions{TTL: time.Second}
		l := b.acquire(b.client, "k", opts)
		for range 5 {
			next := make(chan *holdfast.Lease)
			go func() { next <- b.acquire(b.client, "k", opts) }()
			passTime(15 * time.Millisecond)
			b.release(l)
			l = <-next
		}
		awaitHooks()
		if n := renewed.Load(); n != 1 {
			t.Errorf("%d renewals in the first tenth of the TTL, want 1", n)
		}
		b.release(l)
	})
}

// The failure of a node is reported once, and so is its recovery, however many renewals come in between.
func TestAtRiskIsReportedOncePerChange(t *testing.T) {
	t.Parallel()
	for n, want := range map[int][]bool{1: nil, 2: nil, 3: {true, false, true, false}, 5: nil} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			var told []bool
			drv := memory.New(n)
			c := openClient(t, drv, &holdfast.Options{Hooks: holdfast.Hooks{AtRisk: func(e holdfast.AtRiskEvent) {
				mu.Lock()
				defer mu.Unlock()
				if told = append(told, e.AtRisk); e.Key != "k" || e.Token == 0 || e.Owner == "" {
					t.Errorf("%+v", e)
				}
			}}})
			l := acquire(t, c, "k", nil)
			for range 2 {
				drv.Node(0).Delay(time.Millisecond)
				if n > 2 {
					drv.Node(0).Stop()
				}
				time.Sleep(time.Minute)
				drv.Node(0).Start()
				time.Sleep(time.Minute)
			}
			release(t, l)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(told, want) {
				t.Errorf("%d nodes: events %v, want %v", n, told, want)
			}
		})
	}
}
