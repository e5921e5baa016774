package pace

import (
	"sync/atomic"
	"time"
)

// Two clocks measure time, and the one that shows more elapsed time counts. Go's monotonic clock stops while
// the machine sleeps, unlike the clocks of the nodes. The wall clock can be set. A larger elapsed time makes a
// lease look older than it is, which is safe.

// Drift returns the part of a TTL by which the clocks of client and service may differ: the share for
// different rates that the Redlock page asks for, and a constant for the precision of the expiry. Trust in a
// lease ends earlier by this time.
func Drift(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// minStep is the smallest lead of wall time over monotonic time that counts as a suspend or a step of the
// clock. A smaller lead is noise of the two readings.
const minStep = int64(time.Millisecond)

// Elapsed returns the time between two moments, by the clock that shows more.
func Elapsed(from, to time.Time) time.Duration {
	return max(to.Sub(from), to.Round(0).Sub(from.Round(0)))
}

// Until returns the time from now to end, by the clock that shows less.
func Until(end, now time.Time) time.Duration { return -Elapsed(end, now) }

// Clock counts the elapsed time: monotonic time, plus each forward step of the wall clock. It never goes back,
// so its times can be compared.
type Clock struct {
	base time.Time
	last atomic.Pointer[step]
}

// step is a step of the wall clock and the sum of all steps. One pointer holds both, so that no reader sees one
// without the other.
type step struct {
	mono int64 // monotonic time at which a reader noticed the step
	lead int64 // wall minus monotonic time elapsed since base
	sum  int64 // sum of all forward steps, plus 1
}

// NewClock returns a clock that begins now.
func NewClock() *Clock {
	c := &Clock{base: time.Now()}
	c.last.Store(&step{sum: 1})
	return c
}

// Now returns the nanoseconds since the clock was made. It is never 0, which means never.
func (c *Clock) Now() int64 { return c.At(time.Now()) }

// At returns the value of Now at t, a time that has just been read.
func (c *Clock) At(t time.Time) int64 {
	mono := int64(t.Sub(c.base))
	return c.timeAt(mono, int64(t.Round(0).Sub(c.base.Round(0)))-mono)
}

// timeAt returns the value of Now for one reading of both clocks. A reading that is older than the last step must
// not undo that step.
func (c *Clock) timeAt(mono, lead int64) int64 {
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
