package redis_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	gates "github.com/holdfast-go/holdfast/internal/rig"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/locktest"
	"github.com/holdfast-go/holdfast/redis"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	for _, set := range []struct {
		nodes  int
		format redis.Format
	}{{1, redis.FormatPlain}, {3, redis.FormatPlain}, {5, redis.FormatPlain}, {1, redis.FormatRedisson}} {
		n := set.nodes
		t.Run(fmt.Sprintf("nodes=%d%s", n, set.format), func(t *testing.T) {
			switch {
			case set.format == redis.FormatRedisson && testing.Short():
				t.Skip("-short goes through the suite once")
			case set.format == redis.FormatPlain && n != 3:
				gates.Nightly(t, "sizes")
			}
			t.Parallel()
			servers := redistest.StartN(t, n)
			var tests atomic.Int32
			locktest.Run(t, locktest.Harness{Start: func(t testing.TB) locktest.Service {
				f := newFleet(t, servers, fmt.Sprintf("test%d/", tests.Add(1)))
				f.format = set.format
				return locktest.Service{
					Nodes: n, Open: f.openDriver,
					Disconnect:  func(d driver.Driver) { f.route(d).blackhole(true) },
					Reconnect:   func(d driver.Driver) { f.route(d).blackhole(false) },
					LoseReplies: f.loseReplies,
					Delay:       f.delayServers,
					StopNodes:   f.stopServers, StartNodes: func() { f.stopServers(0) },
					Leftovers: f.findLeftovers,
				}
			}})
		})
	}
}
