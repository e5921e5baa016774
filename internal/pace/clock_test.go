package pace

import (
	"sync"
	"testing"
	"time"
	"unsafe"
)

const hour = int64(time.Hour)

func TestClockFollowsForwardJumpsOnly(t *testing.T) {
	t.Parallel()
	c := NewClock()
	for i, r := range []struct{ mono, lead, want int64 }{
		{0, 0, 1},
		{10, minStep, 11},             // noise
		{20, hour, 21 + hour},         // a suspend
		{30, hour + 5, 31 + hour},     // noise
		{40, -hour, 41 + hour},        // the clock is set back
		{50, hour, 51 + 3*hour},       // and forward again
		{45, -hour, 46 + 3*hour},      // an earlier reading, which must not undo the step
		{60, hour, 61 + 3*hour},       // nor make the next reading count the step again
		{70, hour - 2, 71 + 3*hour},   // noise
		{80, 2*hour + 1, 82 + 4*hour}, // a second suspend
		{90, 2 * hour, 92 + 4*hour},   // noise
	} {
		if got := c.timeAt(r.mono, r.lead); got != r.want {
			t.Errorf("reading %d: timeAt(%d, %d) = %d, want %d", i, r.mono, r.lead, got, r.want)
		}
	}
}

// Each reading after a suspend includes the suspend, also while another reader records it.
func TestEachClockReadingCountsSuspend(t *testing.T) {
	t.Parallel()
	for range 30_000 {
		c := NewClock()
		var all sync.WaitGroup
		begin := make(chan struct{})
		for range 4 {
			all.Go(func() {
				<-begin
				for range 3 {
					if got := c.timeAt(1, hour); got != 2+hour {
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

// shiftMonotonic moves the monotonic reading of t by d, which otherwise only a suspend does. (In a bubble of package
// synctest no time has one.)
func shiftMonotonic(t time.Time, d time.Duration) time.Time {
	type layout struct { // layout of time.Time
		wall uint64
		mono int64
		loc  *time.Location
	}
	(*layout)(unsafe.Pointer(&t)).mono += int64(d)
	return t
}

func TestWorseOfTwoClocksMeasuresTime(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, at := range map[string]time.Time{
		"by the wall clock":      shiftMonotonic(now.Add(time.Second), time.Hour),
		"by the monotonic clock": shiftMonotonic(now.Add(time.Second+time.Hour), -time.Hour),
	} {
		if left := Until(at, now); left != time.Second {
			t.Errorf("what ends in a second %s has %v left", name, left)
		}
	}
	for name, at := range map[string]time.Time{
		"by the wall clock":      shiftMonotonic(now.Add(-time.Second), time.Hour),
		"by the monotonic clock": shiftMonotonic(now.Add(time.Hour-time.Second), -time.Hour),
	} {
		if gone := Elapsed(at, now); gone != time.Second {
			t.Errorf("what began a second ago %s is %v old", name, gone)
		}
	}
}

// If one of the two readings stops, the clock continues by the other.
func TestClockUsesBothReadings(t *testing.T) {
	t.Parallel()
	for name, base := range map[string]time.Time{
		"monotonic": shiftMonotonic(time.Now(), -time.Hour),                // an hour passed, and the wall clock went back
		"wall":      shiftMonotonic(time.Now().Add(-time.Hour), time.Hour), // an hour of sleep
	} {
		c := NewClock()
		c.base = base
		if got := c.Now(); got < hour || got > hour+int64(time.Minute) {
			t.Errorf("an hour on the %s clock counts as %v", name, time.Duration(got))
		}
	}
}
