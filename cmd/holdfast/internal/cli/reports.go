package cli

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/report"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/run"
)

// reports are what is told of a run, beside the log.
type reports struct {
	app      *app
	status   []*report.Place // of --status-fd and --status-file
	textfile *report.Place
	begun    run.Begun
}

// reports opens what the flags name, before the lock is asked for.
func (a *app) reports(fl *runFlags) (*reports, error) {
	r := &reports{app: a, begun: run.Begun{Outcome: run.Running, PID: os.Getpid(), BeganAt: time.Now().UTC()}}
	fd, err := report.Descriptor("--status-fd", fl.statusFD)
	if err == nil {
		r.status = append(r.status, fd)
		var file *report.Place
		file, err = report.File("--status-file", fl.statusFile)
		r.status = append(r.status, file)
	}
	if err == nil {
		r.textfile, err = report.Public("--textfile", fl.textfile)
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

// begin replaces what the last run has left, so that one which is killed does not
// seem to have ended as that did. Who reads a stream sees that nothing comes.
func (r *reports) begin() error {
	for _, place := range r.status {
		if !place.Kept() {
			continue
		}
		if err := place.Write(line(r.begun)); err != nil {
			return exitcode.With(exitcode.Usage, err)
		}
	}
	return nil
}

// started says that the command runs, and under which lease.
func (r *reports) started(lease *holdfast.Lease) {
	r.begun.StartedAt = time.Now().UTC()
	if lease != nil {
		r.begun.Token, r.begun.Owner = lease.Token(), lease.Owner()
	}
	if err := r.begin(); err != nil {
		r.app.log.Error("the status was not written: " + explain(err))
	}
}

// end writes the status. A report that fails does not hide how the command ended.
func (r *reports) end(st run.Status) {
	for _, place := range r.status {
		if err := place.Write(line(st)); err != nil {
			r.app.log.Error("the status was not written: " + explain(err))
		}
	}
	if err := r.textfile.Write(metrics(st)); err != nil {
		r.app.log.Error("the metrics were not written: " + explain(err))
	}
}

// metrics are a status as the node exporter of Prometheus reads it from a text file.
func metrics(st run.Status) []byte {
	var b strings.Builder
	name := strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(st.Name)
	gauge := func(metric, help, labels string, value float64) {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s gauge\n%s{name=\"%s\"%s} %v\n", metric, help, metric, metric, name, labels, value)
	}
	seconds := func(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }
	gauge("holdfast_job_last_end_timestamp_seconds", "When the last run ended.", "", seconds(st.EndedAt))
	gauge("holdfast_job_last_wait_seconds", "How long the last run waited for the lock.", "", float64(st.WaitedMS)/1000)
	gauge("holdfast_job_last_exit_code", "The exit code of the last run.", "", float64(st.ExitCode))
	gauge("holdfast_job_last_outcome", "What has happened in the last run.", fmt.Sprintf(",outcome=%q", st.Outcome), 1)
	if st.Started {
		gauge("holdfast_job_last_start_timestamp_seconds", "When the command of the last run was started.", "", seconds(st.StartedAt))
		gauge("holdfast_job_last_duration_seconds", "How long the command of the last run took.", "", st.EndedAt.Sub(st.StartedAt).Seconds())
	}
	return []byte(b.String())
}
