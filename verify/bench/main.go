// Bench compares Holdfast with the Redis lock libraries that Go programs use
// today, on redis-servers that it starts itself, and prints one table.
//
//	go run ./bench                         everything, about twenty minutes
//	go run ./bench -scenarios relay,herd   some of it; -peers, -nodes, -reps and -time likewise
//	go run ./bench -old /path/to/checkout  also beside an older checkout of this repository
//	go run ./bench -leases                 what 10,000 held leases cost a process
//
// # What is compared
//
// All peers run in this process, one after another within a repetition (A B C A B C
// …), so that other work of the machine affects all of them equally; the table has
// the median of each column over the repetitions. Clients of one scenario are
// separate clients with connections of their own, but goroutines of one process.
// Servers keep nothing on disk. Every peer is used as its documentation says for
// that task; see peers.go. Holdfast runs with its defaults: fencing tokens, queue
// and watchdog are on.
//
// A wait is the time that one call to lock takes. It counts when it ends after the
// warm-up; those under way when time is up are let finish and count as well, so that
// nobody looks good by starving somebody. Locks count only within the time.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	if os.Getenv(childVariable) != "" {
		exit(holdLeases(os.Stdin, os.Stdout))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func exit(err error) {
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// settings are what the command line says.
type settings struct {
	scenarios, peers []string
	nodes            []int
	reps             int
	time, warm       time.Duration // of one run
	grace            time.Duration // for waits that are under way when time is up
	waiters          bool          // also measure many waiters
	memory           bool          // also measure what new names leave on a node
	names            int           // so many of them
	storms           bool          // also measure crowds that ask at once
	storm            time.Duration // how long these wait at most
	calm             int           // of their callers, one in so many comes
	crowd            int           // clients that wait for one lock
	settle, idle     time.Duration // how long they are left alone, and looked at
	old              string        // a checkout to compare with; empty: none
	leases           bool          // measure held leases instead
	count            int           // of them
	hold             time.Duration // for so long
	json, svg, md    string        // paths; empty: not written
	profiles         profiles
}

func parse(args []string, errs io.Writer) (settings, error) {
	s := settings{
		grace: 5 * time.Second, warm: 200 * time.Millisecond, waiters: true, memory: true, storms: true, storm: stormMost, calm: 1,
		names: newNames, crowd: manyWaiting, settle: 15 * time.Second, idle: 15 * time.Second,
	}
	var scenarios, peers, nodes string
	var short bool
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(errs)
	f.StringVar(&scenarios, "scenarios", "", "comma-separated; default all: "+strings.Join(append(names(allScenarios), "memory", "storm", "waiters"), " "))
	f.StringVar(&peers, "peers", "", "comma-separated; default all: "+strings.Join(names(allPeers), " "))
	f.StringVar(&nodes, "nodes", "1,5", "numbers of nodes")
	f.IntVar(&s.reps, "reps", 3, "repetitions, of which the median counts")
	f.DurationVar(&s.time, "time", 1500*time.Millisecond, "length of one run")
	f.BoolVar(&short, "short", false, "see that everything works, in half a minute; the figures mean nothing")
	f.BoolVar(&s.leases, "leases", false, "hold leases and report what they cost the process, instead of the table")
	f.IntVar(&s.count, "count", 10_000, "number of leases to hold")
	f.DurationVar(&s.hold, "hold", time.Minute, "how long to hold them")
	f.StringVar(&s.old, "old", "", "also compare with the bench of this older checkout, run by turns, for names that come back")
	f.StringVar(&s.json, "json", "", "write the results to this file")
	f.StringVar(&s.svg, "svg", "", "write a plot of the waits to this file")
	f.StringVar(&s.md, "md", "", "put the tables between the marks in this file")
	f.StringVar(&s.profiles.cpu, "cpuprofile", "", "write a CPU profile of all runs to this file")
	f.StringVar(&s.profiles.mem, "memprofile", "", "write a profile of all allocations to this file")
	f.StringVar(&s.profiles.block, "blockprofile", "", "write a profile of blocking to this file")
	if err := f.Parse(args); err != nil {
		return s, err
	}
	if f.NArg() > 0 {
		return s, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if short {
		s.reps, s.time, s.warm, s.grace, s.names = 1, 50*time.Millisecond, 20*time.Millisecond, 100*time.Millisecond, 100
		s.calm, s.crowd, s.settle, s.idle = 100, 20, 10*time.Millisecond, 100*time.Millisecond
	}
	for n := range strings.SplitSeq(nodes, ",") {
		i, err := strconv.Atoi(n)
		if err != nil || i < 1 || i > 9 {
			return s, fmt.Errorf("-nodes %s: give numbers from 1 to 9", nodes)
		}
		s.nodes = append(s.nodes, i)
	}
	if s.reps < 1 || s.time <= 0 {
		return s, errors.New("-reps and -time must be positive")
	}
	var err error
	if scenarios != "" {
		rest := strings.Split(scenarios, ",")
		rest, s.waiters = without(rest, "waiters")
		rest, s.memory = without(rest, "memory")
		rest, s.storms = without(rest, "storm")
		s.scenarios, err = rest, known("scenario", rest, names(allScenarios))
	} else {
		s.scenarios = names(allScenarios)
	}
	s.peers = names(allPeers)
	if peers != "" {
		s.peers = strings.Split(peers, ",")
		err = errors.Join(err, known("peer", s.peers, names(allPeers)))
	}
	return s, err
}

func without(list []string, name string) (rest []string, had bool) {
	rest = slices.DeleteFunc(list, func(s string) bool { return s == name })
	return rest, len(rest) < len(list)
}

func known(kind string, given, all []string) error {
	for _, name := range given {
		if !slices.Contains(all, name) {
			return fmt.Errorf("no %s %q; there are: %s", kind, name, strings.Join(all, " "))
		}
	}
	return nil
}

func run(ctx context.Context, args []string, out, errs io.Writer) (err error) {
	s, err := parse(args, errs)
	if err != nil {
		return err
	}
	if s.leases {
		return leases(ctx, s, out)
	}
	stop, err := s.profiles.start()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()

	most := slices.Max(s.nodes)
	if s.storms {
		most = max(most, storms[len(storms)-1].nodes)
	}
	all, err := startServers(ctx, most)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, all.stop()) }()
	report := report{Machine: machine(all)}
	report.Reps, report.Seconds = s.reps, s.time.Seconds()
	if report.Rows, err = compare(ctx, s, all, errs); err != nil {
		return err
	}
	if s.old != "" {
		if report.Older, err = older(ctx, s, errs); err != nil {
			return err
		}
	}
	if s.memory {
		if report.Left, err = leftovers(ctx, s, all[:1]); err != nil {
			return err
		}
	}
	if s.storms {
		if report.Storms, err = measureStorms(ctx, s, all, errs); err != nil {
			return err
		}
	}
	if s.waiters {
		if report.Waiters, err = manyWaiters(ctx, s, all); err != nil {
			return err
		}
	}
	report.Claims = judge(&report)
	if _, err := io.WriteString(out, report.text()); err != nil {
		return err
	}
	return report.save(s)
}

// profiles are where to write what the runtime sees.
type profiles struct{ cpu, mem, block string }

func (p profiles) start() (stop func() error, err error) {
	var cpu *os.File
	if p.cpu != "" {
		if cpu, err = os.Create(p.cpu); err != nil {
			return nil, err
		}
		if err := pprof.StartCPUProfile(cpu); err != nil {
			return nil, err
		}
	}
	if p.mem != "" {
		runtime.MemProfileRate = 4096
	}
	if p.block != "" {
		runtime.SetBlockProfileRate(1000)
	}
	return func() error {
		var errs error
		if cpu != nil {
			pprof.StopCPUProfile()
			errs = cpu.Close()
		}
		return errors.Join(errs, writeProfile("allocs", p.mem), writeProfile("block", p.block))
	}, nil
}

func writeProfile(name, path string) error {
	if path == "" {
		return nil
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(pprof.Lookup(name).WriteTo(f, 0), f.Close())
}
