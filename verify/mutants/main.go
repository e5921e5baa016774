// Mutants puts known bugs into a copy of this repository, one at a time, and runs the tests that should catch them. A
// bug that no test catches is a gap in the tests, and fails the run.
//
//	go run ./mutants                       runs all bugs
//	go run ./mutants -only commit,etcd     runs the bugs whose name or list contains one of these words
//	go run ./mutants -list                 prints their names
//	go run ./mutants -check                checks that each is found and compiles, and that its tests exist
//	go run ./mutants -table FILE           writes each bug with the tests that killed it, as Markdown
//
// The bugs are in the text files of this folder; type mutant describes their format. Each names the rule that it breaks
// and the tests that should catch it. Each of these tests must fail: a bug that only another test catches by chance is
// not killed. If a test also fails without the bug, that is an error of the run and no kill. A test that exceeds its
// time counts as failed, and the output says so.
//
// A bug is found by the name of its function and a few words of its code, with placeholders for local names, so most
// renames and moves need no change here. If one does, make lint names all bugs that are not found, each with the nearest
// places, and all that do not compile.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/verify/tool"
)

func main() {
	tool.Run("mutants", func(ctx context.Context) error { return runCommand(ctx, os.Args[1:], os.Stdout, os.Stderr) })
}

// settings are the flags of the command line.
type settings struct {
	only    []string
	list    bool
	check   bool
	verbose bool
	table   string // path; empty: not written
}

func parseSettings(args []string, errs io.Writer) (settings, error) {
	var s settings
	var only string
	f := flag.NewFlagSet("mutants", flag.ContinueOnError)
	f.SetOutput(errs)
	f.StringVar(&only, "only", "", "comma-separated parts of names of mutants or lists; default all")
	f.BoolVar(&s.list, "list", false, "print the mutants and run nothing")
	f.BoolVar(&s.check, "check", false, "check that each mutant is found in the code and compiles, and run nothing")
	f.BoolVar(&s.verbose, "v", false, "print what the tests of a survivor say")
	f.StringVar(&s.table, "table", "", "write the outcome to this file, as Markdown")
	if err := f.Parse(args); err != nil {
		return s, err
	}
	if f.NArg() > 0 {
		return s, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	s.only = strings.FieldsFunc(only, func(r rune) bool { return r == ',' || r == ' ' })
	return s, nil
}

// chosenMutants returns the mutants that s selects.
func (s settings) chosenMutants(all []mutant) []mutant {
	return slices.DeleteFunc(all, func(m mutant) bool {
		return len(s.only) > 0 && !slices.ContainsFunc(s.only, func(part string) bool { return strings.Contains(m.file+" "+m.name, part) })
	})
}

func runCommand(ctx context.Context, args []string, out, errs io.Writer) error {
	s, err := parseSettings(args, errs)
	if err != nil {
		return err
	}
	mutants, err := allMutants()
	if err != nil {
		return err
	}
	mutants = s.chosenMutants(mutants)
	if len(mutants) == 0 {
		return errors.New("no mutant is chosen")
	}
	if s.list {
		for _, m := range mutants {
			fmt.Fprintf(out, "%-12s %-46s %-24s %s\n", strings.TrimSuffix(m.file, ".txt"), m.name, strings.Join(m.tags, ", "), m.rule)
		}
		return nil
	}
	root, err := repositoryRoot(ctx)
	if err != nil {
		return err
	}
	source, err := readCode(root)
	if err != nil {
		return err
	}
	if err := checkFits(ctx, source, mutants); err != nil || s.check {
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
	l := &laboratory{dir: dir, code: source, out: out, verbose: s.verbose}
	begin := time.Now()
	if err := l.checkHealthy(ctx, mutants); err != nil {
		return err
	}
	rows, err := l.tryAll(ctx, mutants)
	if err != nil {
		return err
	}
	took := time.Since(begin)
	if s.table != "" {
		if err := os.WriteFile(s.table, tableOf(rows), 0o644); err != nil {
			return err
		}
	}
	text, err := summaryOf(rows, took)
	fmt.Fprintln(out, text)
	return err
}

// repositoryRoot returns the folder of the workspace.
func repositoryRoot(ctx context.Context) (string, error) {
	path, err := exec.CommandContext(ctx, "go", "env", "GOWORK").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOWORK: %w", err)
	}
	if file := strings.TrimSpace(string(path)); file != "" && file != "off" {
		return filepath.Dir(file), nil
	}
	return "", errors.New("not inside the workspace: no go.work is found")
}

// checkFits names all mutants that do not match the code, and all tests that do not exist. If there are none,
// it names the mutants that do not compile.
func checkFits(ctx context.Context, source *code, mutants []mutant) error {
	var errs []error
	changed := make([]map[string]string, len(mutants))
	for i, m := range mutants {
		var err error
		if _, changed[i], err = source.files(m); err != nil {
			errs = append(errs, err)
		}
		for _, s := range m.fails {
			if _, err := source.home(s); err != nil {
				errs = append(errs, fmt.Errorf("%s:%d: %s: %w", m.file, s.line, m.name, err))
			}
		}
	}
	if errs != nil {
		return errors.Join(errs...)
	}
	return checkCompiled(ctx, source.root, mutants, changed)
}

// copyTree copies all files except the folder of version control.
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
