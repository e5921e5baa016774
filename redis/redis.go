// Package redis keeps locks on Redis or Valkey: on one server, or, after the
// Redlock algorithm, on several independent ones, of which a majority decides.
//
// # What is not promised
//
// One server that loses its data can give a lock to two: by a failover to a
// replica, or by a restart without an append-only file that is synced always. With
// several, a majority must keep its memory or sit out its quarantine, and their
// clocks must not jump by more than the drift that is allowed for. Even then a
// storage that checks tokens rejects the older holder. The table of promises is in
// docs/protocol.md.
//
// A node may be a master that Sentinels replace when it fails (Failover). A server that takes
// over votes after a quarantine, as it may not know the newest locks. The
// nodes may be a Redis Cluster (Options.Cluster), each shard of which is such a node for
// the names in its hash slots.
package redis

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/quorum/engine"
)

// calls are the calls of a Driver that need nothing of this package.
type calls = engine.Calls

// Driver keeps locks on the nodes. It implements driver.Driver; use it through
// holdfast.New.
type Driver struct {
	calls
	core
	closing sync.Once
}

// New connects to the nodes and checks them. It blocks until all have answered,
// or are silent for opts.Timeout, or ctx is over; opts may be nil. While a majority is fit,
// New reports a node that is unfit or cannot be reached by a warning and a
// node event, not by an error, and tries it again. Errors: ErrInvalid,
// ErrConfig, ErrAuth and ErrUnavailable of package holdfast, each of which names the node and
// says what to change. With NoCheck it does not block, and there is only ErrInvalid.
func New(ctx context.Context, nodes []Node, opts *Options) (*Driver, error) {
	d, err := prepareDriver(nodes, opts)
	if err == nil && !d.opts.NoCheck {
		if err = d.set.connect(ctx); err == nil {
			d.warnOfSet(ctx)
		} else {
			d.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	return d, nil
}

// warnOfSet warns of a number of nodes that costs more than it gives, and of clients
// on the same server that use other keys for the same names.
func (d *Driver) warnOfSet(ctx context.Context) {
	if n := len(d.nodes); n%2 == 0 && n > 0 {
		d.opts.Logger.Warn(evenWarning(n).Error(), "nodes", n)
	}
	level := slog.LevelInfo // it may be meant so
	if d.opts.ReadOnly {
		level = slog.LevelWarn // the lock that is looked for may be one of the others
	}
	marker, who := d.opts.format().Sibling(d.opts.Prefix)
	for _, n := range d.nodes {
		if marker == "" {
			return
		}
		replies, err := n.runCommands(ctx, []string{"GET", marker})
		if err != nil {
			continue
		}
		if text, _ := replies[0].(string); text != "" {
			d.opts.Logger.Log(ctx, level, siblingsWarning(who), "node", n.addr, "marker", marker)
		}
		return
	}
}

// prepareDriver checks the arguments and makes a driver that is not connected.
func prepareDriver(nodes []Node, opts *Options) (*Driver, error) {
	d := &Driver{}
	if opts != nil {
		d.opts = *opts
	}
	if err := d.opts.setDefaults(nodes); err != nil {
		return nil, err
	}
	d.opts.ReadOnly = d.opts.ReadOnly || d.opts.NoCheck
	if len(nodes) == 0 {
		return nil, fmt.Errorf("%w: no node; give the address of at least one Redis server", driver.ErrInvalid)
	}
	if len(nodes) > quorum.MaxNodes && !d.opts.Cluster {
		return nil, fmt.Errorf("%w: %d nodes; give at most %d", driver.ErrInvalid, len(nodes), quorum.MaxNodes)
	}
	d.ctx, d.stop = context.WithCancel(context.Background())
	d.gate = newGate(&d.opts, len(nodes))
	for i, n := range nodes {
		if err := d.opts.checkNode(&n, fmt.Sprintf("%d of %d", i+1, len(nodes))); err != nil {
			return nil, err
		}
		if slices.ContainsFunc(d.nodes, func(m *node) bool { return m.addr == n.Addr }) {
			return nil, fmt.Errorf("%w: node %s is listed twice and would vote twice; list every server once", driver.ErrInvalid, n.Addr)
		}
		d.nodes = append(d.nodes, newNode(&d.core, i, n))
	}
	all := make([]engine.Node, len(d.nodes))
	for i, n := range d.nodes {
		all[i] = n
	}
	d.set = &independent{&d.core}
	cfg := engine.Config{Nodes: all, Keys: d.opts.lockKeys, Shared: d.opts.BareKeys}
	if d.opts.Cluster || !isSingleServer(nodes) {
		cfg.Noted = time.Duration(quorum.Noted(int64(d.opts.MaxTTL)))
	}
	if d.opts.Cluster {
		c := &cluster{d: &d.core, seeds: slices.Clone(nodes), doubt: make(chan struct{}, 1)}
		d.set, d.nodes, cfg.Nodes, cfg.Lane = c, nil, []engine.Node{c}, c.laneOf
	}
	d.opts.format().Configure(&cfg)
	d.channels = d.opts.format().Channels()
	d.engine = engine.New(cfg)
	var refusal error
	if d.opts.ReadOnly {
		refusal = errReadOnly
	}
	d.calls = engine.NewCalls(d.engine, refusal, d.describeHolder)
	for _, n := range d.nodes {
		n.engine = d.engine
	}
	return d, nil
}

// Alert implements driver.Alerter.
func (d *Driver) Alert(fn func(owner, why string)) { d.alert.Store(&fn) }

// Notify implements driver.Notifier.
func (d *Driver) Notify(fn func(driver.NodeEvent)) {
	d.mu.Lock()
	d.notify = fn
	d.mu.Unlock()
	for _, e := range d.Nodes() {
		if e.State != driver.NodeUp {
			fn(e)
		}
	}
}

// Nodes implements driver.Notifier.
func (d *Driver) Nodes() (all []driver.NodeEvent) {
	for _, n := range d.set.members() {
		all = append(all, n.currentEvent())
	}
	return all
}

// errReadOnly is returned by methods that would write, where the driver was opened
// with ReadOnly or NoCheck.
var errReadOnly = fmt.Errorf("%w: the driver was opened with ReadOnly or NoCheck, and takes no locks", driver.ErrInvalid)

// Acquire implements driver.Driver.
func (d *Driver) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	if d.opts.ReadOnly {
		return driver.Grant{}, errReadOnly
	}
	if d.holder.setSelf(req.Holder) {
		d.introduceToAll()
	}
	if !req.NoWait && d.channels != nil {
		defer d.channels.Await(d.opts.lockKeys(req.Key).Key)()
	}
	d.bare.noteName(req.Key)
	return d.calls.Acquire(ctx, req)
}

// Limits implements driver.Driver.
func (d *Driver) Limits() driver.Limits {
	l := d.opts.limits()
	l.Nodes = max(len(d.nodes), 1) // the shard of a cluster that has the name is the only node that votes on it
	return l
}

// Close implements driver.Driver. It blocks until what was sent is answered, and the
// Logger has taken its last lines, each for about a second at most; a second Close does
// nothing.
func (d *Driver) Close() error {
	d.closing.Do(func() {
		d.engine.Close()
		var all sync.WaitGroup
		for _, n := range d.set.members() {
			all.Go(n.awaitAnswers)
		}
		all.Wait()
		d.stop()
		d.work.Wait()
		logged := make(chan struct{})
		go func() { d.logs.Wait(); close(logged) }() // it stays for as long as a Logger hangs
		select {
		case <-logged:
		case <-time.After(pace.AskTime()):
		}
	})
	return nil
}
