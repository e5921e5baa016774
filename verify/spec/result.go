package main

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/verify/tool"
)

// result is TLC's result for a row.
type result struct {
	states   string // visited states, with repetitions
	distinct string
	depth    int    // depth of the exploration, or steps to the violation
	broken   string // the violated invariant
	trace    []string
	actions  map[string]bool // by action: a step of the row takes it; empty after a violation
	took     time.Duration   // processor time
	err      error           // TLC did not finish
}

var (
	counts   = regexp.MustCompile(`(?m)^([\d,]+) states generated.*?, ([\d,]+) distinct states found.*, ([\d,]+) states left on queue`)
	depth    = regexp.MustCompile(`(?m)^The depth of the complete state graph search is (\d+)`)
	action   = regexp.MustCompile(`(?m)^<(\w+) line .* of module (\w+)[^>]*>: \d+:(\d+)$`)
	violated = regexp.MustCompile(`(?m)^Error: Invariant (\w+) is violated`)
	took     = regexp.MustCompile(`(?m)^` + tookMark + `(\S+)$`)
	finished = "Model checking completed. No error has been found."
)

// withoutItsRule is the action that happens only if its rule is turned off.
const withoutItsRule = "Holdfast.LateWakeUp"

// tookMark precedes the time in the report of a row.
const tookMark = "processor time: "

// parseReport parses TLC's output, and the time after it.
func parseReport(text string) result {
	var r result
	all := counts.FindAllStringSubmatch(text, -1)
	if len(all) == 0 {
		return result{err: errors.New("TLC counted no states")}
	}
	last := all[len(all)-1]
	r.states, r.distinct = strings.ReplaceAll(last[1], ",", ""), strings.ReplaceAll(last[2], ",", "")
	if m := took.FindStringSubmatch(text); m != nil {
		r.took, r.err = time.ParseDuration(m[1])
	}
	if m := violated.FindStringSubmatch(text); m != nil {
		r.broken, r.trace = m[1], parseTrace(text)
		r.depth = len(r.trace)
		return r
	}
	m := depth.FindStringSubmatch(text)
	if m == nil || !strings.Contains(text, finished) || last[3] != "0" {
		r.err = errors.New("TLC did not finish")
		return r
	}
	r.depth, _ = strconv.Atoi(m[1])
	r.actions = make(map[string]bool)
	for _, m := range action.FindAllStringSubmatch(text, -1) {
		r.actions[m[2]+"."+m[1]] = m[3] != "0"
	}
	return r
}

// summary returns the result in a few words.
func (r result) summary() string {
	switch {
	case r.err != nil:
		return "not finished"
	case r.broken != "":
		return fmt.Sprintf("%s breaks, after %d steps", r.broken, r.depth)
	}
	return "holds"
}

// renderTables returns the tables of the page: first the rows that hold, then the rows that break.
func renderTables(chosen []row, results []result) string {
	var sound, broken strings.Builder
	for i, r := range chosen {
		got := results[i]
		seconds := fmt.Sprintf("%.0f s", got.took.Seconds())
		switch {
		case got.err != nil && r.breaks == "":
			fmt.Fprintf(&sound, "| %s | %s | – | – | – | – | %s |\n", r.name, r.holds, got.summary())
		case got.err != nil:
			fmt.Fprintf(&broken, "| %s | %s | – | – | – | %s |\n", r.name, r.breaks, got.summary())
		case r.breaks == "":
			fmt.Fprintf(&sound, "| %s | %s | %s | %s | %d | %s | %s |\n", r.name, r.holds, got.states, got.distinct, got.depth, seconds, got.summary())
		default:
			fmt.Fprintf(&broken, "| %s | %s | %s | %d | %s | %s |\n", r.name, r.breaks, got.distinct, got.depth, seconds, got.summary())
		}
	}
	return renderTable(&sound, "| configuration | promises | states | distinct | depth | time | result |\n|---|---|---:|---:|---:|---:|---|\n") +
		renderTable(&broken, "| configuration | promise | distinct states | steps | time | result |\n|---|---|---:|---:|---:|---|\n")
}

// renderTable returns a table, or "" without lines.
func renderTable(lines *strings.Builder, head string) string {
	if lines.Len() == 0 {
		return ""
	}
	return head + lines.String() + "\n"
}

// renderTraces returns the shortest traces to the violations. Each line is a step: an action of the
// specification and its changes, of nodes n1 to n3, of attempts a to c, of the sent requests, and of the rest.
func renderTraces(chosen []row, results []result) string {
	var page strings.Builder
	for i, r := range chosen {
		if r.breaks == "" || results[i].err != nil {
			continue
		}
		fmt.Fprintf(&page, "%s: %s breaks\n", r.name, results[i].broken)
		for n, line := range results[i].trace {
			fmt.Fprintf(&page, "%4d. %s\n", n+1, line)
		}
	}
	return page.String()
}

// The tables are between these lines of the page.
const tableStart, tableEnd = "<!-- begin: go run ./spec -md ../docs/spec/README.md -->\n", "<!-- end -->\n"

// writePage prints the tables, or writes them into the page.
func writePage(page, text string, out io.Writer) error {
	if page == "" {
		_, err := io.WriteString(out, text)
		return err
	}
	return tool.Page{Path: page, Begin: tableStart, End: tableEnd}.Fill(func(string) string { return text })
}
