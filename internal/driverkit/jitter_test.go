package driverkit

import (
	"math"
	"testing"
	"time"
)

// TestJitterStaysWithinPause: whoever may write to the tables may have a lock end at any time, and a waiter adds to what is left.
func TestJitterStaysWithinPause(t *testing.T) {
	for _, d := range []time.Duration{math.MinInt64, -4, -1, 0, 1, math.MaxInt64} {
		if got := Jitter(d); got > max(d, 0) || got < 0 {
			t.Errorf("Jitter(%d) = %d", d, got)
		}
	}
}
