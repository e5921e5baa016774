package cli

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/report"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/run"
)

// checkLines checks that a text has these lines, and no line that begins with one of lacks.
func checkLines(t *testing.T, text []byte, lines []string, lacks ...string) {
	t.Helper()
	for _, want := range lines {
		if !strings.Contains("\n"+string(text), "\n"+want+"\n") {
			t.Errorf("%s is missing from\n%s", want, text)
		}
	}
	for _, other := range lacks {
		if strings.Contains("\n"+string(text), "\n"+other) {
			t.Errorf("%s is in\n%s", other, text)
		}
	}
}

// A lock name cannot break the text for Prometheus.
func TestMetricsAreText(t *testing.T) {
	t.Parallel()
	end := time.Unix(1000, 0)
	r := &reports{}
	checkLines(t, r.renderMetrics(run.Status{
		Name: "a\"b\\\nc\xff", Outcome: run.Ran, ExitCode: 3, Started: true, WaitedMS: 1500,
		StartedAt: end.Add(-2 * time.Second), EndedAt: end,
	}), []string{
		`holdfast_job_last_outcome{name="a\"b\\\nc?",outcome="ran"} 1`, `holdfast_job_last_duration_seconds{name="a\"b\\\nc?"} 2`,
		`holdfast_job_last_wait_seconds{name="a\"b\\\nc?"} 1.5`,
		`holdfast_job_last_exit_code{name="a\"b\\\nc?"} 3`, `holdfast_job_last_end_timestamp_seconds{name="a\"b\\\nc?"} 1000`,
		"# TYPE holdfast_job_last_start_timestamp_seconds gauge",
	}, "c", lastSuccess) // a command of elect need not succeed
	checkLines(t, r.renderMetrics(run.Status{Name: "a", Outcome: run.Busy}), nil, "holdfast_job_last_duration")
}

// A failure or a skip keeps the time of the last success, and each run reads the file of the run before it.
func TestMetricsKeepEarlierRuns(t *testing.T) {
	t.Parallel()
	place, err := report.PublicFile("--textfile", filepath.Join(t.TempDir(), "job.prom"))
	if err != nil {
		t.Fatal(err)
	}
	r := &reports{app: &app{log: slog.New(slog.DiscardHandler)}, textfile: place, job: true, overdue: 26 * time.Hour}
	for i, run := range []struct {
		st             run.Status
		success, skips string
	}{
		{run.Status{Outcome: run.Busy, ExitCode: exitcode.Busy}, "0", "1"},
		{run.Status{Outcome: run.Ran, ExitCode: 3, Started: true}, "0", "0"},
		{run.Status{Outcome: run.Ran, Started: true}, "1.700000003125e+09", "0"},
		{run.Status{Outcome: run.Busy}, "1.700000003125e+09", "1"},
		{run.Status{Outcome: run.Busy, ExitCode: exitcode.Busy}, "1.700000003125e+09", "2"},
		{run.Status{Outcome: run.Unavailable}, "1.700000003125e+09", "3"},
		{run.Status{Outcome: run.Signal, ExitCode: 143}, "1.700000003125e+09", "4"},
		{run.Status{Outcome: run.Unavailable, ExitCode: exitcode.Unavailable}, "1.700000003125e+09", "0"},
		{run.Status{Outcome: run.RanLost, Started: true}, "1.700000003125e+09", "0"},
		{run.Status{Outcome: run.Lost, ExitCode: exitcode.Lost, Started: true}, "1.700000003125e+09", "0"},
		{run.Status{Outcome: run.Timeout, ExitCode: exitcode.Timeout, Started: true}, "1.700000003125e+09", "0"},
		{run.Status{Outcome: run.Failed, ExitCode: exitcode.Usage}, "1.700000003125e+09", "0"},
		{run.Status{Outcome: run.RanUnlocked, Started: true}, "1.700000013125e+09", "0"},
	} {
		run.st.Name, run.st.EndedAt = `a"b`, time.UnixMilli(1_700_000_001_125).Add(time.Duration(i)*time.Second)
		r.end(run.st)
		checkLines(t, place.Read(), []string{
			lastSuccess + `{name="a\"b"} ` + run.success, skipsInARow + `{name="a\"b"} ` + run.skips, `holdfast_job_overdue_after_seconds{name="a\"b"} 93600`,
		})
		if t.Failed() {
			t.Fatalf("run %d", i)
		}
	}
	r.end(run.Status{Name: "another", Outcome: run.Busy})
	checkLines(t, place.Read(), []string{lastSuccess + `{name="another"} 0`, skipsInARow + `{name="another"} 1`}, lastSuccess+`{name="a\`)
}
