package cli

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/run"
)

// TestManagerHearsThatTheServiceLives holds that systemd is told what it asks for.
func TestManagerHearsThatTheServiceLives(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	hear := func() string {
		text := make([]byte, 1000)
		n, err := l.Read(text)
		if err != nil {
			t.Fatal(err)
		}
		return string(text[:n])
	}
	t.Setenv("NOTIFY_SOCKET", socket)
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
	m.ready("nobody hears it")
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
