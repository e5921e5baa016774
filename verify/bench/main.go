// Bench measures Holdfast beside the lock libraries that Go programs use today, on servers that it starts itself, and
// prints tables.
//
//	go run ./bench                              the scenario locks, in twenty minutes
//	go run ./bench -scenarios relay,herd        two loads of it; -services, -peers, -reps and -time choose further
//	go run ./bench -scenarios backends,storm    other scenarios; "all" runs every one
//	go run ./bench -old /path/to/checkout       also beside an older checkout of this repository
//	go run ./bench -scenarios all -short        check that everything works; the figures mean nothing
//
// The scenarios:
//
//	locks     libraries for Redis, on one server and on five
//	backends  Holdfast on each service that it has a driver for, beside what programs use there
//	databases the same on databases, and the cost of many waiters for one lock; -services mariadb-far,mysql-far: 1 ms away, mysql-fsync: synced
//	capacity  the cost of locks for one node and one process, and how many sets of nodes a load needs
//	storm     many callers that acquire at once
//	kinds     readers and writers of one name; semaphores
//
// # How libraries are compared
//
// All libraries run in this process, one after another within a round (A B C B C A …), so that other work of the
// machine affects all equally. A figure is the median over the rounds. The ratio is the rate of the first library of
// the table divided by the row's rate, in each round, and the median of these. Clients of one load are separate clients
// with separate connections, but goroutines of one process. Every library is used as its documentation says for that
// task. Holdfast runs with its defaults: fencing tokens, queue and watchdog are on.
//
// A wait is the time that a caller needs to get the lock. It counts if it ends after the warm-up. Waits in progress when
// time is up may end and count as well, so that a library does not look better if it starves a waiter. Locks count only
// within the time.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/verify/tool"
)

// scenario is a group of measurements.
type scenario struct {
	name     string
	parts    []string      // names for -scenarios that run only a part
	services []string      // default of -services
	time     time.Duration // default of -time
	run      func(context.Context, *session) error
}

var scenarios = []scenario{
	{"locks", namesOf(lockLoads), []string{"redis-1", "redis-5"}, 1500 * time.Millisecond, func(ctx context.Context, s *session) error {
		return errors.Join(s.compareLibraries(ctx, lockLoads), s.compareWithOlder(ctx))
	}},
	{
		"backends", namesOf(backendLoads),
		[]string{"redis-1", "redis-3", "postgres", "postgres-fsync", "etcd", "zookeeper"},
		400 * time.Millisecond,
		func(ctx context.Context, s *session) error { return s.compareLibraries(ctx, backendLoads) },
	},
	{"databases", nil, []string{"mariadb", "mariadb-fsync", "mysql", "postgres", "postgres-listeners", "sqlite"}, 400 * time.Millisecond, compareDatabases},
	{"capacity", nil, []string{"redis-1"}, 5 * time.Second, measureCapacity},
	{"storm", nil, []string{"redis-1", "redis-3"}, time.Minute, measureStorms},
	{"kinds", []string{"readers", "semaphores"}, []string{"redis-1", "redis-3"}, 3 * time.Second, measureKinds},
}

func namesOf[T interface{ String() string }](list []T) []string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = v.String()
	}
	return out
}

// settings holds the flags of the command line.
type settings struct {
	scenarios, services, peers []string
	reps                       int
	time, warm                 time.Duration // duration of one run
	grace                      time.Duration // extra time for unfinished waits
	scale                      float64       // factor for the numbers of names, leases, clients and callers
	old                        string        // a checkout to compare with; empty: none
	json, svg, cpuProfile      string        // paths; empty: not written
}

// session is one run of a scenario.
type session struct {
	settings
	scenario
	out, progress io.Writer
	report        *report
}

func main() {
	tool.Run("bench", func(ctx context.Context) error { return runCommand(ctx, os.Args[1:], os.Stdout, os.Stderr) })
}

func parseSettings(args []string, errs io.Writer) (s settings, err error) {
	s = settings{warm: 200 * time.Millisecond, grace: 5 * time.Second}
	var chosen, services, peers string
	var short bool
	var all []string
	for _, sc := range scenarios {
		all = append(append(all, sc.name), sc.parts...)
	}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(errs)
	f.StringVar(&chosen, "scenarios", "locks", "comma-separated; all, or of scenarios and their parts: "+strings.Join(all, " "))
	f.StringVar(&services, "services", "", "comma-separated; default those of the scenario: redis-1 to redis-9 "+strings.Join(namesOf(startable), " "))
	f.StringVar(&peers, "peers", "", "libraries, comma-separated; default all that fit")
	f.IntVar(&s.reps, "reps", 3, "repetitions, of which the median counts")
	f.DurationVar(&s.time, "time", 0, "length of one run; default that of the scenario")
	f.Float64Var(&s.scale, "scale", 1, "by what to multiply the numbers of names, leases, clients and callers in capacity and storm")
	f.BoolVar(&short, "short", false, "see that everything works; the figures mean nothing")
	f.StringVar(&s.old, "old", "", "also compare latency and throughput with the bench of this older `checkout`, run by turns")
	f.StringVar(&s.json, "json", "", "write the rows to this `file`")
	f.StringVar(&s.svg, "svg", "", "write a plot of the waits in relay and mix to this `file`")
	f.StringVar(&s.cpuProfile, "cpuprofile", "", "write a CPU profile of all runs to this `file`")
	if err := f.Parse(args); err != nil {
		return s, err
	}
	if short {
		s.reps, s.time, s.warm, s.grace, s.scale = 1, 50*time.Millisecond, 20*time.Millisecond, 100*time.Millisecond, 0.01
	}
	if f.NArg() > 0 || s.reps < 1 || s.time < 0 || s.scale <= 0 {
		return s, fmt.Errorf("-reps, -time and -scale must be positive, and nothing may stand behind the flags: %q", f.Args())
	}
	s.scenarios, err = chooseFrom("scenario", chosen, append(all, "all"))
	s.services = slices.DeleteFunc(strings.Split(services, ","), func(name string) bool { return name == "" })
	for _, name := range s.services {
		if findStarter(name) == nil {
			err = errors.Join(err, fmt.Errorf("no service %q; -h lists them", name))
		}
	}
	if peers != "" {
		var unknown error
		s.peers, unknown = chooseFrom("library", peers, libraryNames())
		err = errors.Join(err, unknown)
	}
	return s, err
}

func chooseFrom(kind, given string, all []string) ([]string, error) {
	list := strings.Split(given, ",")
	for _, name := range list {
		if !slices.Contains(all, name) {
			return nil, fmt.Errorf("no %s %q; there are: %s", kind, name, strings.Join(all, " "))
		}
	}
	return list, nil
}

// wantsPart reports whether the command line asks for a part of a scenario.
func (s *session) wantsPart(part string) bool {
	for _, name := range []string{"all", s.name, part} {
		if slices.Contains(s.settings.scenarios, name) {
			return true
		}
	}
	return false
}

func runCommand(ctx context.Context, args []string, out, progress io.Writer) (err error) {
	set, err := parseSettings(args, progress)
	if err != nil {
		return err
	}
	if set.cpuProfile != "" {
		file, err := os.Create(set.cpuProfile)
		if err != nil {
			return err
		}
		defer file.Close()
		if err := pprof.StartCPUProfile(file); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	r := &report{Machine: describeMachine()}
	fmt.Fprintf(out, "%s; clients, servers and libraries share it.\n", r.Machine)
	for _, sc := range scenarios {
		s := &session{settings: set, scenario: sc, out: out, progress: progress, report: r}
		if !s.wantsPart(sc.name) && !slices.ContainsFunc(sc.parts, s.wantsPart) {
			continue
		}
		if s.settings.time == 0 {
			s.settings.time = sc.time
		}
		fmt.Fprintf(out, "\n## %s\n\n", sc.name)
		warnIfBusy(ctx, out, "before these measurements")
		if err := sc.run(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", sc.name, err)
		}
		warnIfBusy(ctx, out, "after these measurements")
	}
	return r.saveFiles(set)
}

// saveFiles writes the files that the command line names.
func (r *report) saveFiles(s settings) error {
	var errs error
	if s.json != "" {
		text, err := json.MarshalIndent(r, "", "  ")
		if err == nil {
			err = os.WriteFile(s.json, append(text, '\n'), 0o644)
		}
		errs = err
	}
	if s.svg != "" {
		errs = errors.Join(errs, os.WriteFile(s.svg, []byte(plotWaits(r)), 0o644))
	}
	return errs
}
