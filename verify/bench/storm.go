package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	stormMost    = time.Minute // how long callers wait at most
	stormWorkers = 64          // connections of a peer that has one for each caller under way
)

// storms are how many callers ask at once, by the number of nodes.
var storms = []struct{ nodes, callers int }{{1, 100_000}, {3, 30_000}}

// storm is what became of callers of one client who asked at once, each for a name of its own.
type storm struct {
	Peer     string  `json:"peer"`
	Nodes    int     `json:"nodes"`
	Callers  int     `json:"callers"`
	Granted  int     `json:"granted"` // within a minute
	Seconds  float64 `json:"seconds"` // until the last of these
	Longest  float64 `json:"longest_wait_seconds"`
	Requests float64 `json:"requests_per_lock"` // sent to all servers until then
	PeakMB   float64 `json:"peak_megabytes"`    // heap and stacks, what is to be collected included
	Caller   float64 `json:"bytes_per_waiting_caller"`
	AfterMB  float64 `json:"left_megabytes"`  // of live memory then, the client still open
	Failed   int     `json:"failed"`          // calls to lock or to unlock
	Err      string  `json:"error,omitempty"` // that a caller got
}

// inStorm says which peers are measured: those that can be told to wait to the end, each on one
// client.
func inStorm(p peer) bool {
	switch p.name {
	case holdfastName, "redsync/goredis", "redsync/rueidis", "rueidislock":
		return true
	}
	return false
}

func measureStorms(ctx context.Context, s settings, all servers, progress io.Writer) ([]storm, error) {
	var out []storm
	for _, st := range storms {
		for _, p := range s.chosen(scenario{name: "storm"}, st.nodes) {
			if !inStorm(p) {
				continue
			}
			callers := max(st.callers/s.calm, 1)
			fmt.Fprintf(progress, "storm of %d on %d with %s …\n", callers, st.nodes, p.name)
			one, err := measureStorm(ctx, s, p, all[:st.nodes], callers)
			if err != nil {
				return nil, fmt.Errorf("storm on %d nodes with %s: %w", st.nodes, p.name, err)
			}
			out = append(out, one)
		}
	}
	return out, nil
}

// measureStorm has n callers ask at once, each of whom releases its lock as soon as it has it.
func measureStorm(ctx context.Context, s settings, p peer, all servers, n int) (out storm, err error) {
	out = storm{Peer: p.name, Nodes: len(all), Callers: n}
	if err := all.flush(); err != nil {
		return out, err
	}
	clients, err := openAll(ctx, p, scenario{clients: 1, workers: stormWorkers}, all.addrs())
	defer closeAll(clients)
	if err != nil {
		return out, err
	}
	before, err := all.calls()
	if err != nil {
		return out, err
	}
	idle := inUse()
	wait, cancel := context.WithTimeout(ctx, s.storm)
	defer cancel()

	var mu sync.Mutex // guards what follows
	var last, longest time.Duration
	var asking sync.WaitGroup
	var came, waiting atomic.Int64
	begin := time.Now()
	peak, caller, stop := watchMemory(func() int64 {
		if came.Load() < int64(n) {
			return 0
		}
		return waiting.Load()
	}, idle)
	for i := range n {
		asking.Go(func() {
			asked := time.Since(begin)
			waiting.Add(1)
			came.Add(1)
			h, err := clients[0].lock(wait, "storm/"+strconv.Itoa(i))
			now := time.Since(begin)
			waiting.Add(-1)
			if err == nil {
				err = h.unlock(ctx)
				mu.Lock()
				defer mu.Unlock()
				out.Granted++
				last = now
			} else {
				mu.Lock()
				defer mu.Unlock()
			}
			longest = max(longest, now-asked)
			if err != nil {
				out.Failed++
				out.Err = err.Error()
			}
		})
	}
	asking.Wait()
	stop()
	after, err := all.calls()
	requests, _ := after.since(before, p.direct)
	out.Seconds, out.Longest = last.Seconds(), longest.Seconds()
	out.Requests = float64(requests) / max(float64(out.Granted), 1)
	out.PeakMB, out.Caller = float64(*peak)/1e6, *caller
	out.AfterMB = max(float64(inUse())-float64(idle), 0) / 1e6
	return out, errors.Join(err, ctx.Err())
}

// watchMemory looks at this process until stop is called: at the most that it has used since
// idle, and at what each caller costs that waits once waiting has said that callers do, as soon
// as the garbage was collected then.
func watchMemory(waiting func() int64, idle uint64) (peak *uint64, caller *float64, stop func()) {
	peak, caller = new(uint64), new(float64)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		use := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
		for {
			metrics.Read(use)
			*peak = max(*peak, max(use[0].Value.Uint64()+use[1].Value.Uint64(), idle)-idle)
			if n := waiting(); n > 0 && *caller == 0 {
				runtime.GC()
				metrics.Read(use)
				n = (n + waiting()) / 2 // some were served meanwhile
				*caller = (float64(use[0].Value.Uint64()+use[1].Value.Uint64()) - float64(idle)) / float64(max(n, 1))
			}
			select {
			case <-time.After(10 * time.Millisecond):
			case <-quit:
				return
			}
		}
	}()
	return peak, caller, func() { close(quit); <-done }
}

func stormTable(list []storm) string {
	var b strings.Builder
	b.WriteString("Callers of one client who ask at once, each for a name of its own, release it as soon as they have it, and wait for a minute at most:\n\n")
	cells := [][]string{{"peer", "nodes", "callers", "granted", "after s", "longest wait s", "requests/lock", "peak MB", "bytes/caller", "left MB", "failed"}}
	for _, o := range list {
		cells = append(cells, []string{
			o.Peer, fmt.Sprint(o.Nodes), fmt.Sprint(o.Callers), fmt.Sprint(o.Granted), digits(o.Seconds), digits(o.Longest), fmt.Sprintf("%.1f", o.Requests),
			fmt.Sprintf("%.0f", o.PeakMB), fmt.Sprintf("%.0f", o.Caller), fmt.Sprintf("%.1f", o.AfterMB), fmt.Sprint(o.Failed),
		})
	}
	b.WriteString(markdown(cells, 1))
	for _, o := range list {
		if o.Err != "" {
			fmt.Fprintf(&b, "\nAn error of %s on %d: %s\n", o.Peer, o.Nodes, o.Err)
		}
	}
	return b.String()
}
