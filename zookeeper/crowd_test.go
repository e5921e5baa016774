package zookeeper_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/zookeeper"
)

// The members answer 500 times a second over each connection.
func TestClientServesManyWaiters(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		d := r.newDriver()
		r.EachLinkOf(d, func(_ int, l *fixture.Link) { l.Slow = 2 * time.Millisecond })
		fixture.CheckCrowd(r.Rig, d, 400)
	})
}

// The answers arrive one by one, the last of them long after its request.
func TestSlowMemberStaysUp(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		d := r.newDriver()
		r.EachLinkOf(d, func(_ int, l *fixture.Link) { l.Slow = 50 * time.Millisecond })
		d.(driver.Notifier).Notify(func(e driver.NodeEvent) {
			if e.State != driver.NodeUp {
				t.Errorf("%s is %s: %v", e.Node, e.State, e.Err)
			}
		})
		var all sync.WaitGroup
		for i := range 30 {
			all.Go(func() {
				if _, err := d.Acquire(r.Context(), driver.Request{Key: fmt.Sprint(i), TTL: longTTL}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	})
}

func TestCancelInQueueSendsNoRequest(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		d := r.newDriver()
		d.(*zookeeper.Driver).SetLaneRoom(1)
		r.Release(r.Acquire(r.Client(d), "k", longTTL)) // creates the folder
		r.EachLinkOf(d, func(_ int, l *fixture.Link) { l.Slow = 500 * time.Millisecond })
		before := r.Counts(d)["create"]
		served := fixture.AcquireAsync(r.Context(), d, driver.Request{Key: "k", TTL: longTTL})
		r.Eventually("one has its turn", func() bool { return r.Counts(d)["create"] > before })
		ctx, cancel := context.WithTimeout(r.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := d.Acquire(ctx, driver.Request{Key: "another", TTL: longTTL})
		crowd, ok := errors.AsType[*driver.UnavailableError](err)
		if !errors.Is(err, context.DeadlineExceeded) || !ok || len(crowd.Nodes) > 0 {
			t.Errorf("Acquire() = %v, want that its time was over, without a member to blame", err)
		}
		r.NoError(<-served)
		if n := r.Counts(d)["create"] - before; n != 1 {
			t.Errorf("%d nodes were created, want 1", n)
		}
	})
}
