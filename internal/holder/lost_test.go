package holder

import (
	"strings"
	"testing"
	"time"
)

// The monotonic clock stands still while the machine sleeps, and the wall clock may
// be set: the end of a lease has both readings, and the earlier counts.
func TestTrustEndsByLaterOfTwoClocks(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, trusted := range map[string]time.Time{
		"by the wall clock":      apart(now.Add(time.Second), time.Hour),
		"by the monotonic clock": apart(now.Add(time.Second+time.Hour), -time.Hour),
	} {
		if left := (&term{endsAt: trusted}).timeLeftLocked(now); left != time.Second {
			t.Errorf("a lease that ends in a second %s has %v left", name, left)
		}
	}
}

// A client that is none of ours may have sent the reason of a force-release, and the cause of a loss is logged.
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
