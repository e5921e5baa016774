//go:build linux

package proc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"reflect"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/boot"
)

// FuzzProcess checks that the group of a process is found whatever its name is, because a program can choose
// its name.
func FuzzProcess(f *testing.F) {
	for _, name := range []string{"sh", "a b", ") Z 1 1", "(", "\n", "x) S 1 2 (y", ""} {
		f.Add(name, 7, []byte("7 (x) S 1 1"))
	}
	f.Fuzz(func(t *testing.T, name string, group int, stat []byte) {
		parseProcess(1, stat) // no text may panic
		p, ok := parseProcess(5, fmt.Appendf(nil, "5 (%s) S 3 %d 9 0", name, group))
		if !ok || p.Name != name || p.parent != 3 || p.group != group {
			t.Errorf("%q of group %d parses as %+v, %v", name, group, p, ok)
		}
		if _, ok := parseProcess(5, fmt.Appendf(nil, "5 (%s) Z 3 %d 9 0", name, group)); ok {
			t.Errorf("the zombie %q counts as alive", name)
		}
	})
}

// FuzzOrders checks that the guard reads its orders in order. Invalid text counts as the end of holdfast.
func FuzzOrders(f *testing.F) {
	f.Add(7, int64(1), []byte(""))
	f.Add(1, int64(-1), []byte("{"))
	f.Add(0, int64(0), []byte("\x00"))
	f.Add(9, int64(1<<62), []byte(`{"group":"a"}`))
	f.Fuzz(func(t *testing.T, group int, at int64, rest []byte) {
		told := order{Group: group, KillAt: boot.Instant(at)}
		line, err := json.Marshal(told)
		if err != nil {
			t.Fatal(err)
		}
		orders := make(chan order)
		go readOrders(io.MultiReader(bytes.NewReader(append(line, '\n')), bytes.NewReader(rest)), orders)
		if got := <-orders; !reflect.DeepEqual(got, told) {
			t.Errorf("told %+v, read %+v", told, got)
		}
		for range orders { // the channel must close
		}
	})
}

func TestChildrenOfEndedThreadsAreListed(t *testing.T) {
	t.Parallel()
	var pids []int
	for range 3 {
		cmd := exec.Command("sleep", "60")
		started := make(chan error)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends, and another one inherits the child
			started <- cmd.Start()
		}()
		if err := <-started; err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			cmd.Process.Kill()
			cmd.Wait() // killed
		})
		pids = append(pids, cmd.Process.Pid)
	}
	if hasNoChild() {
		t.Error("a process with children counts as childless")
	}
	for _, pid := range pids {
		seen := slices.ContainsFunc(listChildren(), func(p Process) bool { return p.PID == pid && p.parent == os.Getpid() && p.Name == "sleep" })
		if !seen {
			t.Errorf("child %d is missing from %v", pid, listChildren())
		}
	}
}

// /proc may show only the processes of its reader's user.
func TestHiddenProcessesKeepTheirGroupAlive(t *testing.T) {
	t.Parallel()
	type process struct {
		pid, group int
		alive      bool
	}
	for _, row := range []struct {
		name  string
		err   error // of kill
		shown []process
		want  bool
	}{
		{"a member", nil, []process{{1, 1, true}, {8, 7, true}}, true},
		{"a zombie", nil, []process{{1, 1, true}, {7, 7, false}}, false},
		{"a zombie of another user", unix.EPERM, []process{{1, 1, true}, {7, 7, false}}, false},
		{"none any more", nil, []process{{1, 1, true}}, false},
		{"a hidden member of another user", unix.EPERM, []process{{1, 1, true}}, true},
		{"a hidden member beside a zombie", nil, []process{{7, 7, false}, {30, 30, true}}, true},
		{"no /proc", nil, nil, true},
	} {
		got := isGroupShown(7, row.err, func(visit func(Process, bool)) {
			for _, p := range row.shown {
				visit(Process{PID: p.pid, group: p.group}, p.alive)
			}
		})
		if got != row.want {
			t.Errorf("%s: alive %v, want %v", row.name, got, row.want)
		}
	}
}
