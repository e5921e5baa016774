package holdfast

import (
	"context"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Token is a fencing token: a number that grows with each holder of a key, so
// that a storage which remembers the highest one can refuse a holder that has
// lost its lease without noticing. It fits a BIGINT.
// (M. Kleppmann, "How to do distributed locking", 2016.)
type Token = int64

// Holder describes the holder of a lock to people who look at it.
type Holder = driver.Holder

// Driver connects a client to one lock service: the packages redlock, postgres, etcd, zookeeper, memory and
// sharding open one. Package driver has the rules for authors of drivers.
type Driver = driver.Driver

// Limits describe the abilities of a Driver.
type Limits = driver.Limits

// Client takes leases through one driver. It is safe for concurrent use.
type Client struct {
	drv    driver.Driver
	limits driver.Limits
	holder Holder
	events eventQueue

	alive context.Context // ends with Close
	stop  context.CancelFunc
	tasks sync.WaitGroup // the watchdog and what it started
	nudge chan struct{}  // wakes the watchdog

	mu         sync.Mutex // guards what follows, and every localLock, term and Lease
	locks      map[string]*localLock
	slotQueues map[slotQueueKey]*slotQueue
	lastSlot   slotRef // the slot released last, which the next caller tries first; zero: none
	terms      schedule
	sleeps     time.Time     // the watchdog sleeps until then; zero: until nudged
	looked     time.Time     // when the watchdog last looked at every lease
	starved    time.Time     // when the watchdog last came too late; zero: never
	ending     bool          // no new leases and waits
	vacant     chan struct{} // closed once the client is ending and no lock is left in this process

	closing bool
	closed  chan struct{} // closed when Close is done
}

// drivers has the drivers of the open clients of this process.
var drivers sync.Map // of driver.Driver to *Client

// reserveDriver notes that c uses drv, and says whether no other open client does.
func (c *Client) reserveDriver(drv driver.Driver) bool {
	if v := reflect.ValueOf(drv); v.Kind() == reflect.Pointer && v.Type().Elem().Size() > 0 { // else it has no identity
		if _, used := drivers.LoadOrStore(drv, c); used {
			return false
		}
	}
	return true
}

// unreserveDriver forgets what c has reserved.
func (c *Client) unreserveDriver() {
	drivers.Range(func(drv, user any) bool {
		if user == c {
			drivers.Delete(drv)
		}
		return true
	})
}

// New returns a client over drv, which it closes with itself, and at once where it fails. A
// driver serves one client: New refuses one that another open client uses with ErrInvalid, and
// leaves it open; a client over a driver that was closed with its client gets ErrClosed from
// it. opts may be nil. New does not block, unless it fails. Errors: ErrInvalid.
func New(drv Driver, opts *Options) (*Client, error) {
	if v := reflect.ValueOf(drv); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, wrap("new", "", invalid("no driver; open one with holdfast.Open, redlock.Open or memory.New, and look at the error first"))
	}
	if opts == nil {
		opts = &Options{}
	}
	c := &Client{
		drv: drv, limits: drv.Limits(), holder: opts.Holder,
		events: eventQueue{hooks: opts.Hooks, logger: driver.LoggerOrDefault(opts.Logger), hurry: make(chan struct{})},
		nudge:  make(chan struct{}, 1), locks: make(map[string]*localLock), slotQueues: make(map[slotQueueKey]*slotQueue),
		vacant: make(chan struct{}), closed: make(chan struct{}),
	}
	if c.holder == (Holder{}) {
		c.holder = thisProcess()
	}
	if !c.reserveDriver(drv) {
		return nil, wrap("new", "", invalid("another client of this process uses the driver; share the client, or open a second driver for a second client"))
	}
	if c.holder.Note != "" {
		c.unreserveDriver()
		drv.Close()
		return nil, wrap("new", "", invalid("Holder.Note %q: give it for each lease, as AcquireOptions.Note", c.holder.Note))
	}
	c.alive, c.stop = context.WithCancel(context.Background())
	if n, ok := drv.(driver.Notifier); ok {
		n.Notify(c.nodeChanged)
	}
	if a, ok := drv.(driver.Alerter); ok {
		a.Alert(c.noteAlert)
	}
	c.tasks.Go(c.watchLeases)
	return c, nil
}

// holderWithNote returns the client as the holder of a lease with note.
func (c *Client) holderWithNote(note string) Holder {
	h := c.holder
	h.Note = note
	return h
}

// Nodes returns the present state of each node of the service, in the order of opening,
// with the cause where it does not vote and the time that it takes to answer: for
// readiness checks and gauges. It asks no node and does not block. It is nil where the
// driver's service has no nodes to tell of.
func (c *Client) Nodes() []NodeEvent {
	if n, ok := c.drv.(driver.Notifier); ok {
		return n.Nodes()
	}
	return nil
}

func (c *Client) nodeChanged(e NodeEvent) {
	level := slog.LevelWarn
	if e.State == driver.NodeUp {
		level = slog.LevelInfo
	}
	c.events.log(level, "node changed", "node", e.Node, "state", string(e.State), "cause", e.Err)
	c.events.node(e)
}
