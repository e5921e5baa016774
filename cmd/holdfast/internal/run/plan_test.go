package run

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
	"github.com/holdfast-go/holdfast/internal/pace"
)

func TestDefaultsFollowTTL(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		ttl, renew, killAfter, margin time.Duration
	}{
		{30 * time.Second, 10 * time.Second, 5 * time.Second, 1500 * time.Millisecond},
		{time.Minute, 20 * time.Second, 5 * time.Second, 3 * time.Second},
		{1200 * time.Millisecond, 400 * time.Millisecond, 200 * time.Millisecond, 100 * time.Millisecond},
	} {
		p := &Plan{TTL: row.ttl, OnLost: Term}
		if err := p.Defaults(); err != nil {
			t.Errorf("%v: %v", row.ttl, err)
		}
		if p.Renew != row.renew || p.KillAfter != row.killAfter || p.Margin != row.margin {
			t.Errorf("%v: renew %v, kill after %v, margin %v", row.ttl, p.Renew, p.KillAfter, p.Margin)
		}
	}
}

func TestTooShortTTLIsRejected(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		plan Plan
		fits bool
	}{
		{Plan{TTL: 320 * time.Millisecond}, true},
		{Plan{TTL: 290 * time.Millisecond}, false},
		{Plan{TTL: 820 * time.Millisecond, Service: pace.Alone}, true},
		{Plan{TTL: 780 * time.Millisecond, Service: pace.Alone}, false},
		{Plan{TTL: time.Second, Renew: 500 * time.Millisecond}, true},
		{Plan{TTL: time.Second, Renew: 700 * time.Millisecond}, false},
		{Plan{TTL: time.Second, KillAfter: 500 * time.Millisecond}, false},
		{Plan{TTL: time.Second, KillAfter: 500 * time.Millisecond, OnLost: Policy{Kill: true}}, true}, // with KILL at once, KillAfter does not count
		{Plan{TTL: time.Second, Margin: 600 * time.Millisecond}, false},
	} {
		p := row.plan
		err := p.Defaults()
		if err != nil { // the TTL in the error is the shortest that fits
			_, rest, _ := strings.Cut(err.Error(), "; give ")
			least, bad := time.ParseDuration(strings.TrimSuffix(rest, " at least, or lower one of them"))
			shorter, longer := row.plan, row.plan
			if shorter.TTL, longer.TTL = least-10*time.Millisecond, least; bad != nil || shorter.Defaults() == nil || longer.Defaults() != nil {
				t.Errorf("%v: %v, and with that %v", row.plan.TTL, err, longer.Defaults())
			}
		}
		if (err == nil) != row.fits || err != nil && (exitcode.Of(err) != exitcode.Usage || !strings.Contains(err.Error(), "make")) {
			t.Errorf("%+v: %v, want it to fit: %v", row.plan, err, row.fits)
		}
	}
}

func TestPolicyParsesItsOwnText(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Policy{
		"term": Term, "kill": {Signal: syscall.SIGKILL, Kill: true}, "warn": {Warn: true},
		"signal=HUP": {Signal: syscall.SIGHUP}, "signal=SIGINT": {Signal: syscall.SIGINT}, "signal=quit": {Signal: syscall.SIGQUIT}, "signal=44": {Signal: 44},
	} {
		var p, again Policy
		if err := p.Set(text); err != nil || p != want {
			t.Errorf("%s: %+v, %v", text, p, err)
		}
		if err := again.Set(p.String()); err != nil || again != p {
			t.Errorf("%s is formatted as %s", text, p.String())
		}
	}
	for _, text := range []string{"", "TERM", "signal=", "signal=NOPE", "signal=0", "signal=65", "signal=-1"} {
		if err := new(Policy).Set(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}
