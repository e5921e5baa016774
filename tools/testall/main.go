// Testall runs the tests of every module in the workspace and closes with one line: how many passed, how many failed.
//
//	go run ./tools/testall [flags of go test]
//
// Every module is tested even when an earlier one fails. Tests and subtests count alike. A package that fails without a
// failed test (it does not build, or exits early) counts as one failure, and so does a module for which go test reports
// nothing. The output of what passes is left out.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	passed, failed, err := testModules(os.Args[1:], os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testall:", err)
		failed++
	}
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	if failed > 0 {
		os.Exit(1)
	}
}

func testModules(flags []string, out io.Writer) (passed, failed int, err error) {
	cmd := exec.Command("go", "list", "-m", "-f", "{{.Dir}}")
	cmd.Stderr = os.Stderr
	list, err := cmd.Output()
	if err != nil {
		return 0, 0, fmt.Errorf("list the modules of the workspace: %w", err)
	}
	for dir := range strings.Lines(string(list)) {
		dir = strings.TrimSuffix(dir, "\n")
		r := newReport(out)
		err := testModule(dir, flags, r)
		if err != nil && r.failed == 0 {
			fmt.Fprintf(out, "FAIL\t%s: %v\n", filepath.Base(dir), err)
			r.failed++
		}
		passed, failed = passed+r.passed, failed+r.failed
	}
	return passed, failed, nil
}

// testModule runs go test in dir and feeds r. Its error is that of the go command, or of reading what it says.
func testModule(dir string, flags []string, r *report) error {
	args := append([]string{"test", "-json"}, flags...)
	cmd := exec.Command("go", append(args, "./...")...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	return errors.Join(r.read(stdout), cmd.Wait())
}

// event is a line of go test -json; go doc cmd/test2json says what the fields mean.
type event struct {
	Action      string
	Package     string
	Test        string
	Elapsed     float64
	Output      string
	ImportPath  string // of build-output
	FailedBuild string // of the fail that ends a package
}

// report counts one module's results and holds back output until it is known to belong to a failure.
type report struct {
	out            io.Writer
	passed, failed int
	output         map[string]*strings.Builder // by package, or package and test
	failedTests    map[string]int              // by package
}

func newReport(out io.Writer) *report {
	return &report{out: out, output: map[string]*strings.Builder{}, failedTests: map[string]int{}}
}

func (r *report) read(events io.Reader) error {
	lines := bufio.NewReader(events)
	for {
		line, err := lines.ReadBytes('\n')
		var e event
		switch {
		case len(line) == 0:
		case json.Unmarshal(line, &e) == nil:
			r.add(e)
		default:
			r.out.Write(line)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *report) add(e event) {
	name := e.Package + " " + e.Test
	switch e.Action {
	case "output":
		r.keep(name, e.Output)
	case "build-output":
		r.keep(e.ImportPath, e.Output)
	case "pass", "skip":
		delete(r.output, name)
		switch {
		case e.Test == "" && e.Action == "pass":
			fmt.Fprintf(r.out, "ok  \t%s\t%.1fs\n", e.Package, e.Elapsed)
		case e.Test != "" && e.Action == "pass":
			r.passed++
		case e.Test != "":
			fmt.Fprintf(r.out, "skip\t%s\n", name)
		}
	case "fail":
		r.fail(e, name)
	}
}

func (r *report) fail(e event, name string) {
	if e.Test == "" {
		r.show(e.FailedBuild)
	}
	r.show(name)
	if e.Test != "" {
		r.failed++
		r.failedTests[e.Package]++
		return
	}
	if r.failedTests[e.Package] == 0 {
		r.failed++
	}
	fmt.Fprintf(r.out, "FAIL\t%s\t%.1fs\n", e.Package, e.Elapsed)
}

func (r *report) keep(name, text string) {
	if r.output[name] == nil {
		r.output[name] = new(strings.Builder)
	}
	r.output[name].WriteString(text)
}

func (r *report) show(name string) {
	if text := r.output[name]; text != nil {
		io.WriteString(r.out, text.String())
		delete(r.output, name)
	}
}
