package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

// report is everything that a run has found.
type report struct {
	Machine machineInfo `json:"machine"`
	Reps    int         `json:"repetitions"`
	Seconds float64     `json:"seconds_each"`
	Rows    []row       `json:"rows"`
	Waiters *waiters    `json:"waiters,omitempty"`
	Left    []leftover  `json:"left_by_new_names,omitempty"`
	Storms  []storm     `json:"storms,omitempty"`
	Older   []aged      `json:"beside_older,omitempty"`
	Claims  []claim     `json:"claims,omitempty"`
}

// machineInfo says what the figures were measured on.
type machineInfo struct {
	CPU    string    `json:"cpu"`
	Cores  int       `json:"cores"`
	System string    `json:"system"`
	Go     string    `json:"go"`
	Redis  string    `json:"redis"`
	Date   time.Time `json:"date"`
}

func machine(all servers) machineInfo {
	return machineInfo{
		CPU: cpuModel(), Cores: runtime.NumCPU(), System: runtime.GOOS + "/" + runtime.GOARCH,
		Go: runtime.Version(), Redis: all.version(), Date: time.Now().UTC().Truncate(time.Second),
	}
}

func cpuModel() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown CPU"
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown CPU"
}

func (m machineInfo) String() string {
	return fmt.Sprintf("%s, %d cores, %s, %s, Redis %s, %s", m.CPU, m.Cores, m.System, m.Go, m.Redis, m.Date.Format("2006-01-02"))
}

// text is the report for people: a table that is Markdown as well.
func (r *report) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s; clients, servers and peers share it.\nMedians of %d runs of %v s, interleaved; "+
		"where nobody wants another's lock, of three times as many, each a third as long.\n\n", r.Machine, r.Reps, r.Seconds)
	b.WriteString(table(r.Rows))
	if len(r.Left) > 0 {
		b.WriteString("\n" + leftoverTable(r.Left))
	}
	if len(r.Storms) > 0 {
		b.WriteString("\n" + stormTable(r.Storms))
	}
	if len(r.Older) > 0 {
		b.WriteString("\n" + olderTable(r.Older))
	}
	if r.Waiters != nil {
		b.WriteString("\n" + r.Waiters.String())
	}
	if len(r.Claims) > 0 {
		b.WriteString("\n" + claimTable(r.Claims))
	}
	return b.String()
}

func table(rows []row) string {
	cells := [][]string{{
		"scenario", "nodes", "peer", "locks/s", "wait p50 ms", "p99 ms", "max ms", "requests/lock", "commands/lock", "allocs/lock", "CPU µs/lock", "Jain",
	}}
	for _, r := range rows {
		name := r.Peer
		if r.Stuck > 0 {
			name += fmt.Sprintf(" (%d stuck)", r.Stuck)
		}
		if r.Failed > 0 {
			name += fmt.Sprintf(" (%d failed)", r.Failed)
		}
		line := []string{r.Scenario, fmt.Sprint(r.Nodes), name, fmt.Sprintf("%.0f", r.Rate), digits(r.P50), digits(r.P99), digits(r.Max)}
		if r.Metered {
			line = append(line, fmt.Sprintf("%.1f", r.Requests), fmt.Sprintf("%.1f", r.Commands), fmt.Sprintf("%.0f", r.Allocs),
				fmt.Sprintf("%.0f + %.0f", r.OwnCPU, r.NodeCPU))
		} else {
			line = append(line, "", "", "", "")
		}
		cells = append(cells, append(line, fmt.Sprintf("%.3f", r.Jain)))
	}
	return markdown(cells, 3)
}

// digits writes v with about three digits.
func digits(v float64) string {
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

// markdown lays cells out as a table whose first row is the head and whose first
// columns, up to left, are words.
func markdown(cells [][]string, left int) string {
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

// save writes what is asked for.
func (r *report) save(s settings) error {
	var errs error
	if s.json != "" {
		text, err := json.MarshalIndent(r, "", "  ")
		if err == nil {
			err = os.WriteFile(s.json, append(text, '\n'), 0o644)
		}
		errs = err
	}
	if s.svg != "" {
		errs = errors.Join(errs, os.WriteFile(s.svg, []byte(plot(r)), 0o644))
	}
	if s.md != "" {
		errs = errors.Join(errs, insert(s.md, r.text()))
	}
	return errs
}

// Marks between which the tables stand in a document.
const (
	markBegin = "<!-- begin: written by make bench -->\n"
	markEnd   = "<!-- end -->\n"
)

// insert replaces what stands between the marks in a file.
func insert(path, text string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, ok1 := strings.Cut(string(old), markBegin)
	_, after, ok2 := strings.Cut(rest, markEnd)
	if !ok1 || !ok2 {
		return fmt.Errorf("%s has no marks %q and %q", path, markBegin, markEnd)
	}
	return os.WriteFile(path, []byte(before+markBegin+"\n"+text+"\n"+markEnd+after), 0o644)
}
