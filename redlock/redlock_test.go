package redlock_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/locktest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3, 5} {
		t.Run(fmt.Sprintf("nodes=%d", n), func(t *testing.T) {
			t.Parallel()
			servers := redistest.StartN(t, n)
			var tests atomic.Int32
			locktest.Run(t, locktest.Harness{Start: func(t testing.TB) locktest.Service {
				f := newFleet(t, servers, fmt.Sprintf("test%d/", tests.Add(1)))
				return locktest.Service{
					Nodes: n, Open: f.open,
					Cut:         func(d driver.Driver) { f.route(d).blackhole(true) },
					Mend:        func(d driver.Driver) { f.route(d).blackhole(false) },
					LoseReplies: f.loseReplies,
					Delay:       f.delay,
					StopNodes:   f.stop, StartNodes: func() { f.stop(0) },
					Leftovers: f.leftovers,
				}
			}})
		})
	}
}
