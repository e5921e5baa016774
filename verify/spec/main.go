// Spec runs TLC on the specification in docs/spec, which states the protocol a second time, in TLA+.
//
//	go run ./spec                           every configuration
//	go run ./spec -short                    only rows that take seconds
//	go run ./spec -only adopt               only rows whose name matches this
//	go run ./spec -out FOLDER               keeps TLC's input and output: configurations and traces
//	go run ./spec -out FOLDER -again        prints the tables from results kept there, and runs only the other rows
//	go run ./spec -traces -only 'shortens'  also prints the shortest trace to each violation, one line per step
//	go run ./spec -coverage                 also checks that each action of the specification is taken
//	go run ./spec -md ../docs/spec/README.md   writes the tables into the page
//	go run ./spec -runs 500                 makes TLC follow the recorded runs of seeds 1 to 500 instead
//
// The configurations are the rows in rows.go. TLC must explore a row with all rules to its end without an error. A row
// with a rule switched off must violate the promise that the rule is for. Each action of the specification must be taken
// in one of the rows with all rules, which -coverage checks. Any other result fails the run.
//
// TLC is the model checker of TLA+. It runs on Java; tools/foreign fetches it.
package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/verify/interop/foreign"
	"github.com/holdfast-go/holdfast/verify/tool"
)

func main() {
	tool.Run("spec", func(ctx context.Context) error { return run(ctx, os.Args[1:], os.Stdout, os.Stderr) })
}

// settings are the flags of the command line.
type settings struct {
	short    bool
	only     *regexp.Regexp
	source   string // folder of the modules
	out      string // folder for configurations and traces; empty: not kept
	again    bool   // reuse results in out
	traces   bool
	coverage bool
	page     string // path of the page with the tables; empty: print them
	atOnce   int
	runs     uint64 // number of simulation runs to follow instead of checking rows; 0: none
}

func parseFlags(args []string, errs io.Writer) (settings, error) {
	var s settings
	f := flag.NewFlagSet("spec", flag.ContinueOnError)
	f.SetOutput(errs)
	f.BoolVar(&s.short, "short", false, "leave out the rows that take more than some seconds")
	only := f.String("only", "", "run the rows alone whose name matches this regular `expression`")
	f.StringVar(&s.source, "source", "../docs/spec", "the `folder` of the specification")
	f.StringVar(&s.out, "out", "", "keep what TLC reads and says in this `folder`")
	f.BoolVar(&s.again, "again", false, "do not run rows whose result is in the folder of -out already, of the same specification and configuration")
	f.BoolVar(&s.traces, "traces", false, "print the trace of each violation as well")
	f.BoolVar(&s.coverage, "coverage", false, "have TLC count how often each action is taken, three times as slowly; one that is never taken fails the run")
	f.StringVar(&s.page, "md", "", "the `file` of the page, between whose marks the tables go; empty: print them")
	f.IntVar(&s.atOnce, "p", 2, "how many rows run at once, each on one processor")
	f.Uint64Var(&s.runs, "runs", 0, "explore no row, but follow the runs of so many `seeds` of the simulation")
	if err := f.Parse(args); err != nil {
		return s, err
	}
	var err error
	if s.only, err = regexp.Compile(*only); err != nil {
		return s, err
	}
	if s.page != "" && (s.short || *only != "") {
		return s, errors.New("the page has all rows: leave out -short and -only, or -md")
	}
	return s, nil
}

func run(ctx context.Context, args []string, out, errs io.Writer) error {
	s, err := parseFlags(args, errs)
	if err != nil {
		return err
	}
	chosen := slices.DeleteFunc(specRows(), func(r row) bool { return s.short && r.long || !s.only.MatchString(r.name) })
	if len(chosen) == 0 {
		return fmt.Errorf("no row is named like %q", s.only)
	}
	checker, err := findTLC()
	if err != nil {
		return err
	}
	folder := s.out
	if folder == "" {
		if folder, err = os.MkdirTemp("", "holdfast-spec-"); err != nil {
			return err
		}
		defer os.RemoveAll(folder)
	}
	if s.runs > 0 {
		return s.followRuns(ctx, checker, folder, out)
	}
	results := make([]result, len(chosen))
	var running sync.WaitGroup
	free := make(chan struct{}, max(s.atOnce, 1))
	for i, r := range chosen {
		free <- struct{}{}
		running.Go(func() {
			defer func() { <-free }()
			results[i] = checkRow(ctx, checker, s, filepath.Join(folder, r.folder()), r)
			fmt.Fprintf(errs, "%-70s %8s  %s\n", r.name, results[i].took.Round(100*time.Millisecond), results[i].summary())
		})
	}
	running.Wait()
	err = checkResults(chosen, results)
	if s.page == "" || err == nil { // only a complete run replaces the page's tables
		err = errors.Join(err, writePage(s.page, renderTables(chosen, results), out))
	}
	if s.traces {
		fmt.Fprint(out, renderTraces(chosen, results))
	}
	if never := unusedActions(results); err == nil && s.only.String() == "" && s.coverage && len(never) > 0 {
		err = fmt.Errorf("no row with all rules takes the actions %s", strings.Join(never, ", "))
	}
	return err
}

// unusedActions returns the actions that no row has taken.
func unusedActions(results []result) []string {
	taken := make(map[string]bool)
	for _, got := range results {
		for action, here := range got.actions {
			taken[action] = taken[action] || here
		}
	}
	delete(taken, withoutItsRule)
	maps.DeleteFunc(taken, func(_ string, ever bool) bool { return ever })
	return slices.Sorted(maps.Keys(taken))
}

// checkResults returns an error for the rows with an unexpected result.
func checkResults(chosen []row, results []result) error {
	var wrong []error
	for i, r := range chosen {
		switch got := results[i]; {
		case got.err != nil:
			wrong = append(wrong, fmt.Errorf("%s: %w", r.name, got.err))
		case got.broken != r.breaks:
			wrong = append(wrong, fmt.Errorf("%s: %s, but expected: %s", r.name, got.summary(), result{broken: r.breaks}.summary()))
		}
	}
	return errors.Join(wrong...)
}

// findTLC returns the path of the jar with TLC.
func findTLC() (string, error) {
	if _, err := exec.LookPath("java"); err != nil {
		return "", fmt.Errorf("%w: java, on which TLC runs. On Debian it is in default-jre-headless, and make deps installs it", foreign.ErrMissing)
	}
	dir, err := foreign.Libraries("tla")
	if err != nil {
		return "", fmt.Errorf("fetching TLC: %w", err)
	}
	jars, err := filepath.Glob(filepath.Join(dir, "*.jar"))
	if err != nil || len(jars) == 0 {
		return "", cmp.Or(err, fmt.Errorf("no jar in %s", dir))
	}
	return jars[0], nil
}

// checkRow makes TLC check one row, in its own folder.
func checkRow(ctx context.Context, checker string, s settings, folder string, r row) result {
	module, err := os.ReadFile(filepath.Join(s.source, r.module+".tla"))
	if err != nil {
		return result{err: err}
	}
	if s.again && hasText(filepath.Join(folder, r.module+".tla"), module) && hasText(filepath.Join(folder, "row.cfg"), []byte(r.config())) {
		if text, err := os.ReadFile(reportPath(folder)); err == nil && parseReport(string(text)).err == nil {
			return parseReport(string(text))
		}
	}
	err = errors.Join(
		os.MkdirAll(folder, 0o755),
		os.WriteFile(filepath.Join(folder, r.module+".tla"), module, 0o644),
		os.WriteFile(filepath.Join(folder, "row.cfg"), []byte(r.config()), 0o644),
	)
	if err != nil {
		return result{err: err}
	}
	if err := s.runTLC(ctx, checker, folder, r); err != nil {
		return result{err: err}
	}
	text, err := os.ReadFile(reportPath(folder))
	if err != nil {
		return result{err: err}
	}
	got := parseReport(string(text))
	if got.err != nil {
		got.err = fmt.Errorf("%w:\n%s", got.err, lastLines(text))
	}
	return got
}

// reportPath returns the path of TLC's output for a row's folder.
func reportPath(folder string) string { return filepath.Join(folder, "tlc.txt") }

// hasText reports whether the file has that text.
func hasText(path string, text []byte) bool {
	old, err := os.ReadFile(path)
	return err == nil && bytes.Equal(old, text)
}

// runTLC runs TLC. The report gets its output as it arrives, for people who wait, and then the time.
func (s settings) runTLC(ctx context.Context, checker, folder string, r row) error {
	effort := "-XX:TieredStopAtLevel=1" // short rows would spend their time in Java's second compiler
	if r.long {
		effort = "-XX:TieredStopAtLevel=4"
	}
	said, err := os.Create(reportPath(folder))
	if err != nil {
		return err
	}
	defer said.Close()
	args := []string{
		"-XX:+UseSerialGC", effort, "-Xmx3g", "-cp", checker, "tlc2.TLC", "-workers", "1", "-difftrace", "-checkpoint", "0", "-metadir", "states",
		"-config", "row.cfg",
	}
	if s.coverage && r.breaks == "" {
		args = append(args, "-coverage", "600") // at the end, and every 600 minutes
	}
	cmd := exec.CommandContext(ctx, "java", append(args, r.module+".tla")...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = folder, said, said
	ended := cmd.Run()
	if err := errors.Join(ctx.Err(), os.RemoveAll(filepath.Join(folder, "states"))); err != nil {
		return err
	}
	if cmd.ProcessState == nil {
		return ended // not started
	}
	_, err = fmt.Fprintf(said, "\n%s%v\n", tookMark, (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Round(time.Millisecond))
	return errors.Join(err, said.Close())
}

// lastLines returns the last lines of TLC's output.
func lastLines(text []byte) []byte {
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-20):], []byte("\n"))
}
