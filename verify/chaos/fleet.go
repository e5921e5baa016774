//go:build linux

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/internal/rig/child"
)

// immortal is how many clients no fault strikes: what a client has learned from earlier faults is there at the next.
const immortal = 2

// fleet is the client processes.
type fleet struct {
	program string
	older   string // another build of it, which every other process is; each is the other build when it is started again
	orders  []order
	logs    io.Writer
	ships   []*ship
}

// ship is one process.
type ship struct {
	life   sync.Mutex // held by the fault that stops or kills it
	cmd    *exec.Cmd
	stdin  io.WriteCloser // for orders, see client.obey
	exited <-chan struct{}
	again  int // how often it was started before
}

func launch(program, older string, orders []order, logs io.Writer) (*fleet, error) {
	f := &fleet{program: program, older: cmp.Or(older, program), orders: orders, logs: logs}
	for i := range orders {
		f.ships = append(f.ships, &ship{})
		if err := f.start(i); err != nil {
			f.scuttle()
			return nil, err
		}
	}
	return f, nil
}

// start starts the i-th client under a name that was never used.
func (f *fleet) start(i int) error {
	s, o := f.ships[i], f.orders[i]
	o.Name = fmt.Sprintf("%s.%d", o.Name, s.again)
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	cmd := exec.Command([]string{f.program, f.older}[(i+s.again)%2])
	cmd.Env = append(os.Environ(), orderVariable+"="+string(text))
	if o.Narrow {
		cmd.Env = append(cmd.Env, "GOMAXPROCS=1")
	}
	cmd.Stdout, cmd.Stderr = f.logs, f.logs
	if s.stdin, err = cmd.StdinPipe(); err != nil {
		return err
	}
	if s.exited, err = child.Start(cmd, syscall.SIGKILL); err != nil {
		return err
	}
	s.cmd, s.again = cmd, s.again+1
	return nil
}

func (s *ship) pause() error  { return s.cmd.Process.Signal(syscall.SIGSTOP) }
func (s *ship) resume() error { return s.cmd.Process.Signal(syscall.SIGCONT) }

// tell sends the process an order. It blocks while the process is stopped and does not read.
func (s *ship) tell(order string) error {
	_, err := io.WriteString(s.stdin, order+"\n")
	return err
}

func (s *ship) kill() {
	s.cmd.Process.Kill() // fails only for one that has ended
	<-s.exited
}

// await waits until all processes have come to the end of the schedule, and says
// how those ended that failed.
func (f *fleet) await(patience time.Duration) error {
	late := time.After(patience)
	var errs error
	for i, s := range f.ships {
		select {
		case <-s.exited:
		case <-late:
			errs = errors.Join(errs, fmt.Errorf("client %d does not end", i))
			continue
		}
		if !s.cmd.ProcessState.Success() {
			errs = errors.Join(errs, fmt.Errorf("client %d: %v", i, s.cmd.ProcessState))
		}
	}
	f.scuttle()
	return errs
}

// scuttle ends all processes.
func (f *fleet) scuttle() {
	for _, s := range f.ships {
		if s.cmd != nil {
			s.kill()
		}
	}
}
