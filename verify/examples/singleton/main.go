// Singleton runs a loop on one of several machines. The others stand by, and one of them continues if the
// first ends or fails.
//
//	HOLDFAST_BACKEND=redis://localhost:6379 go run .
package main

import (
	"context"
	"errors"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast"
	_ "github.com/holdfast-go/holdfast/redis" // redis:// and related URLs
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := run(ctx, os.Getenv("HOLDFAST_BACKEND"), runSchedule); err != nil {
		log.Fatal(err)
	}
}

// run calls lead on one machine at a time, until ctx ends or lead returns by itself.
func run(ctx context.Context, backend string, lead func(context.Context, *holdfast.Lease) error) error {
	locks, err := holdfast.Open(ctx, backend, nil)
	if err != nil {
		return err
	}
	defer locks.Close()
	// If this machine fails, another one continues after the TTL. If it is only cut off from the locks, lead
	// has the Margin to stop before that.
	opts := &holdfast.AcquireOptions{TTL: 15 * time.Second, Margin: 3 * time.Second}
	for {
		err := locks.Do(ctx, "scheduler", opts, lead) // waits for its turn, also through an outage
		switch {
		case ctx.Err() != nil:
			return nil // lead has returned, and the lock is free
		case errors.Is(err, holdfast.ErrLost):
			log.Printf("standing by again: %v", err)
		default:
			return err
		}
	}
}

// runSchedule is the loop with your work. Pass the token to the storages that it writes to, and return soon
// after ctx has ended.
func runSchedule(ctx context.Context, lease *holdfast.Lease) error {
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	for {
		log.Printf("looking for jobs that are due, with token %d", lease.Token())
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil // Do returns the reason
		}
	}
}
