package redlock

import (
	"errors"
	"net"
	"syscall"
)

// taker returns a function that reads from conn what there is, without waiting. Where
// there is nothing it gives the processor to whoever waits for it, which may be the
// node, and says so. The end of the stream is left to an ordinary read; so is an
// error, of which the kernel may have told then.
func taker(conn net.Conn) func([]byte) (n int, nothing bool) {
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
		n, err = syscall.Read(int(fd), buf)
		return true
	}
	return func(b []byte) (int, bool) {
		buf, n, err = b, 0, nil
		if raw.Read(read) != nil {
			return 0, false
		}
		if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINTR) {
			syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
			return 0, true
		}
		return max(n, 0), false
	}
}
