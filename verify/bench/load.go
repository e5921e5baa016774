package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"
)

// sample is what one run of one peer gave.
type sample struct {
	locks     int
	elapsed   time.Duration
	waits     []time.Duration // sorted
	longest   time.Duration   // also of those that did not end
	stuck     int             // that did not end even in the time of grace
	failed    int
	byClient  []int // locks
	requests  int64 // sent to the servers
	commands  int64 // executed by them
	mallocs   uint64
	ownCPU    time.Duration // of this process
	nodeCPU   time.Duration // of the servers
	unmetered bool          // commands, mallocs and CPU say nothing of the peer
}

// tally is what one worker has seen.
type tally struct {
	waits  []time.Duration
	locks  int
	failed int
	cut    time.Duration // how long the wait was that did not end
	err    error         // the last
}

// load is one scenario under way with one peer.
type load struct {
	scenario
	from, until time.Time // what counts
}

// compare runs all scenarios with all peers, repetition by repetition.
func compare(ctx context.Context, s settings, all servers, progress io.Writer) ([]row, error) {
	var rows []row
	for _, sc := range allScenarios {
		for _, n := range s.nodes {
			if !slices.Contains(s.scenarios, sc.name) || !sc.on(n) {
				continue
			}
			fmt.Fprintf(progress, "%s on %d …\n", sc.name, n)
			peers := s.chosen(sc, n)
			samples := make([][]sample, len(peers))
			var healthy []float64
			s := s.rounds(sc)
			for range s.reps {
				for i, p := range peers {
					one, err := measure(ctx, s, sc, p, all[:n])
					if err != nil {
						return nil, fmt.Errorf("%s on %d nodes with %s: %w", sc.name, n, p.name, err)
					}
					samples[i] = append(samples[i], one)
				}
				if sc.fails() {
					well := sc
					well.fault = noFault
					one, err := measure(ctx, s, well, allPeers[0], all[:n])
					if err != nil {
						return nil, fmt.Errorf("%s on %d nodes without the fault: %w", sc.name, n, err)
					}
					healthy = append(healthy, ms(one.percentile(0.50)))
				}
			}
			for i, p := range peers {
				line := newRow(sc.name, n, p.name, samples[i])
				if p.name == holdfastName {
					line.Healthy = healthy
				}
				rows = append(rows, line)
			}
		}
	}
	return rows, nil
}

// rounds are the settings for sc. Where no client waits for another, rates are close, and the
// machine's own changes from one second to the next are larger than the difference: so there
// are three times the rounds, each a third as long.
func (s settings) rounds(sc scenario) settings {
	if !sc.shared {
		s.reps, s.time = 3*s.reps, s.time/3
	}
	return s
}

// chosen is the peers that take part in sc on n nodes.
func (s settings) chosen(sc scenario, n int) []peer {
	var out []peer
	for _, p := range allPeers {
		if slices.Contains(s.peers, p.name) && p.on(n) && (p.only == nil || p.only(sc)) {
			out = append(out, p)
		}
	}
	return out
}

// measure runs one scenario once with one peer.
func measure(ctx context.Context, s settings, sc scenario, p peer, all servers) (out sample, err error) {
	if err := all.flush(); err != nil {
		return out, err
	}
	addrs := all.addrs()
	if sc.fault == slow {
		proxied, stop, err := all.proxies()
		if err != nil {
			return out, err
		}
		defer stop()
		addrs = proxied
	}
	clients, err := openAll(ctx, p, sc, addrs)
	defer closeAll(clients)
	if err != nil {
		return out, err
	}
	runtime.GC()
	now := time.Now()
	l := load{scenario: sc, from: now.Add(s.warm), until: now.Add(s.warm + s.time)}
	cut, cancel := context.WithDeadline(ctx, l.until.Add(s.grace))
	defer cancel()
	var working sync.WaitGroup
	tallies := make([][]tally, sc.clients)
	for i, c := range clients {
		tallies[i] = make([]tally, sc.workers)
		for j := range tallies[i] {
			working.Go(func() { l.work(cut, c, l.keys(i, j), &tallies[i][j]) })
		}
	}
	time.Sleep(time.Until(l.from)) // the warm-up
	well, mend, err := all.befall(sc.fault)
	if err != nil {
		cancel()
		working.Wait()
		return out, err
	}
	before, err1 := meter(well)
	time.Sleep(time.Until(l.until)) // the measurement
	after, err2 := meter(well)
	working.Wait()
	cancel()
	out.add(tallies)
	out.elapsed = s.time
	out.unmetered = sc.fault != noFault
	out.mallocs = after.mallocs - before.mallocs
	out.ownCPU, out.nodeCPU = after.ownCPU-before.ownCPU, after.nodeCPU-before.nodeCPU
	out.requests, out.commands = after.calls.since(before.calls, p.direct)
	return out, errors.Join(err1, err2, mend(ctx))
}

// openAll opens the clients of a scenario and has each take a lock, so that its
// connections are made and the servers know its scripts.
func openAll(ctx context.Context, p peer, sc scenario, addrs []string) ([]client, error) {
	var clients []client
	for i := range sc.clients {
		c, err := p.open(ctx, addrs, sc.workers)
		if err != nil {
			return clients, err
		}
		clients = append(clients, c)
		if err := prime(ctx, c, "first/"+strconv.Itoa(i)); err != nil {
			return clients, err
		}
	}
	return clients, nil
}

// prime takes and frees a lock. It tries more than once: on a busy machine
// rueidislock can miss its turn at a free lock, and then waits for ever.
func prime(ctx context.Context, c client, key string) (err error) {
	for range 5 {
		if err = once(ctx, c, key); err == nil {
			break
		}
	}
	return err
}

// once takes and frees a lock, and gives up after two seconds.
func once(ctx context.Context, c client, key string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	h, err := c.lock(ctx, key)
	if err != nil {
		return err
	}
	return h.unlock(ctx)
}

// closeAll closes the clients, and does not wait for long for one that cannot end.
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

// keys gives the lock that a worker wants next.
func (l *load) keys(client, worker int) func() string {
	key := "bench"
	if !l.shared {
		key += "/" + strconv.Itoa(client*l.workers+worker)
	}
	if !l.fresh {
		return func() string { return key }
	}
	used := 0
	return func() string {
		used++
		return key + "/" + strconv.Itoa(used)
	}
}

// work takes and frees one lock after another until time is up.
func (l *load) work(ctx context.Context, c client, next func() string, t *tally) {
	for {
		key := next()
		asked := time.Now()
		if asked.After(l.until) {
			return
		}
		h, err := c.lock(ctx, key)
		got := time.Now()
		if ctx.Err() != nil {
			t.cut = got.Sub(asked)
			return
		}
		if err != nil {
			t.failed, t.err = t.failed+1, err
			time.Sleep(time.Millisecond) // as a caller would before it tries again
			continue
		}
		if l.inside > 0 {
			time.Sleep(l.inside) // the work of the scenario
		}
		if err := h.unlock(ctx); err != nil && ctx.Err() == nil {
			t.failed, t.err = t.failed+1, err
		}
		if got.After(l.from) {
			t.waits = append(t.waits, got.Sub(asked))
			if got.Before(l.until) {
				t.locks++
			}
		}
		if l.outside > 0 {
			time.Sleep(l.outside) // likewise
		}
	}
}

// reading is what is counted outside the workers.
type reading struct {
	calls           calls
	mallocs         uint64
	ownCPU, nodeCPU time.Duration
}

func meter(all servers) (r reading, err error) {
	var err1, err2 error
	r.calls, err1 = all.calls()
	r.nodeCPU, err2 = all.cpuTime()
	r.ownCPU = cpuTime()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	r.mallocs = m.Mallocs
	return r, errors.Join(err1, err2)
}

// add sums up what the workers have seen. With one client, fairness is that
// between its workers.
func (s *sample) add(tallies [][]tally) {
	for _, workers := range tallies {
		sum := 0
		for _, t := range workers {
			s.waits = append(s.waits, t.waits...)
			s.failed += t.failed
			s.longest = max(s.longest, t.cut)
			if t.cut > 0 {
				s.stuck++
			}
			sum += t.locks
			if len(tallies) == 1 {
				s.byClient = append(s.byClient, t.locks)
			}
		}
		s.locks += sum
		if len(tallies) > 1 {
			s.byClient = append(s.byClient, sum)
		}
	}
	slices.Sort(s.waits)
	if len(s.waits) > 0 {
		s.longest = max(s.longest, s.waits[len(s.waits)-1])
	}
}
