package holdfast_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/memory"
)

// Nodes that were away, or a rival's, as the lock was granted get it by the first renewal. That comes soon: one of the others
// may stop next.
func TestALeaseOfABareMajoritySoonHasTheOtherNodes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		drv := memory.New(5)
		c, err := holdfast.New(drv, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		const ttl = 10 * time.Second
		drv.Node(3).Stop()
		drv.Node(4).Stop()
		l, err := c.Acquire(t.Context(), "k", &holdfast.AcquireOptions{TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		drv.Node(3).Start()
		drv.Node(4).Start()
		time.Sleep(ttl / 16)
		for i := range 2 {
			drv.Node(i).Stop()
		}
		time.Sleep(time.Minute)
		if err := l.Context().Err(); err != nil {
			t.Errorf("two nodes that had granted it are away, and the others are not: %v", context.Cause(l.Context()))
		}
	})
}

// A node that is away is told of once, and so is its return, however often the lease is
// renewed meanwhile.
func TestALeaseThatCanSpareNoNodeIsToldOfOnceForEachChange(t *testing.T) {
	t.Parallel()
	for n, want := range map[int][]bool{1: nil, 2: nil, 3: {true, false, true, false}, 5: nil} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			var told []bool
			drv := memory.New(n)
			c, err := holdfast.New(drv, &holdfast.Options{Hooks: holdfast.Hooks{AtRisk: func(e holdfast.AtRiskEvent) {
				mu.Lock()
				defer mu.Unlock()
				if told = append(told, e.AtRisk); e.Key != "k" || e.Token == 0 || e.Owner == "" {
					t.Errorf("%+v", e)
				}
			}}})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			l, err := c.Acquire(t.Context(), "k", nil)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				drv.Node(0).Delay(time.Millisecond)
				if n > 2 {
					drv.Node(0).Stop()
				}
				time.Sleep(time.Minute)
				drv.Node(0).Start()
				time.Sleep(time.Minute)
			}
			if err := l.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(told, want) {
				t.Errorf("%d nodes: told %v, want %v", n, told, want)
			}
		})
	}
}
