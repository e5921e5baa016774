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

// newFile creates a lock file with this mode.
func newFile(t *testing.T, mode fs.FileMode) (path string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "bell-") // t.TempDir has the name of the test, and the path of a socket at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path = filepath.Join(dir, "locks.db")
	if err := os.WriteFile(path, nil, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// newID returns an id that begins with word.
func newID(word ...any) string {
	text := fmt.Sprint(word...)
	return text + strings.Repeat("x", idLen-len(text))
}

// openBell opens a bell for the file and returns the channel of its messages.
func openBell(t *testing.T, file, word string) (*Bell, <-chan string) {
	t.Helper()
	heard := make(chan string, 100)
	b, err := Open(file, newID(word), func(message string) { heard <- message })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b, heard
}

// wantNext fails unless the next message is want.
func wantNext(t *testing.T, heard <-chan string, want string) {
	t.Helper()
	select {
	case got := <-heard:
		if got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
	case <-time.After(fixture.MaxWait()):
		t.Fatalf("received nothing, want %q", want)
	}
}

// folderNames returns the entries of the file's folder, without the file.
func folderNames(t *testing.T, file string) (list []string) {
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
	a, heardByA := openBell(t, file, "A")
	b, heardByB := openBell(t, file, "B")
	a.Ring(newID("B"), "for b")
	wantNext(t, heardByB, "for b")
	b.Ring(newID("A"), "")
	b.Ring(newID("A"), strings.Repeat("x", 2*MaxMessage))
	wantNext(t, heardByA, strings.Repeat("x", MaxMessage))
	if dead := a.Ring(newID("A"), "itself"); dead {
		t.Error("a listening socket counts as dead")
	}
	wantNext(t, heardByA, "itself")
	for _, bad := range []string{"", "B", newID("../B"), newID("B/"), newID("B.")} {
		if a.Ring(bad, "to nobody") {
			t.Errorf("id %q counts as an ended process", bad)
		}
	}
	a.Close()
	if !b.Ring(newID("A"), "late") {
		t.Error("a closed socket does not count as dead")
	}
	b.Close()
	if left := folderNames(t, file); len(left) > 0 {
		t.Errorf("Close leaves %q", left)
	}
	if len(heardByA)+len(heardByB) > 0 {
		t.Error("received more than was sent")
	}
}

// 40 processes do not read their messages. These messages together exceed the send buffer of one socket.
func TestSuspendedProcessDoesNotDelayRings(t *testing.T) {
	t.Parallel()
	file := newFile(t, 0o600)
	for i := range 40 {
		stopped, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: file + infix + newID("S", i), Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		defer stopped.Close()
	}
	_, heard := openBell(t, file, "A")
	b, _ := openBell(t, file, "B")
	for range 20 {
		for i := range 40 {
			if b.Ring(newID("S", i), strings.Repeat("x", MaxMessage)) {
				t.Fatal("a stopped process counts as dead")
			}
		}
	}
	b.Ring(newID("A"), "still heard")
	wantNext(t, heard, "still heard")
}

func TestRingRemovesSocketOfDeadProcess(t *testing.T) {
	t.Parallel()
	file := newFile(t, 0o600)
	plantSocket(t, file+infix+newID("D"), 0)
	b, _ := openBell(t, file, "B")
	if left := folderNames(t, file); len(left) != 2 {
		t.Fatalf("sockets = %q, want the new one and the recent one of a dead process", left)
	}
	if !b.Ring(newID("D"), "anybody there?") {
		t.Error("an ended process does not count as dead")
	}
	if left := folderNames(t, file); len(left) != 1 {
		t.Errorf("sockets = %q, want one", left)
	}
}

// plantSocket leaves a socket of a process that ended age ago.
func plantSocket(t *testing.T, path string, age time.Duration) {
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

func TestOpenSweepsSocketsOfKilledProcesses(t *testing.T) {
	t.Parallel()
	file := newFile(t, 0o600)
	_, heard := openBell(t, file, "L")
	if err := os.Chtimes(file+infix+newID("L"), time.Time{}, time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	for i := range maxProbes {
		plantSocket(t, file+infix+newID("D", i), time.Hour)
	}
	plantSocket(t, file+infix+newID("young"), 0)
	plantSocket(t, file+".other-holdfast-"+newID("D"), time.Hour)
	for range 3 { // each Open tries some
		b, _ := openBell(t, file, "B")
		b.Ring(newID("L"), "still there?")
		wantNext(t, heard, "still there?")
		b.Close()
	}
	if left := folderNames(t, file); len(left) != 3 {
		t.Errorf("sockets = %q, want the listening one, a recent one, and one of another file", left)
	}
}

// The test creates the files that another user might create in place of sockets.
func TestHostileFilesAreIgnored(t *testing.T) {
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
	plantSocket(t, gone, time.Hour)
	must(os.Symlink(service.LocalAddr().String(), file+infix+newID("live")))
	must(os.Symlink(gone, file+infix+newID("dead")))
	must(os.WriteFile(file+infix+newID("plain"), nil, 0o666))
	must(os.Mkdir(file+infix+newID("folder"), 0o700))
	must(syscall.Mkfifo(file+infix+newID("fifo"), 0o666))
	before := folderNames(t, file)
	b, _ := openBell(t, file, "B")
	for _, kind := range []string{"live", "dead", "plain", "folder", "fifo"} {
		if b.Ring(newID(kind), "hello") {
			t.Errorf("%s counts as an ended process", kind)
		}
	}
	b.Close()
	if left := folderNames(t, file); len(left) != len(before) {
		t.Errorf("sockets = %q, want %q", left, before)
	}
	service.SetReadDeadline(time.Now()) // a datagram would have arrived already
	if n, err := service.Read(make([]byte, 10)); err == nil {
		t.Errorf("another service received %d bytes", n)
	}
	if _, err := os.Stat(gone); err != nil {
		t.Error(err)
	}
}

func TestOnlyWritersOfFileAreTrusted(t *testing.T) {
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
		if got := isTrusted(&c.file, &c.s); got != c.want {
			t.Errorf("%s: trusted() = %v", name, got)
		}
	}
}

func TestSocketHasModeOfFile(t *testing.T) {
	t.Parallel()
	for _, mode := range []fs.FileMode{0o600, 0o660, 0o666} {
		file := newFile(t, mode)
		info, err := os.Stat(file) // the mode after umask
		if err != nil {
			t.Fatal(err)
		}
		openBell(t, file, "A")
		socket, err := os.Lstat(file + infix + newID("A"))
		if err != nil || socket.Mode() != info.Mode()|fs.ModeSocket {
			t.Errorf("socket mode = %v, %v, want %v", socket.Mode(), err, info.Mode())
		}
	}
}

func TestLongFolderPathWorks(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), strings.Repeat("f", 120))
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(folder, "locks.db")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b, heard := openBell(t, file, "A")
	b.Ring(newID("A"), "hello")
	wantNext(t, heard, "hello")
	long := filepath.Join(folder, strings.Repeat("n", 60))
	if err := os.WriteFile(long, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(long, newID("A"), nil)
	for what, err := range map[string]error{"Open": err, "Check": CheckSupport(long)} {
		if err == nil || !strings.Contains(err.Error(), "60 bytes") {
			t.Errorf("%s() for a long name = %v, want an error that names its length", what, err)
		}
	}
	if err := CheckSupport(file); err != nil {
		t.Errorf("CheckSupport() = %v", err)
	}
}

func TestChildDoesNotInheritSocket(t *testing.T) {
	t.Parallel()
	b, _ := openBell(t, newFile(t, 0o600), "A")
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
