package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/election"
	_ "github.com/holdfast-go/holdfast/redis"
)

// The README shows the body of payInvoice, docs/from-redsync.md shows tryReport; TestGoInPagesCompiles compares them.

func payInvoice(ctx context.Context, pay func(ctx context.Context, token holdfast.Token, owner string) error) error {
	client, err := holdfast.Open(ctx, "redis://localhost:6379", nil) // one client for the whole process; or "redlock://a:6379,b:6379,c:6379"
	if err != nil {
		return err
	}
	defer client.Close() // Shutdown lets the holders finish first
	return client.Do(ctx, "invoice/42", nil, func(ctx context.Context, lease *holdfast.Lease) error {
		return pay(ctx, lease.Token(), lease.Owner()) // ctx ends when the lease is lost; Do then returns an error that matches ErrLost
	})
}

func tryReport(ctx context.Context, client *holdfast.Client, report func(context.Context) error) (err error) {
	lease, err := client.TryAcquire(ctx, "report", &holdfast.AcquireOptions{TTL: 8 * time.Second})
	if held, ok := errors.AsType[*holdfast.HeldError](err); ok {
		return fmt.Errorf("busy: %v holds the report, and %d clients wait for it", held.Holder, held.Waiters)
	}
	if err != nil {
		return err // an UnavailableError names each node that did not answer, and why
	}
	defer func() { err = errors.Join(err, lease.Release(ctx)) }() // also if report panics
	return report(lease.Context())                                // ends with the lease; ctx does not
}

// docs/kinds.md shows the body of moveMoney.

func moveMoney(ctx context.Context, client *holdfast.Client, transfer func(ctx context.Context, from, to holdfast.Token) error) error {
	leases, err := client.AcquireAll(ctx, []string{"account/7", "account/3"}, nil)
	if err != nil {
		return err
	}
	defer leases.Release(ctx)
	return transfer(leases.Context(), leases.Lease("account/7").Token(), leases.Lease("account/3").Token())
}

// docs/kinds.md shows the body of serveThumbnails.

func serveThumbnails(ctx context.Context, client *holdfast.Client, serve func(ctx context.Context, port int) error) error {
	lease, err := client.Semaphore("thumbnails", 3).Acquire(ctx, nil)
	if err != nil {
		return err
	}
	defer lease.Release(ctx)
	return serve(lease.Context(), 8000+lease.Slot())
}

// docs/kinds.md shows the body of lead.

func lead(ctx context.Context, client *holdfast.Client, schedule func(ctx context.Context, term holdfast.Token) error) error {
	term, err := election.Campaign(ctx, client, "scheduler", "10.0.0.7:8080", nil)
	if err != nil {
		return err
	}
	defer term.Resign(ctx)
	return schedule(term.Context(), term.Term())
}

// docs/kinds.md shows Finish.

// Finish blocks until no worker works any more. Each worker must hold its lock before Finish starts.
func Finish(ctx context.Context, client *holdfast.Client, workers []string) error {
	leases, err := client.AcquireAll(ctx, workers, nil)
	if err != nil {
		return err
	}
	return leases.Release(ctx)
}

// docs/kinds.md shows read and write.

func read(ctx context.Context, client *holdfast.Client, show func(context.Context) error) error {
	return client.RWLock("catalogue", 16).DoRead(ctx, nil, func(ctx context.Context, _ *holdfast.Lease) error { return show(ctx) })
}

func write(ctx context.Context, client *holdfast.Client, change func(context.Context, holdfast.Token) error) error {
	return client.RWLock("catalogue", 16).DoWrite(ctx, nil, func(ctx context.Context, lease *holdfast.Lease) error { return change(ctx, lease.Token()) })
}

var _, _, _, _, _, _, _ = payInvoice, tryReport, moveMoney, serveThumbnails, lead, read, write
