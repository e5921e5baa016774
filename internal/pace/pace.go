// Package pace has clocks and time-outs: the time elapsed by the worse of two clocks, the drift of clocks, and the time-outs
// that promise nothing to users, such as the wait for an answer, a connection, a process. Each has its reason beside it.
// Promised times (a TTL, a margin, a quarantine) are where they are promised, and polling intervals beside their polls.
//
// Time-outs fit a machine that is not overloaded. Where tests run on a slower one, their rig multiplies all of them by a
// factor, and its own times with them. A program cannot: nothing outside of this repository can import this package, and
// nothing in it but the rig calls SetFactor.
package pace

import (
	"sync/atomic"
	"time"
)

// factor returns the factor of each time-out; nil: 1.
var factor atomic.Pointer[func() float64]

// SetFactor multiplies all time-outs from now on by the result of f, which is at least 1. Only internal/rig/tempo calls it.
func SetFactor(f func() float64) { factor.Store(&f) }

// Factor returns the factor of time-outs: 1 in each program of a user.
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
