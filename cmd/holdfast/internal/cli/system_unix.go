//go:build unix

package cli

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// signalGroup sends s to this process's group and waits a moment for its effect.
func signalGroup(s syscall.Signal) {
	unix.Kill(0, s)
	time.Sleep(time.Second) // the signal ends this process
}

// isTerminal reports whether f is a terminal: only terminals have a size.
func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	return err == nil
}

// monotonicTime returns the time by CLOCK_MONOTONIC, or 0 if that is missing.
func monotonicTime() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
