package holdfast

import (
	"cmp"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/holder"
)

// Token is a fencing token: a number that grows with each holder of a key, so
// that a storage which remembers the highest one can refuse a holder that has
// lost its lease without noticing. It fits a BIGINT.
// (M. Kleppmann, "How to do distributed locking", 2016.)
type Token = int64

// Holder describes the holder of a lock to people who look at it.
type Holder = driver.Holder

// Driver connects a client to one lock service: the packages redis, postgres, etcd, zookeeper, memory and
// sharding open one. Package driver has the rules for authors of drivers.
type Driver = driver.Driver

// Limits describe the abilities of a Driver.
type Limits = driver.Limits

// Client takes leases through one driver. It is safe for concurrent use.
type Client struct {
	drv    driver.Driver
	limits driver.Limits
	keeper *holder.Keeper
	events eventQueue

	closing atomic.Bool
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
		return nil, wrapError("new", "", invalidError("no driver; open one with holdfast.Open, redis.Open or memory.New, and check its error"))
	}
	if opts == nil {
		opts = &Options{}
	}
	c := &Client{
		drv: drv, limits: drv.Limits(), closed: make(chan struct{}),
		events: eventQueue{hooks: opts.Hooks, logger: driver.LoggerOrDefault(opts.Logger), hurry: make(chan struct{})},
	}
	if !c.reserveDriver(drv) {
		return nil, wrapError("new", "", invalidError(
			"another client of this process uses the driver; share the client, or open a second driver for a second client"))
	}
	if opts.Holder.Note != "" {
		c.unreserveDriver()
		drv.Close()
		return nil, wrapError("new", "", invalidError("Holder.Note %q: give it for each lease, as AcquireOptions.Note", opts.Holder.Note))
	}
	c.keeper = holder.New(drv, cmp.Or(opts.Holder, thisProcess()), &c.events)
	if n, ok := drv.(driver.Notifier); ok {
		n.Notify(c.nodeChanged)
	}
	if a, ok := drv.(driver.Alerter); ok {
		a.Alert(c.keeper.NoteAlert)
	}
	return c, nil
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
	c.events.Log(level, "node changed", "node", e.Node, "state", string(e.State), "cause", e.Err)
	callHook(&c.events, c.events.hooks.Node, e)
}
