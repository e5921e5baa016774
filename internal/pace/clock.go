package pace

import (
	"sync/atomic"
	"time"
)

// Time is measured by the worse of two clocks. Go's monotonic clock stands still while the machine sleeps, and the clocks of
// the nodes do not; the wall clock can be set. The larger time elapsed makes a lease look older than it is, which is safe.

// Drift returns how much of a TTL the clocks of client and service may differ in rate and granularity: the share that the
// Redlock page asks for, and a constant for the precision of the expiry. Trust in a lease ends earlier by this time.
func Drift(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// minStep is the smallest lead of wall time over monotonic time that counts as
// a suspend or a step of the clock, not as the noise of reading both.
const minStep = int64(time.Millisecond)

// Elapsed returns the time from one moment to another, by the clock that shows more.
func Elapsed(from, to time.Time) time.Duration {
	return max(to.Sub(from), to.Round(0).Sub(from.Round(0)))
}

// Until returns the time from now to end, by the clock that shows less.
func Until(end, now time.Time) time.Duration { return -Elapsed(end, now) }

// Clock counts the time elapsed: monotonic time, and each forward step of the wall
// clock. It never goes back, so that its times can be compared with one another.
type Clock struct {
	base time.Time
	last atomic.Pointer[step]
}

// step is a step of the wall clock, with the sum of all steps. One pointer holds both, so
// that no reader sees a step without its sum.
type step struct {
	mono int64 // the monotonic time at which a reader noticed the step
	lead int64 // wall minus monotonic time elapsed since base
	sum  int64 // all forward steps, and 1
}

// NewClock returns a clock that begins now.
func NewClock() *Clock {
	c := &Clock{base: time.Now()}
	c.last.Store(&step{sum: 1})
	return c
}

// Now returns the nanoseconds since the clock was made. It is never 0, which means never.
func (c *Clock) Now() int64 { return c.Of(time.Now()) }

// Of returns Now for t, a time that has just been read.
func (c *Clock) Of(t time.Time) int64 {
	mono := int64(t.Sub(c.base))
	return c.at(mono, int64(t.Round(0).Sub(c.base.Round(0)))-mono)
}

// at returns Now for one reading of both clocks. A reading that is older than the last
// step may not correct that step.
func (c *Clock) at(mono, lead int64) int64 {
	for {
		last := c.last.Load()
		ahead := lead - last.lead
		if ahead >= -minStep && ahead <= minStep || mono < last.mono {
			return mono + last.sum
		}
		next := &step{mono: mono, lead: lead, sum: last.sum + max(ahead, 0)}
		if c.last.CompareAndSwap(last, next) {
			return mono + next.sum
		}
	}
}
