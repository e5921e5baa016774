package sharding_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/locktest"
	"github.com/holdfast-go/holdfast/redlock"
	"github.com/holdfast-go/holdfast/sharding"
)

// redis is two sets of one server each.
type redis struct {
	nodes map[string]redlock.Node
}

func startRedis(t *testing.T) *redis {
	t.Helper()
	r := &redis{nodes: make(map[string]redlock.Node)}
	for i, s := range redistest.StartN(t, 2) {
		r.nodes[string(rune('a'+i))] = redlock.Node{Addr: s.Addr()}
	}
	return r
}

func (r *redis) open(prefix string, list ...sharding.Set) (*sharding.Driver, error) {
	var sets []sharding.Set
	for _, s := range list {
		d, err := redlock.Open(context.Background(), []redlock.Node{r.nodes[s.Name]}, &redlock.Options{Prefix: prefix, Timeout: 5 * time.Second})
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
			d, err := r.open(prefix, moves...)
			if err != nil {
				return nil, err
			}
			return &seen{d}, nil
		}}
	}})
}

// Clients change one by one from set a alone to both sets, and back, under load.
func TestAChangeOfRedisSetsKeepsExclusionAndOrder(t *testing.T) {
	t.Parallel()
	r := startRedis(t)
	old := []sharding.Set{{Name: "a"}}
	book := &ledger{holders: make(map[string]*holdfast.Lease), tokens: make(map[string]holdfast.Token)}
	names := []string{"k", "job-1", "job-2", "nightly"}
	const clients, steps, locks = 4, 6, 12
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for step := range steps {
				d, err := r.open("", [][]sharding.Set{old, moves}[step%2]...)
				if err != nil {
					t.Error(err)
					return
				}
				c, err := holdfast.New(d, nil)
				if err != nil {
					t.Error(err)
					return
				}
				for range locks {
					name := names[rand.IntN(len(names))]
					before := book.last(name)
					l, err := c.Acquire(t.Context(), name, nil)
					if err != nil {
						t.Error(err)
						continue
					}
					book.enter(l, before)
					time.Sleep(rand.N(time.Millisecond))
					book.leave(l)
					l.Release(t.Context())
				}
				c.Close()
			}
		})
	}
	all.Wait()
	for _, fault := range book.faults {
		t.Error(fault)
	}
	if want := clients * steps * locks; book.grants != want {
		t.Errorf("%d grants, want %d", book.grants, want)
	}
}
