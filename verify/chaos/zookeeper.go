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
	"github.com/holdfast-go/holdfast/internal/rig/faultproxy"
	"github.com/holdfast-go/holdfast/internal/rig/zkproc"
	"github.com/holdfast-go/holdfast/zookeeper"
)

//go:embed schedule-zookeeper.json
var zookeeperSchedule []byte

var zookeeperBackend = &backend{
	schedule: zookeeperSchedule, classes: zookeeperClasses, fewest: 3, site: func() site { return new(zookeeperSite) }, lead: soon,
	open: func(_ context.Context, o *order) (driver.Driver, error) { return zookeeper.New(o.Nodes, nil) },
	peer: "zk.Lock", openPeer: openZkLock,
}

// syncLimit has a member look for another leader once it has not heard of its own for four ticks, which here are 2 s.
const syncLimit = "syncLimit=4"

// reign is how much longer than a TTL a lock may stand when the ensemble gets another leader: until it is missed and another one is
// elected and followed, which then counts each session from the beginning.
const reign = 5 * time.Second

var zookeeperClasses = map[string]class{
	"calm":                {lives: true},
	"client-pause":        {extra: oneByOne},
	"client-kill":         {},
	"client-close":        {},
	"leader-kill":         {extra: reign},
	"leader-pause":        {extra: reign},
	"node-pause":          {extra: reign},
	"node-kill":           {extra: reign},
	"node-pause-majority": {from: fromEnd, extra: reign},
	"node-kill-majority":  {from: fromEnd, extra: reign},
	"net-reset":           {from: fromEnd},
	"net-split":           {from: fromEnd},
	"mixed":               {from: fromEnd, extra: reign},
}

// zookeeperSite is the members of an ensemble.
type zookeeperSite struct {
	ensemble *zkproc.Ensemble
	members  []*node
	direct   driver.Driver
}

func (s *zookeeperSite) start(ctx context.Context, schedule *Schedule) (err error) {
	if s.ensemble, err = zkproc.Start(ctx, schedule.Nodes, syncLimit); err != nil {
		return err
	}
	for _, m := range s.ensemble.Members {
		n := &node{server: m}
		s.members = append(s.members, n)
		for i := range n.proxies {
			if n.proxies[i], err = faultproxy.NewOpaque(m.Addr); err != nil {
				return err
			}
		}
	}
	s.direct, err = zookeeper.New(s.ensemble.Addrs(), nil)
	return err
}

func (s *zookeeperSite) stop() (errs error) {
	if s.direct != nil {
		errs = s.direct.Close()
	}
	for _, n := range s.members {
		errs = errors.Join(errs, n.close())
	}
	if s.ensemble != nil {
		errs = errors.Join(errs, s.ensemble.Stop())
	}
	return errs
}

func (s *zookeeperSite) nodes() []*node { return s.members }

func (s *zookeeperSite) leader(context.Context) int {
	return slices.Index(s.ensemble.Members, s.ensemble.Leader())
}

func (s *zookeeperSite) actions() map[string]action { return nil }

func (s *zookeeperSite) equip(o *order, client int) {
	for _, n := range s.members {
		o.Nodes = append(o.Nodes, n.proxies[client%sides].Addr())
	}
}

func (s *zookeeperSite) values() string { return "" }

func (s *zookeeperSite) ghosts(ctx context.Context, span *span, ttl time.Duration) ([]string, error) {
	return standing(ctx, s.direct, span, ttl)
}

// zkLocks is zk.Lock over one session for each process. It says nothing of its end, so that a holder believes in it until its
// client has another session.
type zkLocks struct {
	*zk.Conn
	rec *recorder
}

type silent struct{}

func (silent) Printf(string, ...any) {}

func openZkLock(o *order, rec *recorder) (service, error) {
	conn, _, err := zk.Connect(o.Nodes, time.Duration(o.Schedule.TTL), zk.WithLogger(silent{}))
	return zkLocks{conn, rec}, err
}

// lock leaves a wait that ctx ends to itself, as zk.Lock cannot be told to give up; its lock is freed when it comes.
func (z zkLocks) lock(ctx context.Context, key string) (held, error) {
	l := zk.NewLock(z.Conn, "/stock/"+key, zk.WorldACL(zk.PermAll))
	locked := make(chan error, 1)
	go func() { locked <- l.Lock() }()
	select {
	case err := <-locked:
		if err != nil {
			return held{}, err
		}
	case <-ctx.Done():
		go func() {
			if <-locked == nil {
				l.Unlock()
			}
		}()
		return held{}, ctx.Err()
	}
	session := z.SessionID()
	return believe(z.rec, key, func() bool { return z.SessionID() == session }, func(context.Context) error { return l.Unlock() }), nil
}

func (zkLocks) obey(_ context.Context, order string) error { return noOrder(order) }

func (z zkLocks) close() { z.Conn.Close() }
