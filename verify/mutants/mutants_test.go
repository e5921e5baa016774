package main

import (
	"bytes"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// readFile is a file of the repository.
func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestEveryMutantStillApplies(t *testing.T) {
	t.Parallel()
	names := make(map[string]bool)
	for _, m := range all {
		if names[m.name] || m.rule == "" || len(m.killers) == 0 {
			t.Errorf("%s: its name is taken, or it has no rule or nobody to kill it", m.name)
		}
		names[m.name] = true
		bad, err := m.apply(readFile(t, m.file))
		if err != nil {
			t.Errorf("%s: %v", m.name, err)
			continue
		}
		if strings.HasSuffix(m.file, ".go") {
			if _, err := parser.ParseFile(token.NewFileSet(), m.file, bad, 0); err != nil {
				t.Errorf("%s: %v", m.name, err)
			}
		}
	}
}

// A tier whose tests were renamed would kill nothing and say so only after many
// minutes.
func TestEveryKillerExists(t *testing.T) {
	t.Parallel()
	for _, m := range all {
		for _, k := range m.killers {
			tests := testsOf(t, filepath.Join("..", "..", k.module, k.pkg))
			top, _, _ := strings.Cut(k.tests, "/")
			for _, name := range alternatives(top) {
				if !bytes.Contains(tests, []byte("func "+name+"(")) {
					t.Errorf("%s: %s has no test %s", m.name, k.pkg, name)
				}
			}
		}
	}
}

// alternatives are the names in a pattern as this package writes them.
func alternatives(pattern string) []string {
	pattern = strings.NewReplacer("(OfSlowNodes)?", "", "^", "", "$", "", "(", "", ")", "").Replace(pattern)
	return strings.Split(pattern, "|")
}

func testsOf(t *testing.T, dir string) []byte {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var all []byte
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, text...)
	}
	return all
}

func TestMutantThatDoesNotFitIsRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"a": "", "aa": "2 times", "b": "0 times"} {
		got, err := (mutant{was: "a", is: "c", file: "f"}).apply(text)
		if want == "" && (err != nil || got != "c") || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q became %q, %v", text, got, err)
		}
	}
	if _, err := (mutant{was: "a", is: "a"}).apply("a"); err == nil {
		t.Error("a mutant that changes nothing was taken")
	}
}

func TestOutputOfTests(t *testing.T) {
	t.Parallel()
	event := func(text string) string { return "{" + text + "}\n" }
	for name, row := range map[string]struct {
		output string
		want   result
	}{
		"passed": {event(`"Action":"pass","Test":"TestA"`) + event(`"Action":"pass"`), result{ran: 1}},
		"failed": {
			event(`"Action":"fail","Test":"TestA/sub"`) + event(`"Action":"fail","Test":"TestA"`) + event(`"Action":"fail"`),
			result{ran: 2, failed: "TestA/sub"},
		},
		"does not compile": {event(`"Action":"build-fail"`) + event(`"Action":"fail"`), result{broken: true}},
		"hangs": {
			event(`"Action":"output","Output":"panic: test timed out after 1s\n"`),
			result{hung: true, crashed: true, output: "panic: test timed out after 1s\n"},
		},
	} {
		if got := read(strings.NewReader(row.output)); got != row.want {
			t.Errorf("%s: %+v, want %+v", name, got, row.want)
		}
	}
}

func TestTierNamesAreThoseOfTheTable(t *testing.T) {
	t.Parallel()
	used := make(map[string]bool)
	for _, m := range all {
		for _, k := range m.killers {
			used[k.tier] = true
			if _, err := regexp.Compile(k.tests); err != nil {
				t.Errorf("%s: %v", m.name, err)
			}
		}
	}
	for _, name := range tierNames() {
		if !used[name] {
			t.Errorf("tier %s kills nothing", name)
		}
		delete(used, name)
	}
	for name := range used {
		t.Errorf("tier %s is not named", name)
	}
}

// The track record is worth as much as the tests that it names.
func TestTrackRecordNamesTestsThatExist(t *testing.T) {
	t.Parallel()
	exist := make(map[string]bool)
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	err := filepath.WalkDir(filepath.Join("..", ".."), func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range declared.FindAllSubmatch(text, -1) {
			exist[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`((?:Test|Fuzz)\\w+)`").FindAllStringSubmatch(readFile(t, "docs/verification.md"), -1)
	if len(named) == 0 {
		t.Error("no test is named")
	}
	for _, m := range named {
		if !exist[m[1]] {
			t.Errorf("docs/verification.md names %s, which does not exist", m[1])
		}
	}
}
