// Package child starts processes that do not outlive this one, however it ends. That holds on Linux; on other
// systems the process that started them has to end them.
package child

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// Start starts cmd, and makes the kernel send it the signal sig when this process ends. The channel is closed
// once the process has ended and is reaped. cmd.ProcessState then has its exit state, and no other code may
// call cmd.Wait.
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
		cmd.Wait() // cmd.ProcessState has the exit state
		close(gone)
	}()
	return gone, nil
}

// starter runs functions on an operating system thread that lives as long as this process. Linux kills a child
// when the *thread* that started it ends (see golang/go#27505). The Go runtime may end any thread, except one
// that a goroutine has locked.
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
