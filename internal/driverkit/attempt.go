package driverkit

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// Attempt is one Acquire, or one Adopt, of a driver that keeps locks in tables. It asks the database when its
// turn in the lane comes, and pauses until asking again makes sense.
type Attempt struct {
	Calls   *Calls
	Lane    *Lane
	Request driver.Request
	Adopts  bool  // continues the grant of another owner, for Adopt
	Last    error // last obstacle before the database has answered; nil: unknown

	// Ask sends one request. Its context ends a moment after the caller's, so that a statement in progress can
	// finish; caller ends with the call. Ask returns ErrRetryNow if the lock changed while it asked.
	Ask func(ctx, caller context.Context) (driver.Grant, error)
	// Queued reports whether the attempt has a place in the queue. Others may then wait for its request.
	Queued func() bool
	// Pause returns the longest pause after obstacle, and a channel that is readable when the attempt should
	// ask sooner, or nil. tries counts the requests so far.
	Pause func(obstacle error, tries int) (limit time.Duration, again <-chan struct{})
	// Turn is readable when the lock was handed to this attempt. The attempt then confirms that at once,
	// before all other requests of its client.
	Turn <-chan struct{}

	turn bool // Turn was read, and no request was sent since
}

// maxKeptRetries bounds how often a request that does not wait asks again while the database keeps a free lock for
// a waiter. With ShortPause in between, that is longer than any database keeps one.
const maxKeptRetries = 15

// Run asks until the lock is granted, a lasting error occurs, the caller leaves, or the driver is closed. A
// request that does not wait asks once. It asks again for a moment while nobody holds the lock and the
// database still keeps it for a waiter: otherwise its error would name no holder.
func (a *Attempt) Run(ctx context.Context) (driver.Grant, error) {
	wait := Wait{Report: a.Request.OnObstacle, Last: a.Last}
	for tries := 0; ; tries++ {
		if err := wait.Err(ctx, a.Calls); err != nil {
			return driver.Grant{}, err
		}
		g, err := a.askService(ctx)
		wait.KeepLaneError(err)
		if over := wait.Err(ctx, a.Calls); over != nil { // the driver releases a grant that came too late
			return driver.Grant{}, over
		}
		once := a.Request.NoWait && !(isUnclaimed(err) && tries < maxKeptRetries)
		if err == nil || once || IsPermanent(err) || errors.Is(err, driver.ErrLost) {
			return g, err
		}
		if !errors.Is(err, ErrRetryNow) { // otherwise the obstacle is unknown
			wait.SetObstacle(err)
		}
		a.awaitRetry(ctx, err, tries)
	}
}

// isUnclaimed reports whether err names no holder and no waiter.
func isUnclaimed(err error) bool {
	held, ok := errors.AsType[*driver.HeldError](err)
	return ok && held.Owner == "" && held.Waiters == 0
}

// askService sends one request when its turn comes, or at once to confirm a lock that was handed to the
// attempt.
func (a *Attempt) askService(caller context.Context) (g driver.Grant, err error) {
	limit := pace.RequestTime(a.Request.TTL, pace.Alone)
	once := func() (err error) {
		ctx, done := a.Calls.RequestContext(caller, limit)
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

// awaitRetry waits until the next request.
func (a *Attempt) awaitRetry(ctx context.Context, obstacle error, tries int) {
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
