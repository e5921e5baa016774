//go:build unix

package report

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// openStream opens a device or a FIFO for writing. It does not wait for a reader of a FIFO, which may never
// come.
func openStream(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if errors.Is(err, unix.ENXIO) {
		return nil, fmt.Errorf("no process reads from %s; start its reader first", path)
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case info.Mode()&(fs.ModeNamedPipe|fs.ModeCharDevice) == 0:
		err = fmt.Errorf("%s is no longer a FIFO or a device", path) // File saw one before
	default:
		err = checkOwner(path, info)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// checkOwner rejects a FIFO or a device that belongs to neither this user nor root: its owner controls what
// goes through it, and may have put it there on purpose. A standard file is the caller's choice, also under
// sudo.
func checkOwner(path string, info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || st.Uid == 0 || int(st.Uid) == os.Geteuid() {
		return nil
	}
	for _, f := range []*os.File{os.Stdin, os.Stdout, os.Stderr} {
		if own, err := f.Stat(); err == nil && os.SameFile(own, info) {
			return nil
		}
	}
	return fmt.Errorf("%s is not a file and belongs to another user (uid %d); name a file, or a FIFO of your own", path, st.Uid)
}

// openMount opens a mounted regular file for overwriting.
func openMount(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		f.Close()
		return nil, errors.Join(err, fmt.Errorf("%s is not a regular file", path))
	}
	return f, nil
}

// openInput opens a file, FIFO or device for reading, without waiting for a writer.
func openInput(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = checkOwner(path, info)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// FromDescriptor returns the place for the inherited descriptor fd, which flag has named, or nil for 0. Commands
// that this process starts do not inherit it.
func FromDescriptor(flag string, fd int) (*Place, error) {
	if fd == 0 {
		return nil, nil
	}
	// An inherited descriptor has no close-on-exec flag. Descriptors that the Go runtime or this program has
	// opened have one.
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC != 0 {
		return nil, fmt.Errorf("%s %d is not open: redirect it, as in %d>status.json", flag, fd, fd)
	}
	if mode, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err != nil || mode&unix.O_ACCMODE == unix.O_RDONLY {
		return nil, fmt.Errorf("%s %d is open for reading only: redirect it, as in %d>status.json", flag, fd, fd)
	}
	// Duplicate it: the first three are the standard files and stay open.
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("%s %d: %w", flag, fd, err)
	}
	unix.CloseOnExec(fd)
	return &Place{flag: fmt.Sprintf("%s %d", flag, fd), stream: os.NewFile(uintptr(own), flag)}, nil
}
