// Mutants puts known bugs into a copy of this repository, one at a time, and runs
// the tests that are there to catch them. A bug that no test notices is a hole in
// the tests, and fails the run.
//
//	go run ./mutants                       all of them
//	go run ./mutants -only commit,queue    those whose name contains one of these
//	go run ./mutants -tier model,sim       what these tiers are meant to kill
//	go run ./mutants -list                 which there are
//
// # What counts as killed
//
// Each bug names the rule of the protocol that it breaks and the tiers that are
// meant to notice. Every one of these must: a bug that only an unlucky test
// elsewhere trips over counts as alive. A tier kills with a test that fails, by name;
// a mutant that does not compile, and tests that fail without the bug as well, are
// errors of the run and not kills. Where a bug can stall somebody, a test that hangs
// until its time is over counts, and is shown as such.
//
// Each bug is a file in patches: lines that it takes away and puts in. They must occur
// exactly once, so that a change of the code which moves it from under a mutant fails
// the run, and the test of this package before that.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// settings are what the command line says.
type settings struct {
	only, tiers []string
	list        bool
	verbose     bool
	table       string // path; empty: not written
}

func parse(args []string, errs io.Writer) (settings, error) {
	var s settings
	var only, tiers string
	f := flag.NewFlagSet("mutants", flag.ContinueOnError)
	f.SetOutput(errs)
	f.StringVar(&only, "only", "", "comma-separated parts of names; default all mutants")
	f.StringVar(&tiers, "tier", "", "comma-separated; default all: "+strings.Join(tierNames(), " "))
	f.BoolVar(&s.list, "list", false, "print the mutants and run nothing")
	f.BoolVar(&s.verbose, "v", false, "print what the tests of a survivor say")
	f.StringVar(&s.table, "table", "", "write the outcome to this file, as Markdown")
	if err := f.Parse(args); err != nil {
		return s, err
	}
	if f.NArg() > 0 {
		return s, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	s.only, s.tiers = words(only), words(tiers)
	for _, t := range s.tiers {
		if !slices.Contains(tierNames(), t) {
			return s, fmt.Errorf("no tier is called %q; there are %s", t, strings.Join(tierNames(), ", "))
		}
	}
	return s, nil
}

func words(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

// chosen are the mutants that s asks for, with the suites that it asks for.
func (s settings) chosen(all []mutant) []mutant {
	var out []mutant
	for _, m := range all {
		if len(s.only) > 0 && !slices.ContainsFunc(s.only, func(part string) bool { return strings.Contains(m.name, part) }) {
			continue
		}
		if len(s.tiers) > 0 {
			m.killers = slices.DeleteFunc(slices.Clone(m.killers), func(k suite) bool { return !slices.Contains(s.tiers, k.tier) })
		}
		if len(m.killers) > 0 {
			out = append(out, m)
		}
	}
	return out
}

func run(ctx context.Context, args []string, out, errs io.Writer) error {
	s, err := parse(args, errs)
	if err != nil {
		return err
	}
	mutants, err := all()
	if err != nil {
		return err
	}
	mutants = s.chosen(mutants)
	if len(mutants) == 0 {
		return errors.New("no mutant is chosen")
	}
	if s.list {
		for _, m := range mutants {
			fmt.Fprintf(out, "%-34s %-28s %s\n", m.name, strings.Join(m.tiers(), " "), m.rule)
		}
		return nil
	}
	root, err := repository(ctx)
	if err != nil {
		return err
	}
	if err := applicable(root, mutants); err != nil {
		return err // before an hour is spent on the others
	}
	dir, err := os.MkdirTemp("", "holdfast-mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := copyTree(root, dir); err != nil {
		return err
	}
	l := &laboratory{dir: dir, out: out, verbose: s.verbose}
	begin := time.Now()
	if err := l.healthy(ctx, mutants); err != nil {
		return err
	}
	rows, err := l.all(ctx, mutants)
	if err != nil {
		return err
	}
	took := time.Since(begin)
	if s.table != "" {
		if err := os.WriteFile(s.table, markdown(rows, took), 0o644); err != nil {
			return err
		}
	}
	text, err := summary(rows, took)
	fmt.Fprintln(out, text)
	return err
}

// repository is the folder of the workspace.
func repository(ctx context.Context) (string, error) {
	path, err := exec.CommandContext(ctx, "go", "env", "GOWORK").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOWORK: %w", err)
	}
	if file := strings.TrimSpace(string(path)); file != "" && file != "off" {
		return filepath.Dir(file), nil
	}
	return "", errors.New("not inside the workspace: no go.work is found")
}

// applicable says which of the mutants no longer fit the code.
func applicable(root string, mutants []mutant) error {
	var errs []error
	for _, m := range mutants {
		if _, _, _, err := m.find(root); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", m.name, err))
		}
	}
	return errors.Join(errs...)
}

// copyTree copies all files but those of version control.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		switch {
		case err != nil:
			return err
		case d.Name() == ".git":
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, rel), 0o755)
		case !d.Type().IsRegular():
			return nil
		}
		return copyFile(path, filepath.Join(to, rel))
	})
}

func copyFile(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, info.Mode().Perm())
}
