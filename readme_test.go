package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/redlock"
)

// The README shows these functions; TestGoInThePagesIsCompiled compares the two.

func payInvoice(ctx context.Context, url string, pay func(context.Context, holdfast.Token) error) error {
	drv, err := redlock.OpenURL(ctx, url, nil) // "redis://localhost:6379" or "redlock://a:6379,b:6379,c:6379"
	if err != nil {
		return err
	}
	client, err := holdfast.New(drv, nil)
	if err != nil {
		return errors.Join(err, drv.Close())
	}
	defer client.Close() // releases what the client still holds

	return client.Do(ctx, "invoice/42", nil, func(ctx context.Context, lease *holdfast.Lease) error {
		return pay(ctx, lease.Token()) // UPDATE … SET fence = $1 WHERE id = 42 AND fence <= $1; an error where that changes no row
	}) // ctx ends when the lease is lost; its cause, and the error of Do then, match ErrLost
}

func tryReport(ctx context.Context, client *holdfast.Client, report func(context.Context) error) (err error) {
	lease, err := client.TryAcquire(ctx, "report", &holdfast.AcquireOptions{TTL: 8 * time.Second})
	if held, ok := errors.AsType[*holdfast.HeldError](err); ok {
		return fmt.Errorf("busy: %v holds the report, and %d wait for it", held.Holder, held.Waiters)
	}
	if err != nil {
		return err // an UnavailableError names each node that did not answer, and why
	}
	defer func() { err = errors.Join(err, lease.Release(ctx)) }() // also where report panics
	return report(lease.Context())                                // which ends when the lease does, and not with ctx
}

var _, _ = payInvoice, tryReport
