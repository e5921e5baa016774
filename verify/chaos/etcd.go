//go:build linux

package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	_ "embed"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	schedule: etcdSchedule, classes: etcdClasses, fewest: 3, synced: true, site: func() site { return new(etcdSite) }, lead: twoSecondStart,
	open: openEtcd, apart: openEtcdBelow, peer: "concurrency.Mutex", openPeer: openMutex,
}

//go:embed schedule-etcd-auth.json
var etcdAuthSchedule []byte

// etcdAuthBackend is a cluster that requires a login, which is valid for a few seconds.
var etcdAuthBackend = &backend{
	schedule: etcdAuthSchedule, classes: etcdAuthClasses, fewest: 3, synced: true,
	site: func() site { return &etcdSite{logins: true} }, lead: twoSecondStart, open: openEtcd, // without a peer: clientv3 by itself does not outlive its login
}

func openEtcd(_ context.Context, o *order) (driver.Driver, error) {
	return etcd.New(context.Background(), o.Nodes, o.etcdOptions())
}

func openEtcdBelow(o *order, prefix string) (driver.Driver, error) {
	opts := o.etcdOptions()
	opts.Prefix = prefix + "/"
	return etcd.New(context.Background(), o.Nodes, opts)
}

func (o *order) etcdOptions() *etcd.Options {
	return &etcd.Options{Username: o.User, Password: o.Password, NoCheck: true} // faults may be in progress
}

// preVote is the default from etcd 3.5 on: a member that was cut off asks the others before it campaigns, so
// that its return ends no leader's term.
const preVote = "--pre-vote"

// twoSecondStart returns the lead of servers that grant locks as soon as they are up.
func twoSecondStart(*Schedule) time.Duration { return 2 * time.Second }

// newLeader bounds the time beyond a TTL until the next grant when the cluster elects a leader. With
// etcd's --election-timeout of 1 s, a member campaigns 1 to 2 s after its last message from the
// leader, and the new leader gives each lease its TTL and 1 s again.
const newLeader = 3 * time.Second

// oneByOneDelay bounds the time beyond a TTL until the next grant when clients are stopped one after another:
// the lock may pass to a client that is stopped later.
const oneByOneDelay = 1500 * time.Millisecond

// deadLinkDelay bounds the time beyond a TTL until the next grant if the next holder waits for a notification
// over a dead connection.
const deadLinkDelay = 3 * time.Second

var etcdClasses = map[string]class{
	"calm":                {lives: true},
	after:                 {lives: true},
	"client-pause":        {extra: oneByOneDelay},
	"client-kill":         {},
	"client-close":        {},
	"client-throttle":     {from: fromEnd},
	"crowd":               {lives: true},
	"client-slow-hooks":   {lives: true},
	"leader-kill":         {lives: true, extra: newLeader},
	"leader-pause":        {lives: true, extra: newLeader},
	"switch-over":         {lives: true, patient: true},
	"node-kill":           {lives: true, extra: newLeader},
	"node-pause":          {lives: true, extra: newLeader},
	"node-pause-majority": {from: fromEnd, extra: newLeader},
	"node-kill-majority":  {from: fromEnd, extra: newLeader},
	"compaction":          {from: fromEnd, patient: true},
	"nested":              {duty: apart, from: fromEnd},
	"leader-isolated":     {extra: newLeader},
	"node-isolated":       {extra: newLeader},
	"node-one-way":        {from: fromEnd, extra: newLeader},
	"rolling-restart":     {lives: true, extra: newLeader},
	"net-delay":           {},
	"net-reset":           {from: fromEnd},
	"link-dead":           {lives: true, patient: true, extra: deadLinkDelay},
	"net-one-way":         {from: fromEnd},
	"net-split":           {from: fromEnd},
	"late-requests":       {duty: stretching, from: fromEnd},
	"operator":            {duty: passing, from: fromEnd, extra: newLeader},
	"mixed":               {from: fromEnd, extra: newLeader},
}

var etcdAuthClasses = map[string]class{
	after:             etcdClasses[after],
	"logins":          {lives: true, patient: true},
	"compaction":      etcdClasses["compaction"],
	"rolling-restart": etcdClasses["rolling-restart"],
	"late-requests":   etcdClasses["late-requests"],
	"operator":        etcdClasses["operator"],
	"mixed":           etcdClasses["mixed"],
}

// etcdSite holds the members of a cluster.
type etcdSite struct {
	ensemble
	cluster *etcdproc.Cluster
	logins  bool   // clients must log in repeatedly
	dir     string // folder of the keys that sign logins
	version string
}

// suspendedLeader describes a fault of etcd before 3.4.31 and 3.5.13 (its issue 15247): a leader that resumes
// after a suspension ends leases which its successor has renewed. The driver cannot know of that, and its
// doctor warns.
func (s *etcdSite) suspendedLeader() (shared string) {
	var major, minor, patch int
	fmt.Sscanf(s.version, "%d.%d.%d", &major, &minor, &patch)
	if major < 3 || major == 3 && (minor < 4 || minor == 4 && patch < 31 || minor == 5 && patch < 13) {
		return "a leader of etcd " + s.version + " that was stopped may end leases that its successor has renewed"
	}
	return ""
}

// askVersion reads the version of a member.
func (s *etcdSite) askVersion(ctx context.Context) error {
	c, err := clientv3.New(clientv3.Config{Endpoints: s.cluster.Addrs(), Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer c.Close()
	st, err := c.Status(ctx, s.cluster.Addrs()[0])
	if err == nil {
		s.version = st.Version
	}
	return err
}

func (s *etcdSite) start(ctx context.Context, schedule *Schedule) (err error) {
	args := []string{preVote}
	if s.logins {
		if args, err = s.useSignedLogins(args); err != nil {
			return err
		}
	}
	if s.cluster, err = etcdproc.StartMeshed(ctx, schedule.Nodes, args...); err != nil {
		return err
	}
	s.mesh, s.end = s.cluster.Mesh, s.cluster.Stop
	for _, m := range s.cluster.Members {
		err = errors.Join(err, s.addMember(m, m.Addr))
	}
	if err == nil {
		err = s.askVersion(ctx)
	}
	if err == nil && s.logins {
		err = s.requireLogins(ctx)
	}
	return err
}

func (s *etcdSite) stop() error { return errors.Join(s.ensemble.stop(), os.RemoveAll(s.dir)) }

// loginTime is the lifetime of a login.
const loginTime = "3s"

// The users of the cluster.
const (
	etcdUser     = "locker"
	etcdRoot     = "root"
	etcdPassword = "secret"
)

// useSignedLogins makes the members sign short-lived logins, which all members accept.
func (s *etcdSite) useSignedLogins(args []string) (_ []string, err error) {
	if s.dir, err = os.MkdirTemp("", "holdfast-chaos-"); err != nil {
		return nil, err
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return nil, err
	}
	pub, priv := filepath.Join(s.dir, "public.pem"), filepath.Join(s.dir, "private.pem")
	err = errors.Join(
		os.WriteFile(pub, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o600),
		os.WriteFile(priv, pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}), 0o600),
	)
	return append(args, "--bcrypt-cost=4", "--auth-token=jwt,pub-key="+pub+",priv-key="+priv+",sign-method=RS256,ttl="+loginTime), err
}

// requireLogins creates users and turns authentication on.
func (s *etcdSite) requireLogins(ctx context.Context) error {
	c, err := clientv3.New(clientv3.Config{Endpoints: s.cluster.Addrs(), Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.RoleAdd(ctx, etcdUser)
	_, err2 := c.RoleGrantPermission(ctx, etcdUser, "\x00", "\x00", clientv3.PermissionType(clientv3.PermReadWrite))
	err = errors.Join(err, err2)
	for _, user := range []string{etcdRoot, etcdUser} {
		_, err2 := c.UserAdd(ctx, user, etcdPassword)
		_, err3 := c.UserGrantRole(ctx, user, user)
		err = errors.Join(err, err2, err3)
	}
	_, err2 = c.AuthEnable(ctx)
	return errors.Join(err, err2)
}

func (s *etcdSite) setConnections(o *order, client int) {
	s.ensemble.setConnections(o, client)
	if s.logins {
		o.User, o.Password = etcdUser, etcdPassword
	}
}

// findStaleLocks connects as a client that has just logged in.
func (s *etcdSite) findStaleLocks(ctx context.Context, span *span, ttl time.Duration) ([]string, error) {
	o := order{Nodes: s.cluster.Addrs()}
	if s.logins {
		o.User, o.Password = etcdUser, etcdPassword
	}
	direct, err := etcd.New(ctx, s.cluster.Addrs(), o.etcdOptions())
	if err != nil {
		return nil, err
	}
	defer direct.Close()
	found, err := heldLocks(ctx, direct, span.prefix(), ttl)
	if err != nil || etcdClasses[span.Class].duty != apart {
		return found, err
	}
	more, err := locksHeldOnBothSides(ctx, func(prefix string) (driver.Driver, error) { return openEtcdBelow(&o, prefix) }, span, ttl)
	return append(found, more...), err
}

func (s *etcdSite) actions() map[string]action {
	all := s.ensemble.actions()
	all["compact"], all["switch"] = s.compactRevisions, s.moveLeader
	return all
}

// moveLeader makes the healthy leader hand the lead to the next member.
func (s *etcdSite) moveLeader(_ Fault, victim int, _ func(time.Duration)) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	members := s.cluster.Members
	next, err := memberID(ctx, members[(victim+1)%len(members)].Addr)
	if err != nil {
		return err
	}
	c, err := clientv3.New(clientv3.Config{Context: ctx, Endpoints: []string{members[victim].Addr}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.MoveLeader(ctx, next)
	return err
}

func memberID(ctx context.Context, addr string) (uint64, error) {
	c, err := clientv3.New(clientv3.Config{Context: ctx, Endpoints: []string{addr}, Logger: zap.NewNop()})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	st, err := c.Status(ctx, addr)
	if err != nil {
		return 0, err
	}
	return st.Header.MemberId, nil
}

// compactRevisions makes the cluster drop all revisions but the last, again and again.
func (s *etcdSite) compactRevisions(f Fault, victim int, rest func(time.Duration)) error {
	for end := monotonicNow() + int64(f.For); monotonicNow() < end; rest(time.Duration(f.By)) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		compactMember(ctx, s.cluster.Members[victim].Addr, s.logins) // ignore an error: the next turn tries again
		cancel()
	}
	return nil
}

func compactMember(ctx context.Context, member string, login bool) error {
	cfg := clientv3.Config{Context: ctx, Endpoints: []string{member}, Logger: zap.NewNop()}
	if login {
		cfg.Username, cfg.Password = etcdRoot, etcdPassword
	}
	c, err := clientv3.New(cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	now, err := c.Get(ctx, "nothing")
	if err != nil {
		return err
	}
	_, err = c.Compact(ctx, now.Header.Revision)
	return err
}

func (s *etcdSite) leader(ctx context.Context) int {
	return slices.Index(s.cluster.Members, s.cluster.Leader(ctx))
}

// mutexes uses concurrency.Mutex with a session per lock, so that the loss of one lock does not end the
// others.
type mutexes struct {
	*clientv3.Client
	ttl time.Duration
	rec *recorder
}

func openMutex(o *order, rec *recorder) (service, error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: o.Nodes, Username: o.User, Password: o.Password, Logger: zap.NewNop()})
	return mutexes{c, time.Duration(o.Schedule.TTL), rec}, err
}

func (m mutexes) takeLock(ctx context.Context, key string, _ lockRequest) (heldLock, error) {
	alive, end := context.WithCancel(m.Ctx()) // of the session, which outlives ctx
	giveUp := context.AfterFunc(ctx, end)
	s, err := concurrency.NewSession(m.Client, concurrency.WithTTL(int(m.ttl/time.Second)), concurrency.WithContext(alive))
	if err != nil {
		end()
		return heldLock{}, err
	}
	mutex := concurrency.NewMutex(s, key)
	if err := mutex.Lock(ctx); err != nil || !giveUp() {
		end()
		return heldLock{}, errors.Join(err, ctx.Err(), s.Close())
	}
	holds := func() bool {
		select {
		case <-s.Done():
			return false
		default:
			return true
		}
	}
	return newBelief(m.rec, key, holds, func(ctx context.Context) error {
		defer end()
		ctx, cancel := context.WithTimeout(ctx, m.ttl)
		defer cancel()
		return errors.Join(mutex.Unlock(ctx), s.Close())
	}), nil
}

func (mutexes) executeOrder(_ context.Context, order string) error { return unknownOrder(order) }

func (m mutexes) close() { m.Client.Close() }
