//go:build unix

// Package proc runs one command in a separate process group, and is responsible for every process that the command
// starts: it starts, signals, suspends, kills and reaps them, and lends them the terminal. A second process, the guard,
// can kill them when this one cannot.
//
// # What is not promised
//
// After this process has died, the guard, if there is one, kills the group and no other process. Without a guard the
// kernel kills only the command (Pdeathsig, Linux). A process that has left the group is found only while this process
// lives, and only on Linux. This process may lack the right to signal a program that changes its user.
package proc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/boot"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// Command describes the program to run.
type Command struct {
	Path  string   // path of the program
	Args  []string // arguments, beginning with the program's name
	Env   []string
	Self  Self   // this program, to run it as gate and guard
	Guard bool   // a second process kills the group if this one cannot, and then releases Lease
	Lease []byte // passed to bequeath of RunGuard
}

// Self describes how to start this program again.
type Self struct {
	Path, Name string
	Log        string // format of the guard's log
}

// Myself returns the Self of this program, with the name that its users know.
func Myself(name string) Self { return Self{Path: selfPath(), Name: name} }

// ExecError reports that the command cannot be executed. Any other failure to start it has another type.
type ExecError struct {
	Path string
	Err  syscall.Errno
}

// Error names the program.
func (e *ExecError) Error() string { return fmt.Sprintf("%s: %v", e.Path, e.Err) }

// Unwrap gives the kernel's reason.
func (e *ExecError) Unwrap() error { return e.Err }

// execError turns the error of executing path into an ExecError, unless this process or its system lacks a
// resource.
func execError(path string, err error) error {
	errno, ok := errors.AsType[syscall.Errno](err)
	switch {
	case !ok, slices.Contains([]syscall.Errno{unix.EAGAIN, unix.ENOMEM, unix.EMFILE, unix.ENFILE}, errno):
		return err
	}
	return &ExecError{Path: path, Err: errno}
}

// Event is something that happened to a process of the job.
type Event struct {
	Kind   Kind
	Status unix.WaitStatus // status for Exited, Stopped and GuardGone
}

// Kind is the kind of an Event.
type Kind int

// The kinds of events.
const (
	Exited    Kind = iota // the command ended
	Stopped               // the command was suspended, as by Ctrl-Z
	Reaped                // another process of the job ended
	GuardGone             // the guard ended unexpectedly
)

// Process is a process that the command, or a descendant, has started.
type Process struct {
	PID  int
	Name string
	// group and parent decide how the process can be ended.
	group, parent int
}

// String formats the process as "4121 (backup)".
func (p Process) String() string { return fmt.Sprintf("%d (%s)", p.PID, p.Name) }

// Job is a command that was started. Use its methods from one goroutine.
type Job struct {
	// Events receives the events of the job. Read it until the command has exited and the job is closed. It is
	// closed when no process is left.
	Events <-chan Event

	pid      int // id of the command, and of its group
	terminal *terminal
	guard    *guardLink
	before   map[int]bool // children of a shell that became this process by exec
}

// Start starts the command. When it returns, the guard knows the group, the terminal is lent, and the command
// runs. The guard kills at killAt, unless Protect moves that. A command that cannot be executed gives an
// ExecError.
func Start(c Command, killAt boot.Instant) (*Job, error) {
	becomeReaper()
	j := &Job{terminal: openTerminal(), before: make(map[int]bool)}
	if !hasNoChild() {
		for _, p := range descendants(os.Getpid(), listProcesses(), j.isForeign) {
			j.before[p.PID] = true
		}
	}
	gated := c.Guard || j.terminal.startsInForeground()
	events := make(chan Event, 16)
	j.Events = events
	var g *gate
	if gated {
		var err error
		if g, err = newGate(c); err != nil {
			return nil, err
		}
		defer g.close()
		c = g.command
	}
	started := make(chan error)
	go j.runParent(c, g, events, started)
	if err := <-started; err != nil {
		j.release()
		return nil, err
	}
	// Needed to take the terminal back from the background. Not earlier, because the command would inherit it.
	signal.Ignore(syscall.SIGTTOU)
	if err := j.armGuard(c, killAt); err != nil {
		j.abort()
		return nil, err
	}
	j.terminal.lendTo(j.pid)
	if g != nil {
		if err := g.open(); err != nil {
			j.abort()
			return nil, err
		}
	}
	return j, nil
}

// runParent is the goroutine that starts the processes and waits for them. The kernel kills the command when
// the *thread* that started it ends (golang/go#27505), so the goroutine stays locked to its thread.
func (j *Job) runParent(c Command, g *gate, events chan<- Event, started chan<- error) {
	runtime.LockOSThread()
	if err := j.launch(c, g); err != nil {
		started <- err
		return
	}
	started <- nil
	j.reapAll(events)
}

func (j *Job) launch(c Command, g *gate) error {
	if c.Guard {
		var err error
		if j.guard, err = startGuard(c.Self); err != nil {
			return fmt.Errorf("start the guard, which --no-guard leaves out: %w", err)
		}
	}
	files := []*os.File{os.Stdin, os.Stdout, os.Stderr}
	if g != nil {
		files = append(files, g.childFiles()...)
	}
	p, err := os.StartProcess(c.Path, c.Args, &os.ProcAttr{Files: files, Env: c.Env, Sys: groupAttr()})
	switch {
	case err == nil:
	case g == nil:
		return execError(c.Path, err)
	default:
		return fmt.Errorf("start this program once more: %w", err)
	}
	j.pid = p.Pid
	return p.Release()
}

// reapAll reaps every child of this process, including adopted orphans, until none is left.
func (j *Job) reapAll(events chan<- Event) {
	defer close(events)
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WUNTRACED, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return
		case pid == j.pid && status.Stopped():
			events <- Event{Kind: Stopped, Status: status}
		case status.Stopped():
		case pid == j.pid:
			events <- Event{Kind: Exited, Status: status}
		case j.guard != nil && pid == j.guard.pid:
			events <- Event{Kind: GuardGone, Status: status}
		default:
			events <- Event{Kind: Reaped}
		}
	}
}

func (j *Job) armGuard(c Command, killAt boot.Instant) error {
	if !c.Guard {
		return nil
	}
	if err := j.guard.waitReady(); err != nil {
		return fmt.Errorf("start the guard, which --no-guard leaves out: %w", err)
	}
	return j.guard.sendOrder(order{Group: j.pid, KillAt: killAt, Lease: c.Lease})
}

// abort ends a command that never ran, and the guard.
func (j *Job) abort() {
	j.Signal(syscall.SIGKILL)
	for e := range j.Events {
		if e.Kind == Exited {
			break
		}
	}
	j.Close()
}

// Protect tells the guard the new time to kill the group. Without a guard it does nothing.
func (j *Job) Protect(killAt boot.Instant) error {
	if j.guard == nil {
		return nil
	}
	return j.guard.sendOrder(order{Group: j.pid, KillAt: killAt})
}

// PID returns the command's process id, which is also the id of its group.
func (j *Job) PID() int { return j.pid }

// Signal sends s to the group. It returns an error if it reached no process: EPERM if all run as another user.
func (j *Job) Signal(s syscall.Signal) error { return unix.Kill(-j.pid, s) }

// SignalCommand sends s to the command alone, with errors like Signal.
func (j *Job) SignalCommand(s syscall.Signal) error { return unix.Kill(j.pid, s) }

// Alive reports whether a process of the group is left.
func (j *Job) Alive() bool { return isGroupAlive(j.pid) }

// Members returns the processes of the group that are left.
func (j *Job) Members() []Process {
	var members []Process
	for _, p := range listProcesses() {
		if p.group == j.pid {
			members = append(members, p)
		}
	}
	return members
}

// Unsignalable returns the processes of the group that this user may not signal, because they have changed their
// user.
func (j *Job) Unsignalable() []Process {
	return slices.DeleteFunc(j.Members(), func(p Process) bool { return !errors.Is(unix.Kill(p.PID, 0), unix.EPERM) })
}

// Escaped returns the descendants of the command that have left its group, as daemons do, and whose parents
// are gone.
func (j *Job) Escaped() []Process {
	var escaped []Process
	for _, p := range listChildren() {
		if p.group != j.pid && !j.isForeign(p.PID) {
			escaped = append(escaped, p)
		}
	}
	return escaped
}

// isForeign reports whether a process is neither the command nor one of its descendants. The guard, for
// example, starts an heir, which releases the lock.
func (j *Job) isForeign(pid int) bool { return j.before[pid] || j.guard != nil && pid == j.guard.pid }

// Kill kills the group and all other descendants of this process, and reports whether there were any.
// Processes that start meanwhile may escape, so callers repeat it until none is left.
func (j *Job) Kill() bool {
	left := unix.Kill(-j.pid, unix.SIGKILL) == nil
	for _, p := range descendants(os.Getpid(), listProcesses(), j.isForeign) {
		if unix.Kill(p.PID, unix.SIGKILL) == nil {
			left = true
		}
	}
	return left
}

// descendants returns all descendants of root, without those for which except is true and their descendants.
func descendants(root int, all []Process, except func(pid int) bool) []Process {
	children := make(map[int][]Process)
	for _, p := range all {
		children[p.parent] = append(children[p.parent], p)
	}
	var found []Process
	for next := children[root]; len(next) > 0; {
		p := next[0]
		next = next[1:len(next):len(next)]
		if !except(p.PID) {
			next = append(next, children[p.PID]...)
			found = append(found, p)
		}
	}
	return found
}

// Close takes the terminal back, dismisses the guard, and waits briefly for the guard's end: an outer run would
// otherwise report the guard as an escaped process. Do not call Close while the group lives.
func (j *Job) Close() {
	if j.guard != nil && j.guard.sendOrder(order{Done: true}) == nil {
		j.awaitGuard()
	}
	j.release()
}

// Unguarded records that the guard has ended.
func (j *Job) Unguarded() {
	j.guard.close()
	j.guard = nil
}

func (j *Job) awaitGuard() {
	late := time.NewTimer(pace.GuardEndTime())
	defer late.Stop()
	for j.Events != nil {
		select {
		case e, open := <-j.Events:
			if !open || e.Kind == GuardGone {
				return
			}
		case <-late.C:
			return
		}
	}
}

func (j *Job) release() {
	if j.guard != nil {
		j.guard.close()
	}
	j.terminal.takeBack()
}

// GateName is the name under which this program runs as a gate: it waits until the guard knows the group and
// the group has the terminal, and then becomes the command. Without the gate, the command could fork or read
// from the terminal too early.
const GateName = "gate-of-run"

// gateReady is written by a gate once it has started. A gate that ends before has failed. A gate that ends
// afterwards, before it becomes the command, was killed: that counts as the end of the command.
const gateReady = "+"

// gate is holdfast's side of a gate.
type gate struct {
	path        string // path of the command
	command     Command
	entry, exit *os.File // the gate's ends of the pipes
	opener      *os.File
	verdict     *os.File
}

func newGate(c Command) (*gate, error) {
	entry, opener, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	verdict, exit, err := os.Pipe()
	if err != nil {
		entry.Close()
		opener.Close()
		return nil, err
	}
	path := c.Path
	c.Args = append([]string{c.Self.Name, GateName, c.Path}, c.Args...)
	c.Path = c.Self.Path
	return &gate{path: path, command: c, entry: entry, opener: opener, verdict: verdict, exit: exit}, nil
}

// childFiles returns the ends that the gate inherits, as descriptors 3 and 4.
func (g *gate) childFiles() []*os.File { return []*os.File{g.entry, g.exit} }

// open lets the command run. It returns an error if the command cannot be executed.
func (g *gate) open() error {
	g.entry.Close()
	g.exit.Close()
	if _, err := g.opener.Write([]byte{1}); err != nil {
		return fmt.Errorf("start the command: %w", err)
	}
	verdict, err := io.ReadAll(g.verdict)
	if err != nil {
		return fmt.Errorf("start the command: %w", err)
	}
	said, stood := strings.CutPrefix(string(verdict), gateReady)
	switch {
	case !stood:
		return errors.New("start this program once more: it ended before it could become the command")
	case said == "": // closed by the exec
		return nil
	}
	errno, err := strconv.Atoi(said)
	if err != nil {
		return fmt.Errorf("start the command: %s", said)
	}
	return execError(g.path, syscall.Errno(errno))
}

func (g *gate) close() {
	for _, f := range []*os.File{g.entry, g.exit, g.opener, g.verdict} {
		f.Close()
	}
}

// RunGate runs in the child process. It waits until holdfast opens the gate, and then executes the command: args are
// its path and its arguments. It returns an exit code only if it cannot execute the command.
func RunGate(args []string) int {
	entry, exit := os.NewFile(3, "gate"), os.NewFile(4, "verdict")
	fmt.Fprint(exit, gateReady)
	if n, err := entry.Read(make([]byte, 1)); n != 1 || err != nil {
		return 1 // holdfast is gone
	}
	entry.Close()
	unix.CloseOnExec(4)
	err := syscall.Exec(args[0], args[1:], os.Environ())
	var errno syscall.Errno
	errors.As(err, &errno)
	fmt.Fprint(exit, int(errno))
	return 127
}
