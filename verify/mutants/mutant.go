package main

import (
	"embed"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// mutant is one bug. Each is a file in patches:
//
//	part: trust: until when a lease can be relied on
//	rule: clocks may run at different rates
//	in: internal/quorum
//	unit: TestDriftIsAHundredthAndTwoMilliseconds
//	sim: 1000
//	@@
//	-func Drift(ttl int64) int64 { return ttl/100 + 2*ms }
//	+func Drift(ttl int64) int64 { return 0 }
//
// Behind "in" stands a file, or a folder: then the bug goes into one of its Go files that
// are no tests. The lines that the bug takes away, and those that it keeps (they begin
// with a blank), occur exactly once there. The lines between "in" and "@@" are the
// suites that must notice it (see suites).
type mutant struct {
	name string
	part string // of the protocol or the program
	rule string // what it breaks
	in   string // from the root of the repository
	was  string // whole lines
	is   string
	// killers are the tests that are there to notice. All must.
	killers []suite
}

//go:embed patches/*.patch
var patches embed.FS

// all is the bugs, those of one part together.
func all() ([]mutant, error) {
	entries, err := patches.ReadDir("patches")
	if err != nil {
		return nil, err
	}
	var out []mutant
	for _, e := range entries {
		text, err := patches.ReadFile(path.Join("patches", e.Name()))
		if err != nil {
			return nil, err
		}
		m, err := parseMutant(strings.TrimSuffix(e.Name(), ".patch"), string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.Name(), err)
		}
		out = append(out, m)
	}
	slices.SortStableFunc(out, func(a, b mutant) int { return strings.Compare(a.part, b.part) })
	return out, nil
}

func parseMutant(name, text string) (mutant, error) {
	m := mutant{name: name}
	head, body, _ := strings.Cut(text, "@@\n")
	for line := range strings.Lines(head) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		value = strings.TrimSpace(value)
		switch key {
		case "part":
			m.part = value
		case "rule":
			m.rule = value
		case "in":
			m.in = value
		default:
			suite, ok := suites[key]
			if !ok {
				return m, fmt.Errorf("no suite is called %q", key)
			}
			m.killers = append(m.killers, suite(value))
		}
	}
	for line := range strings.Lines(body) {
		switch line[0] {
		case '-':
			m.was += line[1:]
		case '+':
			m.is += line[1:]
		case ' ', '\n': // some editors take the blank from an empty line
			kept := strings.TrimPrefix(line, " ")
			m.was += kept
			m.is += kept
		default:
			return m, fmt.Errorf("a line begins with none of -, + and a blank: %q", line)
		}
	}
	if m.part == "" || m.rule == "" || m.in == "" || len(m.killers) == 0 || m.was == m.is {
		return m, errors.New("it has no part, rule, place or suite, or changes nothing")
	}
	return m, nil
}

// find returns the file that the bug goes into, its text, and the text with the bug.
func (m mutant) find(root string) (file, text, bad string, err error) {
	files, err := filepath.Glob(filepath.Join(root, m.in, "*.go"))
	if err != nil {
		return "", "", "", err
	}
	if len(files) == 0 { // it is no folder
		files = []string{filepath.Join(root, m.in)}
	}
	times := 0
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		b, err := os.ReadFile(f)
		if err != nil {
			return "", "", "", err
		}
		for rest := "\n" + string(b); ; times++ {
			_, after, found := strings.Cut(rest, "\n"+m.was)
			if !found {
				break
			}
			file, text, rest = f, string(b), "\n"+after
		}
	}
	if times != 1 {
		return "", "", "", fmt.Errorf("in %s the lines occur %d times, not once:\n%s", m.in, times, m.was)
	}
	return file, text, strings.Replace("\n"+text, "\n"+m.was, "\n"+m.is, 1)[1:], nil
}

func (m mutant) tiers() []string {
	var names []string
	for _, k := range m.killers {
		if !slices.Contains(names, k.tier) {
			names = append(names, k.tier)
		}
	}
	return names
}

// suite is some tests of one tier.
type suite struct {
	tier   string
	module string // folder of the module
	pkg    string // folder of the package, in the module
	tests  string // as go test -run takes it
	env    []string
	flags  []string
	time   time.Duration // then it hangs
	stalls bool          // which kills as well: the bug stalls somebody
}

// joins says whether k and o can be one run. A pattern with a slash, which goes
// element by element, joins nothing but itself.
func (k suite) joins(o suite) bool {
	return k.tier == o.tier && k.module == o.module && k.pkg == o.pkg && slices.Equal(k.env, o.env) && slices.Equal(k.flags, o.flags) &&
		(k.tests == o.tests || !strings.Contains(k.tests+o.tests, "/"))
}

// args are what go test takes, flags of the test program last.
func (k suite) args() []string {
	return append([]string{"-run", k.tests, k.pkg}, k.flags...)
}

// command is the suite for people to repeat.
func (k suite) command() string {
	var parts []string
	if k.module != "." {
		parts = append(parts, "cd "+k.module+" &&")
	}
	parts = append(parts, k.env...)
	parts = append(parts, "go test -run '"+k.tests+"'", k.pkg)
	return strings.Join(append(parts, k.flags...), " ")
}

// suites makes the suites of a mutant from the lines of its file: what stands before the
// colon says which, what stands behind it are their tests.
var suites = map[string]func(text string) suite{
	"unit":         named(unit),
	"clock":        named(timed),
	"engine":       named(engine),
	"client":       named(client),
	"conformance":  named(conformance),
	"memory":       named(memory),
	"sharding":     named(spread),
	"seam":         named(seam),
	"plainly":      named(plainly),
	"model":        model,
	"sim":          sim,
	"differential": func(string) suite { return differential() },
	"vectors":      func(string) suite { return vectors() },
	"direct":       named(shared),
	"redlock":      named(servers),
	"fence":        named(fence),
	"sqlfence":     named(storedInSQL),
	"pgxfence":     named(storedByPgx),
	"redisfence":   named(storedInRedis),
	"cli":          named(shell),
	"postgres":     named(database),
	"inpostgres":   named(databaseConformance),
	"zookeeper":    named(ensemble),
	"etcd":         named(members),
}

func named(fn func(tests ...string) suite) func(string) suite {
	return func(text string) suite { return fn(strings.Fields(text)...) }
}

// The tiers. What runs in this process is over in seconds, or not at all.
const (
	inProcessTime = 20 * time.Second
	serverTime    = time.Minute
	modelTime     = 3 * time.Minute
)

func only(tests ...string) string { return "^(" + strings.Join(tests, "|") + ")$" }

// unit is the tests of the protocol core, event by event.
func unit(tests ...string) suite {
	return suite{tier: "unit", module: ".", pkg: "./internal/quorum", tests: only(tests...), time: inProcessTime}
}

// shared is the tests of what the drivers of services without nodes of ours share.
func shared(tests ...string) suite {
	return suite{tier: "unit", module: ".", pkg: "./internal/direct", tests: only(tests...), time: inProcessTime}
}

// timed is the tests of the clocks by which leases are measured.
func timed(tests ...string) suite {
	return suite{tier: "unit", module: ".", pkg: "./internal/clock", tests: only(tests...), time: inProcessTime}
}

// engine is the tests of what carries the protocol core out.
func engine(tests ...string) suite {
	return suite{tier: "engine", module: ".", pkg: "./internal/quorum/engine", tests: only(tests...), time: inProcessTime, stalls: true}
}

// client is the tests of the client in virtual time.
func client(tests ...string) suite {
	return suite{tier: "client", module: ".", pkg: ".", tests: only(tests...), time: inProcessTime, stalls: true}
}

// conformance is cases of package locktest, over nodes in this process.
func conformance(cases ...string) suite {
	tests := "^TestConformance(OfSlowNodes)?$/^nodes=[135]$/" + only(cases...)
	return suite{tier: "conformance", module: ".", pkg: "./memory", tests: tests, time: inProcessTime, stalls: true}
}

// memory is the tests of the driver over nodes in this process.
func memory(tests ...string) suite {
	return suite{tier: "conformance", module: ".", pkg: "./memory", tests: only(tests...), time: inProcessTime, stalls: true}
}

// spread is the tests of names over several sets in this process.
func spread(tests ...string) suite {
	return suite{tier: "sharding", module: ".", pkg: "./sharding", tests: only(tests...), time: inProcessTime, stalls: true}
}

// seam is tests over the template of a driver, and over services that can do less.
func seam(tests ...string) suite {
	return suite{tier: "seam", module: ".", pkg: "./driver/template", tests: only(tests...), time: inProcessTime, stalls: true}
}

// plainly is cases of package locktest, over a service that can do little.
func plainly(cases ...string) suite {
	s := seam("TestConformanceOfAPlainService")
	s.tests += "/" + only(cases...)
	return s
}

// model is a row of the model checker.
func model(row string) suite {
	return suite{tier: "model", module: "verify", pkg: "./model", tests: "^TestModel$/^" + strings.ReplaceAll(row, " ", "_") + "$", time: modelTime}
}

// sim is as many seeds of the simulation.
func sim(seeds string) suite {
	return suite{tier: "sim", module: "verify", pkg: "./sim", tests: "^TestSim$", env: []string{"SEEDS=" + seeds}, time: serverTime}
}

// differential compares the scripts on a real server with their twin.
func differential() suite {
	return suite{
		tier: "differential", module: "verify", pkg: "./differential", tests: "^(TestScriptsDoWhatTheTwinDoes|TestScriptsForRedissonDoWhatTheTwinDoes)$",
		env: []string{"SEQUENCES=4000"}, flags: []string{"-rapid.nofailfile", "-rapid.shrinktime=1s"}, time: serverTime,
	}
}

// vectors is the test vectors for other languages, on a real server.
func vectors() suite {
	return suite{tier: "differential", module: "verify", pkg: "./differential", tests: "^TestVectorsAreWhatTheServerDoes$", time: serverTime}
}

// servers is the tests of package redlock on real servers.
func servers(tests ...string) suite {
	return suite{tier: "redlock", module: ".", pkg: "./redlock", tests: only(tests...), time: serverTime, stalls: true}
}

// fence is the tests of a storage that checks tokens.
func fence(tests ...string) suite {
	return suite{tier: "fence", module: ".", pkg: "./fence", tests: only(tests...), time: serverTime}
}

// storedInRedis is tests of what every client passes that package redisfence works
// through.
func storedInRedis(tests ...string) suite {
	return suite{tier: "fence", module: ".", pkg: "./fence/redisfence", tests: "^(TestStore)$/" + only(tests...), time: serverTime}
}

// storedInSQL is the tests of package sqlfence on real databases.
func storedInSQL(tests ...string) suite {
	return suite{tier: "fence", module: "fence/sqlfence/sqltest", pkg: ".", tests: only(tests...), time: serverTime}
}

// storedByPgx is the tests of package pgxfence on a real server.
func storedByPgx(tests ...string) suite {
	return suite{tier: "fence", module: "fence/pgxfence", pkg: ".", tests: only(tests...), time: serverTime}
}

// shell is scripts that run the command.
func shell(scripts ...string) suite {
	return suite{tier: "cli", module: "cmd/holdfast", pkg: ".", tests: "^TestScripts$/" + only(scripts...), time: serverTime, stalls: true}
}

// database is the tests of package postgres on a real server.
func database(tests ...string) suite {
	return suite{tier: "postgres", module: "postgres", pkg: ".", tests: only(tests...), time: serverTime, stalls: true}
}

// databaseConformance is cases of package locktest, over package postgres.
func databaseConformance(cases ...string) suite {
	s := database("TestConformance")
	s.tests += "/^listening$/" + only(cases...)
	return s
}

// ensemble is the tests of package zookeeper on a real ensemble, or with TestConformance/ before its name a case of package
// locktest over it.
func ensemble(tests ...string) suite {
	return suite{tier: "zookeeper", module: "zookeeper", pkg: ".", tests: only(tests...), time: 2 * serverTime, stalls: true}
}

// members is the tests of package etcd on a real cluster.
func members(tests ...string) suite {
	return suite{tier: "etcd", module: "etcd", pkg: ".", tests: only(tests...), time: 2 * serverTime, stalls: true}
}

func tierNames() []string {
	return []string{
		"unit", "engine", "client", "conformance", "sharding", "seam", "model", "sim", "differential",
		"redlock", "postgres", "zookeeper", "etcd", "fence", "cli",
	}
}
