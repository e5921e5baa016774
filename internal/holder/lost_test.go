package holder

import (
	"strings"
	"testing"
	"time"
)

// The end of a lease has a monotonic and a wall clock reading. The monotonic clock stops while the machine
// sleeps, and the wall clock may be set, so the earlier end counts.
func TestTrustEndsByLaterOfTwoClocks(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, trusted := range map[string]time.Time{
		"by the wall clock":      shiftMonotonic(now.Add(time.Second), time.Hour),
		"by the monotonic clock": shiftMonotonic(now.Add(time.Second+time.Hour), -time.Hour),
	} {
		if left := (&term{endsAt: trusted}).timeLeftLocked(now); left != time.Second {
			t.Errorf("a lease that ends in a second %s has %v left", name, left)
		}
	}
}

// The reason of a force-release may come from a foreign client, and is written to logs.
func TestForceReasonIsOneLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"it hangs": "it hangs", "two\nlines": "two lines", "\x1b[2J": " [2J", "\u009b2J": " 2J", "\u202eleft": " left", "\u2028": " ",
		"cut \xff": "cut ", strings.Repeat("x", maxReason-1) + "é": strings.Repeat("x", maxReason-1),
	} {
		if got := OneLine(text); got != want {
			t.Errorf("OneLine(%q) = %q, want %q", text, got, want)
		}
	}
}
