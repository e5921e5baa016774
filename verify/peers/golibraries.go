//go:build linux

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"cirello.io/pglock"
	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	pool "github.com/go-redsync/redsync/v4/redis"
	redsyncgoredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	rueidispool "github.com/go-redsync/redsync/v4/redis/rueidis"
	"github.com/go-zookeeper/zk"
	_ "github.com/lib/pq"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidiscompat"
	"github.com/redis/rueidis/rueidislock"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/holdfast-go/holdfast"
	_ "github.com/holdfast-go/holdfast/etcd"
	_ "github.com/holdfast-go/holdfast/postgres"
	_ "github.com/holdfast-go/holdfast/redis"
	"github.com/holdfast-go/holdfast/verify/tool"
	_ "github.com/holdfast-go/holdfast/zookeeper"
)

// ttl is the TTL of every lock: short for the run, long for a busy machine.
const ttl = 6 * time.Second

// heldLock is a lock granted by a Go library.
type heldLock struct {
	lost    <-chan struct{}                     // closed by the library when the lock is lost; nil: it gives no notice
	check   func(context.Context) (bool, error) // asks the library whether the lock is still held
	release func(context.Context) error
}

// takeFunc acquires the lock; without wait it tries once.
type takeFunc func(ctx context.Context, wait bool) (*heldLock, error)

// goLibraries opens one client of each library in Go for the server at addr and the lock on key.
var goLibraries = map[string]func(ctx context.Context, addr, key string) (takeFunc, error){
	"holdfast-redis": func(ctx context.Context, addr, key string) (takeFunc, error) {
		return openHoldfast(ctx, "redis://"+addr, key)
	},
	"holdfast-etcd": func(ctx context.Context, addr, key string) (takeFunc, error) {
		return openHoldfast(ctx, "etcd://"+addr, key)
	},
	"holdfast-zookeeper": func(ctx context.Context, addr, key string) (takeFunc, error) {
		return openHoldfast(ctx, "zk://"+addr, key)
	},
	"holdfast-postgres": func(ctx context.Context, addr, key string) (takeFunc, error) {
		url := "postgres://holdfast@" + addr + "/postgres?sslmode=disable"
		if err := tool.MakeTables(ctx, url); err != nil {
			return nil, err
		}
		return openHoldfast(ctx, url, key)
	},
	"redsync-goredis": func(_ context.Context, addr, key string) (takeFunc, error) {
		return openRedsync(redsyncgoredis.NewPool(goredis.NewClient(&goredis.Options{Addr: addr})), key)
	},
	"redsync-rueidis": func(_ context.Context, addr, key string) (takeFunc, error) {
		c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}})
		if err != nil {
			return nil, err
		}
		return openRedsync(rueidispool.NewPool(rueidiscompat.NewAdapter(c)), key)
	},
	"redislock":        openRedislock,
	"rueidislock":      openRueidislock,
	"etcd-concurrency": openConcurrency,
	"pglock":           openPglock,
	"zk.Lock":          openZk,
}

func openHoldfast(ctx context.Context, url, key string) (takeFunc, error) {
	c, err := holdfast.Open(ctx, url, nil)
	if err != nil {
		return nil, err
	}
	opts := &holdfast.AcquireOptions{TTL: ttl}
	return func(ctx context.Context, wait bool) (*heldLock, error) {
		acquire := c.Acquire
		if !wait {
			acquire = c.TryAcquire
		}
		l, err := acquire(ctx, key, opts)
		if err != nil {
			return nil, err
		}
		check := func(context.Context) (bool, error) { return l.Context().Err() == nil, nil }
		return &heldLock{l.Context().Done(), check, l.Release}, nil
	}, nil
}

func openRedsync(p pool.Pool, key string) (takeFunc, error) {
	all := redsync.New(p)
	return func(ctx context.Context, wait bool) (*heldLock, error) {
		m := all.NewMutex(key, redsync.WithExpiry(ttl))
		lock := m.LockContext
		if !wait {
			lock = m.TryLockContext
		}
		if err := lock(ctx); err != nil {
			return nil, err
		}
		check := func(context.Context) (bool, error) { return time.Now().Before(m.Until()), nil }
		return &heldLock{nil, check, func(ctx context.Context) error { _, err := m.UnlockContext(ctx); return err }}, nil
	}, nil
}

// openRedislock retries with the pause of redislock's example, 100 ms. Its default is no retry.
func openRedislock(_ context.Context, addr, key string) (takeFunc, error) {
	all := redislock.New(goredis.NewClient(&goredis.Options{Addr: addr}))
	return func(ctx context.Context, wait bool) (*heldLock, error) {
		opts := &redislock.Options{}
		if wait {
			opts.RetryStrategy = redislock.LinearBackoff(100 * time.Millisecond)
		}
		l, err := all.Obtain(ctx, key, ttl, opts)
		if err != nil {
			return nil, err
		}
		check := func(ctx context.Context) (bool, error) { left, err := l.TTL(ctx); return left > 0, err }
		return &heldLock{nil, check, l.Release}, nil
	}, nil
}

// openRueidislock uses one key per lock, as rueidislock's documentation advises for a single server.
func openRueidislock(_ context.Context, addr, key string) (takeFunc, error) {
	all, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{addr}}, KeyValidity: ttl, KeyMajority: 1,
	})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, wait bool) (*heldLock, error) {
		lock := all.WithContext
		if !wait {
			lock = all.TryWithContext
		}
		parent, unlink := detachContext(ctx)
		held, cancel, err := lock(parent, key)
		if !unlink() && err == nil {
			cancel()
			err = ctx.Err()
		}
		if err != nil {
			return nil, err
		}
		check := func(context.Context) (bool, error) { return held.Err() == nil, nil }
		return &heldLock{held.Done(), check, func(context.Context) error { cancel(); return nil }}, nil
	}, nil
}

// openConcurrency uses a session per lock, so that the loss of one lock does not end the others.
func openConcurrency(_ context.Context, addr, key string) (takeFunc, error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, Logger: zap.NewNop()})
	if err != nil {
		return nil, err
	}
	session, err := concurrency.NewSession(c, concurrency.WithTTL(int(ttl/time.Second)))
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, wait bool) (*heldLock, error) {
		select {
		case <-session.Done():
			if session, err = concurrency.NewSession(c, concurrency.WithTTL(int(ttl/time.Second))); err != nil {
				return nil, err
			}
		default:
		}
		m := concurrency.NewMutex(session, key)
		lock := m.Lock
		if !wait {
			lock = m.TryLock
		}
		if err := lock(ctx); err != nil {
			return nil, err
		}
		done := session.Done()
		check := func(context.Context) (bool, error) {
			select {
			case <-done:
				return false, nil
			default:
				return true, nil
			}
		}
		return &heldLock{done, check, m.Unlock}, nil
	}, nil
}

// detachContext returns a context that ends with ctx until unlink is called. Otherwise a lock whose context
// descends from the context of a call would end with the call. unlink returns false if ctx had ended.
func detachContext(ctx context.Context) (parent context.Context, unlink func() bool) {
	parent, end := context.WithCancel(context.WithoutCancel(ctx))
	return parent, context.AfterFunc(ctx, end)
}

func openPglock(_ context.Context, addr, key string) (takeFunc, error) {
	db, err := sql.Open("postgres", "postgres://holdfast@"+addr+"/postgres?sslmode=disable")
	if err != nil {
		return nil, err
	}
	all, err := pglock.New(db, pglock.WithLeaseDuration(ttl), pglock.WithHeartbeatFrequency(ttl/3))
	if err != nil {
		return nil, err
	}
	if err := all.TryCreateTable(); err != nil {
		return nil, err
	}
	// The context of the work in Do ends when a heartbeat fails.
	return func(ctx context.Context, wait bool) (*heldLock, error) {
		var opts []pglock.LockOption
		if !wait {
			opts = append(opts, pglock.FailIfLocked())
		}
		granted, failed, done := make(chan *heldLock, 1), make(chan error, 1), make(chan struct{})
		parent, unlink := detachContext(ctx)
		go func() {
			failed <- all.Do(parent, key, func(work context.Context, l *pglock.Lock) error {
				check := func(context.Context) (bool, error) { return !l.IsReleased(), nil }
				granted <- &heldLock{work.Done(), check, func(context.Context) error { defer close(done); return l.Close() }}
				<-done
				return nil
			}, opts...)
		}()
		select {
		case h := <-granted:
			unlink()
			return h, nil
		case err := <-failed:
			return nil, err
		}
	}, nil
}

// openZk uses the end of the session as the notice of a loss: zk.Lock has none.
func openZk(ctx context.Context, addr, key string) (takeFunc, error) {
	c, events, err := zk.Connect([]string{addr}, ttl, zk.WithLogInfo(false), zk.WithLogger(silentLogger{}))
	if err != nil {
		return nil, err
	}
	connected, locks := make(chan struct{}, 100), make(chan chan struct{}, 100)
	go func() {
		for e := range events {
			switch e.State {
			case zk.StateHasSession:
				connected <- struct{}{}
			case zk.StateExpired:
				for len(locks) > 0 {
					close(<-locks)
				}
			}
		}
	}()
	select {
	case <-connected:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return func(ctx context.Context, wait bool) (*heldLock, error) {
		l := zk.NewLock(c, "/"+key, zk.WorldACL(zk.PermAll))
		if !wait { // zk.Lock always waits, without a limit
			if nodes, _, err := c.Children("/" + key); err == nil && len(nodes) > 0 {
				return nil, fmt.Errorf("%d nodes are there", len(nodes))
			}
		}
		if err := l.Lock(); err != nil {
			return nil, err
		}
		lost := make(chan struct{})
		locks <- lost
		check := func(context.Context) (bool, error) { return false, errNoCheck }
		return &heldLock{lost, check, func(context.Context) error { return l.Unlock() }}, nil
	}, nil
}

// errNoCheck is returned by the check of a library without one.
var errNoCheck = errors.New("there is no check")

type silentLogger struct{}

func (silentLogger) Printf(string, ...any) {}
