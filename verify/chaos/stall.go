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
	// glance is the interval at which standstill reads the clock.
	glance = 20 * time.Millisecond
	// slowDisk is the time of a write on a busy disk. Servers that sync write several times per call.
	slowDisk = 100 * time.Millisecond
)

// standstill records the times when the machine was too busy to run this nearly idle process, or a disk to
// write a byte. Then it may not have run a client or a server either, and a lease that is lost within a TTL
// shows nothing about Holdfast.
type standstill struct {
	least time.Duration // shorter standstills of the machine are not recorded
	disk  bool          // servers sync to the disk of temporary files

	mu    sync.Mutex // guards the fields below
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

// noteGap records the time between two readings of the clock, unless it is shorter than least.
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

// summarize returns the number of standstills and the longest, or an error if not all are known.
func (s *standstill) summarize() (n int, longest time.Duration, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range s.times {
		longest = max(longest, time.Duration(i.end-i.start))
	}
	return len(s.times), longest, s.err
}
