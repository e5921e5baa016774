package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/metrics"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// measureStorms measures a client whose callers all ask at once, each for its own name, and release it at
// once: 100,000 on one node, 30,000 on several.
func measureStorms(ctx context.Context, s *session) error {
	cells := [][]string{{
		"library", "nodes", "callers", "granted", "after s", "longest wait s", "requests/lock", "peak MB", "bytes/caller", "left MB", "failed", "an error",
	}}
	err := s.eachService(ctx, func(sv *service) error {
		callers := 100_000
		if sv.nodes > 1 {
			callers = 30_000
		}
		callers = max(int(float64(callers)*s.scale), 1)
		for _, lib := range s.chosenLibraries(sv, load{}) {
			if !lib.patient {
				continue
			}
			fmt.Fprintf(s.progress, "storm of %d on %s with %s …\n", callers, sv.name, lib.name)
			o, err := runStorm(ctx, s.settings.time, lib, sv, callers)
			if err != nil {
				return fmt.Errorf("%s: %w", lib.name, err)
			}
			cells = append(cells, []string{
				lib.name, fmt.Sprint(sv.nodes), fmt.Sprint(callers), fmt.Sprint(o.granted), formatDigits(o.last.Seconds()), formatDigits(o.longest.Seconds()),
				formatDigits(o.requests), formatDigits(o.peak), formatDigits(o.caller), formatDigits(o.left), fmt.Sprint(o.failed), fmt.Sprint(o.err),
			})
		}
		return nil
	})
	fmt.Fprintf(s.out, "Callers of one client who ask at once and wait for %v at most:\n\n%s", s.settings.time, markdownTable(cells, 1))
	return err
}

// stormOutcome holds the outcomes of the callers.
type stormOutcome struct {
	granted  int
	last     time.Duration // time until the last of them had its lock
	longest  time.Duration // longest wait
	requests float64       // per lock, to all servers
	peak     float64       // MB of heap and stacks, including garbage
	caller   float64       // bytes per waiting caller
	left     float64       // MB of live memory at the end, with the client open
	failed   int           // failed calls to lock or to unlock
	err      error         // error of one of these
}

// noteCaller records a caller that has waited for waited, and ended after the start of the first by after.
func (o *stormOutcome) noteCaller(waited, after time.Duration, granted bool, err error) {
	o.longest = max(o.longest, waited)
	if granted {
		o.granted++
		o.last = max(o.last, after)
	}
	if err != nil {
		o.failed++
		o.err = err
	}
}

// runStorm makes n callers ask at once.
func runStorm(ctx context.Context, most time.Duration, lib library, sv *service, n int) (out stormOutcome, err error) {
	prefix, addrs, _, err := sv.prepareService(noFault)
	if err != nil {
		return out, err
	}
	clients, err := openAll(ctx, team{lib, 1, 64}, addrs, prefix, 0) // one connection per worker for libraries with pools
	defer closeAll(clients)
	if err != nil {
		return out, err
	}
	before, err := sv.redis.readCalls()
	if err != nil {
		return out, err
	}
	live := liveBytes()
	wait, cancel := context.WithTimeout(ctx, most)
	defer cancel()

	var mu sync.Mutex // guards out
	var asking sync.WaitGroup
	var came, waiting atomic.Int64
	stop := watchMemory(&out, live, func() int64 {
		if came.Load() < int64(n) {
			return 0
		}
		return waiting.Load()
	})
	begin := time.Now()
	for i := range n {
		asking.Go(func() {
			asked := time.Now()
			waiting.Add(1)
			came.Add(1)
			unlock, err := clients[0].lock(wait, prefix+"/"+strconv.Itoa(i))
			now := time.Now()
			waiting.Add(-1)
			granted := err == nil
			if granted {
				err = unlock(ctx)
			}
			mu.Lock()
			defer mu.Unlock()
			out.noteCaller(now.Sub(asked), now.Sub(begin), granted, err)
		})
	}
	asking.Wait()
	stop()
	after, err := sv.redis.readCalls()
	requests, _ := after.callsSince(before, lib.direct)
	out.requests = float64(requests) / max(float64(out.granted), 1)
	out.left = max(liveBytes()-live, 0) / 1e6
	return out, errors.Join(err, ctx.Err())
}

// watchMemory measures this process until stop is called: the highest use beyond the live data, and, once
// waiting reports callers, the cost of each after a garbage collection.
func watchMemory(out *stormOutcome, live float64, waiting func() int64) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	use := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	read := func() float64 {
		metrics.Read(use)
		return float64(use[0].Value.Uint64()+use[1].Value.Uint64()) - live
	}
	var peak, caller float64
	go func() {
		defer close(done)
		for {
			peak = max(peak, read())
			if n := waiting(); n > 0 && caller == 0 {
				runtime.GC()
				bytes := read()
				caller = bytes / float64(max((n+waiting())/2, 1)) // some were served meanwhile
			}
			select {
			case <-time.After(10 * time.Millisecond):
			case <-quit:
				return
			}
		}
	}()
	return func() {
		close(quit)
		<-done
		out.peak, out.caller = peak/1e6, caller
	}
}

// liveBytes returns the bytes of live objects and stacks.
func liveBytes() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc + m.StackInuse)
}
