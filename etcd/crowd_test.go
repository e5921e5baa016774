package etcd_test

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/rig/fixture"
)

func TestACrowdOfOneClientIsServed(t *testing.T) {
	r := start(t)
	fixture.Crowd(r.Rig, r.driver(), 1000)
}
