//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"
)

// minJudgedTime is the shortest run whose curves are judged: caches are full by then, and each server has been
// restarted.
const minJudgedTime = 20 * time.Minute

// standstill bounds the time without a grant.
const standstill = 2 * time.Minute

// Report is the report of all engines.
type Report struct {
	Hours   float64         `json:"hours"`
	Judged  bool            `json:"judged"` // the run was long enough to judge its curves
	Engines []*EngineReport `json:"engines"`
}

// EngineReport is the report of one engine.
type EngineReport struct {
	Name    string   `json:"name"`
	Counts  state    `json:"counts"`
	Faults  int      `json:"faults"`
	Command [2]int64 `json:"command"` // short runs, and failed ones
	Grows   []string `json:"grows"`
	Broken  []string `json:"broken"` // broken promises and other failures
	Samples []sample `json:"samples"`
}

func newReport(all []*watchedEngine) *Report {
	r := &Report{}
	for _, w := range all {
		e := &EngineReport{Name: w.engine.name, Faults: w.faults, Samples: w.samples, Broken: w.troubles}
		if n := len(w.samples); n > 0 {
			last := w.samples[n-1]
			r.Hours, e.Counts = max(r.Hours, last.Hours), last.Counts
		}
		if w.beside != nil {
			e.Command = [2]int64{w.beside.runs.Load(), w.beside.failed.Load()}
		}
		if w.missed*10 > len(w.samples) {
			e.Broken = append(e.Broken, fmt.Sprintf("%d samples are missing, of %d", w.missed, w.missed+len(w.samples)))
		}
		r.Engines = append(r.Engines, e)
	}
	r.Judged = r.Hours >= minJudgedTime.Hours()
	for _, e := range r.Engines {
		e.judgeCurves(r.Judged)
	}
	return r
}

// judgeCurves records what is broken, and with curves, what grows.
func (e *EngineReport) judgeCurves(curves bool) {
	for what, n := range map[string]int64{
		"pairs of holders were at work at once": e.Counts.Overlaps, "tokens did not rise": e.Counts.Disorders, "short runs of the command failed": e.Command[1],
	} {
		if n > 0 {
			e.Broken = append(e.Broken, fmt.Sprintf("%d %s", n, what))
		}
	}
	if e.Counts.Granted == 0 {
		e.Broken = append(e.Broken, "nobody was granted a lock")
	}
	var since float64 // time of the last grant, in hours
	for i, s := range e.Samples {
		if i > 0 && s.Counts.Granted == e.Samples[i-1].Counts.Granted {
			if s.Hours-since > standstill.Hours() {
				e.Broken = append(e.Broken, fmt.Sprintf("after %.2f hours nobody had been granted a lock for %v", s.Hours, standstill))
				break
			}
			continue
		}
		since = s.Hours
	}
	for _, f := range figures {
		if c := e.curveOf(f); curves && c.exceedsGrowth(f) {
			e.Grows = append(e.Grows, f.name)
		}
	}
}

// curveOf returns the curve of one figure, without points if the engine lacks the figure.
func (e *EngineReport) curveOf(f figure) (c curve) {
	for _, s := range e.Samples {
		if v, ok := s.Figures[f.name]; ok {
			c.addPoint(s.Hours, v)
		}
	}
	return c
}

// Passed reports whether all curves stayed flat and every promise was kept.
func (r *Report) Passed() bool {
	for _, e := range r.Engines {
		if len(e.Grows) > 0 || len(e.Broken) > 0 {
			return false
		}
	}
	return len(r.Engines) > 0
}

// Text returns the report for people.
func (r *Report) Text() string {
	var b strings.Builder
	for _, e := range r.Engines {
		e.writeText(&b, r.Judged)
	}
	if !r.Judged {
		fmt.Fprintf(&b, "\nCurves are judged from %v on: this run says nothing of leaks.\n", minJudgedTime)
	}
	fmt.Fprintf(&b, "\n%.2f hours, each figure a median of a fifth of that: the second, the third and the last.\n", r.Hours)
	for _, e := range r.Engines {
		for _, name := range e.Grows {
			fmt.Fprintf(&b, "%s: %s grows\n", e.Name, name)
		}
		for _, what := range e.Broken {
			fmt.Fprintf(&b, "%s: broken: %s\n", e.Name, what)
		}
	}
	if r.Passed() {
		fmt.Fprintln(&b, map[bool]string{true: "All is flat, and no promise was broken.", false: "No promise was broken."}[r.Judged])
	}
	return b.String()
}

func (e *EngineReport) writeText(b *strings.Builder, judged bool) {
	c := e.Counts
	fmt.Fprintf(b, "\n%s: %d locks, %d after a wait; %d waits given up; %d calls failed and %d leases were lost under %d faults; "+
		"%d overlaps, %d tokens did not rise\n", e.Name, c.Granted, c.HandedOver, c.GivenUp, c.Failed, c.Lost, e.Faults, c.Overlaps, c.Disorders)
	if e.Command[0] > 0 {
		fmt.Fprintf(b, "The command: %d short runs, %d failed.\n", e.Command[0], e.Command[1])
	}
	if c.Error != "" {
		fmt.Fprintf(b, "The last failure: %s\n", c.Error)
	}
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "figure\tfirst\tmiddle\tlast\tby the hour\t\t\t")
	for _, f := range figures {
		c := e.curveOf(f)
		if len(c.at) == 0 {
			continue
		}
		verdict := "flat"
		switch {
		case !judged:
			verdict = "-"
		case c.exceedsGrowth(f):
			verdict = "GROWS"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", f.name,
			f.formatValue(medianOf(c.partBetween(.2, .4).values)), f.formatValue(medianOf(c.partBetween(.4, .6).values)),
			f.formatValue(medianOf(c.partBetween(.8, 1).values)), f.formatValue(c.partBetween(warmUp, 1).pace()), verdict, c.drawLine(40))
	}
	w.Flush()
}

// formatValue formats a value of a figure.
func (f figure) formatValue(v float64) string {
	if f.bytes {
		return fmt.Sprintf("%.1f MB", v/mb)
	}
	return fmt.Sprintf("%.0f", v)
}

// saveFiles writes the report and the samples to a folder.
func (r *Report) saveFiles(dir string) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "report.json"), data, 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "report.txt"), []byte(r.Text()), 0o600)
}
