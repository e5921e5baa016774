package redisproc

import (
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/internal/rig/child"
)

// process is one run of the server program. Its methods may be called on one that has ended.
type process struct {
	cmd    *exec.Cmd
	exited <-chan struct{} // closed once the process is gone and reaped
}

func startProcess(program string, args, env []string, output *os.File) (*process, error) {
	p := &process{cmd: exec.Command(program, args...)}
	p.cmd.Stdout, p.cmd.Stderr = output, output
	p.cmd.Env = append(os.Environ(), env...)
	var err error
	if p.exited, err = child.Start(p.cmd, syscall.SIGKILL); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) kill() {
	p.cmd.Process.Kill() // fails only for one that has ended
	<-p.exited
}

func (p *process) terminate() {
	if p.interrupt() == nil {
		select {
		case <-p.exited:
			return
		case <-time.After(stopTimeout):
		}
	}
	p.kill()
}
