// Command rerun runs go test by gotestsum, and repeats a test that failed while the machine stood still:
//
//	go run ./tools/rerun [flags of go test] packages
//
// A test is repeated once, alone and at four times the pace, and only if the rig of its own package noted a
// stall while it ran (internal/rig/tempo). A race, a panic, two holders, tokens or waiters out of order, and
// lost updates do not depend on time: such a test is never repeated. If more than three tests would be
// repeated, none is: the machine is too slow to tell. The flags are of the form -name=value. The last line
// counts the tests, and the repeats.
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// maxRepeats bounds the tests of one run that are repeated.
const maxRepeats = 3

func main() {
	code, err := runTests(os.Args[1:], os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "rerun:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// runTests runs all tests, repeats some, and returns the exit code.
func runTests(args []string, out, errs io.Writer) (code int, err error) {
	record, err := os.CreateTemp("", "rerun")
	if err != nil {
		return 1, err
	}
	defer os.Remove(record.Name())
	defer record.Close()
	lines := &lineFilter{out: out}
	all := exec.Command("go", slices.Concat(
		[]string{"tool", "gotestsum", "--format", "pkgname", "--format-hide-empty-pkg", "--hide-summary=skipped", "--jsonfile", record.Name(), "--"}, args)...)
	all.Stdin, all.Stdout, all.Stderr = os.Stdin, lines, errs
	err = all.Run()
	done := lines.close()
	defer func() { fmt.Fprint(out, done) }()
	if err == nil {
		return 0, nil
	}
	if code = all.ProcessState.ExitCode(); code < 0 || done == "" { // it was killed or ran no test
		return max(code, 1), err
	}
	tests, err := readEvents(record)
	if err != nil {
		return code, err
	}
	var slow []*test
	for _, t := range tests {
		if why := t.repeatVerdict(); why == nil {
			slow = append(slow, t)
		} else {
			fmt.Fprintf(out, "rerun: %s %s is not repeated: %v\n", t.pkg, t.name, why)
		}
	}
	if len(slow) > maxRepeats {
		fmt.Fprintf(out, "rerun: the machine stood still under %d tests that failed; %d at most are repeated\n", len(slow), maxRepeats)
		slow = nil
	}
	passed := 0
	for _, t := range slow {
		if repeatTest(t, testFlags(args), out) {
			passed += t.failures
		}
	}
	var left int
	if done, left = recountFailures(done, passed, len(slow)); left == 0 && passed > 0 {
		return 0, nil
	}
	return code, nil
}

// testFlags returns the flags in the arguments of go test; they come before the packages.
func testFlags(args []string) []string {
	if i := slices.IndexFunc(args, func(a string) bool { return !strings.HasPrefix(a, "-") }); i >= 0 {
		return args[:i]
	}
	return args
}

// repeatTest runs one test again, and reports whether it passed.
func repeatTest(t *test, flags []string, out io.Writer) bool {
	fmt.Fprintf(out, "SLOW: %s %s failed while the machine stood still %s; it is repeated at pace %g\n", t.pkg, t.name, t.describeStalls(), t.slowFactor())
	var output bytes.Buffer
	again := exec.Command("go", slices.Concat([]string{"test", "-v", "-count=1"}, flags, []string{"-run=^" + regexp.QuoteMeta(t.name) + "$", t.pkg})...)
	again.Env = append(os.Environ(), "TEST_PACE="+strconv.FormatFloat(t.slowFactor(), 'g', -1, 64))
	again.Stdout, again.Stderr = &output, &output
	if again.Run() == nil && strings.Contains(output.String(), "--- PASS: "+t.name+" ") {
		return true
	}
	out.Write(output.Bytes())
	return false
}

// lineFilter copies lines to out, except the line in which gotestsum counts the tests. The output must have
// only one such line, the last, because readers add all of them up.
type lineFilter struct {
	out  io.Writer
	part []byte // beginning of an incomplete line
	done string
}

func (l *lineFilter) Write(p []byte) (int, error) {
	l.part = append(l.part, p...)
	for {
		i := bytes.IndexByte(l.part, '\n')
		if i < 0 {
			return len(p), nil
		}
		if err := l.passLine(l.part[:i+1]); err != nil {
			return 0, err
		}
		l.part = l.part[i+1:]
	}
}

func (l *lineFilter) passLine(line []byte) error {
	if bytes.HasPrefix(line, []byte("DONE ")) {
		l.done = string(line)
		return nil
	}
	_, err := l.out.Write(line)
	return err
}

// close writes the remaining text, and returns the line that counts the tests; "": there was none.
func (l *lineFilter) close() string {
	l.passLine(l.part)
	return l.done
}

// countedFailures is a number of failures or errors in the line of gotestsum.
var countedFailures = regexp.MustCompile(`, (\d+) (failure|error)s?`)

// recountFailures subtracts failures of tests that passed on repetition, and returns the number of remaining
// failures and errors.
func recountFailures(done string, passed, repeats int) (line string, left int) {
	line = countedFailures.ReplaceAllStringFunc(done, func(part string) string {
		m := countedFailures.FindStringSubmatch(part)
		n, _ := strconv.Atoi(m[1])
		if m[2] == "failure" {
			n -= passed
		}
		left += n
		switch n {
		case 0:
			return ""
		case 1:
			return ", 1 " + m[2]
		}
		return fmt.Sprintf(", %d %ss", n, m[2])
	})
	return fmt.Sprintf("%s, %d repeated for SLOW\n", strings.TrimSuffix(line, "\n"), repeats), left
}
