// Package redis keeps locks on Redis or Valkey: on a single server or, with the Redlock algorithm, on several
// independent servers, of which a majority decides.
//
// # What is not promised
//
// A single server that loses its data can give a lock to two holders: through a failover to a replica, or
// through a restart without an append-only file that is always synced. Of several servers, a majority must
// keep its memory or sit out its quarantine, and their clocks must not jump by more than the allowed drift.
// Even then a storage that checks tokens rejects the older holder. The table of promises is in
// docs/protocol.md.
//
// A node may be a master that Sentinels replace when it fails (Failover). A server that takes over votes after
// a quarantine, because it may not know the newest locks. The nodes may be a Redis Cluster (Options.Cluster),
// each shard of which is such a node for the names in its hash slots.
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

// calls contains the methods of a Driver that are the same for all quorum drivers.
type calls = engine.Calls

// Driver keeps locks on the nodes. It implements driver.Driver; use it through holdfast.New.
type Driver struct {
	calls
	core
	closing sync.Once
}

// New connects to the nodes and checks them. It blocks until all have answered or have been silent for
// opts.Timeout, or ctx ends. opts may be nil. While a majority votes, New reports an unfit or unreachable node
// by a warning and a node event, not by an error, and tries it again. Errors: ErrInvalid, ErrConfig, ErrAuth
// and ErrUnavailable of package holdfast, each of which names the node and the fix. With NoCheck it does not
// block, and returns only ErrInvalid.
func New(ctx context.Context, nodes []Node, opts *Options) (*Driver, error) {
	d, err := prepareDriver(nodes, opts)
	if err == nil && !d.opts.NoCheck {
		if err = d.set.connect(ctx); err == nil {
			d.warnOfSetup(ctx)
		} else {
			d.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	return d, nil
}

// warnOfSetup warns of a number of nodes that adds no safety, and of clients on the same server that use other
// keys for the same names.
func (d *Driver) warnOfSetup(ctx context.Context) {
	if n := len(d.nodes); n%2 == 0 && n > 0 {
		d.opts.Logger.Warn(evenCountWarning(n).Error(), "nodes", n)
	}
	level := slog.LevelInfo // it may be intended
	if d.opts.ReadOnly {
		level = slog.LevelWarn // the lock that the user looks for may be one of theirs
	}
	marker, who := d.opts.format().SiblingMarker(d.opts.Prefix)
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

// prepareDriver checks the arguments and returns a driver that is not connected.
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
		cfg.NoteTime = time.Duration(quorum.NoteTime(int64(d.opts.MaxTTL)))
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
func (d *Driver) Alert(fn func(owner, reason string)) { d.alert.Store(&fn) }

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

// errReadOnly is returned by methods that would write, if the driver was opened with ReadOnly or NoCheck.
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
	l.Nodes = max(len(d.nodes), 1) // only the shard that has the name votes on it
	return l
}

// Close implements driver.Driver. It blocks until the requests that were sent are answered, and the Logger has
// accepted its last lines, each for about a second at most. A second Close does nothing.
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
		go func() { d.logs.Wait(); close(logged) }() // this goroutine stays while a Logger hangs
		select {
		case <-logged:
		case <-time.After(pace.AskTime()):
		}
	})
	return nil
}
