//go:build unix

package child

import (
	"os"
	"syscall"
)

var stop, resume os.Signal = syscall.SIGSTOP, syscall.SIGCONT
