// Package boot reads a clock that also counts while the machine sleeps. The monotonic clock of package time stops
// then: on a laptop that wakes up, a lease that ended an hour ago would still look valid.
package boot

import (
	"math"
	"time"

	"github.com/holdfast-go/holdfast/internal/pace"
)

// Instant is a point on the clock, in ns. All processes of a machine share it.
type Instant int64

// Add returns the instant d after i. On overflow it returns the last or first instant, so that a limit of 292
// years is in the future and not in the past.
func (i Instant) Add(d time.Duration) Instant {
	sum := i + Instant(d)
	switch {
	case d > 0 && sum < i:
		return math.MaxInt64
	case d < 0 && sum > i:
		return math.MinInt64
	}
	return sum
}

// Sub returns the time from j to i.
func (i Instant) Sub(j Instant) time.Duration { return time.Duration(i - j) }

// At converts a deadline that has both clock readings, and uses the earlier of both. It reads this clock
// first, so that a pause in between makes the result too early, not too late.
func At(deadline time.Time) Instant {
	here, now := Now(), time.Now()
	return here.Add(pace.Until(deadline, now))
}
