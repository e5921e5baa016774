//go:build linux

package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/faultproxy"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis"
)

//go:embed schedule-cluster.json
var clusterSchedule []byte

var clusterBackend = &backend{
	schedule: clusterSchedule, classes: clusterClasses, fewest: 6, site: func() site { return new(clusterSite) }, lead: twoSecondStart,
	open: openCluster,
}

const oldMaster = "a master that stood still may go on for a moment after it was replaced"

var clusterClasses = map[string]class{
	"calm":           {lives: true},
	after:            {},
	"reshard":        {lives: true},
	"failover":       {from: fromQuarantine, extra: stoppedAhead * time.Second},
	"master-kill":    {from: fromQuarantine, extra: stoppedAhead * time.Second},
	"master-pause":   {shared: oldMaster, from: fromQuarantine, extra: stoppedAhead * time.Second},
	"client-pause":   {extra: stoppedAhead * time.Second},
	"client-kill":    {},
	"crowd":          {lives: true},
	"net-reset":      {from: fromEnd},
	"link-dead":      {lives: true, patient: true},
	"rotation":       {from: fromEnd, lives: true, patient: true},
	"rotation-cut":   {from: fromEnd, extra: rotationPause, patient: true},
	"net-delay":      {},
	"reshard-paused": {extra: stoppedAhead * time.Second},
	"late-requests":  {duty: stretching, from: fromEnd, extra: stoppedAhead * time.Second},
	"operator":       {duty: passing, from: fromQuarantine, extra: stoppedAhead * time.Second},
	"mixed":          {from: fromQuarantine, extra: stoppedAhead * time.Second},
}

// openCluster opens the cluster as Holdfast's clients do, through proxies.
func openCluster(ctx context.Context, o *order) (driver.Driver, error) {
	return redis.Open(ctx, "redis+cluster://"+strings.Join(o.Nodes, ","), &redis.Options{
		MaxTTL: time.Duration(o.Schedule.MaxTTL), Dial: o.dial, Credentials: o.readCredentials,
	})
}

// clusterSite is a Redis Cluster of three masters, each with a replica.
type clusterSite struct {
	cluster *redisproc.Cluster
	servers []*node
	direct  driver.Driver
	secret  string // file with the password of user
}

func (s *clusterSite) start(ctx context.Context, schedule *Schedule) (err error) {
	if s.secret, err = firstSecret(); err != nil {
		return err
	}
	s.cluster, err = redisproc.StartCluster(ctx, &redisproc.ClusterOptions{
		Masters: schedule.Nodes / 2, Replicas: schedule.Nodes / 2,
		Server: redisproc.Options{ACL: locker, Args: []string{"--cluster-require-full-coverage", "no"}},
	})
	if err != nil {
		return err
	}
	var seeds []string
	for _, server := range s.cluster.Servers {
		n := &node{server: server}
		s.servers = append(s.servers, n)
		seeds = append(seeds, server.Addr())
		for i := range n.proxies {
			if n.proxies[i], err = faultproxy.New(server.Addr()); err != nil {
				return err
			}
		}
	}
	s.direct, err = redis.Open(ctx, "redis+cluster://"+strings.Join(seeds, ",")+"?maxttl="+time.Duration(schedule.MaxTTL).String(), nil)
	return err
}

func (s *clusterSite) stop() (errs error) {
	if s.direct != nil {
		errs = s.direct.Close()
	}
	for _, n := range s.servers {
		errs = errors.Join(errs, n.close())
	}
	if s.cluster != nil {
		errs = errors.Join(errs, s.cluster.Stop())
	}
	return errors.Join(errs, os.RemoveAll(filepath.Dir(s.secret)))
}

func (s *clusterSite) nodes() []*node { return s.servers }

// leader returns a master, another one at each call.
func (s *clusterSite) leader(context.Context) int {
	masters := s.cluster.Masters()
	if len(masters) == 0 {
		return -1
	}
	return slices.Index(s.cluster.Servers, masters[int(monotonicNow()/int64(time.Millisecond))%len(masters)])
}

func (s *clusterSite) setConnections(o *order, client int) {
	o.Passwords = []string{s.secret}
	for i, n := range s.servers {
		o.Nodes = append(o.Nodes, s.cluster.Servers[i].Addr())
		n.addDetour(o, s.cluster.Servers[i].Addr(), client)
	}
}

func (s *clusterSite) valuesDSN() string { return "" }

func (s *clusterSite) findStaleLocks(ctx context.Context, span *span, ttl time.Duration) ([]string, error) {
	return heldLocks(ctx, s.direct, span.prefix(), ttl)
}

func (s *clusterSite) actions() map[string]action {
	return map[string]action{"reshard": s.moveSlots, "failover": s.promoteReplica, "fall-behind": s.fallBehind, "rotate": s.rotate}
}

// rotate changes the password on all servers. The clients get the new password By later.
func (s *clusterSite) rotate(f Fault, _ int, rest func(time.Duration)) error {
	return rotatePassword(f, s.cluster.Servers, s.servers, s.secret, rest)
}

// moveSlots moves every slot in which the victim has keys to another master, one by one, and then back, and
// repeats that for the time of the fault. It pauses for By between two keys of a slot.
func (s *clusterSite) moveSlots(f Fault, victim int, rest func(time.Duration)) error {
	from := s.cluster.Servers[victim]
	masters := s.cluster.Masters()
	to := masters[0]
	if to == from {
		to = masters[1]
	}
	for end := time.Now().Add(time.Duration(f.For)); time.Now().Before(end); from, to = to, from {
		slots, err := s.usedSlots(from)
		if err != nil {
			return err
		}
		for _, slot := range slots {
			if err := s.cluster.Move(from, to, func() { rest(time.Duration(f.By)) }, slot); err != nil {
				return err
			}
			if time.Now().After(end) {
				break
			}
		}
		rest(50 * time.Millisecond)
	}
	return nil
}

// usedSlots returns the slots of a master that have locks. A counter stays in a slot after its locks are gone.
func (s *clusterSite) usedSlots(master *redisproc.Server) ([]int, error) {
	slots, err := s.cluster.Slots(master)
	if err != nil {
		return nil, err
	}
	reply, err := master.Do("KEYS", "lock:*")
	if err != nil {
		return nil, err
	}
	var used []int
	keys, _ := reply.([]any)
	for _, k := range keys {
		name, _ := k.(string)
		if slot := wire.Slot(name); slices.Contains(slots, slot) {
			used = append(used, slot)
		}
	}
	slices.Sort(used)
	return slices.Compact(used), nil
}

// fallBehind promotes a replica that lacks the last writes of the master.
func (s *clusterSite) fallBehind(f Fault, victim int, rest func(time.Duration)) error {
	replica := s.cluster.ReplicaOf(s.cluster.Servers[victim])
	if replica == nil {
		return nil // no replica since the last fault
	}
	return fallBehind(f, s.servers, victim, []*redisproc.Server{replica}, rest)
}

// promoteReplica makes the replica of a master take over, as an operator does before an upgrade.
func (s *clusterSite) promoteReplica(_ Fault, victim int, rest func(time.Duration)) error {
	master := s.cluster.Servers[victim]
	for range 50 {
		if replica := s.cluster.ReplicaOf(master); replica != nil {
			_, err := replica.Do("CLUSTER", "FAILOVER")
			return err
		}
		rest(100 * time.Millisecond)
	}
	return fmt.Errorf("%s has no replica that is in touch", master.Addr())
}
