//go:build linux

package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/rig/faultproxy"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/redis"
)

//go:embed schedule.json
var redisSchedule []byte

var redisBackend = &backend{
	schedule: redisSchedule, classes: redisClasses, fewest: 1, site: func() site { return new(redisSite) },
	// New nodes vote only after this time has passed twice: each attempt to open them starts their examination
	// again.
	lead: func(s *Schedule) time.Duration { return 2*(time.Duration(s.MaxTTL)+2*time.Second) + 2*time.Second },
	open: openRedlock, peer: "redsync", openPeer: openRedsync,
}

const clockRules = "a node's clock decides when its locks lapse"

var redisClasses = map[string]class{
	"calm":                {},
	after:                 {},
	"client-pause":        {extra: stoppedAhead * time.Second},
	"client-kill":         {},
	"node-pause":          {},
	"node-pause-majority": {from: fromEnd},
	"node-kill":           {},
	"node-wipe":           {},
	"node-wipe-majority":  {from: fromQuarantine},
	"node-restore":        {},
	"net-delay":           {},
	"net-lost-replies":    {from: fromEnd},
	"net-reset":           {from: fromEnd},
	"link-dead":           {lives: true, patient: true},
	"net-one-way":         {from: fromEnd},
	"net-split":           {from: fromEnd},
	"mixed":               {from: fromEnd, extra: stoppedAhead * time.Second},
	"node-replace":        {from: fromQuarantine, extra: stoppedAhead * time.Second},
	"node-restart":        {from: fromEnd},
	"node-clock-at-boot":  {from: fromQuarantine, extra: stoppedAhead * time.Second},
	"node-full":           {from: fromEnd},
	"node-commands":       {from: fromEnd},
	"node-unfit":          {from: fromQuarantine, extra: stoppedAhead * time.Second, unfit: true},
	"node-other-names":    {lives: true},
	"node-listeners":      {},
	"node-switch":         {from: fromEnd, extra: stoppedAhead * time.Second},
	"rolling-pause":       {lives: true},
	"rolling-restart":     {lives: true},
	"client-close":        {},
	"client-slow-hooks":   {lives: true},
	"client-throttle":     {from: fromEnd},
	"crowd":               {lives: true},
	"credentials":         {from: fromEnd},
	"rotation":            {from: fromEnd, lives: true, patient: true},
	"rotation-cut":        {from: fromEnd, extra: rotationPause, patient: true},
	"late-requests":       {duty: stretching, from: fromEnd, extra: time.Second},
	"operator":            {duty: passing, from: fromEnd, extra: stoppedAhead * time.Second},
	"flushall":            {from: fromQuarantine, extra: stoppedAhead * time.Second},
	"replicaof":           {from: fromQuarantine, extra: stoppedAhead * time.Second},
	"clock-jump":          {shared: clockRules, from: fromEnd},
	"clock-jump-hour":     {shared: clockRules, from: fromEnd},
}

// openRedlock opens the nodes as Holdfast's clients do.
func openRedlock(ctx context.Context, o *order) (driver.Driver, error) {
	nodes := make([]redis.Node, len(o.Nodes))
	for i, addr := range o.Nodes {
		nodes[i].Addr = addr
	}
	return redis.New(ctx, nodes, &redis.Options{MaxTTL: time.Duration(o.Schedule.MaxTTL), Credentials: o.readCredentials})
}

// readCredentials reads the current password of a node.
func (o *order) readCredentials(_ context.Context, addr string) (name, password string, err error) {
	file, ok := o.passwordOf(addr)
	if !ok {
		return "", "", fmt.Errorf("no password for %s", addr)
	}
	text, err := os.ReadFile(file)
	return user, string(text), err
}

// quarantineMargin is the wait of a restarted node beyond MaxTTL once a client has seen it, plus a second
// before that and a second until the next check.
const quarantineMargin = 4 * time.Second

// redisNode is a redis-server.
type redisNode struct {
	node
	redis  *redisproc.Server
	spare  *redisproc.Server // replaces the server for a while; nil if the schedule has no such fault
	secret string            // file with the password of user
}

// user is the login of Holdfast's clients; redsync and this program use none.
const user = "locker"

// firstPassword is the initial password of a server.
const firstPassword = "first"

func (n *redisNode) tellPassword(password string) error {
	return replaceFile(n.secret, password)
}

// setPassword changes the password on the server, and ends connections that used the old one.
func (n *redisNode) setPassword(password string) error {
	if _, err := n.redis.Do("ACL", "SETUSER", user, "resetpass", ">"+password); err != nil {
		return err
	}
	_, err := n.redis.Do("CLIENT", "KILL", "USER", user)
	return err
}

func (n *redisNode) dataDir() string   { return filepath.Join(n.redis.Dir(), "data") }
func (n *redisNode) backupDir() string { return filepath.Join(n.redis.Dir(), "old") }

// backupAOF copies the append-only file.
func (n *redisNode) backupAOF() error {
	return errors.Join(os.RemoveAll(n.backupDir()), os.CopyFS(n.backupDir(), os.DirFS(n.dataDir())))
}

// restoreAOF puts the copy of backupAOF back. The server is down.
func (n *redisNode) restoreAOF() error {
	return errors.Join(os.RemoveAll(n.dataDir()), os.CopyFS(n.dataDir(), os.DirFS(n.backupDir())))
}

//go:embed shim/clock.c
var clockSource []byte

// buildShim compiles the library that shifts a server's clock.
func buildShim(ctx context.Context, dir string) (string, error) {
	source, library := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	if err := os.WriteFile(source, clockSource, 0o600); err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, "cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, source).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("compile the clock shim: %w: %s", err, out)
	}
	return library, nil
}

// startNode starts a server with this appendfsync policy.
func startNode(ctx context.Context, dir, shim, policy string) (*redisNode, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	n := &redisNode{node: node{clock: clock(filepath.Join(dir, "clock"))}, secret: filepath.Join(dir, "secret")}
	if err := errors.Join(n.clock.shift(0), n.tellPassword(firstPassword)); err != nil {
		return nil, err
	}
	var err error
	n.redis, err = redisproc.Start(ctx, &redisproc.Options{
		Dir: dir, AppendOnly: policy, ACL: locker, Args: []string{"--enable-debug-command", "local"},
		Env: []string{"LD_PRELOAD=" + shim, "CHAOS_CLOCK=" + string(n.clock)},
	})
	if err != nil {
		return nil, err
	}
	n.server = n.redis
	for i := range n.proxies {
		if n.proxies[i], err = faultproxy.New(n.redis.Addr()); err != nil {
			return nil, errors.Join(err, n.stop())
		}
	}
	return n, nil
}

var locker = []string{user + " on >" + firstPassword + " ~* &* +@all"}

func (n *redisNode) stop() error {
	if n == nil {
		return nil
	}
	err := n.redis.Stop()
	if n.spare != nil {
		err = errors.Join(err, n.spare.Stop())
	}
	return errors.Join(err, n.close())
}

// lockKeys lists the keys on the node that begin with prefix.
func (n *redisNode) lockKeys(prefix string) ([]string, error) {
	reply, err := n.redis.Do("KEYS", prefix+"*")
	if err != nil {
		return nil, err
	}
	var keys []string
	list, _ := reply.([]any)
	for _, k := range list {
		if s, ok := k.(string); ok {
			keys = append(keys, s)
		}
	}
	return keys, nil
}

// fallBehind cuts the replicas of a master off, so that they miss its writes within By. Then the master dies,
// and returns after For.
func fallBehind(f Fault, nodes []*node, victim int, replicas []*redisproc.Server, rest func(time.Duration)) error {
	v := nodes[victim]
	v.life.Lock()
	defer v.life.Unlock()
	master := v.server.(*redisproc.Server)
	replicas = slices.DeleteFunc(slices.Clone(replicas), func(s *redisproc.Server) bool { return s == master })
	var errs error
	for _, r := range replicas {
		errs = errors.Join(errs, r.Pause())
	}
	_, err := master.Do("CLIENT", "KILL", "TYPE", "replica")
	rest(time.Duration(f.By))
	v.server.Kill()
	for _, r := range replicas {
		errs = errors.Join(errs, r.Resume())
	}
	rest(time.Duration(f.For - f.By))
	return errors.Join(errs, err, restartServer(v.server.Restart))
}

// redisSite has independent redis-servers.
type redisSite struct {
	dir     string
	servers []*redisNode
}

func (s *redisSite) start(ctx context.Context, schedule *Schedule) (err error) {
	if s.dir, err = os.MkdirTemp("", "holdfast-chaos-"); err != nil {
		return err
	}
	shim, err := buildShim(ctx, s.dir)
	if err != nil {
		return err
	}
	s.servers = make([]*redisNode, schedule.Nodes)
	errs := make([]error, schedule.Nodes)
	var starting sync.WaitGroup
	for i := range s.servers {
		policy := "everysec"
		if i < schedule.Durable {
			policy = "always"
		}
		starting.Go(func() {
			s.servers[i], errs[i] = startNode(ctx, filepath.Join(s.dir, fmt.Sprintf("node%d", i)), shim, policy)
			if errs[i] == nil && schedule.hasFault("switch-server") {
				s.servers[i].spare, errs[i] = redisproc.Start(ctx, &redisproc.Options{ACL: locker})
			}
		})
	}
	starting.Wait()
	return errors.Join(errs...)
}

func (s *redisSite) nodes() (out []*node) {
	for _, n := range s.servers {
		out = append(out, &n.node)
	}
	return out
}

func (s *redisSite) leader(context.Context) int { return -1 }

func (s *redisSite) setConnections(o *order, client int) {
	for _, n := range s.servers {
		o.Nodes = append(o.Nodes, n.proxies[client%sides].Addr())
		o.Passwords = append(o.Passwords, n.secret)
	}
}

func (s *redisSite) valuesDSN() string { return "" }

func (s *redisSite) stop() error {
	var errs error
	for _, n := range s.servers {
		errs = errors.Join(errs, n.stop())
	}
	return errors.Join(errs, os.RemoveAll(s.dir))
}

// findStaleLocks skips nodes that do not answer. It checks again, after a hand-over, the locks that it finds: a
// node with an old copy of its files also has old queue entries, and a release that reaches it after its
// quarantine hands the lock to one of them.
func (s *redisSite) findStaleLocks(ctx context.Context, span *span, _ time.Duration) (found []string, _ error) {
	for i, n := range s.servers {
		before := n.lockOwners("lock:" + span.prefix())
		if len(before) > 0 {
			sleep(ctx, time.Duration(quorum.MaxHandOver))
		}
		for key, owner := range n.lockOwners("lock:" + span.prefix()) {
			if owner == before[key] {
				found = append(found, fmt.Sprintf("%s on node %d: %s", strings.TrimPrefix(key, "lock:"), i, owner))
			}
		}
	}
	return found, nil
}

// lockOwners returns the owners of the node's locks by their keys, which begin with prefix; none if it does
// not answer.
func (n *redisNode) lockOwners(prefix string) map[string]string {
	keys, err := n.lockKeys(prefix)
	if err != nil {
		return nil
	}
	owners := make(map[string]string, len(keys))
	for _, key := range keys {
		if owner, err := n.redis.Do("GET", key); err == nil && owner != nil {
			owners[key] = fmt.Sprint(owner)
		}
	}
	return owners
}
