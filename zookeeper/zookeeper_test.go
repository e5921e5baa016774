package zookeeper_test

import (
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/locktest"
	"github.com/holdfast-go/holdfast/zookeeper"
)

var (
	_ driver.Driver    = (*zookeeper.Driver)(nil)
	_ driver.Inspector = (*zookeeper.Driver)(nil)
	_ driver.Lister    = (*zookeeper.Driver)(nil)
	_ driver.Queuer    = (*zookeeper.Driver)(nil)
	_ driver.Forcer    = (*zookeeper.Driver)(nil)
	_ driver.Checker   = (*zookeeper.Driver)(nil)
	_ driver.Alerter   = (*zookeeper.Driver)(nil)
	_ driver.Doctor    = (*zookeeper.Driver)(nil)
	_ driver.Notifier  = (*zookeeper.Driver)(nil)
)

// statements are suite tests that together send every request of the driver. They run on real servers; all
// tests run on a fake, which is compared with real servers.
var statements = []string{
	"OneHolderUnderContention", "TokensRiseAcrossClients", "TryNamesHolder", "WaitersAreServedInOrder",
	"WatchdogKeepsLease", "OneCallRenewsManyGrants", "LostRepliesFreeLock", "WaitSurvivesOutage", "ListShowsHeldLocks",
	"QueueShowsWaitersInOrder", "ForcedHolderGetsReason", "UnusualNamesWork", "CloseReleasesLeases",
}

func TestConformanceOfServers(t *testing.T) {
	t.Parallel()
	locktest.Run(t, locktest.Harness{Cases: statements, Start: func(t testing.TB) locktest.Service { return sharedRig(t).lockService() }})
}

func TestConformanceOfOneServer(t *testing.T) {
	r := startAlone(t, 1)
	t.Run("standalone", func(t *testing.T) {
		locktest.Run(t, locktest.Harness{Cases: statements, Start: func(t testing.TB) locktest.Service { return newRig(t, r.ensemble).lockService() }})
	})
}
