package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Calls implements the driver calls that are the same for all kinds of nodes. A driver embeds Calls rather than
// the engine, because the engine also has methods for internal use.
type Calls struct {
	engine   *Engine
	refusal  error
	describe func(ctx context.Context, owner string) driver.Holder
}

// NewCalls returns the calls of a driver over e. If refusal is not nil, every call that changes a lock returns
// refusal and does nothing. describe returns the holder behind an owner id, and may ask the nodes.
func NewCalls(e *Engine, refusal error, describe func(ctx context.Context, owner string) driver.Holder) Calls {
	return Calls{e, refusal, describe}
}

// Acquire implements driver.Driver.
func (c *Calls) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	if c.refusal != nil {
		return driver.Grant{}, c.refusal
	}
	if report := req.OnObstacle; report != nil {
		req.OnObstacle = func(err error) {
			c.describeHolderIn(ctx, err)
			report(err)
		}
	}
	g, err := c.engine.Acquire(ctx, req)
	c.describeHolderIn(ctx, err)
	return g, err
}

// describeHolderIn adds the description of the holder to a HeldError. ctx may have ended.
func (c *Calls) describeHolderIn(ctx context.Context, err error) {
	if held, ok := errors.AsType[*driver.HeldError](err); ok {
		held.Holder = c.describe(context.WithoutCancel(ctx), held.Owner)
	}
}

// Renew implements driver.Driver.
func (c *Calls) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	if c.refusal != nil {
		return slices.Repeat([]driver.Renewal{{Err: c.refusal}}, len(grants))
	}
	return c.engine.Renew(ctx, grants)
}

// Release implements driver.Driver.
func (c *Calls) Release(ctx context.Context, g driver.Grant, keep time.Duration) error {
	if c.refusal != nil {
		return c.refusal
	}
	return c.engine.Release(ctx, g, keep)
}

// Adopt implements driver.Adopter.
func (c *Calls) Adopt(ctx context.Context, g driver.Grant) (driver.Grant, error) {
	if c.refusal != nil {
		return driver.Grant{}, c.refusal
	}
	return c.engine.Adopt(ctx, g)
}

// Detach implements driver.Adopter.
func (c *Calls) Detach(g driver.Grant) { c.engine.Detach(g) }
