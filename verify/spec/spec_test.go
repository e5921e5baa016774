package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const source = "../../docs/spec/"

func TestEveryRuleHasRowWithoutIt(t *testing.T) {
	t.Parallel()
	for _, name := range []string{holdfast, readWrite} {
		checkEachRuleIsDisabled(t, name)
	}
}

func checkEachRuleIsDisabled(t *testing.T, name string) {
	module, err := os.ReadFile(source + name + ".tla")
	if err != nil {
		t.Fatal(err)
	}
	off := make(map[string]bool)
	for _, r := range specRows() {
		if r.module == name && r.set["Off"] != "{}" {
			off[strings.Trim(r.set["Off"], `{"}`)] = true
		}
	}
	rules := make(map[string]bool)
	for _, m := range regexp.MustCompile(`Rule\("([^".]+)"\)`).FindAllStringSubmatch(string(module), -1) {
		rules[m[1]] = true
		if !off[m[1]] {
			t.Errorf("no row disables the rule %q", m[1])
		}
	}
	for rule := range off {
		if !rules[rule] {
			t.Errorf("a row disables %q, which is not a rule of the specification", rule)
		}
	}
}

func TestRowInvariantsAreDefined(t *testing.T) {
	t.Parallel()
	for _, r := range specRows() {
		module, err := os.ReadFile(source + r.module + ".tla")
		if err != nil {
			t.Fatal(err)
		}
		for name := range strings.FieldsSeq(r.holds + " " + r.breaks) {
			if !strings.Contains(string(module), "\n"+name+" ==") {
				t.Errorf("%s: %s does not define %s", r.name, r.module, name)
			}
		}
		if (r.holds == "") == (r.breaks == "") {
			t.Errorf("%s: a row either holds or breaks its invariant", r.name)
		}
	}
}

// go run ./spec -md writes the page.
func TestPageHasEveryRow(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(source + "README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range specRows() {
		if !strings.Contains(string(page), "\n| "+r.name+" | ") {
			t.Errorf("the page has no row %q", r.name)
		}
	}
}

// Output of TLC 2.18, shortened.
const (
	explored = `Model checking completed. No error has been found.
  Estimates of the probability that TLC did not check all reachable states
2,001 states generated, 1,000 distinct states found, 0 states left on queue.
The depth of the complete state graph search is 17.
`
	violation = `Error: Invariant P3 is violated.
Error: The behavior up to this point is:
State 1: <Initial predicate>
/\ n = 1

State 2: <Begin line 1>
/\ n = 2

State 3: <Tick line 1>
/\ n = 3

30 states generated, 20 distinct states found, 10 states left on queue.
`
	stopped = "2,001 states generated, 1,000 distinct states found, 5 states left on queue.\n"
)

func TestOnlyExpectedResultPasses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, says, breaks string
		want               string // part of the error; "": none
	}{
		{"explored", explored, "", ""},
		{"the rule is not needed", explored, "P3", "holds, but expected: P3 breaks"},
		{"violated as expected", violation, "P3", ""},
		{"violated", violation, "", "P3 breaks, after 2 steps"},
		{"another promise is violated", violation, "P1", "P3 breaks"},
		{"stopped half-way", stopped, "", "did not finish"},
		{"not started", "Parsing or semantic analysis failed.", "", "no states"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := checkResults([]row{{name: "row", breaks: tt.breaks}}, []result{parseReport(tt.says)})
			switch {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %v, want an error with %q", err, tt.want)
			}
		})
	}
}

func TestEveryInvariantIsBrokenByRow(t *testing.T) {
	t.Parallel()
	breaks := make(map[string]bool)
	for _, r := range specRows() {
		breaks[r.breaks] = true
	}
	for _, r := range specRows() {
		for name := range strings.FieldsSeq(r.holds) {
			if !breaks[name] {
				t.Errorf("%s: no row breaks %s, so it may always hold", r.name, name)
			}
		}
	}
}

func TestUnusedActionIsNamed(t *testing.T) {
	t.Parallel()
	const says = `
<Begin line 281, col 1 to line 281, col 8 of module Holdfast>: 4:145
<Tick line 379, col 1 to line 379, col 4 of module Holdfast>: 0:0
<Win line 310, col 1 to line 310, col 6 of module Holdfast (311 22 320 47)>: 0:%s
<LateWakeUp line 269, col 1 to line 269, col 10 of module Holdfast>: 0:0
`
	first, second := parseReport(explored+fmt.Sprintf(says, "0")), parseReport(explored+fmt.Sprintf(says, "7"))
	if got, want := unusedActions([]result{first, second}), []string{"Holdfast.Tick"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestUnfinishedRowFailsRun(t *testing.T) {
	t.Parallel()
	if err := checkResults([]row{{name: "row", breaks: "P3"}}, []result{{err: errors.New("killed"), broken: "P3"}}); err == nil {
		t.Error("no error")
	}
}

// A stopped run, or a row with a wrong result, does not change the page.
func TestPartialRunKeepsPage(t *testing.T) {
	t.Parallel()
	checkerOf(t)
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte(tableStart+"old\n"+tableEnd), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	err := run(ctx, []string{"-source", "../../docs/spec", "-md", page}, io.Discard, io.Discard)
	if text, _ := os.ReadFile(page); err == nil || string(text) != tableStart+"old\n"+tableEnd {
		t.Errorf("%v; the page is %.200q", err, text)
	}
}

// The trace has all kinds of values that TLC prints.
func TestTraceShowsChangesOfEachStep(t *testing.T) {
	t.Parallel()
	const says = `Error: Invariant P3 is violated.
Error: The behavior up to this point is:
State 1: <Initial predicate>
/\ node = ( n1 :> [owner |-> "free", F |-> 1, queue |-> {}] @@
  n2 :>
      [ owner |-> "free",
        F |-> 1,
        queue |-> {} ] )
/\ sent = {}
/\ pc = (a :> "idle")
/\ one = <<a, {}>>

State 2: <Execute line 1, col 2 to line 3, col 4 of module Holdfast>
/\ node = ( n1 :> [owner |-> a, F |-> 2, queue |-> {b, c}] @@
  n2 :>
      [ owner |-> "free",
        F |-> 1,
        queue |-> {} ] )
/\ sent = { [kind |-> "acquire", id |-> a, arg |-> 0],
  <<"set", c>> }

State 3: <Tick line 1, col 2 to line 3, col 4 of module Holdfast>
/\ sent = {<<"set", c>>}
/\ pc = (a :> "asks")

12 states generated, 5 distinct states found, 1 states left on queue.
`
	want := []string{
		`Execute: n1: F 2, owner a, queue {b, c}; sent: <<"set", c>>, acquire a 0`,
		`Tick: pc: a asks; sent: no acquire a 0`,
	}
	if got := parseTrace(says); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
