package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
)

// signalContext returns a context that ends with the signals that end a wait; its
// cause is the exitcode.Interruption.
func signalContext() (context.Context, context.CancelFunc) {
	return interruptibleBy(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
}

// interruptibleBy returns a context that ends with one of the signals.
func interruptibleBy(which ...os.Signal) (context.Context, context.CancelFunc) {
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

// interruptedBy is err, or the signal that led to it.
func interruptedBy(ctx context.Context, err error) error {
	why, ok := errors.AsType[exitcode.Interruption](context.Cause(ctx))
	if _, said := errors.AsType[exitcode.Interruption](err); !ok || said || err == nil {
		return err
	}
	return why
}

// waitEnded is the end of a wait for the lock name by err, or by the signal that led to it.
func waitEnded(ctx context.Context, name string, err error) error {
	if why, ok := errors.AsType[exitcode.Interruption](interruptedBy(ctx, err)); ok {
		return why.Waiting(name, err, "no lock was taken")
	}
	return err
}
