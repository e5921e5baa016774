package etcd_test

import (
	"context"
	"flag"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/etcd"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
)

var waiters = flag.Int("waiters", 64, "how many wait in TestManyWaitersSurviveLeaderFailure; a multiple of four")

func TestClientServesManyWaiters(t *testing.T) {
	inBubble(t, func(r *rig) {
		fixture.CheckCrowd(r.Rig, r.newDriver(), 1000)
	})
}

// Each waiter gets the lock once, in order of arrival.
func TestManyWaitersSurviveLeaderFailure(t *testing.T) {
	r := startAlone(t, 3)
	const clients = 4
	drivers := make([]*etcd.Driver, clients)
	for i := range drivers {
		drivers[i] = r.newDirectDriver()
	}
	holder := r.newDirectDriver()
	g := r.AcquireGrant(holder, "k", longTTL)
	ctx, cancel := context.WithTimeout(r.Context(), 6*fixture.MaxWait())
	defer cancel()
	turns := make([]int32, *waiters)
	var served, holders atomic.Int32
	var all sync.WaitGroup
	for i := range turns {
		if i%clients == 0 {
			r.awaitKeys("k", 1+i)
		}
		all.Go(func() {
			d := drivers[i%clients]
			g, err := d.Acquire(ctx, driver.Request{Key: "k", TTL: longTTL, WillRenew: true})
			if err != nil {
				t.Errorf("waiter %d: %v", i, err)
				return
			}
			turns[i] = served.Add(1)
			if n := holders.Add(1); n > 1 {
				t.Errorf("%d holders at once", n)
			}
			holders.Add(-1)
			d.Release(ctx, g, 0)
		})
	}
	r.awaitKeys("k", 1+len(turns))
	r.leader().Kill()
	holder.Release(ctx, g, 0) // may get no answer while there is no leader; the driver retries
	all.Wait()
	for i, turn := range turns {
		if row := i / clients; int(turn-1)/clients != row { // the waiters of a row arrived at once
			t.Errorf("waiter %d was served as number %d", i, turn)
		}
	}
	r.awaitKeys("k", 0)
}
