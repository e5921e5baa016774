package redlock

import (
	"net"
	"syscall"
)

// taker returns a function that reads from conn what has come, without waiting, and
// returns how many bytes that were. An end or an error is left to an ordinary read.
func taker(conn net.Conn) func([]byte) int {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil
	}
	var buf []byte
	var n int
	read := func(fd uintptr) bool { // made once, or each call would allocate
		n, _ = syscall.Read(int(fd), buf)
		return true
	}
	return func(b []byte) int {
		buf, n = b, 0
		raw.Read(read) // what it may return is for an ordinary read to find
		return max(n, 0)
	}
}

// yield gives the processor to another process that waits for it.
func yield() { syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) }
