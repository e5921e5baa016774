package child

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// endTime is how long End waits after each signal.
	endTime = 10 * time.Second
	// Ports lie below those that outgoing connections use, and beside those of redisproc.
	lowestPort, portRange = 10000, 10000
)

// Process is a process that was started, whose output goes into a file. Its methods are safe
// for concurrent use, and may be called when it has ended.
type Process struct {
	cmd    *exec.Cmd
	exited <-chan struct{} // closed once the process is gone and reaped
	log    string
}

// Run starts cmd with its output in the file log, which is made anew, and has the kernel send
// it sig when this process ends.
func Run(cmd *exec.Cmd, log string, sig syscall.Signal) (*Process, error) {
	file, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer file.Close() // the process has its own copy
	cmd.Stdout, cmd.Stderr = file, file
	exited, err := Start(cmd, sig)
	if err != nil {
		return nil, err
	}
	return &Process{cmd: cmd, exited: exited, log: log}, nil
}

// Await calls ready until it returns nil, and blocks meanwhile. It returns an error, with the
// log, when the process or ctx ends before.
func (p *Process) Await(ctx context.Context, ready func() error) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-p.exited:
			return fmt.Errorf("it exited (%v); its log: %s", p.cmd.ProcessState, p.Log())
		case <-ctx.Done():
			return fmt.Errorf("%w: %w; its log: %s", context.Cause(ctx), err, p.Log())
		case <-time.After(pause):
		}
	}
}

// Exited is closed once the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Pid is the id of the process.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Log is what the process has said; empty if that cannot be read.
func (p *Process) Log() string {
	text, _ := os.ReadFile(p.log)
	return string(text)
}

// End sends the signals one after the other, each if the process still runs some seconds
// after the last, and kills it in the end. A paused process goes on, so that it sees them. It
// blocks until the process is gone.
func (p *Process) End(signals ...syscall.Signal) {
	for _, sig := range signals {
		if p.cmd.Process.Signal(sig) != nil {
			continue // it has ended, or this system has no such signal
		}
		p.Resume()
		select {
		case <-p.exited:
			return
		case <-time.After(endTime):
		}
	}
	p.Kill()
}

// Kill ends the process, which has no time to say so to anybody, and blocks until it is gone.
func (p *Process) Kill() {
	p.cmd.Process.Kill() // an error means that it has ended
	<-p.exited
}

// OnFreePorts calls start until no other program has taken a port that it chose, and stops what it has started in vain. It gives up
// after some times, or when limit is over.
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

// FreeAddrs are addresses of 127.0.0.1 whose ports are free, and different. Another program
// may take one before the caller does.
func FreeAddrs(n int) (addrs []string, err error) {
	for range 100 * n {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(lowestPort+rand.IntN(portRange))))
		if err != nil {
			continue
		}
		defer l.Close() // all are open until all are found
		if addrs = append(addrs, l.Addr().String()); len(addrs) == n {
			return addrs, nil
		}
	}
	return nil, errors.New("no free ports on 127.0.0.1")
}
