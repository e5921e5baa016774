package main

import (
	"context"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	redsyncrueidis "github.com/go-redsync/redsync/v4/redis/rueidis"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidiscompat"
	"github.com/redis/rueidis/rueidislock"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/redlock"
)

// peer is one library, set up in one way.
type peer struct {
	name string
	// on says on how many nodes it can run, or makes sense.
	on func(n int) bool
	// only says in which scenarios it is worth its time; nil: in all.
	only func(scenario) bool
	open func(ctx context.Context, addrs []string, workers int) (client, error)
	// direct are the commands, in addition to EVALSHA, that this peer sends
	// itself and not from within scripts.
	direct []string
}

// client is one client of a peer, with connections of its own.
type client interface {
	lock(ctx context.Context, name string) (held, error)
	close()
}

// held is a lock that is held.
type held interface {
	unlock(ctx context.Context) error
}

func (p peer) String() string { return p.name }

const holdfastName = "holdfast"

func anyNodes(int) bool  { return true }
func oneNode(n int) bool { return n == 1 }

// allPeers are the libraries in the order of the table.
var allPeers = []peer{
	{name: holdfastName, on: anyNodes, open: openHoldfast, direct: []string{"subscribe"}},
	// redsync as its README has it, but with tries enough to wait to the end: 50 to
	// 250 ms between them, and its defaults otherwise.
	{name: "redsync/goredis", on: anyNodes, open: openGoredis(false), direct: setNX},
	// redsync's answer to nodes that hang. go-redis must be told to obey contexts.
	{name: "redsync/goredis-failfast", on: several, open: openGoredis(true), direct: setNX},
	{name: "redsync/rueidis", on: anyNodes, open: openRueidis(), direct: setNX},
	// redsync tuned for short waits, at the cost of more commands.
	{
		name: "redsync/rueidis-5ms", on: anyNodes, only: scenario.contended, direct: setNX,
		open: openRueidis(redsync.WithRetryDelay(5 * time.Millisecond)),
	},
	{name: "redislock", on: oneNode, open: openRedislock},
	{name: "rueidislock", on: oneNode, open: openRueidislock},
}

var setNX = []string{"set", "setnx"}

// Holdfast, with nothing set but that new servers may vote at once.

type holdfastClient struct{ *holdfast.Client }

type holdfastLease struct{ *holdfast.Lease }

func openHoldfast(ctx context.Context, addrs []string, _ int) (client, error) {
	nodes := make([]redlock.Node, len(addrs))
	for i, addr := range addrs {
		nodes[i].Addr = addr
	}
	drv, err := redlock.New(ctx, nodes, &redlock.Options{NoQuarantine: true})
	if err != nil {
		return nil, err
	}
	c, err := holdfast.New(drv, nil)
	return holdfastClient{c}, err
}

func (c holdfastClient) lock(ctx context.Context, name string) (held, error) {
	l, err := c.Acquire(ctx, name, nil)
	return holdfastLease{l}, err
}

func (c holdfastClient) close() { c.Close() }

func (l holdfastLease) unlock(ctx context.Context) error { return l.Release(ctx) }

// redsync

type redsyncClient struct {
	*redsync.Redsync
	options []redsync.Option
	closers []func()
}

type redsyncMutex struct{ *redsync.Mutex }

func newRedsync(pools []redsyncredis.Pool, closers []func(), options ...redsync.Option) *redsyncClient {
	options = append(options, redsync.WithTries(1<<30))
	return &redsyncClient{Redsync: redsync.New(pools...), options: options, closers: closers}
}

func (c *redsyncClient) lock(ctx context.Context, name string) (held, error) {
	m := c.NewMutex(name, c.options...)
	return redsyncMutex{m}, m.LockContext(ctx)
}

func (c *redsyncClient) close() {
	for _, f := range c.closers {
		f()
	}
}

func (m redsyncMutex) unlock(ctx context.Context) error {
	ok, err := m.UnlockContext(ctx)
	if !ok {
		return err
	}
	return nil
}

// openGoredis uses go-redis with its defaults, and a connection for each worker
// where its default, ten for each core, is less.
func openGoredis(failFast bool) func(context.Context, []string, int) (client, error) {
	return func(_ context.Context, addrs []string, workers int) (client, error) {
		var pools []redsyncredis.Pool
		var closers []func()
		for _, addr := range addrs {
			c := redis.NewClient(goredisOptions(addr, workers, failFast))
			pools = append(pools, goredis.NewPool(c))
			closers = append(closers, func() { c.Close() })
		}
		return newRedsync(pools, closers, redsync.WithFailFast(failFast)), nil
	}
}

func goredisOptions(addr string, workers int, obey bool) *redis.Options {
	o := &redis.Options{Addr: addr, ContextTimeoutEnabled: obey}
	if workers > 16 {
		o.PoolSize = workers
	}
	return o
}

func openRueidis(options ...redsync.Option) func(context.Context, []string, int) (client, error) {
	return func(_ context.Context, addrs []string, _ int) (client, error) {
		var pools []redsyncredis.Pool
		var closers []func()
		for _, addr := range addrs {
			c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}})
			if err != nil {
				return nil, err
			}
			pools = append(pools, redsyncrueidis.NewPool(rueidiscompat.NewAdapter(c)))
			closers = append(closers, c.Close)
		}
		return newRedsync(pools, closers, options...), nil
	}
}

// redislock does not wait unless it is told how: here it asks every 5 ms, which
// keeps a contended lock busier than the 100 ms of its README.

type redislockClient struct {
	locks *redislock.Client
	redis *redis.Client
}

type redislockLock struct{ *redislock.Lock }

var redislockOptions = &redislock.Options{RetryStrategy: redislock.LinearBackoff(5 * time.Millisecond)}

func openRedislock(_ context.Context, addrs []string, workers int) (client, error) {
	c := redis.NewClient(goredisOptions(addrs[0], workers, false))
	return redislockClient{redislock.New(c), c}, nil
}

func (c redislockClient) lock(ctx context.Context, name string) (held, error) {
	l, err := c.locks.Obtain(ctx, name, 10*time.Second, redislockOptions)
	return redislockLock{l}, err
}

func (c redislockClient) close() { c.redis.Close() }

func (l redislockLock) unlock(ctx context.Context) error { return l.Release(ctx) }

// rueidislock as its README has it for one server of a recent version. The context
// bounds the hold as well as the wait.

type rueidislockClient struct{ rueidislock.Locker }

type rueidislockCancel context.CancelFunc

func openRueidislock(_ context.Context, addrs []string, _ int) (client, error) {
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: addrs}, KeyMajority: 1, NoLoopTracking: true,
	})
	return rueidislockClient{l}, err
}

func (c rueidislockClient) lock(ctx context.Context, name string) (held, error) {
	_, cancel, err := c.WithContext(ctx, name)
	return rueidislockCancel(cancel), err
}

func (c rueidislockClient) close() { c.Close() }

func (f rueidislockCancel) unlock(context.Context) error {
	f()
	return nil
}
