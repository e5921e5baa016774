package main

import (
	"context"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	pool "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// ttl is longer than a run, so that every lock outlasts its holder.
const ttl = time.Minute

// redsyncWorker uses redsync with its default pauses of 50 to 250 ms.
func redsyncWorker(ctx context.Context, addrs []string, key string) (func() worker, func(), error) {
	var clients []*redis.Client
	var pools []pool.Pool
	for _, addr := range addrs {
		c := redis.NewClient(&redis.Options{Addr: addr})
		clients, pools = append(clients, c), append(pools, goredis.NewPool(c))
	}
	all := redsync.New(pools...)
	stop := func() {
		for _, c := range clients {
			c.Close()
		}
	}
	return func() worker {
		return func() (func() error, error) {
			m := all.NewMutex(key, redsync.WithExpiry(ttl))
			if err := m.LockContext(ctx); err != nil {
				return nil, err
			}
			return func() error { _, err := m.Unlock(); return err }, nil
		}
	}, stop, nil
}

// redislockWorker retries with the pause of redislock's example, 100 ms. Its default is no retry.
func redislockWorker(ctx context.Context, addrs []string, key string) (func() worker, func(), error) {
	client := redis.NewClient(&redis.Options{Addr: addrs[0]})
	all := redislock.New(client)
	return func() worker {
		return func() (func() error, error) {
			l, err := all.Obtain(ctx, key, ttl, &redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)})
			if err != nil {
				return nil, err
			}
			return func() error { return l.Release(context.Background()) }, nil
		}
	}, func() { client.Close() }, nil
}
