package child

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/internal/pace"
)

const (
	// endTime bounds the wait of End after each signal.
	endTime = 10 * time.Second
	// logTail is the number of bytes from the end of the log that UnexpectedExits repeats.
	logTail = 2000
)

// Program describes how to start a server, and when it is ready.
type Program struct {
	Cmd    func() *exec.Cmd            // returns the command for each start
	Ready  func(context.Context) error // returns nil once the server serves clients
	Output string                      // file for its output, truncated at each start
	Signal syscall.Signal              // signal from the kernel when this process ends
	Limit  time.Duration               // bounds Restart
}

// Process is a Program that can be started, ended and started again. Its methods are safe for concurrent use,
// except that only one method that starts or ends the program may run at a time.
type Process struct {
	Program

	mu      sync.Mutex      // guards the fields below
	cmd     *exec.Cmd       // the last command; nil: never started
	exited  <-chan struct{} // closed once that command has ended and is reaped
	serving bool            // it was ready, and no method has ended it since
	unasked error           // its unexpected ends
}

// Begin starts the process without waiting until it is ready.
func (p *Process) Begin() error {
	p.setServing(false) // the last log is about to be truncated
	file, err := os.Create(p.Output)
	if err != nil {
		return err
	}
	defer file.Close() // the process has its own copy
	cmd := p.Cmd()
	cmd.Stdout, cmd.Stderr = file, file
	exited, err := Start(cmd, p.Signal)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cmd, p.exited = cmd, exited
	return nil
}

// Final is an error of Program.Ready after which the process can never become ready.
type Final struct{ Err error }

func (f Final) Error() string { return f.Err.Error() }
func (f Final) Unwrap() error { return f.Err }

// Await blocks until the process is ready. If the process or ctx ends before, it returns an error with the
// log.
func (p *Process) Await(ctx context.Context) error {
	cmd, exited := p.lastRun()
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		err := p.Ready(ctx)
		if err == nil {
			p.setServing(true)
		}
		if _, final := errors.AsType[Final](err); final || err == nil {
			return err
		}
		select {
		case <-exited:
			return fmt.Errorf("it exited (%v); its log: %s", cmd.ProcessState, p.Log())
		case <-ctx.Done():
			return fmt.Errorf("%w: %w; its log: %s", context.Cause(ctx), err, p.Log())
		case <-time.After(pause):
		}
	}
}

// Restart starts a process that has ended or never began. It blocks until the process is ready, ctx ends or
// Limit has passed.
func (p *Process) Restart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.Limit)
	defer cancel()
	if err := p.Begin(); err != nil {
		return err
	}
	return p.Await(ctx)
}

func (p *Process) lastRun() (*exec.Cmd, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd, p.exited
}

// Began reports whether the process was ever started.
func (p *Process) Began() bool {
	cmd, _ := p.lastRun()
	return cmd != nil
}

// Exited returns a channel that is closed once the process has ended.
func (p *Process) Exited() <-chan struct{} {
	_, exited := p.lastRun()
	return exited
}

// Pid returns the id of the process, or of the last one if it has ended.
func (p *Process) Pid() int {
	cmd, _ := p.lastRun()
	return cmd.Process.Pid
}

// UnexpectedExits returns an error that lists each unexpected end of the ready process, with the end of its output, or
// nil.
func (p *Process) UnexpectedExits() error {
	p.noteEnd()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.unasked
}

// setServing sets whether an end of the process is unexpected from now on.
func (p *Process) setServing(on bool) {
	p.noteEnd()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.serving = on
}

// noteEnd records an unexpected end of the process.
func (p *Process) noteEnd() {
	cmd, exited := p.lastRun()
	select {
	case <-exited:
	default: // it runs, or was never started
		return
	}
	log := p.Log()
	log = log[max(0, len(log)-logTail):]
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.serving && p.cmd == cmd {
		p.unasked = errors.Join(p.unasked, fmt.Errorf("%s ended by itself (%v); its log: %s", cmd.Path, cmd.ProcessState, log))
		p.serving = false
	}
}

// Log returns the output of the process since its last start; "" if the file cannot be read.
func (p *Process) Log() string {
	text, _ := os.ReadFile(p.Output)
	return string(text)
}

// End sends the signals one after the other, each only if the process still runs some seconds after the one
// before, and finally kills it. It resumes a paused process, so that the process receives them. It blocks
// until the process has ended.
func (p *Process) End(signals ...syscall.Signal) {
	cmd, exited := p.lastRun()
	if cmd == nil {
		return
	}
	p.setServing(false)
	for _, sig := range signals {
		if cmd.Process.Signal(sig) != nil {
			continue // it has ended, or this system has no such signal
		}
		p.Resume()
		select {
		case <-exited:
			return
		case <-time.After(pace.Scale(endTime)):
		}
	}
	cmd.Process.Kill() // an error means that it has ended
	<-exited
}

// Kill kills the process, which cannot close anything in order, and blocks until it has ended.
func (p *Process) Kill() { p.End() }

// Pause stops the process while its connections stay open, like a machine that hangs. Resume continues it. Not
// every system supports that.
func (p *Process) Pause() error { return p.sendSignal(stop) }

// Resume undoes Pause.
func (p *Process) Resume() error { return p.sendSignal(resume) }

func (p *Process) sendSignal(sig os.Signal) error {
	cmd, _ := p.lastRun()
	if sig == nil || cmd == nil {
		return errors.ErrUnsupported
	}
	return cmd.Process.Signal(sig)
}

// OnFreePorts calls start until no other program has taken one of its ports, and stops the failed attempts. It
// gives up after some attempts, or after limit.
func OnFreePorts[S interface{ Stop() error }](ctx context.Context, limit time.Duration, start func(context.Context) (S, error)) (none S, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for range 5 {
		s, err := start(ctx)
		if err == nil {
			return s, nil
		}
		err = errors.Join(err, s.Stop())
		if !strings.Contains(strings.ToLower(err.Error()), "address already in use") {
			return none, err
		}
	}
	return none, errors.New("no free ports")
}
