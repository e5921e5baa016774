package cli

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/run"
)

// systemd stands for systemd. It returns what the service sends, one message after the other.
func systemd(t *testing.T) (hear func() string) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	t.Setenv("NOTIFY_SOCKET", socket)
	return func() string {
		t.Helper()
		text := make([]byte, 1000)
		l.SetReadDeadline(time.Now().Add(30 * time.Second))
		n, err := l.Read(text)
		if err != nil {
			t.Fatal(err)
		}
		return string(text[:n])
	}
}

// TestManagerHearsThatTheServiceLives holds that systemd is told what it asks for.
func TestManagerHearsThatTheServiceLives(t *testing.T) {
	hear := systemd(t)
	t.Setenv("WATCHDOG_USEC", "20000")
	m := newManager()
	for range 3 {
		if got := hear(); got != "WATCHDOG=1" {
			t.Errorf("the watchdog hears %q", got)
		}
	}
	m.ready("running %s", "a\nREADY=0")
	for got := hear(); got != `READY=1`+"\n"+`STATUS=running a\nREADY=0`; got = hear() {
		if got != "WATCHDOG=1" {
			t.Fatalf("it hears %q", got)
		}
	}
	m.close()
	for hear() != "STOPPING=1" {
	}
	t.Setenv("WATCHDOG_PID", "1")
	if every := watchdog(); every != 0 {
		t.Errorf("the watchdog of another process: %v", every)
	}
	t.Setenv("NOTIFY_SOCKET", "")
	m = newManager()
	m.waits("nobody hears it")
	m.ready("nobody hears it")
	m.reloaded()
	m.close()
}

// TestAServiceThatWaitsAsksForTimeUntilItIsReady holds that a start that waits for its lock is extended, and a service that
// stands is not: that would lift RuntimeMaxSec.
func TestAServiceThatWaitsAsksForTimeUntilItIsReady(t *testing.T) {
	hear := systemd(t)
	m := newManager()
	m.waits("waiting for %s", "a")
	for _, want := range []string{"STATUS=waiting for a", "EXTEND_TIMEOUT_USEC=30000000"} {
		if got := hear(); got != want {
			t.Errorf("it hears %q, want %q", got, want)
		}
	}
	m.waited()
	m.waited = m.repeat("EXTEND_TIMEOUT_USEC=1", time.Millisecond)
	for range 3 {
		if got := hear(); got != "EXTEND_TIMEOUT_USEC=1" {
			t.Errorf("it hears %q", got)
		}
	}
	m.ready("running")
	for got := hear(); got != "READY=1\nSTATUS=running"; got = hear() {
		if got != "EXTEND_TIMEOUT_USEC=1" {
			t.Fatalf("it hears %q", got)
		}
	}
	m.close()
	if got := hear(); got != "STOPPING=1" {
		t.Errorf("a service that stands says %q", got)
	}
}

// TestAReloadIsAnswered holds to what systemd.service(5) asks of Type=notify-reload: a time of CLOCK_MONOTONIC not before the
// signal, and then READY=1.
func TestAReloadIsAnswered(t *testing.T) {
	hear := systemd(t)
	m := newManager()
	before := monotonic()
	m.reloaded()
	var usec int64
	if got := hear(); !strings.HasPrefix(got, "RELOADING=1\n") {
		t.Errorf("it hears %q", got)
	} else if _, err := fmt.Sscanf(got, "RELOADING=1\nMONOTONIC_USEC=%d", &usec); err != nil {
		t.Errorf("it hears %q: %v", got, err)
	}
	if usec < before.Microseconds() || usec > monotonic().Microseconds() || usec == 0 {
		t.Errorf("the reload began at %d, and the test at %v", usec, before)
	}
	if got := hear(); got != "READY=1" {
		t.Errorf("it hears %q", got)
	}
	m.close()
}

// TestMetricsAreText holds that a name cannot break the text that Prometheus reads.
func TestMetricsAreText(t *testing.T) {
	t.Parallel()
	end := time.Unix(1000, 0)
	text := string(metrics(run.Status{
		Name: `a"b\`, Outcome: run.Ran, ExitCode: 3, Started: true, WaitedMS: 1500,
		StartedAt: end.Add(-2 * time.Second), EndedAt: end,
	}))
	for _, want := range []string{
		`holdfast_job_last_outcome{name="a\"b\\",outcome="ran"} 1`, `holdfast_job_last_duration_seconds{name="a\"b\\"} 2`,
		`holdfast_job_last_wait_seconds{name="a\"b\\"} 1.5`,
		`holdfast_job_last_exit_code{name="a\"b\\"} 3`, `holdfast_job_last_end_timestamp_seconds{name="a\"b\\"} 1000`,
		"# TYPE holdfast_job_last_start_timestamp_seconds gauge\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is missing in\n%s", want, text)
		}
	}
	if text := string(metrics(run.Status{Name: "a", Outcome: run.Busy})); strings.Contains(text, "duration") {
		t.Errorf("of a command that did not run:\n%s", text)
	}
}
