//go:build linux

package main

import (
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/rig/faultproxy"
	"github.com/holdfast-go/holdfast/internal/rig/pgproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
)

// sides is how many proxies stand before each node: clients with even numbers use
// one, those with odd numbers the other, so that the network can fail for some.
const sides = 2

// node is a redis-server that keeps locks, with its proxies and its clock.
type node struct {
	life    sync.Mutex // held by the fault that stops, kills or restarts the server
	server  *redisproc.Server
	spare   *redisproc.Server // to which the address leads for a while; nil where the schedule has no such fault
	proxies [sides]*faultproxy.Proxy
	clock   string // file
	secret  string // file, with the password of user
}

// user is whom Holdfast's clients log in as; redsync's and this program do without.
const user = "locker"

// firstPassword is what a server has when it is started.
const firstPassword = "first"

func (n *node) tellPassword(password string) error {
	return os.WriteFile(n.secret, []byte(password), 0o600)
}

// setPassword changes it on the server, and ends the connections that used the old one.
func (n *node) setPassword(password string) error {
	if _, err := n.server.Do("ACL", "SETUSER", user, "resetpass", ">"+password); err != nil {
		return err
	}
	_, err := n.server.Do("CLIENT", "KILL", "USER", user)
	return err
}

func (n *node) dataDir() string { return filepath.Join(n.server.Dir(), "data") }
func (n *node) oldDir() string  { return filepath.Join(n.server.Dir(), "old") }

// shift sets how far the node's clock is ahead.
func (n *node) shift(by time.Duration) error {
	var offset [8]byte
	binary.NativeEndian.PutUint64(offset[:], uint64(by.Nanoseconds()))
	f, err := os.OpenFile(n.clock, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(offset[:], 0)
	return errors.Join(err, f.Close())
}

// keepCopy copies the append-only file as it is on disk, for restore.
func (n *node) keepCopy() error {
	return errors.Join(os.RemoveAll(n.oldDir()), os.CopyFS(n.oldDir(), os.DirFS(n.dataDir())))
}

// restore puts the copy back. The server is down.
func (n *node) restore() error {
	return errors.Join(os.RemoveAll(n.dataDir()), os.CopyFS(n.dataDir(), os.DirFS(n.oldDir())))
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

// startNode starts a server with that appendfsync policy.
func startNode(ctx context.Context, dir, shim, policy string) (*node, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	n := &node{clock: filepath.Join(dir, "clock"), secret: filepath.Join(dir, "secret")}
	if err := errors.Join(n.shift(0), n.tellPassword(firstPassword)); err != nil {
		return nil, err
	}
	var err error
	n.server, err = redisproc.Start(ctx, &redisproc.Options{
		Dir: dir, AppendOnly: policy, ACL: locker, Args: []string{"--enable-debug-command", "local"},
		Env: []string{"LD_PRELOAD=" + shim, "CHAOS_CLOCK=" + n.clock},
	})
	if err != nil {
		return nil, err
	}
	for i := range n.proxies {
		if n.proxies[i], err = faultproxy.New(n.server.Addr()); err != nil {
			return nil, errors.Join(err, n.stop())
		}
	}
	return n, nil
}

var locker = []string{user + " on >" + firstPassword + " ~* &* +@all"}

func (n *node) stop() error {
	if n == nil {
		return nil
	}
	err := n.server.Stop()
	if n.spare != nil {
		err = errors.Join(err, n.spare.Stop())
	}
	for _, p := range n.proxies {
		if p != nil {
			err = errors.Join(err, p.Close())
		}
	}
	return err
}

// lockKeys lists the keys on the node that begin with prefix.
func (n *node) lockKeys(prefix string) ([]string, error) {
	reply, err := n.server.Do("KEYS", prefix+"*")
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

// site is all servers of a run.
type site struct {
	dir    string
	nodes  []*node
	values *redisproc.Server // the guarded Redis
	sql    *pgproc.Server    // the guarded PostgreSQL
}

func startSite(ctx context.Context, schedule *Schedule) (s *site, err error) {
	nodes := schedule.Nodes
	s = &site{nodes: make([]*node, nodes)}
	if s.dir, err = os.MkdirTemp("", "holdfast-chaos-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	shim, err := buildShim(ctx, s.dir)
	if err != nil {
		return s, err
	}
	errs := make([]error, nodes+2)
	var starting sync.WaitGroup
	for i := range nodes {
		policy := "everysec"
		if i < schedule.Durable {
			policy = "always"
		}
		starting.Go(func() {
			s.nodes[i], errs[i] = startNode(ctx, filepath.Join(s.dir, fmt.Sprintf("node%d", i)), shim, policy)
			if errs[i] == nil && schedule.has("switch-server") {
				s.nodes[i].spare, errs[i] = redisproc.Start(ctx, &redisproc.Options{ACL: locker})
			}
		})
	}
	starting.Go(func() { s.values, errs[nodes] = redisproc.Start(ctx, nil) })
	starting.Go(func() {
		if s.sql, errs[nodes+1] = pgproc.Start(ctx, "max_connections=200"); errs[nodes+1] == nil {
			errs[nodes+1] = prepareSQL(ctx, s.sql.DSN())
		}
	})
	starting.Wait()
	return s, errors.Join(errs...)
}

func (s *site) stores() stores { return stores{Redis: s.values.Addr(), SQL: s.sql.DSN()} }

// addrs are the nodes as the client with that number reaches them.
func (s *site) addrs(client int) []string {
	out := make([]string, len(s.nodes))
	for i, n := range s.nodes {
		out[i] = n.proxies[client%sides].Addr()
	}
	return out
}

// passwords are the files with the password of each node.
func (s *site) passwords() []string {
	out := make([]string, len(s.nodes))
	for i, n := range s.nodes {
		out[i] = n.secret
	}
	return out
}

func (s *site) stop() error {
	var errs error
	for _, n := range s.nodes {
		errs = errors.Join(errs, n.stop())
	}
	if s.values != nil {
		errs = errors.Join(errs, s.values.Stop())
	}
	if s.sql != nil {
		errs = errors.Join(errs, s.sql.Stop())
	}
	return errors.Join(errs, os.RemoveAll(s.dir))
}

// ghosts lists the locks on the nodes that begin with one of the prefixes. Nodes
// that do not answer are left out.
func (s *site) ghosts(prefixes ...string) []string {
	var found []string
	for i, n := range s.nodes {
		for _, prefix := range prefixes {
			keys, err := n.lockKeys(prefix)
			if err != nil {
				continue
			}
			for _, k := range keys {
				found = append(found, fmt.Sprintf("%s on node %d", strings.TrimPrefix(k, "lock:"), i))
			}
		}
	}
	return found
}
