//go:build linux

package main

import (
	"context"
	crand "crypto/rand"
	"fmt"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// redsyncs uses redsync in a client process.
type redsyncs struct {
	rs      *redsync.Redsync
	clients []*redis.Client
	ttl     time.Duration
	rec     *recorder
}

// openRedsync opens redsync as in its README.
func openRedsync(o *order, rec *recorder) (service, error) {
	r := &redsyncs{ttl: time.Duration(o.Schedule.TTL), rec: rec}
	var pools []redsyncredis.Pool
	for _, addr := range o.Nodes {
		c := redis.NewClient(&redis.Options{Addr: addr})
		r.clients = append(r.clients, c)
		pools = append(pools, goredis.NewPool(c))
	}
	r.rs = redsync.New(pools...)
	return r, nil
}

// takeLock has enough tries to wait until the end of the window. It extends a lock after each third of its
// TTL, as Holdfast does.
func (r *redsyncs) takeLock(ctx context.Context, key string, _ lockRequest) (heldLock, error) {
	m := r.rs.NewMutex(key, redsync.WithExpiry(r.ttl), redsync.WithTries(1<<30))
	if err := m.LockContext(ctx); err != nil {
		return heldLock{}, err
	}
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		extendMutex(m, key, r.ttl, r.rec, stop)
	}()
	return heldLock{id: m.Value(), until: monotonicOf(m.Until()), release: func(ctx context.Context) error {
		close(stop)
		<-ended
		_, err := m.UnlockContext(ctx)
		return err
	}}, nil
}

func (*redsyncs) executeOrder(_ context.Context, order string) error { return unknownOrder(order) }

func (r *redsyncs) close() {
	for _, c := range r.clients {
		c.Close()
	}
}

func extendMutex(m *redsync.Mutex, key string, ttl time.Duration, rec *recorder, stop <-chan struct{}) {
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
		rec.record(event{Kind: renewed, Key: key, ID: m.Value(), Until: monotonicOf(m.Until())})
	}
}

func unknownOrder(order string) error {
	return fmt.Errorf("there is no order %q for another recipe", order)
}

// checkInterval is the interval at which a holder's belief in its lock is checked.
const checkInterval = 50 * time.Millisecond

// newBelief returns a held lock without a deadline, which its holder trusts for as long as holds returns true.
func newBelief(rec *recorder, key string, holds func() bool, release func(context.Context) error) heldLock {
	id, stop, ended := crand.Text(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(checkInterval)
		defer tick.Stop()
		for holds() {
			rec.record(event{Kind: renewed, Key: key, ID: id, Until: monotonicNow()})
			select {
			case <-stop:
				return
			case <-tick.C:
			}
		}
		rec.record(event{Kind: lost, Key: key, ID: id})
	}()
	return heldLock{id: id, until: monotonicNow(), release: func(ctx context.Context) error {
		close(stop)
		<-ended
		return release(ctx)
	}}
}
