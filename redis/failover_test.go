package redis_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/resp"
	gates "github.com/holdfast-go/holdfast/internal/rig"
	"github.com/holdfast-go/holdfast/internal/rig/faultproxy"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/locktest"
	"github.com/holdfast-go/holdfast/redis"
)

// replicatedPair is a master and a replica whose replication the test can block.
type replicatedPair struct {
	*rig
	stream *faultproxy.Proxy
}

func startReplicatedPair(t *testing.T) *replicatedPair {
	t.Helper()
	c := &replicatedPair{rig: startRig(t, 2)}
	var err error
	if c.stream, err = faultproxy.NewOpaque(c.servers[0].Addr()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.stream.Close() })
	c.makeReplica(1, c.stream.Addr())
	return c
}

// makeReplica makes the i-th server a replica of the server at addr, and waits until it is in sync.
func (c *replicatedPair) makeReplica(i int, addr string) {
	c.Helper()
	host, port, _ := net.SplitHostPort(addr)
	c.do(i, "REPLICAOF", host, port)
	c.eventually("the replica is in step", func() bool { return strings.Contains(c.do(i, "INFO", "replication").(string), "master_link_status:up") })
}

// blockReplication blocks replication from now on.
func (c *replicatedPair) blockReplication() { c.stream.Blackhole(false, true) }

// promoteReplica promotes the replica after the master was stopped.
func (c *replicatedPair) promoteReplica() {
	c.Helper()
	c.servers[0].Kill()
	c.do(1, "REPLICAOF", "NO", "ONE")
}

func (c *replicatedPair) nodes() []redis.Node {
	f := new(redis.Failover)
	for _, s := range c.servers {
		f.Servers = append(f.Servers, s.Addr())
	}
	return []redis.Node{{Failover: f}}
}

// openVoting opens a client of servers that other clients have already admitted.
func (c *replicatedPair) openVoting(maxTTL time.Duration) *redis.Driver {
	c.Helper()
	c.openDriver(c.nodes(), &redis.Options{MaxTTL: maxTTL}).Close()
	return c.openAfterQuarantine(maxTTL)
}

// openAfterQuarantine opens another client after the quarantine.
func (c *replicatedPair) openAfterQuarantine(maxTTL time.Duration) *redis.Driver {
	c.Helper()
	d := newDriver(c, c.nodes(), &redis.Options{MaxTTL: maxTTL, Timeout: busyTimeout(), AllowDown: true})
	return d
}

// checkWaits waits until the client d reports that the node is in quarantine.
func (c *replicatedPair) checkWaits(d *redis.Driver) {
	c.Helper()
	c.eventually("the node is in quarantine", func() bool {
		e := d.Nodes()[0]
		return e.State == driver.NodeDown && e.Err != nil && strings.Contains(e.Err.Error(), "quarantine")
	})
}

// A replica may lack the newest counters of tokens. Its grants must still have higher tokens, also after a
// hand-over.
func TestTokensRiseAfterReplicaLostCounter(t *testing.T) {
	c := startReplicatedPair(t)
	locks := c.clientOf(c.openVoting(briefMaxTTL), nil)
	c.release(c.acquire(locks, "k", nil)) // a counter that the replica has
	c.awaitReplica(1)
	c.blockReplication()
	var last holdfast.Token
	for range 3 {
		l := c.acquire(locks, "k", nil)
		last = l.Token()
		c.release(l)
	}
	c.promoteReplica()
	for range 3 {
		l := c.acquire(locks, "k", nil)
		if l.Token() <= last {
			t.Errorf("token %d after %d", l.Token(), last)
		}
		last = l.Token()
		c.release(l)
	}
}

// The holder keeps its lease, and no other client is granted the lock before the end of the quarantine.
func TestLeaseSurvivesFailoverToStaleReplica(t *testing.T) {
	c := startReplicatedPair(t)
	d := c.openVoting(longTTL)
	locks := c.clientOf(d, nil)
	known := c.acquire(locks, "known", &holdfast.AcquireOptions{TTL: longTTL})
	c.awaitReplica(1)
	c.blockReplication()
	unknown := c.acquire(locks, "unknown", &holdfast.AcquireOptions{TTL: longTTL})
	second := c.openAfterQuarantine(longTTL)
	other := c.clientOf(second, nil)
	c.promoteReplica()
	c.checkWaits(second)
	for _, l := range []*holdfast.Lease{known, unknown} {
		if err := c.retryLate(func() error { return l.Extend(c.boundedContext(), longTTL) }); err != nil {
			t.Errorf("%s: %v", l.Key(), err)
		}
		if left := c.do(1, "PTTL", "lock:"+l.Key()).(int64); left < (longTTL / 2).Milliseconds() {
			t.Errorf("%s lasts for %d ms on the new master", l.Key(), left)
		}
	}
	for _, name := range []string{"known", "unknown", "free"} {
		if _, err := other.TryAcquire(t.Context(), name, nil); !errors.Is(err, holdfast.ErrUnavailable) {
			t.Errorf("%s: %v, want ErrUnavailable", name, err)
		} else {
			checkMentions(t, err, "quarantine")
		}
	}
	c.release(known, unknown)
	if err := known.Context().Err(); err == nil {
		t.Error("a released lease is still held")
	}
}

// A release during the quarantine does not hand the lock over, because the server may not know a later holder.
func TestReleaseInQuarantineDoesNotHandOver(t *testing.T) {
	c := startReplicatedPair(t)
	locks := c.clientOf(c.openVoting(longTTL), nil)
	l := c.acquire(locks, "k", &holdfast.AcquireOptions{TTL: longTTL})
	c.awaitReplica(1)
	c.promoteReplica()
	if err := c.retryLate(func() error { return l.Extend(c.boundedContext(), longTTL) }); err != nil {
		t.Fatal(err)
	}
	waiter := strings.Repeat("A", 26)
	listener, err := net.Dial("tcp", c.servers[1].Addr()) // like a connection from before
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	listener.Write(resp.AppendCommand(nil, "SUBSCRIBE", "holdfast:wake:"+waiter))
	c.eventually("it listens", func() bool { return c.do(1, "PUBSUB", "NUMSUB", "holdfast:wake:"+waiter).([]any)[1] == int64(1) })
	c.do(1, zaddPlaceArgs("holdfast:queue:{lock:k}", waiter+".1", 1)...)
	c.release(l)
	if owner := c.do(1, "GET", "lock:k"); owner != nil {
		t.Errorf("the lock belongs to %v", owner)
	}
}

// A holder that is cut off while its lock is forced can continue on a promoted replica, unless the replica
// received the force.
func TestForceReportsMissingReplicaConfirmation(t *testing.T) {
	for name, heard := range map[string]bool{"a replica in step": true, "a replica that is cut off": false} {
		t.Run(name, func(t *testing.T) {
			c := startReplicatedPair(t)
			operator := c.clientOf(c.openVoting(longTTL), nil)
			way := newRoute(t, c.servers)
			d := newDriver(t, c.nodes(), &redis.Options{MaxTTL: longTTL, Timeout: busyTimeout(), Dial: way.dial(c.servers)})
			l := c.acquire(c.clientOf(d, nil), "k", &holdfast.AcquireOptions{TTL: longTTL})
			c.awaitReplica(1)
			way[0].Blackhole(true, true)
			way[0].Refuse(true)
			if !heard {
				c.blockReplication()
			}
			err := c.retryLate(func() error { return operator.ForceRelease(t.Context(), "k", l.Token(), "it hangs") })
			if heard && err != nil {
				t.Errorf("ForceRelease() = %v", err)
			}
			if !heard {
				checkMentions(t, err, "no replica has answered", "a failover now may bring the old holder back")
				if !errors.Is(err, holdfast.ErrUnconfirmed) {
					t.Errorf("%v does not match ErrUnconfirmed", err)
				}
			}
			if owner := c.do(0, "GET", "lock:k"); owner != nil {
				t.Errorf("the lock still belongs to %v", owner)
			}
			c.promoteReplica()
			err = c.retryLate(func() error { return l.Extend(c.boundedContext(), longTTL) })
			if heard != errors.Is(err, holdfast.ErrLost) {
				t.Errorf("at the new master the old holder's Extend() = %v", err)
			}
		})
	}
}

// The new master may lack any of the locks. It grants none of them while the old holder still trusts its lease.
func TestNewMasterWaitsForOldLeases(t *testing.T) {
	c := startReplicatedPair(t)
	d := c.openVoting(2 * briefMaxTTL)
	defer d.Close()
	waiter := c.clientOf(c.openAfterQuarantine(2*briefMaxTTL), nil)
	c.blockReplication()
	g, err := d.Acquire(t.Context(), driver.Request{Key: "k", TTL: 2 * briefMaxTTL}) // short: nobody renews it and the waiter gets it at its end
	if err != nil {
		t.Fatal(err)
	}
	c.promoteReplica()
	l := c.acquire(waiter, "k", nil)
	if !time.Now().After(g.TrustedUntil) {
		t.Error("two holders trust their leases")
	}
	if int64(l.Token()) <= g.Token {
		t.Errorf("token %d after %d", l.Token(), g.Token)
	}
	c.release(l)
}

// Another server may have replaced this one for a while, so its data may lack grants, although server and
// process are the same.
func TestFormerReplicaSitsOutQuarantine(t *testing.T) {
	c := startReplicatedPair(t)
	c.openVoting(longTTL).Close() // a client that stayed would record its observation in the other server's marker
	c.do(1, "REPLICAOF", "NO", "ONE")
	c.makeReplica(0, c.servers[1].Addr())
	c.do(0, "REPLICAOF", "NO", "ONE")
	c.makeReplica(1, c.servers[0].Addr())
	d := c.openAfterQuarantine(longTTL)
	c.clientOf(d, nil)
	c.checkWaits(d)
}

func TestTwoMastersWithoutSentinelsAreRejected(t *testing.T) {
	c := startReplicatedPair(t)
	c.do(1, "REPLICAOF", "NO", "ONE")
	_, err := c.open(c.nodes(), nil)
	if !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("%v does not match ErrUnavailable", err)
	}
	checkMentions(t, err, c.servers[0].Addr(), c.servers[1].Addr(), "are all masters", "REPLICAOF")
}

func TestMasterWithoutReplicasHasDefect(t *testing.T) {
	c := startReplicatedPair(t)
	d := c.openVoting(briefMaxTTL)
	defer d.Close()
	if e := d.Nodes()[0]; e.State != driver.NodeDegraded {
		t.Errorf("%+v, want it degraded", e)
	} else {
		checkMentions(t, e.Err, "min-replicas-to-write is 0", "set min-replicas-to-write 1")
	}
	c.do(0, "CONFIG", "SET", "min-replicas-to-write", "1")
	safe := c.openAfterQuarantine(briefMaxTTL)
	defer safe.Close()
	if e := safe.Nodes()[0]; e.State != driver.NodeUp {
		t.Errorf("%+v, want it up", e)
	}
}

// A server forgets its promotion some time after it has lost its last replica.
func TestServerThatForgetsPromotionKeepsVote(t *testing.T) {
	c := startReplicatedPair(t)
	c.promoteReplica()
	c.openDriver(c.nodes(), &redis.Options{MaxTTL: longTTL}).Close() // without quarantine
	c.do(1, "CONFIG", "SET", "repl-backlog-ttl", "1")
	c.eventually("it has forgotten its promotion", func() bool {
		return strings.Contains(c.do(1, "INFO", "replication").(string), "master_replid2:0000000000")
	})
	d := newDriver(t, c.nodes(), &redis.Options{MaxTTL: longTTL, Timeout: busyTimeout()})
	d.Close()
}

func TestNodeOfSetMayFailOver(t *testing.T) {
	c := startReplicatedPair(t)
	nodes := c.nodes()
	for _, s := range redistest.StartN(t, 2) {
		nodes = append(nodes, redis.Node{Addr: s.Addr()})
	}
	c.openDriver(nodes, &redis.Options{MaxTTL: 8 * briefMaxTTL}).Close() // without quarantine
	d := newDriver(t, nodes, &redis.Options{MaxTTL: 8 * briefMaxTTL, Timeout: busyTimeout()})
	locks := c.clientOf(d, nil)
	if marker := c.do(0, "GET", "holdfast:set").(string); !strings.HasPrefix(marker, "n=3 v=3 failover maxttl=8000 run=") {
		t.Errorf("marker %q", marker)
	}
	l := c.acquire(locks, "k", &holdfast.AcquireOptions{TTL: 8 * briefMaxTTL})
	before := l.Token()
	c.promoteReplica()
	c.eventually("the node votes again", func() bool { e := d.Nodes()[0]; return e.State == driver.NodeDegraded })
	if err := l.Context().Err(); err != nil {
		t.Errorf("lost: %v", context.Cause(l.Context()))
	}
	c.release(l)
	l = c.acquire(locks, "k", nil)
	if l.Token() <= before {
		t.Errorf("token %d after %d", l.Token(), before)
	}
	c.release(l)
}

// sentinelGroup is a group of servers with Sentinels.
type sentinelGroup struct {
	*rig
	group *redisproc.Group
}

func startSentinelGroup(t *testing.T, opts *redisproc.GroupOptions) *sentinelGroup {
	t.Helper()
	t.Parallel()
	g := redistest.StartGroup(t, opts)
	return &sentinelGroup{rig: &rig{T: t, servers: g.Servers}, group: g}
}

func (b *sentinelGroup) node() redis.Node {
	return redis.Node{Failover: &redis.Failover{Sentinels: b.group.Addrs(), Master: redisproc.GroupName}}
}

func TestConformanceThroughSentinels(t *testing.T) {
	gates.Nightly(t, "sizes")
	b := startSentinelGroup(t, &redisproc.GroupOptions{Server: redisproc.Options{Args: []string{"--min-replicas-to-write", "1"}}})
	var tests atomic.Int32
	locktest.Run(t, locktest.Harness{Start: func(t testing.TB) locktest.Service {
		f := newFleet(t, b.group.Servers, fmt.Sprintf("test%d/", tests.Add(1)))
		f.node = new(b.node())
		return locktest.Service{
			Nodes: 1, Open: f.openDriver,
			Disconnect:  func(d driver.Driver) { f.route(d).blackhole(true) },
			Reconnect:   func(d driver.Driver) { f.route(d).blackhole(false) },
			LoseReplies: f.loseReplies,
			Delay:       f.delayServers,
			StopNodes:   func(k int) { f.stopServers(k * len(b.group.Servers)) }, StartNodes: func() { f.stopServers(0) },
			Leftovers: f.findLeftovers,
		}
	}})
}

// After each kind of failover the new master serves the waiter, tokens rise, and no two clients hold a lock at
// once.
func TestClientsFollowMaster(t *testing.T) {
	b := startSentinelGroup(t, &redisproc.GroupOptions{Down: pace.Scale(2 * time.Second)}) // each failover begins a quarantine, so there must be no unplanned ones
	// A healthy old master continues beside its successor until the clients have left it, within five seconds.
	// The quarantine must be longer than that and a TTL, also on a busy machine.
	longest := briefMaxTTL + min(pace.Scale(6*time.Second), 20*time.Second)
	open := func() *holdfast.Client {
		d := newDriver(t, []redis.Node{b.node()}, &redis.Options{MaxTTL: longest, Timeout: busyTimeout(), AllowDown: true})
		return b.clientOf(d, nil)
	}
	g := &guardedResource{t: t}
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 4 {
		c := open()
		all.Go(func() {
			for ctx.Err() == nil {
				if l, err := c.Acquire(ctx, "k", &holdfast.AcquireOptions{TTL: briefMaxTTL}); err == nil { // short: each round waits for its end
					g.hold(l, time.Millisecond)
					l.Release(t.Context())
				}
			}
		})
	}
	served := func() {
		t.Helper()
		before := g.count.Load()
		b.eventually("somebody is served", func() bool { return g.count.Load() > before })
	}
	served()
	for name, leave := range map[string]func(*redisproc.Server) (back func() error){
		"switch": func(*redisproc.Server) func() error {
			if err := b.group.Switch(t.Context()); err != nil {
				t.Fatal(err)
			}
			return func() error { return nil }
		},
		"kill": func(s *redisproc.Server) func() error {
			s.Kill()
			return func() error { return s.Restart(t.Context()) }
		},
		"stop": func(s *redisproc.Server) func() error {
			if err := s.Pause(); err != nil {
				t.Fatal(err)
			}
			return s.Resume
		},
	} {
		old := b.group.Master()
		back := leave(old)
		begun := time.Now()
		b.eventually("another one takes over after: "+name, func() bool {
			now := b.group.Master()
			if now == old && name == "switch" && time.Since(begun) > 2*b.group.FailoverTimeout() { // given up on a busy machine
				leave(old)
				begun = time.Now()
			}
			return now != nil && now != old
		})
		served()
		if err := errors.Join(back(), b.group.AwaitReplicas(t.Context(), 1)); err != nil {
			t.Fatal(err)
		}
		served()
	}
	stop()
	all.Wait()
}

// An isolated master does not notice its successor, but the Sentinels do.
func TestClientLeavesReplacedMaster(t *testing.T) {
	r := startRig(t, 2)
	var now atomic.Pointer[string]
	now.Store(new(masterReply(r.servers[0].Addr())))
	node := redis.Node{Failover: &redis.Failover{Sentinels: []string{startSentinel(t, func() string { return *now.Load() })}, Master: "m"}}
	d := r.openDriver([]redis.Node{node}, nil)
	locks := r.clientOf(d, nil)
	r.release(r.acquire(locks, "k", nil))
	now.Store(new(masterReply(r.servers[1].Addr())))
	r.eventually("the other server is used", func() bool {
		l := r.acquire(locks, "k", nil)
		defer r.release(l)
		return r.do(1, "EXISTS", "lock:k") == int64(1)
	})
}

// The Sentinels name the successor before the slow login ends.
func TestClientLeavesMasterReplacedDuringLogin(t *testing.T) {
	r := startRig(t, 2)
	way := newRoute(t, r.servers[:1])
	way[0].SetDelay(300 * time.Millisecond) // so that the login takes longer than a second
	old, next := way.nodes()[0].Addr, r.servers[1].Addr()
	var asked atomic.Int32
	sentinel := startSentinel(t, func() string {
		if asked.Add(1) == 1 {
			return masterReply(old)
		}
		return masterReply(next)
	})
	node := redis.Node{Failover: &redis.Failover{Sentinels: []string{sentinel}, Master: "m"}}
	locks := r.clientOf(r.openDriver([]redis.Node{node}, &redis.Options{AllowDown: true, Timeout: busyTimeout()}), nil)
	l := r.acquire(locks, "k", nil)
	defer r.release(l)
	if r.do(0, "EXISTS", "lock:k") != int64(0) || r.do(1, "EXISTS", "lock:k") != int64(1) {
		t.Error("the lock was granted on the replaced master")
	}
}

// After a slow login, the first Sentinel to answer was suspended together with the old master, and still names
// it.
func TestStaleSentinelDoesNotKeepReplacedMaster(t *testing.T) {
	r := startRig(t, 2)
	way := newRoute(t, r.servers[:1])
	way[0].SetDelay(300 * time.Millisecond) // so that the login takes longer than a second
	old, next := way.nodes()[0].Addr, r.servers[1].Addr()
	var located atomic.Bool
	var asked atomic.Int32 // number of requests since then
	var sentinels []string
	for range 3 {
		sentinels = append(sentinels, startSentinel(t, func() string {
			if !located.Load() || asked.Add(1) == 1 {
				return masterReply(old)
			}
			return masterReply(next)
		}))
	}
	opts := &redis.Options{AllowDown: true, Timeout: busyTimeout(), Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if addr == old {
			located.Store(true)
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}}
	node := redis.Node{Failover: &redis.Failover{Sentinels: sentinels, Master: "m"}}
	l := r.acquire(r.clientOf(r.openDriver([]redis.Node{node}, opts), nil), "k", nil)
	defer r.release(l)
	if r.do(0, "EXISTS", "lock:k") != int64(0) || r.do(1, "EXISTS", "lock:k") != int64(1) {
		t.Error("the lock was granted on the replaced master")
	}
}

// A master that is cut off from its replica stops granting and renewing before the replica starts as master.
// This also holds for clients that reach only the Sentinel beside the old master.
func TestIsolatedMasterStopsBeforeNextBegins(t *testing.T) {
	c := startReplicatedPair(t)
	for i := range c.servers {
		c.do(i, "CONFIG", "SET", "min-replicas-to-write", "1", "min-replicas-max-lag", "2")
	}
	c.eventually("the replica keeps up", func() bool {
		return strings.Contains(c.do(0, "INFO", "replication").(string), "min_slaves_good_slaves:1")
	})
	side := func(i int) []redis.Node {
		return []redis.Node{{Failover: &redis.Failover{Sentinels: []string{sentinelAnswering(t, masterReply(c.servers[i].Addr()))}, Master: "m"}}}
	}
	longest := 2*briefMaxTTL + min(pace.Scale(3*briefMaxTTL), 20*time.Second) // longer than the TTL by the time that the master needs to notice
	locks := c.clientOf(c.openDriver(side(0), &redis.Options{MaxTTL: longest}), nil)
	old := c.acquire(locks, "k", &holdfast.AcquireOptions{TTL: 2 * briefMaxTTL}) // short: the other side begins after its end
	c.stream.Blackhole(true, true)
	c.do(1, "REPLICAOF", "NO", "ONE")
	c.do(1, "CONFIG", "SET", "min-replicas-to-write", "0") // it has no replica of its own
	d := newDriver(t, side(1), &redis.Options{MaxTTL: longest, Timeout: busyTimeout(), AllowDown: true})
	l := c.acquire(c.clientOf(d, nil), "k", nil)
	if old.Context().Err() == nil {
		t.Error("two holders at once")
	}
	if l.Token() <= old.Token() {
		t.Errorf("token %d after %d", l.Token(), old.Token())
	}
	c.release(l)
}

// sentinelAnswering starts a Sentinel that always gives this reply.
func sentinelAnswering(t *testing.T, reply string) string {
	return startSentinel(t, func() string { return reply })
}

// startSentinel starts a Sentinel that gives the replies of the test.
func startSentinel(t *testing.T, reply func() string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(func() { l.Close(); all.Wait() })
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer conn.Close()
				for in := resp.NewReader(conn); ; {
					if _, _, err := in.ReadCommand(); err != nil {
						return
					}
					conn.Write([]byte(reply()))
				}
			})
		}
	})
	return l.Addr().String()
}

// masterReply returns the reply of a Sentinel that names addr.
func masterReply(addr string) string {
	host, port, _ := net.SplitHostPort(addr)
	return string(resp.AppendCommand(nil, host, port))
}

func TestErrorNamesUselessSentinels(t *testing.T) {
	r := startRig(t, 2)
	r.do(1, "REPLICAOF", "127.0.0.1", r.replicaOf(0)[2])
	master, replica := r.servers[0].Addr(), r.servers[1].Addr()
	unknown, secretive := "*-1\r\n", "-NOAUTH Authentication required.\r\n"
	wrong := "-WRONGPASS invalid username-password pair or user is disabled.\r\n"
	gone := "127.0.0.1:1"
	for name, c := range map[string]struct {
		replies []string // of the Sentinels; "": it is down
		user    redis.Failover
		lasting error
		words   []string
	}{
		"all down":     {replies: []string{"", "", ""}, words: []string{"no Sentinel names the master m", "refused"}},
		"one knows":    {replies: []string{"", unknown, masterReply(master)}},
		"one is wrong": {replies: []string{masterReply(gone), masterReply(master), masterReply(master)}},
		"all disagree": {
			replies: []string{masterReply(gone), masterReply(replica), masterReply(master)},
			words:   []string{"the Sentinels disagree", gone, replica, master},
		},
		"one lies":                {replies: []string{masterReply(replica)}, words: []string{replica, "it is a replica"}},
		"two lie":                 {replies: []string{masterReply(gone), masterReply(replica)}, words: []string{"the Sentinels disagree", gone, replica}},
		"nonsense":                {replies: []string{"+OK\r\n"}, words: []string{"unexpected reply"}},
		"no address":              {replies: []string{"*2\r\n$1\r\n?\r\n$1\r\n0\r\n"}, words: []string{"names no address"}},
		"none knows the name":     {replies: []string{unknown, unknown, ""}, lasting: driver.ErrConfig, words: []string{"knows no master m", "SENTINEL MASTERS"}},
		"they ask for a password": {replies: []string{secretive}, lasting: driver.ErrAuth, words: []string{"sentinel_password"}},
		"the password is wrong": {
			replies: []string{wrong}, user: redis.Failover{Password: secretPassword}, lasting: driver.ErrAuth, words: []string{"sentinel_password"},
		},
		"it is not a Sentinel": {
			replies: []string{"-ERR unknown command 'SENTINEL'\r\n"}, lasting: driver.ErrConfig,
			words: []string{"no Sentinel", "26379"},
		},
		"it names another as itself":  {replies: []string{masterReply("127.0.0.1:0")}, words: []string{"names no address"}},
		"it closes without an answer": {replies: []string{"garbage\r\n"}, words: []string{"not RESP"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := c.user
			f.Master = "m"
			for i, reply := range c.replies {
				if reply == "" {
					f.Sentinels = append(f.Sentinels, fmt.Sprintf("127.0.0.1:%d", i+1))
				} else {
					f.Sentinels = append(f.Sentinels, sentinelAnswering(t, reply))
				}
			}
			hears := func() (complete bool, err error) {
				d, err := redis.New(t.Context(), []redis.Node{{Failover: &f}}, &redis.Options{NoQuarantine: true, Timeout: busyTimeout()})
				if err == nil {
					d.Close()
					return true, nil
				}
				return len(c.words) > 0 && !slices.ContainsFunc(c.words, func(w string) bool { return !strings.Contains(err.Error(), w) }), err
			}
			complete, err := hears()
			for end := time.Now().Add(patience()); !complete && time.Now().Before(end); { // one Sentinel may be late on a busy machine
				complete, err = hears()
			}
			if len(c.words) == 0 {
				if err != nil {
					t.Error(err)
				}
				return
			}
			want := c.lasting
			if want == nil {
				want = driver.ErrUnavailable
			}
			if !errors.Is(err, want) {
				t.Errorf("%v does not match %v", err, want)
			}
			checkMentions(t, err, c.words...)
			if err != nil && strings.Contains(err.Error(), secretPassword) {
				t.Errorf("%v contains the password", err)
			}
		})
	}
}

// Sentinels and servers have different passwords.
func TestSentinelsAndServersHaveSeparatePasswords(t *testing.T) {
	b := startSentinelGroup(t, &redisproc.GroupOptions{
		Sentinels: 1, Servers: 2, Server: redisproc.Options{Password: "servers-secret"}, Sentinel: redisproc.Options{Password: "sentinels-secret"},
	})
	open := func(server, sentinel string) error {
		url := fmt.Sprintf("redis+sentinel://:%s@%s/%s/0?sentinel_password=%s&quarantine=off&timeout="+busyTimeout().String(),
			server, b.group.Addrs()[0], redisproc.GroupName, sentinel)
		d, err := redis.Open(t.Context(), url, nil)
		if err == nil {
			d.Close()
		}
		return err
	}
	if err := open("servers-secret", "sentinels-secret"); err != nil {
		t.Error(err)
	}
	for _, pair := range [][2]string{{"wrong", "sentinels-secret"}, {"servers-secret", "wrong"}} {
		if err := open(pair[0], pair[1]); !errors.Is(err, driver.ErrAuth) {
			t.Errorf("%q: %v does not match driver.ErrAuth", pair, err)
		}
	}
}

func TestTLSCoversSentinelsAndServers(t *testing.T) {
	cert, err := redisproc.NewCertificate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	secure := redisproc.Options{TLS: cert}
	b := startSentinelGroup(t, &redisproc.GroupOptions{Sentinels: 1, Servers: 2, Server: secure, Sentinel: secure})
	rest := fmt.Sprintf("+sentinel://%s/%s?quarantine=off&timeout="+busyTimeout().String(), b.group.Addrs()[0], redisproc.GroupName)
	d := openURL(t, "rediss"+rest+"&ca="+cert.Cert, nil)
	d.Close()
	_, err = redis.Open(t.Context(), "redis"+rest, nil)
	checkMentions(t, err, "no Sentinel names the master", "rediss://")
}
