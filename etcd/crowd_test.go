package etcd_test

import (
	"context"
	"flag"
	"slices"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/etcd"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
)

var waiters = flag.Int("waiters", 64, "how many wait in TestManyWaitersOutliveTheLeader; a multiple of four")

func TestACrowdOfOneClientIsServed(t *testing.T) {
	r := start(t)
	fixture.Crowd(r.Rig, r.driver(), 1000)
}

// TestManyWaitersOutliveTheLeader, each of them once, in the order in which they came.
func TestManyWaitersOutliveTheLeader(t *testing.T) {
	r := alone(t, 3)
	const clients = 4
	drivers := make([]*etcd.Driver, clients)
	for i := range drivers {
		drivers[i] = r.straight()
	}
	holder := r.straight()
	g := r.Grant(holder, "k", long)
	ctx, cancel := context.WithTimeout(r.Context(), 6*fixture.Patience)
	defer cancel()
	tokens := make([]int64, *waiters)
	var all sync.WaitGroup
	for i := range tokens {
		if i%clients == 0 {
			r.keys("k", 1+i)
		}
		all.Go(func() {
			d := drivers[i%clients]
			g, err := d.Acquire(ctx, driver.Request{Key: "k", TTL: long, Renews: true})
			if err != nil {
				t.Errorf("waiter %d: %v", i, err)
				return
			}
			tokens[i] = g.Token
			if err := d.Release(ctx, g, 0); err != nil {
				t.Errorf("waiter %d: %v", i, err)
			}
		})
	}
	r.keys("k", 1+len(tokens))
	r.leader().Kill()
	r.Must(holder.Release(ctx, g, 0))
	all.Wait()
	last := g.Token
	for i := 0; i < len(tokens); i += clients { // those of a row have come at once
		row := tokens[i : i+clients]
		if slices.Min(row) <= last {
			t.Errorf("waiters %d to %d have tokens %v, those before them up to %d", i, i+clients-1, row, last)
		}
		last = slices.Max(row)
	}
	if left, err := r.leftovers(); err != nil || len(left) > 0 {
		t.Errorf("left are %q, %v", left, err)
	}
}
