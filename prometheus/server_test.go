package prometheus_test

import (
	"encoding/json"
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

	client_golang "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/prometheus"
)

// others is what redis_exporter would serve.
const others = `# TYPE redis_db_keys gauge
redis_db_keys{db="db0"} 5
# TYPE redis_db_keys_expiring gauge
redis_db_keys_expiring{db="db0"} 4
# TYPE redis_evicted_keys_total counter
redis_evicted_keys_total 0
`

// serve starts a Prometheus that scrapes target each second, and returns its address.
func serve(t *testing.T, target string) (address string) {
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
		"  - {job_name: locks, static_configs: [{targets: ['" + target + "']}]}\n" +
		"  - {job_name: servers, metrics_path: /redis, static_configs: [{targets: ['" + target + "']}]}\n"
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

// ask has the server answer a query: how many series there are, and what is wrong.
func ask(address, query string) (series int, problem string) {
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

func TestEveryQueryOfTheDashboardHasAnAnswerOnAServer(t *testing.T) {
	t.Parallel()
	m := prometheus.New(nil)
	h := m.Hooks()
	h.Node(holdfast.NodeEvent{Node: "a", State: holdfast.NodeUp, RoundTrip: time.Millisecond})
	h.Acquired(holdfast.AcquiredEvent{Key: "order/1", Owner: "a"})
	registry := client_golang.NewRegistry()
	registry.MustRegister(m)
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("/redis", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(others)) })
	target := httptest.NewServer(mux)
	defer target.Close()
	address := serve(t, strings.TrimPrefix(target.URL, "http://"))
	open := queries(t)
	deadline := time.Now().Add(time.Minute)
	for len(open) > 0 {
		n, problem := ask(address, open[0])
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
