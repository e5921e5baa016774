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

// Token is a fencing token: a number that grows with each holder of a key. A storage that remembers the
// highest token can reject a late write of a holder that has lost its lease and does not know it. It fits a
// BIGINT. (M. Kleppmann, "How to do distributed locking", 2016.)
type Token = int64

// Holder describes the holder of a lock to people who inspect the lock.
type Holder = driver.Holder

// Driver connects a client to one lock service. The packages redis, postgres, etcd, zookeeper, memory and
// sharding open drivers. Package driver documents the rules for authors of drivers.
type Driver = driver.Driver

// Limits describe the abilities of a Driver.
type Limits = driver.Limits

// Client acquires leases through one driver. It is safe for concurrent use.
type Client struct {
	drv    driver.Driver
	limits driver.Limits
	keeper *holder.Keeper
	events eventQueue

	closing atomic.Bool
	closed  chan struct{} // closed once Close has finished
}

// clientByDriver maps each driver to the open client that uses it.
var clientByDriver sync.Map // of driver.Driver to *Client

// reserveDriver records that c uses drv. It returns false if another open client already does.
func (c *Client) reserveDriver(drv driver.Driver) bool {
	if v := reflect.ValueOf(drv); v.Kind() == reflect.Pointer && v.Type().Elem().Size() > 0 { // other values cannot be told apart
		if _, used := clientByDriver.LoadOrStore(drv, c); used {
			return false
		}
	}
	return true
}

// unreserveDriver removes the record of c.
func (c *Client) unreserveDriver() {
	clientByDriver.Range(func(drv, user any) bool {
		if user == c {
			clientByDriver.Delete(drv)
		}
		return true
	})
}

// New returns a client over drv. Close closes the driver too, and so does New when it fails. opts may be nil.
// New does not block, unless it fails. A driver serves one client: if another open client uses drv, New
// returns ErrInvalid and leaves the driver open. A driver that was closed together with its client makes every
// call of a new client fail with ErrClosed. Errors: ErrInvalid.
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
		n.Notify(c.reportNodeEvent)
	}
	if a, ok := drv.(driver.Alerter); ok {
		a.Alert(c.keeper.CheckAlert)
	}
	return c, nil
}

// Nodes returns the present state of each node of the service, in the order in which the driver was opened
// with them: whether the node votes, why it does not, and its response time. It is meant for readiness checks
// and gauges. Nodes sends no request and does not block. It returns nil if the driver does not report nodes.
func (c *Client) Nodes() []NodeEvent {
	if n, ok := c.drv.(driver.Notifier); ok {
		return n.Nodes()
	}
	return nil
}

func (c *Client) reportNodeEvent(e NodeEvent) {
	level := slog.LevelWarn
	if e.State == driver.NodeUp {
		level = slog.LevelInfo
	}
	c.events.Log(level, "node changed", "node", e.Node, "state", string(e.State), "cause", e.Err)
	callHook(&c.events, c.events.hooks.Node, e)
}
