package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// graceTime is for compiling, in addition to the time of a suite.
const graceTime = 4 * time.Minute

// laboratory is the copy of the repository that mutants live in.
type laboratory struct {
	dir     string
	out     io.Writer
	verbose bool
}

// outcome is what became of one suite.
type outcome struct {
	killed bool
	by     string // the test that failed, or how else it ended
	took   time.Duration
	output string
}

// row is what became of one mutant.
type row struct {
	mutant
	outcomes []outcome // one for each killer
}

func (r row) survived() bool {
	return slices.ContainsFunc(r.outcomes, func(o outcome) bool { return !o.killed })
}

// healthy runs the suites without a bug: a test that fails anyhow kills nothing.
func (l *laboratory) healthy(ctx context.Context, mutants []mutant) error {
	begin := time.Now()
	suites := together(mutants)
	for _, k := range suites {
		o, err := l.test(ctx, k)
		if err != nil {
			return err
		}
		if o.killed {
			return fmt.Errorf("without any bug, %s fails in %s:\n%s", o.by, k.command(), o.output)
		}
	}
	fmt.Fprintf(l.out, "the tests of %d packages pass without a bug, in %v\n", len(suites), time.Since(begin).Round(time.Second))
	return nil
}

// together is the suites of all mutants, those of one package in one run where
// they differ only in their tests.
func together(mutants []mutant) []suite {
	var out []suite
	for _, m := range mutants {
		for _, k := range m.killers {
			i := slices.IndexFunc(out, func(o suite) bool { return o.joins(k) })
			if i < 0 {
				i = len(out)
				out = append(out, k)
			}
			if !slices.Contains(strings.Split(out[i].tests, "|"), k.tests) {
				out[i].tests += "|" + k.tests
			}
		}
	}
	return out
}

// all puts in one bug after the other.
func (l *laboratory) all(ctx context.Context, mutants []mutant) ([]row, error) {
	var rows []row
	for _, m := range mutants {
		r, err := l.one(ctx, m)
		if err != nil {
			return rows, fmt.Errorf("%s: %w", m.name, err)
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// one puts a bug in, runs the suites that are to notice it, and mends the file.
func (l *laboratory) one(ctx context.Context, m mutant) (r row, err error) {
	file, text, bad, err := m.find(l.dir)
	if err != nil {
		return r, err
	}
	if err := os.WriteFile(file, []byte(bad), 0o644); err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.WriteFile(file, []byte(text), 0o644)) }()
	r.mutant = m
	for _, k := range m.killers {
		o, err := l.test(ctx, k)
		if err != nil {
			return r, err
		}
		r.outcomes = append(r.outcomes, o)
		verdict := "killed"
		if !o.killed {
			verdict = "ALIVE"
		}
		fmt.Fprintf(l.out, "%-6s  %-34s %-12s %5.1f s  %s\n", verdict, m.name, k.tier, o.took.Seconds(), o.by)
		if l.verbose && !o.killed {
			fmt.Fprintln(l.out, o.output)
		}
	}
	return r, nil
}

// test runs a suite. The error says that nothing can be told from it.
func (l *laboratory) test(ctx context.Context, k suite) (outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, k.time+graceTime)
	defer cancel()
	args := append([]string{"test", "-json", "-vet=off", "-count=1", "-failfast", "-timeout", k.time.String()}, k.args()...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = filepath.Join(l.dir, k.module)
	cmd.Env = append(os.Environ(), k.env...)
	cmd.WaitDelay = 5 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	begin := time.Now()
	failure := cmd.Run()
	o := outcome{took: time.Since(begin)}
	if ctx.Err() != nil {
		return o, fmt.Errorf("%s: %w", k.command(), ctx.Err())
	}
	s := read(&stdout)
	o.by, o.output = s.failed, tail(s.output+stderr.String())
	switch {
	case s.broken:
		return o, fmt.Errorf("%s does not compile:\n%s", k.command(), o.output)
	case failure == nil && s.ran == 0:
		return o, fmt.Errorf("%s runs no test", k.command())
	case failure == nil:
		return o, nil
	case s.hung && !k.stalls:
		return o, fmt.Errorf("%s is not over after %v", k.command(), k.time)
	case s.hung:
		o.by = strings.TrimSpace(o.by + " (did not end)")
	case o.by == "" && s.crashed:
		o.by = "crash"
	case o.by == "":
		return o, fmt.Errorf("%s fails without a failed test: %w\n%s", k.command(), failure, o.output)
	}
	o.killed = true
	return o, nil
}

// tail is the last lines of a text: a crash prints thousands.
func tail(text string) string {
	const lines = 40
	all := strings.Split(strings.TrimSpace(text), "\n")
	if len(all) > lines {
		all = append([]string{"…"}, all[len(all)-lines:]...)
	}
	return strings.Join(all, "\n")
}

// result is what the output of go test -json tells.
type result struct {
	ran     int    // tests that have passed or failed
	failed  string // the innermost test that failed first
	broken  bool   // it did not compile
	hung    bool   // time was over
	crashed bool
	output  string
}

func read(r io.Reader) result {
	var s result
	var text strings.Builder
	for dec := json.NewDecoder(r); ; {
		var e struct{ Action, Test, Output string }
		if err := dec.Decode(&e); err != nil {
			break // the end, or a line of go that is no JSON, which is on stderr too
		}
		switch e.Action {
		case "build-fail":
			s.broken = true
		case "build-output", "output":
			text.WriteString(e.Output)
			s.hung = s.hung || strings.HasPrefix(e.Output, "panic: test timed out")
			s.crashed = s.crashed || strings.HasPrefix(e.Output, "panic:") || strings.HasPrefix(e.Output, "fatal error:")
		case "pass", "fail":
			if e.Test == "" {
				continue
			}
			s.ran++
			if e.Action == "fail" && s.failed == "" {
				s.failed = e.Test
			}
		}
	}
	s.output = text.String()
	return s
}

// summary says how many were killed; survivors are an error.
func summary(rows []row, took time.Duration) (string, error) {
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
	text := fmt.Sprintf("%d mutants, %d killed by every tier that is meant to notice them, %d kills, in %v",
		len(rows), len(rows)-len(alive), kills, took.Round(time.Second))
	if len(alive) > 0 {
		return text, fmt.Errorf("%d alive: %s", len(alive), strings.Join(alive, ", "))
	}
	return text, nil
}

// about is what stands before the table.
const about = `# Mutants

` + "`make mutants`" + ` puts known bugs into a copy of the code, one at a time. Every tier that is there to notice a bug must fail with it, by the
test that the table names; a failure of another test does not count. (did not end) means that the bug stalls the test until its time is over.
` + "`make mutants`" + ` writes this page; ` + "`cd verify && go run ./mutants -only NAME`" + ` runs one.

`

// markdown is the table of who killed whom.
func markdown(rows []row, took time.Duration) []byte {
	var b bytes.Buffer
	text, _ := summary(rows, took)
	b.WriteString(about + text + ".\n\n")
	b.WriteString("| bug | rule that it breaks | tier | killed by | s |\n|---|---|---|---|--:|\n")
	for _, r := range rows {
		name, rule := "`"+r.name+"`", r.rule
		for i, o := range r.outcomes {
			by := "**alive**"
			if o.killed {
				by = "`" + o.by + "`"
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %.0f |\n", name, rule, r.killers[i].tier, by, o.took.Seconds())
			name, rule = "", ""
		}
	}
	return b.Bytes()
}
