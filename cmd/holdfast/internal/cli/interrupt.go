package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
)

// signalContext returns a context that ends on a signal that interrupts a wait; its cause is the
// exitcode.Interruption.
func signalContext() (context.Context, context.CancelFunc) {
	return contextUntilSignal(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
}

// contextUntilSignal returns a context that ends on one of these signals.
func contextUntilSignal(which ...os.Signal) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, which...)
	go func() {
		select {
		case s := <-signals:
			cancel(exitcode.Interruption{Signal: s.(syscall.Signal)})
		case <-ctx.Done():
		}
	}()
	return ctx, func() { signal.Stop(signals); cancel(nil) }
}

// signalOrError returns the signal that ended ctx, or err.
func signalOrError(ctx context.Context, err error) error {
	why, ok := errors.AsType[exitcode.Interruption](context.Cause(ctx))
	if _, said := errors.AsType[exitcode.Interruption](err); !ok || said || err == nil {
		return err
	}
	return why
}

// waitEnded returns the error of a wait for the lock name that ended by err, or by the signal that ended ctx.
func waitEnded(ctx context.Context, name string, err error) error {
	if why, ok := errors.AsType[exitcode.Interruption](signalOrError(ctx, err)); ok {
		return why.Waiting(name, err, "no lock was taken")
	}
	return err
}
