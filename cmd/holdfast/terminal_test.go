//go:build linux

package main

import (
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/creack/pty"
)

// screen is a terminal, with the text that appeared since the last expect.
type screen struct {
	t    *testing.T
	file *os.File

	mu   sync.Mutex // guards text
	text string
}

// startOnTerminal runs a program on its own terminal.
func (b *bench) startOnTerminal(args ...string) (*screen, *exec.Cmd) {
	b.t.Helper()
	cmd := exec.CommandContext(b.t.Context(), args[0], args[1:]...)
	cmd.Dir = b.dir
	cmd.Env = append(os.Environ(), "HOLDFAST_BACKEND="+b.backend, "PS1=ready> ", "ENV=", "holdfast="+b.path)
	file, err := pty.Start(cmd)
	if err != nil {
		b.t.Fatal(err)
	}
	s := &screen{t: b.t, file: file}
	var reading sync.WaitGroup
	reading.Go(s.read)
	b.t.Cleanup(func() { cmd.Process.Kill(); file.Close(); reading.Wait() })
	return s, cmd
}

// startShell starts an interactive shell and waits until it is ready for a command.
func (b *bench) startShell() *screen {
	b.t.Helper()
	s, _ := b.startOnTerminal("sh", "-i")
	s.expect("ready> ")
	return s
}

func (s *screen) read() {
	buf := make([]byte, 4096)
	for {
		n, err := s.file.Read(buf)
		s.mu.Lock()
		s.text += string(buf[:n])
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (s *screen) show(text string) {
	s.t.Helper()
	if _, err := s.file.WriteString(text); err != nil {
		s.t.Fatal(err)
	}
}

// expect waits for text and drops what appeared up to it.
func (s *screen) expect(text string) {
	s.t.Helper()
	fatal := func(format string, args ...any) {
		s.t.Helper()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.t.Fatalf(format+"\nscreen:\n%s", append(args, s.text)...)
	}
	eventually(fatal, "the screen shows "+text, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		_, rest, found := strings.Cut(s.text, text)
		if found {
			s.text = rest
		}
		return found
	})
}

const (
	ctrlC = "\x03"
	ctrlZ = "\x1a"
)

func TestInteractiveShellWorksUnderLock(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	s, cmd := b.startOnTerminal(b.path, "run", "job", "--", "sh", "-i")
	s.expect("ready> ")
	s.show("echo in$((1+1))side $HOLDFAST_LOCK_NAME\n")
	s.expect("in2side job")
	s.show("sh -c 'echo st\"\"arted; exec sleep 100'\n")
	s.expect("started\r\n") // a Ctrl-C while the shell starts a command is lost
	s.show(ctrlC)
	s.expect("ready> ")
	s.show("echo still $((2+2))\n")
	s.expect("still 4")
	s.show("exit 7\n")
	if code := wait(cmd); code != 7 {
		t.Errorf("exit code %d, want 7", code)
	}
}

func TestInterruptEndsCommandAndFreesLock(t *testing.T) {
	t.Parallel()
	s := newBench(t, 1).startShell()
	s.show(`"$holdfast" run job -- sh -c 'echo started; exec sleep 100'` + "\n")
	s.expect("started\r\n")
	s.show(ctrlC)
	s.expect("ready> ")
	s.show("echo code=$?\n")
	s.expect("code=130")
	s.show(`"$holdfast" run -n job -- echo the lock is free` + "\n")
	s.expect("the lock is free\r\n")
}

// Ctrl-C ends a script that runs holdfast, as it ends a script that runs the command directly.
func TestCtrlCEndsOuterScript(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	b.write("script", `"$holdfast" run job -- sh -c 'echo started; exec sleep 100'
echo on >went-on
`)
	s := b.startShell()
	s.show("sh script\n")
	s.expect("started\r\n")
	s.show(ctrlC)
	s.expect("ready> ")
	s.show("echo code=$?\n")
	s.expect("code=130")
	if b.file("went-on") != "" {
		t.Error("the script continued")
	}
}

func TestSuspendedCommandContinuesInForeground(t *testing.T) {
	t.Parallel()
	s := newBench(t, 1).startShell()
	s.show(`"$holdfast" run --ttl 20s job -- sh -c 'echo started; read line; echo "got $line"; read line; exit 5'` + "\n")
	s.expect("started\r\n")
	s.show(ctrlZ)
	s.expect("topped") // the shell prints Stopped
	s.expect("ready> ")
	s.show("fg\n")
	s.show("words\n")
	s.expect("got words")
	s.show(ctrlZ)
	s.expect("topped")
	s.expect("ready> ")
	s.show("fg\n")
	s.show("end\n")
	s.expect("ready> ")
	s.show("echo code=$?\n")
	s.expect("code=5")
}

// A filter behind holdfast reads from the terminal, which only the foreground group may.
func TestPagerBehindPipeKeepsTerminal(t *testing.T) {
	t.Parallel()
	s := newBench(t, 1).startShell()
	s.show(`"$holdfast" run job -- sh -c 'echo page; sleep 0.3' | sh -c 'read page; echo "showing $page"; read key </dev/tty; echo "key $key"'` + "\n")
	s.expect("showing page\r\n")
	s.show("q\n")
	s.expect("key q\r\n")
}

// The standard input of the command is a pipe, and it opens /dev/tty.
func TestPipedCommandCanReadTTY(t *testing.T) {
	t.Parallel()
	s := newBench(t, 1).startShell()
	s.show(`echo text | "$holdfast" run job -- sh -c 'cat; echo asking; read key </dev/tty; echo "key $key"'` + "\n")
	s.expect("asking\r\n")
	s.show("y\n")
	s.expect("key y\r\n")
	s.expect("ready> ")
}

// The test runs on a terminal. Any other answer deletes nothing.
func TestLeaksAreDeletedOnlyAfterConfirmation(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	there := func() bool {
		b.t.Helper()
		reply, err := b.servers[0].Do("EXISTS", "lock:theirs")
		return err == nil && reply == int64(1)
	}
	if _, err := b.servers[0].Do("SET", "lock:theirs", "value"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		answer string
		code   int
		left   bool
	}{{"no\n", 64, true}, {ctrlC, 130, true}, {"yes\n", 0, false}} {
		s, cmd := b.startOnTerminal(b.path, "leaks", "--fix")
		s.expect("[#")
		s.expect("lock:theirs: a lock of another library")
		s.expect("To delete 1 of them, whose holders have to be dead, type yes: ")
		s.show(c.answer)
		if code := wait(cmd); code != c.code || there() != c.left {
			t.Errorf("after %q: exit code %d, want %d; lock held: %v", c.answer, code, c.code, there())
		}
	}
}

func wait(cmd *exec.Cmd) int {
	cmd.Wait() // ProcessState has the outcome
	return cmd.ProcessState.ExitCode()
}
