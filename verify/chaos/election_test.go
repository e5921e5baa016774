//go:build linux

package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/election"
	"github.com/holdfast-go/holdfast/internal/rig"
)

// electionEvents parses "TIME KIND CLIENT [TERM]" into events of an election, separated by semicolons, with
// one attempt per client.
func electionEvents(lines string) (events []event) {
	for line := range strings.SplitSeq(lines, ";") {
		e, what := event{Key: electorate, Until: 1000}, ""
		fmt.Sscan(line, &e.T, &what, &e.Client, &e.Token)
		e.Kind, e.Try, e.ID = kind(what), e.Client, e.Client
		events = append(events, e)
	}
	return events
}

func TestBrokenElectionPromiseIsReported(t *testing.T) {
	t.Parallel()
	const two = "1 asked a; 1 asked b; 1 asked c; 2 got a 7; 3 observed a 7; 4 leaving a; 5 got b 9; 6 observed b 9; 7 leaving b; "
	for _, row := range []struct {
		lines string
		want  []string
	}{
		{two + "8 got c 11", nil},
		{two + "8 observed c 10; 9 observed x 0; 10 observed c 10", nil}, // the leader was killed before it could record its term
		{two + "8 got c 9", []string{uniqueTokens, termsRise}},           // two leaders of one term
		{two + "8 got c 8", []string{termsRise}},
		{"1 asked a; 1 asked b; 2 got a 7; 5 got b 9", []string{exclusion}},
		{two + "8 got c 11; 9 observed b 9; 10 observed c 11; 11 observed b 9", []string{neverBack}},
		{two + "8 got c 11; 9 observed b 11", []string{seenAreReal}},
	} {
		r := new(ElectionReport)
		r.judgeHistory(electionEvents(row.lines))
		var got []string
		for _, f := range r.Findings {
			got = append(got, f.Promise)
		}
		slices.Sort(got)
		if slices.Sort(row.want); !slices.Equal(got, row.want) {
			t.Errorf("%s: broken: %v, want %v", row.lines, got, row.want)
		}
		if r.Passed() != (len(row.want) == 0) {
			t.Errorf("%s: passed: %v", row.lines, r.Passed())
		}
	}
	r := new(ElectionReport)
	r.judgeHistory([]event{
		{T: 1, Kind: asked, Key: electorate, Try: "a"},
		{T: 2, Kind: observed, Key: electorate, Err: election.ErrTermDecreased.Error() + ": from 9 to 7"},
	})
	if len(r.Findings) != 1 || r.Findings[0].Promise != neverBack {
		t.Errorf("an observer saw the term fall: %v", r.Findings)
	}
}

// The test kills the leader and makes the next one resign, five times each on every engine; with HOLDFAST_LONG
// a hundred times. The time until another leads is logged and not judged.
func TestEachLeaderHasSuccessor(t *testing.T) {
	rig.Nightly(t, "elections")
	t.Parallel()
	times := 5
	if os.Getenv("HOLDFAST_LONG") != "" {
		times = 100
	}
	for _, backend := range []string{"redis", "etcd", "postgres", "zookeeper", "mariadb", "sqlite", "cluster", "sentinel"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			r, err := runElection(t.Context(), settings{backend: backend, elections: times, out: t.ArtifactDir()}, t.Output())
			if err != nil {
				t.Fatal(err)
			}
			if t.Log(r.Text()); !r.Passed() || len(r.Killed) != times || len(r.Resigned) != times {
				t.Errorf("a promise was broken, or a leader had no successor")
			}
		})
	}
}
