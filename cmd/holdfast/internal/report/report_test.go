//go:build unix

package report

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/internal/rig/leaktest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

// openInherited returns a pipe whose writing end is like one that this process has inherited.
func openInherited(t *testing.T) (r *os.File, fd int) {
	t.Helper()
	var ends [2]int
	if err := unix.Pipe(ends[:]); err != nil {
		t.Fatal(err)
	}
	unix.CloseOnExec(ends[0])
	r = os.NewFile(uintptr(ends[0]), "pipe")
	t.Cleanup(func() { r.Close() })
	return r, ends[1]
}

func TestDescriptorSurvivesTheGarbageCollector(t *testing.T) {
	t.Parallel()
	r, fd := openInherited(t)
	place, err := FromDescriptor("--status-fd", fd)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		runtime.GC()
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("a child process would inherit the file: %v", err)
	}
	if err := place.Write([]byte("text")); err != nil {
		t.Error(err)
	}
	place.Close()
	unix.Close(fd)
	if got, err := io.ReadAll(r); string(got) != "text" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

func TestOwnDescriptorIsRejected(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe() // descriptors of this process itself, like those of the runtime
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	for _, fd := range []int{int(w.Fd()), -1, 1 << 20} {
		if place, err := FromDescriptor("--status-fd", fd); err == nil {
			place.Close()
			t.Errorf("%d is taken", fd)
		}
	}
	if place, err := FromDescriptor("--status-fd", 0); place != nil || err != nil {
		t.Errorf("none: %v, %v", place, err)
	}
}

// A report replaces only a regular file, even if another kind of file appears after the check.
func TestOnlyRegularFilesAreReplaced(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	target := filepath.Join(dir, "target")
	if err := os.WriteFile(target, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, put := range map[string]func(path string) error{
		"link":            func(path string) error { return os.Symlink(target, path) },
		"link to nothing": func(path string) error { return os.Symlink(filepath.Join(dir, "nothing"), path) },
		"FIFO":            func(path string) error { return unix.Mkfifo(path, 0o600) },
		"folder":          func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		path := filepath.Join(dir, "a "+name)
		place, err := File("--file", path)
		if err != nil {
			t.Fatal(err)
		}
		if err := put(path); err != nil {
			t.Fatal(err)
		}
		before, _ := os.Lstat(path)
		if err := place.Write([]byte("new")); err == nil {
			t.Errorf("%s: written", name)
		}
		if _, err := File("--file", path); err == nil || !strings.HasPrefix(err.Error(), "--file cannot be written: ") {
			t.Errorf("%s: taken, %v", name, err)
		}
		if err := Remove(path); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) {
			t.Errorf("%s: the file was replaced: %v", name, err)
		}
	}
	if text, err := os.ReadFile(target); string(text) != "old" || err != nil {
		t.Errorf("target of the symlink: %q, %v", text, err)
	}
}

func TestFileIsReplacedAtomicallyAndPrivately(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := os.WriteFile(path, []byte("a longer text than the next"), 0o644); err != nil {
		t.Fatal(err)
	}
	open, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	place, err := File("--file", path)
	if err != nil {
		t.Fatal(err)
	}
	defer place.Close()
	if err := place.Write([]byte("new")); err != nil {
		t.Fatal(err)
	}
	if old, _ := io.ReadAll(open); string(old) != "a longer text than the next" {
		t.Errorf("a reader sees %q", old)
	}
	text, _ := os.ReadFile(path)
	info, err := os.Stat(path)
	if err != nil || string(text) != "new" || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("%q, mode %v, %v", text, info.Mode(), err)
	}
	if err := place.Remove(); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// After a failure, as on a full disk, the last report survives and the temporary file is deleted.
func TestFailedReportDeletesTemporaryFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	place, err := File("--file", path)
	if err != nil {
		t.Fatal(err)
	}
	if err := place.Write([]byte("old")); err != nil {
		t.Fatal(err)
	}
	draft, err := place.createTempFile()
	if err != nil {
		t.Fatal(err)
	}
	draft.Close() // make the write fail
	if err := place.replaceFile(draft, []byte("new")); err == nil {
		t.Error("the failure was not reported")
	}
	if text, err := os.ReadFile(path); string(text) != "old" || err != nil {
		t.Errorf("last report = %q, %v", text, err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
}

// A mounted file cannot be replaced, so it is overwritten.
func TestMountedFileIsTruncated(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	place := &Place{flag: "--file", path: path, stream: f} // as File opens a mount
	defer place.Close()
	for _, want := range []string{"a longer text than the next", "new"} {
		if err := place.Write([]byte(want)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); string(got) != want || err != nil {
			t.Errorf("file = %q, %v, want %q", got, err, want)
		}
	}
}

// A report does not wait for a reader.
func TestUnreadPipeDoesNotBlock(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := File("--file", path); err == nil || !strings.Contains(err.Error(), "start its reader first") {
		t.Errorf("nobody reads: %v", err)
	}
	r, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	place, err := File("--file", path)
	if err != nil {
		t.Fatal(err)
	}
	defer place.Close()
	if err := place.Write([]byte("text")); err != nil {
		t.Error(err)
	}
	r.Close()
	if err := place.Write([]byte("text")); !errors.Is(err, unix.EPIPE) {
		t.Errorf("the reader has closed the pipe: %v", err)
	}
}

// Another user may have put the pipe where a report or a lease is expected, and the reader of a lease controls
// the lock. The test also covers reading.
func TestForeignPipeIsRejected(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can give a FIFO away")
	}
	path := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(path, 0o666); err != nil {
		t.Fatal(err)
	}
	other, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0) // open both ends, so that nothing waits
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := os.Chown(path, 4711, 4711); err != nil {
		t.Fatal(err)
	}
	const want = "belongs to another user (uid 4711)"
	if place, err := File("--status-file", path); err == nil || !strings.Contains(err.Error(), want) {
		place.Close()
		t.Errorf("File: %v, want %q", err, want)
	}
	if _, err := ReadFile(path); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("ReadFile: %v, want %q", err, want)
	}
}

// Another process may have put a FIFO, a device or a folder at the path.
func TestReadFileDoesNotBlock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	place, err := File("--textfile", path)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if text := place.Read(); len(text) != 0 {
		t.Errorf("%q", text)
	}
	silent, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	if _, err := ReadFile(path); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a writer that writes nothing: %v", err)
	}
	long := filepath.Join(dir, "long")
	if err := os.WriteFile(long, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(long, maxText+1); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadFile(long); err == nil || !strings.Contains(err.Error(), "is longer than") {
		t.Errorf("a long file: %v", err)
	}
}

func TestErrorNamesFileOfUser(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "no-such-folder", "status.json")
	_, err := File("--status-file", path)
	if err == nil || !strings.Contains(err.Error(), "open "+path+": ") {
		t.Errorf("File() = %v, want an error that names %s", err, path)
	}
}
