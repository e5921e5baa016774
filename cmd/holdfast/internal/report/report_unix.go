//go:build unix

package report

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// openStream opens a device or a FIFO. It does not wait for a reader of a FIFO,
// which may never come.
func openStream(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if errors.Is(err, unix.ENXIO) {
		return nil, fmt.Errorf("no process reads from %s; start its reader first", path)
	}
	return f, err
}

// Descriptor is the descriptor fd that this process was started with, as flag says,
// or nil for 0. The commands that this process starts do not inherit it.
func Descriptor(flag string, fd int) (*Place, error) {
	if fd == 0 {
		return nil, nil
	}
	// What was inherited does not close on exec, or it would not be here; what the Go
	// runtime or this program has opened since does.
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC != 0 {
		return nil, fmt.Errorf("%s %d is not open: redirect it, as in %d>status.json", flag, fd, fd)
	}
	if mode, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err != nil || mode&unix.O_ACCMODE == unix.O_RDONLY {
		return nil, fmt.Errorf("%s %d is open for reading only: redirect it, as in %d>status.json", flag, fd, fd)
	}
	// A copy of our own: the first three are the standard files, and stay open.
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("%s %d: %w", flag, fd, err)
	}
	unix.CloseOnExec(fd)
	return &Place{flag: fmt.Sprintf("%s %d", flag, fd), stream: os.NewFile(uintptr(own), flag)}, nil
}
