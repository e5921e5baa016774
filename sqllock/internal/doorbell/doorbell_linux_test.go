package doorbell

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/internal/rig/leaktest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

// newFile makes a file whose locks somebody rings for.
func newFile(t *testing.T, mode fs.FileMode) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "locks.db")
	if err := os.WriteFile(path, nil, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// id returns an id that begins with a word.
func id(word ...any) string {
	text := fmt.Sprint(word...)
	return text + strings.Repeat("x", idLen-len(text))
}

// open opens a bell of the file, and returns what it hears.
func open(t *testing.T, file, word string) (*Bell, <-chan string) {
	t.Helper()
	heard := make(chan string, 100)
	b, err := Open(file, id(word), func(message string) { heard <- message })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b, heard
}

// wants fails unless the next message is the one that was sent.
func wants(t *testing.T, heard <-chan string, want string) {
	t.Helper()
	select {
	case got := <-heard:
		if got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
	case <-time.After(fixture.Patience()):
		t.Fatalf("heard nothing, want %q", want)
	}
}

// names returns the entries of the folder of the file, without the file.
func names(t *testing.T, file string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(file))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != filepath.Base(file) {
			list = append(list, e.Name())
		}
	}
	return list
}

func TestRingReachesOneProcess(t *testing.T) {
	t.Parallel()
	file := newFile(t, 0o600)
	a, heardByA := open(t, file, "A")
	b, heardByB := open(t, file, "B")
	a.Ring(id("B"), "for b")
	wants(t, heardByB, "for b")
	b.Ring(id("A"), "")
	b.Ring(id("A"), strings.Repeat("x", 2*MaxMessage))
	wants(t, heardByA, strings.Repeat("x", MaxMessage))
	if dead := a.Ring(id("A"), "itself"); dead {
		t.Error("a bell that listens counts as dead")
	}
	wants(t, heardByA, "itself")
	for _, bad := range []string{"", "B", id("../B"), id("B/"), id("B.")} {
		if a.Ring(bad, "to nobody") {
			t.Errorf("id %q counts as a process that has ended", bad)
		}
	}
	a.Close()
	if !b.Ring(id("A"), "late") {
		t.Error("a bell that was closed does not count as dead")
	}
	b.Close()
	if left := names(t, file); len(left) > 0 {
		t.Errorf("Close leaves %q", left)
	}
	if len(heardByA)+len(heardByB) > 0 {
		t.Error("more was heard than sent")
	}
}

// TestStoppedProcessHoldsUpNobody has 40 processes that take nothing from their queues: more than the buffer of one sending
// socket has room for.
func TestStoppedProcessHoldsUpNobody(t *testing.T) {
	t.Parallel()
	file := newFile(t, 0o600)
	for i := range 40 {
		stopped, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: file + infix + id("S", i), Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		defer stopped.Close()
	}
	_, heard := open(t, file, "A")
	b, _ := open(t, file, "B")
	for range 20 {
		for i := range 40 {
			if b.Ring(id("S", i), strings.Repeat("x", MaxMessage)) {
				t.Fatal("a process that is stopped counts as dead")
			}
		}
	}
	b.Ring(id("A"), "still heard")
	wants(t, heard, "still heard")
}

func TestRingRemovesSocketOfDeadProcess(t *testing.T) {
	t.Parallel()
	file := newFile(t, 0o600)
	leave(t, file+infix+id("D"), 0)
	b, _ := open(t, file, "B")
	if left := names(t, file); len(left) != 2 {
		t.Fatalf("there are %q, want the new socket and the one of a dead process that is young", left)
	}
	if !b.Ring(id("D"), "anybody there?") {
		t.Error("a process that has ended does not count as dead")
	}
	if left := names(t, file); len(left) != 1 {
		t.Errorf("there are %q, want one socket", left)
	}
}

// leave leaves a socket of a process that has ended so long ago.
func leave(t *testing.T, path string, age time.Duration) {
	t.Helper()
	fd, err := newSocket()
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	then := time.Now().Add(-age)
	if err := os.Chtimes(path, then, then); err != nil {
		t.Fatal(err)
	}
}

func TestOpenSweepsSocketsOfKilledCrowd(t *testing.T) {
	t.Parallel()
	file := newFile(t, 0o600)
	_, heard := open(t, file, "L")
	if err := os.Chtimes(file+infix+id("L"), time.Time{}, time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	for i := range maxProbes {
		leave(t, file+infix+id("D", i), time.Hour)
	}
	leave(t, file+infix+id("young"), 0)
	leave(t, file+".other-holdfast-"+id("D"), time.Hour)
	for range 3 { // each tries some
		b, _ := open(t, file, "B")
		b.Ring(id("L"), "still there?")
		wants(t, heard, "still there?")
		b.Close()
	}
	if left := names(t, file); len(left) != 3 {
		t.Errorf("there are %q, want the socket that listens, a young one, and one of another file", left)
	}
}

// TestHostileFilesAreLeftAlone puts what another user of the folder may put there at the places of sockets.
func TestHostileFilesAreLeftAlone(t *testing.T) {
	t.Parallel()
	file := newFile(t, 0o600)
	service, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer service.Close()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	gone := filepath.Join(t.TempDir(), "gone")
	leave(t, gone, time.Hour)
	must(os.Symlink(service.LocalAddr().String(), file+infix+id("live")))
	must(os.Symlink(gone, file+infix+id("dead")))
	must(os.WriteFile(file+infix+id("plain"), nil, 0o666))
	must(os.Mkdir(file+infix+id("folder"), 0o700))
	must(syscall.Mkfifo(file+infix+id("fifo"), 0o666))
	before := names(t, file)
	b, _ := open(t, file, "B")
	for _, kind := range []string{"live", "dead", "plain", "folder", "fifo"} {
		if b.Ring(id(kind), "hello") {
			t.Errorf("%s counts as a process that has ended", kind)
		}
	}
	b.Close()
	if left := names(t, file); len(left) != len(before) {
		t.Errorf("there are %q, want %q", left, before)
	}
	service.SetReadDeadline(time.Now()) // a datagram that was sent is there already
	if n, err := service.Read(make([]byte, 10)); err == nil {
		t.Errorf("a service elsewhere was sent %d bytes", n)
	}
	if _, err := os.Stat(gone); err != nil {
		t.Error(err)
	}
}

func TestOnlyUsersOfFileAreTrusted(t *testing.T) {
	t.Parallel()
	const socket, stranger, group, otherGroup = syscall.S_IFSOCK | 0o600, 1 << 20, 2 << 20, 3 << 20
	me := uint32(os.Geteuid())
	for name, c := range map[string]struct {
		file, s syscall.Stat_t
		want    bool
	}{
		"own":                          {syscall.Stat_t{Uid: stranger}, syscall.Stat_t{Mode: socket, Uid: me}, true},
		"owner of the file":            {syscall.Stat_t{Uid: stranger}, syscall.Stat_t{Mode: socket, Uid: stranger}, true},
		"stranger":                     {syscall.Stat_t{Uid: me, Gid: group, Mode: 0o660}, syscall.Stat_t{Mode: socket, Uid: stranger, Gid: otherGroup}, false},
		"group that may write":         {syscall.Stat_t{Uid: me, Gid: group, Mode: 0o660}, syscall.Stat_t{Mode: socket, Uid: stranger, Gid: group}, true},
		"group that may not":           {syscall.Stat_t{Uid: me, Gid: group, Mode: 0o640}, syscall.Stat_t{Mode: socket, Uid: stranger, Gid: group}, false},
		"own, but a plain file":        {syscall.Stat_t{Uid: me}, syscall.Stat_t{Mode: syscall.S_IFREG, Uid: me}, false},
		"owner's, but a symbolic link": {syscall.Stat_t{Uid: me}, syscall.Stat_t{Mode: syscall.S_IFLNK, Uid: me}, false},
	} {
		if got := trusted(&c.file, &c.s); got != c.want {
			t.Errorf("%s: trusted() = %v", name, got)
		}
	}
}

func TestSocketHasModeOfFile(t *testing.T) {
	t.Parallel()
	for _, mode := range []fs.FileMode{0o600, 0o660, 0o666} {
		file := newFile(t, mode)
		info, err := os.Stat(file) // with what umask has left of the mode
		if err != nil {
			t.Fatal(err)
		}
		open(t, file, "A")
		socket, err := os.Lstat(file + infix + id("A"))
		if err != nil || socket.Mode() != info.Mode()|fs.ModeSocket {
			t.Errorf("the socket has the mode %v, %v, want %v", socket.Mode(), err, info.Mode())
		}
	}
}

func TestLongFolderHasBells(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), strings.Repeat("f", 120))
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(folder, "locks.db")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b, heard := open(t, file, "A")
	b.Ring(id("A"), "hello")
	wants(t, heard, "hello")
	long := filepath.Join(folder, strings.Repeat("n", 60))
	if err := os.WriteFile(long, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(long, id("A"), nil)
	for what, err := range map[string]error{"Open": err, "Check": Check(long)} {
		if err == nil || !strings.Contains(err.Error(), "60 bytes") {
			t.Errorf("%s() for a long name = %v, want how long it is", what, err)
		}
	}
	if err := Check(file); err != nil {
		t.Errorf("Check() = %v", err)
	}
}

func TestNoChildInheritsBell(t *testing.T) {
	t.Parallel()
	b, _ := open(t, newFile(t, 0o600), "A")
	for name, f := range map[string]*os.File{"socket": b.socket, "folder": b.folder} {
		raw, err := f.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		raw.Control(func(fd uintptr) {
			flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, fd, syscall.F_GETFD, 0)
			if errno != 0 || flags&syscall.FD_CLOEXEC == 0 {
				t.Errorf("the %s stays open in a child: flags %d, %v", name, flags, errno)
			}
		})
	}
}
