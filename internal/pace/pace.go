// Package pace has clocks and time-outs: the elapsed time by two clocks, the drift of clocks, and the
// time-outs that are no promise to users, such as the wait for an answer, a connection or a process. Each has
// its reason next to it. Promised times (a TTL, a margin, a quarantine) are defined where they are promised,
// and polling intervals next to their polls.
//
// The time-outs fit a machine that is not overloaded. For tests on a slower machine, their rig multiplies all
// of them, and its own times, by a factor. A user's program cannot: no code outside of this repository can
// import this package, and in it only the rig calls SetFactor.
package pace

import (
	"sync/atomic"
	"time"
)

// factor returns the factor of all time-outs; nil: 1.
var factor atomic.Pointer[func() float64]

// SetFactor multiplies all time-outs from now on by the result of f, which is at least 1. Only
// internal/rig/tempo calls it.
func SetFactor(f func() float64) { factor.Store(&f) }

// Factor returns the factor of time-outs: 1 in each user's program.
func Factor() float64 {
	if f := factor.Load(); f != nil {
		return max((*f)(), 1)
	}
	return 1
}

// Scale multiplies d by the factor.
func Scale(d time.Duration) time.Duration {
	if f := Factor(); f != 1 {
		return time.Duration(float64(d) * f)
	}
	return d
}
