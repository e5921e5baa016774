// Package direct has what the drivers of services that decide by themselves have in common:
// how calls begin and end, what a wait is told, and the states of nodes.
package direct

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// closeTime bounds how long Close waits for requests that are under way.
const closeTime = 2 * time.Second

// Trust is until when a TTL stands that was asked for at sent. Clocks may differ in rate by a
// hundredth.
func Trust(sent time.Time, ttl time.Duration) time.Time {
	return sent.Add(ttl - ttl/100 - 2*time.Millisecond)
}

// Jitter is about d, so that those who wait do not come back together.
func Jitter(d time.Duration) time.Duration { return d - rand.N(d/4+1) }

// Sleep sleeps for about d, and returns false if ctx ends before.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(Jitter(d))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Calls are the calls of a driver, and what they have left in the background.
type Calls struct {
	Alive context.Context // ends when Close begins
	Work  context.Context // of requests; ends when Close has waited for them
	end   context.CancelFunc
	stop  context.CancelFunc

	mu     sync.Mutex // guards what follows
	closed bool
	tasks  sync.WaitGroup // nothing is added after closed, but by what it waits for
}

// NewCalls returns the calls of a new driver.
func NewCalls() *Calls {
	c := &Calls{}
	c.Alive, c.end = context.WithCancel(context.Background())
	c.Work, c.stop = context.WithCancel(context.Background())
	return c
}

// Enter begins a call, which ends with Leave. It returns ErrClosed after Close.
func (c *Calls) Enter() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return driver.ErrClosed
	}
	c.tasks.Add(1)
	return nil
}

// Leave ends a call.
func (c *Calls) Leave() { c.tasks.Done() }

// Go runs fn in the background. Its caller is inside a call, or inside fn of another Go, or
// makes the driver.
func (c *Calls) Go(fn func()) { c.tasks.Go(fn) }

// Close ends Alive, waits for all calls and what they have left, and ends Work, at the latest
// after two seconds. It returns false, and does nothing, if it was called before.
func (c *Calls) Close() bool {
	c.mu.Lock()
	again := c.closed
	c.closed = true
	c.mu.Unlock()
	if again {
		return false
	}
	c.end()
	hurry := time.AfterFunc(closeTime, c.stop)
	defer hurry.Stop()
	c.tasks.Wait()
	c.stop()
	return true
}

// Wait is what stands in the way of one Acquire.
type Wait struct {
	Tell func(error) // Request.Obstacle
	last error
}

// Note says what stands in the way now. It tells the caller if that is of another kind than
// before.
func (w *Wait) Note(err error) {
	if w.Tell != nil && (w.last == nil || errors.Is(w.last, driver.ErrHeld) != errors.Is(err, driver.ErrHeld)) {
		w.Tell(err)
	}
	w.last = err
}

// Over is why the wait is over, with what stood in its way last; nil: it is not.
func (w *Wait) Over(ctx context.Context, c *Calls) error {
	switch {
	case c.Alive.Err() != nil:
		return driver.ErrClosed
	case ctx.Err() != nil && w.last != nil:
		return fmt.Errorf("%w: %w", ctx.Err(), w.last)
	}
	return ctx.Err()
}

// States are the states of a driver's nodes. All are up at first.
type States struct {
	mu      sync.Mutex // guards what follows
	nodes   []driver.NodeEvent
	changed chan struct{} // closed when a state changes
	notify  func(driver.NodeEvent)
}

// NewStates returns the states of nodes with these names.
func NewStates(names ...string) *States {
	s := &States{changed: make(chan struct{})}
	for _, name := range names {
		s.nodes = append(s.nodes, driver.NodeEvent{Node: name, State: driver.NodeUp})
	}
	return s
}

// Report notes the state of the i-th node, whose name it adds, and tells of it if it is new.
func (s *States) Report(i int, e driver.NodeEvent) {
	s.mu.Lock()
	e.Node = s.nodes[i].Node
	news := s.nodes[i].State != e.State
	s.nodes[i] = e
	if news {
		close(s.changed)
		s.changed = make(chan struct{})
	}
	notify := s.notify
	s.mu.Unlock()
	if news && notify != nil {
		notify(e)
	}
}

// Up says whether the i-th node is up, and has a channel that is closed when that may be
// otherwise.
func (s *States) Up(i int) (up bool, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodes[i].State == driver.NodeUp, s.changed
}

// Nodes is for driver.Notifier.
func (s *States) Nodes() []driver.NodeEvent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.nodes)
}

// Notify is for driver.Notifier.
func (s *States) Notify(fn func(driver.NodeEvent)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notify = fn
}
