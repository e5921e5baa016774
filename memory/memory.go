// Package memory keeps locks on nodes inside the process, for programs with one process, for tests and for
// simulations. It does not coordinate processes: no other process sees its locks, and they end with the
// process.
//
// It uses the same protocol as package redis, over the Go twin of the Lua scripts. Its nodes can be stopped,
// frozen, wiped, delayed, and given a wrong clock. It starts no goroutine of its own, so it works under
// testing/synctest.
package memory

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/quorum/engine"
)

const (
	// sweepEvery is the number of grants between two sweeps of expired locks.
	sweepEvery = 1 << 14
	// maxTTLOfOne and maxTTLOfMany are the defaults of package redis, so that a program that works here works
	// there.
	maxTTLOfOne, maxTTLOfMany = 24 * time.Hour, time.Minute
)

// calls contains the methods of a Driver that are the same for all quorum drivers.
type calls = engine.Calls

// Driver is the connection of one client to the nodes.
type Driver struct {
	calls
	cluster *cluster
	engine  *engine.Engine
}

// cluster is the state that all clients of the nodes share.
type cluster struct {
	nodes []*Node

	mu      sync.Mutex // guards the fields below
	clients map[string]*client
	grants  int
}

type client struct {
	engine *engine.Engine
	holder driver.Holder
	hears  quorum.Set
	notify func(driver.NodeEvent)  // nil: not set
	alert  func(owner, why string) // nil: not set
}

// nodeConn is the connection of one client to one node.
type nodeConn struct {
	driver *Driver
	index  int
}

// New returns a driver over n new nodes, 1 to 9. It panics for another n, because that is a bug of the caller.
// A TTL is at most 24 hours on one node, and a minute on several.
func New(n int) *Driver {
	if n < 1 || n > quorum.MaxNodes {
		panic(fmt.Sprintf("memory.New(%d): give 1 to %d nodes", n, quorum.MaxNodes))
	}
	c := &cluster{clients: make(map[string]*client)}
	for i := range n {
		c.nodes = append(c.nodes, &Node{cluster: c, name: fmt.Sprintf("memory-%d", i+1), locks: make(map[string]quorum.Lock), notes: make(map[string]*notes)})
	}
	return c.newDriver()
}

// Peer returns the driver of another client of the same nodes.
func (d *Driver) Peer() *Driver { return d.cluster.newDriver() }

// Node returns the i-th node, from 0.
func (d *Driver) Node(i int) *Node { return d.cluster.nodes[i] }

func (c *cluster) newDriver() *Driver {
	d := &Driver{cluster: c}
	var nodes []engine.Node
	for i := range c.nodes {
		nodes = append(nodes, &nodeConn{driver: d, index: i})
	}
	cfg := engine.Config{Nodes: nodes}
	if len(nodes) > 1 {
		cfg.NoteTime = time.Duration(quorum.NoteTime(int64(maxTTLOfMany)))
	}
	d.engine = engine.New(cfg)
	d.calls = engine.NewCalls(d.engine, nil, func(_ context.Context, owner string) driver.Holder { return c.holderOf(owner) })
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clients[d.engine.Client()] = &client{engine: d.engine}
	return d
}

// Acquire implements driver.Driver.
func (d *Driver) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	d.cluster.noteClient(d.engine.Client(), req.Holder)
	return d.calls.Acquire(ctx, req)
}

// Limits implements driver.Driver.
func (d *Driver) Limits() driver.Limits {
	l := driver.Limits{MinTTL: 10 * time.Millisecond, MaxTTL: maxTTLOfOne, Token: true, Order: true, MinHold: true, ChangeTTL: true, Nodes: len(d.cluster.nodes)}
	if len(d.cluster.nodes) > 1 {
		l.MaxTTL, l.MaxTTLHint = maxTTLOfMany, fmt.Sprintf("as package redis does over several nodes by default; "+
			"one node, memory.New(1), takes up to %v", maxTTLOfOne)
	}
	return l
}

// Close implements driver.Driver. The nodes stay available to other clients.
func (d *Driver) Close() error {
	d.engine.Close()
	d.cluster.mu.Lock()
	defer d.cluster.mu.Unlock()
	if c := d.cluster.clients[d.engine.Client()]; c != nil {
		c.hears, c.notify, c.alert = 0, nil, nil
	}
	return nil
}

// Notify implements driver.Notifier. A stopped node is down, and a frozen node is stalled.
func (d *Driver) Notify(fn func(driver.NodeEvent)) {
	d.cluster.mu.Lock()
	d.cluster.clients[d.engine.Client()].notify = fn
	d.cluster.mu.Unlock()
	for _, e := range d.Nodes() {
		if e.State != driver.NodeUp {
			fn(e)
		}
	}
}

// Alert implements driver.Alerter.
func (d *Driver) Alert(fn func(owner, reason string)) {
	d.cluster.mu.Lock()
	defer d.cluster.mu.Unlock()
	d.cluster.clients[d.engine.Client()].alert = fn
}

// Nodes implements driver.Notifier.
func (d *Driver) Nodes() (all []driver.NodeEvent) {
	for _, n := range d.cluster.nodes {
		all = append(all, n.event())
	}
	return all
}

// Check implements driver.Checker.
func (d *Driver) Check(_ context.Context, g driver.Grant) error {
	return d.engine.Check(g, d.viewsOf(g.Key))
}

// Inspect implements driver.Inspector.
func (d *Driver) Inspect(_ context.Context, key string) (driver.Status, error) {
	st, err := d.engine.Status(key, d.viewsOf(key))
	st.Holder = d.cluster.holderOf(st.Owner)
	return st, err
}

func (d *Driver) viewsOf(key string) (views []engine.View) {
	for _, n := range d.cluster.nodes {
		views = append(views, n.viewOf(key))
	}
	return views
}

// List implements driver.Lister.
func (d *Driver) List(ctx context.Context, prefix string, yield func(driver.Status) bool) error {
	var names []string
	for _, n := range d.cluster.nodes {
		names = append(names, n.sweepExpired()...)
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		st, err := d.Inspect(ctx, name)
		if err != nil {
			return err
		}
		if (st.Held || st.Waiters > 0) && !yield(st) {
			return nil
		}
	}
	return nil
}

// Force implements driver.Forcer.
func (d *Driver) Force(_ context.Context, key string, token int64, reason string) (bool, error) {
	views := d.viewsOf(key)
	st, err := d.engine.Status(key, views)
	if err != nil {
		return false, err
	}
	if its, err := d.engine.TokenBelongs(st, views, token); !its {
		return false, err
	}
	var done quorum.Set
	errs := make([]error, len(d.cluster.nodes))
	for i, n := range d.cluster.nodes {
		if token == 0 {
			var dropped bool
			if dropped, errs[i] = n.dropKept(key, st); dropped {
				done |= quorum.Only(i)
			}
			continue
		}
		ok, woken, err := n.forceLock(key, st.Owner, d.engine.NoteTime(), func(owner string) bool { return d.cluster.reachesOwner(i, owner) })
		if ok {
			done |= quorum.Only(i)
			d.cluster.alertOwner(i, st.Owner, reason)
		}
		errs[i] = err
		if woken != "" {
			d.cluster.wakeOwner(i, quorum.Wake{Owner: woken}) // it does not arrive in its place among the node's answers
		}
	}
	return d.engine.ForceResult(done, errs)
}

// alertOwner notifies the client of owner that node has removed its lock.
func (c *cluster) alertOwner(node int, owner, why string) {
	c.mu.Lock()
	var alert func(owner, why string)
	if cl := c.clients[quorum.ClientOf(owner)]; cl != nil && cl.hears.Has(node) {
		alert = cl.alert
	}
	c.mu.Unlock()
	if alert != nil {
		alert(owner, why)
	}
}

// noteClient stores the description of a client. It also sweeps expired entries now and then.
func (c *cluster) noteClient(id string, h driver.Holder) {
	c.mu.Lock()
	h.Note = "" // the note belongs to one lease
	c.clients[id].holder = h
	c.grants++
	due := c.grants%sweepEvery == 0
	c.mu.Unlock()
	if due {
		for _, n := range c.nodes {
			n.sweepExpired()
		}
	}
}

// tellClients delivers an event to every client.
func (c *cluster) tellClients(e driver.NodeEvent) {
	c.mu.Lock()
	var all []func(driver.NodeEvent)
	for _, cl := range c.clients {
		if cl.notify != nil {
			all = append(all, cl.notify)
		}
	}
	c.mu.Unlock()
	for _, notify := range all {
		notify(e)
	}
}

func (c *cluster) holderOf(owner string) driver.Holder {
	c.mu.Lock()
	defer c.mu.Unlock()
	var h driver.Holder
	if cl := c.clients[quorum.ClientOf(owner)]; cl != nil {
		h = cl.holder
	}
	h.Note = quorum.NoteOf(owner)
	return h
}

// reachesOwner reports whether a wake-up from node reaches the client of owner.
func (c *cluster) reachesOwner(node int, owner string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	cl := c.clients[quorum.ClientOf(owner)]
	return cl != nil && cl.hears.Has(node)
}

func (c *cluster) wakeOwner(node int, w quorum.Wake) {
	c.mu.Lock()
	cl := c.clients[quorum.ClientOf(w.Owner)]
	c.mu.Unlock()
	if cl != nil {
		cl.engine.Wake(node, w)
	}
}

// Name implements engine.Node.
func (in *nodeConn) Name() string { return in.driver.cluster.nodes[in.index].name }

// Send implements engine.Node.
func (in *nodeConn) Send(r *engine.Request) {
	in.driver.cluster.nodes[in.index].acceptWork(pendingRequest{in: in, r: r})
}

// Subscribe implements engine.Node.
func (in *nodeConn) Subscribe() {
	c := in.driver.cluster
	c.mu.Lock()
	c.clients[in.driver.engine.Client()].hears |= quorum.Only(in.index)
	c.mu.Unlock()
	in.driver.engine.SetSubscribed(in.index, true)
}
