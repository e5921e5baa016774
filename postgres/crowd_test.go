package postgres_test

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/rig/fixture"
)

// The pool has four connections, as on a small machine, and each connection answers 200 times a second.
func TestSmallPoolServesManyWaiters(t *testing.T) {
	r := startRig(t)
	d := r.newDriver()
	r.linkOf(d).Set(func() { r.linkOf(d).Slow = 5 * time.Millisecond })
	fixture.CheckCrowd(r.Rig, d, 600)
	r.checkCleared()
}
