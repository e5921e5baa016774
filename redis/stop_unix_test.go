//go:build unix

package redis_test

import (
	"errors"
	"syscall"
)

// stop stops the process, and returns when it has stopped: the signal alone only requests that.
func (w *waiter) stop() error {
	if err := w.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	var status syscall.WaitStatus
	for {
		if _, err := syscall.Wait4(w.Process.Pid, &status, syscall.WUNTRACED, nil); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// resume continues a stopped process.
func (w *waiter) resume() error { return w.Process.Signal(syscall.SIGCONT) }
