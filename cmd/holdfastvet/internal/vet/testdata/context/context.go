// Package context has work that ends with its lease, and work that does not.
package context

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/holdfast-go/holdfast"
)

func work(context.Context) error { return nil }

type store struct{ ctx context.Context }

func (s *store) withLock(ctx context.Context, fn func(context.Context, *holdfast.Lease) error) error {
	return nil
}

func ends(ctx context.Context, client *holdfast.Client) error {
	return client.Do(ctx, "k", nil, func(ctx context.Context, lease *holdfast.Lease) error {
		defer func() { work(context.WithoutCancel(ctx)) }()
		return work(ctx)
	})
}

func endsUnderAnotherName(ctx context.Context, client *holdfast.Client, s *store) error {
	var kept context.Context
	return client.Do(ctx, "k", nil, func(own context.Context, lease *holdfast.Lease) error {
		defer work(ctx) // is done also when the lease is lost
		go work(ctx)    // goes on after the lease
		slog.InfoContext(ctx, "begins")
		kept = own
		if ctx.Err() != nil {
			return work(context.WithoutCancel(ctx))
		}
		if err := work(lease.Context()); err != nil {
			return work(s.ctx)
		}
		return work(kept)
	})
}

func endsNot(ctx context.Context, client *holdfast.Client, s *store) error {
	err := client.Do(ctx, "k", nil, func(_ context.Context, lease *holdfast.Lease) error {
		return work(ctx) // want `ctx does not end when the lease is lost: use the context that the function gets with the lease`
	})
	if err != nil {
		return err
	}
	return s.withLock(ctx, func(own context.Context, _ *holdfast.Lease) error {
		short, cancel := context.WithTimeout(ctx, 1) // want `ctx does not end when the lease is lost`
		defer cancel()
		each := func() error {
			//holdfastvet:ignore the next line is not this one

			return work(ctx) // want `ctx does not end when the lease is lost`
		}
		if err := each(); err != nil {
			return work(ctx) //holdfastvet:ignore as the test wants
		}
		return work(short)
	})
}

func nested(ctx context.Context, client *holdfast.Client) error {
	return client.Do(ctx, "k", nil, func(outer context.Context, _ *holdfast.Lease) error {
		return client.Do(outer, "k2", nil, func(inner context.Context, _ *holdfast.Lease) error {
			return work(outer) // want `outer does not end when the lease is lost`
		})
	})
}

func handle(client *holdfast.Client) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		client.Do(r.Context(), "k", nil, func(ctx context.Context, _ *holdfast.Lease) error {
			if err := work(ctx); err != nil {
				return err
			}
			return work(r.Context()) // want `r.Context\(\) does not end when the lease is lost`
		})
	}
}
