//go:build linux

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/internal/rig/child"
)

// unfaultedClients is the number of clients without faults, which remember earlier faults.
const unfaultedClients = 2

// fleet holds the client processes.
type fleet struct {
	builds [2]string // the program and, if there is one, the older build of it
	orders []order
	logs   io.Writer
	ships  []*process
}

// build is an index into fleet.builds. At first every second process has the older build, and each process
// that is restarted after its death has the other one.
type build int

const (
	newer build = iota
	older
)

func (b build) other() build { return 1 - b }

// process is one process.
type process struct {
	life   sync.Mutex // held by a fault that stops or kills it
	cmd    *exec.Cmd
	stdin  io.WriteCloser // for orders, see holdfasts.executeOrder
	exited <-chan struct{}
	build  build
	again  int // number of earlier starts

	mu   sync.Mutex // guards the fields below
	were []build    // builds of its processes, by start
}

func launchFleet(program, olderOne string, orders []order, logs io.Writer) (*fleet, error) {
	f := &fleet{builds: [2]string{program, cmp.Or(olderOne, program)}, orders: orders, logs: logs}
	for i := range orders {
		f.ships = append(f.ships, &process{})
		if err := f.start(i, build(i%2)); err != nil {
			f.killAll()
			return nil, err
		}
	}
	return f, nil
}

// start starts the i-th client with that build, under a new name.
func (f *fleet) start(i int, b build) error {
	s, o := f.ships[i], f.orders[i]
	o.Name = fmt.Sprintf("%s.%d", o.Name, s.again)
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	cmd := exec.Command(f.builds[b])
	cmd.Env = append(os.Environ(), orderVariable+"="+string(text))
	if o.Narrow {
		cmd.Env = append(cmd.Env, "GOMAXPROCS=1")
	}
	if o.Peer { // a data race in another library does not fail the run
		cmd.Env = append(cmd.Env, "GORACE="+os.Getenv("GORACE")+" exitcode=0")
	}
	cmd.Stdout, cmd.Stderr = f.logs, f.logs
	if s.stdin, err = cmd.StdinPipe(); err != nil {
		return err
	}
	if s.exited, err = child.Start(cmd, syscall.SIGKILL); err != nil {
		return err
	}
	s.cmd, s.build, s.again = cmd, b, s.again+1
	s.mu.Lock()
	defer s.mu.Unlock()
	s.were = append(s.were, b)
	return nil
}

// isMixed reports whether there are two builds.
func (f *fleet) isMixed() bool { return f.builds[newer] != f.builds[older] }

// buildOf returns the build of a client process from its name in the histories.
func (f *fleet) buildOf(client string) build {
	name, number, _ := strings.Cut(client, ".")
	n, err := strconv.Atoi(number)
	for i, s := range f.ships {
		s.mu.Lock()
		were := s.were
		s.mu.Unlock()
		if f.orders[i].Name == name && err == nil && n < len(were) {
			return were[n]
		}
	}
	return newer
}

// names matches the name of a client process in the histories.
var names = regexp.MustCompile(`\b[a-z]+[0-9]+\.[0-9]+\b`)

// olderIn returns the clients in a text that have the older build.
func (f *fleet) olderIn(text string) (clients []string) {
	for _, client := range names.FindAllString(text, -1) {
		if f.buildOf(client) == older && !slices.Contains(clients, client) {
			clients = append(clients, client)
		}
	}
	return clients
}

func (s *process) pause() error  { return s.cmd.Process.Signal(syscall.SIGSTOP) }
func (s *process) resume() error { return s.cmd.Process.Signal(syscall.SIGCONT) }

// sendOrder sends the process an order. It blocks while the process is suspended.
func (s *process) sendOrder(order string) error {
	_, err := io.WriteString(s.stdin, order+"\n")
	return err
}

// leave ends the process in good order: it requests no more locks, releases or hands over its own, and closes
// its client. leave waits for that, and kills a process that takes longer than patience.
func (s *process) leave(patience time.Duration) error {
	err := s.stdin.Close()
	select {
	case <-s.exited:
	case <-time.After(patience):
		s.kill()
		return errors.Join(err, errors.New("it did not end"))
	}
	if !s.cmd.ProcessState.Success() {
		err = errors.Join(err, fmt.Errorf("it ended with %v", s.cmd.ProcessState))
	}
	return err
}

func (s *process) kill() {
	s.cmd.Process.Kill() // fails only if it has ended
	<-s.exited
}

// await waits until all processes have reached the end of the schedule, for patience or until ctx ends. It
// returns the errors of failed processes.
func (f *fleet) await(ctx context.Context, patience time.Duration) error {
	late, done := context.WithTimeout(ctx, patience)
	defer done()
	var errs error
	for i, s := range f.ships {
		select {
		case <-s.exited:
		case <-late.Done():
			errs = errors.Join(errs, fmt.Errorf("client %d does not end", i))
			continue
		}
		if !s.cmd.ProcessState.Success() {
			errs = errors.Join(errs, fmt.Errorf("client %d: %v", i, s.cmd.ProcessState))
		}
	}
	f.killAll()
	return errs
}

// killAll kills all processes.
func (f *fleet) killAll() {
	for _, s := range f.ships {
		if s.cmd != nil {
			s.kill()
		}
	}
}
