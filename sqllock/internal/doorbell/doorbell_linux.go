package doorbell

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// maxAddress bounds the address of a socket: the size of sockaddr_un.sun_path without its final zero.
	maxAddress = 107
	// maxNames and maxProbes bound the number of names that Open reads in the folder, and of sockets that it
	// tries.
	maxNames, maxProbes = 4096, 32
	// settled is the minimum age of a socket that Open tries: the process of a younger socket may still be
	// opening it.
	settled = time.Minute

	openPath = 0x200000 // O_PATH, which syscall lacks
)

// Bell is the socket of one process for one file. It is safe for concurrent use.
type Bell struct {
	file   string   // the file with the locks
	name   string   // name of the socket in the folder
	folder *os.File // the file's folder, opened so that addresses are short and stay in it
	socket *os.File
	drain  sync.WaitGroup
	once   sync.Once
}

// Open creates the socket of id beside the file, which must exist and not be a symbolic link. It also removes
// some sockets beside the file whose processes have ended. It calls hear with each message, one at a time,
// until Close. hear must not block.
func Open(file, id string, hear func(message string)) (*Bell, error) {
	if !validID(id) {
		return nil, fmt.Errorf("%q is not the id of a bell", id)
	}
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	folder, err := os.Open(filepath.Dir(file))
	if err != nil {
		return nil, err
	}
	b := &Bell{file: file, name: filepath.Base(file) + infix + id, folder: folder}
	if err := b.bindSocket(info.Mode().Perm()); err != nil {
		folder.Close()
		return nil, err
	}
	b.sweepDead()
	b.drain.Go(func() { b.readMessages(hear) })
	return b, nil
}

// addressOf returns a short path for an entry of the folder.
func (b *Bell) addressOf(name string) string {
	return "/proc/self/fd/" + strconv.Itoa(int(b.folder.Fd())) + "/" + name
}

// checkName returns an error if the name of the file is too long for sockets beside it.
func checkName(file string) error {
	// The descriptor of the folder may have three digits.
	if most := maxAddress - len("/proc/self/fd/999/") - len(infix) - idLen; len(filepath.Base(file)) > most {
		return fmt.Errorf("the name of the file has %d bytes, and more than %d leave no room for that of a socket", len(filepath.Base(file)), most)
	}
	return nil
}

// CheckSupport returns an error if no socket can be created beside file. It does not create one.
func CheckSupport(file string) error {
	const write = 2 // W_OK
	if err := checkName(file); err != nil {
		return err
	}
	if err := syscall.Access(filepath.Dir(file), write); err != nil {
		return fmt.Errorf("this user may not write to the folder %s: %w", filepath.Dir(file), err)
	}
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		return fmt.Errorf("there is no /proc here: %w", err)
	}
	return nil
}

// bindSocket creates the socket for the users who may write to the file.
func (b *Bell) bindSocket(mode fs.FileMode) error {
	if err := checkName(b.file); err != nil {
		return err
	}
	address := b.addressOf(b.name)
	fd, err := newSocket()
	if err != nil {
		return err
	}
	b.socket = os.NewFile(uintptr(fd), b.name)
	// Linux gives the new socket file the mode that the socket has. A chmod by name might hit another file.
	err = syscall.Fchmod(fd, uint32(mode))
	if err == nil {
		err = os.NewSyscallError("bind", syscall.Bind(fd, &syscall.SockaddrUnix{Name: address}))
	}
	if err != nil {
		b.socket.Close()
	}
	return err
}

// newSocket returns a socket that no child process inherits.
func newSocket() (int, error) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	return fd, os.NewSyscallError("socket", err)
}

// readMessages calls hear with each message until the socket is closed.
func (b *Bell) readMessages(hear func(string)) {
	buf := make([]byte, MaxMessage)
	for {
		n, err := b.socket.Read(buf)
		switch {
		case err == nil:
			hear(string(buf[:n]))
		case !errors.Is(err, io.EOF): // io.EOF: an empty message
			return
		}
	}
}

// Ring sends a message to the process with that id, unless that process accepts none now. It does not block.
// dead reports that the process has closed its bell or has ended.
func (b *Bell) Ring(id, message string) (dead bool) {
	if !validID(id) {
		return false
	}
	name := filepath.Base(b.file) + infix + id
	s, err := b.findSocket(name)
	if err != nil {
		return errors.Is(err, syscall.ENOENT)
	}
	defer s.close()
	// Open a socket for each ring: messages in the queues of stopped processes count against the sender's
	// buffer.
	fd, err := newSocket()
	if err != nil {
		return false
	}
	defer syscall.Close(fd)
	if len(message) > MaxMessage {
		message = message[:MaxMessage]
	}
	err = syscall.Sendto(fd, []byte(message), syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL, s.address())
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return false
	}
	b.removeSocket(name)
	return true
}

// openSocketPath holds an open descriptor of a socket in the folder, so that the path still leads to that
// socket if its name is replaced.
type openSocketPath int

func (f openSocketPath) close() { syscall.Close(int(f)) }

func (f openSocketPath) address() syscall.Sockaddr {
	return &syscall.SockaddrUnix{Name: "/proc/self/fd/" + strconv.Itoa(int(f))}
}

var errForeign = errors.New("it is not a socket of this file's users")

// findSocket returns the socket with that name, if it belongs to a user who may write to the file.
func (b *Bell) findSocket(name string) (openSocketPath, error) {
	var own, s syscall.Stat_t
	if err := syscall.Stat(b.file, &own); err != nil {
		return 0, err
	}
	fd, err := syscall.Openat(int(b.folder.Fd()), name, openPath|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	if err = syscall.Fstat(fd, &s); err == nil && !isTrusted(&own, &s) {
		err = errForeign
	}
	if err != nil {
		syscall.Close(fd)
		return 0, err
	}
	return openSocketPath(fd), nil
}

// isTrusted reports whether s is a socket of this user, or of a user who may write to the file.
func isTrusted(file, s *syscall.Stat_t) bool {
	switch {
	case s.Mode&syscall.S_IFMT != syscall.S_IFSOCK:
		return false
	case int(s.Uid) == os.Geteuid(), s.Uid == file.Uid:
		return true
	}
	return s.Gid == file.Gid && file.Mode&0o020 != 0
}

// removeSocket removes a socket. Ids are never reused, so no newer socket can have that name.
func (b *Bell) removeSocket(name string) { syscall.Unlinkat(int(b.folder.Fd()), name) }

// sweepDead removes some sockets of ended processes. Other processes remove others.
func (b *Bell) sweepDead() {
	names, _ := b.folder.Readdirnames(maxNames) // names read before an error are valid
	probes := 0
	for _, name := range names {
		id, ours := strings.CutPrefix(name, filepath.Base(b.file)+infix)
		if !ours || !validID(id) || name == b.name {
			continue
		}
		if probes++; probes > maxProbes {
			return
		}
		if b.isDead(name) {
			b.removeSocket(name)
		}
	}
}

// isDead reports whether no process listens at a socket any more.
func (b *Bell) isDead(name string) bool {
	s, err := b.findSocket(name)
	if err != nil {
		return false
	}
	defer s.close()
	var st syscall.Stat_t
	if syscall.Fstat(int(s), &st) != nil || time.Since(time.Unix(st.Mtim.Unix())) < settled {
		return false
	}
	fd, err := newSocket()
	if err != nil {
		return false
	}
	defer syscall.Close(fd)
	return errors.Is(syscall.Connect(fd, s.address()), syscall.ECONNREFUSED)
}

// Close removes the socket, and waits until hear has returned. A second Close does nothing.
func (b *Bell) Close() {
	b.once.Do(func() {
		b.removeSocket(b.name)
		b.socket.Close()
		b.drain.Wait()
		b.folder.Close()
	})
}
