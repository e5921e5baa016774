//go:build linux

package main

import (
	"context"
	"os"
	"slices"
	"sync"
	"time"
)

const (
	// glance is the interval in which standstill looks at the clock.
	glance = 20 * time.Millisecond
	// slowDisk is the time of a write on a disk that others keep busy. Servers that wait for it write
	// several times for one call.
	slowDisk = 100 * time.Millisecond
)

// standstill notes when the machine was too busy to run this process, which does next to nothing, or a disk to write a byte. Then it may not
// have run a client or a server either, and a lease that is lost within a TTL tells nothing of Holdfast.
type standstill struct {
	least time.Duration // the machine's shorter ones are not noted
	disk  bool          // servers wait for the disk of temporary files

	mu    sync.Mutex // guards what follows
	times []interval
	err   error // why the disk is not watched
}

func (s *standstill) watch(ctx context.Context) {
	if s.disk {
		go s.watchDisk(ctx)
	}
	for before := monotonicNow(); ctx.Err() == nil; {
		sleep(ctx, glance)
		now := monotonicNow()
		s.noteGap(before, now, s.least)
		before = now
	}
}

func (s *standstill) watchDisk(ctx context.Context) {
	f, err := os.CreateTemp("", "holdfast-chaos-")
	if err == nil {
		defer f.Close()
		err = os.Remove(f.Name())
	}
	for ; err == nil && ctx.Err() == nil; sleep(ctx, glance) {
		before := monotonicNow()
		if _, err = f.WriteAt([]byte{0}, 0); err == nil {
			err = f.Sync()
		}
		s.noteGap(before, monotonicNow(), slowDisk)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// noteGap takes the time between two looks, unless it is shorter than least.
func (s *standstill) noteGap(before, now int64, least time.Duration) {
	if now-before < int64(least) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.times = append(s.times, interval{start: before, end: now})
}

// fallsWithin reports whether a standstill falls between two times.
func (s *standstill) fallsWithin(from, to int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.times, func(i interval) bool { return i.start < to && from < i.end })
}

// summarize returns the number of standstills and the longest, or why not all are known.
func (s *standstill) summarize() (n int, longest time.Duration, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range s.times {
		longest = max(longest, time.Duration(i.end-i.start))
	}
	return len(s.times), longest, s.err
}
