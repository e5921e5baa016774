//go:build linux

// Chaos runs Holdfast on real servers under faults, and compares what the clients saw with what Holdfast promises.
//
//	go run ./chaos -minutes 3                    on Redis: the schedule of schedule.json, again and again
//	go run ./chaos -backend etcd                 on etcd, by schedule-etcd.json; or on cluster, postgres, mariadb, mysql, sqlite or zookeeper
//	go run ./chaos -backend etcd-auth            on etcd with logins that expire after three seconds
//	go run ./chaos -backend sentinel             on a master that Sentinels replace; on sentinel-lax, without min-replicas-to-write
//	go run ./chaos -only client-close,node-full  only the windows of these classes
//	go run ./chaos -schedule mine.json -out dir  another schedule; report, timeline and histories go to dir
//	go run ./chaos -nodes 3                      on three servers of Redis, not five, with the faults on a majority or minority of these
//	go run ./chaos -elections 100                kill the leader of an election 100 times, and have as many resign
//	go run ./chaos -older ./chaos-v0.1.0         beside clients of another version
//	go run ./chaos -minutes 0.1 -keep            keep the histories of all clients
//
// # What runs
//
// The servers of a backend run behind proxies: five of Redis with wall clocks that chaos can set, a Redis Cluster of
// three masters and three replicas, three members of etcd or ZooKeeper, or a PostgreSQL and a pooler before it. Eight
// processes use Holdfast, and three use the recipe that programs use there today. The locks guard two storages: a Redis
// (package redisfence) and a PostgreSQL (package sqlfence), and also the database in which the locks are. Every holder
// reads a value, thinks and writes the next value, in both storages and in a third one without a fence. It never checks
// whether it still has the lock: the storages must reject a late write. The report counts what the third storage loses.
// A test in virtual time shows that the judge finds such losses.
//
// # What is checked
//
// Every client records what it does, with times of a clock that all processes of a host share. The checkers sort and
// sweep these histories: see check.go. Porcupine, an independent checker, judges the same histories: see porcupine.go.
// docs/verification.md lists the promises for each class of faults.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/rig/tempo"
	"github.com/holdfast-go/holdfast/verify/tool"
)

func main() {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // clients would log each fault; the report counts them
	if text := os.Getenv(orderVariable); text != "" {
		tempo.Adopt()
		tool.Exit("chaos", runClient(text))
	}
	tool.Run("chaos", func(ctx context.Context) error { return runCommand(ctx, os.Args[1:], os.Stdout, os.Stderr) })
}

var errBroken = errors.New("a promise was broken; see the report")

// settings holds the flags of the command line.
type settings struct {
	length    time.Duration
	backend   string
	schedule  string // path; empty: the backend's default
	only      []string
	out       string // folder; empty: a new temporary one
	seed      uint64
	keep      bool   // also keep histories of windows without a violation
	nodes     int    // number of nodes that the faults strike; 0: as in the schedule
	elections int    // number of leaders to kill, and to make resign, instead of the windows
	older     string // another build of this program, for half of the clients; empty: none
	tables    string // file with the servers' first tables; empty: this build's
}

func runCommand(ctx context.Context, args []string, out, errs io.Writer) error {
	var s settings
	var minutes float64
	var only string
	f := flag.NewFlagSet("chaos", flag.ContinueOnError)
	f.SetOutput(errs)
	f.Float64Var(&minutes, "minutes", 3.25, "how long to run; the window that has begun is finished")
	f.StringVar(&s.backend, "backend", "redis", "where the locks are: "+strings.Join(slices.Sorted(maps.Keys(backends)), ", "))
	f.StringVar(&s.schedule, "schedule", "", "file with the schedule; default: the one that is built in")
	f.StringVar(&only, "only", "", "comma-separated classes: leave out the windows of all others")
	f.StringVar(&s.out, "out", "", "folder for report.txt, report.json, timeline.svg and the histories of failures")
	f.BoolVar(&s.keep, "keep", false, "keep the histories of all windows, not only of those with a violation")
	f.IntVar(&s.nodes, "nodes", 0, "so many servers of Redis, and the faults strike a majority or minority of these; default: 5")
	f.IntVar(&s.elections, "elections", 0, "hold elections instead, in which so many leaders are killed and as many resign")
	f.StringVar(&s.older, "older", "", "another build of this program: half of the clients run it, and change places when they are started again")
	f.StringVar(&s.tables, "tables", "", "postgres: file with the SQL of an older version's tables, which the class migration brings up to date under load")
	f.Uint64Var(&s.seed, "seed", 0, "chooses the victims; 0: at random")
	if err := f.Parse(args); err != nil {
		return err
	}
	s.only = strings.FieldsFunc(only, func(r rune) bool { return r == ',' })
	s.length = time.Duration(minutes * float64(time.Minute))
	var r interface {
		Text() string
		Passed() bool
	}
	var err error
	if s.elections > 0 {
		r, err = runElection(ctx, s, errs)
	} else {
		r, err = runSchedule(ctx, s, errs)
	}
	if err != nil {
		return err
	}
	io.WriteString(out, r.Text())
	if !r.Passed() {
		return errBroken
	}
	return nil
}

// runSchedule runs a schedule and reports.
func runSchedule(ctx context.Context, set settings, logs io.Writer) (_ *Report, err error) {
	schedule, histories, program, err := set.prepareRun()
	if err != nil {
		return nil, err
	}
	if set.seed == 0 {
		set.seed = rand.Uint64()
	}
	back, guarded := schedule.backend(), new(storages)
	place, err := set.siteFor(schedule)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, place.stop(), guarded.stop()) }()
	if err := errors.Join(place.start(ctx, schedule), guarded.start(ctx)); err != nil {
		return nil, err
	}
	where := stores{Redis: guarded.redis.Addr(), SQL: guarded.sql.DSN(), Row: place.valuesDSN()}
	stores, err := where.open(true)
	if err != nil {
		return nil, err
	}
	defer stores.close()

	start := monotonicNow() + int64(back.lead(schedule))
	spans := schedule.planSpans(start, set.length)
	crew, err := launchFleet(program, set.older, clientOrders(schedule, place, where, histories, start, set.length), logs)
	if err != nil {
		return nil, err
	}
	defer crew.killAll()

	r := newReport(set.seed, schedule)
	if crew.isMixed() {
		r.Mix = new(Mix)
	}
	nem := &nemesis{site: place, fleet: crew, schedule: schedule, rand: rand.New(rand.NewPCG(set.seed, 0))}
	// A lease is renewed after a third of its TTL, and then repeatedly until its end.
	still := &standstill{least: time.Duration(schedule.TTL) / 6, disk: back.synced}
	j := &judge{
		site: place, stores: stores, nemesis: nem, schedule: schedule, still: still, dir: histories, keep: set.keep, report: r,
		timeline: &timeline{start: start, keys: schedule.Keys},
	}
	if err := j.runWindows(ctx, spans); err != nil {
		return nil, err
	}
	return r, j.saveReport(set.out, logs)
}

// prepareRun reads the schedule, creates the folders, and finds the program for the clients.
func (s *settings) prepareRun() (schedule *Schedule, histories, program string, err error) {
	if schedule, err = loadSchedule(s.backend, s.schedule); err != nil {
		return nil, "", "", err
	}
	schedule.onNodes(s.nodes)
	if err := errors.Join(schedule.keepClasses(s.only), schedule.check()); err != nil {
		return nil, "", "", err
	}
	if histories, err = s.makeFolders(); err != nil {
		return nil, "", "", err
	}
	program, err = os.Executable()
	return schedule, histories, program, err
}

// siteFor returns the site for the schedule's servers.
func (s *settings) siteFor(schedule *Schedule) (site, error) {
	place := schedule.backend().site()
	if s.tables == "" {
		return place, nil
	}
	p, ok := place.(*postgresSite)
	if !ok {
		return nil, fmt.Errorf("-tables is for postgres, not for %s", schedule.Backend)
	}
	p.tables = s.tables
	return p, nil
}

// makeFolders creates the folder for the report, a temporary one if none is named, and an empty folder for
// histories in it.
func (s *settings) makeFolders() (histories string, err error) {
	if s.out == "" {
		if s.out, err = os.MkdirTemp("", "holdfast-chaos-report-"); err != nil {
			return "", err
		}
	}
	histories, err = filepath.Abs(filepath.Join(s.out, "history"))
	if err != nil {
		return "", err
	}
	return histories, errors.Join(os.MkdirAll(histories, 0o700), dropHistories(histories))
}

// runWindows runs the faults of all windows and judges each window soon after its end. It blocks until the
// last is judged, the clients have ended and the report has the errors of the run, or until ctx ends.
func (j *judge) runWindows(ctx context.Context, spans []span) error {
	watched, rest := context.WithCancel(ctx)
	defer rest()
	go j.still.watch(watched)
	var faults sync.WaitGroup
	faults.Go(func() {
		for i := range spans {
			j.nemesis.causeWindowFaults(ctx, &spans[i])
		}
	})
	quiet := int64(j.schedule.TTL) + int64(grace)
	for i := range spans {
		if s := &spans[i]; s.Class == after {
			faults.Wait()
			j.noteTrouble(j.nemesis.fleet.await(ctx, time.Duration(s.end+quiet-monotonicNow())))
			s.end = min(s.end, monotonicNow())
		}
		sleep(ctx, time.Duration(spans[i].end+quiet-monotonicNow()))
		if ctx.Err() != nil {
			break
		}
		if err := j.judgeWindow(ctx, &spans[i]); err != nil {
			j.noteTrouble(fmt.Errorf("window %d: %w", i, err))
		}
	}
	faults.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	stills, longest, err := j.still.summarize()
	j.report.Stills, j.report.Longest = stills, Duration(longest)
	j.noteTrouble(err)
	j.report.Seconds = time.Duration(spans[len(spans)-1].end - spans[0].start).Seconds()
	for _, n := range j.site.nodes() {
		j.noteTrouble(n.unexpectedExits())
	}
	j.noteTrouble(j.nemesis.errs...)
	return nil
}

// noteTrouble records a failure of the run itself.
func (j *judge) noteTrouble(errs ...error) {
	for _, err := range errs {
		if err != nil {
			j.report.Troubles = append(j.report.Troubles, err.Error())
		}
	}
}

// grace is the time after a window, beyond the TTL, by which everything in it has ended.
const grace = 1500 * time.Millisecond

// clientOrders returns the orders of Holdfast's clients, then of the other library's, then of the operator.
func clientOrders(s *Schedule, place site, guarded stores, histories string, start int64, length time.Duration) []order {
	var out []order
	for i := range s.Clients + s.Peers {
		o := order{
			Number: i, Name: fmt.Sprintf("holdfast%d", i), Peer: i >= s.Clients, Stores: guarded, Narrow: i < s.Clients && i >= s.Clients-s.Narrow,
			History: histories, Start: start, Length: Duration(length), Schedule: *s,
		}
		if o.Peer {
			o.Name = fmt.Sprintf("%s%d", s.backend().peer, i-s.Clients)
		}
		place.setConnections(&o, i)
		out = append(out, o)
	}
	if s.hasDuty(passing) {
		o := order{Name: operatorRole, Role: operatorRole, Stores: guarded, History: histories, Start: start, Length: Duration(length), Schedule: *s}
		place.setConnections(&o, 0)
		out = append(out, o)
	}
	return out
}

// saveReport writes the report and prints its path.
func (j *judge) saveReport(dir string, logs io.Writer) error {
	data, err := json.MarshalIndent(j.report, "", " ")
	if err != nil {
		return err
	}
	for name, text := range map[string]string{
		"report.txt": j.report.Text(), "report.json": string(data), "timeline.svg": j.timeline.SVG(),
	} {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	fmt.Fprintln(logs, "chaos: report.txt, report.json, timeline.svg and the histories of failures are in", dir)
	return err
}
