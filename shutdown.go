package holdfast

import (
	"cmp"
	"context"
	"fmt"

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
	c.keeper.StopAcquiring()
	var err error
	select {
	case <-c.keeper.Vacant():
	case <-ctx.Done():
		if held := c.keeper.HeldCount(); held > 0 {
			err = fmt.Errorf("%w: locks still held, and released: %d", ctx.Err(), held)
		}
	}
	return wrapError("shutdown", "", cmp.Or(err, c.close()))
}

// Close releases what the client holds, a lock with MinHold after that time, ends
// every wait with ErrClosed and closes the driver. The context of a lease that it
// releases ends with a cause that matches ErrLost and ErrClosed, because another
// process may have the lock from then on. Shutdown lets the holders finish first.
//
// Close blocks until the service has answered what was asked and released, and
// the hooks have been called, for four seconds at most. A second Close waits for
// the first, and returns nil.
func (c *Client) Close() error { return wrapError("close", "", c.close()) }

func (c *Client) close() error {
	if !c.closing.CompareAndSwap(false, true) {
		<-c.closed // no sync.Once: a bubble of package synctest sees no wait for its mutex
		return nil
	}
	defer close(c.closed)
	return c.closeAll()
}

// closeAll closes the client. It is called once.
func (c *Client) closeAll() error {
	c.keeper.StopAcquiring()
	ctx, cancel := context.WithTimeout(context.Background(), pace.CloseTime())
	defer cancel()
	c.keeper.ReleaseAll(ctx)
	select {
	case <-c.keeper.Vacant(): // every caller has finished asking and releasing
	case <-ctx.Done():
	}
	c.keeper.Stop()
	err := c.drv.Close()
	c.unreserveDriver()
	c.keeper.Wait()
	<-c.keeper.Vacant() // soon: the driver has ended what was under way
	told, cancel := context.WithTimeout(context.Background(), pace.EventsTime())
	defer cancel()
	c.events.drain(told)
	return err
}
