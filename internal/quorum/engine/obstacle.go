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
	errNoAnswer  = errors.New("no answer in time")
	errTooLate   = errors.New("the answers came too late to be of use")
	errOvertaken = errors.New("overtaken by a later request for the same lease")
)

// failure is the error for a claim that ended with o.
func (c *claim) failure(o quorum.Outcome) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch o {
	case quorum.None: // only Close overtakes a claim that seeks
		return driver.ErrClosed
	case quorum.Busy:
		return c.held()
	}
	return c.lack()
}

// lack returns why there were too few answers, or have been until now. The caller holds mu.
func (c *claim) lack() error {
	if errors.Is(c.last, driver.ErrUnavailable) {
		return c.last
	}
	c.blame(c.engine.clock.Now())
	return c.unavailable()
}

// gaveUp is the error for a claim that its caller gives up, with its obstacle if one
// is known.
func (c *claim) gaveUp(end error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.state.Phase == quorum.Held:
		return end
	case errors.Is(c.last, driver.ErrHeld): // the driver adds the holder to it, and what was reported is another's
		return driverkit.WithObstacle(end, c.held())
	case c.last != nil:
		return driverkit.WithObstacle(end, c.last)
	}
	c.blame(c.engine.clock.Now())
	if u := c.unavailable(); len(c.engine.nodes)-len(u.Nodes) < u.Need {
		return driverkit.WithObstacle(end, u)
	}
	return end
}

// held is what the last denial said. The caller holds mu.
func (c *claim) held() *driver.HeldError {
	return &driver.HeldError{
		Owner: c.holder, Since: quorum.Since(c.holder), Remaining: time.Duration(c.left), Waiters: c.waiters, Kept: quorum.IsKept(c.holder),
	}
}

// unavailable names the nodes that failed or are int64(pace.Overdue()), also those whose failure
// the claim has not learned yet. The caller holds mu.
func (c *claim) unavailable() *driver.UnavailableError {
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
		u.Err = errTooLate
	}
	return u
}

// noteObstacle notes why a step had no success. It reports the obstacle of a round if
// its kind is another than before. The caller holds mu.
func (c *claim) noteObstacle(do quorum.Actions) {
	before := c.last
	switch do.Outcome {
	case quorum.Won, quorum.Renewed:
		c.last = nil
	case quorum.Unavailable, quorum.NotRenewed, quorum.NotReleased:
		c.last = c.unavailable()
	}
	switch do.Obstacle {
	case quorum.None:
		return
	case quorum.Busy:
		c.last = c.held()
	case quorum.Unavailable:
		c.last = c.unavailable()
	}
	if c.report == nil || !driverkit.ObstacleChanged(before, c.last) {
		return
	}
	c.news = append(c.news, c.last)
	if !c.reports {
		c.reports = c.engine.spawn(c.sendReports)
	}
}

// sendReports calls report with the obstacle that there is.
func (c *claim) sendReports() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.news) > 0 {
		next, report := c.news[0], c.report
		c.news = c.news[1:]
		c.mu.Unlock()
		report(next)
		c.mu.Lock()
	}
	c.reports = false
}

// endReports says that no caller waits any more.
func (c *claim) endReports() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.report, c.news = nil, nil
}

// spawn runs fn, for which Close waits, unless that has begun.
func (e *Engine) spawn(fn func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.spawned.Go(fn)
	}
	return !e.closed
}
