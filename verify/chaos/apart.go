//go:build linux

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

// In classes with the duty apart, even clients have one prefix and odd clients a prefix below it. Both use
// locks of the same names, or names that look like parts of the other prefix. They are two independent
// services.

// nestedNames are the locks of the clients of each side.
var nestedNames = [sides][]string{
	{"team", "team/job-7", "x", "team/x", "job-7", "team/team"},
	{"x", "job-7", "team", "team/x", "x/y", "lock-0000000001"},
}

// nestedPrefix returns the prefix of one side's locks in a window.
func nestedPrefix(s *span, side int) string {
	return "w" + strconv.Itoa(s.index) + []string{"/locks", "/locks/team"}[side]
}

// apartKey returns the name of a side's lock in the history.
func apartKey(s *span, keys, side, n int) string { return s.key("h", side*keys+n) }

// separatedClients holds the client of a process in classes with the duty apart.
type separatedClients struct {
	side int

	mu     sync.Mutex // guards the fields below
	window int
	client *holdfast.Client // client of window; nil: none yet
}

// clientFor returns the client of a window, and closes the client of an earlier window.
func (a *separatedClients) clientFor(ctx context.Context, h *holdfasts, s *span) (*holdfast.Client, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.client != nil && a.window == s.index {
		return a.client, nil
	}
	if a.client != nil {
		a.client.Close()
	}
	drv, err := h.order.Schedule.backend().apart(h.order, nestedPrefix(s, a.side))
	if err != nil {
		return nil, err
	}
	a.window = s.index
	a.client, err = h.openAs(drv, holdfast.Holder{Program: sideName(a.side)})
	return a.client, err
}

func (a *separatedClients) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.client != nil {
		a.client.Close()
	}
}

func sideName(side int) string { return "side" + strconv.Itoa(side) }

// lockApart acquires the lock of that name, and sometimes inspects the locks first.
func (h *holdfasts) lockApart(ctx context.Context, s *span, n int, as lockRequest) (heldLock, error) {
	side := h.apart.side
	client, err := h.apart.clientFor(ctx, h, s)
	if err != nil {
		return heldLock{}, err
	}
	key, name := apartKey(s, h.order.Schedule.Keys, side, n), nestedNames[side][n]
	if rand.N(4) == 0 {
		h.lookAt(ctx, client, key, name)
	}
	lease, err := client.Acquire(ctx, name, h.requestOptions(as))
	if err != nil {
		return heldLock{}, err
	}
	return h.newHeld(lease, key), nil
}

// lookAt records locks and holders of the other side that this side can see.
func (h *holdfasts) lookAt(ctx context.Context, client *holdfast.Client, key, name string) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	stranger := func(what string, st holdfast.Status) {
		if st.Held && st.Holder.Program != sideName(h.apart.side) {
			h.rec.record(event{Kind: strange, Key: key, Err: fmt.Sprintf("%s shows %q, held by %+v", what, st.Key, st.Holder)})
		}
	}
	if st, err := client.Inspect(ctx, name); err == nil {
		stranger("Inspect", st)
	}
	for st, err := range client.List(ctx, "") {
		if err != nil {
			return
		}
		stranger("List", st)
	}
}

// locksHeldOnBothSides lists the locks of both sides that are held.
func locksHeldOnBothSides(ctx context.Context, open func(prefix string) (driver.Driver, error), s *span, ttl time.Duration) (all []string, err error) {
	for side := range sides {
		d, err := open(nestedPrefix(s, side))
		if err != nil {
			return nil, err
		}
		found, err := heldLocks(ctx, d, "", ttl)
		d.Close()
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}
