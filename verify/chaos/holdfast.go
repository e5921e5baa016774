//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast"
)

// holdfasts is Holdfast as a client process uses it.
type holdfasts struct {
	order   *order
	rec     *recorder
	spans   []span
	current atomic.Pointer[holdfast.Client]
	slow    atomic.Int64 // how long each hook sleeps, in ns
}

func openHoldfast(ctx context.Context, o *order, rec *recorder, spans []span) (*holdfasts, error) {
	h := &holdfasts{order: o, rec: rec, spans: spans}
	client, err := h.open(ctx)
	if err != nil {
		return nil, err
	}
	h.current.Store(client)
	return h, nil
}

// open retries until the locks can be opened: nodes may be away.
func (h *holdfasts) open(ctx context.Context) (*holdfast.Client, error) {
	open := h.order.Schedule.backend().open
	drv, err := open(ctx, h.order)
	for ; err != nil; drv, err = open(ctx, h.order) {
		if ctx.Err() != nil {
			return nil, err
		}
		sleep(ctx, 100*time.Millisecond)
	}
	return holdfast.New(drv, &holdfast.Options{Hooks: holdfast.Hooks{
		Renewed: func(e holdfast.RenewedEvent) {
			h.rec.record(event{Kind: renewed, Key: e.Key, ID: e.Owner, Until: until(e.Deadline), Err: text(e.Err)})
			h.dawdle()
		},
		Acquired: func(holdfast.AcquiredEvent) { h.dawdle() },
		Lost:     func(holdfast.LostEvent) { h.dawdle() },
		Released: func(holdfast.ReleasedEvent) { h.dawdle() },
	}})
}

func (h *holdfasts) dawdle() { time.Sleep(time.Duration(h.slow.Load())) }

func (h *holdfasts) lock(ctx context.Context, key string) (held, error) {
	lease, err := h.current.Load().Acquire(ctx, key, &holdfast.AcquireOptions{TTL: time.Duration(h.order.Schedule.TTL)})
	if err != nil {
		return held{}, err
	}
	trust := lease.Context()
	context.AfterFunc(trust, func() { // and not from the Lost hook, which may come late
		if why := context.Cause(trust); errors.Is(why, holdfast.ErrLost) {
			h.rec.record(event{Kind: lost, Key: key, ID: lease.Owner(), Err: why.Error()})
		}
	})
	return held{token: lease.Token(), id: lease.Owner(), until: until(lease.Deadline()), lease: lease, release: lease.Release}, nil
}

// The orders that a process takes.
const (
	reopen    = "reopen" // close the client in the middle of its work, and go on with another
	slowHooks = "hooks " // and how long each hook takes from now on
)

func (h *holdfasts) obey(ctx context.Context, order string) error {
	if by, ok := strings.CutPrefix(order, slowHooks); ok {
		d, err := time.ParseDuration(by)
		h.slow.Store(int64(d))
		return err
	}
	if order != reopen {
		return fmt.Errorf("no order %q", order)
	}
	next, err := h.open(ctx)
	if err != nil {
		return err
	}
	old := h.current.Swap(next) // before the event: a worker that asks after it uses the next client
	if s := spanAt(h.spans, mono()); s != nil {
		h.rec.record(event{Kind: closing, Key: s.key("h", 0)})
	}
	return old.Close()
}

func (h *holdfasts) close() { h.current.Load().Close() }
