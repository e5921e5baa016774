package engine

import (
	"errors"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/quorum"
)

var (
	errNoAnswer    = errors.New("no answer in time")
	errLateAnswers = errors.New("the answers came too late to be of use")
	errOvertaken   = errors.New("overtaken by a later request for the same lease")
)

// acquireError returns the error for a claim that ended with o.
func (c *claim) acquireError(o quorum.Outcome) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch o {
	case quorum.None: // only Close ends a seeking claim without an outcome
		return driver.ErrClosed
	case quorum.Busy:
		return c.heldError()
	}
	return c.unavailableCause()
}

// unavailableCause returns the error for missing answers. The caller holds mu.
func (c *claim) unavailableCause() error {
	if errors.Is(c.lastObstacle, driver.ErrUnavailable) {
		return c.lastObstacle
	}
	c.blameSilentNodes(c.engine.clock.Now())
	return c.unavailableError()
}

// cancelError returns the error for a claim whose caller gives up, with its obstacle if one is known.
func (c *claim) cancelError(end error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.state.Phase == quorum.Held:
		return end
	case errors.Is(c.lastObstacle, driver.ErrHeld): // a copy: the driver adds the holder to it, and the caller already has the reported one
		return driverkit.WithObstacle(end, c.heldError())
	case c.lastObstacle != nil:
		return driverkit.WithObstacle(end, c.lastObstacle)
	}
	c.blameSilentNodes(c.engine.clock.Now())
	if u := c.unavailableError(); len(c.engine.nodes)-len(u.Nodes) < u.Need {
		return driverkit.WithObstacle(end, u)
	}
	return end
}

// heldError returns the HeldError for the last denial. The caller holds mu.
func (c *claim) heldError() *driver.HeldError {
	return &driver.HeldError{
		Owner: c.holder, Since: quorum.Since(c.holder), Remaining: time.Duration(c.left), Waiters: c.waiters, Kept: quorum.IsMinHoldID(c.holder),
	}
}

// unavailableError names the nodes that failed or are overdue, including failures that are still in the inbox.
// The caller holds mu.
func (c *claim) unavailableError() *driver.UnavailableError {
	u := &driver.UnavailableError{Need: quorum.Majority(len(c.engine.nodes))}
	errs := slices.Clone(c.errs)
	for _, a := range c.inbox[c.read:] {
		if a.Kind == quorum.Failed {
			errs[a.Node] = a.Err
		}
	}
	for i, n := range c.engine.nodes {
		if err := errs[i]; err != nil {
			u.Nodes = append(u.Nodes, driver.NodeError{Node: n.Name(), Err: err})
		}
	}
	if len(u.Nodes) == 0 {
		u.Err = errLateAnswers
	}
	return u
}

// noteObstacle records why a step did not succeed. It queues the obstacle of a round for a report if its kind
// differs from the last one. The caller holds mu.
func (c *claim) noteObstacle(do quorum.Actions) {
	before := c.lastObstacle
	switch do.Outcome {
	case quorum.Won, quorum.Renewed:
		c.lastObstacle = nil
	case quorum.Unavailable, quorum.NotRenewed, quorum.NotReleased:
		c.lastObstacle = c.unavailableError()
	}
	switch do.Obstacle {
	case quorum.None:
		return
	case quorum.Busy:
		c.lastObstacle = c.heldError()
	case quorum.Unavailable:
		c.lastObstacle = c.unavailableError()
	}
	if c.onObstacle == nil || !driverkit.ObstacleChanged(before, c.lastObstacle) {
		return
	}
	c.unreported = append(c.unreported, c.lastObstacle)
	if !c.reporting {
		c.reporting = c.engine.spawn(c.sendReports)
	}
}

// sendReports calls onObstacle with each unreported obstacle.
func (c *claim) sendReports() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.unreported) > 0 {
		next, report := c.unreported[0], c.onObstacle
		c.unreported = c.unreported[1:]
		c.mu.Unlock()
		report(next)
		c.mu.Lock()
	}
	c.reporting = false
}

// endReports drops unreported obstacles, because no caller waits any more.
func (c *claim) endReports() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.onObstacle, c.unreported = nil, nil
}

// spawn runs fn in a goroutine that Close waits for. Once Close has begun, it does nothing and returns false.
func (e *Engine) spawn(fn func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.spawned.Go(fn)
	}
	return !e.closed
}
