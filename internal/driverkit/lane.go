package driverkit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// Lane limits the requests of one client that are in progress at a service. The others wait for their turn.
// Renewals take no turn, so no request delays them. A request leaves the lane when it is answered. While it
// waits for the holder of a lock, it is not in the lane.
type Lane struct {
	states *States
	clock  *pace.Clock
	line   Line
}

// NewLane returns a lane that allows room requests to the nodes of states at a time.
func NewLane(states *States, room int) *Lane {
	return &Lane{states: states, clock: pace.NewClock(), line: Line{room: max(room, 1)}}
}

// Do runs fn when its turn has come, or skip is readable, and returns its error. If ctx ends before, it
// returns the obstacle: the nodes that are down, or the other requests.
func (l *Lane) Do(ctx context.Context, rank Rank, skip <-chan struct{}, fn func() error) error {
	turn, err := l.awaitTurn(ctx, rank, skip)
	if err != nil {
		return err
	}
	return l.runTurn(turn, fn)
}

// Try runs fn if the lane has room now, and reports whether it ran fn.
func (l *Lane) Try(fn func() error) (ran bool, err error) {
	if !l.line.Pass(Later) {
		return false, nil
	}
	return true, l.runTurn(true, fn)
}

// runTurn runs fn, and ends the turn if fn has one.
func (l *Lane) runTurn(turn bool, fn func() error) error {
	err := fn()
	answered := !errors.Is(err, driver.ErrUnavailable)
	switch now := l.clock.Now(); {
	case turn:
		l.line.Leave(now, answered, nil)
	case answered:
		l.line.noteAnswer(now)
	}
	return err
}

// RetryUnanswered repeats fn, each time in its turn, while the service does not answer, until ctx ends. It calls begun
// at each turn.
func (l *Lane) RetryUnanswered(ctx context.Context, begun func(), fn func() error) error {
	return RetryUnanswered(ctx, func() error {
		return l.Do(ctx, Soon, nil, func() error {
			begun()
			return fn()
		})
	})
}

// awaitTurn blocks until the turn of the caller has come or skip is readable, and reports whether the caller
// has a turn.
func (l *Lane) awaitTurn(ctx context.Context, rank Rank, skip <-chan struct{}) (turn bool, err error) {
	if l.line.Pass(rank) {
		return true, nil
	}
	begin := make(chan struct{})
	t := &Turn{Rank: rank, Begin: func() { close(begin) }}
	if l.line.Enter(t, l.clock.Now()) {
		return true, nil
	}
	select {
	case <-begin:
		return true, nil
	case <-skip:
	case <-ctx.Done():
		err = l.crowdedError()
	}
	if !l.line.Withdraw(t) { // the turn has come meanwhile
		l.line.Leave(l.clock.Now(), false, nil)
	}
	return false, err
}

// noTurnError is the error of a request whose turn has not come.
type noTurnError struct{ error }

func (c noTurnError) Unwrap() error { return c.error }

// crowdedError returns the reason why a request got no turn: nodes that do not answer, or else the other
// requests.
func (l *Lane) crowdedError() error {
	if down := l.states.downError(); down != nil {
		return noTurnError{down}
	}
	return noTurnError{l.states.Unavailable(fmt.Errorf("requests of this client that wait for their turn: %d", l.line.Load(0).Waiting))}
}

// silentTime returns the time since the last answer to any request, while requests wait.
func (l *Lane) silentTime() time.Duration { return l.line.Load(l.clock.Now()).Silence }
