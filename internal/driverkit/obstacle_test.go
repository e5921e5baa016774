package driverkit_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
)

var (
	heldError = &driver.HeldError{Owner: "x"}
	downError = &driver.UnavailableError{Err: errors.New("silent")}
)

func TestEndedWaitNamesObstacleOnce(t *testing.T) {
	t.Parallel()
	named := fmt.Errorf("%w: %w", context.Canceled, downError)
	for _, c := range []struct {
		err, last error
		want      string
	}{
		{context.Canceled, nil, "context canceled"},
		{context.Canceled, heldError, `context canceled: held by "x"`},
		{context.DeadlineExceeded, downError, "context deadline exceeded: silent"},
		{named, heldError, "context canceled: silent"},
		{driver.ErrClosed, heldError, "client is closed"},
	} {
		if got := driverkit.WithObstacle(c.err, c.last); got.Error() != c.want || !errors.Is(got, c.err) {
			t.Errorf("With(%v, %v) = %v, want %q", c.err, c.last, got, c.want)
		}
	}
	if err := driverkit.WithObstacle(nil, heldError); err != nil {
		t.Errorf("With(nil, %v) = %v, want an error that does not end the wait", heldError, err)
	}
}

// A driver may learn the holder's name after it has returned the error.
func TestErrorNamesHolderFoundLater(t *testing.T) {
	t.Parallel()
	held := &driver.HeldError{Owner: "x"}
	err := driverkit.WithObstacle(context.Canceled, held)
	held.Holder.Host = "web-3"
	if want := "context canceled: held by web-3"; err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
}

func TestSameObstacleIsReportedOnce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		last, now error
		want      bool
	}{
		{nil, heldError, true},
		{nil, downError, true},
		{heldError, heldError, false},
		{downError, downError, false},
		{heldError, downError, true},
		{downError, heldError, true},
	} {
		if got := driverkit.ObstacleChanged(c.last, c.now); got != c.want {
			t.Errorf("Changes(%v, %v) = %v", c.last, c.now, got)
		}
	}
}

func TestObstacleIsFoundInError(t *testing.T) {
	t.Parallel()
	for _, want := range []error{heldError, downError} {
		if got := driverkit.ObstacleIn(fmt.Errorf("set a: %w", want)); !errors.Is(got, want) {
			t.Errorf("In() = %v, want %v", got, want)
		}
	}
	if got := driverkit.ObstacleIn(driver.ErrLost); got != nil {
		t.Errorf("In(%v) = %v", driver.ErrLost, got)
	}
}
