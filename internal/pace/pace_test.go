package pace_test

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/pace"
)

// scaleTimeouts multiplies time-outs until the test ends, so the tests here are not parallel.
func scaleTimeouts(t *testing.T, factor float64) {
	pace.SetFactor(func() float64 { return factor })
	t.Cleanup(func() { pace.SetFactor(func() float64 { return 1 }) })
}

func TestAttemptsFitBeforeLeaseEnds(t *testing.T) {
	for _, row := range []struct {
		service       pace.Service
		ttl           time.Duration
		normal, slow  int // attempts
		at10s, at100m time.Duration
	}{
		{pace.Voters, time.Second, 6, 2, time.Second, 50 * time.Millisecond},
		{pace.Voters, 10 * time.Second, 6, 2, time.Second, 50 * time.Millisecond},
		{pace.Members, 2 * time.Second, 3, 2, 10 * time.Second / 6, 300 * time.Millisecond},
		{pace.Members, 10 * time.Second, 3, 2, 10 * time.Second / 6, 300 * time.Millisecond},
		{pace.Alone, 2 * time.Second, 2, 2, 2500 * time.Millisecond, 300 * time.Millisecond},
		{pace.Alone, time.Minute, 13, 2, 2500 * time.Millisecond, 300 * time.Millisecond},
	} {
		left := row.ttl - row.ttl/3 - row.ttl/100 - 2*time.Millisecond // from the first renewal to the end of trust
		if got := int(left / pace.RequestTime(row.ttl, row.service)); got != row.normal {
			t.Errorf("service %d, TTL %v: %d attempts, want %d", row.service, row.ttl, got, row.normal)
		}
		scaleTimeouts(t, 10)
		if got := int(left / pace.RequestTime(row.ttl, row.service)); got != row.slow {
			t.Errorf("service %d, TTL %v, on a slow machine: %d attempts, want %d", row.service, row.ttl, got, row.slow)
		}
		if a, b := pace.RequestShare(10*time.Second, row.service), pace.RequestShare(100*time.Millisecond, row.service); a != row.at10s || b != row.at100m {
			t.Errorf("service %d: shares of 10 s and 100 ms are %v and %v, want %v and %v", row.service, a, b, row.at10s, row.at100m)
		}
		scaleTimeouts(t, 1)
	}
}

func TestFactorNeverShortensTimes(t *testing.T) {
	scaleTimeouts(t, 0.5)
	if got := pace.CallTime(); got != 2*time.Second {
		t.Errorf("CallTime() = %v", got)
	}
	scaleTimeouts(t, 4)
	if got := pace.CallTime(); got != 8*time.Second {
		t.Errorf("CallTime() = %v", got)
	}
	for ttl := time.Millisecond; ttl < time.Hour; ttl = ttl*5/4 + 1 {
		for _, s := range []pace.Service{pace.Voters, pace.Members, pace.Alone} {
			if got, share := pace.RequestTime(ttl, s), pace.RequestShare(ttl, s); got < share || got > max(share, ttl/4) {
				t.Errorf("TTL %v, service %d: RequestTime() = %v, with a share of %v", ttl, s, got, share)
			}
		}
	}
}
