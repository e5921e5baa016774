//go:build linux

package main

import (
	"context"
	"slices"
	"sync"
	"time"
)

// glance is how often standstill looks at the clock.
const glance = 20 * time.Millisecond

// standstill notes when the machine was too busy to run this process, which does next to nothing. Then it may not have run a client
// either, and a lease that is lost within a TTL tells nothing of Holdfast.
type standstill struct {
	least time.Duration // shorter ones are not noted

	mu    sync.Mutex // guards what follows
	times []interval
}

func (s *standstill) watch(ctx context.Context) {
	for before := mono(); ctx.Err() == nil; {
		sleep(ctx, glance)
		now := mono()
		s.note(before, now)
		before = now
	}
}

// note takes two looks, one after the other.
func (s *standstill) note(before, now int64) {
	if now-before < int64(s.least) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.times = append(s.times, interval{start: before, end: now})
}

// within says whether there was one between two times.
func (s *standstill) within(from, to int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.times, func(i interval) bool { return i.start < to && from < i.end })
}

// sum is how many there were, and how long the longest was.
func (s *standstill) sum() (n int, longest time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range s.times {
		longest = max(longest, time.Duration(i.end-i.start))
	}
	return len(s.times), longest
}
