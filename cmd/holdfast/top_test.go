//go:build linux

package main

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/hinshun/vt10x"

	"github.com/holdfast-go/holdfast/internal/rig/etcdproc"
	"github.com/holdfast-go/holdfast/internal/rig/pgproc"
)

// display is a terminal that interprets what a program draws on it.
type display struct {
	t      *testing.T
	file   *os.File
	screen vt10x.Terminal

	mu  sync.Mutex // guards raw
	raw strings.Builder
}

// startDisplay runs holdfast on a terminal of that size.
func (b *bench) startDisplay(columns, lines int, env []string, args ...string) (*display, *exec.Cmd) {
	b.t.Helper()
	cmd := exec.CommandContext(b.t.Context(), b.path, args...)
	cmd.Dir = b.dir
	cmd.Env = append(os.Environ(), append([]string{"HOLDFAST_BACKEND=" + b.backend, "TERM=xterm-256color", "USER=tester"}, env...)...)
	file, err := pty.StartWithSize(cmd, &pty.Winsize{Cols: uint16(columns), Rows: uint16(lines)})
	if err != nil {
		b.t.Fatal(err)
	}
	d := &display{t: b.t, file: file, screen: vt10x.New(vt10x.WithSize(columns, lines), vt10x.WithWriter(file))}
	var reading sync.WaitGroup
	reading.Go(d.read)
	b.t.Cleanup(func() { cmd.Process.Kill(); file.Close(); reading.Wait() })
	return d, cmd
}

func (d *display) read() {
	buf := make([]byte, 64<<10)
	for {
		n, err := d.file.Read(buf)
		d.mu.Lock()
		d.raw.Write(buf[:n])
		d.mu.Unlock()
		d.screen.Write(buf[:n])
		if err != nil {
			return
		}
	}
}

// text returns the text on the screen.
func (d *display) text() string { return d.screen.String() }

func (d *display) press(keys string) {
	d.t.Helper()
	if _, err := d.file.WriteString(keys); err != nil {
		d.t.Fatal(err)
	}
}

// awaitTexts waits until the screen shows all of the texts at once.
func (d *display) awaitTexts(texts ...string) {
	d.t.Helper()
	d.awaitScreen(fmt.Sprintf("the screen shows %q", texts), func(screen string) bool {
		for _, text := range texts {
			if !strings.Contains(screen, text) {
				return false
			}
		}
		return true
	})
}

func (d *display) awaitScreen(what string, is func(screen string) bool) {
	d.t.Helper()
	fatal := func(format string, args ...any) {
		d.t.Helper()
		d.t.Fatalf(format+"\nscreen:\n%s", append(args, d.text())...)
	}
	eventually(fatal, what, func() bool { return is(d.text()) })
}

// line returns the line of the screen that contains text.
func (d *display) line(text string) string {
	for line := range strings.Lines(d.text()) {
		if strings.Contains(line, text) {
			return line
		}
	}
	return ""
}

func TestTopShowsChanges(t *testing.T) {
	t.Parallel()
	b := newBench(t, 3)
	b.holdLock("billing/7", "--note", "month end")
	d, cmd := b.startDisplay(80, 24, nil, "top")
	d.awaitTexts("all well", "LOCK", "billing/7", "held", "month end", "1 lock  1 held")
	b.holdLock("import")
	d.awaitTexts("billing/7", "import", "2 locks  2 held")
	b.freeLock("import")
	d.awaitScreen("import has gone", func(screen string) bool { return !strings.Contains(screen, "import") })
	d.press("q")
	if code := wait(cmd); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

func TestTopFiltersAndSorts(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	for _, name := range []string{"apples", "pears", "plums"} {
		b.holdLock(name)
	}
	d, _ := b.startDisplay(100, 24, nil, "top", "--sort", "name")
	d.awaitTexts("apples", "pears", "plums", "3 locks")
	d.press("/PEA")
	d.awaitScreen("pears alone is left", func(s string) bool {
		return strings.Contains(s, "pears") && !strings.Contains(s, "apples") && !strings.Contains(s, "plums")
	})
	d.press("\r")
	d.awaitTexts(`1 match "PEA"`)
	d.press("s")
	d.awaitTexts("s sort: holder")
	d.press("\x1b")
	d.awaitTexts("apples", "pears", "plums")
}

func TestTopShowsVotesAndQueue(t *testing.T) {
	t.Parallel()
	b := newBench(t, 3)
	b.holdLock("job", "--note", "the first")
	waiter := b.start("run", "--note", "the second", "job", "--", "true")
	d, _ := b.startDisplay(120, 40, nil, "top")
	d.awaitTexts("job", "held")
	d.press("\r")
	d.awaitTexts("LOCK job", "the first", " 1. ", "the second", "NODE", "VOTE", "OWNER")
	for _, s := range b.servers {
		if line := d.line(s.Addr() + " "); line == "" {
			t.Errorf("no node %s", s.Addr())
		}
	}
	d.awaitScreen("three nodes vote for the holder", func(s string) bool { return strings.Count(s, " holder  ") >= 3 })
	if _, err := b.servers[0].Do("DEL", "lock:job"); err != nil {
		t.Fatal(err)
	}
	d.awaitTexts("at risk", "only 2 of 3 nodes have it", " nobody  ")
	d.press("\x1b")
	b.freeLock("job")
	if code := waiter.code(); code != 0 {
		t.Errorf("the waiter ended with %d", code)
	}
	d.awaitTexts("LOCK  ")
}

func TestTopForceReleasesAfterQuestions(t *testing.T) {
	t.Parallel()
	b := newBench(t, 3)
	b.holdLock("job")
	d, cmd := b.startDisplay(80, 24, nil, "top")
	d.awaitTexts("job", "held")
	d.press("F")
	d.awaitTexts("Why is it taken away?", "lease")
	d.press("the host is gone\r")
	d.awaitTexts("type its name:", "reason: the host is gone")
	d.press("jab\r")
	d.awaitTexts("nothing was done", "held")
	d.press("F")
	d.awaitTexts("Why is it taken away?")
	d.press("the host is gone\r")
	d.awaitTexts("type its name:")
	d.press("job\r")
	d.awaitTexts("was taken from")
	if code := b.newCommand(t.Context(), "show", "-e", "job").runExitCode(); code != 1 {
		t.Errorf("show -e: %d, want 1", code)
	}
	d.press("q")
	if code := wait(cmd); code != 0 {
		t.Errorf("exit code %d", code)
	}
	d.awaitScreen("the record is printed", func(string) bool {
		return strings.Contains(d.output(), `"action": "force-release"`) && strings.Contains(d.output(), `"reason": "the host is gone"`)
	})
}

func TestTopShowsPartialOutage(t *testing.T) {
	t.Parallel()
	b := newBench(t, 3)
	b.backend += "&maxttl=1h"
	b.holdLock("job", "--ttl", "1h") // long enough for a slow machine
	d, _ := b.startDisplay(100, 24, nil, "top")
	d.awaitTexts("all well", "job")
	b.servers[2].Kill()
	d.awaitTexts("DEGRADED: 1 of 3 nodes do not vote", "DOWN", "job", "held")
	b.servers[1].Kill()
	d.awaitTexts("NO MAJORITY: 2 of 3 nodes do not vote", "job", "unknown")
	again, _ := b.startDisplay(100, 24, nil, "top") // top also starts during an outage
	again.awaitTexts("NO MAJORITY", "job", "unknown")
}

// One of the services has no nodes that vote.
func TestTopShowsOtherServices(t *testing.T) {
	if testing.Short() {
		t.Skip("-short starts no other services")
	}
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) string{"etcd": etcdBackend, "postgres": postgresBackend} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 1)
			b.backend = start(t)
			if name == "postgres" {
				if out, err := b.newCommand(t.Context(), "migrate").run(); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
			}
			b.holdLock("job", "--note", "the first")
			waiter := b.start("run", "--note", "the second", "job", "--", "true")
			d, _ := b.startDisplay(140, 30, nil, "top")
			d.awaitTexts("all well", "job", "held", "the first", "1 waiting")
			d.press("\r")
			if name == "postgres" {
				d.awaitTexts("LOCK job", "owner", "who they are is not known", "NODE")
			} else {
				d.awaitTexts("LOCK job", "owner", " 1. ", "the second", "NODE")
			}
			d.press("\x1b")
			b.freeLock("job")
			waiter.code()
			d.awaitScreen("job has gone", func(s string) bool { return strings.Contains(s, "0 held") })
		})
	}
}

func etcdBackend(t *testing.T) string {
	t.Helper()
	cluster, err := etcdproc.Start(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cluster.Stop() })
	return "etcd://" + strings.Join(cluster.Addrs(), ",") + "/locks"
}

func postgresBackend(t *testing.T) string {
	t.Helper()
	server, err := pgproc.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Stop() })
	dir, _, _ := strings.Cut(strings.TrimPrefix(server.DSN(), "host="), " ")
	return "postgres://holdfast:secret@/postgres?host=" + url.QueryEscape(dir)
}

func TestTopStaysLiveWithTenThousandLocks(t *testing.T) {
	if testing.Short() {
		t.Skip("-short fills no server with keys")
	}
	t.Parallel()
	b := newBench(t, 1)
	server := b.servers[0]
	must := func(args ...string) {
		if _, err := server.Do(args...); err != nil {
			t.Error(err)
		}
	}
	must("EVAL", "for i = 0, 9999 do redis.call('SET', string.format('lock:n%05d', i), 'first', 'PX', 600000) end", "0")
	stop, churning := make(chan struct{}), sync.WaitGroup{}
	churning.Go(func() { // 1,000 changes a second
		for round := 0; ; round++ {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
				must("EVAL", "for i = 1, 100 do redis.call('SET', string.format('lock:n%05d', math.random(0, 4999)), ARGV[1], 'PX', 600000) end",
					"0", fmt.Sprint("owner", round))
			}
		}
	})
	t.Cleanup(churning.Wait)
	t.Cleanup(func() { close(stop) })
	d, cmd := b.startDisplay(80, 24, nil, "top")
	d.awaitTexts("10000 locks  10000 held")
	d.awaitScreen("hand-overs are seen", func(s string) bool { return !strings.Contains(s, " 0.0 hand-overs/s") })
	d.press("G")
	d.awaitTexts("n09999")
	d.press("/n07777")
	d.awaitTexts("n07777", "filter: n07777")
	d.awaitScreen("the others are gone", func(s string) bool { return !strings.Contains(s, "n09999") })
	must("SET", "lock:n07777", "somebody", "PX", "600000")
	d.press("\r\r")
	d.awaitTexts("LOCK n07777", "somebody")
	if peak := residentPeak(t, cmd.Process.Pid); peak > 200<<20 {
		t.Errorf("%d MB of memory", peak>>20)
	}
	d.press("q")
	if code := wait(cmd); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// residentPeak returns the highest resident memory of a process.
func residentPeak(t *testing.T, pid int) (size int) {
	t.Helper()
	text, err := readFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ = strings.Cut(text, "VmHWM:")
	if _, err := fmt.Sscan(text, &size); err != nil {
		t.Fatal(err)
	}
	return size << 10
}

func TestTopCanDisableColors(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	if _, err := b.servers[0].Do("SET", "lock:for-ever", "x"); err != nil {
		t.Fatal(err)
	}
	coloured, _ := b.startDisplay(80, 24, nil, "top")
	plain, _ := b.startDisplay(80, 24, []string{"NO_COLOR=1"}, "top")
	for _, d := range []*display{coloured, plain} {
		d.awaitTexts("no end", "1 lock to look at")
	}
	if got := coloured.output(); !strings.Contains(got, "[33m") {
		t.Errorf("no colour: %q", got)
	}
	if got := plain.output(); strings.Contains(got, "[33m") || strings.Contains(got, "[31m") || strings.Contains(got, ";31m") {
		t.Errorf("a colour: %q", got)
	}
}

// output returns all that was written to the terminal.
func (d *display) output() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.raw.String()
}

func TestTopFollowsTerminalSize(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	b.holdLock("a-lock-with-a-name-of-quite-some-length")
	d, _ := b.startDisplay(30, 24, nil, "top")
	d.awaitTexts("30x24 is too small")
	d.resize(80, 24)
	d.awaitTexts("a-lock-with-a-name")
	d.resize(160, 30)
	d.awaitTexts("a-lock-with-a-name-of-quite-some-length", "NOTE", "TOKEN")
}

func (d *display) resize(columns, lines int) {
	d.t.Helper()
	d.screen.Resize(columns, lines)
	if err := pty.Setsize(d.file, &pty.Winsize{Cols: uint16(columns), Rows: uint16(lines)}); err != nil {
		d.t.Fatal(err)
	}
}

func TestSignalEndsTopAndRestoresTerminal(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	d, cmd := b.startDisplay(80, 24, nil, "top")
	d.awaitTexts("no locks")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := wait(cmd); code != 128+int(syscall.SIGTERM) {
		t.Errorf("exit code %d, want %d", code, 128+int(syscall.SIGTERM))
	}
	d.awaitScreen("the other screen is left", func(string) bool { return strings.Contains(d.output(), "\x1b[?1049l") })
}

// holdLock makes a lock held until freeLock releases it.
func (b *bench) holdLock(name string, args ...string) {
	b.t.Helper()
	args = append([]string{"acquire", "--ttl", "60s", "--file", strings.ReplaceAll(name, "/", "_"), name}, args...)
	if out, err := b.newCommand(b.t.Context(), args...).run(); err != nil {
		b.t.Fatalf("%v\n%s", err, out)
	}
}

func (b *bench) freeLock(name string) {
	b.t.Helper()
	if out, err := b.newCommand(b.t.Context(), "release", "--file", strings.ReplaceAll(name, "/", "_")).run(); err != nil {
		b.t.Fatalf("%v\n%s", err, out)
	}
}

// run runs the job and returns its output.
func (j *job) run() (string, error) {
	err := j.Run()
	return j.out.String() + j.log.String(), err
}

// runExitCode runs the job and returns its exit code.
func (j *job) runExitCode() int {
	j.Run() // ProcessState has the outcome
	return j.ProcessState.ExitCode()
}
