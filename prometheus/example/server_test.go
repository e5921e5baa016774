package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
)

const (
	rules     = "../rules/holdfast.yml"
	dashboard = "../dashboard.json"
)

// exporterMetrics has metrics of redis_exporter, and metrics of the command as the node exporter serves them.
// verify/dashboard serves them too.
const exporterMetrics = `# TYPE redis_db_keys gauge
redis_db_keys{db="db0"} 5
# TYPE redis_db_keys_expiring gauge
redis_db_keys_expiring{db="db0"} 4
# TYPE redis_evicted_keys_total counter
redis_evicted_keys_total 0
# TYPE holdfast_job_last_success_timestamp_seconds gauge
holdfast_job_last_success_timestamp_seconds{name="a"} 1
# TYPE holdfast_job_overdue_after_seconds gauge
holdfast_job_overdue_after_seconds{name="a"} 1
# TYPE holdfast_job_last_duration_seconds gauge
holdfast_job_last_duration_seconds{name="a"} 1
# TYPE holdfast_job_last_wait_seconds gauge
holdfast_job_last_wait_seconds{name="a"} 1
# TYPE holdfast_job_last_outcome gauge
holdfast_job_last_outcome{name="a",outcome="ran"} 1
# TYPE holdfast_job_last_exit_code gauge
holdfast_job_last_exit_code{name="a"} 0
# TYPE holdfast_job_skips_in_a_row gauge
holdfast_job_skips_in_a_row{name="a"} 0
# TYPE holdfast_leaks gauge
holdfast_leaks 0
`

// startPrometheus starts a Prometheus that scrapes the example and an exporter each second, and returns its
// address.
func startPrometheus(t *testing.T, example, exporter string) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address = l.Addr().String()
	l.Close()
	dir := t.TempDir()
	rulesFile, err := filepath.Abs(rules)
	if err != nil {
		t.Fatal(err)
	}
	config := "global: {scrape_interval: 1s}\nrule_files: ['" + rulesFile + "']\nscrape_configs:\n" +
		"  - {job_name: locks, static_configs: [{targets: ['" + example + "']}]}\n" +
		"  - {job_name: servers, static_configs: [{targets: ['" + exporter + "']}]}\n"
	if err := os.WriteFile(dir+"/prometheus.yml", []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "prometheus", "--config.file="+dir+"/prometheus.yml",
		"--storage.tsdb.path="+dir+"/data", "--web.listen-address="+address, "--log.level=warn")
	var log strings.Builder
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	return address
}

// countSeries sends a query to the server, and returns the number of series and the problem, if any.
func countSeries(address, query string) (series int, problem string) {
	resp, err := http.Get("http://" + address + "/api/v1/query?query=" + url.QueryEscape(query))
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	var answer struct {
		Error string
		Data  struct{ Result []any }
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return 0, err.Error()
	}
	return len(answer.Data.Result), answer.Error
}

// dashboardQueries returns the expressions of the dashboard and of its variables, with values for the
// variables.
func dashboardQueries(t *testing.T) (all []string) {
	t.Helper()
	text, err := os.ReadFile(dashboard)
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct {
				Type  string
				Query any
			}
		}
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	values := strings.NewReplacer("$__rate_interval", "1m", "$resource", ".*")
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			all = append(all, values.Replace(q.Expr))
		}
	}
	for _, v := range d.Templating.List {
		if v.Type == "query" { // label_values(METRIC, LABEL)
			expr := v.Query.(map[string]any)["query"].(string)
			metric, label, ok := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(expr, "label_values("), ")"), ", ")
			if !ok {
				t.Fatalf("a variable queries %s", expr)
			}
			all = append(all, "count by ("+label+") ("+metric+"{"+label+"!=''})")
		}
	}
	if len(all) < 2 {
		t.Fatal("no queries")
	}
	return all
}

func TestDashboardQueriesReturnData(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	reader, writer := io.Pipe()
	ended := make(chan error, 1)
	redis := redistest.Start(t, nil) // nodes in memory have no round trips
	go func() { ended <- run(ctx, writer, "127.0.0.1:0", []string{"redis://" + redis.Addr()}) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	at, err := bufio.NewReader(reader).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	example, err := url.Parse(strings.TrimSpace(at))
	if err != nil {
		t.Fatal(err)
	}
	exporter := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(exporterMetrics)) }))
	defer exporter.Close()
	address := startPrometheus(t, example.Host, strings.TrimPrefix(exporter.URL, "http://"))
	open := dashboardQueries(t)
	deadline := time.Now().Add(time.Minute)
	for len(open) > 0 {
		n, problem := countSeries(address, open[0])
		switch {
		case n > 0:
			open = open[1:]
		case time.Now().After(deadline):
			t.Fatalf("no answer to %s: %s", open[0], problem)
		default:
			time.Sleep(200 * time.Millisecond) // until it has scraped twice
		}
	}
}
