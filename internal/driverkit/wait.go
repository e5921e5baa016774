package driverkit

import (
	"context"
	"errors"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// ErrRetryNow means that something has changed, so that the caller should ask again at once.
var ErrRetryNow = errors.New("the line has changed")

// Wait holds the obstacle of one Acquire.
type Wait struct {
	Report func(error) // Request.OnObstacle
	Last   error       // the last obstacle
}

// SetObstacle records the present obstacle. If its kind has changed, Note reports it to the caller.
func (w *Wait) SetObstacle(err error) {
	if w.Report != nil && ObstacleChanged(w.Last, err) {
		w.Report(err)
	}
	w.Last = err
}

// KeepLaneError records err if it comes from a Lane in which the wait has ended, and there was no other obstacle
// before.
func (w *Wait) KeepLaneError(err error) {
	if _, crowd := errors.AsType[noTurnError](err); crowd && w.Last == nil {
		w.Last = err
	}
}

// Err returns nil while the wait may continue. Once ctx has ended it returns the error of ctx with the last
// obstacle, and ErrClosed once the driver is closed.
func (w *Wait) Err(ctx context.Context, c *Calls) error {
	if c.Alive.Err() != nil {
		return driver.ErrClosed
	}
	return WithObstacle(ctx.Err(), w.Last)
}

// RetryUntilWon calls try until it returns nil for a lock, or a lasting error, or the wait ends. It tries again at
// once after ErrRetryNow, and otherwise after a pause. With once it tries once.
func (w *Wait) RetryUntilWon(caller context.Context, c *Calls, once bool, try func(context.Context) error) error {
	ctx, cancel := context.WithCancel(caller)
	defer cancel()
	defer context.AfterFunc(c.Alive, cancel)()
	for pause := pace.ShortPause; ; {
		err := try(ctx)
		if err == nil {
			return nil
		}
		w.KeepLaneError(err)
		over := w.Err(caller, c)
		switch {
		case over != nil:
			return over
		case errors.Is(err, ErrRetryNow):
			pause = pace.ShortPause
			continue
		case once || IsPermanent(err):
			return err
		}
		w.SetObstacle(err)
		Sleep(ctx, pause)
		pause = min(2*pause, pace.LongPause)
	}
}

// TakeTurn calls ask for a claim of req, in its turn in l. If ask returns a claim or holder that is ahead, TakeTurn
// gives up the turn and calls await, which waits for the end of the one ahead. TakeTurn returns nil when nothing is
// ahead. A claim is urgent if others wait for it, or if it can expire. A request with NoWait waits for its turn no
// longer than for an answer.
func TakeTurn[T any](ctx context.Context, l *Lane, req driver.Request, urgent bool,
	ask func(context.Context) (ahead *T, err error), await func(context.Context, *T) error,
) error {
	rank := Later
	if urgent {
		rank = Soon
	}
	turn := ctx
	if req.NoWait {
		var cancel context.CancelFunc
		turn, cancel = context.WithTimeout(ctx, pace.RequestTime(req.TTL, pace.Members))
		defer cancel()
	}
	var ahead *T
	err := l.Do(turn, rank, nil, func() (err error) {
		ahead, err = ask(ctx)
		return err
	})
	if err != nil || ahead == nil {
		return err
	}
	return await(ctx, ahead)
}
