//go:build linux

package main

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/faultproxy"
)

// backend is a lock service under test, with another library that gets the same faults for comparison.
type backend struct {
	schedule []byte // the built-in schedule
	classes  map[string]class
	fewest   int  // minimal number of nodes of a schedule
	synced   bool // its servers sync each commit to disk
	// lead returns the time from the start of the clients until they can get locks.
	lead func(*Schedule) time.Duration
	site func() site
	open func(context.Context, *order) (driver.Driver, error)
	// apart opens the locks below a prefix; nil if no class has nested prefixes.
	apart func(o *order, prefix string) (driver.Driver, error)
	peer  string
	// openPeer opens the other library in its client process.
	openPeer func(*order, *recorder) (service, error)
}

// backends holds the backends by name.
var backends map[string]*backend

func init() { // not an initialiser: the backends refer to this map
	backends = map[string]*backend{
		"redis": redisBackend, "cluster": clusterBackend, "etcd": etcdBackend, "postgres": postgresBackend, "zookeeper": zookeeperBackend,
		"sentinel": sentinelBackend, "sentinel-lax": laxBackend, "etcd-auth": etcdAuthBackend, "mariadb": mariadbBackend, "mysql": mysqlBackend,
		"sqlite": sqliteBackend,
	}
	for _, b := range backends {
		for _, name := range []string{"rolling-upgrade", "rolling-downgrade"} {
			b.classes[name] = class{lives: true, patient: true, duty: handing}
		}
	}
}

func backendOf(name string) (*backend, error) {
	b := backends[name]
	if b == nil {
		return nil, fmt.Errorf("no backend %q; there are %s", name, strings.Join(slices.Sorted(maps.Keys(backends)), ", "))
	}
	return b, nil
}

// site holds the servers that keep the locks.
type site interface {
	// start waits until all servers answer. Call stop even after an error.
	start(ctx context.Context, s *Schedule) error
	stop() error
	nodes() []*node
	// leader returns the number of the node that leads the others; -1: unknown.
	leader(ctx context.Context) int
	// actions returns the faults that only servers of this kind have.
	actions() map[string]action
	// setConnections sets in the order how the client reaches the servers.
	setConnections(o *order, client int)
	// valuesDSN returns the database of the servers, in which locks guard values; empty: none.
	valuesDSN() string
	// findStaleLocks lists the locks of a window that are still held.
	findStaleLocks(ctx context.Context, s *span, ttl time.Duration) ([]string, error)
}

// server is a process that keeps locks.
type server interface {
	Pause() error
	Resume() error
	Kill()
	Restart(ctx context.Context) error
	UnexpectedExits() error // error of an exit that no fault has caused
}

// sides is the number of proxies before each node: clients with even numbers use one, those with odd numbers
// the other, so that the network can fail for some clients.
const sides = 2

// node is a server with its proxies and its clock.
type node struct {
	life    sync.Mutex // held by a fault that uses the server
	server  server
	pooler  server // behind the second proxy; nil: none
	proxies [sides]*faultproxy.Proxy
	clock   clock

	mu   sync.Mutex // guards outs
	outs []interval // times without a writable server, during a failover
}

// noteOutage records that no server accepted writes from since until now.
func (n *node) noteOutage(since int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.outs = append(n.outs, interval{start: since, end: monotonicNow()})
}

// wasUnfit reports whether no server accepted writes just before t, or too shortly before t for a renewal.
func (n *node) wasUnfit(t int64, ttl time.Duration) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.ContainsFunc(n.outs, func(i interval) bool { return i.start < t && t < i.end+int64(ttl/3) })
}

// addDetour makes a client reach the node at addr through a proxy.
func (n *node) addDetour(o *order, addr string, client int) {
	if o.Detours == nil {
		o.Detours = map[string]string{}
	}
	o.Detours[addr] = n.proxies[client%sides].Addr()
}

// dial connects through the proxy of a node, if there is one.
func (o *order) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, network, cmp.Or(o.Detours[addr], addr))
}

// unexpectedExits returns the exits of the node's servers that no fault has caused.
func (n *node) unexpectedExits() (errs error) {
	for _, s := range []server{n.server, n.pooler} {
		if s != nil {
			errs = errors.Join(errs, s.UnexpectedExits())
		}
	}
	return errs
}

// close closes the proxies.
func (n *node) close() (errs error) {
	for _, p := range n.proxies {
		if p != nil {
			errs = errors.Join(errs, p.Close())
		}
	}
	return errs
}

// ensemble holds the members of a replicated service, each with its proxies, and the network between them.
type ensemble struct {
	members []*node
	mesh    *faultproxy.Mesh
	direct  driver.Driver
	end     func() error // stops the members
}

// addMember adds a member.
func (e *ensemble) addMember(m server, addr string) (err error) {
	n := &node{server: m}
	e.members = append(e.members, n)
	for i := range n.proxies {
		if n.proxies[i], err = faultproxy.NewOpaque(addr); err != nil {
			return err
		}
	}
	return nil
}

func (e *ensemble) stop() (errs error) {
	if e.direct != nil {
		errs = e.direct.Close()
	}
	for _, n := range e.members {
		errs = errors.Join(errs, n.close())
	}
	if e.end != nil {
		errs = errors.Join(errs, e.end())
	}
	return errs
}

func (e *ensemble) nodes() []*node { return e.members }

// actions cut a member off from the other members, but from no client: its incoming messages, its outgoing
// ones, or both.
func (e *ensemble) actions() map[string]action {
	isolate := func(in, out bool) action {
		return func(f Fault, victim int, rest func(time.Duration)) error {
			e.mesh.Isolate(victim, in, out)
			rest(time.Duration(f.For))
			e.mesh.Isolate(victim, false, false)
			return nil
		}
	}
	return map[string]action{"isolate": isolate(true, true), "deafen": isolate(true, false), "silence": isolate(false, true)}
}

func (e *ensemble) setConnections(o *order, client int) {
	for _, n := range e.members {
		o.Nodes = append(o.Nodes, n.proxies[client%sides].Addr())
	}
}

func (e *ensemble) valuesDSN() string { return "" }

func (e *ensemble) findStaleLocks(ctx context.Context, span *span, ttl time.Duration) ([]string, error) {
	return heldLocks(ctx, e.direct, span.prefix(), ttl)
}

// clock is a file with the offset of a server's wall clock; see shim/clock.c. Empty: the clock cannot be set.
type clock string

func (c clock) shift(by time.Duration) error {
	var offset [8]byte
	binary.NativeEndian.PutUint64(offset[:], uint64(by.Nanoseconds()))
	f, err := os.OpenFile(string(c), os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(offset[:], 0)
	return errors.Join(err, f.Close())
}

// heldLocks lists the locks with a prefix that are still held a TTL after a driver has seen them: after an
// outage, their holders first have to release them.
func heldLocks(ctx context.Context, d driver.Driver, prefix string, ttl time.Duration) (held []string, err error) {
	look := func() error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		held = nil
		return d.(driver.Lister).List(ctx, prefix, func(st driver.Status) bool {
			if st.Held {
				held = append(held, st.Key)
			}
			return true
		})
	}
	if err := retryUntilDone(ctx, look); err != nil || len(held) == 0 {
		return nil, err
	}
	sleep(ctx, ttl+grace)
	return held, retryUntilDone(ctx, look)
}

// retryUntilDone calls ask until it succeeds, for ten seconds at most: the next window may have faults.
func retryUntilDone(ctx context.Context, ask func() error) error {
	for end := monotonicNow() + int64(10*time.Second); ; sleep(ctx, 100*time.Millisecond) {
		if err := ask(); err == nil || monotonicNow() > end || ctx.Err() != nil {
			return err
		}
	}
}
