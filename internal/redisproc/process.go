package redisproc

import (
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"
)

// process is one run of the server program. Its methods may be called on one that has ended.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed once the process is gone and reaped
}

// starter runs functions on an operating system thread that lives as long as this process. Linux kills a child when
// the *thread* that started it ends (see golang/go#27505), and the Go runtime ends threads as it likes, but never one that
// a goroutine holds locked.
var starter = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

func startProcess(program string, args []string, output *os.File) (*process, error) {
	p := &process{cmd: exec.Command(program, args...), exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = output, output
	p.cmd.SysProcAttr = dieWithParent()

	started := make(chan error)
	starter() <- func() { started <- p.cmd.Start() }
	if err := <-started; err != nil {
		return nil, err
	}
	go func() {
		p.cmd.Wait() // how it ended stands in cmd.ProcessState
		close(p.exited)
	}()
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
