// Package pace has the time-outs that promise nothing: how long to wait for an answer, a connection, a process. Each stands
// here with its reason. What users can rely on (a TTL, a margin, the drift of clocks, a quarantine) stands where it is
// promised, and so does how often something is looked at.
//
// These times fit a machine that is not overloaded. Where tests run on a slower one, their rig multiplies all of them by a
// factor, and its own times with them. A program cannot: nothing outside of this repository can import this package, and
// nothing in it but the rig calls SetFactor.
package pace

import (
	"sync/atomic"
	"time"
)

// factor returns by what to multiply each time-out; nil: by nothing.
var factor atomic.Pointer[func() float64]

// SetFactor multiplies all time-outs from now on by what f returns, which is 1 at least. Only internal/rig/tempo calls it.
func SetFactor(f func() float64) { factor.Store(&f) }

// Factor returns by what time-outs are multiplied: 1 in each program of a user.
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
