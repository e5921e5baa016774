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
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redis"
)

const ttl = 10 * time.Second

// nodeRate is a node's throughput for one kind of request, and the processor time of one.
type nodeRate struct {
	perSecond float64
	cpu       time.Duration
}

// costs holds the measured costs of one node.
type costs struct {
	fresh       nodeRate // a lock with a name that is new, taken and released
	again       nodeRate // one with a name that was used lately
	renewal     nodeRate // renewal of one lease among many
	idle, queue float64  // share of a processor for an idle client, and for a waiting one
	lease       float64  // bytes of a held lease
	connection  float64  // bytes of a connection
}

// nodeBench measures one node, which shares the machine with its clients.
type nodeBench struct {
	*session
	sv *service
	costs
	names, held, clients, waiters int // how many
}

// measureCapacity measures what locks cost a node and a process, and computes how many sets a load needs.
func measureCapacity(ctx context.Context, s *session) error {
	return s.eachService(ctx, func(sv *service) error {
		if sv.redis == nil || sv.nodes > 1 {
			return errors.New("capacity is that of one node: give -services redis-1")
		}
		times := func(n float64) int { return max(int(n*s.scale), 20) }
		y := &nodeBench{session: s, sv: sv, names: times(100_000), held: times(10_000), clients: times(2000)}
		y.waiters = y.clients / 2
		for _, step := range []func(context.Context) error{
			y.measureLocks, y.measureLeftovers, y.measureRenewals,
			y.measureWatchdog, y.measureConnections, y.localWaiters,
		} {
			if err := sv.redis.flushAll(); err != nil {
				return err
			}
			if err := step(ctx); err != nil {
				return err
			}
		}
		if err := y.writeFigures(s.out); err != nil {
			return err
		}
		return writePlans(s.out, y.costs)
	})
}

// openDriver opens a driver with a long time-out, for a busy machine.
func (y *nodeBench) openDriver(ctx context.Context) (*redis.Driver, error) {
	return openDriver(ctx, y.sv.addrs, redis.Options{Timeout: 5 * time.Second})
}

// isLate reports whether an answer came too late, as on a busy machine.
func isLate(err error) bool { return errors.Is(err, holdfast.ErrUnavailable) }

// measureLocks measures locks with reused names and locks with new names.
func (y *nodeBench) measureLocks(ctx context.Context) error {
	for name, r := range map[string]*nodeRate{"throughput": &y.again, "new-throughput": &y.fresh} {
		l := lockLoads[slices.Index(namesOf(lockLoads), name)]
		got, err := measureLoad(ctx, y.settings, y.sv, l, team{redisLibraries[0], l.clients, l.workers})
		if err != nil {
			return err
		}
		if got[0].locks == 0 {
			return errors.New("no lock was taken in the time of a measurement")
		}
		*r = nodeRate{got[0].figures["locks/s"], time.Duration(got[0].figures["server CPU µs/lock"] * float64(time.Microsecond))}
	}
	return nil
}

// measureLeftovers prints what each library leaves on the node for names that were used once.
func (y *nodeBench) measureLeftovers(ctx context.Context) error {
	cells := [][]string{{"what new names leave, once released", "bytes/name", "kept s"}}
	for _, lib := range y.chosenLibraries(y.sv, load{}) {
		fmt.Fprintf(y.progress, "new names with %s …\n", lib.name)
		bytes, kept, err := y.measureLeftover(ctx, lib)
		if err != nil {
			return fmt.Errorf("%s: %w", lib.name, err)
		}
		cells = append(cells, []string{lib.name, formatDigits(max(bytes, 0)), formatDigits(kept.Seconds())})
	}
	fmt.Fprintln(y.out, markdownTable(cells, 1))
	return nil
}

func (y *nodeBench) measureLeftover(ctx context.Context, lib library) (bytes float64, kept time.Duration, err error) {
	prefix, addrs, _, err := y.sv.prepareService(noFault)
	if err != nil {
		return 0, 0, err
	}
	clients, err := openAll(ctx, team{lib, 1, 64}, addrs, prefix, 0)
	defer closeAll(clients)
	if err != nil {
		return 0, 0, err
	}
	before, err := y.sv.redis.usedMemory()
	if err != nil {
		return 0, 0, err
	}
	taken := inParallel(y.names, func(i int) error { return lockOnce(ctx, clients[0], fmt.Sprintf("order/%012d", i)) })
	after, err := y.sv.redis.usedMemory()
	if err == nil && taken == 0 {
		err = errors.New("it took no lock")
	}
	if err != nil {
		return 0, 0, err
	}
	for range 100 { // a sample of keys; keys without expiry are skipped
		key, err := y.sv.redis[0].Do("RANDOMKEY")
		name, ok := key.(string)
		if err != nil || !ok {
			break
		}
		if ms, _ := y.sv.redis[0].Do("PTTL", name); ms != nil {
			n, _ := ms.(int64)
			kept = max(kept, time.Duration(n)*time.Millisecond)
		}
	}
	return (after - before) / float64(taken), kept, nil
}

// inParallel calls do with each number below n, 64 at a time, and returns the number of successes: rueidislock
// sometimes waits forever for a free lock.
func inParallel(n int, do func(i int) error) int {
	var done, next atomic.Int64
	var working sync.WaitGroup
	for range 64 {
		working.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				if do(int(i)) == nil {
					done.Add(1)
				}
			}
		})
	}
	working.Wait()
	return int(done.Load())
}

// measureRenewals holds leases and renews all of them, batch after batch.
func (y *nodeBench) measureRenewals(ctx context.Context) error {
	d, err := y.openDriver(ctx)
	if err != nil {
		return err
	}
	defer d.Close()
	before, err := y.sv.redis.usedMemory()
	if err != nil {
		return err
	}
	var grants []driver.Grant
	for len(grants) < y.held {
		g, err := d.Acquire(ctx, driver.Request{Key: fmt.Sprintf("lease/%012d", len(grants)), TTL: time.Minute})
		switch {
		case err == nil:
			grants = append(grants, g)
		case !isLate(err):
			return err
		}
	}
	after, err := y.sv.redis.usedMemory()
	if err != nil {
		return err
	}
	y.lease = (after - before) / float64(y.held)
	cpu, err := y.sv.redis.cpuTime()
	if err != nil {
		return err
	}
	start, done := time.Now(), 0
	for time.Since(start) < y.settings.time || done == 0 {
		for batch := range slices.Chunk(grants, 512) {
			for _, r := range d.Renew(ctx, batch) {
				if r.Err == nil {
					done++
				} else if !isLate(r.Err) {
					return r.Err
				}
			}
		}
	}
	took := time.Since(start)
	used, err := y.sv.redis.cpuTime()
	y.renewal = nodeRate{float64(done) / took.Seconds(), (used - cpu) / time.Duration(done)}
	return err
}

// measureWatchdog makes one client keep leases for a while, and prints the cost for the process. A lost lease
// is an error: renewing all leases must not take as long as they last.
func (y *nodeBench) measureWatchdog(ctx context.Context) error {
	drv, err := y.openDriver(ctx)
	if err != nil {
		return err
	}
	var lost, renewals, failed atomic.Int64
	var why atomic.Pointer[error]
	client, err := holdfast.New(drv, &holdfast.Options{Hooks: holdfast.Hooks{
		Lost: func(e holdfast.LostEvent) { lost.Add(1); why.Store(&e.Reason) },
		Renewed: func(e holdfast.RenewedEvent) {
			renewals.Add(1)
			if e.Err != nil {
				failed.Add(1)
				why.Store(&e.Err)
			}
		},
	}})
	if err != nil {
		return errors.Join(err, drv.Close())
	}
	defer client.Close()
	goroutines, live, cpu, start := runtime.NumGoroutine(), liveBytes(), cpuTime(), time.Now()
	if n := inParallel(y.held, func(i int) error { _, err := client.Acquire(ctx, "bench/"+strconv.Itoa(i), nil); return err }); n < y.held {
		return fmt.Errorf("only %d of %d leases were granted", n, y.held)
	}
	acquired, hold := time.Since(start), 12*y.settings.time
	time.Sleep(hold) // renewals are counted over this time
	fmt.Fprintf(y.out, "%d leases of one client, acquired in %v and held for %v: %d renewals (%d failed), %d lost. "+
		"They take %.1f MB, %d goroutines and %v of processor time.\n\n",
		y.held, acquired.Round(time.Millisecond), hold, renewals.Load(), failed.Load(), lost.Load(), (liveBytes()-live)/1e6,
		runtime.NumGoroutine()-goroutines, (cpuTime() - cpu).Round(time.Millisecond))
	if lost.Load() > 0 {
		return fmt.Errorf("%d leases were lost: %w", lost.Load(), *why.Load())
	}
	return nil
}

// measureConnections opens many clients, some of which wait for one lock, and then passes the lock through
// them.
func (y *nodeBench) measureConnections(ctx context.Context) error {
	before, err := y.sv.redis.usedMemory()
	if err != nil {
		return err
	}
	var clients []client
	defer func() { closeAll(clients) }()
	for range y.clients {
		c, err := newHoldfastClient(y.openDriver(ctx))
		if err != nil {
			return err
		}
		clients = append(clients, c)
	}
	after, err := y.sv.redis.usedMemory()
	if err != nil {
		return err
	}
	y.connection = (after - before) / float64(y.clients)
	fmt.Fprintf(y.progress, "%d idle clients …\n", y.clients)
	share, _, err := y.nodeLoad(3 * y.settings.time)
	if err != nil {
		return err
	}
	y.idle = share / float64(y.clients)
	fmt.Fprintf(y.progress, "%d waiting clients …\n", y.waiters)
	many, err := y.measureCrowd(ctx, clients[:y.waiters+1], 3*y.settings.time)
	if err != nil {
		return err
	}
	y.queue = max((many.load-share)/float64(y.waiters), 0)
	var few []float64
	for len(few) < len(many.gaps) { // eight hand-overs are too few
		c, err := y.measureCrowd(ctx, clients[:9], 10*time.Millisecond)
		if err != nil {
			return err
		}
		few = append(few, c.gaps...)
	}
	fmt.Fprintf(y.out, "%d waiting clients while nobody releases: %.2f %% of the node's processor, %.0f requests/s. "+
		"Then a hand-over takes %.3f ms (p50; %.3f with 8), %d of %d out of order.\n\n",
		y.waiters, 100*many.load, many.asked, medianOf(many.gaps), medianOf(few), many.outOfOrder, len(many.gaps))
	return nil
}

// nodeLoad returns the share of a processor that the node uses during d, and its scripts per second.
func (y *nodeBench) nodeLoad(d time.Duration) (share, asked float64, err error) {
	cpu, err1 := y.sv.redis.cpuTime()
	calls, err2 := y.sv.redis.readCalls()
	begin := time.Now()
	time.Sleep(d)
	used, err3 := y.sv.redis.cpuTime()
	called, err4 := y.sv.redis.readCalls()
	took := time.Since(begin).Seconds()
	return (used - cpu).Seconds() / took, float64(called["evalsha"]-calls["evalsha"]) / took, errors.Join(err1, err2, err3, err4)
}

// crowd holds the cost of many clients that wait for one lock.
type crowd struct {
	load, asked float64   // load of the node without a release
	gaps        []float64 // ms from a release to the next holder
	outOfOrder  int
}

// measureCrowd makes all clients but the first wait, and measures the node for a while. Then it passes the
// lock from one to the next, a hundred times at most.
func (y *nodeBench) measureCrowd(ctx context.Context, clients []client, look time.Duration) (out crowd, err error) {
	n := len(clients) - 1
	unlock, err := clients[0].lock(ctx, "bench")
	if err != nil {
		return out, err
	}
	type turn struct{ asked, got, left time.Time }
	var mu sync.Mutex // guards turns
	var turns []turn
	var waiting sync.WaitGroup
	defer waiting.Wait()
	wait, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, c := range clients[1:] {
		time.Sleep(time.Millisecond) // keep the order of the requests
		waiting.Go(func() {
			asked := time.Now()
			unlock, err := c.lock(wait, "bench")
			if err != nil {
				return
			}
			got := time.Now()
			time.Sleep(time.Millisecond) // work under the lock
			mu.Lock()
			turns = append(turns, turn{asked, got, time.Now()})
			if len(turns) == min(100, n) {
				cancel()
			}
			mu.Unlock()
			unlock(ctx)
		})
	}
	if err := y.awaitQueue(ctx, n); err != nil {
		return out, err
	}
	time.Sleep(look) // let the first requests end and the poll times spread
	if out.load, out.asked, err = y.nodeLoad(look); err != nil {
		return out, err
	}
	if err := unlock(ctx); err != nil {
		return out, err
	}
	waiting.Wait()
	slices.SortFunc(turns, func(a, b turn) int { return a.got.Compare(b.got) })
	for i := 1; i < len(turns); i++ {
		out.gaps = append(out.gaps, inMillis(turns[i].got.Sub(turns[i-1].left)))
		if turns[i].asked.Before(turns[i-1].asked) {
			out.outOfOrder++
		}
	}
	if len(out.gaps) == 0 {
		return out, errors.New("the lock was not handed on")
	}
	return out, nil
}

// awaitQueue waits until the node's queue has n clients.
func (y *nodeBench) awaitQueue(ctx context.Context, n int) error {
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		reply, err := y.sv.redis[0].Do("ZCOUNT", "holdfast:queue:{lock:bench}", "(0", "+inf")
		if err != nil {
			return err
		}
		if waiting, _ := reply.(int64); int(waiting) == n {
			return nil
		}
		if ctx.Err() != nil || time.Now().After(end) {
			return fmt.Errorf("of %d clients only %v wait", n, reply)
		}
	}
}

// localWaiters prints how much memory a process needs for goroutines that wait for one lock.
func (y *nodeBench) localWaiters(ctx context.Context) error {
	clients, err := openAll(ctx, team{redisLibraries[0], 2, 1}, y.sv.addrs, "first", 0)
	defer closeAll(clients)
	if err != nil {
		return err
	}
	unlock, err := clients[0].lock(ctx, "bench")
	if err != nil {
		return err
	}
	wait, cancel := context.WithCancel(ctx)
	defer cancel()
	before := liveBytes()
	var waiting sync.WaitGroup
	for range y.waiters {
		waiting.Go(func() {
			if unlock, err := clients[1].lock(wait, "bench"); err == nil {
				unlock(ctx)
			}
		})
	}
	time.Sleep(200 * time.Millisecond) // nothing shows when the last of them waits
	fmt.Fprintf(y.out, "%d waiters in one process take %.2f MB.\n\n", y.waiters, (liveBytes()-before)/1e6)
	cancel()
	waiting.Wait()
	return unlock(ctx)
}

// writeFigures writes the measured figures.
func (y *nodeBench) writeFigures(w io.Writer) error {
	version, err := y.sv.redis.serverVersion()
	fmt.Fprintf(w, "One node, Redis %s; each rate was measured for %v.\n\n", version, y.settings.time)
	cells := [][]string{{"of one node", "rate here", "its processor time, each", "a processor at 70 %"}}
	row := func(what string, r nodeRate) {
		cells = append(cells, []string{what, roundNumber(r.perSecond) + "/s", fmt.Sprintf("%.1f µs", r.cpu.Seconds()*1e6), roundNumber(full/r.cpu.Seconds()) + "/s"})
	}
	row("locks whose names are new, taken and released by 64 workers", y.fresh)
	row("locks whose names come back, by 64 workers", y.again)
	row(fmt.Sprintf("renewals of %s leases, 512 in one call", roundNumber(float64(y.held))), y.renewal)
	fmt.Fprintln(w, markdownTable(cells, 1))
	fmt.Fprint(w, markdownTable([][]string{
		{"of one node", "each"},
		{"memory of a lease that is held", fmt.Sprintf("%.0f bytes", y.lease)},
		{"memory of a client's connection, with what describes the client", fmt.Sprintf("%.1f kB", y.connection/1e3)},
		{fmt.Sprintf("processor for a client that does nothing (of %s)", roundNumber(float64(y.clients))), fmt.Sprintf("%.1f µs/s", y.idle*1e6)},
		{fmt.Sprintf("processor for a client that waits (of %s for one lock)", roundNumber(float64(y.waiters))), fmt.Sprintf("%.1f µs/s", y.queue*1e6)},
	}, 1))
	return err
}
