// Backends measures what a lock costs on services other than Redis, beside the library
// or recipe that programs use there today, on servers that it starts itself.
//
//	go run ./backends                                 everything, ten minutes
//	go run ./backends -time 1s -scenarios handover    some of it
//
// All peers run in this process, one after another within a repetition, so that other work of
// the machine affects all of them equally; another one begins each repetition, as the servers get
// faster while they run. The table has the median over the repetitions. Each
// worker is a client with connections of its own, as another process would be.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"
)

// peer is one library on a service, set up in one way.
type peer struct {
	name string
	open func(ctx context.Context) (client, error)
}

// client is one client of a peer.
type client interface {
	// lock takes a lock and returns what frees it.
	lock(ctx context.Context, name string) (unlock func(context.Context) error, err error)
	close()
}

// service is a running service and what is compared on it.
type service struct {
	name  string
	peers []peer
	// written is how much the service has written to its log so far, in bytes.
	written func(ctx context.Context) (int64, error)
	stop    func()
}

// services starts each service, in the order of the table.
var services = []struct {
	name  string
	start func(ctx context.Context, name string) (*service, error)
}{
	{"redis", func(ctx context.Context, name string) (*service, error) { return startRedis(ctx, name, 1) }},
	{"redlock-3", func(ctx context.Context, name string) (*service, error) { return startRedis(ctx, name, 3) }},
	{"postgres", func(ctx context.Context, name string) (*service, error) { return startPostgres(ctx, name) }},
	{"postgres-fsync", func(ctx context.Context, name string) (*service, error) {
		return startPostgres(ctx, name, "fsync=on", "full_page_writes=on")
	}},
	{"etcd", startEtcd},
	{"zookeeper", startZooKeeper},
}

// scenario is what the workers lock.
type scenario struct {
	name    string
	workers int
	anew    bool // each lock has a new name
	known   int  // so many names serve the whole run, in turn; all were used before. 0: one does
}

var scenarios = []scenario{
	{name: "one name", workers: 1},
	{name: "known names", workers: 1, known: 64},
	{name: "new names", workers: 1, anew: true},
	{name: "new names, 8 clients", workers: 8, anew: true},
	{name: "hand-over, 2 clients", workers: 2},
	{name: "hand-over, 8 clients", workers: 8},
}

var made atomic.Int64

// fresh is a name that nobody had before: a peer that left a lock behind does not hold up the next.
func fresh() string { return "bench/" + strconv.FormatInt(made.Add(1), 36) }

// row is what one run of a scenario by a peer shows.
type row struct {
	locks, bytes float64       // locks each second, and bytes written for each
	passed       float64       // times a second that another worker got the lock than the last
	wait         time.Duration // that half of the locks took no longer than
	worst        time.Duration // 99 of 100
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "backends:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	f := flag.NewFlagSet("backends", flag.ContinueOnError)
	length := f.Duration("time", 2*time.Second, "length of one run")
	reps := f.Int("reps", 3, "repetitions, of which the median counts")
	only := f.String("scenarios", "", "those whose name begins with this")
	which := f.String("services", "", "comma-separated; default all")
	if err := f.Parse(args); err != nil {
		return err
	}
	if *reps < 1 || *length <= 0 {
		return errors.New("-reps and -time must be positive")
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "service\tscenario\tpeer\tlocks/s\thand-overs/s\twait p50\twait p99\tbytes written/lock")
	for _, sv := range services {
		if *which != "" && !slices.Contains(strings.Split(*which, ","), sv.name) {
			continue
		}
		s, err := sv.start(ctx, sv.name)
		if err != nil {
			return err
		}
		err = s.compare(ctx, table, *only, *reps, *length)
		s.stop()
		if err != nil {
			return err
		}
	}
	return table.Flush()
}

func (s *service) compare(ctx context.Context, out io.Writer, only string, reps int, length time.Duration) error {
	for _, sc := range scenarios {
		if !strings.HasPrefix(sc.name, only) {
			continue
		}
		rows := make([][]row, len(s.peers))
		for rep := range 1 + reps { // the first is for the compilers and caches of the servers
			for k := range s.peers {
				i := (k + rep) % len(s.peers)
				p := s.peers[i]
				r, err := s.measure(ctx, p, sc, length)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", p.name, sc.name, err)
				}
				if rep > 0 {
					rows[i] = append(rows[i], r)
				}
			}
		}
		for i, p := range s.peers {
			r := median(rows[i])
			fmt.Fprintf(out, "%s\t%s\t%s\t%.0f\t%.0f\t%v\t%v\t%.0f\n", s.name, sc.name, p.name, r.locks, r.passed,
				r.wait.Round(10*time.Microsecond), r.worst.Round(10*time.Microsecond), r.bytes)
		}
	}
	return nil
}

// median is the run in the middle, by its rate.
func median(rows []row) row {
	slices.SortFunc(rows, func(a, b row) int { return int(a.locks*1000 - b.locks*1000) })
	return rows[len(rows)/2]
}

// measure is one run.
func (s *service) measure(ctx context.Context, p peer, sc scenario, length time.Duration) (row, error) {
	clients := make([]client, sc.workers)
	for i := range clients {
		c, err := p.open(ctx)
		if err != nil {
			return row{}, err
		}
		defer c.close()
		clients[i] = c
		if err := cycle(ctx, c, fresh()); err != nil { // its connections are open now
			return row{}, err
		}
	}
	var mu sync.Mutex
	var waits []time.Duration
	var failed error
	var all sync.WaitGroup
	var last, passed atomic.Int64
	shared := make([]string, max(sc.known, 1))
	for i := range shared {
		shared[i] = fresh()
		if sc.known > 0 {
			if err := cycle(ctx, clients[0], shared[i]); err != nil {
				return row{}, err
			}
		}
	}
	before, err := s.written(ctx)
	if err != nil {
		return row{}, err
	}
	var turn atomic.Int64
	timed, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	for i, c := range clients {
		all.Go(func() {
			mine, err := work(timed, c, func() string {
				if sc.anew {
					return fresh()
				}
				return shared[int(turn.Add(1))%len(shared)]
			}, func() {
				if before := last.Swap(int64(i)); before != int64(i) {
					passed.Add(1)
				}
			})
			mu.Lock()
			defer mu.Unlock()
			waits = append(waits, mine...)
			failed = errors.Join(failed, err)
		})
	}
	all.Wait()
	after, err := s.written(ctx)
	if err := errors.Join(failed, err); err != nil || len(waits) == 0 {
		return row{}, err
	}
	slices.Sort(waits)
	n := len(waits)
	r := row{locks: float64(n) / length.Seconds(), bytes: float64(after-before) / float64(n), wait: waits[n/2], worst: waits[n*99/100]}
	if !sc.anew {
		r.passed = float64(passed.Load()) / length.Seconds()
	}
	return r, nil
}

func cycle(ctx context.Context, c client, name string) error {
	unlock, err := c.lock(ctx, name)
	if err != nil {
		return err
	}
	return unlock(ctx)
}

// work takes and frees locks until ctx ends, and returns how long each lock took.
func work(ctx context.Context, c client, name func() string, got func()) (waits []time.Duration, err error) {
	for ctx.Err() == nil {
		begin := time.Now()
		unlock, err := c.lock(ctx, name())
		if err != nil {
			if ctx.Err() != nil {
				return waits, nil
			}
			return waits, err
		}
		waits = append(waits, time.Since(begin))
		got()
		if err := unlock(context.WithoutCancel(ctx)); err != nil {
			return waits, err
		}
	}
	return waits, nil
}
