//go:build linux

package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncgoredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/faultproxy"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/redis"
)

//go:embed schedule-sentinel.json
var sentinelSchedule []byte

// takeover bounds the time beyond a TTL until the next grant when a replica takes over: until the
// Sentinels have agreed on it and clients have found it, and then for the quarantine, 10 s in the
// schedule.
const takeover = 15 * time.Second

// sentinelBackend is a master, two replicas and three Sentinels. A master without its replicas rejects writes.
var sentinelBackend = &backend{
	schedule: sentinelSchedule, classes: failoverClasses(""), fewest: 2, site: func() site { return &sentinelSite{least: "1"} },
	lead: redisBackend.lead, open: openSentinel, peer: "redsync", openPeer: openSentinelRedsync,
}

// laxBackend is the same with masters that accept writes without replicas.
var laxBackend = &backend{
	schedule: bytes.Replace(sentinelSchedule, []byte(`"sentinel"`), []byte(`"sentinel-lax"`), 1),
	classes:  failoverClasses("a master that was replaced goes on"), fewest: 2, site: func() site { return &sentinelSite{least: "0"} },
	lead: redisBackend.lead, open: openSentinel, peer: "redsync", openPeer: openSentinelRedsync,
}

func failoverClasses(shared string) map[string]class {
	return map[string]class{
		after:           {shared: shared},
		"client-pause":  {shared: shared, extra: stoppedAhead * time.Second}, // on a busy machine Sentinels may replace a master at any time
		"kill":          {shared: shared, extra: takeover},
		"stop":          {shared: shared, extra: takeover},
		"switch":        {shared: shared, extra: takeover},
		"link-dead":     {shared: shared, lives: true, patient: true},
		"rotation":      {shared: shared, from: fromEnd, lives: true, patient: true},
		"rotation-cut":  {shared: shared, from: fromEnd, extra: rotationPause, patient: true},
		"crowd":         {shared: shared, lives: true},
		"operator":      {duty: passing, shared: shared, extra: takeover},
		"late-requests": {duty: stretching, from: fromEnd, extra: 4 * time.Second},
	}
}

func openSentinel(ctx context.Context, o *order) (driver.Driver, error) {
	node := redis.Node{Failover: &redis.Failover{Sentinels: o.Nodes, Master: redisproc.GroupName}}
	return redis.New(ctx, []redis.Node{node}, &redis.Options{
		MaxTTL: time.Duration(o.Schedule.MaxTTL), AllowDown: true, Dial: o.dial, Credentials: o.readCredentials,
	})
}

func openSentinelRedsync(o *order, rec *recorder) (service, error) {
	goredis.SetLogger(noLog{})
	c := goredis.NewFailoverClient(&goredis.FailoverOptions{SentinelAddrs: o.Nodes, MasterName: redisproc.GroupName})
	return &redsyncs{rs: redsync.New(redsyncgoredis.NewPool(c)), clients: []*goredis.Client{c}, ttl: time.Duration(o.Schedule.TTL), rec: rec}, nil
}

// noLog drops go-redis's log of failed connections.
type noLog struct{}

func (noLog) Printf(context.Context, string, ...any) {}

// sentinelSite is a master with replicas and Sentinels.
type sentinelSite struct {
	least  string // min-replicas-to-write
	group  *redisproc.Group
	all    []*node
	secret string // file with the password of user
}

func (s *sentinelSite) start(ctx context.Context, schedule *Schedule) (err error) {
	if s.secret, err = firstSecret(); err != nil {
		return err
	}
	s.group, err = redisproc.StartGroup(ctx, &redisproc.GroupOptions{
		Servers: schedule.Nodes, Server: redisproc.Options{ACL: locker, Args: []string{"--min-replicas-to-write", s.least, "--min-replicas-max-lag", "1"}},
	})
	if err != nil {
		return err
	}
	for _, server := range s.group.Servers {
		n := &node{server: server}
		s.all = append(s.all, n)
		for i := range n.proxies {
			if n.proxies[i], err = faultproxy.New(server.Addr()); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *sentinelSite) stop() (errs error) {
	for _, n := range s.all {
		errs = errors.Join(errs, n.close())
	}
	if s.group != nil {
		errs = errors.Join(errs, s.group.Stop())
	}
	return errors.Join(errs, os.RemoveAll(filepath.Dir(s.secret)))
}

func (s *sentinelSite) nodes() []*node { return s.all }

func (s *sentinelSite) leader(context.Context) int {
	return slices.Index(s.group.Servers, s.group.Master())
}

func (s *sentinelSite) actions() map[string]action {
	return map[string]action{"switch": s.promoteReplica, "fall-behind": s.fallBehind, "rotate": s.rotate}
}

// rotate changes the password on all servers. The clients get the new password By later.
func (s *sentinelSite) rotate(f Fault, _ int, rest func(time.Duration)) error {
	return rotatePassword(f, s.group.Servers, s.all, s.secret, rest)
}

// fallBehind promotes a replica that lacks the last writes of the master.
func (s *sentinelSite) fallBehind(f Fault, victim int, rest func(time.Duration)) error {
	return fallBehind(f, s.all, victim, s.group.Servers, rest)
}

// promoteReplica makes a replica take over from a healthy master.
func (s *sentinelSite) promoteReplica(Fault, int, func(time.Duration)) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return s.group.Switch(ctx)
}

func (s *sentinelSite) setConnections(o *order, client int) {
	o.Nodes, o.Passwords = s.group.Addrs(), []string{s.secret}
	for i, n := range s.all {
		n.addDetour(o, s.group.Servers[i].Addr(), client)
	}
}

func (s *sentinelSite) valuesDSN() string { return "" }

func (s *sentinelSite) findStaleLocks(_ context.Context, span *span, _ time.Duration) (found []string, _ error) {
	master := s.group.Master()
	if master == nil {
		return nil, errors.New("no master")
	}
	reply, err := master.Do("KEYS", "lock:"+span.prefix()+"*")
	list, _ := reply.([]any)
	for _, key := range list {
		if name, ok := key.(string); ok {
			found = append(found, strings.TrimPrefix(name, "lock:"))
		}
	}
	return found, err
}
