// Command interop has workers of Holdfast and of other lock libraries increment one counter
// under one lock, and writes what each side got: go run ./interop -md ../docs/interop.md.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/redlock"
)

const (
	// Workers is how many workers each side has.
	Workers = 4
	// patience is how long a run may take, on a machine that does other things.
	patience = 3 * time.Minute
)

// Library is another lock library, and how clients of Holdfast have to be opened to exclude it.
type Library struct {
	Name    string
	Version string // "": as go.mod has it
	// Nodes is on how many servers the lock is.
	Nodes int
	// Prefix is what the library puts before the name. "": the name is the key.
	Prefix string
	// Note says what a reader of the page should know.
	Note  string
	start starter
}

// starter makes the workers of a library ready, to increment count times in all.
type starter func(ctx context.Context, addrs []string, key string, count int) (*side, error)

// Libraries are all that are known here.
var Libraries = []Library{
	{Name: "redsync", Nodes: 1, start: inProcess(redsyncWorker)},
	{Name: "redsync", Nodes: 3, start: inProcess(redsyncWorker)},
	{Name: "redislock", Nodes: 1, start: inProcess(redislockWorker)},
	{Name: "redis-py", Version: "5.2.1", Nodes: 1, start: python("redis-py")},
	{Name: "redis.asyncio", Version: "5.2.1", Nodes: 1, start: python("redis.asyncio")},
	{Name: "node-redlock", Version: "5.0.0-beta.2", Nodes: 1, start: node("redlock")},
	{Name: "node-redlock", Version: "5.0.0-beta.2", Nodes: 3, start: node("redlock")},
	{Name: "redis-semaphore", Version: "5.6.2", Nodes: 1, Prefix: "mutex:", start: node("redis-semaphore")},
}

// ErrMissing says why a library cannot be run on this machine.
var ErrMissing = errors.New("not on this machine")

// Share is what one side got.
type Share struct {
	Locks   int
	Longest time.Duration
}

// side is some workers that are ready. run has them work until each has done its part.
type side struct {
	run  func() (Share, error)
	stop func()
}

// Result is one run.
type Result struct {
	Ours, Theirs Share
	Lost         int // increments
}

// Run has both sides increment a counter until the workers of the library have done so
// count times, and counts what was lost. Both sides read the counter, wait for a
// millisecond, and write it: whoever is not alone loses an increment.
func Run(ctx context.Context, l Library, addrs []string, count int) (Result, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	const name = "shared"
	theirs, err := l.start(ctx, addrs, name, count)
	if err != nil {
		return Result{}, err
	}
	defer theirs.stop()
	data := redis.NewClient(&redis.Options{Addr: addrs[0]})
	defer data.Close()
	var result Result
	working, done := context.WithCancel(ctx)
	defer done()
	ours := make(chan error, 1)
	ready := make(chan struct{})
	go func() {
		var err error
		result.Ours, err = holdfasts(working, addrs, l.Prefix+name, data, ready)
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

// holdfasts works with clients of Holdfast until ctx ends.
func holdfasts(ctx context.Context, addrs []string, name string, data *redis.Client, ready chan<- struct{}) (total Share, err error) {
	var nodes []redlock.Node
	for _, addr := range addrs {
		nodes = append(nodes, redlock.Node{Addr: addr})
	}
	opts := &redlock.Options{BareKeys: true, NoQuarantine: true, Timeout: 10 * time.Second}
	var clients []*holdfast.Client
	defer func() {
		for _, c := range clients {
			c.Close()
		}
	}()
	for range Workers {
		drv, err := redlock.Open(ctx, nodes, opts)
		if err != nil {
			return total, err
		}
		c, err := holdfast.New(drv, nil)
		if err != nil {
			return total, errors.Join(err, drv.Close())
		}
		clients = append(clients, c)
	}
	close(ready)
	i := 0
	return work(func() worker {
		c := clients[i]
		i++
		return func() (free func() error, err error) {
			lease, err := c.Acquire(ctx, name, &holdfast.AcquireOptions{TTL: 30 * time.Second})
			if err != nil {
				return nil, err
			}
			return func() error { return lease.Release(context.Background()) }, nil
		}
	}, data, func(int) bool { return ctx.Err() == nil })
}

// worker takes the lock once, however long that takes, and returns how to free it. An error
// means that it is to try again.
type worker func() (free func() error, err error)

// work has Workers workers increment the counter while more says so.
func work(open func() worker, data *redis.Client, more func(done int) bool) (total Share, err error) {
	var mu sync.Mutex // guards total and err
	var all sync.WaitGroup
	for range Workers {
		take := open()
		all.Go(func() {
			for done, since := 0, time.Now(); more(done); {
				free, failed := take()
				if failed != nil {
					continue // it may give up after so many tries
				}
				waited := time.Since(since)
				failed = errors.Join(increment(data), free())
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

func increment(data *redis.Client) error {
	ctx := context.Background()
	n, err := data.Get(ctx, "counter").Int()
	if err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	time.Sleep(time.Millisecond)
	return data.Set(ctx, "counter", n+1, 0).Err()
}

// inProcess runs a library of Go.
func inProcess(open func(ctx context.Context, addrs []string, key string) (next func() worker, stop func(), err error)) starter {
	return func(ctx context.Context, addrs []string, key string, count int) (*side, error) {
		workers, stop, err := open(ctx, addrs, key)
		if err != nil {
			return nil, err
		}
		run := func() (Share, error) {
			data := redis.NewClient(&redis.Options{Addr: addrs[0]})
			defer data.Close()
			return work(workers, data, func(done int) bool { return done < count/Workers && ctx.Err() == nil })
		}
		return &side{run: run, stop: stop}, nil
	}
}

// folder is where this package is, with the programs in other languages.
func folder() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(file)
}

// fetched is where tools/foreign has put the libraries of a language, once per process.
var fetched = map[string]func() (string, error){
	"python": sync.OnceValues(func() (string, error) { return fetch("python") }),
	"node":   sync.OnceValues(func() (string, error) { return fetch("node") }),
}

func fetch(language string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(folder(), "..", "..", "tools", "foreign"), language)
	cmd.Stderr, cmd.WaitDelay = &said, time.Second
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%w: %w: %s", ErrMissing, err, bytes.TrimSpace(said.Bytes()))
	}
	return strings.TrimSpace(string(out)), nil
}

// program is a program in another language, with the libraries that it needs.
func program(ctx context.Context, language, file string, args ...string) (*exec.Cmd, error) {
	dir, err := fetched[language]()
	if err != nil {
		return nil, err
	}
	interpreter, variable := "python3", "PYTHONPATH="+dir
	if language == "node" {
		interpreter, variable = "node", "NODE_PATH="+filepath.Join(dir, "node_modules")
	}
	cmd := exec.CommandContext(ctx, interpreter, append([]string{filepath.Join(folder(), language, file)}, args...)...)
	cmd.Env = append(os.Environ(), variable, "PYTHONDONTWRITEBYTECODE=1")
	return cmd, nil
}

func python(library string) starter { return foreign("python", "worker.py", library) }
func node(library string) starter   { return foreign("node", "worker.cjs", library) }

// foreign starts a program that works as side does: it says that it is ready, begins when it
// is sent a line, and says at the end what it got.
func foreign(language, file, library string) starter {
	return func(ctx context.Context, addrs []string, key string, count int) (*side, error) {
		var ports []string
		for _, addr := range addrs {
			ports = append(ports, addr[strings.LastIndex(addr, ":")+1:])
		}
		cmd, err := program(ctx, language, file, library, strings.Join(ports, ","), key, strconv.Itoa(count), strconv.Itoa(Workers))
		if err != nil {
			return nil, err
		}
		cmd.Stderr = os.Stderr
		in, err1 := cmd.StdinPipe()
		out, err2 := cmd.StdoutPipe()
		if err := errors.Join(err1, err2, cmd.Start()); err != nil {
			return nil, err
		}
		stop := func() {
			cmd.Process.Kill() // fails only for one that has ended
			cmd.Wait()
		}
		lines := bufio.NewReader(out)
		if line, err := lines.ReadString('\n'); err != nil || line != "ready\n" {
			stop()
			return nil, fmt.Errorf("%s is not ready: %q, %w", library, line, err)
		}
		run := func() (share Share, err error) {
			if _, err := io.WriteString(in, "go\n"); err != nil {
				return share, err
			}
			var got struct {
				Locks   int
				Longest float64
			}
			err = json.NewDecoder(lines).Decode(&got)
			return Share{Locks: got.Locks, Longest: time.Duration(got.Longest * float64(time.Second))}, err
		}
		return &side{run: run, stop: stop}, nil
	}
}

// Servers starts servers for one run, and says how to stop them.
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
