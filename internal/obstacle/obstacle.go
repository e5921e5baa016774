// Package obstacle has what stands in the way of a wait: another holder, or a service that does
// not answer. The error of a wait that has ended names the obstacle that stood last.
package obstacle

import (
	"context"
	"errors"

	"github.com/holdfast-go/holdfast/driver"
)

// In returns the obstacle that err names, a *driver.HeldError or a *driver.UnavailableError; nil: it
// names none.
func In(err error) error {
	if held, ok := errors.AsType[*driver.HeldError](err); ok {
		return held
	}
	if down, ok := errors.AsType[*driver.UnavailableError](err); ok {
		return down
	}
	return nil
}

// Changes says whether now is of another kind than last; nil: nothing stood in the way before.
func Changes(last, now error) bool {
	return last == nil || errors.Is(last, driver.ErrHeld) != errors.Is(now, driver.ErrHeld)
}

// With adds last, if it is not nil, to the bare error of a context that has ended. Any other err,
// and one that names an obstacle, stays as it is.
func With(err, last error) error {
	over := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	if !over || last == nil || In(err) != nil {
		return err
	}
	return &ended{err, last}
}

// ended is the end of a context and the obstacle that stood last. Its text is made when it is read,
// because drivers add who the holder is.
type ended struct{ end, last error }

func (e *ended) Error() string   { return e.end.Error() + ": " + e.last.Error() }
func (e *ended) Unwrap() []error { return []error{e.end, e.last} }
