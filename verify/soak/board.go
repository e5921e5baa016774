//go:build linux

package main

import (
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast"
)

const (
	places  = 3  // places of the semaphore
	readers = 4  // readers of the read-write lock
	mostHot = 64 // maximal number of names in the relay
)

// Cells of the board: of the relay from 0 on, then of the other locks.
const (
	crowdCell  = mostHot
	leaderCell = crowdCell + 1
	placeCell  = leaderCell + 1
	readerCell = placeCell + places
	bundleCell = readerCell + readers
	cells      = bundleCell + 3
)

// cell holds, for one lock, the end of its last holder's trust (0 once the holder has left) and the highest
// token.
type cell struct{ until, token atomic.Int64 }

// sharedBoard is memory shared by the processes of an engine, in which holders record that they work. It outlives
// killed processes, whose trust ends by itself.
type sharedBoard struct {
	cells               *[cells]cell
	overlaps, disorders atomic.Int64 // found by this process
}

func openBoard(path string) (*sharedBoard, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size := int(unsafe.Sizeof([cells]cell{}))
	if err := f.Truncate(int64(size)); err != nil {
		return nil, err
	}
	memory, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap %s: %w", path, err)
	}
	return &sharedBoard{cells: (*[cells]cell)(unsafe.Pointer(&memory[0]))}, nil
}

// enterCell records that the holder of a lease begins to work. It counts another holder at work, and a token
// that has not risen. The holder calls leave before it releases the lease.
func (b *sharedBoard) enterCell(n int, l *holdfast.Lease) (leave func()) {
	c, now := &b.cells[n], monotonicTime()
	until := now + int64(time.Until(l.Deadline()))
	if l.Context().Err() != nil || until <= now {
		return func() {} // the lease is no longer trusted
	}
	if old := c.until.Swap(until); old > now {
		b.overlaps.Add(1)
	}
	if old := c.token.Swap(int64(l.Token())); l.Token() != 0 && old >= int64(l.Token()) {
		b.disorders.Add(1)
	}
	return func() { c.until.CompareAndSwap(until, 0) }
}

// monotonicTime returns the clock that all processes of a machine share, in ns.
func monotonicTime() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // cannot fail on Linux
	}
	return t.Nano()
}
