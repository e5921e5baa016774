package engine

import (
	"sync/atomic"
	"time"
)

// stepLeast is the least lead of wall time over monotonic time that counts as
// a suspend or a step of the clock and not as the noise of reading both.
const stepLeast = int64(time.Millisecond)

// clock counts the time that matters to a lease: the larger of monotonic and
// wall time elapsed, for Go's monotonic clock stands still while the machine
// sleeps and the nodes' clocks do not. It never goes back. A wall clock that is
// set forward makes leases look older than they are, which is safe.
type clock struct {
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

func newClock() *clock {
	c := &clock{base: time.Now()}
	c.last.Store(&step{sum: 1})
	return c
}

// now is nanoseconds since the clock was made, and never 0, which means never.
func (c *clock) now() int64 {
	t := time.Now()
	mono := int64(t.Sub(c.base))
	return c.at(mono, int64(t.Round(0).Sub(c.base.Round(0)))-mono)
}

// at is now for one reading of both clocks. A reading that is older than the last
// step says nothing about the wall clock of today.
func (c *clock) at(mono, lead int64) int64 {
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
