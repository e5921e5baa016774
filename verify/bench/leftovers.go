package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	newNames    = 100_000
	newWorkers  = 64
	keptSamples = 100 // keys whose time to live is looked at
)

// leftover is what locks with names that were never used before leave on a node once
// they are released.
type leftover struct {
	Peer    string  `json:"peer"`
	Names   int     `json:"names"`
	Bytes   float64 `json:"bytes_per_name"`
	Seconds float64 `json:"kept_seconds"` // the longest
	// MBMinutes is what 100,000 names take up of a node's memory, and for how long.
	MBMinutes float64 `json:"mb_minutes_per_100000_names"`
}

// leftovers measures each peer on one node.
func leftovers(ctx context.Context, s settings, node servers) ([]leftover, error) {
	var out []leftover
	for _, p := range s.chosen(scenario{name: "new-throughput"}, 1) {
		one, err := leave(ctx, s, p, node)
		if err != nil {
			return nil, fmt.Errorf("memory for new names with %s: %w", p.name, err)
		}
		out = append(out, one)
	}
	return out, nil
}

func leave(ctx context.Context, s settings, p peer, node servers) (leftover, error) {
	out := leftover{Peer: p.name}
	if err := node.flush(); err != nil {
		return out, err
	}
	clients, err := openAll(ctx, p, scenario{clients: 1, workers: newWorkers}, node.addrs())
	defer closeAll(clients)
	if err != nil {
		return out, err
	}
	before, err := node.info("memory", "used_memory")
	if err != nil {
		return out, err
	}
	if out.Names = takeOnce(ctx, clients[0], s.names); out.Names == 0 {
		return out, errors.New("it took no lock")
	}
	after, err := node.info("memory", "used_memory")
	if err != nil {
		return out, err
	}
	kept, err := node.kept()
	out.Bytes = (after - before) / float64(out.Names)
	out.Seconds = kept.Seconds()
	out.MBMinutes = max(out.Bytes, 0) * newNames / 1e6 * kept.Minutes()
	return out, err
}

// takeOnce takes and releases so many locks, each with a name of its own, and returns
// how many it got: rueidislock now and then waits for ever for a lock that is free.
func takeOnce(ctx context.Context, c client, names int) int {
	next := make(chan int)
	var taken atomic.Int64
	var working sync.WaitGroup
	for range newWorkers {
		working.Go(func() {
			for n := range next {
				if once(ctx, c, "order/"+strconv.Itoa(n)) == nil {
					taken.Add(1)
				}
			}
		})
	}
	for n := range names {
		next <- n
	}
	close(next)
	working.Wait()
	return int(taken.Load())
}

// kept is the longest time to live among some keys of the one node, leaving out those
// that never end.
func (all servers) kept() (longest time.Duration, err error) {
	for range keptSamples {
		key, err := all[0].Do("RANDOMKEY")
		if err != nil {
			return 0, err
		}
		name, ok := key.(string)
		if !ok {
			return 0, nil // no key is left
		}
		left, err := all[0].Do("PTTL", name)
		if err != nil {
			return 0, err
		}
		if ms, _ := left.(int64); ms > 0 {
			longest = max(longest, time.Duration(ms)*time.Millisecond)
		}
	}
	return longest, nil
}

func leftoverTable(list []leftover) string {
	var b strings.Builder
	b.WriteString("What locks with names that are new leave on one node when they are released:\n\n")
	cells := [][]string{{"peer", "bytes/name", "kept s", "MB·minutes per 100,000 names"}}
	for _, l := range list {
		cells = append(cells, []string{l.Peer, fmt.Sprintf("%.0f", l.Bytes), fmt.Sprintf("%.0f", l.Seconds), digits(l.MBMinutes)})
	}
	b.WriteString(markdown(cells, 1))
	return b.String()
}
