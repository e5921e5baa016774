//go:build unix

package child

import "syscall"

// Pause stops the process, whose connections stay open, as when a machine hangs. Resume has it go on.
func (p *Process) Pause() error { return p.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume undoes Pause.
func (p *Process) Resume() error { return p.cmd.Process.Signal(syscall.SIGCONT) }
