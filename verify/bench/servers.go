package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/rig/faultproxy"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
)

// servers are redis-server processes of this run alone.
type servers []*redisproc.Server

func startServers(ctx context.Context, n int) (servers, error) {
	all, errs := make(servers, n), make([]error, n)
	var starting sync.WaitGroup
	for i := range n {
		starting.Go(func() { all[i], errs[i] = redisproc.Start(ctx, nil) })
	}
	starting.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(err, all.stop())
	}
	return all, nil
}

func (all servers) stop() error {
	var errs error
	for _, s := range all {
		if s != nil {
			errs = errors.Join(errs, s.Stop())
		}
	}
	return errs
}

func (all servers) addrs() []string {
	out := make([]string, len(all))
	for i, s := range all {
		out[i] = s.Addr()
	}
	return out
}

// flush removes what an earlier run has left.
func (all servers) flush() error {
	for _, s := range all {
		if _, err := s.Do("FLUSHALL"); err != nil {
			return err
		}
	}
	return nil
}

// proxies puts a proxy that delays replies before each server.
func (all servers) proxies() (addrs []string, stop func(), err error) {
	var proxies []*faultproxy.Proxy
	stop = func() {
		for _, p := range proxies {
			p.Close()
		}
	}
	for _, s := range all {
		p, err := faultproxy.New(s.Addr())
		if err != nil {
			stop()
			return nil, nil, err
		}
		p.SetDelay(slowBy)
		proxies = append(proxies, p)
		addrs = append(addrs, p.Addr())
	}
	return addrs, stop, nil
}

// befall lets f befall the last server; mend undoes it.
func (all servers) befall(f fault) (well servers, mend func(context.Context) error, err error) {
	last := all[len(all)-1]
	switch f {
	case killed:
		last.Kill()
		return all[:len(all)-1], last.Restart, nil
	case hung:
		err := last.Pause()
		return all[:len(all)-1], func(context.Context) error { return last.Resume() }, err
	}
	return all, func(context.Context) error { return nil }, nil
}

// calls are how often each command was executed, also from within scripts.
type calls map[string]int64

// calls sums up what the servers have executed.
func (all servers) calls() (calls, error) {
	sum := make(calls)
	for _, s := range all {
		reply, err := s.Do("INFO", "commandstats")
		if err != nil {
			return nil, err
		}
		text, _ := reply.(string)
		for line := range strings.Lines(text) {
			name, rest, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
			if !ok {
				continue
			}
			n, _, _ := strings.Cut(rest, ",")
			count, err := strconv.ParseInt(n, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("INFO commandstats of %s: %w", s.Addr(), err)
			}
			sum[name] += count
		}
	}
	return sum, nil
}

// cpuTime is the processor time that the servers have used.
func (all servers) cpuTime() (time.Duration, error) {
	sum, err := all.info("cpu", "used_cpu_sys", "used_cpu_user")
	return time.Duration(sum * float64(time.Second)), err
}

// info sums up fields of a section of INFO over all servers.
func (all servers) info(section string, fields ...string) (sum float64, err error) {
	for _, s := range all {
		reply, err := s.Do("INFO", section)
		if err != nil {
			return 0, err
		}
		text, _ := reply.(string)
		for line := range strings.Lines(text) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			if slices.Contains(fields, name) {
				v, err := strconv.ParseFloat(value, 64)
				if err != nil {
					return 0, fmt.Errorf("INFO %s of %s: %w", section, s.Addr(), err)
				}
				sum += v
			}
		}
	}
	return sum, nil
}

// since is what has been executed since before: the requests, counting EVALSHA
// and those in direct, and everything, with what scripts did.
func (c calls) since(before calls, direct []string) (requests, all int64) {
	for _, name := range slices.Collect(maps.Keys(c)) {
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

// version is what the first server says of itself.
func (all servers) version() string {
	reply, err := all[0].Do("INFO", "server")
	text, _ := reply.(string)
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(line, "redis_version:"); ok {
			return strings.TrimSpace(v)
		}
	}
	return "unknown"
}
