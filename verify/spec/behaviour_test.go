package main

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/rig"
	"github.com/holdfast-go/holdfast/verify/interop/foreign"
	"github.com/holdfast-go/holdfast/verify/sim"
)

// checkerOf returns the path of TLC. Without java or mvn it skips the test, unless all servers are required.
func checkerOf(t *testing.T) string {
	t.Helper()
	checker, err := findTLC()
	if errors.Is(err, foreign.ErrMissing) && os.Getenv("HOLDFAST_SERVERS_REQUIRED") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return checker
}

// mustCheckRuns calls checkRuns for a test.
func mustCheckRuns(t *testing.T, runs []recordedRun, promised bool) []rejectedRun {
	t.Helper()
	refused, took, err := settings{source: source}.checkRuns(t.Context(), checkerOf(t), t.TempDir(), runs, promised)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d runs, %v of one processor", len(runs), took)
	return refused
}

// firstRuns returns the runs of a group with the lowest seeds.
func firstRuns(n int, g group, rules sim.Rules) []recordedRun {
	var runs []recordedRun
	for seed := uint64(1); len(runs) < n; seed++ {
		if r := recordRun(seed, rules); r.set == g {
			runs = append(runs, r)
		}
	}
	return runs
}

// runsThatDiffer returns runs of a group that change if the rules in off are disabled.
func runsThatDiffer(n int, g group, off sim.Rules, from uint64) []recordedRun {
	var runs []recordedRun
	for seed := from; len(runs) < n && seed < from+100; seed++ {
		if r := recordRun(seed, off); r.set == g && !slices.Equal(r.steps, recordRun(seed, sim.Rules{}).steps) {
			runs = append(runs, r)
		}
	}
	return runs
}

// breakRun replaces a text in the first step that contains it. It returns the changed run and the number of
// that step.
func breakRun(r recordedRun, old, changed string) (recordedRun, int) {
	i := slices.IndexFunc(r.steps, func(step string) bool { return strings.Contains(step, old) })
	r.steps = slices.Clone(r.steps)
	r.steps[i] = strings.Replace(r.steps[i], old, changed, 1)
	return r, i + 1
}

// The check accepts the original runs, and rejects each run that was edited by hand, at the edited step.
func TestRecordedRunsMatchSpecification(t *testing.T) {
	rig.Nightly(t, "spec")
	t.Parallel()
	runs := firstRuns(16, group{nodes: 3}, sim.Rules{})
	whole := len(runs)
	want := make(map[int]int) // by run: step at which it must be rejected
	for _, change := range [][2]string{
		{`says |-> "granted"`, `says |-> "denied"`},
		{`says |-> "kept"`, `says |-> "not mine"`},
		{`[kind |-> "wins"`, `[kind |-> "renewed"`},
		{`[kind |-> "begins"`, `[kind |-> "uses"`},
		{`tok |-> `, `tok |-> 1`},
	} {
		i := slices.IndexFunc(runs[:whole], func(r recordedRun) bool { return strings.Contains(strings.Join(r.steps, ""), change[0]) })
		if i < 0 {
			t.Fatalf("no run has %q", change[0])
		}
		changed, step := breakRun(runs[i], change[0], change[1])
		want[len(runs)] = step
		runs = append(runs, changed)
	}
	for i := range runs {
		runs[i].place = i
	}
	for _, r := range mustCheckRuns(t, runs, true) {
		i := r.run.place
		switch step, changed := want[i]; {
		case !changed:
			t.Error(r)
		case step != r.step:
			t.Errorf("rejected at another step than %d: %v", step, r)
		}
		delete(want, i)
	}
	if len(want) > 0 {
		t.Errorf("edited runs were not rejected: %v", want)
	}
}

// Without a rule of the protocol some run is rejected, at a step to which the rule applies: one with this
// text.
func TestRunWithoutRuleIsRejected(t *testing.T) {
	rig.Nightly(t, "spec")
	t.Parallel()
	type without struct {
		rules sim.Rules
		from  uint64 // first seed to try: the rule rarely matters in earlier ones
		step  string
	}
	rules := map[string]without{
		"commit looks at the owner":               {sim.Rules{CommitAnybody: true}, 1501, `ask |-> "commit"`},
		"release looks at the owner":              {sim.Rules{ReleaseAnybody: true}, 1, `ask |-> "release"`},
		"a late request shortens nothing":         {sim.Rules{Shorten: true}, 901, `ask |-> "`},
		"who forgot does not vote":                {sim.Rules{NoQuarantine: true}, 1, `"admits"`},
		"a lease takes a majority":                {sim.Rules{Minority: true}, 1, `"wins"`},
		"trust counts from the send":              {sim.Rules{TrustFromReply: true}, 1, `"wins"`},
		"trust in a hand-over counts from a send": {sim.Rules{TrustFromWake: true}, 1, `"wins"`},
		"trust is shorter by what clocks drift":   {sim.Rules{NoDrift: true}, 1, `"wins"`},
		"an id whose give-back is open ends":      {sim.Rules{ReuseID: true}, 1, `ask |-> "`},
	}
	var runs []recordedRun
	var of []string
	for name, off := range rules {
		for _, r := range runsThatDiffer(3, group{nodes: 3}, off.rules, off.from) {
			r.place = len(runs)
			runs, of = append(runs, r), append(of, name)
		}
	}
	for _, r := range mustCheckRuns(t, runs, false) {
		name := of[r.run.place]
		t.Logf("%s: %v", name, r)
		if strings.Contains(r.run.steps[r.step-1], rules[name].step) {
			delete(rules, name)
		}
	}
	for name := range rules {
		t.Errorf("no run is rejected at the right step without: %s", name)
	}
}
