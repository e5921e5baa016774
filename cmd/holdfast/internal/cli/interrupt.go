package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
)

// interruptible returns a context that ends with the signals that end a wait; its
// cause is the exitcode.Interruption.
func interruptible() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	go func() {
		select {
		case s := <-signals:
			cancel(exitcode.Interruption{Signal: s.(syscall.Signal)})
		case <-ctx.Done():
		}
	}()
	return ctx, func() { signal.Stop(signals); cancel(nil) }
}

// interruptedBy is err, or the signal that led to it.
func interruptedBy(ctx context.Context, err error) error {
	if why, ok := errors.AsType[exitcode.Interruption](context.Cause(ctx)); ok && err != nil {
		return why
	}
	return err
}
