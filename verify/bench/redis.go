package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	redsyncgoredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	redsyncrueidis "github.com/go-redsync/redsync/v4/redis/rueidis"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidiscompat"
	"github.com/redis/rueidis/rueidislock"

	"github.com/holdfast-go/holdfast/redis"
)

// redisLibraries are the libraries for Redis, in the order of the table.
var redisLibraries = []library{
	{name: holdfastName, open: openHoldfast(redis.Options{}), direct: []string{"subscribe"}, patient: true},
	// redsync as in its README, but with enough tries to wait until the end: 50 to 250 ms between tries, and
	// otherwise defaults.
	{name: "redsync/goredis", open: openGoredis(false, toTheEnd), direct: setNX, patient: true},
	// redsync's option for hanging nodes. go-redis must be told to obey contexts.
	{name: "redsync/goredis-failfast", open: openGoredis(true, toTheEnd, redsync.WithFailFast(true)), direct: setNX, least: 3},
	{name: "redsync/rueidis", open: openRueidis(toTheEnd), direct: setNX, patient: true},
	// redsync tuned for short waits, at the cost of more commands.
	{name: "redsync/rueidis-5ms", open: openRueidis(toTheEnd, redsync.WithRetryDelay(5*time.Millisecond)), direct: setNX, waiting: true},
	// redislock tries every 5 ms here, which uses a contended lock better than the 100 ms of its example.
	{name: "redislock", open: openRedislock(10*time.Second, 5*time.Millisecond), most: 1},
	{name: "rueidislock", open: openRueidislock, most: 1, patient: true},
}

var (
	toTheEnd = redsync.WithTries(1 << 30)
	setNX    = []string{"set", "setnx"}
)

// openHoldfast opens Holdfast with defaults except for opts, and lets new servers vote at once.
func openHoldfast(opts redis.Options) func(context.Context, []string, int) (client, error) {
	return func(ctx context.Context, addrs []string, _ int) (client, error) {
		return newHoldfastClient(openDriver(ctx, addrs, opts))
	}
}

func openDriver(ctx context.Context, addrs []string, opts redis.Options) (*redis.Driver, error) {
	nodes := make([]redis.Node, len(addrs))
	for i, addr := range addrs {
		nodes[i].Addr = addr
	}
	opts.NoQuarantine = true
	opts.Logger = slog.New(slog.DiscardHandler) // it warns of NoQuarantine, once for each client and server
	return redis.New(ctx, nodes, &opts)
}

// redsync

type redsyncClient struct {
	*redsync.Redsync
	options []redsync.Option
	closers []func()
}

func newRedsync(pools []redsyncredis.Pool, closers []func(), options []redsync.Option) client {
	return &redsyncClient{Redsync: redsync.New(pools...), options: options, closers: closers}
}

func (c *redsyncClient) lock(ctx context.Context, name string) (func(context.Context) error, error) {
	m := c.NewMutex(name, c.options...)
	return func(ctx context.Context) error {
		ok, err := m.UnlockContext(ctx)
		if ok {
			return nil
		}
		return err
	}, m.LockContext(ctx)
}

func (c *redsyncClient) close() {
	for _, f := range c.closers {
		f()
	}
}

// openGoredis uses go-redis with its defaults, but at least one connection per worker.
func openGoredis(obey bool, options ...redsync.Option) func(context.Context, []string, int) (client, error) {
	return func(_ context.Context, addrs []string, workers int) (client, error) {
		var pools []redsyncredis.Pool
		var closers []func()
		for _, addr := range addrs {
			c := newGoredis(addr, workers, obey)
			pools = append(pools, redsyncgoredis.NewPool(c))
			closers = append(closers, func() { c.Close() })
		}
		return newRedsync(pools, closers, options), nil
	}
}

func newGoredis(addr string, workers int, obey bool) *goredis.Client {
	o := &goredis.Options{Addr: addr, ContextTimeoutEnabled: obey}
	if workers > 16 {
		o.PoolSize = workers
	}
	return goredis.NewClient(o)
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
		return newRedsync(pools, closers, options), nil
	}
}

// redislock does not wait unless it gets a retry strategy.

type redislockClient struct {
	locks   *redislock.Client
	redis   *goredis.Client
	ttl     time.Duration
	options *redislock.Options
}

func openRedislock(ttl, again time.Duration) func(context.Context, []string, int) (client, error) {
	return func(_ context.Context, addrs []string, workers int) (client, error) {
		c := newGoredis(addrs[0], workers, false)
		return redislockClient{redislock.New(c), c, ttl, &redislock.Options{RetryStrategy: redislock.LinearBackoff(again)}}, nil
	}
}

func (c redislockClient) lock(ctx context.Context, name string) (func(context.Context) error, error) {
	l, err := c.locks.Obtain(ctx, name, c.ttl, c.options)
	if err != nil {
		return nil, err
	}
	return l.Release, nil
}

func (c redislockClient) close() { c.redis.Close() }

// rueidislockClient uses rueidislock as its README recommends for one recent Redis server. The context bounds
// the hold as well as the wait.
type rueidislockClient struct{ rueidislock.Locker }

func openRueidislock(_ context.Context, addrs []string, _ int) (client, error) {
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: addrs}, KeyMajority: 1, NoLoopTracking: true,
	})
	return rueidislockClient{l}, err
}

func (c rueidislockClient) lock(ctx context.Context, name string) (func(context.Context) error, error) {
	_, cancel, err := c.WithContext(ctx, name)
	return func(context.Context) error { cancel(); return nil }, err
}

func (c rueidislockClient) close() { c.Close() }
