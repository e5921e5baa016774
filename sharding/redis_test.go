package sharding_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/locktest"
	"github.com/holdfast-go/holdfast/redis"
	"github.com/holdfast-go/holdfast/sharding"
)

// redisSets is two sets of one server each.
type redisSets struct {
	nodes map[string]redis.Node
}

func startRedis(t *testing.T) *redisSets {
	t.Helper()
	r := &redisSets{nodes: make(map[string]redis.Node)}
	for i, s := range redistest.StartN(t, 2) {
		r.nodes[string(rune('a'+i))] = redis.Node{Addr: s.Addr()}
	}
	return r
}

func (r *redisSets) openDriver(prefix string, list ...sharding.Set) (*sharding.Driver, error) {
	var sets []sharding.Set
	for _, s := range list {
		d, err := redis.New(context.Background(), []redis.Node{r.nodes[s.Name]}, &redis.Options{Prefix: prefix, Timeout: pace.Scale(5 * time.Second)})
		if err != nil {
			for _, s := range sets {
				s.Driver.Close()
			}
			return nil, err
		}
		s.Driver = d
		sets = append(sets, s)
	}
	return sharding.New(sets, &sharding.Options{MaxTTL: time.Minute})
}

func TestConformanceOverTwoRedisSets(t *testing.T) {
	t.Parallel()
	r := startRedis(t)
	var tests atomic.Int32
	locktest.Run(t, locktest.Harness{Start: func(testing.TB) locktest.Service {
		prefix := fmt.Sprintf("test%d/", tests.Add(1))
		return locktest.Service{Nodes: 1, Open: func() (driver.Driver, error) {
			d, err := r.openDriver(prefix, setsNamed("a", "b")...)
			if err != nil {
				return nil, err
			}
			return struct {
				*homeOnlyDriver
				driver.Queuer
			}{&homeOnlyDriver{d, d}, d}, nil
		}}
	}})
}
