//go:build unix

package sqllock_test

import (
	"os"
	"syscall"
)

const (
	flockWait = syscall.LOCK_EX
	flockTry  = syscall.LOCK_EX | syscall.LOCK_NB
	flockEnd  = syscall.LOCK_UN
)

func flock(f *os.File, how int) error { return syscall.Flock(int(f.Fd()), how) }
