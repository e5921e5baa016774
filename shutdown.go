package holdfast

import (
	"cmp"
	"context"
	"fmt"

	"github.com/holdfast-go/holdfast/internal/pace"
)

// Shutdown lets the holders finish. It rejects new leases and new waits with ErrClosed, ends the waits that
// have begun, and continues to renew the leases that are held. It blocks until all of them are released or
// lost, or ctx ends. Then it closes the client as Close does, which releases the remaining locks. A nested
// hold of a live lease does not count as a new lease.
//
// Shutdown returns nil if no lease was held in the end, also if Close released the last ones meanwhile;
// otherwise an error that matches ctx.Err(). It may be called during Close, and more than once.
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

// Close releases all leases of the client, ends every wait with ErrClosed and closes the driver. A lock with
// MinHold stays held for that time. The context of a lease that Close releases ends with a cause that matches
// ErrLost and ErrClosed, because another process may have the lock from then on. To let the holders finish
// first, call Shutdown.
//
// Close blocks until the service has answered all requests and releases, and the hooks have received all
// events, at most for four seconds. A second Close waits for the first, and returns nil.
func (c *Client) Close() error { return wrapError("close", "", c.close()) }

func (c *Client) close() error {
	if !c.closing.CompareAndSwap(false, true) {
		<-c.closed // no sync.Once: in a bubble of package synctest, its mutex does not count as a durable wait
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
	<-c.keeper.Vacant() // soon, because the driver has ended the pending calls
	told, cancel := context.WithTimeout(context.Background(), pace.EventsTime())
	defer cancel()
	c.events.drain(told)
	return err
}
