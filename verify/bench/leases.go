package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/redlock"
)

// childVariable, set to anything, makes this program the holder of leases.
const childVariable = "HOLDFAST_BENCH_HOLDER"

// order is what the holder is told.
type order struct {
	Addrs []string
	Count int
	Hold  time.Duration
}

// account is what the holder answers.
type account struct {
	Acquiring        time.Duration
	Lost, Renewals   int64
	FailedRenewals   int64
	Reasons          map[string]int // why leases were lost and renewals failed
	GoroutinesBefore int
	GoroutinesAfter  int
	RSS, PeakRSS     int64 // kB
	CPU              time.Duration
}

// leases has a process of its own hold leases, so that nothing else counts.
func leases(ctx context.Context, s settings, out io.Writer) (err error) {
	nodes := s.nodes[len(s.nodes)-1]
	all, err := startServers(ctx, nodes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, all.stop()) }()
	input, err := json.Marshal(order{all.addrs(), s.count, s.hold})
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), childVariable+"=1")
	cmd.Stdin, cmd.Stderr = strings.NewReader(string(input)), os.Stderr
	answer, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("the holder: %w", err)
	}
	var a account
	if err := json.Unmarshal(answer, &a); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s\n\n%d leases on %d nodes, held for %v: acquired in %v, %d renewals (%d failed), %d lost.\n"+
		"Memory of the process: %.1f MB resident, %.1f MB at the peak. Goroutines: %d before, %d while holding. CPU: %v.\n",
		machine(all), s.count, nodes, s.hold, a.Acquiring.Round(time.Millisecond), a.Renewals, a.FailedRenewals, a.Lost,
		float64(a.RSS)/1e3, float64(a.PeakRSS)/1e3, a.GoroutinesBefore, a.GoroutinesAfter, a.CPU.Round(time.Millisecond))
	for reason, times := range a.Reasons {
		fmt.Fprintf(out, "%d times: %s\n", times, reason)
	}
	if a.Lost > 0 {
		return fmt.Errorf("%d leases were lost", a.Lost)
	}
	return nil
}

// holdLeases is the holder's process.
func holdLeases(in io.Reader, out io.Writer) error {
	var o order
	if err := json.NewDecoder(in).Decode(&o); err != nil {
		return err
	}
	ctx := context.Background()
	nodes := make([]redlock.Node, len(o.Addrs))
	for i, addr := range o.Addrs {
		nodes[i].Addr = addr
	}
	drv, err := redlock.New(ctx, nodes, &redlock.Options{NoQuarantine: true})
	if err != nil {
		return err
	}
	var lost, renewals, failed atomic.Int64
	var mu sync.Mutex // guards reasons
	reasons := make(map[string]int)
	blame := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		reasons[err.Error()]++
	}
	client, err := holdfast.New(drv, &holdfast.Options{Hooks: holdfast.Hooks{
		Lost: func(e holdfast.LostEvent) { lost.Add(1); blame(e.Reason) },
		Renewed: func(e holdfast.RenewedEvent) {
			renewals.Add(1)
			if e.Err != nil {
				failed.Add(1)
				blame(e.Err)
			}
		},
	}})
	if err != nil {
		return err
	}
	a := account{GoroutinesBefore: runtime.NumGoroutine()}
	start := time.Now()
	if err := acquireMany(ctx, client, o.Count); err != nil {
		return err
	}
	a.Acquiring = time.Since(start)
	time.Sleep(o.Hold) // the time over which renewals are counted
	a.GoroutinesAfter = runtime.NumGoroutine()
	a.Lost, a.Renewals, a.FailedRenewals = lost.Load(), renewals.Load(), failed.Load()
	a.RSS, a.PeakRSS = resident()
	a.CPU = cpuTime()
	mu.Lock()
	a.Reasons = maps.Clone(reasons)
	mu.Unlock()
	if err := json.NewEncoder(out).Encode(a); err != nil {
		return err
	}
	return client.Close()
}

// acquireMany takes n leases, 64 at a time.
func acquireMany(ctx context.Context, client *holdfast.Client, n int) error {
	var working sync.WaitGroup
	var next atomic.Int64
	errs := make(chan error, 64)
	for range cap(errs) {
		working.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				if _, err := client.Acquire(ctx, "bench/"+strconv.FormatInt(i, 10), nil); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	working.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

// resident is the memory of this process as the system counts it, now and at
// most, in kB; 0 where it does not say.
func resident() (now, peak int64) {
	text, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch name {
		case "VmRSS":
			now = n
		case "VmHWM":
			peak = n
		}
	}
	return now, peak
}
