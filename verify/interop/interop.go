// Command interop makes workers of Holdfast and of other lock libraries increment one counter under one lock,
// and writes the result of each side: go run ./interop -md ../docs/interop.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/redis"
	"github.com/holdfast-go/holdfast/verify/interop/foreign"
)

const (
	// Workers is the number of workers of each side.
	Workers  = 4
	redisson = "4.7.0" // as verify/interop/java/pom.xml has it
	// patience bounds a run on a busy machine.
	patience = 3 * time.Minute
)

// Library is another lock library, with the settings by which Holdfast excludes it.
type Library struct {
	Name    string
	Version string // "": the version in go.mod
	// Nodes is the number of servers of the lock.
	Nodes int
	// Prefix precedes the name in the library's keys. "": the name is the key.
	Prefix string
	// Format is the format of the locks; bare keys if it is plain.
	Format redis.Format
	JVM    bool // runs in Java
	start  starter
}

// starter prepares the workers of a library for count increments in all.
type starter func(ctx context.Context, addrs []string, key string, count int) (*workerSide, error)

// Libraries are all known libraries.
var Libraries = []Library{
	{Name: "redsync", Nodes: 1, start: inProcess(redsyncWorker)},
	{Name: "redsync", Nodes: 3, start: inProcess(redsyncWorker)},
	{Name: "redislock", Nodes: 1, start: inProcess(redislockWorker)},
	{Name: "redis-py", Version: "8.1.0", Nodes: 1, start: startPython("redis-py")},
	{Name: "redis.asyncio", Version: "8.1.0", Nodes: 1, start: startPython("redis.asyncio")},
	{Name: "node-redlock", Version: "5.0.0-beta.2", Nodes: 1, start: startNode("redlock")},
	{Name: "node-redlock", Version: "5.0.0-beta.2", Nodes: 3, start: startNode("redlock")},
	{Name: "redis-semaphore", Version: "5.8.0", Nodes: 1, Prefix: "mutex:", start: startNode("redis-semaphore")},
	{Name: "Redisson RLock", Version: redisson, Nodes: 1, Format: redis.FormatRedisson, JVM: true, start: startJava("redisson")},
	{Name: "Redisson RFencedLock", Version: redisson, Nodes: 1, Format: redis.FormatRedisson, JVM: true, start: startJava("redisson-fenced")},
	{Name: "Redisson RFairLock", Version: redisson, Nodes: 1, Format: redis.FormatRedisson, JVM: true, start: startJava("redisson-fair")},
	{Name: "ShedLock", Version: "7.10.1", Nodes: 1, Prefix: "job-lock:default:", JVM: true, start: startJava("shedlock")},
	{Name: "Spring RedisLockRegistry", Version: "7.1.2", Nodes: 1, Prefix: "registry:", JVM: true, start: startJava("spring")},
}

// Share is one side's result.
type Share struct {
	Locks   int
	Longest time.Duration
}

// workerSide has workers that are ready. run makes them work until each has done its part.
type workerSide struct {
	run  func() (Share, error)
	stop func()
}

// Result is the result of one run.
type Result struct {
	Ours, Theirs Share
	Lost         int // increments
}

// Run makes both sides increment a counter until the library's workers have done so count times, and counts
// lost increments. Each worker reads the counter, waits for a millisecond, and writes it: without exclusion,
// increments are lost.
func Run(ctx context.Context, l Library, addrs []string, count int) (Result, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	const name = "shared"
	theirs, err := l.start(ctx, addrs, name, count)
	if err != nil {
		return Result{}, err
	}
	defer theirs.stop()
	data := goredis.NewClient(&goredis.Options{Addr: addrs[0]})
	defer data.Close()
	var result Result
	working, done := context.WithCancel(ctx)
	defer done()
	ours := make(chan error, 1)
	ready := make(chan struct{})
	go func() {
		var err error
		result.Ours, err = runHoldfasts(working, addrs, l, name, data, ready)
		ours <- err
	}()
	select {
	case <-ready:
	case err := <-ours:
		return result, err
	}
	result.Theirs, err = theirs.run()
	done()
	if err = errors.Join(err, <-ours, ctx.Err()); err != nil {
		return result, fmt.Errorf("%+v: %w", result, err)
	}
	counter, err := data.Get(ctx, "counter").Int()
	result.Lost = result.Ours.Locks + result.Theirs.Locks - counter
	return result, err
}

// runHoldfasts works with clients of Holdfast until ctx ends.
func runHoldfasts(ctx context.Context, addrs []string, l Library, name string, data *goredis.Client, ready chan<- struct{}) (total Share, err error) {
	var nodes []redis.Node
	for _, addr := range addrs {
		nodes = append(nodes, redis.Node{Addr: addr})
	}
	opts := &redis.Options{BareKeys: true, Format: l.Format, NoQuarantine: true, Timeout: 10 * time.Second}
	var clients []*holdfast.Client
	defer func() {
		for _, c := range clients {
			c.Close()
		}
	}()
	for range Workers {
		drv, err := redis.New(ctx, nodes, opts)
		if err != nil {
			return total, err
		}
		c, err := holdfast.New(drv, nil)
		if err != nil {
			return total, err
		}
		clients = append(clients, c)
	}
	close(ready)
	i := 0
	return runWorkers(func() worker {
		c := clients[i]
		i++
		return func() (free func() error, err error) {
			lease, err := c.Acquire(ctx, l.Prefix+name, &holdfast.AcquireOptions{TTL: 30 * time.Second})
			if err != nil {
				return nil, err
			}
			return func() error { return lease.Release(context.Background()) }, nil
		}
	}, data, func(int) bool { return ctx.Err() == nil })
}

// worker acquires the lock once, however long that takes, and returns the function that releases it. After an
// error the caller tries again.
type worker func() (free func() error, err error)

// runWorkers makes Workers workers increment the counter while more returns true.
func runWorkers(open func() worker, data *goredis.Client, more func(done int) bool) (total Share, err error) {
	var mu sync.Mutex // guards total and err
	var all sync.WaitGroup
	for range Workers {
		take := open()
		all.Go(func() {
			for done, since := 0, time.Now(); more(done); {
				free, failed := take()
				if failed != nil {
					continue // the library may give up after some tries
				}
				waited := time.Since(since)
				failed = errors.Join(incrementCounter(data), free())
				mu.Lock()
				total.Locks++
				total.Longest = max(total.Longest, waited)
				err = errors.Join(err, failed)
				mu.Unlock()
				done++
				since = time.Now()
			}
		})
	}
	all.Wait()
	return total, err
}

func incrementCounter(data *goredis.Client) error {
	ctx := context.Background()
	n, err := data.Get(ctx, "counter").Int()
	if err != nil && !errors.Is(err, goredis.Nil) {
		return err
	}
	time.Sleep(time.Millisecond) // the gap that the lock protects
	return data.Set(ctx, "counter", n+1, 0).Err()
}

// inProcess returns a function that starts the workers of a Go library in this process.
func inProcess(open func(ctx context.Context, addrs []string, key string) (next func() worker, stop func(), err error)) starter {
	return func(ctx context.Context, addrs []string, key string, count int) (*workerSide, error) {
		workers, stop, err := open(ctx, addrs, key)
		if err != nil {
			return nil, err
		}
		run := func() (Share, error) {
			data := goredis.NewClient(&goredis.Options{Addr: addrs[0]})
			defer data.Close()
			return runWorkers(workers, data, func(done int) bool { return done < count/Workers && ctx.Err() == nil })
		}
		return &workerSide{run: run, stop: stop}, nil
	}
}

func startPython(library string) starter { return startProgram("python", library) }
func startNode(library string) starter   { return startProgram("node", library) }
func startJava(library string) starter   { return startProgram("java", library) }

// startProgram returns a function that starts a program with workers. The program reports when it is ready,
// begins when it receives a line, and prints its result at the end.
func startProgram(language, library string) starter {
	return func(ctx context.Context, addrs []string, key string, count int) (*workerSide, error) {
		w, err := foreign.Start(ctx, language, library, addrs, key, count, Workers)
		if err != nil {
			return nil, err
		}
		run := func() (share Share, err error) {
			share.Locks, share.Longest, err = w.Run()
			return share, err
		}
		return &workerSide{run: run, stop: w.Stop}, nil
	}
}

// Servers starts servers for one run and returns a function that stops them.
func Servers(ctx context.Context, n int) (addrs []string, stop func(), err error) {
	var all []*redisproc.Server
	stop = func() {
		for _, s := range all {
			s.Stop()
		}
	}
	for range n {
		s, err := redisproc.Start(ctx, nil)
		if err != nil {
			stop()
			return nil, nil, err
		}
		all, addrs = append(all, s), append(addrs, s.Addr())
	}
	return addrs, stop, nil
}
