//go:build linux

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// redsyncs is redsync as a client process uses it.
type redsyncs struct {
	rs      *redsync.Redsync
	clients []*redis.Client
	ttl     time.Duration
	rec     *recorder
}

// openRedsync uses redsync as its README has it.
func openRedsync(o *order, rec *recorder) *redsyncs {
	r := &redsyncs{ttl: time.Duration(o.Schedule.TTL), rec: rec}
	var pools []redsyncredis.Pool
	for _, addr := range o.Nodes {
		c := redis.NewClient(&redis.Options{Addr: addr})
		r.clients = append(r.clients, c)
		pools = append(pools, goredis.NewPool(c))
	}
	r.rs = redsync.New(pools...)
	return r
}

// lock tries often enough to wait to the end of the window, and extends a lock every third of its time, as Holdfast does.
func (r *redsyncs) lock(ctx context.Context, key string) (held, error) {
	m := r.rs.NewMutex(key, redsync.WithExpiry(r.ttl), redsync.WithTries(1<<30))
	if err := m.LockContext(ctx); err != nil {
		return held{}, err
	}
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		extend(m, key, r.ttl, r.rec, stop)
	}()
	return held{id: m.Value(), until: until(m.Until()), release: func(ctx context.Context) error {
		close(stop)
		<-ended
		_, err := m.UnlockContext(ctx)
		return err
	}}, nil
}

// obey refuses: there are no orders for peers.
func (r *redsyncs) obey(_ context.Context, order string) error {
	return fmt.Errorf("redsync takes no order %q", order)
}

func (r *redsyncs) close() {
	for _, c := range r.clients {
		c.Close()
	}
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
