//go:build unix

package redisproc

import (
	"errors"
	"syscall"
)

func (p *process) pause() error  { return p.cmd.Process.Signal(syscall.SIGSTOP) }
func (p *process) resume() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// interrupt asks the process to end. A paused one sees the request only once it goes on.
func (p *process) interrupt() error {
	return errors.Join(p.cmd.Process.Signal(syscall.SIGTERM), p.resume())
}
