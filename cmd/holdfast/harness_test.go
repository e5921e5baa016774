//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
)

// rounds is the number of repetitions for tests of rules that must hold every time.
var rounds = flag.Int("rounds", 6, "how often the tests of --guard and of a cut-off holder repeat; the full count is 100")

// programs builds holdfast as in a release, without the race detector, which would slow it down and multiply
// its memory. One file more has it run at the pace of the tests. It also builds a clock for the tests' commands.
var programs = sync.OnceValues(func() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "holdfast-test-"); err != nil {
		return "", err
	}
	programsFolder.Store(dir)
	here, err := os.Getwd()
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	text := fmt.Sprintf(`{"Replace": {%q: %q}}`, filepath.Join(here, "paced.go"), filepath.Join(here, "testdata", "paced", "paced.go"))
	if err := os.WriteFile(overlay, []byte(text), 0o600); err != nil {
		return "", err
	}
	out, err := exec.Command("go", "build", "-buildvcs=false", "-tags=grpcnotrace", "-overlay="+overlay, "-o", dir, ".", "./testdata/mono").CombinedOutput()
	if err != nil {
		err = errors.Join(err, errors.New(string(out)))
	}
	return dir, err
})

// programsFolder is the folder that programs has created.
var programsFolder atomic.Value // of string

// bench holds the servers of a test and the program to run against them.
type bench struct {
	t       *testing.T
	path    string // path of holdfast
	clock   string // path of a program that prints CLOCK_MONOTONIC
	backend string
	servers []*redisproc.Server
	dir     string
}

func newBench(t *testing.T, nodes int) *bench {
	t.Helper()
	programs, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, path: filepath.Join(programs, "holdfast"), clock: filepath.Join(programs, "mono"), servers: redistest.StartN(t, nodes), dir: t.TempDir()}
	var addrs []string
	for _, s := range b.servers {
		addrs = append(addrs, s.Addr())
	}
	b.backend = "redlock://" + strings.Join(addrs, ",") + "?quarantine=off"
	if nodes == 1 {
		b.backend = "redis://" + addrs[0]
	}
	return b
}

// newCommand returns a job that runs holdfast with args. The job is killed when the test ends.
func (b *bench) newCommand(ctx context.Context, args ...string) *job {
	cmd := exec.CommandContext(ctx, b.path, args...)
	cmd.Env = append(os.Environ(), "HOLDFAST_BACKEND="+b.backend)
	cmd.Dir = b.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	j := &job{Cmd: cmd}
	cmd.Stdout, cmd.Stderr = &j.out, &j.log
	return j
}

// start starts holdfast with args.
func (b *bench) start(args ...string) *job {
	b.t.Helper()
	j := b.newCommand(b.t.Context(), args...)
	if err := j.Start(); err != nil {
		b.t.Fatal(err)
	}
	return j
}

// job is one holdfast process.
type job struct {
	*exec.Cmd
	out, log bytes.Buffer
	ended    <-chan struct{} // nil: nothing waits for it yet
}

// code waits for the end of the job and returns its exit code.
func (j *job) code() int {
	if j.ended != nil {
		<-j.ended
	} else {
		j.Wait() // ProcessState has the outcome
	}
	return j.ProcessState.ExitCode()
}

// file returns the text of a file that a command has left in b.dir, or "".
func (b *bench) file(name string) string {
	text, _ := readFile(filepath.Join(b.dir, name)) // the file may not exist yet
	return text
}

func (b *bench) write(name, text string) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, name), []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// writeProgram writes an executable file. It keeps the process from forking meanwhile: a child would inherit
// the open file, which then could not be executed (ETXTBSY).
func writeProgram(t *testing.T, path string, text []byte) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, text, 0o755); err != nil {
		t.Fatal(err)
	}
}

func readFile(path string) (string, error) {
	text, err := os.ReadFile(path)
	return string(text), err
}

// pids waits for a file with n process ids. It returns nil if ended is closed first.
func (b *bench) pids(name string, n int, ended <-chan struct{}) []int {
	b.t.Helper()
	var fields []string
	over := false
	eventually(b.t.Fatalf, name+" has process ids", func() bool {
		select {
		case <-ended:
			over = true
		default:
		}
		text := b.file(name)
		fields = strings.Fields(text)
		return over || len(fields) >= n && strings.HasSuffix(text, "\n")
	})
	var pids []int
	for _, f := range fields {
		pid, err := strconv.Atoi(f)
		if err != nil {
			b.t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	if over {
		return nil
	}
	return pids
}

// awaitDeaths returns the time when the last of the processes died, by CLOCK_MONOTONIC. It uses pidfds, so it polls
// nothing and cannot confuse reused ids.
func awaitDeaths(t *testing.T, pids []int) func() int64 {
	t.Helper()
	last := make(chan int64, len(pids))
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if errors.Is(err, unix.ESRCH) { // it has ended already
			last <- monotonicNow()
			continue
		}
		if err != nil {
			t.Fatalf("pidfd of %d: %v", pid, err)
		}
		go func() {
			defer unix.Close(fd)
			for {
				_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
				if !errors.Is(err, unix.EINTR) {
					break
				}
			}
			last <- monotonicNow()
		}()
	}
	return func() int64 {
		var latest int64
		for range pids {
			latest = max(latest, <-last)
		}
		return latest
	}
}
