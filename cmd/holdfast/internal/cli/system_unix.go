//go:build unix

package cli

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// raise sends s to this process's group and leaves it a moment to take effect.
func raise(s syscall.Signal) {
	unix.Kill(0, s)
	time.Sleep(time.Second) // the signal ends this
}

// isTerminal says whether f is one: only terminals have a size.
func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	return err == nil
}
