package main

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/verify/interop/foreign"
)

// slotsOfCrowd is the number of slots of the crowd's semaphore.
const slotsOfCrowd = 8

// measureSemaphores measures the cost of semaphores for one caller, and the slots that a crowd gets.
func measureSemaphores(ctx context.Context, s *session) error {
	costs := [][]string{{
		"service", "slots", "held by others", "to take p50 µs", "to release p50 µs", "cost / that of a lock", "requests", "the first time: to take", "requests",
	}}
	crowds := [][]string{{"clients", "library", "slots taken/s", "least", "longest wait ms", "Jain", "requests"}}
	err := s.eachService(ctx, func(sv *service) error {
		fmt.Fprintf(s.progress, "semaphores on %s …\n", sv.name)
		lines, err := s.slotCosts(ctx, sv)
		costs = append(costs, lines...)
		if err != nil || sv.name != "redis-1" {
			return err
		}
		for _, clients := range []int{1, 8} {
			fmt.Fprintf(s.progress, "%d workers of %d client(s) on a semaphore …\n", callersPerName, clients)
			lines, err := s.slotCrowds(ctx, sv, clients)
			if err != nil {
				return err
			}
			crowds = append(crowds, lines...)
		}
		return nil
	})
	fmt.Fprintf(s.out, "\nOne caller of a semaphore, time and again; 0 slots is a plain lock:\n\n%s", markdownTable(costs, 1))
	if len(crowds) > 1 {
		fmt.Fprintf(s.out, "\n%d workers of a semaphore of %d, with 1 ms of work, on one Redis; medians of %d runs by turns:\n\n%s",
			callersPerName, slotsOfCrowd, s.reps, markdownTable(crowds, 2))
	}
	return err
}

// slotCost is the cost of one slot for one caller, in a semaphore of which others hold some slots.
type slotCost struct {
	slots, held int
	first, next slotTurns // after a turn of another semaphore, and of the same
}

// slotTurns holds the turns of one caller.
type slotTurns struct {
	take, release []time.Duration
	requests      int64
}

// takeTurns acquires and releases a slot a number of times.
func (k *slotTurns) takeTurns(ctx context.Context, sv *service, acquire acquirer, times int) error {
	before, err := sv.requestCount()
	if err != nil {
		return err
	}
	for range times {
		took, released, err := timeLock(ctx, acquire)
		if err != nil {
			return err
		}
		k.take, k.release = append(k.take, took), append(k.release, released)
	}
	after, err := sv.requestCount()
	k.requests += after - before
	return err
}

// medianFigures returns the medians of all turns, in µs, and the requests per turn; "–" if unknown.
func (k *slotTurns) medianFigures() (take, release float64, requests string) {
	middle := func(list []time.Duration) float64 {
		return inMillis(slices.Sorted(slices.Values(list))[len(list)/2]) * 1000
	}
	requests = "–"
	if k.requests > 0 {
		requests = formatDigits(float64(k.requests) / float64(len(k.take)))
	}
	return middle(k.take), middle(k.release), requests
}

// slotCosts makes one caller acquire slots of semaphores in turns.
func (s *session) slotCosts(ctx context.Context, sv *service) (lines [][]string, err error) {
	all := []*slotCost{{}}
	for slots := 1; slots <= callersPerName; slots *= 2 {
		all = append(all, &slotCost{slots: slots})
	}
	for _, most := range []int{slotsOfCrowd, callersPerName} {
		all = append(all, &slotCost{slots: most, held: most / 2}, &slotCost{slots: most, held: most - 1})
	}
	prefix, c, stop, err := s.openClients(ctx, sv, 2)
	if err != nil {
		return nil, err
	}
	defer stop()
	name := func(k *slotCost) string { return fmt.Sprintf("%s/%d/%d", prefix, k.slots, k.held) }
	for _, k := range all {
		for range k.held {
			held, err := kind{slots: k.slots}.acquirerFor(c[1], name(k))(ctx, &holdfast.AcquireOptions{TTL: time.Minute})
			if err != nil {
				return nil, err
			}
			defer held.Release(ctx)
		}
	}
	for round := range max(int(40*s.scale), 2) {
		for i := range all {
			k := all[(i+round)%len(all)]
			if round == 1 { // the first round opens connections and fills caches
				k.first, k.next = slotTurns{}, slotTurns{}
			}
			acquire := kind{slots: k.slots}.acquirerFor(c[0], name(k))
			if err := errors.Join(k.first.takeTurns(ctx, sv, acquire, 1), k.next.takeTurns(ctx, sv, acquire, 10)); err != nil {
				return nil, err
			}
		}
	}
	var lock float64
	for _, k := range all {
		take, release, requests := k.next.medianFigures()
		anew, _, more := k.first.medianFigures()
		if k.slots == 0 {
			lock = take + release
		}
		lines = append(lines, []string{
			sv.name, fmt.Sprint(k.slots), fmt.Sprint(k.held), formatDigits(take), formatDigits(release), fmt.Sprintf("%.2f", (take+release)/lock),
			requests, formatDigits(anew), more,
		})
	}
	return lines, nil
}

// requestCount returns the number of requests to a Redis service so far; 0 for another service.
func (sv *service) requestCount() (int64, error) {
	if sv.redis == nil {
		return 0, nil
	}
	calls, err := sv.redis.readCalls()
	n, _ := calls.callsSince(nil, nil)
	return n, err
}

// timeLock measures one acquire and one release.
func timeLock(ctx context.Context, acquire acquirer) (take, release time.Duration, err error) {
	asked := time.Now()
	l, err := acquire(ctx, nil)
	if err != nil {
		return 0, 0, err
	}
	take = time.Since(asked)
	asked = time.Now()
	err = l.Release(ctx)
	return take, time.Since(asked), err
}

// slotGain holds the slots that the workers of a crowd got in one run.
type slotGain struct {
	Each     []int   // by worker
	Longest  float64 // wait, in ms
	requests int64   // requests of all workers
}

// slotPeer is a library with semaphores, opened for a crowd.
type slotPeer struct {
	name string
	run  func() (slotGain, error)
	stop func()
}

// slotLibraries are the libraries with semaphores, and functions that open them for a number of clients.
var slotLibraries = []struct {
	name string
	open func(ctx context.Context, s *session, sv *service, clients int) (slotPeer, error)
}{{holdfastName, holdfastCrowd}, {redissonName, redissonCrowd}, {redisSemaphoreName, nodeCrowd}}

const (
	redissonName       = "Redisson"
	redisSemaphoreName = "redis-semaphore"
)

// slotCrowds makes the crowds of the libraries work in turns, each for the time of a run. The first turns do
// not count, because Java compiles.
func (s *session) slotCrowds(ctx context.Context, sv *service, clients int) (lines [][]string, err error) {
	var peers []slotPeer
	defer func() {
		for _, p := range peers {
			p.stop()
		}
	}()
	for _, l := range slotLibraries {
		if len(s.peers) > 0 && !slices.Contains(s.peers, l.name) {
			continue
		}
		p, err := l.open(ctx, s, sv, clients)
		if errors.Is(err, foreign.ErrMissing) {
			fmt.Fprintln(s.out, err)
			continue
		}
		if err != nil {
			return nil, err
		}
		peers = append(peers, p)
	}
	gains := make([][]slotGain, len(peers))
	for round := range 1 + s.reps {
		for i := range peers {
			i = (i + round) % len(peers)
			if err := sv.redis.flushAll(); err != nil {
				return nil, err
			}
			before, err1 := sv.requestCount()
			got, err2 := peers[i].run()
			after, err3 := sv.requestCount()
			if err := errors.Join(err1, err2, err3); err != nil {
				return nil, fmt.Errorf("%s: %w", peers[i].name, err)
			}
			if got.requests = after - before; round > 0 {
				gains[i] = append(gains[i], got)
			}
		}
	}
	for i, p := range peers {
		var rates, jains, requests []float64
		var longest float64
		for _, g := range gains[i] {
			var each []float64
			for _, n := range g.Each {
				each = append(each, float64(n))
			}
			all := float64(sumOf(g.Each))
			rates, jains = append(rates, all/s.settings.time.Seconds()), append(jains, jainIndex(each))
			requests, longest = append(requests, float64(g.requests)/max(all, 1)), max(longest, g.Longest)
		}
		lines = append(lines, []string{
			fmt.Sprint(clients), p.name, formatDigits(medianOf(rates)), formatDigits(slices.Min(rates)), formatDigits(longest),
			formatDigits(medianOf(jains)), formatDigits(medianOf(requests)),
		})
	}
	return lines, nil
}

// holdfastCrowd returns a crowd that uses Holdfast.
func holdfastCrowd(ctx context.Context, s *session, sv *service, n int) (slotPeer, error) {
	_, clients, stop, err := s.openClients(ctx, sv, n)
	run := func() (slotGain, error) {
		each, longest, err := s.runCrowd(ctx, clients, kind{slots: slotsOfCrowd}, func() time.Duration { return time.Millisecond })
		return slotGain{Each: each, Longest: inMillis(longest)}, err
	}
	return slotPeer{holdfastName, run, stop}, err
}

var (
	//go:embed peers/Permits.java
	permitsJava []byte
	//go:embed peers/permits.cjs
	permitsNode string
)

// redissonCrowd returns a crowd that uses Redisson's RPermitExpirableSemaphore.
func redissonCrowd(ctx context.Context, s *session, sv *service, clients int) (slotPeer, error) {
	libraries, err := foreign.Libraries("java")
	if err != nil {
		return slotPeer{}, err
	}
	dir, err := os.MkdirTemp("", "bench-java-")
	if err != nil {
		return slotPeer{}, err
	}
	program := filepath.Join(dir, "Permits.java")
	if err := os.WriteFile(program, permitsJava, 0o600); err != nil {
		return slotPeer{}, errors.Join(err, os.RemoveAll(dir))
	}
	p, err := s.foreignCrowd(redissonName, sv, clients, exec.CommandContext(ctx, "java", "-Xmx512m", "-cp", filepath.Join(libraries, "*"), program))
	if err != nil {
		return slotPeer{}, errors.Join(err, os.RemoveAll(dir))
	}
	end := p.stop
	p.stop = func() { end(); os.RemoveAll(dir) }
	return p, nil
}

// nodeCrowd returns a crowd that uses the Semaphore of redis-semaphore.
func nodeCrowd(ctx context.Context, s *session, sv *service, clients int) (slotPeer, error) {
	libraries, err := foreign.Libraries("node")
	if err != nil {
		return slotPeer{}, err
	}
	cmd := exec.CommandContext(ctx, "node", "-e", permitsNode, "--")
	cmd.Env = append(os.Environ(), "NODE_PATH="+filepath.Join(libraries, "node_modules"))
	return s.foreignCrowd(redisSemaphoreName, sv, clients, cmd)
}

// foreignCrowd starts a program of workers. The program reports that it is ready, and then works for the time
// in each line of its input.
func (s *session) foreignCrowd(name string, sv *service, clients int, cmd *exec.Cmd) (slotPeer, error) {
	_, port, _ := strings.Cut(sv.addrs[0], ":")
	cmd.Args = append(cmd.Args, port, "permits", strconv.Itoa(slotsOfCrowd), strconv.Itoa(clients), strconv.Itoa(callersPerName))
	cmd.Stderr = os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		return slotPeer{}, err
	}
	lines := bufio.NewReader(out)
	p := slotPeer{
		name: name,
		run: func() (got slotGain, err error) {
			if _, err := fmt.Fprintln(in, s.settings.time.Milliseconds()); err != nil {
				return got, err
			}
			line, err := lines.ReadString('\n')
			if err != nil {
				return got, err
			}
			return got, json.Unmarshal([]byte(line), &got)
		},
		stop: func() {
			in.Close() // ends the program
			cmd.Wait()
		},
	}
	if line, err := lines.ReadString('\n'); err != nil || line != "ready\n" {
		p.stop()
		return slotPeer{}, fmt.Errorf("%s is not ready: %q, %w", name, line, err)
	}
	return p, nil
}
