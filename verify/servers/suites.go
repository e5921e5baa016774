//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// command is the holdfast command, built once for all rows.
var command string

// buildPrograms builds the command and the chaos program in the folder.
func buildPrograms(ctx context.Context, dir string) error {
	command = filepath.Join(dir, "holdfast")
	for _, args := range [][]string{{"-o", command, "../cmd/holdfast"}, {"-o", filepath.Join(dir, "chaos"), "./chaos"}} {
		if out, err := exec.CommandContext(ctx, "go", append([]string{"build"}, args...)...).CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w: %s", args[2], err, out)
		}
	}
	return nil
}

// runCommand runs the command without the variables of this program and of the rig, about which it would warn.
func runCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, command, args...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "HOLDFAST_") })
	return cmd
}

// Variables for the tests of a row: the URL, and whether no push reaches the clients.
const (
	urlVariable  = "HOLDFAST_ROW_URL"
	deafVariable = "HOLDFAST_ROW_DEAF"
)

// suiteAtURL runs the suite at the URL of the row. The suites of the drivers start their own servers.
var suiteAtURL = testsIn("^TestConformanceAtURL$", "./servers")

// runTests runs go test, and records the number of passed tests, or the failed ones.
func (r *row) runTests(ctx context.Context, s settings, column string, which tests, url string, res *result) {
	if len(which.packages) == 0 {
		return
	}
	args := []string{"test", "-p=1", "-count=1", "-v", "-timeout=30m", "-run", which.pattern}
	cmd := exec.CommandContext(ctx, "go", append(args, which.packages...)...)
	cmd.Env = append(os.Environ(), "HOLDFAST_NIGHTLY=all", urlVariable+"="+url)
	if r.deaf {
		cmd.Env = append(cmd.Env, deafVariable+"=1")
	}
	out, err := cmd.CombinedOutput()
	r.keepOutput(s, column, out)
	passed, failed := countVerdicts(out, "PASS"), failedTests(out)
	switch {
	case err != nil:
		res.noteFailure(column, fmt.Errorf("%d passed; failed: %s (%w)", passed, strings.Join(failed, ", "), err))
	case passed == 0:
		res.noteFailure(column, errors.New("no test ran"))
	default:
		res.cells[column] = fmt.Sprintf("%d passed", passed)
	}
}

var verdict = regexp.MustCompile(`(?m)^ *--- (PASS|FAIL): (\S+)`)

// eachLeafTest calls each with every test without subtests, and its verdict.
func eachLeafTest(out []byte, each func(verdict, name string)) {
	all := verdict.FindAllSubmatch(out, -1)
	for _, m := range all {
		parent := false
		for _, other := range all {
			parent = parent || bytes.HasPrefix(other[2], append(bytes.Clone(m[2]), '/'))
		}
		if !parent {
			each(string(m[1]), string(m[2]))
		}
	}
}

func countVerdicts(out []byte, want string) (n int) {
	eachLeafTest(out, func(verdict, _ string) {
		if verdict == want {
			n++
		}
	})
	return n
}

func failedTests(out []byte) (names []string) {
	eachLeafTest(out, func(verdict, name string) {
		if verdict == "FAIL" {
			names = append(names, name)
		}
	})
	return names
}

// safeLine is the last line of the chaos program if only times were bad.
const safeLine = "No promise of safety was broken."

// runChaos runs the chaos program on its own servers.
func (r *row) runChaos(ctx context.Context, s settings, res *result) {
	if r.chaos == "" {
		return
	}
	dir := filepath.Join(s.out, r.fileFor("chaos"))
	cmd := exec.CommandContext(ctx, filepath.Join(filepath.Dir(command), "chaos"), "-backend", r.chaos, "-minutes", fmt.Sprint(s.chaos.Minutes()), "-out", dir)
	out, err := cmd.CombinedOutput()
	r.keepOutput(s, "chaos", out)
	text := "passed"
	if line, _, _ := strings.Cut(string(out), " by "); strings.Contains(line, "acquisitions") {
		text = line[strings.LastIndex(line, "\n")+1:]
		_, seed, _ := strings.Cut(text, "seed ")
		seed, locks, _ := strings.Cut(seed, ": ")
		text = locks + ", seed " + seed
	}
	if err != nil && strings.Contains(string(out), safeLine) {
		text += "; no promise of safety was broken, and some recovery was slow" // as on a busy machine
		err = nil
	}
	if err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		res.noteFailure("chaos", fmt.Errorf("%s: %s (%w)", text, lines[len(lines)-1], err))
		return
	}
	res.cells["chaos"] = text
}

// fileFor returns the name of the file for a step's output.
func (r *row) fileFor(step string) string {
	return strings.Map(func(c rune) rune {
		if c == ' ' || c == ',' {
			return '-'
		}
		return c
	}, r.name) + "." + step
}

func (r *row) keepOutput(s settings, step string, out []byte) {
	os.WriteFile(filepath.Join(s.out, r.fileFor(step)+".log"), out, 0o644) // ignore an error: the table has the result
}
