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

func TestConformance(t *testing.T) {
	t.Parallel()
	locktest.Run(t, locktest.Harness{Start: func(t testing.TB) locktest.Service { return newRig(t, ensemble).service() }})
}

// TestConformanceOfOneServer is for those who run one server that stands alone.
func TestConformanceOfOneServer(t *testing.T) {
	r := alone(t, 1)
	t.Run("standalone", func(t *testing.T) {
		locktest.Run(t, locktest.Harness{Start: func(t testing.TB) locktest.Service { return newRig(t, r.ensemble).service() }})
	})
}
