package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/verify/interop/foreign"
)

// One thread of Redisson holds the lock twice and another waits; the command watches and intervenes. The locks
// are fenced ones: tokens rise across both.
func TestCommandHandlesRedissonLocks(t *testing.T) {
	if testing.Short() {
		t.Skip("-short starts no Java")
	}
	t.Parallel()
	jvm.Lock()
	t.Cleanup(jvm.Unlock)
	ctx, cancel := context.WithTimeout(t.Context(), patience) // ends the programs, and so all waits for them
	defer cancel()
	addr := redistest.Start(t, nil).Addr()
	java, err := foreign.Start(ctx, "java", "redisson-fenced", []string{addr}, "job", 0, 2)
	skipUnlessRequired(t, err)
	if err != nil {
		t.Fatal(err)
	}
	defer java.Stop()
	says := func(worker int, verb, want string) {
		t.Helper()
		if said, err := java.Do(worker, verb); err != nil || !strings.Contains(said, want) {
			t.Errorf("%s by thread %d: %q, %v, want %q", verb, worker, said, err, want)
		}
	}
	var highest int64
	rises := func(text string, next int64) {
		t.Helper()
		token, err := strconv.ParseInt(text, 10, 64)
		if err != nil || token <= highest {
			t.Errorf("token %s after %d", text, highest)
		}
		highest = token + next - 1
	}
	javaToken := func(worker int) {
		t.Helper()
		said, _ := java.Do(worker, "token")
		rises(said, 1)
	}
	holdfast := buildCommand(ctx, t, "redis://"+addr+"?format=redisson")
	prints := func(code int, want string, args ...string) {
		t.Helper()
		out, err := holdfast(args...).CombinedOutput()
		exit, _ := errors.AsType[*exec.ExitError](err)
		if (err == nil) != (code == 0) || exit != nil && exit.ExitCode() != code || !strings.Contains(string(out), want) {
			t.Errorf("holdfast %q: %v, want %d and %q:\n%s", args, err, code, want, out)
		}
	}

	says(0, "lock", "lock")
	javaToken(0)
	says(0, "lock", "lock")
	javaToken(0)
	watched := startWatch(t, holdfast("watch", "--every", "20ms"))
	if c := <-watched; !strings.Contains(c, `"present"`) || !strings.Contains(c, `"job"`) || !strings.Contains(c, "Redisson, thread") {
		t.Errorf("watch prints %s", c)
	}
	prints(0, "2 times", "show", "job")
	prints(0, "Redisson, thread", "ls")
	prints(75, "Redisson, thread", "acquire", "--no-wait", "job")

	waiter := make(chan string, 1)
	go func() { said, _ := java.Do(1, "lock"); waiter <- said }()
	prints(0, "", "force-release", "job", "--token", "0", "--reason", "it hangs", "--yes")
	if said := <-waiter; said != "lock" {
		t.Errorf("the waiting thread: %q", said)
	}
	javaToken(1)
	says(0, "count", "0")
	says(0, "unlock", "IllegalMonitorStateException")
	for c := range watched {
		if strings.Contains(c, `"passed"`) || strings.Contains(c, `"taken"`) {
			break
		}
	}
	says(1, "unlock", "unlock")

	file := filepath.Join(t.TempDir(), "lease")
	prints(0, "", "acquire", "--ttl", "60s", "--file", file, "job")
	var lease struct{ Token int64 }
	if text, err := os.ReadFile(file); err != nil || json.Unmarshal(text, &lease) != nil {
		t.Errorf("the lease is %s, %v", text, err)
	}
	rises(strconv.FormatInt(lease.Token, 10), 32)
	says(0, "try", "false")
	go func() { said, _ := java.Do(1, "lock"); waiter <- said }()
	prints(0, "", "release", "--file", file)
	if said := <-waiter; said != "lock" {
		t.Errorf("the thread that waited for the command: %q", said)
	}
	javaToken(1)
	says(1, "unlock", "unlock")

	prints(0, "", "acquire", "--ttl", "60s", "--file", file, "job")
	says(0, "force", "true")
	prints(1, "", "check", "--file", file)
}

// buildCommand builds the command and returns a function that prepares a call.
func buildCommand(ctx context.Context, t *testing.T, backend string) func(args ...string) *exec.Cmd {
	t.Helper()
	program := filepath.Join(t.TempDir(), "holdfast")
	out, err := exec.Command("go", "build", "-buildvcs=false", "-o", program, "github.com/holdfast-go/holdfast/cmd/holdfast").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Env = append(os.Environ(), "HOLDFAST_BACKEND="+backend)
		return cmd
	}
}

// startWatch starts holdfast watch and returns its output.
func startWatch(t *testing.T, cmd *exec.Cmd) <-chan string {
	t.Helper()
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err := errors.Join(err, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	changes := make(chan string, 100)
	go func() {
		defer close(changes)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			changes <- lines.Text()
		}
	}()
	return changes
}
