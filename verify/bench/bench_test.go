package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// startService starts a service for the length of the test.
func startService(t *testing.T, name string) *service {
	t.Helper()
	sv, err := findStarter(name).start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sv.stop(); err != nil {
			t.Error(err)
		}
	})
	return sv
}

func TestEveryScenarioRuns(t *testing.T) {
	if testing.Short() {
		t.Skip("-short leaves out half a minute of measuring")
	}
	t.Parallel()
	for scenario, want := range map[string][]string{ // names of loads, one of each kind; further flags may follow
		"throughput,relay,queue-256,dead,hung,slow-8": {"| throughput ", "| rueidislock ", "| holdfast, no fault "},
		"known-names,hand-over-2":                     {"| pglock ", "| zk.Lock ", "| concurrency.Mutex "},
		"storm":                                       {"| redsync/rueidis |"},
		"databases -services mariadb-far,sqlite":      {"| GET_LOCK ", "| flock ", "| unique key ", "| clients | callers of each |"},
		"kinds":                                       {"| 64 readers ", "| 64 writers ", "A writer who comes", "\n| redis-3 | "},
		"semaphores -services postgres":               {"One caller of a semaphore", "\n| postgres | "},
		"capacity":                                    {"bytes", " 0 lost", "100 leases", "| all of these "},
	} {
		t.Run(scenario, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			file, picture := filepath.Join(dir, "rows.json"), filepath.Join(dir, "waits.svg")
			var out bytes.Buffer
			args := append([]string{"-short", "-json", file, "-svg", picture, "-scenarios"}, strings.Fields(scenario)...)
			if err := runCommand(t.Context(), args, &out, io.Discard); err != nil {
				t.Fatalf("%v\n%s", err, &out)
			}
			for _, text := range want {
				if !strings.Contains(out.String(), text) {
					t.Errorf("%q is missing:\n%s", text, &out)
				}
			}
			var r report
			text, err := os.ReadFile(file)
			if err = errors.Join(err, json.Unmarshal(text, &r)); err != nil {
				t.Fatal(err)
			}
			for _, line := range r.Rows { // the number of locks depends on the machine
				if line.Peer == holdfastName && line.Failed > 0 {
					t.Errorf("%s on %s: %d of Holdfast's calls failed", line.Load, line.Service, line.Failed)
				}
			}
			svg, err := os.Open(picture)
			if err != nil {
				t.Fatal(err)
			}
			defer svg.Close()
			for d := xml.NewDecoder(svg); err == nil; {
				_, err = d.Token()
			}
			if !errors.Is(err, io.EOF) {
				t.Errorf("the plot is not XML: %v", err)
			}
		})
	}
}

func TestScenarioPartCanRunAlone(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	args := []string{"-short", "-scenarios", "latency", "-services", "redis-1", "-peers", "holdfast,redislock"}
	if err := runCommand(t.Context(), args, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]int{"\n| latency | redis-1 | ": 2, "\n| ": 3, "| holdfast ": 1, "| redislock ": 1, "## ": 1} {
		if got := strings.Count(out.String(), text); got != want {
			t.Errorf("%q %d times, want %d:\n%s", text, got, want, &out)
		}
	}
}

func TestRatioComparesRunsOfOneRound(t *testing.T) {
	t.Parallel()
	theirs, ours := []float64{100, 300, 1200}, []float64{50, 200, 1000} // the machine became faster from round to round
	if got, ok := medianRatio(ours, theirs); !ok || got != 200./300 {
		t.Errorf("got %v, %v, want 2/3, the median of 1/2, 2/3 and 5/6", got, ok)
	}
	if got, ok := medianRatio(ours, []float64{0, 0, 1}); ok {
		t.Errorf("got %v beside an idle library", got)
	}
}

func TestJainIndexOfEqualAndUnequalShares(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		got  []float64
		want float64
	}{{[]float64{5, 5, 5, 5}, 1}, {[]float64{20, 0, 0, 0}, 0.25}, {[]float64{0, 0}, 0}} {
		if j := jainIndex(c.got); j != c.want {
			t.Errorf("jain(%v) = %v, want %v", c.got, j, c.want)
		}
	}
}

func TestUnfinishedWaitsCountAsLongest(t *testing.T) {
	t.Parallel()
	none := sample{longest: 7 * time.Second}
	if got := none.percentile(0.5); got != 7*time.Second {
		t.Errorf("without a finished wait: %v", got)
	}
	some := sample{waits: []time.Duration{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}}
	if got := some.percentile(0.99); got != 10 {
		t.Errorf("p99 of 1 to 10 = %v", got)
	}
}

func TestMedianOfOddAndEvenCounts(t *testing.T) {
	t.Parallel()
	list := []float64{9, 1, 5}
	if got := medianOf(list); got != 5 {
		t.Errorf("median(9, 1, 5) = %v", got)
	}
	if got := medianOf([]float64{4, 1, 2, 9}); got != 3 {
		t.Errorf("median(4, 1, 2, 9) = %v", got)
	}
	if !slices.Equal(list, []float64{9, 1, 5}) {
		t.Error("median changed its argument")
	}
}

func TestUnknownNamesAreRejected(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"-peers", "nobody"}, {"-scenarios", "nothing"}, {"-services", "redis-0"}, {"-services", "redis-01"}, {"-services", "mongo"}, {"-reps", "0"}, {"rest"},
	} {
		if _, err := parseSettings(args, io.Discard); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}
