package driverkit

import (
	"context"
	"errors"

	"github.com/holdfast-go/holdfast/driver"
)

// The obstacle of a wait is another holder, or a service that does not answer. When a wait ends, its error
// names the last obstacle.

// ObstacleIn returns the obstacle in err, a *driver.HeldError or a *driver.UnavailableError; nil if there is
// none.
func ObstacleIn(err error) error {
	if held, ok := errors.AsType[*driver.HeldError](err); ok {
		return held
	}
	if down, ok := errors.AsType[*driver.UnavailableError](err); ok {
		return down
	}
	return nil
}

// ObstacleChanged reports whether the obstacle now is of another kind than last. nil for last means that there
// was none.
func ObstacleChanged(last, now error) bool {
	return last == nil || errors.Is(last, driver.ErrHeld) != errors.Is(now, driver.ErrHeld)
}

// WithObstacle adds last, if it is not nil, to the error of a context that has ended. It returns other errors,
// and errors that contain an obstacle already, unchanged.
func WithObstacle(err, last error) error {
	over := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	if !over || last == nil || ObstacleIn(err) != nil {
		return err
	}
	return &endedWait{err, last}
}

// endedWait joins the error of a context and the last obstacle. It formats its text when it is read, because
// drivers add the description of the holder later.
type endedWait struct{ end, last error }

func (e *endedWait) Error() string   { return e.end.Error() + ": " + e.last.Error() }
func (e *endedWait) Unwrap() []error { return []error{e.end, e.last} }
