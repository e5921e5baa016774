package driverkit

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// Attempt is one Acquire, or one Adopt, of a driver that keeps locks in tables: it asks the database, in its turn, and pauses until it
// is worth asking again.
type Attempt struct {
	Calls   *Calls
	Lane    *Lane
	Request driver.Request
	Adopts  bool  // continues the grant of another owner
	Last    error // the obstacle until the database has answered; nil: unknown

	// Ask sends the question. Its context outlasts the caller's by a moment, so that a statement under
	// way comes to its end; caller ends with the call. It returns ErrAgain if it does not know the
	// obstacle yet.
	Ask func(ctx, caller context.Context) (driver.Grant, error)
	// Queued reports whether the attempt has a place in the queue, so that others may wait for its question.
	Queued func() bool
	// Pause returns for how long to wait at most after obstacle, and a channel that is readable when it is worth asking sooner; nil:
	// none is. Tries counts the questions before.
	Pause func(obstacle error, tries int) (limit time.Duration, again <-chan struct{})
	// Turn is readable when the lock was handed to this attempt, which confirms that at once, past everything else that its client asks.
	Turn <-chan struct{}

	turn bool // Turn was read, and nobody has asked since
}

// Run asks until the lock is granted, a lasting error says that it never will be, or the caller, the driver or a request that does not
// wait ends that.
func (a *Attempt) Run(ctx context.Context) (driver.Grant, error) {
	wait := Wait{Tell: a.Request.Obstacle, Last: a.Last}
	for tries := 0; ; tries++ {
		if err := wait.Over(ctx, a.Calls); err != nil {
			return driver.Grant{}, err
		}
		g, err := a.ask(ctx)
		wait.Leave(err)
		if over := wait.Over(ctx, a.Calls); over != nil { // a grant that came too late is given back
			return driver.Grant{}, over
		}
		if err == nil || a.Request.NoWait || Lasts(err) || errors.Is(err, driver.ErrLost) {
			return g, err
		}
		if !errors.Is(err, ErrAgain) { // then it is not known yet what stands in the way
			wait.Note(err)
		}
		a.pause(ctx, err, tries)
	}
}

// ask asks in its turn, or at once if it is to confirm a lock that was handed to it.
func (a *Attempt) ask(caller context.Context) (g driver.Grant, err error) {
	limit := pace.RequestTime(a.Request.TTL, pace.Alone)
	once := func() (err error) {
		ctx, done := a.Calls.Linger(caller, limit)
		defer done()
		g, err = a.Ask(ctx, caller)
		return err
	}
	if a.turn {
		a.turn = false
		return g, once()
	}
	waiting, cancel := context.WithCancel(caller)
	defer cancel()
	defer context.AfterFunc(a.Calls.Alive, cancel)()
	if a.Request.NoWait {
		var late context.CancelFunc
		waiting, late = context.WithTimeout(waiting, limit)
		defer late()
	}
	rank := Later
	if a.Adopts || a.Queued() {
		rank = Soon
	}
	err = a.Lane.Do(waiting, rank, a.Turn, once)
	return g, err
}

// pause waits until it is worth asking again.
func (a *Attempt) pause(ctx context.Context, obstacle error, tries int) {
	limit, again := a.Pause(obstacle, tries)
	timer := time.NewTimer(Jitter(limit))
	defer timer.Stop()
	select {
	case <-a.Turn:
		a.turn = true
	case <-again:
	case <-timer.C:
	case <-ctx.Done():
	case <-a.Calls.Alive.Done():
	}
}
