//go:build linux

package main

import (
	"context"
	_ "embed"
	"errors"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/zkproc"
	"github.com/holdfast-go/holdfast/zookeeper"
)

//go:embed schedule-zookeeper.json
var zookeeperSchedule []byte

var zookeeperBackend = &backend{
	schedule: zookeeperSchedule, classes: zookeeperClasses, fewest: 3, site: func() site { return new(zookeeperSite) }, lead: twoSecondStart,
	open:  func(_ context.Context, o *order) (driver.Driver, error) { return openZookeeperBelow(o, "holdfast") },
	apart: openZookeeperBelow, peer: "zk.Lock", openPeer: openZkLock,
}

func openZookeeperBelow(o *order, prefix string) (driver.Driver, error) {
	return zookeeper.New(context.Background(), o.Nodes, &zookeeper.Options{Path: "/" + prefix, NoCheck: true}) // faults may be in progress
}

// syncLimit makes a member look for another leader after four ticks (2 s here) without a message from its
// leader.
const syncLimit = "syncLimit=4"

// minLeaderTime bounds the time beyond a TTL until the next grant when the ensemble changes its leader: until the
// members notice, elect and follow a new one, which restarts the timeout of each session.
const minLeaderTime = 5 * time.Second

var zookeeperClasses = map[string]class{
	"calm":                {lives: true},
	after:                 {},
	"client-pause":        {extra: oneByOneDelay},
	"client-kill":         {},
	"client-close":        {},
	"crowd":               {lives: true},
	"leader-kill":         {extra: minLeaderTime},
	"leader-pause":        {extra: minLeaderTime},
	"node-pause":          {extra: minLeaderTime},
	"node-kill":           {extra: minLeaderTime},
	"node-pause-majority": {from: fromEnd, extra: minLeaderTime},
	"node-kill-majority":  {from: fromEnd, extra: minLeaderTime},
	"nested":              {duty: apart, from: fromEnd},
	"leader-isolated":     {extra: minLeaderTime},
	"node-isolated":       {extra: minLeaderTime},
	"node-one-way":        {from: fromEnd, extra: minLeaderTime},
	"net-reset":           {from: fromEnd},
	"link-dead":           {lives: true, patient: true, extra: deadLinkDelay},
	"net-split":           {from: fromEnd},
	"late-requests":       {duty: stretching, from: fromEnd},
	"operator":            {duty: passing, from: fromEnd, extra: minLeaderTime},
	"mixed":               {from: fromEnd, extra: minLeaderTime},
}

// zookeeperSite holds the members of an ensemble.
type zookeeperSite struct {
	ensemble
	servers *zkproc.Ensemble
}

func (s *zookeeperSite) start(ctx context.Context, schedule *Schedule) (err error) {
	if s.servers, err = zkproc.StartMeshed(ctx, schedule.Nodes, syncLimit); err != nil {
		return err
	}
	s.mesh, s.end = s.servers.Mesh, s.servers.Stop
	for _, m := range s.servers.Members {
		err = errors.Join(err, s.addMember(m, m.Addr))
	}
	if err == nil {
		s.direct, err = zookeeper.New(ctx, s.servers.Addrs(), &zookeeper.Options{NoCheck: true})
	}
	return err
}

func (s *zookeeperSite) leader(context.Context) int {
	return slices.Index(s.servers.Members, s.servers.Leader())
}

func (s *zookeeperSite) findStaleLocks(ctx context.Context, span *span, ttl time.Duration) ([]string, error) {
	found, err := s.ensemble.findStaleLocks(ctx, span, ttl)
	if err != nil || zookeeperClasses[span.Class].duty != apart {
		return found, err
	}
	o := order{Nodes: s.servers.Addrs()}
	more, err := locksHeldOnBothSides(ctx, func(prefix string) (driver.Driver, error) { return openZookeeperBelow(&o, prefix) }, span, ttl)
	return append(found, more...), err
}

// zkLocks uses zk.Lock over one session per process. zk.Lock does not report its end, so a holder trusts it
// until its client has another session.
type zkLocks struct {
	*zk.Conn
	rec *recorder
}

type silentLogger struct{}

func (silentLogger) Printf(string, ...any) {}

func openZkLock(o *order, rec *recorder) (service, error) {
	conn, _, err := zk.Connect(o.Nodes, time.Duration(o.Schedule.TTL), zk.WithLogger(silentLogger{}))
	return zkLocks{conn, rec}, err
}

// takeLock abandons a wait that ctx ends, because zk.Lock cannot be cancelled; its lock is released when it is
// granted.
func (z zkLocks) takeLock(ctx context.Context, key string, _ lockRequest) (heldLock, error) {
	l := zk.NewLock(z.Conn, "/stock/"+key, zk.WorldACL(zk.PermAll))
	locked := make(chan error, 1)
	go func() { locked <- l.Lock() }()
	select {
	case err := <-locked:
		if err != nil {
			return heldLock{}, err
		}
	case <-ctx.Done():
		go func() {
			if <-locked == nil {
				l.Unlock()
			}
		}()
		return heldLock{}, ctx.Err()
	}
	session := z.SessionID()
	return newBelief(z.rec, key, func() bool { return z.SessionID() == session }, func(context.Context) error { return l.Unlock() }), nil
}

func (zkLocks) executeOrder(_ context.Context, order string) error { return unknownOrder(order) }

func (z zkLocks) close() { z.Conn.Close() }
