package main

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// report holds all results of comparing libraries.
type report struct {
	Machine string `json:"machine"`
	Rows    []row  `json:"rows"`
}

// describeMachine returns the processor and the system of this machine.
func describeMachine() string {
	cpu := "unknown CPU"
	text, _ := os.ReadFile("/proc/cpuinfo") // missing on some systems
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			cpu = strings.TrimSpace(value)
		}
	}
	return fmt.Sprintf("%s, %d cores, %s/%s, %s, %s", cpu, runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version(), time.Now().Format(time.DateOnly))
}

// sample holds the results of one run.
type sample struct {
	locks         int
	waits         []time.Duration // sorted
	longest       time.Duration   // longest wait, including unfinished waits
	stuck, failed int             // waits that did not end within the grace time; calls that failed
	figures       map[string]float64
}

// columns are the figures of a row, in order. Unmeasured figures are left out.
var columns = []string{
	"locks/s", "ratio", "hand-overs/s", "wait p50 ms", "p99 ms", "max ms", "requests/lock", "commands/lock", "allocs/lock",
	"client CPU µs/lock", "server CPU µs/lock", "bytes written/lock", "Jain",
}

func newSample(tallies []*tally, elapsed time.Duration) sample {
	var s sample
	shares := make(map[int]float64)
	for _, t := range tallies {
		s.waits = append(s.waits, t.waits...)
		s.locks += t.locks
		s.longest = max(s.longest, t.longest)
		s.stuck += t.stuck
		s.failed += t.failed
		shares[t.share] += float64(t.locks)
	}
	slices.Sort(s.waits)
	s.figures = map[string]float64{
		"locks/s": float64(s.locks) / elapsed.Seconds(), "wait p50 ms": inMillis(s.percentile(0.50)), "p99 ms": inMillis(s.percentile(0.99)),
		"max ms": inMillis(s.longest), "Jain": jainIndex(slices.Collect(maps.Values(shares))),
	}
	return s
}

// addSpent adds the costs per lock.
func (s *sample) addSpent(spent map[string]float64) {
	for name, n := range spent {
		s.figures[name+"/lock"] = n / max(float64(s.locks), 1)
	}
}

// percentile returns the wait that a share of all waits does not exceed. Without an ended wait it returns the
// longest.
func (s *sample) percentile(share float64) time.Duration {
	if len(s.waits) == 0 {
		return s.longest
	}
	return s.waits[min(int(share*float64(len(s.waits))), len(s.waits)-1)]
}

// jainIndex returns Jain's fairness index: 1 for equal shares, 1/n if one has everything. (R. Jain et al.,
// DEC-TR-301, 1984.)
func jainIndex(got []float64) float64 {
	var sum, squares float64
	for _, x := range got {
		sum += x
		squares += x * x
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(got)) * squares)
}

func inMillis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// medianOf returns the middle value of list, or the mean of its two middle values.
func medianOf(list []float64) float64 {
	sorted := slices.Sorted(slices.Values(list))
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

// medianRatio returns the median of a[i]/b[i] over the rounds, because the machine changes between rounds. ok
// is false if b did nothing in half of the rounds.
func medianRatio(a, b []float64) (ratio float64, ok bool) {
	var ratios []float64
	for i := range min(len(a), len(b)) {
		ratios = append(ratios, a[i]/b[i])
	}
	if len(ratios) == 0 || medianOf(b) == 0 {
		return 0, false
	}
	return medianOf(ratios), true
}

// row is one line of a table: the result of one library with one load on one service.
type row struct {
	Load    string               `json:"scenario"`
	Service string               `json:"service"`
	Nodes   int                  `json:"nodes"`
	Peer    string               `json:"peer"`
	Rate    float64              `json:"locks_per_second"`
	Stuck   int                  `json:"stuck"`  // unended waits in all rounds
	Failed  int                  `json:"failed"` // calls that returned an error
	Figures map[string]float64   `json:"medians"`
	Rounds  []map[string]float64 `json:"rounds"`
}

// newRow sums up the samples of a library; first has the samples of the first library with this load.
func newRow(l load, sv *service, peer string, samples, first []sample) row {
	r := row{Load: l.name, Service: sv.name, Nodes: sv.nodes, Peer: peer, Figures: make(map[string]float64)}
	for _, s := range samples {
		r.Stuck += s.stuck
		r.Failed += s.failed
		r.Rounds = append(r.Rounds, s.figures)
	}
	for name := range samples[0].figures {
		r.Figures[name] = medianOf(valuesOf(samples, name))
	}
	r.Rate = r.Figures["locks/s"]
	if ratio, ok := medianRatio(valuesOf(first, "locks/s"), valuesOf(samples, "locks/s")); ok {
		r.Figures["ratio"] = ratio
	}
	return r
}

func valuesOf(samples []sample, name string) (list []float64) {
	for _, s := range samples {
		list = append(list, s.figures[name])
	}
	return list
}

// layOutTable formats rows, with the columns that any row has.
func layOutTable(rows []row) string {
	cells := [][]string{{"load", "service", "library"}}
	var shown []string
	for _, name := range columns {
		if slices.ContainsFunc(rows, func(r row) bool { _, ok := r.Figures[name]; return ok }) {
			shown = append(shown, name)
		}
	}
	cells[0] = append(cells[0], shown...)
	for _, r := range rows {
		name := r.Peer
		if r.Stuck > 0 {
			name += fmt.Sprintf(" (%d stuck)", r.Stuck)
		}
		if r.Failed > 0 {
			name += fmt.Sprintf(" (%d failed)", r.Failed)
		}
		line := []string{r.Load, r.Service, name}
		for _, column := range shown {
			text := ""
			if v, ok := r.Figures[column]; ok {
				text = formatDigits(v)
			}
			line = append(line, text)
		}
		cells = append(cells, line)
	}
	return markdownTable(cells, 3)
}

// formatDigits writes v with about three digits.
func formatDigits(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3f", v)
}

// markdownTable formats cells as a table. The first row is the header; the first columns, up to left, are
// text.
func markdownTable(cells [][]string, left int) string {
	width := make([]int, len(cells[0]))
	for _, line := range cells {
		for i, c := range line {
			width[i] = max(width[i], len([]rune(c)))
		}
	}
	var b strings.Builder
	for n, line := range cells {
		for i, c := range line {
			pad := strings.Repeat(" ", width[i]-len([]rune(c)))
			if i < left {
				b.WriteString("| " + c + pad + " ")
			} else {
				b.WriteString("| " + pad + c + " ")
			}
		}
		b.WriteString("|\n")
		if n > 0 {
			continue
		}
		for i := range line {
			rule := strings.Repeat("-", width[i]+2)
			if i >= left {
				rule = rule[:len(rule)-1] + ":"
			}
			b.WriteString("|" + rule)
		}
		b.WriteString("|\n")
	}
	return b.String()
}
