package dashboard

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/rig"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
)

// patience bounds each wait for an expected event, on a busy machine.
const patience = time.Minute

// site holds a Redis server, the command, a node exporter that reads the command's text files, and a Prometheus
// that scrapes the exporter and has the rules.
type site struct {
	t          *testing.T
	program    string
	textfiles  string
	redis      *redisproc.Server
	prometheus string // its address
}

// shortMinute replaces a minute in the rules, so that the test's jobs may be short.
const shortMinute = 5 * time.Second

func newSite(t *testing.T) *site {
	t.Helper()
	dir := t.TempDir()
	s := &site{t: t, program: filepath.Join(dir, "holdfast"), textfiles: filepath.Join(dir, "textfiles"), redis: redistest.Start(t, nil)}
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", s.program, "github.com/holdfast-go/holdfast/cmd/holdfast")
	out, err := build.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	rules, err := os.ReadFile("../../prometheus/rules/holdfast.yml")
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(rules, []byte(" > 60\n")); n != 2 {
		t.Fatalf("%d rules concern a minute, want 2", n)
	}
	rules = bytes.ReplaceAll(rules, []byte(" > 60\n"), fmt.Appendf(nil, " > %v\n", shortMinute.Seconds()))
	exporter := freeAddr(t)
	s.prometheus = freeAddr(t)
	config := "global: {scrape_interval: 500ms, evaluation_interval: 500ms}\nrule_files: [rules.yml]\nscrape_configs:\n" +
		"  - {job_name: node, static_configs: [{targets: ['" + exporter + "']}]}\n"
	err = errors.Join(os.Mkdir(s.textfiles, 0o755), os.WriteFile(filepath.Join(dir, "rules.yml"), rules, 0o600),
		os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	startServer(t, "prometheus-node-exporter", "--web.listen-address="+exporter, "--collector.disable-defaults",
		"--collector.textfile", "--collector.textfile.directory="+s.textfiles)
	startServer(t, "prometheus", "--config.file="+dir+"/prometheus.yml", "--storage.tsdb.path="+dir+"/data",
		"--web.listen-address="+s.prometheus, "--log.level=warn")
	return s
}

// freeAddr returns a free address.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// startServer starts a server until the end of the test. tools/deps installs the servers.
func startServer(t *testing.T, argv ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("%s:\n%s", argv[0], log.String())
		}
	})
}

// runHoldfast runs the command and checks its exit code.
func (s *site) runHoldfast(code int, argv ...string) {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), s.program, argv...)
	cmd.Env = append(os.Environ(), "HOLDFAST_BACKEND=redis://"+s.redis.Addr(), "PATH="+filepath.Dir(s.program)+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != code {
		s.t.Errorf("%q ends with %d (%v), want %d:\n%s", argv, cmd.ProcessState.ExitCode(), err, code, out)
	}
}

// runJob runs a command as a job with a text file.
func (s *site) runJob(code int, name string, argv ...string) {
	s.t.Helper()
	s.runHoldfast(code, append([]string{"run", "--textfile", filepath.Join(s.textfiles, name+".prom"), "-q"}, argv...)...)
}

func (s *site) runLeaks(code int, argv ...string) {
	s.t.Helper()
	s.runHoldfast(code, append([]string{"leaks", "--textfile", filepath.Join(s.textfiles, "leaks.prom")}, argv...)...)
}

// queryPrometheus returns the labels of each series in the answer to a query. After an error it returns none.
func (s *site) queryPrometheus(query string, labels ...string) (series []string) {
	resp, err := http.Get("http://" + s.prometheus + "/api/v1/query?query=" + url.QueryEscape(query))
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	var answer struct {
		Data struct {
			Result []struct{ Metric map[string]string }
		}
	}
	if json.NewDecoder(resp.Body).Decode(&answer) != nil {
		return nil
	}
	for _, r := range answer.Data.Result {
		var values []string
		for _, label := range labels {
			values = append(values, r.Metric[label])
		}
		series = append(series, strings.TrimSpace(strings.Join(values, " ")))
	}
	slices.Sort(series)
	return slices.Compact(series)
}

// waitUntil waits until done returns true.
func (s *site) waitUntil(what string, done func() bool) {
	s.t.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("not within %v: %s; since the beginning there were %q", patience, what, s.firedAlerts())
		}
	}
}

// firedAlerts returns the alerts that were raised so far.
func (s *site) firedAlerts() []string {
	return s.queryPrometheus(`count_over_time(ALERTS{alertstate="firing"}[1h])`, "alertname", "name", "outcome")
}

// faults are the faults of a job, with the alerts that must fire.
var faults = []struct {
	alerts []string
	plant  func(*site)
}{
	{[]string{"LockJobOverdue overdue"}, func(s *site) { s.runJob(0, "overdue", "--overdue-after", "1s", "overdue", "--", "true") }},
	{[]string{"LockJobFailed failed ran"}, func(s *site) { s.runJob(3, "failed", "failed", "--", "sh", "-c", "exit 3") }},
	{[]string{"LockJobFailed away unavailable"}, func(s *site) { s.runJob(69, "away", "-b", "redis://127.0.0.1:1", "away", "--", "true") }},
	{[]string{"LockJobFailed lost lost", "LockJobLost lost lost"}, func(s *site) {
		s.runJob(79, "lost", "-c", "holdfast force-release lost --token $HOLDFAST_LOCK_TOKEN --reason fault --yes; sleep 1000", "lost")
	}},
	{[]string{"LockJobSlow slow"}, func(s *site) { s.runJob(0, "slow", "slow", "--", "sleep", fmt.Sprint(shortMinute.Seconds()+1)) }},
	{[]string{"LockJobWaits waits"}, func(s *site) {
		s.runHoldfast(0, "acquire", "--ttl", fmt.Sprint(shortMinute+time.Second), "--file", filepath.Join(s.t.TempDir(), "lease"), "waits")
		s.runJob(0, "waits", "waits", "--", "true")
	}},
	{[]string{"LockJobSkipped skipped"}, func(s *site) {
		s.runHoldfast(0, "acquire", "--ttl", "1h", "--file", filepath.Join(s.textfiles, "lease"), "skipped")
		for range 5 {
			s.runJob(0, "skipped", "-n", "-x", "skipped", "--", "true")
		}
	}},
	{[]string{"LockLeaks"}, func(s *site) {
		if _, err := s.redis.Do("SET", "lock:theirs", "value"); err != nil {
			s.t.Error(err)
		}
		s.runLeaks(1)
	}},
}

// The test runs successful jobs first, and then plants each fault.
func TestJobAlertFiresOnlyOnItsFault(t *testing.T) {
	rig.Nightly(t, "dashboard")
	t.Parallel()
	s := newSite(t)
	s.runLeaks(0)
	jobs := []string{"overdue", "failed", "away", "lost", "slow", "waits", "skipped"}
	for _, name := range jobs {
		s.runJob(0, name, "--overdue-after", "1h", name, "--", "true")
	}
	s.waitUntil("ten scrapes of all", func() bool {
		return len(s.queryPrometheus(`count_over_time(holdfast_job_last_success_timestamp_seconds[1h]) >= 10`, "name")) == len(jobs)
	})
	if fired := s.firedAlerts(); len(fired) > 0 {
		t.Errorf("without a fault there is %q", fired)
	}
	s.holdsThePage()

	var want []string
	var planted sync.WaitGroup
	for _, f := range faults {
		want = append(want, f.alerts...)
		planted.Go(func() { f.plant(s) })
	}
	planted.Wait()
	s.waitUntil("LockLeaks", func() bool { return slices.Contains(s.firedAlerts(), "LockLeaks") })
	s.ageMetric("leaks.prom", "holdfast_leaks_last_look_timestamp_seconds", 9*24*time.Hour)
	want = append(want, "LockLeaksNotCounted")
	slices.Sort(want)
	s.waitUntil(fmt.Sprintf("%q", want), func() bool { return slices.Equal(s.firedAlerts(), want) })

	s.runLeaks(0, "--fix", "--yes")
	s.runHoldfast(0, "release", "--file", filepath.Join(s.textfiles, "lease"))
	for _, name := range jobs {
		s.runJob(0, name, "--overdue-after", "1h", name, "--", "true")
	}
	s.waitUntil("the end of all that is mended", func() bool {
		return len(s.queryPrometheus(`ALERTS{alertstate="firing"}`, "alertname")) == 0
	})
	if fired := s.firedAlerts(); !slices.Equal(fired, want) {
		t.Errorf("at the end there were %q, want %q", fired, want)
	}
}

// ageMetric makes a time in a text file earlier.
func (s *site) ageMetric(file, metric string, d time.Duration) {
	s.t.Helper()
	path := filepath.Join(s.textfiles, file)
	text, err := os.ReadFile(path)
	if err != nil {
		s.t.Fatal(err)
	}
	older := regexp.MustCompile(`(?m)^`+metric+` .*$`).ReplaceAll(text, fmt.Appendf(nil, "%s %d", metric, time.Now().Add(-d).Unix()))
	if err := errors.Join(os.WriteFile(path+"-", older, 0o600), os.Rename(path+"-", path)); err != nil {
		s.t.Fatal(err)
	}
}

// holdsThePage checks that docs/alerts.md names all metrics of Prometheus, and that rules and dashboard use no
// others.
func (s *site) holdsThePage() {
	s.t.Helper()
	exist := s.queryPrometheus(`{__name__=~"holdfast_.*"}`, "__name__")
	name := regexp.MustCompile(`\bholdfast_(?:job|leaks)\w*`)
	for _, file := range []string{"docs/alerts.md", "prometheus/rules/holdfast.yml", "prometheus/rules/holdfast_test.yml", "prometheus/dashboard.json"} {
		text, err := os.ReadFile("../../" + file)
		if err != nil {
			s.t.Fatal(err)
		}
		named := make(map[string]bool)
		for _, n := range name.FindAllString(string(text), -1) {
			named[n] = true
		}
		got := slices.Sorted(maps.Keys(named))
		if file == "docs/alerts.md" && !slices.Equal(got, exist) {
			s.t.Errorf("%s names %q, and there are %q", file, got, exist)
		}
		for _, n := range got {
			if !slices.Contains(exist, n) {
				s.t.Errorf("%s names %s, which does not exist", file, n)
			}
		}
	}
}
