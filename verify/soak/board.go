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
	places  = 3  // of the semaphore
	readers = 4  // of the read and write lock
	mostHot = 64 // names of the relay
)

// The cells of the board: of the relay from 0 on, and then of the others.
const (
	crowdCell  = mostHot
	leaderCell = crowdCell + 1
	placeCell  = leaderCell + 1
	readerCell = placeCell + places
	bundleCell = readerCell + readers
	cells      = bundleCell + 3
)

// cell is about one lock: until when its last holder trusts it, 0 once that has left, and the highest token.
type cell struct{ until, token atomic.Int64 }

// board is memory that the processes of an engine share, where holders note that they are at work. It outlives killed
// processes, whose trust ends by itself.
type board struct {
	cells               *[cells]cell
	overlaps, disorders atomic.Int64 // that this process has found
}

func openBoard(path string) (*board, error) {
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
	return &board{cells: (*[cells]cell)(unsafe.Pointer(&memory[0]))}, nil
}

// enterCell notes that the holder of a lease begins to work, and counts another one that is at work, and a token that has not risen.
// The holder leaves before it releases the lease.
func (b *board) enterCell(n int, l *holdfast.Lease) (leave func()) {
	c, now := &b.cells[n], monotonicTime()
	until := now + int64(time.Until(l.Deadline()))
	if l.Context().Err() != nil || until <= now {
		return func() {} // it trusts the lease no more
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
		panic(err) // every Linux has it
	}
	return t.Nano()
}
