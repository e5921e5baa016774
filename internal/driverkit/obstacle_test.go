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
	held = &driver.HeldError{Owner: "x"}
	down = &driver.UnavailableError{Err: errors.New("silent")}
)

func TestEndedWaitNamesObstacleOnce(t *testing.T) {
	t.Parallel()
	named := fmt.Errorf("%w: %w", context.Canceled, down)
	for _, c := range []struct {
		err, last error
		want      string
	}{
		{context.Canceled, nil, "context canceled"},
		{context.Canceled, held, `context canceled: held by "x"`},
		{context.DeadlineExceeded, down, "context deadline exceeded: silent"},
		{named, held, "context canceled: silent"},
		{driver.ErrClosed, held, "client is closed"},
	} {
		if got := driverkit.WithObstacle(c.err, c.last); got.Error() != c.want || !errors.Is(got, c.err) {
			t.Errorf("With(%v, %v) = %v, want %q", c.err, c.last, got, c.want)
		}
	}
	if err := driverkit.WithObstacle(nil, held); err != nil {
		t.Errorf("With(nil, %v) = %v: the wait is not over", held, err)
	}
}

// A driver may learn the holder's name after it has returned the error.
func TestErrorNamesLaterKnownHolder(t *testing.T) {
	t.Parallel()
	held := &driver.HeldError{Owner: "x"}
	err := driverkit.WithObstacle(context.Canceled, held)
	held.Holder.Host = "web-3"
	if want := "context canceled: held by web-3"; err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
}

func TestSameKindOfObstacleIsNoChange(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		last, now error
		want      bool
	}{{nil, held, true}, {nil, down, true}, {held, held, false}, {down, down, false}, {held, down, true}, {down, held, true}} {
		if got := driverkit.ObstacleChanged(c.last, c.now); got != c.want {
			t.Errorf("Changes(%v, %v) = %v", c.last, c.now, got)
		}
	}
}

func TestObstacleIsFoundInError(t *testing.T) {
	t.Parallel()
	for _, want := range []error{held, down} {
		if got := driverkit.ObstacleIn(fmt.Errorf("set a: %w", want)); !errors.Is(got, want) {
			t.Errorf("In() = %v, want %v", got, want)
		}
	}
	if got := driverkit.ObstacleIn(driver.ErrLost); got != nil {
		t.Errorf("In(%v) = %v", driver.ErrLost, got)
	}
}
