package etcd_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/etcd"
	gates "github.com/holdfast-go/holdfast/internal/rig"
	"github.com/holdfast-go/holdfast/locktest"
)

var (
	_ driver.Driver    = (*etcd.Driver)(nil)
	_ driver.Inspector = (*etcd.Driver)(nil)
	_ driver.Lister    = (*etcd.Driver)(nil)
	_ driver.Queuer    = (*etcd.Driver)(nil)
	_ driver.Forcer    = (*etcd.Driver)(nil)
	_ driver.Adopter   = (*etcd.Driver)(nil)
	_ driver.Checker   = (*etcd.Driver)(nil)
	_ driver.Notifier  = (*etcd.Driver)(nil)
)

// statements are suite tests that together send every request of the driver. They run on real servers; all
// tests run on a fake, which is compared with a real server.
var statements = []string{
	"OneHolderUnderContention", "TokensRiseAcrossClients", "TryNamesHolder", "WaitersAreServedInOrder",
	"WatchdogKeepsLease", "OneCallRenewsManyGrants", "MinHoldOutlastsRelease", "LostRepliesFreeLock",
	"WaitSurvivesOutage", "WaitOutlivesDeadHolder", "ListShowsHeldLocks", "QueueShowsWaitersInOrder", "ForcedHolderGetsReason",
	"AdoptContinuesGrant", "ReleasedGrantIsNotAdopted", "UnusualNamesWork", "CloseReleasesLeases",
}

func TestConformanceOfServers(t *testing.T) {
	t.Parallel()
	gates.NeedsServer(t)
	c, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	locktest.Run(t, locktest.Harness{Cases: statements, Start: func(t testing.TB) locktest.Service { return newRig(t, c).lockService() }})
}

func TestConformance(t *testing.T) {
	t.Parallel()
	locktest.Run(t, locktest.Harness{Bubble: true, Start: func(t testing.TB) locktest.Service { return newFakeRig(t, 3).lockService() }})
}

func TestQueueListsWaitersInOrder(t *testing.T) {
	inBubble(t, func(r *rig) {
		looker := r.Client(r.newDirectDriver())
		if got, err := looker.Queue(r.WaitContext(), "k", 2); err != nil || len(got) != 0 {
			r.Errorf("queue of a free lock = %+v, %v", got, err)
		}
		l := r.Acquire(looker, "k", longTTL)
		ctx, cancel := context.WithCancel(r.Context())
		var all sync.WaitGroup
		for i := range 3 {
			c := r.Client(r.newDirectDriver())
			all.Go(func() { c.Acquire(ctx, "k", &holdfast.AcquireOptions{Note: fmt.Sprint("waiter ", i)}) })
			r.awaitKeys("k", i+2)
		}
		got, err := looker.Queue(r.WaitContext(), "k", 2)
		if err != nil || len(got) != 2 || got[0].Holder.Note != "waiter 0" || got[1].Holder.Note != "waiter 1" ||
			got[0].Holder.PID == 0 || got[0].Since.IsZero() || got[0].Owner == "" || got[0].Owner == l.Owner() {
			r.Errorf("queue = %+v, %v", got, err)
		}
		cancel()
		all.Wait()
		r.Release(l)
	})
}

// The lock has more keys than fit into one answer.
func TestListReadsManyPages(t *testing.T) {
	inBubble(t, func(r *rig) {
		d := r.newDirectDriver()
		const locks = 1100
		names := make(chan int, locks)
		for i := range locks {
			names <- i
		}
		close(names)
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				for i := range names {
					if _, err := d.Acquire(r.WaitContext(), driver.Request{Key: fmt.Sprint("many/", i), TTL: longTTL}); err != nil {
						r.Error(err)
					}
				}
			})
		}
		all.Wait()
		seen := make(map[string]bool)
		r.NoError(d.List(r.Context(), "many/", func(st driver.Status) bool {
			seen[st.Key] = st.Held
			return true
		}))
		if len(seen) != locks {
			r.Errorf("%d locks, want %d", len(seen), locks)
		}
	})
}
