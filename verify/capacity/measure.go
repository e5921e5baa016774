package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/redlock"
)

const (
	workers = 64
	ttl     = 10 * time.Second
	kept    = 150 * time.Second // how long a node remembers a name that nobody uses
)

// rate is what a node does of one kind, and what of its processor one costs.
type rate struct {
	perSecond float64
	cpu       time.Duration
}

// costs is what one node was measured to need.
type costs struct {
	server      string
	fresh       rate    // a lock with a name that is new, taken and released
	again       rate    // one with a name that was used lately
	renewal     rate    // of one lease among many
	idle, queue float64 // share of a processor for a client that does nothing, and for one that waits
	name        float64 // bytes that a name leaves for a while, once it is released
	lease       float64 // bytes of a lease that is held
	connection  float64 // bytes of a connection
}

// node is the server that is measured.
type node struct{ *redisproc.Server }

// measure measures one node, which shares the machine with its clients.
func measure(ctx context.Context, s settings) (c costs, err error) {
	server, err := redisproc.Start(ctx, &redisproc.Options{Args: []string{"--maxclients", strconv.Itoa(s.clients + 1000)}})
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	n := node{server}
	if c.server, err = n.text("server", "redis_version"); err != nil {
		return c, err
	}
	for _, step := range []func(context.Context, settings, *costs) error{n.locks, n.memory, n.leases, n.connections} {
		if _, err := n.Do("FLUSHALL"); err != nil {
			return c, err
		}
		if err := step(ctx, s, &c); err != nil {
			return c, err
		}
	}
	return c, nil
}

// text is a field of a section of INFO.
func (n node) text(section, field string) (string, error) {
	reply, err := n.Do("INFO", section)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(fmt.Sprint(reply)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), field+":"); ok {
			return value, nil
		}
	}
	return "", fmt.Errorf("INFO %s has no %s", section, field)
}

func (n node) number(section, field string) (float64, error) {
	text, err := n.text(section, field)
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(text, 64)
}

// cpu is the processor time that the server has used.
func (n node) cpu() (time.Duration, error) {
	user, err := n.number("cpu", "used_cpu_user")
	system, other := n.number("cpu", "used_cpu_sys")
	return time.Duration((user + system) * float64(time.Second)), errors.Join(err, other)
}

// during calls do, which returns how much it has done, and says at what rate and cost.
func (n node) during(do func() (int64, error)) (r rate, err error) {
	before, err := n.cpu()
	if err != nil {
		return r, err
	}
	start := time.Now()
	done, err := do()
	if err != nil {
		return r, err
	}
	took := time.Since(start)
	after, err := n.cpu()
	if err == nil && done == 0 {
		err = errors.New("nothing was done in the time of a measurement")
	}
	if err != nil {
		return r, err
	}
	return rate{float64(done) / took.Seconds(), (after - before) / time.Duration(done)}, nil
}

// busy says that an answer came too late, as it may on a machine that does other things.
func busy(err error) bool { return errors.Is(err, holdfast.ErrUnavailable) }

func (n node) open(ctx context.Context) (*redlock.Driver, error) {
	return redlock.New(ctx, []redlock.Node{{Addr: n.Addr()}}, &redlock.Options{Timeout: 5 * time.Second})
}

func (n node) client(ctx context.Context) (*holdfast.Client, error) {
	d, err := n.open(ctx)
	if err != nil {
		return nil, err
	}
	return holdfast.New(d, nil)
}

// load has workers take locks for a while: the i-th lock of a worker has the name of it.
func (n node) load(ctx context.Context, s settings, name func(worker, i int) string) (rate, error) {
	c, err := n.client(ctx)
	if err != nil {
		return rate{}, err
	}
	defer c.Close()
	return n.during(func() (int64, error) {
		var done atomic.Int64
		var failed atomic.Pointer[error]
		var all sync.WaitGroup
		for w := range workers {
			all.Go(func() {
				for i, end := 0, time.Now().Add(s.time); time.Now().Before(end); i++ {
					l, err := c.Acquire(ctx, name(w, i), nil)
					if err == nil {
						err = l.Release(ctx)
					}
					switch {
					case err == nil:
						done.Add(1)
					case !busy(err):
						failed.Store(&err)
						return
					}
				}
			})
		}
		all.Wait()
		if err := failed.Load(); err != nil {
			return 0, *err
		}
		return done.Load(), nil
	})
}

func (n node) locks(ctx context.Context, s settings, c *costs) (err error) {
	if c.again, err = n.load(ctx, s, func(w, _ int) string { return fmt.Sprint("again-", w) }); err != nil {
		return err
	}
	c.fresh, err = n.load(ctx, s, func(w, i int) string { return fmt.Sprintf("order/%02d%010d", w, i) })
	return err
}

// memory is what names leave that were used once.
func (n node) memory(ctx context.Context, s settings, c *costs) error {
	cl, err := n.client(ctx)
	if err != nil {
		return err
	}
	defer cl.Close()
	before, err := n.number("memory", "used_memory")
	if err != nil {
		return err
	}
	var failed atomic.Pointer[error]
	var next atomic.Int64
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for i := next.Add(1); i <= int64(s.names); i = next.Add(1) {
				l, err := cl.Acquire(ctx, fmt.Sprintf("order/%012d", i), nil)
				if err == nil {
					err = l.Release(ctx)
				}
				if err != nil && !busy(err) {
					failed.Store(&err)
					return
				}
			}
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	after, err := n.number("memory", "used_memory")
	c.name = (after - before) / float64(s.names)
	return err
}

// leases holds many leases and renews all of them, round after round.
func (n node) leases(ctx context.Context, s settings, c *costs) error {
	d, err := n.open(ctx)
	if err != nil {
		return err
	}
	defer d.Close()
	before, err := n.number("memory", "used_memory")
	if err != nil {
		return err
	}
	const batch = 512
	grants := make([]driver.Grant, 0, s.held)
	for len(grants) < s.held {
		g, err := d.Acquire(ctx, driver.Request{Key: fmt.Sprintf("lease/%012d", len(grants)), TTL: time.Minute})
		switch {
		case err == nil:
			grants = append(grants, g)
		case !busy(err):
			return err
		}
	}
	after, err := n.number("memory", "used_memory")
	if err != nil {
		return err
	}
	c.lease = (after - before) / float64(s.held)
	c.renewal, err = n.during(func() (done int64, err error) {
		for i, end := 0, time.Now().Add(s.time); time.Now().Before(end); i += batch {
			some := grants[i%s.held : min(i%s.held+batch, s.held)]
			for _, r := range d.Renew(ctx, some) {
				switch {
				case r.Err == nil:
					done++
				case !busy(r.Err):
					return 0, r.Err
				}
			}
			if i%s.held+batch >= s.held {
				i = -batch
			}
		}
		return done, nil
	})
	return err
}

// connections opens many clients, of which some wait.
func (n node) connections(ctx context.Context, s settings, c *costs) (err error) {
	before, err := n.number("memory", "used_memory")
	if err != nil {
		return err
	}
	var drivers []*redlock.Driver
	defer func() {
		for _, d := range drivers {
			d.Close()
		}
	}()
	for range s.clients {
		d, err := n.open(ctx)
		if err != nil {
			return err
		}
		drivers = append(drivers, d)
	}
	after, err := n.number("memory", "used_memory")
	if err != nil {
		return err
	}
	c.connection = (after - before) / float64(s.clients)
	if c.idle, err = n.share(s.time); err != nil {
		return err
	}
	c.idle /= float64(s.clients)
	holder := drivers[0]
	g, err := holder.Acquire(ctx, driver.Request{Key: "k", TTL: time.Minute})
	if err != nil {
		return err
	}
	waiting, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	for _, d := range drivers[1 : 1+s.waiters] {
		all.Go(func() {
			if g, err := d.Acquire(waiting, driver.Request{Key: "k", TTL: time.Minute}); err == nil {
				d.Release(ctx, g, 0)
			}
		})
	}
	time.Sleep(s.time / 2) // until all have their place
	used, err := n.share(s.time)
	c.queue = max(used/float64(s.waiters)-c.idle*float64(s.clients)/float64(s.waiters), 0)
	stop()
	all.Wait()
	return errors.Join(err, holder.Release(ctx, g, 0))
}

// share is how much of a processor the server uses for a while.
func (n node) share(d time.Duration) (float64, error) {
	before, err := n.cpu()
	if err != nil {
		return 0, err
	}
	start := time.Now()
	time.Sleep(d)
	after, err := n.cpu()
	return (after - before).Seconds() / time.Since(start).Seconds(), err
}

// describe writes the measured figures.
func (c *costs) describe(w io.Writer, s settings) {
	fmt.Fprintf(w, "Measured on %d cores, %s/%s, %s, Redis %s, %s; clients and server share the machine.\nEach rate was measured for %v.\n\n",
		runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version(), c.server, time.Now().Format(time.DateOnly), s.time)
	fmt.Fprintln(w, "| of one node | rate here | its processor time, each | a processor at 70 % |")
	fmt.Fprintln(w, "|---|---:|---:|---:|")
	row := func(what string, r rate) {
		fmt.Fprintf(w, "| %s | %s/s | %.1f µs | %s/s |\n", what, round(r.perSecond), r.cpu.Seconds()*1e6, round(full/r.cpu.Seconds()))
	}
	row("locks whose names are new, taken and released by 64 workers", c.fresh)
	row("locks whose names come back, by 64 workers", c.again)
	row(fmt.Sprintf("renewals of %s leases, 512 in one call", round(float64(s.held))), c.renewal)
	fmt.Fprintln(w, "\n| of one node | each |\n|---|---:|")
	fmt.Fprintf(w, "| memory that a new name leaves for %v once it is released | %.0f bytes |\n", kept, c.name)
	fmt.Fprintf(w, "| memory of a lease that is held | %.0f bytes |\n", c.lease)
	fmt.Fprintf(w, "| memory of a client's connection, with what describes the client | %.1f kB |\n", c.connection/1e3)
	fmt.Fprintf(w, "| processor for a client that does nothing (of %s) | %.1f µs/s |\n", round(float64(s.clients)), c.idle*1e6)
	fmt.Fprintf(w, "| processor for a client that waits (of %s for one lock) | %.1f µs/s |\n", round(float64(s.waiters)), c.queue*1e6)
}
