package main

import (
	"context"
	"sync"
	"time"
)

// Stage is what happened while the workers of a key were those of a stage.
type Stage struct {
	Ours, Theirs int // workers
	Locks        int
	Longest      time.Duration // wait of any worker
}

// Migrate has n workers of from compete for a key, replaces them one by one by workers of to,
// and back. Each stage lasts until every worker has had the lock least times in it.
func Migrate(ctx context.Context, addrs []string, key string, l Load, least int, from, to Side) (stages []Stage, err error) {
	crew := &crew{key: key, load: l, jobs: make([]job, l.Workers), turns: make([]int, l.Workers), since: make([]time.Time, l.Workers)}
	var sides [2][]worker
	for i, side := range []Side{from, to} {
		workers, stop, err := side.open(ctx, addrs, l.Workers)
		if stop != nil {
			defer stop()
		}
		if err != nil {
			return nil, err
		}
		sides[i] = workers
	}
	defer crew.stop()
	for i, w := range sides[0] {
		crew.replace(ctx, i, w)
	}
	for _, step := range steps(l.Workers) {
		if step.at >= 0 {
			crew.replace(ctx, step.at, sides[step.side][step.at])
		}
		locks, longest := crew.stage(ctx, least)
		stages = append(stages, Stage{Ours: step.ours, Theirs: l.Workers - step.ours, Locks: locks, Longest: longest})
	}
	return stages, ctx.Err()
}

// step puts a worker of a side in the place at; −1: none.
type step struct{ at, side, ours int }

func steps(n int) []step {
	all := []step{{at: -1}}
	for i := range n {
		all = append(all, step{at: i, side: 1, ours: i + 1})
	}
	for i := range n {
		all = append(all, step{at: i, side: 0, ours: n - i - 1})
	}
	return all
}

// crew is the workers of the moment.
type crew struct {
	key  string
	load Load
	jobs []job

	mu      sync.Mutex // guards what follows
	turns   []int      // of each place, in this stage
	since   []time.Time
	locks   int
	longest time.Duration
}

// job is a worker that works.
type job struct {
	cancel context.CancelFunc
	gone   chan struct{}
}

func (j job) stop() {
	if j.cancel != nil {
		j.cancel()
		<-j.gone
	}
}

// replace ends the worker at a place, after its lock, and puts w there.
func (c *crew) replace(ctx context.Context, at int, w worker) {
	c.jobs[at].stop()
	ctx, cancel := context.WithCancel(ctx)
	gone := make(chan struct{})
	c.jobs[at] = job{cancel, gone}
	c.mu.Lock()
	c.since[at] = time.Now()
	c.mu.Unlock()
	go func() {
		defer close(gone)
		for ctx.Err() == nil {
			free, err := w(ctx, c.key)
			if err != nil {
				continue // it tried too often, or is replaced
			}
			c.note(at)
			pause(context.Background(), c.load.Work)
			free()
			pause(ctx, c.load.Rest)
			c.mu.Lock()
			c.since[at] = time.Now()
			c.mu.Unlock()
		}
	}()
}

func (c *crew) note(at int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turns[at]++
	c.locks++
	c.longest = max(c.longest, time.Since(c.since[at]))
}

// stage waits until every worker has had its turns.
func (c *crew) stage(ctx context.Context, least int) (locks int, longest time.Duration) {
	c.mu.Lock()
	clear(c.turns)
	c.locks, c.longest = 0, 0
	c.mu.Unlock()
	enough := func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, n := range c.turns {
			if n < least {
				return false
			}
		}
		return true
	}
	for !enough() && ctx.Err() == nil {
		pause(ctx, time.Millisecond)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.locks, c.longest
}

func (c *crew) stop() {
	for _, j := range c.jobs {
		j.stop()
	}
}
