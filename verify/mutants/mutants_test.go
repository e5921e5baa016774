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

// mutants are those of the patches.
func mutants(t *testing.T) []mutant {
	t.Helper()
	list, err := all()
	if err != nil || len(list) == 0 {
		t.Fatalf("%d mutants, %v", len(list), err)
	}
	return list
}

func TestEveryMutantStillApplies(t *testing.T) {
	t.Parallel()
	for _, m := range mutants(t) {
		file, _, bad, err := m.find(filepath.Join("..", ".."))
		if err != nil {
			t.Errorf("%s: %v", m.name, err)
			continue
		}
		if strings.HasSuffix(file, ".go") {
			if _, err := parser.ParseFile(token.NewFileSet(), file, bad, 0); err != nil {
				t.Errorf("%s: %v", m.name, err)
			}
		}
	}
}

// A tier whose tests were renamed would kill nothing and say so only after many
// minutes.
func TestEveryKillerExists(t *testing.T) {
	t.Parallel()
	for _, m := range mutants(t) {
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
	const head = "part: p\nrule: r\nin: sub\nsim: 1\n"
	m, err := parseMutant("m", head+"@@\n a\n\n-b\n+c\n")
	if err != nil || m.was != "a\n\nb\n" || m.is != "a\n\nc\n" || len(m.killers) != 1 {
		t.Fatalf("parseMutant() = %+v, %v", m, err)
	}
	for text, want := range map[string]string{"a\n\nb\n": "a\n\nc\n", "a\n\nb\na\n\nb\n": "2 times", "xa\n\nb\n": "0 times", "b\n": "0 times"} {
		root := t.TempDir()
		if err := os.Mkdir(filepath.Join(root, "sub"), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"f.go", "f_test.go"} { // no bug goes into a test
			if err := os.WriteFile(filepath.Join(root, "sub", name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		file, _, bad, err := m.find(root)
		fits := err == nil && filepath.Base(file) == "f.go" && bad == want
		if refused := err != nil && strings.Contains(err.Error(), want); !fits && !refused {
			t.Errorf("%q: %s became %q, %v", text, file, bad, err)
		}
	}
	for _, text := range []string{
		head + "@@\n a\n", head + "@@\n-a\n+a\n", head + "@@\na\n", head, "rule: r\nin: f\nsim: 1\n@@\n-a\n",
		head + "other: x\n@@\n-a\n", "part: p\nrule: r\nin: f\n@@\n-a\n",
	} {
		if m, err := parseMutant("m", text); err == nil {
			t.Errorf("%q was taken: %+v", text, m)
		}
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
	for _, m := range mutants(t) {
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
