//go:build !unix

package cli

import (
	"os"
	"syscall"
	"time"
)

func signalGroup(syscall.Signal) {}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func monotonicTime() time.Duration { return 0 }
