package prometheus_test

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/rig"
	"github.com/holdfast-go/holdfast/prometheus"
)

const (
	rules     = "rules/holdfast.yml"
	ruleTests = "rules/holdfast_test.yml"
	dashboard = "dashboard.json"
	runbook   = "../docs/alerts.md"
)

// foreignMetrics are the metrics of redis_exporter that the rules and the dashboard use.
var foreignMetrics = []string{"redis_db_keys", "redis_db_keys_expiring", "redis_evicted_keys_total"}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// runPromtool runs promtool. tools/deps installs it.
func runPromtool(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "promtool", args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func alertNames(t *testing.T) (names []string) {
	t.Helper()
	for _, m := range regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(readFile(t, rules), -1) {
		names = append(names, m[1])
	}
	if len(names) == 0 {
		t.Fatal("no alerts")
	}
	return names
}

func TestRulesAreValid(t *testing.T) {
	t.Parallel()
	runPromtool(t, "check", "rules", rules)
}

// The test takes half a minute of processor time.
func TestEachAlertPassesItsTest(t *testing.T) {
	rig.Nightly(t, "dashboard")
	t.Parallel()
	runPromtool(t, "test", "rules", ruleTests)
}

func TestEachAlertIsTestedAndDocumented(t *testing.T) {
	t.Parallel()
	tests, page, text := readFile(t, ruleTests), readFile(t, runbook), readFile(t, rules)
	for _, name := range alertNames(t) {
		for what, pattern := range map[string]string{
			"a test in which it is silent": `alertname: ` + name + `, eval_time: \w+, exp_alerts: \[\]`,
			"a test in which it fires":     `alertname: ` + name + `\n +eval_time: \w+\n +exp_alerts:\n +- exp_labels`,
		} {
			if !regexp.MustCompile(pattern).MatchString(tests) {
				t.Errorf("%s lacks %s", name, what)
			}
		}
		if !strings.Contains(page, "\n## "+name+"\n") || !strings.Contains(text, "runbook: docs/alerts.md#"+strings.ToLower(name)+"\n") {
			t.Errorf("%s has no entry in %s, or no link to it", name, runbook)
		}
	}
}

func TestMetricsNamedInRulesAndDashboardExist(t *testing.T) {
	t.Parallel()
	exist := make(map[string]bool)
	for _, name := range foreignMetrics {
		exist[name] = true
	}
	inBusyBubble(t, func(_ string, m *prometheus.Metrics) {
		for series := range gatherSeries(t, m) {
			name, _, _ := strings.Cut(series, "{")
			exist[name] = true
		}
	})
	for _, file := range []string{rules, ruleTests, dashboard} {
		names := regexp.MustCompile(`\b(distributed_lock|redis)_\w+`).FindAllString(readFile(t, file), -1)
		if len(names) == 0 {
			t.Errorf("%s names no metric", file)
		}
		for _, name := range names {
			base := regexp.MustCompile(`_(bucket|count|sum)$`).ReplaceAllString(name, "")
			if !exist[base] && name != "redis_exporter" {
				t.Errorf("%s names %s, which does not exist", file, name)
			}
		}
	}
}

func TestRulesMarkForeignMetrics(t *testing.T) {
	t.Parallel()
	for _, rule := range strings.Split(readFile(t, rules), "- alert: ")[1:] {
		if strings.Contains(rule, "redis_") != strings.Contains(rule, "source: redis_exporter") {
			t.Errorf("label source of rule %.20q does not fit its metrics", rule)
		}
	}
}
