// Package boot tells the time on a clock that goes on while the machine sleeps.
// The monotonic clock of package time stands still then: on a laptop that wakes
// up, a lease that ended an hour ago would still look valid.
package boot

import (
	"time"

	"github.com/holdfast-go/holdfast/internal/clock"
)

// Instant is a point on the clock, in ns. All processes of a machine share it.
type Instant int64

// Add is d after i.
func (i Instant) Add(d time.Duration) Instant { return i + Instant(d) }

// Sub is the time from j to i.
func (i Instant) Sub(j Instant) time.Duration { return time.Duration(i - j) }

// At translates a deadline that has both clock readings, by the worse of both.
// The clock is read first, so that a pause in between makes the result too early.
func At(deadline time.Time) Instant {
	here, now := Now(), time.Now()
	return here.Add(clock.Until(deadline, now))
}
