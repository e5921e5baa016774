//go:build linux

package proc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// asUser calls f on its own thread with the permissions of the user uid.
func asUser(t *testing.T, uid int, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can act as another user")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
			t.Error(errno)
			return
		}
		f()
	}()
	<-done
}

// A guard that may not kill the group does not release the lease: the command still runs.
func TestGroupOfAnotherUserKeepsItsLease(t *testing.T) {
	command := exec.Command("sleep", "300")
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	group := command.Process.Pid
	t.Cleanup(func() { syscall.Kill(-group, syscall.SIGKILL); command.Wait(); signal.Reset() })
	in := strings.NewReader(fmt.Sprintf(`{"group":%d,"kill_at":1,"lease":"the lease"}`, group))
	var did []Killing
	code := -1
	asUser(t, 4711, func() {
		code = RunGuard(in, io.Discard, func(k Killing) error { did = append(did, k); return nil })
	})
	if code == GuardKilled || len(did) != 1 || did[0].Lease != nil || !strings.Contains(did[0].Error, "not permitted") {
		t.Errorf("exit code %d, %+v; want one failed kill, without a lease", code, did)
	}
	if !isGroupAlive(group) {
		t.Error("the group was killed")
	}
}

// A signal to them returns the reason why it reached no process.
func TestProcessesOfOtherUserAreReported(t *testing.T) {
	command := exec.Command("sleep", "300")
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { command.Process.Kill(); command.Wait() })
	j := &Job{pid: command.Process.Pid}
	if err := j.Signal(0); err != nil || len(j.Unsignalable()) > 0 {
		t.Errorf("our own: %v, %v", err, j.Unsignalable())
	}
	asUser(t, 4711, func() {
		if err := j.Signal(0); !errors.Is(err, unix.EPERM) {
			t.Errorf("signal: %v, want EPERM", err)
		}
		if out := j.Unsignalable(); len(out) != 1 || out[0].PID != j.pid {
			t.Errorf("unreachable processes: %v, want %d", out, j.pid)
		}
	})
}
