package obstacle_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/obstacle"
)

var (
	held = &driver.HeldError{Owner: "x"}
	down = &driver.UnavailableError{Err: errors.New("silent")}
)

func TestAnEndedWaitNamesTheObstacleOnce(t *testing.T) {
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
		if got := obstacle.With(c.err, c.last); got.Error() != c.want || !errors.Is(got, c.err) {
			t.Errorf("With(%v, %v) = %v, want %q", c.err, c.last, got, c.want)
		}
	}
	if err := obstacle.With(nil, held); err != nil {
		t.Errorf("With(nil, %v) = %v: the wait is not over", held, err)
	}
}

// TestTheHolderIsNamedWhenTheErrorIsRead, as a driver may learn who that is later.
func TestTheHolderIsNamedWhenTheErrorIsRead(t *testing.T) {
	t.Parallel()
	held := &driver.HeldError{Owner: "x"}
	err := obstacle.With(context.Canceled, held)
	held.Holder.Host = "web-3"
	if want := "context canceled: held by web-3"; err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
}

func TestAnObstacleOfTheSameKindIsNoNews(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		last, now error
		want      bool
	}{{nil, held, true}, {nil, down, true}, {held, held, false}, {down, down, false}, {held, down, true}, {down, held, true}} {
		if got := obstacle.Changes(c.last, c.now); got != c.want {
			t.Errorf("Changes(%v, %v) = %v", c.last, c.now, got)
		}
	}
}

func TestTheObstacleIsFoundInAnError(t *testing.T) {
	t.Parallel()
	for _, want := range []error{held, down} {
		if got := obstacle.In(fmt.Errorf("set a: %w", want)); !errors.Is(got, want) {
			t.Errorf("In() = %v, want %v", got, want)
		}
	}
	if got := obstacle.In(driver.ErrLost); got != nil {
		t.Errorf("In(%v) = %v", driver.ErrLost, got)
	}
}
