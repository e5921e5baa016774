package holdfast

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/pace"
)

// Shutdown lets the holders finish: it rejects new leases and new waits with
// ErrClosed, ends the waits that have begun, goes on renewing what is held, and
// blocks until all of it is released or lost, or ctx ends. Then it closes the client
// as Close does, which releases what is still held. A nested hold of a lease that
// lives is no new lease.
//
// Shutdown returns nil when nothing was held any more, also when Close came
// meanwhile and released it; otherwise an error that matches ctx.Err(). It may
// be called during Close, and again.
func (c *Client) Shutdown(ctx context.Context) error {
	c.mu.Lock()
	c.stopAcquiring()
	c.mu.Unlock()
	var err error
	select {
	case <-c.vacant:
	case <-ctx.Done():
		c.mu.Lock()
		held := 0
		for _, t := range c.heldTerms() {
			if !t.holder.isPart {
				held++
			}
		}
		c.mu.Unlock()
		if held > 0 {
			err = fmt.Errorf("%w: locks still held, and released: %d", ctx.Err(), held)
		}
	}
	return wrap("shutdown", "", cmp.Or(err, c.close()))
}

// Close releases what the client holds, a lock with MinHold after that time, ends
// every wait with ErrClosed and closes the driver. The context of a lease that it
// releases ends with a cause that matches ErrLost and ErrClosed, because another
// process may have the lock from then on. Shutdown lets the holders finish first.
//
// Close blocks until the service has answered what was asked and released, and
// the hooks have been called, for four seconds at most. A second Close waits for
// the first, and returns nil.
func (c *Client) Close() error { return wrap("close", "", c.close()) }

func (c *Client) close() error {
	c.mu.Lock()
	if c.closing {
		c.mu.Unlock()
		<-c.closed
		return nil
	}
	c.closing = true
	c.stopAcquiring()
	held := c.heldTerms()
	c.mu.Unlock()
	defer close(c.closed)

	ctx, cancel := context.WithTimeout(context.Background(), pace.CloseTime())
	defer cancel()
	c.releaseAll(ctx, held)
	select {
	case <-c.vacant: // every caller has finished asking and releasing
	case <-ctx.Done():
	}
	c.stop()
	err := c.drv.Close()
	c.unreserveDriver()
	c.tasks.Wait()
	<-c.vacant // soon: the driver has ended what was under way
	told, cancel := context.WithTimeout(context.Background(), pace.EventsTime())
	defer cancel()
	c.events.drain(told)
	return err
}

// stopAcquiring rejects new leases, and ends all waits and inquiries. The caller holds mu.
func (c *Client) stopAcquiring() {
	if c.ending {
		return
	}
	c.ending = true
	for _, q := range c.slotQueues {
		q.dismissWaiters(ErrClosed)
	}
	for _, s := range c.locks {
		s.dismissWaiters()
		if s.asking != nil && s.asking.cancel != nil {
			s.asking.cancel(ErrClosed)
		}
	}
	if len(c.locks) == 0 {
		close(c.vacant)
	}
}

// heldTerms returns the terms that the client holds. The caller holds mu.
func (c *Client) heldTerms() []*term {
	var held []*term
	for _, s := range c.locks {
		if s.term != nil {
			held = append(held, s.term)
		}
	}
	return held
}

// releaseAll ends and releases terms, some hundred at a time.
func (c *Client) releaseAll(ctx context.Context, held []*term) {
	var all sync.WaitGroup
	gate := make(chan struct{}, 256)
	for _, t := range held {
		gate <- struct{}{}
		all.Go(func() {
			defer func() { <-gate }()
			c.mu.Lock()
			end := t.end(errReleasedByClose, time.Now())
			c.mu.Unlock()
			end.sendEvents(c)
			c.releaseOnService(ctx, end)
		})
	}
	all.Wait()
}
