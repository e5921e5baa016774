package main

import (
	"embed"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"
)

// mutant is one bug. The text files of this folder hold them, like this:
//
//	no-drift [3, Trust]: clocks may run at different rates
//		in internal/quorum: Drift
//		- ttl/100 + 2*ms
//		+ 0
//		fails TestDriftIsOnePercentAndTwoMilliseconds
//		fails SEEDS=1000 TestSim
//
// The head has the name, the rules of docs/protocol.md and package driver that the bug breaks, and what it breaks in words.
//
// in gives the place of the bug: a folder, or FOLDER/... for all below it too, and the name of a function, with the name of its
// type before it if others have the same name (Lock.Commit); or of a constant, a variable, a script (take.lua).
// The text behind - is there exactly once, and the text behind + takes its place; several lines of one kind are one text. White
// space and comments do not count. _1 to _9 stand for one identifier each, the same one in both texts: for names that are local
// to the function, so that a mutant outlives their renaming. Without + the text is taken away. A bug may need several changes,
// each with - and +, and several places.
//
// fails names tests that fail with the bug, all of them, in one run of go test. Their package is found by their name, or
// stands before them, where several packages have a test of that name: fails memory: TestConformance/nodes=3/ExtendSetsLongerTTL.
// Environment variables and flags of the test program may stand beside them. The word differential is short for
// the comparison of the scripts with their twin.
type mutant struct {
	name    string
	file    string // the list that it is from
	line    int
	tags    []string // names of the rules
	rule    string   // the rule in words
	changes []change
	fails   []suite
}

// change replaces one text by another in one place.
type change struct {
	line   int // line of the list
	folder string
	below  bool   // includes folders below
	name   string // name of a declaration or script
	from   string
	to     string
}

// suite is a group of tests that run together.
type suite struct {
	line   int    // line of the list
	folder string // folder of their package; empty: found by their names
	tests  []string
	env    []string
	flags  []string
}

//go:embed *.txt
var lists embed.FS

// allMutants returns the mutants of all lists.
func allMutants() ([]mutant, error) {
	files, err := lists.ReadDir(".")
	if err != nil {
		return nil, err
	}
	var out []mutant
	var errs []error
	for _, f := range files {
		text, err := lists.ReadFile(f.Name())
		if err != nil {
			return nil, err
		}
		list, err := parseList(f.Name(), string(text))
		out, errs = append(out, list...), append(errs, err)
	}
	return out, errors.Join(errs...)
}

var headLine = regexp.MustCompile(`^([a-z0-9-]+)(?: \[([^\]]+)\])?: (.+)$`)

// parseList parses a list. Lines that begin with # are headings.
func parseList(file, text string) ([]mutant, error) {
	var out []mutant
	var errs []error
	last := byte(0) // first character of the previous line
	for i, line := range strings.Split(text, "\n") {
		word := strings.TrimSpace(line)
		if word == "" || word[0] == '#' {
			last = 0
			continue
		}
		var err error
		switch {
		case line[0] != '\t':
			var m mutant
			m, err = parseHead(line)
			m.file, m.line = file, i+1
			out = append(out, m)
		case len(out) == 0:
			err = errors.New("no mutant begins before this line")
		default:
			err = out[len(out)-1].addLine(line[1:], i+1, last)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s:%d: %w", file, i+1, err))
		}
		last = word[0]
	}
	for _, m := range out {
		if err := m.checkWhole(); err != nil {
			errs = append(errs, fmt.Errorf("%s:%d: %s %w", file, m.line, m.name, err))
		}
	}
	return out, errors.Join(errs...)
}

func parseHead(line string) (m mutant, err error) {
	parts := headLine.FindStringSubmatch(line)
	if parts == nil {
		return m, fmt.Errorf("%q is not name [rules]: what it breaks", line)
	}
	m.name, m.rule = parts[1], parts[3]
	if parts[2] != "" {
		m.tags = strings.Split(parts[2], ", ")
	}
	return m, nil
}

// addLine parses a line of m. last is the first character of the previous line.
func (m *mutant) addLine(line string, number int, last byte) error {
	n := len(m.changes) - 1
	word, rest, _ := strings.Cut(line, " ")
	switch {
	case word == "in":
		folder, name, ok := strings.Cut(rest, ": ")
		if !ok {
			return fmt.Errorf("%q is not FOLDER: NAME", rest)
		}
		folder, below := strings.CutSuffix(folder, "/...")
		m.changes = append(m.changes, change{line: number, folder: path.Clean(folder), below: below, name: name})
	case word == "-" && n >= 0:
		if last != '-' && m.changes[n].from != "" {
			before := m.changes[n]
			m.changes = append(m.changes, change{line: number, folder: before.folder, below: before.below, name: before.name})
			n++
		}
		m.changes[n].from += rest + "\n"
	case word == "+" && n >= 0 && m.changes[n].from != "":
		m.changes[n].to += rest + "\n"
	case word == "fails":
		m.fails = append(m.fails, parseSuite(rest, number))
	default:
		return fmt.Errorf("%q begins with none of in, -, + and fails, or has none before it that it belongs to", line)
	}
	return nil
}

// differential replaces that word in a list of tests.
const differential = "SEQUENCES=4000 TestScriptsMatchTwin -rapid.nofailfile -rapid.shrinktime=1s"

var variable = regexp.MustCompile(`^[A-Z_]+=`)

func parseSuite(text string, number int) suite {
	s := suite{line: number}
	folder, tests, ok := strings.Cut(text, ": ")
	if ok {
		s.folder = folder
	} else {
		tests = text
	}
	if tests == "differential" {
		tests = differential
	}
	for word := range strings.FieldsSeq(tests) {
		switch {
		case word[0] == '-':
			s.flags = append(s.flags, word)
		case variable.MatchString(word):
			s.env = append(s.env, word)
		default:
			s.tests = append(s.tests, word)
		}
	}
	return s
}

// checkWhole returns an error if m lacks a part.
func (m *mutant) checkWhole() error {
	if len(m.changes) == 0 || len(m.fails) == 0 {
		return errors.New("changes nothing, or no test fails with it")
	}
	for _, c := range m.changes {
		if c.from == "" || strings.Join(strings.Fields(c.from), "") == strings.Join(strings.Fields(c.to), "") {
			return errors.New("has a place without a change")
		}
	}
	for _, s := range m.fails {
		if len(s.tests) == 0 {
			return errors.New("names no test")
		}
	}
	return nil
}

// testPattern returns the pattern of the tests for go test -run.
func (s suite) testPattern() string {
	var all []string
	for _, test := range s.tests {
		var levels []string
		for level := range strings.SplitSeq(test, "/") {
			levels = append(levels, "^"+regexp.QuoteMeta(level)+"$")
		}
		all = append(all, strings.Join(levels, "/"))
	}
	return strings.Join(all, "|")
}

// topTest returns the name of the test function of test.
func topTest(test string) string {
	name, _, _ := strings.Cut(test, "/")
	return name
}
