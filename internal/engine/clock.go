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
	lead atomic.Int64 // wall minus monotonic time elapsed since base, at the last step
	sum  atomic.Int64 // all forward steps, and 1
}

func newClock() *clock {
	c := &clock{base: time.Now()}
	c.sum.Store(1)
	return c
}

// now is nanoseconds since the clock was made, and never 0, which means never.
func (c *clock) now() int64 {
	t := time.Now()
	mono := int64(t.Sub(c.base))
	lead := int64(t.Round(0).Sub(c.base.Round(0))) - mono
	if last := c.lead.Load(); lead-last > stepLeast || last-lead > stepLeast {
		if c.lead.CompareAndSwap(last, lead) && lead > last {
			c.sum.Add(lead - last)
		}
	}
	return mono + c.sum.Load()
}
