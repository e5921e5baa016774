package holdfast_test

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/memory"
)

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
