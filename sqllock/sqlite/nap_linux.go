package sqlite

import (
	"syscall"
	"time"
)

// napFor blocks the thread for less than a millisecond. A timer of the Go runtime rounds that up to a
// millisecond.
func napFor(d time.Duration) {
	ts := syscall.NsecToTimespec(int64(d))
	syscall.Nanosleep(&ts, nil) // a signal may end it early
}
