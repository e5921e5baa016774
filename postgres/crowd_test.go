package postgres_test

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/rig/fixture"
)

// TestACrowdOfOneClientIsServed over the four connections that a pool has on a small machine, each of which answers 200 times a
// second.
func TestACrowdOfOneClientIsServed(t *testing.T) {
	r := startRig(t)
	d := r.newDriver()
	r.linkOf(d).Set(func() { r.linkOf(d).Slow = 5 * time.Millisecond })
	fixture.Crowd(r.Rig, d, 600)
	r.checkCleared()
}
