//go:build linux

package main

import (
	"context"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// openRedsync uses redsync as its README has it, with tries enough to wait to the
// end of the window, and extends a lock every third of its time, as Holdfast does.
func openRedsync(_ context.Context, o *order, rec *recorder) (func(context.Context, string) (held, error), func(), error) {
	var pools []redsyncredis.Pool
	var clients []*redis.Client
	for _, addr := range o.Nodes {
		c := redis.NewClient(&redis.Options{Addr: addr})
		clients = append(clients, c)
		pools = append(pools, goredis.NewPool(c))
	}
	rs := redsync.New(pools...)
	ttl := time.Duration(o.Schedule.TTL)
	return func(ctx context.Context, key string) (held, error) {
			m := rs.NewMutex(key, redsync.WithExpiry(ttl), redsync.WithTries(1<<30))
			if err := m.LockContext(ctx); err != nil {
				return held{}, err
			}
			stop, ended := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(ended)
				extend(m, key, ttl, rec, stop)
			}()
			return held{id: m.Value(), until: until(m.Until()), release: func(ctx context.Context) error {
				close(stop)
				<-ended
				_, err := m.UnlockContext(ctx)
				return err
			}}, nil
		}, func() {
			for _, c := range clients {
				c.Close()
			}
		}, nil
}

func extend(m *redsync.Mutex, key string, ttl time.Duration, rec *recorder, stop <-chan struct{}) {
	tick := time.NewTicker(ttl / 3)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		if ok, err := m.Extend(); !ok || err != nil {
			continue
		}
		rec.record(event{Kind: renewed, Key: key, ID: m.Value(), Until: until(m.Until())})
	}
}
