package driverkit

import (
	"math"
	"testing"
	"time"
)

// Any client that may write to the tables can store any expiry, and a waiter adds a pause to the remaining
// time.
func TestJitterStaysWithinPause(t *testing.T) {
	for _, d := range []time.Duration{math.MinInt64, -4, -1, 0, 1, math.MaxInt64} {
		if got := Jitter(d); got > max(d, 0) || got < 0 {
			t.Errorf("Jitter(%d) = %d", d, got)
		}
	}
}
