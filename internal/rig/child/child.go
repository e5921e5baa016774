// Package child starts processes that do not outlive this one, however it ends.
// That holds on Linux; elsewhere the process that started them has to end them.
package child

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// Start starts cmd, and has the kernel send it sig when this process ends. The
// channel is closed once the process is gone and reaped: how it ended then stands
// in cmd.ProcessState, and nobody else may call cmd.Wait.
func Start(cmd *exec.Cmd, sig syscall.Signal) (exited <-chan struct{}, err error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	dieWithParent(cmd.SysProcAttr, sig)
	started := make(chan error)
	starter() <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, err
	}
	gone := make(chan struct{})
	go func() {
		cmd.Wait() // how it ended stands in cmd.ProcessState
		close(gone)
	}()
	return gone, nil
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
