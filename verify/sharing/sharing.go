package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	pool "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/redlock"
)

// worker takes the lock on a key once, and returns how to free it.
type worker func(ctx context.Context, key string) (free func() error, err error)

// A Side is one library, as its README has it.
type Side struct {
	Name string
	// open makes n workers on the servers, of which some sides use one alone.
	open func(ctx context.Context, addrs []string, n int) ([]worker, func(), error)
}

// The sides.
var (
	OneClient   = Side{"one client", holdfastWorkers(true, redlock.FormatPlain)}
	ManyClients = Side{"a client each", holdfastWorkers(false, redlock.FormatPlain)}
	LikeJava    = Side{"a client each, in the format of Redisson", holdfastWorkers(false, redlock.FormatRedisson)}
	Redsync     = Side{"redsync", redsyncWorkers}
	Redislock   = Side{"redislock", redislockWorkers}
	SetNX       = Side{"SET NX", setNXWorkers}
)

func holdfastWorkers(shared bool, format redlock.Format) func(context.Context, []string, int) ([]worker, func(), error) {
	return func(ctx context.Context, addrs []string, n int) (out []worker, stop func(), err error) {
		var nodes []redlock.Node
		for _, addr := range addrs {
			nodes = append(nodes, redlock.Node{Addr: addr})
		}
		var clients []*holdfast.Client
		stop = func() {
			for _, c := range clients {
				c.Close()
			}
		}
		for i := range n {
			if i == 0 || !shared {
				drv, err := redlock.New(ctx, nodes, &redlock.Options{BareKeys: true, Format: format, NoQuarantine: true})
				if err != nil {
					return nil, stop, err
				}
				c, err := holdfast.New(drv, nil)
				if err != nil {
					return nil, stop, err
				}
				clients = append(clients, c)
			}
			c := clients[len(clients)-1]
			out = append(out, func(ctx context.Context, key string) (func() error, error) {
				l, err := c.Acquire(ctx, key, nil)
				if err != nil {
					return nil, err
				}
				return func() error { return l.Release(context.WithoutCancel(ctx)) }, nil
			})
		}
		return out, stop, nil
	}
}

// redsync with all its defaults: 32 tries, 50 to 250 ms apart.
func redsyncWorkers(_ context.Context, addrs []string, n int) (out []worker, stop func(), err error) {
	var clients []*redis.Client
	var pools []pool.Pool
	for _, addr := range addrs {
		c := redis.NewClient(&redis.Options{Addr: addr})
		clients, pools = append(clients, c), append(pools, goredis.NewPool(c))
	}
	rs := redsync.New(pools...)
	for range n {
		out = append(out, func(ctx context.Context, key string) (func() error, error) {
			m := rs.NewMutex(key)
			if err := m.LockContext(ctx); err != nil {
				return nil, err
			}
			return func() error { _, err := m.Unlock(); return err }, nil
		})
	}
	stop = func() {
		for _, c := range clients {
			c.Close()
		}
	}
	return out, stop, nil
}

// redislock with the backoff of its README, 100 ms.
func redislockWorkers(_ context.Context, addrs []string, n int) (out []worker, stop func(), err error) {
	c := redis.NewClient(&redis.Options{Addr: addrs[0]})
	locks := redislock.New(c)
	opts := &redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)}
	for range n {
		out = append(out, func(ctx context.Context, key string) (func() error, error) {
			l, err := locks.Obtain(ctx, key, 8*time.Second, opts)
			if err != nil {
				return nil, err
			}
			return func() error { return l.Release(context.WithoutCancel(ctx)) }, nil
		})
	}
	return out, func() { c.Close() }, nil
}

// A loop around SET NX, 20 to 80 ms between two tries.
func setNXWorkers(_ context.Context, addrs []string, n int) (out []worker, stop func(), err error) {
	c := redis.NewClient(&redis.Options{Addr: addrs[0]})
	for i := range n {
		value := fmt.Sprint("worker ", i)
		out = append(out, func(ctx context.Context, key string) (func() error, error) {
			for {
				ok, err := c.SetNX(ctx, key, value, 8*time.Second).Result()
				if err != nil {
					return nil, err
				}
				if ok {
					return func() error { return c.Del(context.WithoutCancel(ctx), key).Err() }, nil
				}
				if err := pause(ctx, 20*time.Millisecond+rand.N(60*time.Millisecond)); err != nil {
					return nil, err
				}
			}
		})
	}
	return out, func() { c.Close() }, nil
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Load is what workers do with the lock.
type Load struct {
	Workers int           // of each side
	Work    time.Duration // with the lock
	Rest    time.Duration // after it
	// Time bounds the run, and Enough, if not 0, ends it as soon as both sides have so many
	// locks.
	Time   time.Duration
	Enough int
}

// Share is what one side got.
type Share struct {
	Locks   int
	Longest time.Duration // wait, also of who waited at the end
}

// Compete runs both sides against one another on the servers at addrs.
func Compete(ctx context.Context, addrs []string, key string, l Load, sides ...Side) ([]Share, error) {
	ctx, cancel := context.WithTimeout(ctx, l.Time)
	defer cancel()
	shares := make([]Share, len(sides))
	var mu sync.Mutex // guards shares
	note := func(i, locks int, waited time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		shares[i].Locks += locks
		shares[i].Longest = max(shares[i].Longest, waited)
		enough := l.Enough > 0
		for _, s := range shares {
			enough = enough && s.Locks >= l.Enough
		}
		if enough {
			cancel()
		}
	}
	var all sync.WaitGroup
	defer all.Wait()
	for i, side := range sides {
		workers, stop, err := side.open(ctx, addrs, l.Workers)
		if stop != nil {
			defer stop()
		}
		if err != nil {
			cancel()
			return nil, err
		}
		for _, w := range workers {
			all.Go(func() {
				for since := time.Now(); ctx.Err() == nil; {
					free, err := w(ctx, key)
					if err != nil {
						note(i, 0, time.Since(since)) // tried too often, or the end
						continue
					}
					note(i, 1, time.Since(since))
					pause(ctx, l.Work)
					free()
					pause(ctx, l.Rest)
					since = time.Now()
				}
			})
		}
	}
	all.Wait()
	return shares, nil
}
