//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

// holdfasts runs Holdfast in a client process.
type holdfasts struct {
	order   *order
	rec     *recorder
	spans   []span
	current atomic.Pointer[holdfast.Client]
	slow    atomic.Int64 // delay of each hook, in ns
	opened  sync.Once
	limits  driver.Limits
	adopts  bool       // processes can adopt each other's leases
	leases  sync.Map   // held leases by owner
	noting  sync.Mutex // held while a deadline is read and recorded
	apart   separatedClients
	resign  chan struct{} // tells a leader to resign
}

func openHoldfast(ctx context.Context, o *order, rec *recorder, spans []span) (*holdfasts, error) {
	h := &holdfasts{order: o, rec: rec, spans: spans, apart: separatedClients{side: o.Number % sides}, resign: make(chan struct{}, 1)}
	client, err := h.open(ctx)
	if err != nil {
		return nil, err
	}
	h.current.Store(client)
	return h, nil
}

// open retries until the locks can be opened: nodes may be down.
func (h *holdfasts) open(ctx context.Context) (*holdfast.Client, error) {
	open := h.order.Schedule.backend().open
	drv, err := open(ctx, h.order)
	for ; err != nil; drv, err = open(ctx, h.order) {
		if ctx.Err() != nil {
			return nil, err
		}
		sleep(ctx, 100*time.Millisecond)
	}
	h.opened.Do(func() { h.limits, h.adopts = drv.Limits(), canAdopt(drv) })
	return h.openAs(drv, holdfast.Holder{})
}

// openAs opens a client with this holder; the zero value: the default holder.
func (h *holdfasts) openAs(drv driver.Driver, holder holdfast.Holder) (*holdfast.Client, error) {
	return holdfast.New(drv, &holdfast.Options{Holder: holder, Logger: slog.New(slog.DiscardHandler), Hooks: holdfast.Hooks{
		Renewed: func(e holdfast.RenewedEvent) {
			if l, ok := h.leases.Load(e.Owner); ok {
				h.recordTrust(l.(heldLock), e.Err)
			}
			h.delayHook()
		},
		Acquired: func(holdfast.AcquiredEvent) { h.delayHook() },
		Lost:     func(holdfast.LostEvent) { h.delayHook() },
		Released: func(holdfast.ReleasedEvent) { h.delayHook() },
		Node: func(e holdfast.NodeEvent) {
			if s := spanAt(h.spans, monotonicNow()); s != nil && (e.State == holdfast.NodeDown || e.State == holdfast.NodeStalled) {
				h.rec.record(event{Kind: blamed, Key: s.key("h", 0), Err: fmt.Sprintf("%s is %s: %v", e.Node, e.State, e.Err)})
			}
		},
	}})
}

func (h *holdfasts) delayHook() { time.Sleep(time.Duration(h.slow.Load())) }

// recordTrust records the current end of trust of a lease, because a hook may come late and a failed renewal
// may have left less.
func (h *holdfasts) recordTrust(l heldLock, err error) {
	h.noting.Lock() // keep deadlines in order
	defer h.noting.Unlock()
	h.rec.record(event{Kind: renewed, Key: l.key, ID: l.id, Until: monotonicOf(l.lease.Deadline()), Err: errorText(err)})
}

func (h *holdfasts) takeLock(ctx context.Context, key string, as lockRequest) (heldLock, error) {
	lease, err := h.current.Load().Acquire(ctx, key, h.requestOptions(as))
	if err != nil {
		return heldLock{}, err
	}
	return h.newHeld(lease, key), nil
}

// requestOptions returns the options for a request.
func (h *holdfasts) requestOptions(as lockRequest) *holdfast.AcquireOptions {
	return &holdfast.AcquireOptions{TTL: as.ttl, MinHold: as.least, Adoptable: as.adoptable}
}

// newHeld returns a lease as a worker sees it; key names the lock in the history.
func (h *holdfasts) newHeld(lease *holdfast.Lease, key string) heldLock {
	l := heldLock{
		key: key, token: lease.Token(), id: lease.Owner(), until: monotonicOf(lease.Deadline()), lease: lease, release: lease.Release,
	}
	h.leases.Store(l.id, l)
	trust := lease.Context()
	context.AfterFunc(trust, func() { // not from the Lost hook, which may come late
		if why := context.Cause(trust); errors.Is(why, holdfast.ErrLost) {
			h.rec.record(event{Kind: lost, Key: key, ID: l.id, Err: why.Error()})
		}
		h.leases.Delete(l.id)
	})
	return l
}

// allowedTTLs returns the TTLs that a lease may have.
func (h *holdfasts) allowedTTLs() []time.Duration {
	ttl := time.Duration(h.order.Schedule.TTL)
	if h.limits.ChangeTTL {
		return []time.Duration{ttl / 5, ttl, time.Duration(h.order.Schedule.MaxTTL)}
	}
	return []time.Duration{max(ttl/2, h.limits.MinTTL).Round(max(h.limits.Granularity, time.Millisecond)), ttl}
}

// changeTTL changes the TTL of a lease from ttl to another one if it may, and sometimes does not wait for the
// answer.
func (h *holdfasts) changeTTL(ctx context.Context, l heldLock, ttl time.Duration) {
	if h.limits.ChangeTTL {
		ttl = pickRandom(h.allowedTTLs())
	}
	ctx, cancel := context.WithTimeout(ctx, pickRandom([]time.Duration{5 * time.Millisecond, 100 * time.Millisecond, time.Second}))
	defer cancel()
	h.recordTrust(l, l.lease.Extend(ctx, ttl))
}

// The orders for a process.
const (
	reopen    = "reopen" // close the client in the middle of its work, and use another
	slowHooks = "hooks " // followed by the delay of each hook
	crowd     = "crowd " // followed by the number of callers
)

func (h *holdfasts) executeOrder(ctx context.Context, order string) error {
	if by, ok := strings.CutPrefix(order, slowHooks); ok {
		d, err := time.ParseDuration(by)
		h.slow.Store(int64(d))
		return err
	}
	if callers, ok := strings.CutPrefix(order, crowd); ok {
		n, err := strconv.Atoi(callers)
		if s := spanAt(h.spans, monotonicNow()); s != nil {
			go h.runCrowd(ctx, s, n)
		}
		return err
	}
	if order == resign {
		h.resign <- struct{}{}
		return nil
	}
	if order != reopen {
		return fmt.Errorf("no order %q", order)
	}
	next, err := h.open(ctx)
	if err != nil {
		return err
	}
	old := h.current.Swap(next) // before the event: later requests use the next client
	if s := spanAt(h.spans, monotonicNow()); s != nil {
		h.rec.record(event{Kind: closing, Key: s.key("h", 0)})
	}
	return old.Close()
}

// runCrowd makes callers ask at once, each for another lock, until the window ends.
func (h *holdfasts) runCrowd(ctx context.Context, s *span, callers int) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(s.end-int64(tail)-monotonicNow()))
	defer cancel()
	client, errs := h.current.Load(), make(chan error, callers)
	var freed atomic.Int64
	for i := range callers {
		go func() {
			l, err := client.Acquire(ctx, s.key("c", i), h.requestOptions(lockRequest{ttl: time.Duration(h.order.Schedule.TTL)}))
			if err == nil && l.Release(ctx) == nil {
				freed.Add(1)
			}
			errs <- err
		}()
	}
	e := event{Kind: crowded, Key: s.key("h", 0), Callers: callers}
	for range callers {
		switch err := <-errs; {
		case err == nil:
			e.Served++
		case e.Err == "":
			e.Err = err.Error()
		}
	}
	e.Freed = int(freed.Load())
	h.rec.record(e)
}

func (h *holdfasts) close() {
	h.current.Load().Close()
	h.apart.close()
}
