package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// mutant is one bug.
type mutant struct {
	name string
	rule string // what it breaks
	file string // from the root of the repository
	was  string // occurs exactly once in file
	is   string
	// killers are the tests that are there to notice. All must.
	killers []suite
}

// apply puts the bug into text.
func (m mutant) apply(text string) (string, error) {
	switch n := strings.Count(text, m.was); {
	case m.was == m.is:
		return "", errors.New("it changes nothing")
	case n != 1:
		return "", fmt.Errorf("in %s the text occurs %d times, not once:\n%s", m.file, n, m.was)
	}
	return strings.Replace(text, m.was, m.is, 1), nil
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
	return suite{tier: "conformance", module: ".", pkg: "./memory", tests: "^TestConformance(OfSlowNodes)?$/^nodes=[135]$/" + only(cases...), time: inProcessTime, stalls: true}
}

// model is a row of the model checker.
func model(row string) suite {
	return suite{tier: "model", module: "verify", pkg: "./model", tests: "^TestModel$/^" + strings.ReplaceAll(row, " ", "_") + "$", time: modelTime}
}

// sim is some seeds of the simulation.
func sim(seeds int) suite {
	return suite{tier: "sim", module: "verify", pkg: "./sim", tests: "^TestSim$", env: []string{fmt.Sprint("SEEDS=", seeds)}, time: serverTime}
}

// differential compares the scripts on a real server with their twin.
func differential() suite {
	return suite{
		tier: "differential", module: "verify", pkg: "./differential", tests: "^TestScriptsDoWhatTheTwinDoes$",
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

// storage is the tests of a storage that checks tokens.
func storage(pkg string, tests ...string) suite {
	return suite{tier: "fence", module: ".", pkg: pkg, tests: only(tests...), time: serverTime}
}

// storedInRedis is tests of what every client passes that package redisfence works
// through.
func storedInRedis(tests ...string) suite {
	s := storage("./fence/redisfence", "TestStore")
	s.tests += "/" + only(tests...)
	return s
}

// shell is scripts that run the command.
func shell(scripts ...string) suite {
	return suite{tier: "cli", module: "cmd/holdfast", pkg: ".", tests: "^TestScripts$/" + only(scripts...), time: serverTime, stalls: true}
}

func tierNames() []string {
	return []string{"unit", "engine", "client", "conformance", "seam", "model", "sim", "differential", "redlock", "fence", "cli"}
}
