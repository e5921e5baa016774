package etcd_test

import (
	"testing"

	"github.com/holdfast-go/holdfast/locktest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	locktest.Run(t, locktest.Harness{Start: func(t testing.TB) locktest.Service { return newRig(t, cluster).service() }})
}
