package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// readRecorded returns the failed tests of a recorded run, each with the reason why it is not repeated; "": it
// is repeated.
func readRecorded(t *testing.T, name string) (tests map[string]*test, verdicts map[string]string) {
	t.Helper()
	file, err := os.Open(filepath.Join("testdata", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	failed, err := readEvents(file)
	if err != nil {
		t.Fatal(err)
	}
	tests, verdicts = make(map[string]*test), make(map[string]string)
	for _, f := range failed {
		tests[f.name], verdicts[f.name] = f, ""
		if err := f.repeatVerdict(); err != nil {
			verdicts[f.name] = err.Error()
		}
	}
	return tests, verdicts
}

func TestOnlyStallsAreRepeated(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]map[string]string{
		"slow":  {"TestTimesOut": ""},
		"early": {"TestFailsLater": "did not stand still"}, // the stall was over before it began
		"order": {"TestTokensRise": "token 5 after"},
		"race":  {"TestRaces": "DATA RACE", "TestTimesOut": "DATA RACE"},
	} {
		_, verdicts := readRecorded(t, name)
		if len(verdicts) != len(want) {
			t.Errorf("%s: failed tests = %v", name, verdicts)
		}
		for test, why := range want {
			if got := verdicts[test]; !strings.Contains(got, why) || (got == "") != (why == "") {
				t.Errorf("%s: %s: %q, want %q", name, test, got, why)
			}
		}
	}
}

func TestRepeatHasFourTimesThePace(t *testing.T) {
	t.Parallel()
	tests, _ := readRecorded(t, "slow")
	slow := tests["TestTimesOut"]
	if slow.slowFactor() != 6 || slow.failures != 2 || slow.describeStalls() != "0.5 s" {
		t.Errorf("pace %v, %d failures, stalls %s", slow.slowFactor(), slow.failures, slow.describeStalls())
	}
}

func TestBrokenPromisesAreNotRepeated(t *testing.T) {
	t.Parallel()
	for _, text := range []string{ // texts of the rigs and suites
		"two holders at once: tokens 3 and 3, for 1s", "3 holders at once", "2 holders", "2 hold it at once", "slot 3 has two holders", "two leaders in term 7",
		"token 5 after 6", "token 5 for who asked after 6 was granted", "token 5 writes behind 6", "the next writer has token 5 after 6",
		"tokens 1, 2; want them to rise", "tokens 1, 2, 3 do not rise", "granted in the order [2 1]", "order [2 1]", "the second has it before the first",
		"the counter is 99, want 100", "12 updates are lost", "3 increments are lost, of 5 and 5", "sum 3 of 4 accepted writes", "a promise was broken",
		"the second waiter has token 5, and the first 6", "there is a new holder without a majority",
		"4 were inside at once, want 3", "the balance is 1 behind the lock, want 2",
	} {
		if !testFailures.MatchString("    rig_test.go:1: " + text) {
			t.Errorf("a test that prints %q is repeated", text)
		}
	}
	for _, text := range []string{
		"not within 20s: a renewal", `Acquire("k") = holdfast: acquire "k": unavailable: no answer in 2s`, "Check() = <nil> with token 5",
	} {
		if found := testFailures.FindString(text); found != "" {
			t.Errorf("a test that prints %q is not repeated, for %q", text, found)
		}
	}
}

func TestLastLineCountsRemainingFailures(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		done            string
		passed, repeats int
		want            string
		left            int
	}{
		{"DONE 1577 tests, 2 skipped, 2 failures in 300.123s", 2, 1, "DONE 1577 tests, 2 skipped in 300.123s, 1 repeated for SLOW", 0},
		{"DONE 1577 tests, 2 skipped, 3 failures, 1 error in 300s", 2, 2, "DONE 1577 tests, 2 skipped, 1 failure, 1 error in 300s, 2 repeated for SLOW", 2},
		{"DONE 9 tests, 2 failures in 3s", 0, 0, "DONE 9 tests, 2 failures in 3s, 0 repeated for SLOW", 2},
	} {
		if line, left := recountFailures(row.done+"\n", row.passed, row.repeats); line != row.want+"\n" || left != row.left {
			t.Errorf("recount(%q) = %q, %d, want %q, %d", row.done, line, left, row.want, row.left)
		}
	}
}

func TestSummaryCountsTests(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	lines := &lineFilter{out: &out}
	for _, part := range []string{"=== Failed\nDONE 1 tes", "ts in 1s\n", "exit"} {
		if n, err := lines.Write([]byte(part)); n != len(part) || err != nil {
			t.Errorf("Write(%q) = %d, %v", part, n, err)
		}
	}
	if done := lines.close(); done != "DONE 1 tests in 1s\n" || out.String() != "=== Failed\nexit" {
		t.Errorf("the last line is %q, after %q", done, &out)
	}
}

func TestFlagsEndAtFirstPackage(t *testing.T) {
	t.Parallel()
	if got := strings.Join(testFlags([]string{"-race", "-timeout=30m", "./redis", "-x"}), " "); got != "-race -timeout=30m" {
		t.Errorf("flags are %q", got)
	}
}
