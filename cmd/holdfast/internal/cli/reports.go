package cli

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/report"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/run"
)

// reports writes the reports of a run: status file, metrics, messages to systemd.
type reports struct {
	app      *app
	status   []*report.Place // of --status-fd and --status-file
	textfile *report.Place
	begun    run.Begun

	job     bool          // run, not elect: the command runs again and again
	overdue time.Duration // time within which the job should have succeeded; 0: not set
}

// openReports opens what the flags name, before the lock is requested.
func (a *app) openReports(fl *runFlags) (*reports, error) {
	r := &reports{
		app: a, begun: run.Begun{Outcome: run.Running, PID: os.Getpid(), BeganAt: time.Now().UTC()},
		job: fl.job, overdue: time.Duration(fl.overdueAfter),
	}
	fd, err := report.FromDescriptor("--status-fd", fl.statusFD)
	if err == nil {
		r.status = append(r.status, fd)
		var file *report.Place
		file, err = report.File("--status-file", fl.statusFile)
		r.status = append(r.status, file)
	}
	if err == nil {
		r.textfile, err = report.PublicFile("--textfile", fl.textfile)
	}
	if err != nil {
		r.close()
		return nil, exitcode.With(exitcode.Usage, err)
	}
	return r, nil
}

func (r *reports) close() {
	for _, place := range append(r.status, r.textfile) {
		place.Close()
	}
}

// begin replaces the report of the last run, so that a killed run does not seem to have ended like the last
// one. Streams get nothing.
func (r *reports) begin() error {
	for _, place := range r.status {
		if !place.Kept() {
			continue
		}
		if err := place.Write(jsonLine(r.begun)); err != nil {
			return exitcode.With(exitcode.Usage, err)
		}
	}
	return nil
}

// noteStart reports that the command runs, and its leases.
func (r *reports) noteStart(held run.Held) {
	r.begun.StartedAt = time.Now().UTC()
	if held != nil {
		r.begun.Leases = run.NewLeases(held)
	}
	if err := r.begin(); err != nil {
		r.app.log.Error("the status was not written: " + oneLine(err))
	}
}

// end writes the status. A failed report does not change the command's outcome.
func (r *reports) end(st run.Status) {
	for _, place := range r.status {
		if err := place.Write(jsonLine(st)); err != nil {
			r.app.log.Error("the status was not written: " + oneLine(err))
		}
	}
	if err := r.textfile.Write(r.renderMetrics(st)); err != nil {
		r.app.log.Error("the metrics were not written: " + oneLine(err))
	}
}

// A run copies the values of these metrics from the run before it.
const (
	lastSuccess = "holdfast_job_last_success_timestamp_seconds"
	skipsInARow = "holdfast_job_skips_in_a_row"
)

// renderMetrics formats a status for the textfile collector of the node exporter, with values of earlier runs
// from that file.
func (r *reports) renderMetrics(st run.Status) []byte {
	m := &exposition{job: escapeLabel(st.Name)}
	m.addGauge("holdfast_job_last_end_timestamp_seconds", "When the last run ended.", "", unixSeconds(st.EndedAt))
	m.addGauge("holdfast_job_last_wait_seconds", "How long the last run waited for the lock.", "", float64(st.WaitedMS)/1000)
	m.addGauge("holdfast_job_last_exit_code", "The exit code of the last run.", "", float64(st.ExitCode))
	m.addGauge("holdfast_job_last_outcome", "What has happened in the last run.", fmt.Sprintf(",outcome=%q", st.Outcome), 1)
	if st.Started {
		m.addGauge("holdfast_job_last_start_timestamp_seconds", "When the command of the last run was started.", "", unixSeconds(st.StartedAt))
		m.addGauge("holdfast_job_last_duration_seconds", "How long the command of the last run took.", "", st.EndedAt.Sub(st.StartedAt).Seconds())
	}
	if !r.job {
		return m.text
	}
	before := exposition{job: m.job, text: r.textfile.Read()}
	success, skips := before.readValue(lastSuccess), 0.0
	if isSuccess(st) {
		success = unixSeconds(st.EndedAt)
	}
	if isSkipped(st) {
		skips = before.readValue(skipsInARow) + 1
	}
	m.addGauge(lastSuccess, "When the last run ended whose command ended with 0 and did not lose its lease, or 0.", "", success)
	m.addGauge(skipsInARow, "How many runs one after the other did not start the command, as the lock was busy or it was not wanted.", "", skips)
	if r.overdue > 0 {
		m.addGauge("holdfast_job_overdue_after_seconds", "How long after a success the next one is overdue.", "", r.overdue.Seconds())
	}
	return m.text
}

func isSuccess(st run.Status) bool {
	return st.ExitCode == exitcode.OK && (st.Outcome == run.Ran || st.Outcome == run.RanUnlocked)
}

// isSkipped reports whether the command was skipped without a fault of this machine.
func isSkipped(st run.Status) bool {
	return !st.Started && (st.ExitCode == exitcode.OK || st.Outcome == run.Busy || st.Outcome == run.Signal)
}

// exposition is a text in the Prometheus format, with metrics of one job.
type exposition struct {
	job  string // name of the job, escaped
	text []byte
}

func (e *exposition) addGauge(metric, help, labels string, value float64) {
	e.text = fmt.Appendf(e.text, "# HELP %s %s\n# TYPE %s gauge\n%s{name=\"%s\"%s} %v\n", metric, help, metric, metric, e.job, labels, value)
}

// readValue returns the value of a metric without further labels from the old text, or 0.
func (e *exposition) readValue(metric string) float64 {
	_, rest, _ := strings.Cut("\n"+string(e.text), fmt.Sprintf("\n%s{name=\"%s\"} ", metric, e.job))
	number, _, _ := strings.Cut(rest, "\n")
	v, _ := strconv.ParseFloat(number, 64) // 0: missing or malformed
	return v
}

// escapeLabel escapes text for the quotes of a label.
func escapeLabel(text string) string {
	return strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(strings.ToValidUTF8(text, "?"))
}

func unixSeconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }
