// Package clock measures time by the worse of two clocks. Go's monotonic clock stands
// still while the machine sleeps, and the clocks of the nodes do not; the wall clock can be
// set. The larger time elapsed makes a lease look older than it is, which is safe.
package clock

import (
	"sync/atomic"
	"time"
)

// stepLeast is the least lead of wall time over monotonic time that counts as
// a suspend or a step of the clock and not as the noise of reading both.
const stepLeast = int64(time.Millisecond)

// Elapsed is the time from one moment to another, by the clock that shows more of it.
func Elapsed(from, to time.Time) time.Duration {
	return max(to.Sub(from), to.Round(0).Sub(from.Round(0)))
}

// Until is the time from now to end, by the clock that shows less of it.
func Until(end, now time.Time) time.Duration { return -Elapsed(end, now) }

// Clock counts the time elapsed: monotonic time, and all by which the wall clock went
// ahead of it. It never goes back, so that its times can be compared with one another.
type Clock struct {
	base time.Time
	last atomic.Pointer[step]
}

// step is a step of the wall clock and what it adds up to. One pointer holds both:
// nobody sees that a step was noticed and not yet what it adds.
type step struct {
	mono int64 // when it was noticed, on the monotonic clock
	lead int64 // wall minus monotonic time elapsed since base
	sum  int64 // all forward steps, and 1
}

// New returns a clock that begins now.
func New() *Clock {
	c := &Clock{base: time.Now()}
	c.last.Store(&step{sum: 1})
	return c
}

// Now is nanoseconds since the clock was made, and never 0, which means never.
func (c *Clock) Now() int64 { return c.Of(time.Now()) }

// Of is Now for t, which has just been read.
func (c *Clock) Of(t time.Time) int64 {
	mono := int64(t.Sub(c.base))
	return c.at(mono, int64(t.Round(0).Sub(c.base.Round(0)))-mono)
}

// at is Now for one reading of both clocks. A reading that is older than the last
// step says nothing about the wall clock of today.
func (c *Clock) at(mono, lead int64) int64 {
	for {
		last := c.last.Load()
		ahead := lead - last.lead
		if ahead >= -stepLeast && ahead <= stepLeast || mono < last.mono {
			return mono + last.sum
		}
		next := &step{mono: mono, lead: lead, sum: last.sum + max(ahead, 0)}
		if c.last.CompareAndSwap(last, next) {
			return mono + next.sum
		}
	}
}
