package driverkit

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// PermanentError is an error that waiting does not fix. It matches driver.ErrAuth or driver.ErrConfig.
type PermanentError struct{ Err error }

func (r PermanentError) Error() string { return r.Err.Error() }
func (r PermanentError) Unwrap() error { return r.Err }

// Is matches driver.ErrConfig unless credentials or permissions are the cause.
func (r PermanentError) Is(target error) bool {
	return target == driver.ErrConfig && !errors.Is(r.Err, driver.ErrAuth)
}

// IsPermanent reports whether err is an error that waiting does not fix.
func IsPermanent(err error) bool {
	_, ok := errors.AsType[PermanentError](err)
	return ok || errors.Is(err, driver.ErrInvalid) || errors.Is(err, driver.ErrUnsupported)
}

// StallError is the error of a request that was not answered in time.
type StallError struct{ Err error }

func (s StallError) Error() string { return s.Err.Error() }
func (s StallError) Unwrap() error { return s.Err }

// CheckMembers returns an error if the members of a service, or its login, are invalid.
func CheckMembers(members []string, service, username, password string) error {
	switch {
	case len(members) == 0:
		return fmt.Errorf("%w: no member of the %s is named; give host:port of each", driver.ErrInvalid, service)
	case (username == "") != (password == ""):
		return fmt.Errorf("%w: a user without a password, or a password without a user; give both or neither", driver.ErrInvalid)
	}
	for i, m := range members {
		host, port, err := net.SplitHostPort(m)
		if n, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || n == 0 || host == "" || strings.ContainsAny(m, "/@ ") {
			return fmt.Errorf("%w: member %d of the %s is not of the form host:port", driver.ErrInvalid, i+1, service)
		}
		if slices.Contains(members[:i], m) {
			return fmt.Errorf("%w: the member %s is named twice", driver.ErrInvalid, m)
		}
	}
	return nil
}

// States holds the states of a driver's nodes, in the order of opening. All are up at first.
type States struct {
	start int // index of the node to ask first; random, so that clients spread over the nodes

	mu      sync.Mutex // guards the fields below
	nodes   []node
	changed chan struct{} // closed when a state changes
	notify  func(driver.NodeEvent)
}

type node struct {
	driver.NodeEvent
	trip time.Duration // smoothed; 0: no sample yet
	best driver.NodeState
	why  error // reason for best
}

// NewStates returns the states of nodes with these names.
func NewStates(names ...string) *States {
	s := &States{start: rand.N(max(len(names), 1)), changed: make(chan struct{})}
	for _, name := range names {
		s.nodes = append(s.nodes, node{NodeEvent: driver.NodeEvent{Node: name, State: driver.NodeUp}, best: driver.NodeUp})
	}
	return s
}

// SetRoundTrip records the response time of the i-th node.
func (s *States) SetRoundTrip(i int, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := &s.nodes[i]
	if n.trip == 0 {
		n.trip = took
	}
	n.trip += (took - n.trip) / 4
	if n.State != driver.NodeDown {
		n.RoundTrip = n.trip
	}
}

// SetBestState records that the i-th node will never be in a better state, and the reason.
func (s *States) SetBestState(i int, best driver.NodeState, why error) {
	s.mu.Lock()
	s.nodes[i].best, s.nodes[i].why = best, why
	s.mu.Unlock()
	s.Report(i, nil)
}

// Report records the result of a request to the i-th node, nil for an answer. If the state of the node has
// changed, it notifies the client.
func (s *States) Report(i int, err error) {
	s.mu.Lock()
	n := &s.nodes[i]
	e := driver.NodeEvent{Node: n.Node, State: n.best, Err: n.why, RoundTrip: n.trip}
	if _, stalled := errors.AsType[StallError](err); stalled {
		e.State, e.Err = driver.NodeStalled, err
	} else if err != nil && !errors.Is(err, driver.ErrLost) {
		e.State, e.Err, e.RoundTrip = driver.NodeDown, err, 0
	}
	news := n.State != e.State
	n.NodeEvent = e
	if news {
		close(s.changed)
		s.changed = make(chan struct{})
	}
	notify := s.notify
	s.mu.Unlock()
	if news && notify != nil {
		notify(e)
	}
}

// Up reports whether the i-th node is up, and returns a channel that is closed at the next change of a state.
func (s *States) Up(i int) (up bool, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodes[i].State == s.nodes[i].best, s.changed
}

// AskOrder returns nodes, which have the same indexes as in s, in the order in which to ask them: first the leader (-1:
// none is preferred), then the nodes that are up, then the others.
func AskOrder[N any](s *States, nodes []N, leader int) []N {
	s.mu.Lock()
	defer s.mu.Unlock()
	var up, down []N
	for k := range s.nodes {
		switch i := (s.start + k) % len(s.nodes); {
		case i == leader:
		case s.nodes[i].State == s.nodes[i].best:
			up = append(up, nodes[i])
		default:
			down = append(down, nodes[i])
		}
	}
	if leader >= 0 {
		up = slices.Insert(up, 0, nodes[leader])
	}
	return append(up, down...)
}

// Unavailable returns the error of a call that needed a majority of the nodes. It names the nodes to blame, or
// err if there is none.
func (s *States) Unavailable(err error, blame ...driver.NodeError) *driver.UnavailableError {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &driver.UnavailableError{Need: len(s.nodes)/2 + 1, Nodes: blame, Err: err}
}

// downError returns the error of a call that waited while no majority of the nodes answered; nil if a majority
// answers.
func (s *States) downError() error {
	var blame []driver.NodeError
	for _, n := range s.Nodes() {
		if n.State == driver.NodeDown || n.State == driver.NodeStalled {
			blame = append(blame, driver.NodeError{Node: n.Node, Err: n.Err})
		}
	}
	if failed := s.Unavailable(nil, blame...); len(blame) >= failed.Need {
		return failed
	}
	return nil
}

// Nodes implements driver.Notifier.
func (s *States) Nodes() []driver.NodeEvent {
	s.mu.Lock()
	defer s.mu.Unlock()
	events := make([]driver.NodeEvent, len(s.nodes))
	for i, n := range s.nodes {
		events[i] = n.NodeEvent
	}
	return events
}

// Notify implements driver.Notifier.
func (s *States) Notify(fn func(driver.NodeEvent)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notify = fn
}
