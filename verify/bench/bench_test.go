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

// TestMain lets the program start itself as the holder of leases, as it does when
// it is not under test.
func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		exit(holdLeases(os.Stdin, os.Stdout))
	}
	os.Exit(m.Run())
}

func TestEveryScenarioGivesARowForEveryPeer(t *testing.T) {
	if testing.Short() {
		t.Skip("-short leaves out half a minute of measuring every scenario once")
	}
	t.Parallel()
	dir := t.TempDir()
	doc := filepath.Join(dir, "bench.md")
	if err := os.WriteFile(doc, []byte("before\n"+markBegin+"old\n"+markEnd+"after\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"-short", "-json", filepath.Join(dir, "bench.json"), "-svg", filepath.Join(dir, "waits.svg"), "-md", doc}
	var out bytes.Buffer
	if err := run(t.Context(), args, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	var r report
	text, err := os.ReadFile(filepath.Join(dir, "bench.json"))
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	s := settings{peers: names(allPeers)}
	for _, sc := range allScenarios {
		for _, n := range []int{1, 5} {
			if !sc.on(n) {
				continue
			}
			for _, p := range s.chosen(sc, n) {
				got, ok := r.row(sc.name, n, p.name)
				if !ok {
					t.Errorf("%s on %d nodes: no row for %s", sc.name, n, p.name)
				}
				if p.name == holdfastName && got.Failed > 0 { // how many locks a moment is enough for is the machine's affair
					t.Errorf("%s on %d nodes: %d of Holdfast's calls failed", sc.name, n, got.Failed)
				}
			}
		}
	}
	if len(r.Left) == 0 || r.Left[0].Peer != holdfastName || r.Left[0].Bytes <= 0 || r.Left[0].Seconds <= 0 {
		t.Errorf("left by new names: %+v", r.Left)
	}
	if r.Waiters == nil || r.Waiters.MegaBytes == 0 || r.Waiters.Crowd.HandOver == 0 {
		t.Errorf("many waiters: %+v", r.Waiters)
	}
	page, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	if text := string(page); !strings.HasPrefix(text, "before\n"+markBegin) || !strings.HasSuffix(text, markEnd+"after\n") ||
		!strings.Contains(text, "| throughput ") || strings.Contains(text, "old\n") {
		t.Errorf("the document has become %q", text)
	}
	svg, err := os.Open(filepath.Join(dir, "waits.svg"))
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
}

func TestEveryClaimIsJudgedOnceAllIsMeasured(t *testing.T) {
	t.Parallel()
	r := report{
		Waiters: &waiters{FewCommands: 1, ManyCommands: 1, Crowd: crowd{FewHandOver: 1}}, Left: []leftover{{Peer: holdfastName}},
		Older: []aged{{Old: 1, New: 1, Ratio: 1}},
	}
	s := settings{peers: names(allPeers)}
	for _, sc := range allScenarios {
		for _, n := range []int{1, 5} {
			for _, p := range s.chosen(sc, n) {
				r.Rows = append(r.Rows, row{
					Scenario: sc.name, Nodes: n, Peer: p.name, Rate: 1, P50: 1, P99: 1, Max: 1,
					Rates: []float64{1}, P50s: []float64{1}, Healthy: []float64{1},
				})
			}
		}
	}
	if got := judge(&r); len(got) != len(judgements) {
		t.Errorf("%d of %d claims were judged", len(got), len(judgements))
	}
}

func TestAClaimComparesRunsOfTheSameRound(t *testing.T) {
	t.Parallel()
	theirs, ours := []float64{100, 300, 1200}, []float64{50, 200, 1000} // the machine became faster from round to round
	r := report{Rows: []row{
		{Scenario: "throughput", Nodes: 1, Peer: holdfastName, Rates: ours},
		{Scenario: "throughput", Nodes: 1, Peer: "a", Rates: theirs},
		{Scenario: "throughput", Nodes: 1, Peer: "stuck", Rates: []float64{0, 0, 0}},
	}}
	if got, ok := best("throughput", 1, others)(&r); !ok || got != 200./300 {
		t.Errorf("got %v, %v, want 2/3, the median of 1/2, 2/3 and 5/6", got, ok)
	}
	r = report{Rows: []row{{Scenario: "hung", Nodes: 5, Peer: holdfastName, P50s: []float64{1, 3, 12}, Healthy: []float64{2, 2, 4}}}}
	if got, ok := besideHealthy("hung", 5)(&r); !ok || got != 1.5 {
		t.Errorf("beside healthy nodes: got %v, %v, want the median of 1/2, 3/2 and 3", got, ok)
	}
}

func TestHeldLeasesAreCountedInAProcessOfTheirOwn(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-leases", "-count", "100", "-hold", "100ms"}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); !strings.Contains(text, "100 leases on 5 nodes") || !strings.Contains(text, "0 lost") {
		t.Errorf("got %q", text)
	}
}

func TestJainIsOneForEqualSharesAndOneNthForAll(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		got  []int
		want float64
	}{{[]int{5, 5, 5, 5}, 1}, {[]int{20, 0, 0, 0}, 0.25}, {[]int{0, 0}, 0}} {
		if j := jain(c.got); j != c.want {
			t.Errorf("jain(%v) = %v, want %v", c.got, j, c.want)
		}
	}
}

func TestPercentilesOfWaitsThatNeverEndedAreTheLongest(t *testing.T) {
	t.Parallel()
	none := sample{longest: 7 * time.Second}
	if got := none.percentile(0.5); got != 7*time.Second {
		t.Errorf("without any wait that ended: %v", got)
	}
	waits := []time.Duration{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	if got := (sample{waits: waits}).percentile(0.99); got != 10 {
		t.Errorf("p99 of 1 to 10 = %v", got)
	}
}

func TestMedianIsTheMiddleOrTheMeanOfTheMiddleTwo(t *testing.T) {
	t.Parallel()
	list := []float64{9, 1, 5}
	if got := median(list); got != 5 {
		t.Errorf("median(9, 1, 5) = %v", got)
	}
	if got := median([]float64{4, 1, 2, 9}); got != 3 {
		t.Errorf("median(4, 1, 2, 9) = %v", got)
	}
	if !slices.Equal(list, []float64{9, 1, 5}) {
		t.Error("median has changed its argument")
	}
}

func TestUnknownNamesAreRefused(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-peers", "nobody"}, {"-scenarios", "nothing"}, {"-nodes", "0"}, {"-reps", "0"}, {"rest"}} {
		if _, err := parse(args, io.Discard); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}
