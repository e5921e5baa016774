package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/redis"
)

// The clients of one bare key, each library as in its README.
var (
	bare           = library{name: holdfastName, open: openHoldfast(redis.Options{BareKeys: true})}
	plainRedsync   = library{name: "redsync", open: openGoredis(false)}
	plainRedislock = library{name: "redislock", open: openRedislock(8*time.Second, 100*time.Millisecond)}
	setNXLoop      = library{name: "SET NX", open: func(_ context.Context, addrs []string, workers int) (client, error) {
		return setNXClient{newGoredis(addrs[0], workers, false)}, nil
	}}
)

// The test counts locks instead of time: both sides continue until the slower one has its share of locks, and
// then the other side's share decides.
func TestNoLibraryStarvesOnSharedKey(t *testing.T) {
	t.Parallel()
	l := load{name: "contest", workers: 4, shared: true, inside: 5 * time.Millisecond, outside: 2 * time.Millisecond, enough: 100}
	for _, c := range []struct {
		nodes, clients int
		other          library
	}{{1, 1, plainRedsync}, {1, 1, plainRedislock}, {1, 1, setNXLoop}, {1, 4, plainRedsync}, {1, 4, plainRedislock}, {1, 4, setNXLoop}, {3, 4, plainRedsync}} {
		t.Run(fmt.Sprintf("%d and %s on %d", c.clients, c.other.name, c.nodes), func(t *testing.T) {
			t.Parallel()
			sv := startService(t, fmt.Sprintf("redis-%d", c.nodes))
			s := settings{time: time.Minute, grace: 10 * time.Second}
			got, err := measureLoad(t.Context(), s, sv, l, team{bare, c.clients, l.workers / c.clients}, team{c.other, 1, l.workers})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d and %d locks", got[0].locks, got[1].locks)
			for i, name := range []string{holdfastName, c.other.name} {
				if all := got[0].locks + got[1].locks; got[i].locks*20 < all {
					t.Errorf("%s had %d of %d locks", name, got[i].locks, all)
				}
			}
		})
	}
}

// The test replaces one pod at a time, in both directions. Each stage ends when every worker has had its
// locks.
func TestRollingReplacementServesEveryWaiter(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	l := load{workers: 4, inside: 2 * time.Millisecond, outside: 2 * time.Millisecond}
	stages, err := migrateWorkers(ctx, startService(t, "redis-1"), l, 3)
	if err != nil {
		t.Fatalf("after %+v: %v", stages, err)
	}
	if last := stages[len(stages)-1]; len(stages) != 9 || stages[4].ours != 4 || last.theirs != 4 {
		t.Errorf("stages %+v", stages)
	}
}

// setNXClient is a loop around SET NX with 20 to 80 ms between tries.
type setNXClient struct{ *goredis.Client }

func (c setNXClient) lock(ctx context.Context, name string) (func(context.Context) error, error) {
	for {
		ok, err := c.SetNX(ctx, name, "worker", 8*time.Second).Result()
		if err != nil {
			return nil, err
		}
		if ok {
			return func(ctx context.Context) error { return c.Del(ctx, name).Err() }, nil
		}
		select {
		case <-time.After(20*time.Millisecond + rand.N(60*time.Millisecond)):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (c setNXClient) close() { c.Client.Close() }

// stage counts the locks while a key had the same workers.
type stage struct {
	ours, theirs int // workers
	locks        int
	longest      time.Duration // longest wait of a worker
}

// crew holds the current workers.
type crew struct {
	load
	key string

	mu      sync.Mutex // guards the fields below
	turns   []int      // by place, in this stage
	locks   int
	longest time.Duration
}

// migrateWorkers makes the workers of a load compete for a key. It replaces redsync's workers by Holdfast's
// one by one, and back. A stage lasts until every worker has had the lock times times in it.
func migrateWorkers(ctx context.Context, sv *service, l load, times int) (stages []stage, err error) {
	theirs, err := plainRedsync.open(ctx, sv.addrs, l.workers)
	if err != nil {
		return nil, err
	}
	defer theirs.close()
	ours, err := openAll(ctx, team{bare, l.workers, 1}, sv.addrs, "first", 0)
	defer closeAll(ours)
	if err != nil {
		return nil, err
	}
	c := &crew{load: l, key: "shared", turns: make([]int, l.workers)}
	replace := make([]func(client), l.workers)
	for i := range replace {
		replace[i] = c.placeClient(ctx, i, theirs)
		defer replace[i](nil)
	}
	note := func(n int) {
		locks, longest := c.runStage(ctx, times)
		stages = append(stages, stage{n, l.workers - n, locks, longest})
	}
	note(0)
	for i := range replace {
		replace[i](ours[i])
		note(i + 1)
	}
	for i := range replace {
		replace[i](theirs)
		note(l.workers - i - 1)
	}
	return stages, ctx.Err()
}

// placeClient makes a client work at a place. replace ends it after its current lock and puts another client,
// or none, in its place.
func (c *crew) placeClient(ctx context.Context, at int, first client) (replace func(client)) {
	var over, gone chan struct{}
	begin := func(cl client) {
		over, gone = make(chan struct{}), make(chan struct{})
		go func() {
			defer close(gone)
			c.runWorker(ctx, over, cl, func() string { return c.key }, func(asked time.Time, err error) { c.noteWait(at, asked, err) })
		}()
	}
	begin(first)
	return func(next client) {
		close(over)
		<-gone
		if next != nil {
			begin(next)
		}
	}
}

func (c *crew) noteWait(at int, asked time.Time, err error) {
	if err != nil {
		return // too many tries, or the end of the test
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turns[at]++
	c.locks++
	c.longest = max(c.longest, time.Since(asked))
}

// runStage waits until every worker has had the lock times times.
func (c *crew) runStage(ctx context.Context, times int) (locks int, longest time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.turns)
	c.locks, c.longest = 0, 0
	for slices.Min(c.turns) < times && ctx.Err() == nil {
		c.mu.Unlock()
		time.Sleep(time.Millisecond)
		c.mu.Lock()
	}
	return c.locks, c.longest
}
