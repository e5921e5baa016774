package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/faultproxy"
	"github.com/holdfast-go/holdfast/internal/rig/mariaproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
)

const holdfastName = "holdfast"

// library is one lock library with one configuration.
type library struct {
	name string
	open func(ctx context.Context, addrs []string, workers int) (client, error)
	// direct are the commands, beside EVALSHA, that it sends to Redis itself rather than from scripts.
	direct      []string
	least, most int  // nodes that it can run on, or makes sense on; 0: any number
	waiting     bool // differs from other configurations only if callers wait
	patient     bool // can be configured to wait until the end
}

// client is one client of a library, with its own connections.
type client interface {
	// lock acquires a lock and returns the function that releases it.
	lock(ctx context.Context, name string) (unlock func(context.Context) error, err error)
	close()
}

// holdfastClient is a client of Holdfast over any driver.
type holdfastClient struct{ *holdfast.Client }

func newHoldfastClient(d driver.Driver, err error) (client, error) {
	if err != nil {
		return nil, err
	}
	c, err := holdfast.New(d, nil)
	return holdfastClient{c}, err
}

func (c holdfastClient) lock(ctx context.Context, name string) (func(context.Context) error, error) {
	l, err := c.Acquire(ctx, name, nil)
	if err != nil {
		return nil, err
	}
	return l.Release, nil
}

func (c holdfastClient) close() { c.Close() }

// service is a running service and the libraries that are compared on it.
type service struct {
	name      string
	nodes     int
	addrs     []string
	libraries []library
	redis     servers // nil: another service
	// spent returns the number of requests that the service has executed so far (for PostgreSQL a second ago)
	// and its processor time. nil: unknown, or redis has it.
	spent func(ctx context.Context) (requests int64, cpu time.Duration, err error)
	// written returns the bytes that the service has written to its log so far; nil: unknown.
	written func(ctx context.Context) (int64, error)
	stop    func() error
	idle    int // warm-up rounds, for compilers and caches of the servers
}

// starter is a service that a benchmark can start, with its name.
type starter struct {
	name  string
	start func(ctx context.Context) (*service, error)
}

func (s starter) String() string { return s.name }

// startable are the services other than Redis servers.
var startable = []starter{
	{"postgres", func(ctx context.Context) (*service, error) { return startPostgres(ctx) }},
	{"postgres-fsync", func(ctx context.Context) (*service, error) {
		return startPostgres(ctx, "fsync=on", "full_page_writes=on")
	}},
	{"postgres-listeners", func(ctx context.Context) (*service, error) {
		return startPostgresBeside(ctx, idleListeners, "LISTEN something_else")
	}},
	{"postgres-snapshot", func(ctx context.Context) (*service, error) {
		return startPostgresBeside(ctx, 1, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT txid_current_snapshot()")
	}},
	{"mariadb", startMySQL(mariaproc.Start, "--innodb-flush-method=nosync")},
	{"mariadb-fsync", startMySQL(mariaproc.Start, "--innodb-flush-log-at-trx-commit=1")},
	{"mariadb-far", startFarMySQL(mariaproc.Start, "--innodb-flush-method=nosync")},
	{"mysql", startMySQL(mariaproc.StartMySQL)},
	{"mysql-fsync", startMySQL(mariaproc.StartMySQL, "--innodb-flush-method=fsync", "--innodb-flush-log-at-trx-commit=1")},
	{"mysql-far", startFarMySQL(mariaproc.StartMySQL)},
	{"sqlite", startSQLite},
	{"etcd", startEtcd},
	{"zookeeper", startZooKeeper},
}

// findStarter returns the starter of the named service, nil if there is none.
func findStarter(name string) *starter {
	all := startable
	if n, err := strconv.Atoi(strings.TrimPrefix(name, "redis-")); err == nil && n >= 1 && n <= 9 {
		all = []starter{{"redis-" + strconv.Itoa(n), func(ctx context.Context) (*service, error) { return startRedis(ctx, n) }}}
	}
	for _, s := range all {
		if s.name == name {
			return &starter{name, func(ctx context.Context) (*service, error) {
				sv, err := s.start(ctx)
				if err != nil {
					return nil, err
				}
				sv.name = name
				return sv, nil
			}}
		}
	}
	return nil
}

// libraryNames returns the names of all libraries.
func libraryNames() (all []string) {
	for _, list := range [][]library{redisLibraries, postgresLibraries, mysqlLibraries, sqliteLibraries, etcdLibraries, zooKeeperLibraries} {
		for _, lib := range list {
			all = append(all, lib.name)
		}
	}
	for _, lib := range slotLibraries {
		all = append(all, lib.name)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

var preparedCount atomic.Int64

// prepareService empties the service if it can. It returns the addresses for clients and a new prefix for
// locks, so that the remains of one run do not delay the next.
func (sv *service) prepareService(f fault) (prefix string, addrs []string, stop func(), err error) {
	prefix = fmt.Sprintf("b/%03x", preparedCount.Add(1))
	if err := sv.redis.flushAll(); err != nil || f != slow {
		return prefix, sv.addrs, func() {}, err
	}
	var proxies []*faultproxy.Proxy
	stop = func() {
		for _, p := range proxies {
			p.Close()
		}
	}
	for _, addr := range sv.addrs {
		p, err := faultproxy.New(addr)
		if err != nil {
			stop()
			return "", nil, nil, err
		}
		p.SetDelay(time.Millisecond)
		proxies = append(proxies, p)
		addrs = append(addrs, p.Addr())
	}
	return prefix, addrs, stop, nil
}

// causeFault applies f to the last server. mend undoes it.
func (sv *service) causeFault(f fault) (mend func(context.Context) error, err error) {
	switch f {
	case killed:
		last := sv.redis[len(sv.redis)-1]
		last.Kill()
		return last.Restart, nil
	case hung:
		last := sv.redis[len(sv.redis)-1]
		return func(context.Context) error { return last.Resume() }, last.Pause()
	}
	return func(context.Context) error { return nil }, nil
}

// costReading holds the costs so far.
type costReading struct {
	calls   calls // nil: not a service of Redis
	nodeCPU time.Duration
	written int64 // 0: unknown
	mallocs uint64
	ownCPU  time.Duration
}

func (sv *service) readCosts(ctx context.Context) (r costReading, err error) {
	var err1, err2, err3 error
	if sv.redis != nil {
		r.calls, err1 = sv.redis.readCalls()
		r.nodeCPU, err2 = sv.redis.cpuTime()
	}
	if sv.written != nil {
		r.written, err3 = sv.written(ctx)
	}
	r.ownCPU = cpuTime()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	r.mallocs = m.Mallocs
	return r, errors.Join(err1, err2, err3)
}

// cpuTime returns the processor time that this process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// costsSince returns the costs between two readings.
func (r costReading) costsSince(before costReading, direct []string) map[string]float64 {
	spent := map[string]float64{"allocs": float64(r.mallocs - before.mallocs), "client CPU µs": float64((r.ownCPU - before.ownCPU).Microseconds())}
	if r.calls != nil {
		requests, commands := r.calls.callsSince(before.calls, direct)
		spent["requests"], spent["commands"] = float64(requests), float64(commands)
		spent["server CPU µs"] = float64((r.nodeCPU - before.nodeCPU).Microseconds())
	}
	if r.written > 0 {
		spent["bytes written"] = float64(r.written - before.written)
	}
	return spent
}

// servers are the redis-server processes of this run.
type servers []*redisproc.Server

// startRedis starts n servers without persistence.
func startRedis(ctx context.Context, n int) (*service, error) {
	all, errs := make(servers, n), make([]error, n)
	var starting sync.WaitGroup
	for i := range n {
		starting.Go(func() { all[i], errs[i] = redisproc.Start(ctx, nil) })
	}
	starting.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(err, all.stopAll())
	}
	sv := &service{nodes: n, libraries: redisLibraries, redis: all, stop: all.stopAll}
	for _, s := range all {
		sv.addrs = append(sv.addrs, s.Addr())
	}
	return sv, nil
}

func (all servers) stopAll() error {
	var errs error
	for _, s := range all {
		if s != nil {
			errs = errors.Join(errs, s.Stop())
		}
	}
	return errs
}

// flushAll removes the keys of an earlier run.
func (all servers) flushAll() error {
	for _, s := range all {
		if _, err := s.Do("FLUSHALL"); err != nil {
			return err
		}
	}
	return nil
}

// eachInfoField calls field with each field of a section of INFO, of each server.
func (all servers) eachInfoField(section string, field func(name, value string) error) error {
	for _, s := range all {
		reply, err := s.Do("INFO", section)
		if err != nil {
			return err
		}
		for line := range strings.Lines(fmt.Sprint(reply)) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
				if err := field(name, value); err != nil {
					return fmt.Errorf("INFO %s of %s: %w", section, s.Addr(), err)
				}
			}
		}
	}
	return nil
}

// sumFields adds up fields of INFO over all servers.
func (all servers) sumFields(section string, fields ...string) (sum float64, err error) {
	err = all.eachInfoField(section, func(name, value string) error {
		if !slices.Contains(fields, name) {
			return nil
		}
		v, err := strconv.ParseFloat(value, 64)
		sum += v
		return err
	})
	return sum, err
}

// cpuTime returns the processor time that the servers have used.
func (all servers) cpuTime() (time.Duration, error) {
	sum, err := all.sumFields("cpu", "used_cpu_sys", "used_cpu_user")
	return time.Duration(sum * float64(time.Second)), err
}

// usedMemory returns the bytes that the servers use.
func (all servers) usedMemory() (float64, error) { return all.sumFields("memory", "used_memory") }

// serverVersion returns the version that the servers report.
func (all servers) serverVersion() (version string, err error) {
	err = all.eachInfoField("server", func(name, value string) error {
		if name == "redis_version" {
			version = value
		}
		return nil
	})
	return version, err
}

// calls counts the executions of each command, including those by scripts.
type calls map[string]int64

func (all servers) readCalls() (calls, error) {
	sum := make(calls)
	err := all.eachInfoField("commandstats", func(name, value string) error {
		n, _, _ := strings.Cut(strings.TrimPrefix(value, "calls="), ",")
		count, err := strconv.ParseInt(n, 10, 64)
		sum[strings.TrimPrefix(name, "cmdstat_")] += count
		return err
	})
	return sum, err
}

// callsSince returns the executions since before: the requests, counting EVALSHA and the commands in direct,
// and all commands, including those of scripts.
func (c calls) callsSince(before calls, direct []string) (requests, all int64) {
	for name := range c {
		n := c[name] - before[name]
		switch {
		case name == "info" || name == "client|setinfo" || name == "hello":
			continue
		case name == "evalsha" || name == "eval" || slices.Contains(direct, name):
			requests += n
		}
		all += n
	}
	return requests, all
}
