package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var root = filepath.Join("..", "..")

// readMutants returns the mutants of all lists.
func readMutants(t *testing.T) []mutant {
	t.Helper()
	list, err := allMutants()
	if err != nil || len(list) == 0 {
		t.Fatalf("%d mutants, %v", len(list), err)
	}
	return list
}

func TestUncompilableMutantIsNamed(t *testing.T) {
	t.Parallel()
	c := newRepo(t)
	if err := os.WriteFile(filepath.Join(c.root, "go.mod"), []byte("module m\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for to, want := range map[string]string{"two := 2": "f.txt:1: m does not compile: ", "_ = 2": "<nil>"} {
		ch := changeAt("c: g")
		ch.from, ch.to = "one()", to
		err := checkFits(t.Context(), c, []mutant{{name: "m", file: "f.txt", line: 1, changes: []change{ch}}})
		if !strings.HasPrefix(fmt.Sprint(err), want) {
			t.Errorf("%s: %v, want %q", to, err, want)
		}
	}
}

// Test names are looked up in the source; the names of the model's rows are texts in a table.
func TestModelRowsOfMutantsExist(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "verify", "model", "model_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range readMutants(t) {
		for _, s := range m.fails {
			for _, test := range s.tests {
				row, ok := strings.CutPrefix(test, "TestModel/")
				if ok && !strings.Contains(string(text), `"`+strings.ReplaceAll(row, "_", " ")+`"`) {
					t.Errorf("%s:%d: %s: the model has no row %q", m.file, m.line, m.name, row)
				}
			}
		}
	}
}

func TestMutantNamesAreUnique(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for _, m := range readMutants(t) {
		if seen[m.name] {
			t.Errorf("%s:%d: duplicate mutant %s", m.file, m.line, m.name)
		}
		seen[m.name] = true
	}
}

// The rules are named in docs/protocol.md (promises, what a client does, traces) and in package driver.
func TestEveryRuleHasMutant(t *testing.T) {
	t.Parallel()
	var rules []string
	for file, patterns := range map[string][]string{
		filepath.Join("docs", "protocol.md"): {`(?m)^\| (P\d+) \|`, `(?m)^(\d+)\. `, `\*\*(C\d+)`},
		filepath.Join("driver", "driver.go"): {`(?m)^//   - ([A-Z][A-Za-z]*(?: [a-z]+)?)\. `},
	} {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range patterns {
			found := regexp.MustCompile(p).FindAllStringSubmatch(string(text), -1)
			if len(found) < 7 {
				t.Errorf("%s has only %d rules that match %s", file, len(found), p)
			}
			for _, m := range found {
				rules = append(rules, m[1])
			}
		}
	}
	broken := make(map[string]bool)
	for _, m := range readMutants(t) {
		for _, tag := range m.tags {
			broken[tag] = true
			if !slices.Contains(rules, tag) {
				t.Errorf("%s:%d: no rule is named %s", m.file, m.line, tag)
			}
		}
	}
	for _, rule := range rules {
		if !broken[rule] {
			t.Errorf("no mutant breaks rule %s", rule)
		}
	}
}

func TestListIsRead(t *testing.T) {
	t.Parallel()
	list, err := parseList("f.txt", `# heading

one [C1, One holder]: what it breaks: this
	in a/...: T.f
	- x
	+ y
	- z
	in .: g.lua
	- if a {
	- b }
	fails TestA TestB
	fails dir: N=1 TestC/sub_1 -flag=2

two: more
	in b: g
	- x
	fails differential
`)
	if err != nil || len(list) != 2 {
		t.Fatalf("%+v, %v", list, err)
	}
	want := []change{
		{line: 4, folder: "a", below: true, name: "T.f", from: "x\n", to: "y\n"},
		{line: 7, folder: "a", below: true, name: "T.f", from: "z\n"},
		{line: 8, folder: ".", name: "g.lua", from: "if a {\nb }\n"},
	}
	m := list[0]
	if m.name != "one" || m.line != 3 || m.rule != "what it breaks: this" || !slices.Equal(m.tags, []string{"C1", "One holder"}) {
		t.Errorf("%+v", m)
	}
	if !slices.Equal(m.changes, want) {
		t.Errorf("changes %+v, want %+v", m.changes, want)
	}
	s := m.fails[1]
	if s.folder != "dir" || s.testPattern() != `^TestC$/^sub_1$` || s.env[0] != "N=1" || s.flags[0] != "-flag=2" || m.fails[0].testPattern() != "^TestA$|^TestB$" {
		t.Errorf("%+v", m.fails)
	}
	if s := list[1].fails[0]; !slices.Equal(s.tests, []string{"TestScriptsMatchTwin"}) {
		t.Errorf("%+v", s)
	}
}

func TestInvalidListIsRejected(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"\tin a: f\n", "no head\n", "a: b\n", "a: b\n\t- x\n", "a: b\n\tin a: f\n\t+ x\n", "a: b\n\tin a\n", "a: b\n\tother x\n",
		"a: b\n\tin a: f\n\t- x\n", "a: b\n\tin a: f\n\t- x\n\t+ x\n\tfails TestA\n", "a: b\n\tin a: f\n\tfails TestA\n",
		"a: b\n\tin a: f\n\t- x\n\tfails N=1\n",
	} {
		if list, err := parseList("f.txt", text); err == nil {
			t.Errorf("%q was taken: %+v", text, list)
		}
	}
}

// newRepo returns a repository of four folders.
func newRepo(t *testing.T) *code {
	t.Helper()
	dir := t.TempDir()
	for file, text := range map[string]string{
		"a/a.go":      "package a\n\nfunc f() int { return g(1, 2) }\n\nfunc (t *T) f() int {\n\tif t.a == 1 { // why\n\t\treturn 1\n\t}\n\treturn 2\n}\n",
		"a/b/b.go":    "package b\n\nconst limit = 1 + 2\n\nfunc (t T[K]) run() { t.one(); t.two() }\n",
		"a/a_test.go": "package a\n\nfunc f() int { return g(1, 2) }\n\nfunc TestA(t *testing.T) {}\nfunc TestTwice(t *testing.T) {}\n",
		"a/b/s.lua":   "-- x = 1\nlocal x = 1\nreturn x == 1\n",
		"c/c.go":      "package c\n\nfunc one() {}\n\nfunc g() { one() }\n",
		"b/b_test.go": "package b\n\nfunc TestTwice(t *testing.T) {}\n",
	} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(file)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c, err := readCode(dir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestChangeIsFoundByNameAndWords(t *testing.T) {
	t.Parallel()
	c := newRepo(t)
	for _, row := range []struct {
		in, from, to string
		want         string // part of the changed file, or of the error
	}{
		{"a: f", "g(1,\n 2)", "0", "func f() int { return 0 }"},
		{"a: T.f", "t.a==1 { return 1 }", "true {}", "if true {}\n\treturn 2"}, // white space and comments do not count
		{"a/...: limit", "1+2", "3", "const limit = 3"},
		{"a/b: T.run", "t.one();", "", "{  t.two() }"},
		{"a/...: s.lua", "x = 1", "x = 2", "local x = 2"},
		{"a: f", "return", "", "3 times"},
		{"a: limit", "1+2", "3", "there is no a: limit; the nearest text:\n\t\ta/b/b.go:3 (limit): const limit = 1 + 2"},
		{"a: T.f", "t.b == 1", "", "has no such text; the nearest:\n\t\ta/a.go:6 (T.f): if t.a == 1 { // why"},
		{"a: T.f", "other words", "", "the nearest: none"},
		{"a: T.f", "t.a == 1 {", "", "is no Go"},
	} {
		m := mutant{name: "m", changes: []change{changeAt(row.in)}}
		m.changes[0].from, m.changes[0].to = row.from, row.to
		_, bad, err := c.files(m)
		got := ""
		for _, text := range bad {
			got = text
		}
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, row.want) {
			t.Errorf("%s, %q: %s\nwant %s", row.in, row.from, got, row.want)
		}
	}
}

// changeAt returns a change in a place.
func changeAt(place string) change {
	list, _ := parseList("f.txt", "m: b\n\tin "+place+"\n\t- x\n\tfails TestA\n")
	return list[0].changes[0]
}

func TestPlaceholderMatchesOneIdentifier(t *testing.T) {
	t.Parallel()
	for from, want := range map[string]string{
		"_1.one(); _1.two()": "{ x(t) }", // the same identifier twice
		"_1.one(); _2.two()": "{ x(t) }",
		"_1.one(); _1._2()":  "{ x(t) }",
		"1 + _1":             "no such text", // a number is no identifier
	} {
		ch := changeAt("a/b: run")
		if strings.Contains(from, "+") {
			ch = changeAt("a/b: limit")
		}
		ch.from, ch.to = from, "x(_1)"
		e, err := newRepo(t).locateChange(ch)
		if err == nil {
			err = errors.New(e.text[:e.begin] + e.to + e.text[e.end:])
		}
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", from, err, want)
		}
	}
	if _, ok := matchWords(splitWords("_1 + _1", 0), splitWords("a + b", 0)); ok {
		t.Error("one placeholder matched two identifiers")
	}
}

func TestMutantMayChangeFileTwice(t *testing.T) {
	t.Parallel()
	one, two := changeAt("a/...: run"), changeAt("a/...: run")
	one.from, one.to, two.from, two.to = "t.two()", "t.three()", "t.one()", "t.four()"
	was, bad, err := newRepo(t).files(mutant{changes: []change{one, two}})
	if err != nil || !strings.Contains(bad["a/b/b.go"], "{ t.four(); t.three() }") || !strings.Contains(was["a/b/b.go"], "{ t.one(); t.two() }") {
		t.Errorf("%q, %v", bad, err)
	}
	two.from = "t.one(); t.two"
	if _, _, err := newRepo(t).files(mutant{changes: []change{one, two}}); err == nil || !strings.Contains(err.Error(), "overlap") {
		t.Errorf("changes that overlap: %v", err)
	}
}

func TestPackageOfTestIsFound(t *testing.T) {
	t.Parallel()
	c := newRepo(t)
	for text, want := range map[string]string{
		"TestA/sub": "a", "b: TestTwice": "b", "TestTwice": "several packages: a, b", "TestNone": "no test", "b: TestA": "b has no test", "TestA TestNone": "no test",
	} {
		got, err := c.home(parseSuite(text, 1))
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

func TestFailedTestsAreReadFromOutput(t *testing.T) {
	t.Parallel()
	r := readResult(strings.NewReader(`{"Action":"pass","Test":"TestA"}
{"Action":"fail","Test":"TestB/sub"}
{"Action":"output","Output":"panic: test timed out after 1s\n"}
`))
	if !r.passed["TestA"] || !r.failed["TestB/sub"] || !r.hung || !r.crashed || r.broken || r.output != "panic: test timed out after 1s\n" {
		t.Errorf("%+v", r)
	}
	if r := readResult(strings.NewReader(`{"Action":"build-fail"}`)); !r.broken {
		t.Errorf("%+v", r)
	}
}
