package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"
)

const (
	fewWaiters  = 8
	manyClients = 256
	manyLocal   = 1000
	manyWaiting = 2000
)

// waiters is what waiting costs.
type waiters struct {
	FewCommands  float64 `json:"commands_per_hand_over_8_clients"`
	ManyCommands float64 `json:"commands_per_hand_over_256_clients"`
	MegaBytes    float64 `json:"megabytes_1000_waiters"`
	Crowd        crowd   `json:"crowd"`
}

func (w *waiters) String() string {
	return fmt.Sprintf("Waiting, on 1 node: %.2f commands for a hand-over with %d clients, %.2f with %d. %d waiters in one process take %.2f MB.\n%v",
		w.FewCommands, fewWaiters, w.ManyCommands, manyClients, manyLocal, w.MegaBytes, w.Crowd)
}

// manyWaiters measures what waiting costs on one node.
func manyWaiters(ctx context.Context, s settings, all servers) (*waiters, error) {
	few, err := handOverCommands(ctx, s, all[:1], fewWaiters)
	if err != nil {
		return nil, err
	}
	many, err := handOverCommands(ctx, s, all[:1], manyClients)
	if err != nil {
		return nil, err
	}
	mb, err := waiterMemory(ctx, all[:1])
	if err != nil {
		return nil, err
	}
	crowd, err := measureCrowd(ctx, s, all[:1])
	return &waiters{FewCommands: few, ManyCommands: many, MegaBytes: mb, Crowd: crowd}, err
}

// handOverCommands is how many commands the node executes for each hand-over
// between so many clients, each with a connection of its own and 1 ms of work.
func handOverCommands(ctx context.Context, s settings, node servers, clients int) (float64, error) {
	s.warm += 500 * time.Millisecond // until every waiter has its place in the queue
	load := scenario{name: "waiters", clients: clients, workers: 1, shared: true, inside: time.Millisecond}
	one, err := measure(ctx, s, load, allPeers[0], node)
	if err != nil {
		return 0, err
	}
	return float64(one.commands) / max(float64(one.locks), 1), nil
}

// waiterMemory is how much memory, stacks included, a process needs for a
// thousand goroutines that wait for one lock, in MB.
func waiterMemory(ctx context.Context, node servers) (float64, error) {
	if err := node.flush(); err != nil {
		return 0, err
	}
	clients, err := openAll(ctx, allPeers[0], scenario{clients: 2, workers: 1}, node.addrs())
	defer closeAll(clients)
	if err != nil {
		return 0, err
	}
	h, err := clients[0].lock(ctx, "bench")
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	before := inUse()
	var waiting sync.WaitGroup
	for range manyLocal {
		waiting.Go(func() {
			if got, err := clients[1].lock(ctx, "bench"); err == nil {
				got.unlock(ctx)
			}
		})
	}
	time.Sleep(200 * time.Millisecond) // nothing tells when the last of them waits
	after := inUse()
	cancel()
	waiting.Wait()
	return (float64(after) - float64(before)) / 1e6, h.unlock(context.WithoutCancel(ctx))
}

// inUse is the bytes of live objects and stacks.
func inUse() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}
