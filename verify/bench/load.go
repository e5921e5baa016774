package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/internal/rig/child"
)

// load describes the locking work of the workers, the same for every library.
type load struct {
	name    string
	clients int  // each with connections of its own
	workers int  // goroutines of each client
	shared  bool // all workers use one lock; otherwise each has its own
	fresh   bool // each lock has a name that was never used before
	names   int  // number of reused names per worker; 0: one
	inside  time.Duration
	outside time.Duration
	fault   fault
	split   int      // splits each repetition into that many shorter rounds; 0: 1
	only    []string // libraries to run; nil: all
	most    int      // maximal number of nodes; 0: any
	enough  int      // locks per team after which the run ends; 0: it ends by time
}

// fault is a fault of the nodes.
type fault int

const (
	noFault fault = iota
	killed        // the last node is killed when the measurement begins
	hung          // the last node is suspended: its connections stay open
	slow          // a millisecond is added to every reply of every node
)

// uncontendedSplit is the split of loads in which no client waits for another. There the libraries differ less
// than the machine changes from one second to the next, so there are more and shorter rounds.
const uncontendedSplit = 3

var lockLoads = []load{
	{name: "new-latency", clients: 1, workers: 1, fresh: true, split: uncontendedSplit},
	{name: "new-throughput", clients: 1, workers: 64, fresh: true, split: uncontendedSplit},
	{name: "latency", clients: 1, workers: 1, split: uncontendedSplit},
	{name: "throughput", clients: 1, workers: 64, split: uncontendedSplit},
	{name: "relay", clients: 8, workers: 1, shared: true, inside: time.Millisecond, outside: 2 * time.Millisecond},
	{name: "handoff", clients: 8, workers: 1, shared: true},
	{name: "herd", clients: 1, workers: 64, shared: true},
	{name: "mix", clients: 8, workers: 8, shared: true},
	{name: "queue-256", clients: 256, workers: 1, shared: true, inside: time.Millisecond, only: []string{holdfastName}, most: 1},
	{name: "dead", clients: 1, workers: 1, fault: killed, split: uncontendedSplit},
	{name: "hung", clients: 1, workers: 1, fault: hung, split: uncontendedSplit},
	{name: "slow-1", clients: 1, workers: 1, fault: slow, split: uncontendedSplit},
	{name: "slow-8", clients: 1, workers: 8, fault: slow, split: uncontendedSplit},
}

var backendLoads = []load{
	{name: "one-name", clients: 1, workers: 1},
	{name: "known-names", clients: 1, workers: 1, names: 64},
	{name: "new-names", clients: 1, workers: 1, fresh: true},
	{name: "new-names-8", clients: 8, workers: 1, fresh: true},
	{name: "hand-over-2", clients: 2, workers: 1, shared: true},
	{name: "hand-over-8", clients: 8, workers: 1, shared: true},
}

func (l load) String() string { return l.name }

// failsNode reports whether one node fails.
func (l load) failsNode() bool { return l.fault == killed || l.fault == hung }

// team is a set of clients of one library in a run, with the same number of workers each.
type team struct {
	library
	clients, workers int
}

// tally holds the observations of one worker.
type tally struct {
	share         int // its client, or itself if all share a client: fairness is measured between shares
	waits         []time.Duration
	locks         int
	longest       time.Duration // longest wait, including failed and unfinished waits
	stuck, failed int
}

// runningLoad is a load in progress.
type runningLoad struct {
	load
	from    time.Time     // only waits that end later count
	over    chan struct{} // closed at the end of the measurement
	end     func()        // closes over
	last    atomic.Int64  // worker that had the lock last
	passed  atomic.Int64  // number of passes to another worker
	counted []atomic.Int64
}

var errCut = errors.New("the wait did not end")

// measureLoad runs a load once. A run of several teams shows how they share one lock.
func measureLoad(ctx context.Context, s settings, sv *service, l load, teams ...team) (out []sample, err error) {
	prefix, addrs, stop, err := sv.prepareService(l.fault)
	if err != nil {
		return nil, err
	}
	defer stop()
	clients := make([][]client, len(teams))
	warm := min(s.warm, s.time)
	for i, t := range teams {
		clients[i], err = openAll(ctx, t, addrs, prefix, l.names)
		defer closeAll(clients[i])
		if err != nil {
			return nil, err
		}
		warm += time.Duration(t.clients) * 2 * time.Millisecond // time for each to get its place in the queue
	}
	runtime.GC()
	r := &runningLoad{load: l, from: time.Now().Add(warm), over: make(chan struct{}), counted: make([]atomic.Int64, len(teams))}
	r.end = sync.OnceFunc(func() { close(r.over) })
	cut, cancel := context.WithDeadline(ctx, r.from.Add(s.time+s.grace))
	var working sync.WaitGroup
	defer working.Wait()
	defer cancel()
	defer r.end()
	tallies := r.startWorkers(cut, &working, prefix, clients, teams)

	time.Sleep(time.Until(r.from)) // warm-up
	mend, err := sv.causeFault(l.fault)
	if err != nil {
		return nil, err
	}
	meter := func() (r costReading, err error) {
		if l.fault == noFault { // a fault explains the error, not the library
			r, err = sv.readCosts(ctx)
		}
		return r, err
	}
	before, err1 := meter()
	begin := time.Now()
	select {
	case <-time.After(s.time): // the measurement
	case <-r.over:
	case <-ctx.Done():
	}
	elapsed := time.Since(begin)
	r.end()
	after, err2 := meter()
	working.Wait()
	out = r.samplesOf(tallies, elapsed)
	if len(teams) == 1 && l.fault == noFault {
		out[0].addSpent(after.costsSince(before, teams[0].direct))
	}
	return out, errors.Join(err1, err2, mend(ctx))
}

// samplesOf returns the figures of each team. Hand-overs are counted only if one team has the lock to itself.
func (r *runningLoad) samplesOf(tallies [][]*tally, elapsed time.Duration) (out []sample) {
	for _, t := range tallies {
		out = append(out, newSample(t, elapsed))
	}
	if len(out) == 1 && r.shared {
		out[0].figures["hand-overs/s"] = float64(r.passed.Load()) / elapsed.Seconds()
	}
	return out
}

// startWorkers starts all workers and returns their tallies by team.
func (r *runningLoad) startWorkers(ctx context.Context, working *sync.WaitGroup, prefix string, clients [][]client, teams []team) [][]*tally {
	tallies := make([][]*tally, len(teams))
	worker := 0
	for i, t := range teams {
		for number, c := range clients[i] {
			for range t.workers {
				mine, next, id := &tally{share: number}, r.nextKeyFunc(prefix, worker), int64(worker)
				if t.clients == 1 {
					mine.share = worker
				}
				worker++
				tallies[i] = append(tallies[i], mine)
				working.Go(func() {
					r.runWorker(ctx, r.over, c, next, func(asked time.Time, err error) { r.noteWait(i, id, mine, asked, err) })
				})
			}
		}
	}
	return tallies
}

// noteWait records a wait that has ended.
func (r *runningLoad) noteWait(team int, worker int64, t *tally, asked time.Time, err error) {
	got := time.Now()
	if got.After(r.from) {
		t.longest = max(t.longest, got.Sub(asked))
	}
	switch {
	case errors.Is(err, errCut):
		t.stuck++
		return
	case err != nil:
		t.failed++
		return
	}
	another := r.shared && r.last.Swap(worker) != worker
	if got.Before(r.from) {
		return
	}
	t.waits = append(t.waits, got.Sub(asked))
	if isClosed(r.over) {
		return
	}
	t.locks++
	if another {
		r.passed.Add(1)
	}
	if r.enough == 0 {
		return
	}
	r.counted[team].Add(1)
	for i := range r.counted {
		if r.counted[i].Load() < int64(r.enough) {
			return
		}
	}
	r.end()
}

// runWorker acquires and releases locks until over is closed. It reports each wait, with an error if the caller
// got no lock. The wait then continues.
func (l *load) runWorker(ctx context.Context, over <-chan struct{}, c client, next func() string, report func(asked time.Time, err error)) {
	for asked := time.Now(); !isClosed(over); {
		unlock, err := c.lock(ctx, next())
		if ctx.Err() != nil {
			report(asked, errCut)
			return
		}
		report(asked, err)
		if err != nil {
			time.Sleep(time.Millisecond) // a caller would also pause before it tries again
			continue
		}
		if l.inside > 0 {
			time.Sleep(l.inside) // work under the lock
		}
		if err := unlock(ctx); err != nil && ctx.Err() == nil {
			report(time.Now(), err)
		}
		if l.outside > 0 {
			time.Sleep(l.outside) // work without the lock
		}
		asked = time.Now()
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// nextKeyFunc returns a function that returns the key of a worker's next lock.
func (l *load) nextKeyFunc(prefix string, worker int) func() string {
	key := prefix
	if !l.shared {
		key += "/" + strconv.Itoa(worker)
	}
	used := 0
	return func() string {
		used++
		switch {
		case l.fresh:
			return key + "/" + strconv.Itoa(used)
		case l.names > 0:
			return prefix + "/" + strconv.Itoa(used%l.names)
		}
		return key
	}
}

// openAll opens the clients of a team. Each acquires a lock once, so that its connections are open and the
// servers have its scripts. The first client also uses the names that must be known to the servers.
func openAll(ctx context.Context, t team, addrs []string, prefix string, known int) ([]client, error) {
	var clients []client
	for i := range t.clients {
		c, err := t.open(ctx, addrs, t.workers)
		if err != nil {
			return clients, err
		}
		clients = append(clients, c)
		if err := acquireFirst(ctx, c, prefix+"/first/"+strconv.Itoa(i)); err != nil {
			return clients, err
		}
	}
	for i := range known {
		if err := acquireFirst(ctx, clients[0], prefix+"/"+strconv.Itoa(i)); err != nil {
			return clients, err
		}
	}
	return clients, nil
}

// acquireFirst acquires and releases a lock. It retries: on a busy machine rueidislock can miss its turn at a
// free lock and then wait forever.
func acquireFirst(ctx context.Context, c client, key string) (err error) {
	for range 5 {
		if err = lockOnce(ctx, c, key); err == nil {
			break
		}
	}
	return err
}

// lockOnce acquires and releases a lock, with a timeout of two seconds.
func lockOnce(ctx context.Context, c client, key string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	unlock, err := c.lock(ctx, key)
	if err != nil {
		return err
	}
	return unlock(ctx)
}

// closeAll closes the clients. It does not wait long for a client that cannot end.
func closeAll(clients []client) {
	var closing sync.WaitGroup
	for _, c := range clients {
		closing.Go(c.close)
	}
	done := make(chan struct{})
	go func() { closing.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
	}
}

// eachService calls do with each service of the scenario, one after another.
func (s *session) eachService(ctx context.Context, do func(*service) error) error {
	chosen := s.settings.services
	if len(chosen) == 0 {
		chosen = s.scenario.services
	}
	for _, name := range chosen {
		sv, err := findStarter(name).start(ctx)
		if errors.Is(err, child.ErrNotFetched) {
			fmt.Fprintf(s.progress, "%s is left out: %v\n", name, err)
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		err = do(sv)
		if err := errors.Join(err, sv.stop()); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// chosenLibraries returns the libraries that the command line chooses and that can run a load on a service.
func (s *session) chosenLibraries(sv *service, l load) []library {
	var out []library
	for _, lib := range sv.libraries {
		switch {
		case len(s.peers) > 0 && !slices.Contains(s.peers, lib.name), l.only != nil && !slices.Contains(l.only, lib.name):
		case sv.nodes < lib.least, lib.most > 0 && sv.nodes > lib.most, lib.waiting && !l.shared:
		default:
			out = append(out, lib)
		}
	}
	return out
}

// compareLibraries runs loads with each library, round by round, on one service after the other, and prints the rows.
func (s *session) compareLibraries(ctx context.Context, loads []load) error {
	var rows []row
	err := s.eachService(ctx, func(sv *service) error {
		for _, l := range loads {
			if !s.wantsPart(l.name) || l.failsNode() && sv.nodes < 3 || l.most > 0 && sv.nodes > l.most {
				continue
			}
			fmt.Fprintf(s.progress, "%s on %s …\n", l.name, sv.name)
			more, err := s.runRounds(ctx, sv, l)
			if err != nil {
				return fmt.Errorf("%s: %w", l.name, err)
			}
			rows = append(rows, more...)
		}
		return nil
	})
	s.report.Rows = append(s.report.Rows, rows...)
	fmt.Fprintf(s.out, "Medians of %d runs of %v, for some loads of more and shorter ones, by turns.\n\n%s", s.reps, s.settings.time, layOutTable(rows))
	return err
}

// runRounds runs one load with each library in turn. Each round begins with another library, because servers
// get faster while they run.
func (s *session) runRounds(ctx context.Context, sv *service, l load) ([]row, error) {
	set, split := s.settings, max(l.split, 1)
	set.reps, set.time = set.reps*split, set.time/time.Duration(split)
	type entrant struct {
		team
		load
		samples []sample
	}
	var all []*entrant
	for _, lib := range s.chosenLibraries(sv, l) {
		all = append(all, &entrant{team: team{lib, l.clients, l.workers}, load: l})
		if l.failsNode() && lib.name == holdfastName {
			well := l
			well.fault = noFault
			lib.name += ", no fault"
			all = append(all, &entrant{team: team{lib, l.clients, l.workers}, load: well})
		}
	}
	for round := range sv.idle + set.reps {
		for k := range all {
			e := all[(k+round)%len(all)]
			got, err := measureLoad(ctx, set, sv, e.load, e.team)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", e.team.name, err)
			}
			if round >= sv.idle {
				e.samples = append(e.samples, got...)
			}
		}
	}
	var rows []row
	for _, e := range all {
		rows = append(rows, newRow(l, sv, e.team.name, e.samples, all[0].samples))
	}
	return rows, nil
}
