package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A suite counts as hanging after leastTime, or after three times its time without a bug if that is longer.
const (
	leastTime   = time.Minute
	healthyTime = 20 * time.Minute // for all tests of a package, without a bug
	graceTime   = 4 * time.Minute  // extra time for compiling
)

// laboratory is a copy of the repository for the mutants.
type laboratory struct {
	dir     string
	code    *code
	out     io.Writer
	verbose bool
	limits  map[string]time.Duration // time limits of suites, by runKey
}

// outcome is the result of one suite.
type outcome struct {
	killed bool
	by     string // the first failed test, or another kind of end
	took   time.Duration
	output string
}

// row is the result of one mutant.
type row struct {
	mutant
	outcomes []outcome // one per suite
}

func (r row) survived() bool {
	return slices.ContainsFunc(r.outcomes, func(o outcome) bool { return !o.killed })
}

// runKey returns a text that is equal for suites that can share a run.
func (l *laboratory) runKey(s suite) (string, error) {
	folder, err := l.code.home(s)
	return strings.Join(append(append([]string{folder}, s.env...), s.flags...), " "), err
}

// checkHealthy runs the suites without a bug: a test that then fails, or does not run, proves nothing.
func (l *laboratory) checkHealthy(ctx context.Context, mutants []mutant) error {
	begin := time.Now()
	runs := make(map[string]suite)
	for _, m := range mutants {
		for _, s := range m.fails {
			key, err := l.runKey(s)
			if err != nil {
				return fmt.Errorf("%s:%d: %w", m.file, s.line, err)
			}
			run, ok := runs[key]
			if !ok {
				run = s
				run.folder, _, _ = strings.Cut(key, " ")
				run.tests = nil
			}
			for _, test := range s.tests {
				if !slices.Contains(run.tests, test) {
					run.tests = append(run.tests, test)
				}
			}
			runs[key] = run
		}
	}
	l.limits = make(map[string]time.Duration)
	for _, key := range slices.Sorted(maps.Keys(runs)) {
		run := runs[key]
		r, took, err := l.runSuite(ctx, run, healthyTime)
		if err != nil {
			return err
		}
		for _, test := range run.tests {
			if !r.passed[test] {
				return fmt.Errorf("without any bug, %s of %s does not pass:\n%s", test, key, r.output)
			}
		}
		l.limits[key] = max(leastTime, 3*took)
		fmt.Fprintf(l.out, "passes  %-56s %5.1f s\n", key, took.Seconds())
	}
	fmt.Fprintf(l.out, "the tests of %d packages pass without a bug, in %v\n", len(runs), time.Since(begin).Round(time.Second))
	return nil
}

// tryAll tries each mutant in turn.
func (l *laboratory) tryAll(ctx context.Context, mutants []mutant) ([]row, error) {
	var rows []row
	for _, m := range mutants {
		r, err := l.tryMutant(ctx, m)
		if err != nil {
			return rows, fmt.Errorf("%s: %w", m.name, err)
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// tryMutant inserts a bug, runs the suites that must notice it, and restores the files.
func (l *laboratory) tryMutant(ctx context.Context, m mutant) (r row, err error) {
	was, bad, err := l.code.files(m)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, l.writeFiles(was)) }()
	if err := l.writeFiles(bad); err != nil {
		return r, err
	}
	r.mutant = m
	for _, s := range m.fails {
		o, err := l.testSuite(ctx, s)
		switch {
		case ctx.Err() != nil:
			return r, ctx.Err()
		case err != nil: // for example, a test does not compile: try the next mutant
			o.by, _, _ = strings.Cut(err.Error(), "\n")
			o.output = err.Error()
		}
		r.outcomes = append(r.outcomes, o)
		verdict := "killed"
		if !o.killed {
			verdict = "ALIVE"
		}
		fmt.Fprintf(l.out, "%-6s  %-46s %5.1f s  %s\n", verdict, m.name, o.took.Seconds(), o.by)
		if l.verbose && !o.killed {
			fmt.Fprintln(l.out, o.output)
		}
	}
	return r, nil
}

func (l *laboratory) writeFiles(files map[string]string) error {
	for file, text := range files {
		if err := os.WriteFile(filepath.Join(l.dir, file), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// testSuite runs a suite with a bug. An error means that the run proves nothing.
func (l *laboratory) testSuite(ctx context.Context, s suite) (o outcome, err error) {
	key, err := l.runKey(s)
	if err != nil {
		return o, err
	}
	r, took, err := l.runSuite(ctx, s, l.limits[key])
	if err != nil {
		return o, err
	}
	o.took, o.output = took, r.output
	for _, test := range s.tests {
		switch {
		case r.passed[test]:
			o.by = test + " passes"
			return o, nil
		case r.failed[test] && o.by == "":
			o.by = test
		}
	}
	switch {
	case r.hung:
		o.by = strings.TrimSpace(o.by + " (did not end)")
	case r.crashed && o.by == "":
		o.by = "crash"
	case o.by == "":
		return o, fmt.Errorf("%s: none of the tests ran:\n%s", key, o.output)
	}
	o.killed = true
	return o, nil
}

// runSuite runs the tests of a suite within a time limit.
func (l *laboratory) runSuite(ctx context.Context, s suite, limit time.Duration) (r result, took time.Duration, err error) {
	folder, err := l.code.home(s)
	if err != nil {
		return r, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, limit+graceTime)
	defer cancel()
	args := []string{"test", "-json", "-vet=off", "-count=1", "-timeout", limit.String(), "-run", s.testPattern(), "."}
	cmd := exec.CommandContext(ctx, "go", append(args, s.flags...)...)
	cmd.Dir = filepath.Join(l.dir, folder)
	cmd.Env = append(os.Environ(), s.env...)
	cmd.WaitDelay = 5 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	begin := time.Now()
	failure := cmd.Run()
	took = time.Since(begin)
	if ctx.Err() != nil {
		return r, took, fmt.Errorf("the tests of %s: %w", folder, ctx.Err())
	}
	r = readResult(&stdout)
	r.output = lastLines(r.output + stderr.String())
	if r.broken || failure != nil && len(r.passed)+len(r.failed) == 0 && !r.crashed {
		return r, took, fmt.Errorf("the tests of %s do not compile or run: %w\n%s", folder, failure, r.output)
	}
	return r, took, nil
}

// lastLines returns the last lines of a text: a crash prints thousands.
func lastLines(text string) string {
	const lines = 40
	all := strings.Split(strings.TrimSpace(text), "\n")
	if len(all) > lines {
		all = append([]string{"…"}, all[len(all)-lines:]...)
	}
	return strings.Join(all, "\n")
}

// result is parsed from the output of go test -json.
type result struct {
	passed  map[string]bool
	failed  map[string]bool
	broken  bool // did not compile
	hung    bool // exceeded its time
	crashed bool
	output  string
}

func readResult(r io.Reader) result {
	s := result{passed: make(map[string]bool), failed: make(map[string]bool)}
	var text strings.Builder
	for dec := json.NewDecoder(r); ; {
		var e struct{ Action, Test, Output string }
		if err := dec.Decode(&e); err != nil {
			break // the end, or a line without JSON, which is also on stderr
		}
		switch e.Action {
		case "build-fail":
			s.broken = true
		case "build-output", "output":
			text.WriteString(e.Output)
			s.hung = s.hung || strings.HasPrefix(e.Output, "panic: test timed out")
			s.crashed = s.crashed || strings.HasPrefix(e.Output, "panic:") || strings.HasPrefix(e.Output, "fatal error:")
		case "pass":
			s.passed[e.Test] = true
		case "fail":
			s.failed[e.Test] = true
		}
	}
	s.output = text.String()
	return s
}

// summaryOf returns a sentence with the number of killed mutants, and an error if some survived.
func summaryOf(rows []row, took time.Duration) (string, error) {
	var alive []string
	kills := 0
	for _, r := range rows {
		for _, o := range r.outcomes {
			if o.killed {
				kills++
			}
		}
		if r.survived() {
			alive = append(alive, r.name)
		}
	}
	text := fmt.Sprintf("%d mutants, %d killed by all of their tests, %d kills, in %v",
		len(rows), len(rows)-len(alive), kills, took.Round(time.Second))
	if len(alive) > 0 {
		return text, fmt.Errorf("%d alive: %s", len(alive), strings.Join(alive, ", "))
	}
	return text, nil
}

// tableOf lists each mutant with the tests that killed it, as Markdown.
func tableOf(rows []row) []byte {
	var b bytes.Buffer
	b.WriteString("| bug | rules | what it breaks | killed by | s |\n|---|---|---|---|--:|\n")
	for _, r := range rows {
		head := fmt.Sprintf("`%s` | %s | %s", r.name, strings.Join(r.tags, ", "), r.rule)
		for _, o := range r.outcomes {
			by := "**alive**"
			if o.killed {
				by = "`" + o.by + "`"
			}
			fmt.Fprintf(&b, "| %s | %s | %.0f |\n", head, by, o.took.Seconds())
			head = "| |"
		}
	}
	return b.Bytes()
}
