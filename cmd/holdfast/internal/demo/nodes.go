package demo

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/memory"
	"github.com/holdfast-go/holdfast/redis"
)

const nodeCount = 5

// Nodes are the five nodes of the demonstration.
type Nodes interface {
	String() string
	// Open returns a driver for one client.
	Open(ctx context.Context) (driver.Driver, error)
	// Stop stops the i-th node as a crash does; Start starts it again.
	Stop(i int)
	Start(ctx context.Context, i int) error
	Close() error
}

// Memory returns nodes inside this process.
func Memory() Nodes { return inProcess{memory.New(nodeCount)} }

type inProcess struct{ *memory.Driver }

func (n inProcess) String() string                              { return "five nodes inside this process" }
func (n inProcess) Open(context.Context) (driver.Driver, error) { return n.Peer(), nil }
func (n inProcess) Stop(i int)                                  { n.Node(i).Stop() }
func (n inProcess) Start(_ context.Context, i int) error        { n.Node(i).Start(); return nil }

// ErrNotInstalled is returned if there is no redis-server.
var ErrNotInstalled = redisproc.ErrNotInstalled

// Redis starts redis-server processes and waits until they answer.
func Redis(ctx context.Context) (Nodes, error) {
	n := &redisProcesses{servers: make([]*redisproc.Server, nodeCount)}
	errs := make([]error, nodeCount)
	var all sync.WaitGroup
	for i := range n.servers {
		// Each write is synced to disk, so a restarted node has lost nothing and may vote at once.
		all.Go(func() { n.servers[i], errs[i] = redisproc.Start(ctx, &redisproc.Options{AppendOnly: "always"}) })
	}
	all.Wait()
	if errors.Is(errors.Join(errs...), ErrNotInstalled) {
		return nil, ErrNotInstalled // once, not five times
	}
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

type redisProcesses struct{ servers []*redisproc.Server }

func (n *redisProcesses) String() string { return "five redis-server processes" }

func (n *redisProcesses) Open(ctx context.Context) (driver.Driver, error) {
	var nodes []redis.Node
	for _, s := range n.servers {
		nodes = append(nodes, redis.Node{Addr: s.Addr()})
	}
	// No client has used these nodes before, so they need no quarantine.
	return redis.New(ctx, nodes, &redis.Options{Timeout: pace.OpenTime(), NoQuarantine: true, Logger: slog.New(slog.DiscardHandler)})
}

func (n *redisProcesses) Stop(i int)                             { n.servers[i].Kill() }
func (n *redisProcesses) Start(ctx context.Context, i int) error { return n.servers[i].Restart(ctx) }

func (n *redisProcesses) Close() error {
	var errs []error
	for _, s := range n.servers {
		if s != nil {
			errs = append(errs, s.Stop())
		}
	}
	return errors.Join(errs...)
}
