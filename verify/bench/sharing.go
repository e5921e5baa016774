package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/redis"
	"github.com/holdfast-go/holdfast/verify/interop/foreign"
)

// What workers take one bare key with, each library as its README has it.
var (
	bare     = library{name: holdfastName, open: openHoldfast(redis.Options{BareKeys: true})}
	likeJava = library{name: holdfastName, open: openHoldfast(redis.Options{BareKeys: true, Format: redis.FormatRedisson})}

	plainRedsync   = library{name: "redsync", open: openGoredis(false)}
	plainRedislock = library{name: "redislock", open: openRedislock(8*time.Second, 100*time.Millisecond)}
	setNXLoop      = library{name: "SET NX", open: func(_ context.Context, addrs []string, workers int) (client, error) {
		return setNXClient{newGoredis(addrs[0], workers, false)}, nil
	}}
)

// contests are the loads under which two libraries compete, each with so many workers.
var contests = []load{
	{name: "1 ms of work, no rest", workers: 4, shared: true, inside: time.Millisecond},
	{name: "5 ms of work, 2 ms of rest", workers: 4, shared: true, inside: 5 * time.Millisecond, outside: 2 * time.Millisecond},
	{name: "200 ms of work, 150 ms of rest", workers: 1, shared: true, inside: 200 * time.Millisecond, outside: 150 * time.Millisecond},
}

func sharing(ctx context.Context, s *session) error {
	return s.eachService(ctx, func(sv *service) error {
		if s.wants("compete") {
			if err := s.compete(ctx, sv); err != nil {
				return err
			}
		}
		for _, m := range migrations {
			if !s.wants(m.name) {
				continue
			}
			turns := max(int(25*s.scale), 1)
			fmt.Fprintf(s.progress, "%s …\n", m.name)
			stages, err := migrate(ctx, sv, m, contests[1], turns)
			if errors.Is(err, foreign.ErrMissing) {
				fmt.Fprintf(s.out, "\n%s: %v\n", m.name, err)
				continue
			}
			if err != nil {
				return err
			}
			cells := [][]string{{"workers of " + m.from.name, "of Holdfast", "locks", "longest wait"}}
			for _, st := range stages {
				cells = append(cells, []string{fmt.Sprint(st.theirs), fmt.Sprint(st.ours), fmt.Sprint(st.locks), st.longest.Round(time.Millisecond).String()})
			}
			fmt.Fprintf(s.out, "\nWorkers replaced one by one, and back; each has the lock %d times in a stage:\n\n%s", turns, markdown(cells, 0))
		}
		return nil
	})
}

// compete prints what each side gets of a key: Holdfast with one client or more, beside another library or alone.
func (s *session) compete(ctx context.Context, sv *service) error {
	cells := [][]string{{"load", "Holdfast", "locks", "longest wait", "other library", "locks", "longest wait"}}
	for _, l := range contests {
		fmt.Fprintf(s.progress, "compete, %s …\n", l.name)
		for clients := 1; clients <= l.workers; clients += max(l.workers-1, 1) {
			for _, other := range []*library{&plainRedsync, &plainRedislock, &setNXLoop, nil} {
				teams := []team{{bare, clients, l.workers / clients}}
				if other != nil {
					teams = append(teams, team{*other, 1, l.workers})
				}
				got, err := measure(ctx, s.settings, sv, l, teams...)
				if err != nil {
					return err
				}
				line := []string{fmt.Sprintf("%d and %d workers, %s", l.workers, l.workers*(len(teams)-1), l.name), fmt.Sprintf("%d client(s)", clients)}
				for i, side := range got {
					if i > 0 {
						line = append(line, other.name)
					}
					line = append(line, fmt.Sprint(side.locks), side.longest.Round(time.Millisecond).String())
				}
				cells = append(cells, append(line, make([]string, len(cells[0])-len(line))...))
			}
		}
	}
	fmt.Fprintf(s.out, "%v each:\n\n%s", s.settings.time, markdown(cells, 2))
	return nil
}

// setNXClient is a loop around SET NX, 20 to 80 ms between two tries.
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

// migration is a way from another library to Holdfast, on the key that Holdfast names.
type migration struct {
	name, key string
	from, to  library
}

func (m migration) String() string { return m.name }

var migrations = []migration{
	{"from-redsync", "shared", plainRedsync, bare},
	{"from-redisson", "shared", library{name: "RLock", open: openJava("redisson")}, likeJava},
	{"from-shedlock", "job-lock:default:shared", library{name: "ShedLock", open: openJava("shedlock")}, bare},
}

// javaClient is threads of one program in Java, each with a client of its own, as a process has.
type javaClient struct {
	*foreign.Workers
	idle chan int
}

func openJava(library string) func(context.Context, []string, int) (client, error) {
	return func(ctx context.Context, addrs []string, workers int) (client, error) {
		java, err := foreign.Start(ctx, "java", library, addrs, "shared", 0, workers)
		if err != nil {
			return nil, err
		}
		c := javaClient{java, make(chan int, workers)}
		for i := range workers {
			c.idle <- i
		}
		return c, nil
	}
}

func (c javaClient) lock(context.Context, string) (func(context.Context) error, error) {
	i := <-c.idle
	if err := c.obey(i, "lock"); err != nil {
		c.idle <- i
		return nil, err
	}
	return func(context.Context) error {
		defer func() { c.idle <- i }()
		return c.obey(i, "unlock")
	}, nil
}

func (c javaClient) obey(i int, verb string) error {
	said, err := c.Do(i, verb)
	if err == nil && said != verb {
		err = fmt.Errorf("%s: %s", verb, said)
	}
	return err
}

func (c javaClient) close() { c.Stop() }

// stage has the locks taken while a key had the same workers.
type stage struct {
	ours, theirs int // workers
	locks        int
	longest      time.Duration // wait of any worker
}

// crew is the workers of the moment.
type crew struct {
	load
	key string

	mu      sync.Mutex // guards what follows
	turns   []int      // of each place, in this stage
	locks   int
	longest time.Duration
}

// migrate has the workers of a load compete for a key, replaces them one by one, and back. A stage lasts until every
// worker has had the lock least times in it.
func migrate(ctx context.Context, sv *service, m migration, l load, least int) (stages []stage, err error) {
	theirs, err := m.from.open(ctx, sv.addrs, l.workers)
	if err != nil {
		return nil, err
	}
	defer theirs.close()
	ours, err := openAll(ctx, team{m.to, l.workers, 1}, sv.addrs, "first", 0)
	defer closeAll(ours)
	if err != nil {
		return nil, err
	}
	c := &crew{load: l, key: m.key, turns: make([]int, l.workers)}
	replace := make([]func(client), l.workers)
	for i := range replace {
		replace[i] = c.place(ctx, i, theirs)
		defer replace[i](nil)
	}
	note := func(n int) {
		locks, longest := c.stage(ctx, least)
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

// place lets a client work at a place, until replace ends it after its lock and puts another one there, or nobody.
func (c *crew) place(ctx context.Context, at int, first client) (replace func(client)) {
	var over, gone chan struct{}
	begin := func(cl client) {
		over, gone = make(chan struct{}), make(chan struct{})
		go func() {
			defer close(gone)
			c.work(ctx, over, cl, func() string { return c.key }, func(asked time.Time, err error) { c.note(at, asked, err) })
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

func (c *crew) note(at int, asked time.Time, err error) {
	if err != nil {
		return // it tried too often, or the time is up
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turns[at]++
	c.locks++
	c.longest = max(c.longest, time.Since(asked))
}

// stage waits until every worker has had its turns.
func (c *crew) stage(ctx context.Context, least int) (locks int, longest time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.turns)
	c.locks, c.longest = 0, 0
	for slices.Min(c.turns) < least && ctx.Err() == nil {
		c.mu.Unlock()
		time.Sleep(time.Millisecond)
		c.mu.Lock()
	}
	return c.locks, c.longest
}
