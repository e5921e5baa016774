package sqlite

import (
	"syscall"
	"time"
)

// nap blocks the thread for less than a millisecond. A timer of the runtime rounds that up to one, as its wait for files does.
func nap(d time.Duration) {
	ts := syscall.NsecToTimespec(int64(d))
	syscall.Nanosleep(&ts, nil) // a signal may end it sooner
}
