package redisproc

import "syscall"

// dieWithParent makes the kernel kill the child when the thread that starts it ends.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
