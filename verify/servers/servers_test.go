//go:build linux

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func newCounter() *counter { return &counter{inside: make(map[int]int64)} }

func TestHoldersWithSameTokenAreCounted(t *testing.T) {
	c := newCounter()
	for client := range 2 {
		if value, ok := c.enterHolder(client, 7); value != 0 || !ok {
			t.Fatalf("enter = %d, %v", value, ok)
		}
	}
	for client := range 2 {
		c.writeValue(client, 1)
	}
	got := c.tally
	got.Value = c.value
	if got.lostIncrements() != 1 || got.Repeated != 1 {
		t.Errorf("%v, want one update lost and one token twice", got)
	}
}

func TestEarlierHolderIsRejected(t *testing.T) {
	c := newCounter()
	c.enterHolder(1, 1)
	c.enterHolder(2, 2)
	if c.writeValue(1, 1) {
		t.Error("a holder wrote after a later holder")
	}
	if _, ok := c.enterHolder(3, 1); ok || c.Disorder != 1 {
		t.Errorf("an earlier token was accepted: %v, %d out of order", ok, c.Disorder)
	}
	if !c.writeValue(2, 1) || c.value != 1 || c.Acked != 1 {
		t.Errorf("the last holder did not write: %+v", c.tally)
	}
}

func TestEarlierHolderCannotWrite(t *testing.T) {
	c := newCounter()
	c.enterHolder(1, 1)
	c.removeHolder(1)
	if c.writeValue(1, 1) || c.value != 0 {
		t.Errorf("a removed holder wrote %d", c.value)
	}
}

func TestWriteLineKeepsOtherRows(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte("head\n"+tableStart+"| gone-1.0 | old |\n"+tableEnd+"tail\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	first, second := rows[0].name, rows[1].name
	for _, name := range []string{second, first, second} {
		if err := writeLine(page, name, "| "+name+" | new |\n"); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if want := "head\n" + tableStart + heading + "| " + first + " | new |\n| " + second + " | new |\n" + tableEnd + "tail\n"; string(text) != want {
		t.Errorf("page:\n%s\nwant:\n%s", text, want)
	}
}

func TestOnlyInnermostTestsAreCounted(t *testing.T) {
	out := []byte("--- FAIL: TestA (1s)\n    --- PASS: TestA/b (1s)\n    --- FAIL: TestA/c (1s)\n--- PASS: TestAB (0s)\n")
	if n := countVerdicts(out, "PASS"); n != 2 {
		t.Errorf("%d passed, want TestA/b and TestAB", n)
	}
	if got := strings.Join(failedTests(out), " "); got != "TestA/c" {
		t.Errorf("failed: %s", got)
	}
}

func TestShortenedErrorKeepsCause(t *testing.T) {
	long := strings.Repeat("x", 100)
	for text, want := range map[string]string{
		"two holders": "two holders",
		"open: redis: node 127.0.0.1:17413: node is not fit for locks: HELLO: unknown": "HELLO: unknown",
		"warning reach 127.0.0.1:1,127.0.0.1:22 it is\n down":                          "warning reach it is down",
		"the server lacks what locks need: ERROR: Function (pg_advisory_xact_lock) not found": "" +
			"the server lacks what locks need: ERROR: Function (pg_advisory_xact_lock) not…",
		long:                                 long[:maxCell-1] + "…",
		strings.Repeat("x", maxCell-1) + "…": strings.Repeat("x", maxCell-1) + "…", // it was shortened before
		strings.Repeat("x", maxCell-5) + "… (exit status 1)": strings.Repeat("x", maxCell-5) + "…",
	} {
		if got := shortenError(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestEveryServerCanBeFetched(t *testing.T) {
	script, err := os.ReadFile("../../tools/servers")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		for _, n := range r.needs {
			if !strings.Contains(string(script), "\n"+n.server+" ") {
				t.Errorf("%s needs %s, which tools/servers does not fetch", r.name, n.server)
			}
		}
	}
}

func TestWholeNameChoosesOneRow(t *testing.T) {
	for only, want := range map[string]int{"": len(rows), "valkey-9.1.2": 1, "valkey-9.1.2, cluster": 1, "valkey-9.1.2;mysql-9.7.4": 2, "mysql-9.7": 2} {
		n := 0
		for _, r := range rows {
			if r.matchesText(only) {
				n++
			}
		}
		if n != want {
			t.Errorf("-only %q matches %d rows, want %d", only, n, want)
		}
	}
}

// function matches a test with its body.
var function = regexp.MustCompile(`(?ms)^func (Test\w+)\(t \*testing\.T\) \{\n(.*?)^\}`)

// In a bubble a suite runs on a fake instead of the server of its row.
func TestSuitesRunOnServers(t *testing.T) {
	for _, r := range rows {
		pattern, _, _ := strings.Cut(r.suite.pattern, "/")
		for _, folder := range r.suite.packages {
			files, err := filepath.Glob(filepath.Join("..", folder, "*_test.go"))
			if err != nil {
				t.Fatal(err)
			}
			matched := 0
			for _, file := range files {
				text, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				for _, m := range function.FindAllSubmatch(text, -1) {
					if !regexp.MustCompile(pattern).Match(m[1]) {
						continue
					}
					matched++
					if bytes.Contains(m[2], []byte("Bubble: true")) {
						t.Errorf("%s: %s of %s runs in a bubble", r.name, m[1], folder)
					}
				}
			}
			if matched == 0 {
				t.Errorf("%s: no test of %s matches %s", r.name, folder, pattern)
			}
		}
	}
}

func TestScriptsOfRowsExist(t *testing.T) {
	for _, r := range rows {
		_, names, _ := strings.Cut(r.scripts.pattern, "/")
		for name := range strings.SplitSeq(strings.Trim(names, "()$"), "|") {
			if name == "" {
				continue
			}
			if _, err := os.Stat(filepath.Join("..", r.scripts.packages[0], "testdata/script", name+".txtar")); err != nil {
				t.Errorf("%s: %v", r.name, err)
			}
		}
	}
}
