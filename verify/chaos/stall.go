//go:build linux

package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
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
// write a byte, or when a client or a server had less than half of the processor time that it asked for. A
// lease lost within a TTL after such a time, or a late call, shows nothing about Holdfast.
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
	go s.watchProcesses(ctx)
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

// watchProcesses watches the processes that this one has started, and theirs. A scheduler runs a nearly idle
// process soon, even while it keeps busy ones waiting for seconds.
func (s *standstill) watchProcesses(ctx context.Context) {
	for waits, before := processorWaits(), monotonicNow(); ctx.Err() == nil; {
		sleep(ctx, 6*s.least)
		next, now := processorWaits(), monotonicNow()
		s.noteWaits(waits, next, before, now)
		waits, before = next, now
	}
}

// noteWaits records the time between two readings of processorWaits if a thread has waited for a processor for
// half of it.
func (s *standstill) noteWaits(earlier, later map[string]int64, before, now int64) {
	for thread, wait := range later {
		if was, known := earlier[thread]; known && 2*(wait-was) >= now-before {
			s.noteGap(before, now, 0)
			return
		}
	}
}

// processorWaits returns, for each thread of the processes that this one has started, how long it has waited for
// a processor, in nanoseconds. It returns none on a kernel that does not count that.
func processorWaits() map[string]int64 {
	waits := make(map[string]int64)
	for _, pid := range descendants(strconv.Itoa(os.Getpid())) {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%s/task/*/schedstat", pid))
		for _, file := range files {
			text, _ := os.ReadFile(file) // an error means that the thread has ended
			if fields := strings.Fields(string(text)); len(fields) == 3 {
				waits[file], _ = strconv.ParseInt(fields[1], 10, 64)
			}
		}
	}
	return waits
}

// descendants returns the ids of the processes that a process has started, and of theirs.
func descendants(pid string) []string {
	found := make(map[string]bool)
	for queue := []string{pid}; len(queue) > 0; queue = queue[1:] {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%s/task/*/children", queue[0]))
		for _, file := range files {
			text, _ := os.ReadFile(file)
			for child := range strings.FieldsSeq(string(text)) {
				if !found[child] {
					found[child] = true
					queue = append(queue, child)
				}
			}
		}
	}
	return slices.Collect(maps.Keys(found))
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
