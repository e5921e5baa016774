package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// event is a line of go test -json.
type event struct {
	Time                          time.Time
	Action, Package, Test, Output string
}

// span is an interval from begin to end.
type span struct{ begin, end time.Time }

// stall is an interval in which the machine was stalled, and the pace of the tests at that time.
type stall struct {
	span
	pace float64
}

// test is a test that failed, with its subtests.
type test struct {
	pkg, name string
	failures  int    // of the test and its subtests
	leaves    []span // of each failed subtest without failed subtests; of the test itself if no subtest failed
	output    string
	of        *record
}

// record holds the output and the results of one package.
type record struct {
	stalls []stall
	output strings.Builder
	tests  map[string]*line
}

// line holds the output and the result of one test or subtest.
type line struct {
	span
	failed bool
	output strings.Builder
}

// stallLine matches the line that reports a stall: see internal/rig/tempo.
var stallLine = regexp.MustCompile(`SLOW: stood still ([0-9.]+) s until [0-9:.]+, at pace ([0-9.]+)`)

// packageFailures and testFailures match failures that a slow machine does not explain: their tests are never
// repeated. A failure in a package's output affects all of its tests; a failure in a test's output breaks a
// promise.
var (
	packageFailures = regexp.MustCompile(`WARNING: DATA RACE|race detected during execution|(?m)^panic: |^fatal error: `)
	testFailures    = regexp.MustCompile(`(?i)` + strings.Join([]string{
		`\btwo (holders|leaders|hold|trust|workers)\b`, `\b[0-9]+ (holders|hold it|were inside)\b`, `\bat once: tokens\b`, `\bhas two holders\b`,
		`\bheld (one of them )?at once\b`, `\boverlap`, // two holders
		`\btokens? \d+( of \S+)?,? (after|behind|does not|is not above|for who asked|writes behind|while|and of)\b`, `\btokens .* (do not|to) rise\b`,
		`\bhas (the )?tokens? \d+,? (after|and)\b`, `\bdo not rise\b`, `\bnot above \d`, // tokens
		`\bin the order\b`, `\bthe order is\b`, `\border \[`, `\bbefore the first\b`, // waiters
		`\b(update|increment|write)s? (is|are|was|were) lost\b`, `\blost updates?\b`, `\bthe counter is\b`, `\bbalance\b`, `\baccepted writes\b`, // updates
		`\bpromise was broken\b`, `\bwithout a majority\b`,
	}, "|"))
)

// readEvents reads the output of go test -json, and returns the failed tests.
func readEvents(from io.Reader) (failed []*test, err error) {
	all := make(map[string]*record)
	for in := json.NewDecoder(from); ; {
		var e event
		if err := in.Decode(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		r := all[e.Package]
		if r == nil {
			r = &record{tests: make(map[string]*line)}
			all[e.Package] = r
		}
		r.addEvent(e)
	}
	for pkg, r := range all {
		failed = append(failed, r.failedTests(pkg)...)
	}
	slices.SortFunc(failed, func(a, b *test) int { return strings.Compare(a.pkg+" "+a.name, b.pkg+" "+b.name) })
	return failed, nil
}

func (r *record) addEvent(e event) {
	t := r.tests[e.Test]
	if t == nil {
		t = &line{}
		r.tests[e.Test] = t
	}
	switch e.Action {
	case "run", "cont": // between these events a parallel test does not run
		t.begin = e.Time
	case "fail", "pass", "skip":
		t.end, t.failed = e.Time, e.Action == "fail"
	case "output":
		r.output.WriteString(e.Output)
		t.output.WriteString(e.Output)
		if m := stallLine.FindStringSubmatch(e.Output); m != nil {
			seconds, _ := strconv.ParseFloat(m[1], 64)
			pace, _ := strconv.ParseFloat(m[2], 64)
			r.stalls = append(r.stalls, stall{span{e.Time.Add(-time.Duration(seconds * float64(time.Second))), e.Time}, pace})
		}
	}
}

// failedTests returns the failed tests of a package.
func (r *record) failedTests(pkg string) (failed []*test) {
	for name, l := range r.tests {
		if !l.failed || name == "" || strings.Contains(name, "/") {
			continue
		}
		t := &test{pkg: pkg, name: name, of: r}
		for sub, l := range r.tests {
			if sub != name && !strings.HasPrefix(sub, name+"/") {
				continue
			}
			t.output += l.output.String()
			if !l.failed {
				continue
			}
			t.failures++
			if !r.hasFailedSubtest(sub) {
				t.leaves = append(t.leaves, l.span)
			}
		}
		failed = append(failed, t)
	}
	return failed
}

// hasFailedSubtest reports whether a subtest of a test failed.
func (r *record) hasFailedSubtest(name string) bool {
	for sub, l := range r.tests {
		if l.failed && strings.HasPrefix(sub, name+"/") {
			return true
		}
	}
	return false
}

// repeatVerdict returns the reason why the test is not repeated; nil: it is repeated.
func (t *test) repeatVerdict() error {
	if found := packageFailures.FindString(t.of.output.String()); found != "" {
		return fmt.Errorf("its package has %q", found)
	}
	if found := testFailures.FindString(t.output); found != "" {
		return fmt.Errorf("its output has %q", found)
	}
	for _, leaf := range t.leaves {
		if !slices.ContainsFunc(t.of.stalls, leaf.meetsStall) {
			return errors.New("the machine did not stand still while it ran")
		}
	}
	return nil
}

// meetsStall reports whether a stall overlaps the span.
func (s span) meetsStall(other stall) bool {
	return other.begin.Before(s.end) && other.end.After(s.begin)
}

// describeStalls returns the stalls during the test as text.
func (t *test) describeStalls() string {
	var all []string
	for _, s := range t.of.stalls {
		if slices.ContainsFunc(t.leaves, func(leaf span) bool { return leaf.meetsStall(s) }) {
			all = append(all, fmt.Sprintf("%.1f s", s.end.Sub(s.begin).Seconds()))
		}
	}
	return strings.Join(all, ", ")
}

// slowFactor returns four times the pace at which the test failed.
func (t *test) slowFactor() float64 {
	pace := 1.0
	for _, s := range t.of.stalls {
		pace = max(pace, s.pace)
	}
	return 4 * pace
}
