//go:build linux

package main

import (
	"context"
	_ "embed"
	"errors"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/etcd"
	"github.com/holdfast-go/holdfast/internal/rig/etcdproc"
)

//go:embed schedule-etcd.json
var etcdSchedule []byte

var etcdBackend = &backend{
	schedule: etcdSchedule, classes: etcdClasses, fewest: 3, site: func() site { return new(etcdSite) }, lead: soon,
	open: func(_ context.Context, o *order) (driver.Driver, error) { return etcd.New(o.Nodes, nil) },
	peer: "concurrency.Mutex", openPeer: openMutex,
}

// preVote is the default from etcd 3.5 on: a member that was cut off asks before it stands for election, so that its return ends no
// leader's term.
const preVote = "--pre-vote"

// soon is lead where servers grant locks as soon as they are up.
func soon(*Schedule) time.Duration { return 2 * time.Second }

// election is how much longer than a TTL a lock may stand when the cluster elects a leader. With etcd's --election-timeout of 1 s, a
// member stands for election 1 to 2 s after it last heard of the leader, and the new leader gives each lease its TTL and 1 s anew.
const election = 3 * time.Second

// oneByOne is how much longer a lock may stand where clients are stopped one after the other: it may pass to one whose turn to be
// stopped comes later.
const oneByOne = 1500 * time.Millisecond

var etcdClasses = map[string]class{
	"calm":                {lives: true},
	"client-pause":        {extra: oneByOne},
	"client-kill":         {},
	"client-close":        {},
	"client-throttle":     {from: fromEnd},
	"client-slow-hooks":   {lives: true},
	"leader-kill":         {lives: true, extra: election},
	"leader-pause":        {lives: true, extra: election},
	"node-kill":           {lives: true, extra: election},
	"node-pause":          {lives: true, extra: election},
	"node-pause-majority": {from: fromEnd, extra: election},
	"node-kill-majority":  {from: fromEnd, extra: election},
	"leader-isolated":     {extra: election},
	"node-isolated":       {extra: election},
	"node-one-way":        {from: fromEnd, extra: election},
	"rolling-restart":     {lives: true, extra: election},
	"net-delay":           {},
	"net-reset":           {from: fromEnd},
	"net-one-way":         {from: fromEnd},
	"net-split":           {from: fromEnd},
	"mixed":               {from: fromEnd, extra: election},
}

// etcdSite is the members of a cluster.
type etcdSite struct {
	ensemble
	cluster *etcdproc.Cluster
}

func (s *etcdSite) start(ctx context.Context, schedule *Schedule) (err error) {
	if s.cluster, err = etcdproc.StartMeshed(ctx, schedule.Nodes, preVote); err != nil {
		return err
	}
	s.mesh, s.end = s.cluster.Mesh, s.cluster.Stop
	for _, m := range s.cluster.Members {
		err = errors.Join(err, s.join(m, m.Addr))
	}
	if err == nil {
		s.direct, err = etcd.New(s.cluster.Addrs(), nil)
	}
	return err
}

func (s *etcdSite) leader(ctx context.Context) int {
	return slices.Index(s.cluster.Members, s.cluster.Leader(ctx))
}

// mutexes is concurrency.Mutex with a session for each lock, so that one lock that is lost takes no other with it.
type mutexes struct {
	*clientv3.Client
	ttl time.Duration
	rec *recorder
}

func openMutex(o *order, rec *recorder) (service, error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: o.Nodes, Logger: zap.NewNop()})
	return mutexes{c, time.Duration(o.Schedule.TTL), rec}, err
}

func (m mutexes) lock(ctx context.Context, key string) (held, error) {
	alive, end := context.WithCancel(m.Ctx()) // of the session, which goes on beyond ctx
	giveUp := context.AfterFunc(ctx, end)
	s, err := concurrency.NewSession(m.Client, concurrency.WithTTL(int(m.ttl/time.Second)), concurrency.WithContext(alive))
	if err != nil {
		end()
		return held{}, err
	}
	mutex := concurrency.NewMutex(s, key)
	if err := mutex.Lock(ctx); err != nil || !giveUp() {
		end()
		return held{}, errors.Join(err, ctx.Err(), s.Close())
	}
	holds := func() bool {
		select {
		case <-s.Done():
			return false
		default:
			return true
		}
	}
	return believe(m.rec, key, holds, func(ctx context.Context) error {
		defer end()
		ctx, cancel := context.WithTimeout(ctx, m.ttl)
		defer cancel()
		return errors.Join(mutex.Unlock(ctx), s.Close())
	}), nil
}

func (mutexes) obey(_ context.Context, order string) error { return noOrder(order) }

func (m mutexes) close() { m.Client.Close() }
