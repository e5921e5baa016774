package driverkit

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Lane limits the requests of one client that are under way. The others wait in the client for their turn, first
// come first served: they have sent nothing, cost nothing if their callers leave, and delay no renewal,
// as renewals take no turn. A request leaves the lane when it is answered. It is not in the lane while it waits
// for the holder of a lock.
//
// The engine of a quorum has a Lane of its own. They have in common that what frees a lock comes
// before what begins one, and differ in all else: this one has the room that it is given, and a
// goroutine for each request, which may be called out of the lane; every fourth turn is Later's.
type Lane struct {
	states *States

	mu     sync.Mutex   // guards what follows
	room   int          // for how many more requests
	queues [2]list.List // of chan struct{}, by Rank
	passed int          // how many turns were passed on
	heard  time.Time    // when a request was answered last
}

// Rank orders the requests in a Lane.
type Rank int

// The ranks. Of four turns that are passed on, Later gets one at least.
const (
	Soon  Rank = iota // on which others wait, or which lapses
	Later             // what begins
)

// NewLane returns a lane with room for so many requests to the nodes of states.
func NewLane(states *States, room int) *Lane { return &Lane{states: states, room: max(room, 1)} }

// Do runs fn when it is its turn, or skip is ready, and returns its error. If ctx ends before, it
// returns what stands in the way.
func (l *Lane) Do(ctx context.Context, rank Rank, skip <-chan struct{}, fn func() error) error {
	turn, err := l.enter(ctx, rank, skip)
	if err != nil {
		return err
	}
	return l.run(turn, fn)
}

// Try runs fn, if there is room now and so nobody waits for a turn, and reports whether it has.
func (l *Lane) Try(fn func() error) (ran bool, err error) {
	l.mu.Lock()
	if l.room == 0 {
		l.mu.Unlock()
		return false, nil
	}
	l.room--
	l.mu.Unlock()
	return true, l.run(true, fn)
}

// run runs fn, and then passes the turn on, if it has one.
func (l *Lane) run(turn bool, fn func() error) error {
	err := fn()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !errors.Is(err, driver.ErrUnavailable) {
		l.heard = time.Now()
	}
	if turn {
		l.pass()
	}
	return err
}

// Insist repeats fn, each time in its turn, while the service does not answer, until ctx ends. It
// calls begun at each turn.
func (l *Lane) Insist(ctx context.Context, begun func(), fn func() error) error {
	return Insist(ctx, func() error {
		return l.Do(ctx, Soon, nil, func() error {
			begun()
			return fn()
		})
	})
}

// enter blocks until it is the caller's turn, or skip is ready, and says which.
func (l *Lane) enter(ctx context.Context, rank Rank, skip <-chan struct{}) (turn bool, err error) {
	l.mu.Lock()
	if l.room > 0 { // then nobody waits
		l.room--
		l.mu.Unlock()
		return true, nil
	}
	begin := make(chan struct{})
	place := l.queues[rank].PushBack(begin)
	l.mu.Unlock()
	select {
	case <-begin:
		return true, nil
	case <-skip:
	case <-ctx.Done():
		err = l.crowded()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-begin: // meanwhile
		l.pass()
	default:
		l.queues[rank].Remove(place)
	}
	return false, err
}

// pass gives a turn to the next. The caller holds mu.
func (l *Lane) pass() {
	l.passed++
	for i := range l.queues {
		if l.passed%4 == 0 {
			i = len(l.queues) - 1 - i
		}
		if first := l.queues[i].Front(); first != nil {
			close(l.queues[i].Remove(first).(chan struct{}))
			return
		}
	}
	l.room++
}

// crowd is the error of a request whose turn has not come.
type crowd struct{ error }

func (c crowd) Unwrap() error { return c.error }

// crowded returns the reason why a request has no turn: nodes that do not answer, or else the other
// requests.
func (l *Lane) crowded() error {
	l.mu.Lock()
	waiting := 0
	for i := range l.queues {
		waiting += l.queues[i].Len()
	}
	l.mu.Unlock()
	if down := l.states.down(); down != nil {
		return crowd{down}
	}
	return crowd{l.states.Unavailable(fmt.Errorf("requests of this client that wait for their turn: %d", waiting))}
}

// silence is for how long no request was answered.
func (l *Lane) silence() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.heard)
}
