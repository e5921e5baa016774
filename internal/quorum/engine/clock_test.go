package engine

import (
	"sync"
	"testing"
	"time"
)

const hour = int64(time.Hour)

func TestTheClockAddsUpForwardSteps(t *testing.T) {
	t.Parallel()
	c := newClock()
	for i, r := range []struct{ mono, lead, want int64 }{
		{0, 0, 1},
		{10, stepLeast, 11},           // noise
		{20, hour, 21 + hour},         // a suspend
		{30, hour + 5, 31 + hour},     // noise
		{40, -hour, 41 + hour},        // set back
		{50, hour, 51 + 3*hour},       // and forward again
		{45, -hour, 46 + 3*hour},      // read before that: an old reading takes nothing back
		{60, hour, 61 + 3*hour},       // nor makes the next count the step again
		{70, hour - 2, 71 + 3*hour},   // noise
		{80, 2*hour + 1, 82 + 4*hour}, // a second suspend
		{90, 2 * hour, 92 + 4*hour},   // noise
	} {
		if got := c.at(r.mono, r.lead); got != r.want {
			t.Errorf("reading %d: at(%d, %d) = %d, want %d", i, r.mono, r.lead, got, r.want)
		}
	}
}

// Each reading of the clocks after a suspend counts it, also while another one
// is about to note it.
func TestASuspendIsHiddenFromNobody(t *testing.T) {
	t.Parallel()
	for range 30_000 {
		c := newClock()
		var all sync.WaitGroup
		begin := make(chan struct{})
		for range 4 {
			all.Go(func() {
				<-begin
				for range 3 {
					if got := c.at(1, hour); got != 2+hour {
						t.Errorf("at(1, %d) = %d: the suspend is missing", hour, got)
						return
					}
				}
			})
		}
		close(begin)
		all.Wait()
		if t.Failed() {
			return
		}
	}
}
