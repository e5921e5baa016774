//go:build unix

package child_test

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/rig/child"
)

// The exit is still reported after the process has been started again.
func TestUnexpectedExitIsReported(t *testing.T) {
	t.Parallel()
	p := &child.Process{Program: child.Program{
		Cmd:    func() *exec.Cmd { return exec.Command("sh", "-c", "echo up; exec sleep 600") },
		Output: filepath.Join(t.TempDir(), "log"), Signal: syscall.SIGKILL, Limit: time.Minute,
	}}
	p.Ready = func(context.Context) error {
		if p.Log() == "" {
			return errors.New("it has said nothing yet")
		}
		return nil
	}
	t.Cleanup(p.Kill)
	start := func() {
		t.Helper()
		if err := p.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	start()
	p.Kill()
	start()
	if err := p.UnexpectedExits(); err != nil {
		t.Errorf("error for a killed process: %v", err)
	}
	for n, next := range []func(){start, func() { p.Kill(); start() }} {
		syscall.Kill(p.Pid(), syscall.SIGKILL)
		<-p.Exited()
		next()
		if err := p.UnexpectedExits(); err == nil || strings.Count(err.Error(), "ended by itself (signal: killed); its log: up") != n+1 {
			t.Errorf("after %d such ends: %v", n+1, err)
		}
	}
}

// Only the error of the start reports the exit.
func TestFailedStartIsReportedOnce(t *testing.T) {
	t.Parallel()
	p := &child.Process{Program: child.Program{
		Cmd:    func() *exec.Cmd { return exec.Command("sh", "-c", "echo no port; exit 3") },
		Ready:  func(context.Context) error { return errors.New("not ready") },
		Output: filepath.Join(t.TempDir(), "log"), Signal: syscall.SIGKILL, Limit: time.Minute,
	}}
	err := p.Restart(t.Context())
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "no port") {
		t.Errorf("Restart() = %v", err)
	}
	if err := p.UnexpectedExits(); err != nil {
		t.Error(err)
	}
}
