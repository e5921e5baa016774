//go:build unix

package cli

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// signalGroup sends s to this process's group and leaves it a moment to take effect.
func signalGroup(s syscall.Signal) {
	unix.Kill(0, s)
	time.Sleep(time.Second) // the signal ends this
}

// isTerminal reports whether f is a terminal: only terminals have a size.
func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	return err == nil
}

// monotonicTime is the time by CLOCK_MONOTONIC, or 0 where there is none.
func monotonicTime() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
