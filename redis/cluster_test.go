package redis_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/locktest"
	"github.com/holdfast-go/holdfast/redis"
)

// clusterRig is a cluster, with the helpers of a rig.
type clusterRig struct {
	rig
	cluster *redisproc.Cluster
}

func startCluster(t *testing.T, opts *redisproc.ClusterOptions) *clusterRig {
	t.Helper()
	t.Parallel()
	c := redistest.Cluster(t, opts)
	return &clusterRig{rig{T: t, servers: c.Servers}, c}
}

// url returns a URL with the cluster's last server, which may be a replica.
func (r *clusterRig) url(params string) string {
	return "redis+cluster://" + r.servers[len(r.servers)-1].Addr() + "?timeout=" + busyTimeout().String() + params
}

func (r *clusterRig) openURL(params string) *redis.Driver {
	r.Helper()
	d := openURL(r, r.url(params), nil)
	return d
}

func (r *clusterRig) newClient(params string) *holdfast.Client {
	r.Helper()
	return r.clientOf(r.openURL(params), nil)
}

// master returns the master that has the slot of a lock, and another one. During a failover it waits until a
// master has the slot.
func (r *clusterRig) master(name string) (master, other *redisproc.Server) {
	r.Helper()
	r.eventually("a master has the slot of "+name, func() bool {
		master, other = r.findMaster(name)
		return master != nil
	})
	return master, other
}

// findMaster is master without the wait: it returns nil if no master reports that it has the slot.
func (r *clusterRig) findMaster(name string) (master, other *redisproc.Server) {
	r.Helper()
	for _, s := range r.cluster.Masters() {
		slots, err := r.cluster.Slots(s)
		r.noError(err)
		if slices.Contains(slots, wire.Slot("lock:"+name)) {
			master = s
		} else if len(slots) > 0 {
			other = s
		}
	}
	return master, other
}

// move moves the slot of a lock to another master.
func (r *clusterRig) move(name string, pause func()) {
	r.Helper()
	from, to := r.master(name)
	r.noError(r.cluster.Move(from, to, pause, wire.Slot("lock:"+name)))
}

func TestConformanceOnCluster(t *testing.T) {
	r := startCluster(t, nil)
	var tests atomic.Int32
	locktest.Run(t, locktest.Harness{Start: func(t testing.TB) locktest.Service {
		f := newFleet(t, r.servers, fmt.Sprintf("test%d/", tests.Add(1)))
		return locktest.Service{
			Nodes: 1, Servers: len(r.servers), Open: f.openCluster,
			Disconnect:  func(d driver.Driver) { f.route(d).blackhole(true) },
			Reconnect:   func(d driver.Driver) { f.route(d).blackhole(false) },
			LoseReplies: f.loseReplies,
			Delay:       f.delayServers,
			StopNodes:   func(int) { f.stopServers(len(r.servers)) }, StartNodes: func() { f.stopServers(0) },
			Leftovers: f.findLeftovers,
		}
	}})
}

// openCluster opens the cluster of the servers. Each client reaches them through its own proxies.
func (f *fleet) openCluster() (driver.Driver, error) {
	way := newRoute(f.t, f.servers)
	for i, p := range way {
		p.CutAfter(func(args [][]byte) bool {
			return scriptCalls(args) && f.budget[i].Load() > 0 && f.budget[i].Add(-1) >= 0
		}, 1<<20)
	}
	d, err := redis.New(f.t.Context(), []redis.Node{{Addr: f.servers[0].Addr()}}, &redis.Options{
		Prefix: f.prefix, Cluster: true, Timeout: busyTimeout(),
		Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			i := slices.IndexFunc(f.servers, func(s *redisproc.Server) bool { return s.Addr() == addr })
			return new(net.Dialer).DialContext(ctx, network, way[i].Addr())
		},
	})
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.routes[d] = way
	for i := range f.down {
		way.downNode(i, true)
	}
	return d, nil
}

func TestKeysOfLockShareItsSlot(t *testing.T) {
	r := startCluster(t, &redisproc.ClusterOptions{Masters: 2})
	for _, params := range []string{"", "&bare=true"} {
		c := r.newClient(params)
		var leases []*holdfast.Lease
		for _, name := range []string{"x", "{x}", ":{x}", "{{x}", "{x}}", "a{b}c", "{}", "}", "{", "a}b", "a}b{", "*", "ключ}"} {
			l := r.acquire(c, name, nil)
			if st, err := c.Inspect(t.Context(), name); err != nil || st.Token != l.Token() {
				t.Errorf("%q: Inspect() = %+v, %v, want token %d", name, st, err, l.Token())
			}
			leases = append(leases, l)
		}
		listed := 0
		for _, err := range c.List(t.Context(), "") {
			if listed++; err != nil {
				t.Error(err)
			}
		}
		if listed != len(leases) {
			t.Errorf("List has %d locks of %d", listed, len(leases))
		}
		r.release(leases...)
	}
}

// While the slot moves, the keys of a name are on two servers, and no client may acquire it there.
func TestMovedSlotKeepsItsLocks(t *testing.T) {
	r := startCluster(t, &redisproc.ClusterOptions{Masters: 2})
	g := &guardedResource{t: t}
	stop := g.startClusterLoad(r, 4, "k", "")
	held := r.acquire(r.newClient(""), "{k}held", nil) // without waiters there is no queue, and the other keys move
	for range 10 {
		before := g.count.Load()
		r.move("{k}held", func() { time.Sleep(5 * time.Millisecond) })
		r.move("k", func() { time.Sleep(5 * time.Millisecond) })
		r.eventually("the lock is granted again", func() bool { return g.count.Load() > before+10 })
	}
	stop()
	if held.Context().Err() != nil {
		t.Errorf("the held lease was lost: %v", context.Cause(held.Context()))
	}
	r.release(held)
}

// An operator may leave the keys of a lock on two servers for any time. Its holder renews it in each phase.
func TestLeaseIsRenewedInEachPhaseOfMove(t *testing.T) {
	r := startCluster(t, &redisproc.ClusterOptions{Masters: 2})
	c := r.newClient("")
	l := r.acquire(c, "k", &holdfast.AcquireOptions{TTL: longTTL, NoRenew: true})
	for _, waits := range []bool{false, true} {
		if waits {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				if l, err := r.newClient("").Acquire(ctx, "k", nil); err == nil {
					l.Release(context.WithoutCancel(ctx))
				}
			}()
			defer func() { cancel(); <-done }()
			r.awaitWaiters(c, "k", 1)
		}
		phases := 0
		r.move("k", func() {
			phases++
			if err := l.Extend(r.boundedContext(), longTTL); err != nil {
				t.Errorf("a waiter: %v, phase %d: %v", waits, phases, err)
			}
		})
		if want := map[bool]int{false: 3, true: 4}[waits]; phases < want {
			t.Errorf("observed %d phases of the move, want %d", phases, want)
		}
	}
	r.release(l)
}

// Newer servers move a slot with all its keys at once, and clients notice it afterwards.
func TestAtomicSlotMoveKeepsLocks(t *testing.T) {
	r := startCluster(t, &redisproc.ClusterOptions{Masters: 2})
	g := &guardedResource{t: t}
	stop := g.startClusterLoad(r, 4, "k", "")
	defer stop()
	held := r.acquire(r.newClient(""), "{k}held", nil)
	for range 10 {
		before := g.count.Load()
		for _, name := range []string{"{k}held", "k"} {
			from, to := r.master(name)
			switch err := r.cluster.Migrate(t.Context(), from, to, wire.Slot("lock:"+name)); {
			case errors.Is(err, errors.ErrUnsupported):
				t.Skip("this server moves keys one by one: HOLDFAST_REDIS_SERVER names another one, Redis 8.4 or Valkey 9 and newer")
			case err != nil:
				t.Fatal(err)
			}
		}
		r.eventually("the lock is granted again", func() bool { return g.count.Load() > before+10 })
	}
	stop()
	if held.Context().Err() != nil {
		t.Errorf("the held lease was lost: %v", context.Cause(held.Context()))
	}
	r.release(held)
}

// startClusterLoad starts load on a cluster.
func (g *guardedResource) startClusterLoad(r *clusterRig, clients int, key, params string) (stop func()) {
	all := make([]*holdfast.Client, clients)
	for i := range all {
		all[i] = r.newClient(params)
	}
	return g.loadBy(&r.rig, all, key, nil)
}

// A waiter follows the slot in both directions.
func TestWaiterFollowsItsSlot(t *testing.T) {
	r := startCluster(t, &redisproc.ClusterOptions{Masters: 2})
	c, other := r.newClient(""), r.newClient("")
	l := r.acquire(c, "k", nil)
	granted := r.waitAndRelease(other, "k", nil)
	r.eventually("it waits", func() bool {
		st, err := c.Inspect(t.Context(), "k")
		return err == nil && st.Waiters == 1
	})
	r.move("k", nil)
	if err := l.Check(t.Context()); err != nil {
		t.Errorf("Check() = %v after the slot moved", err)
	}
	r.release(l)
	if err := <-granted; err != nil {
		t.Errorf("the waiter: %v", err)
	}
}

// A replica that has taken over may not know the newest locks. So it keeps the locks that it has, and grants
// none until the locks that it may not know have expired.
func TestFailedOverShardSitsOutQuarantine(t *testing.T) {
	r := startCluster(t, &redisproc.ClusterOptions{Masters: 3, Replicas: 3})
	const params = "&maxttl=6s"
	ttl := &holdfast.AcquireOptions{TTL: 6 * time.Second}
	c, other := r.newClient(params), r.newClient(params)
	held, last := r.acquire(c, "{k}", ttl), r.acquire(c, "{k}2", ttl)
	r.release(last)
	old, _ := r.master("{k}")
	next := r.cluster.ReplicaOf(old)
	begin := time.Now()
	if _, err := next.Do("CLUSTER", "FAILOVER"); err != nil {
		t.Fatal(err)
	}
	asked := time.Now()
	r.eventually("the replica has taken over", func() bool {
		m, _ := r.findMaster("{k}")
		if m != next && time.Since(asked) > 6*time.Second { // Redis gives up a failover after 5 s if its master was busy
			asked = time.Now()
			next.Do("CLUSTER", "FAILOVER")
		}
		return m == next
	})
	var quarantine interface{ Quarantine() time.Duration }
	r.eventually("it sits out", func() bool {
		_, err := other.TryAcquire(t.Context(), "{k}2", ttl)
		t.Log(err)
		return errors.As(err, &quarantine)
	})
	l, err := other.Acquire(r.boundedContext(), "{k}2", ttl)
	r.noError(err)
	if took := time.Since(begin); took < 8*time.Second {
		t.Errorf("a lock was granted %v after the failover, before the old master's leases expired", took)
	}
	if l.Token() <= last.Token() {
		t.Errorf("token %d after %d", l.Token(), last.Token())
	}
	if held.Context().Err() != nil {
		t.Errorf("a lease known to the replica was lost: %v", context.Cause(held.Context()))
	}
	r.release(l, held)
}

func TestOtherShardsKeepWorking(t *testing.T) {
	r := startCluster(t, &redisproc.ClusterOptions{Masters: 2, Server: redisproc.Options{Args: []string{"--cluster-require-full-coverage", "no"}}})
	c := r.newClient("")
	down, _ := r.master("k")
	down.Kill()
	name := ""
	for i := 0; name == ""; i++ {
		if m := fmt.Sprint("n", i); wire.Slot("lock:"+m)/8192 != wire.Slot("lock:k")/8192 {
			name = m
		}
	}
	r.release(r.acquire(c, name, nil))
	_, err := c.TryAcquire(t.Context(), "k", nil)
	if !errors.Is(err, holdfast.ErrUnavailable) {
		t.Errorf("TryAcquire() = %v on the down shard", err)
	}
	r.noError(down.Restart(t.Context()))
}

func TestErrorNamesWrongKindOfServer(t *testing.T) {
	r := startCluster(t, &redisproc.ClusterOptions{Masters: 1})
	plain := redistest.Start(t, nil)
	_, err := redis.Open(t.Context(), "redis+cluster://"+plain.Addr()+"?timeout="+busyTimeout().String(), nil)
	checkMentions(t, err, plain.Addr(), "not part of a Redis Cluster", "redis://")
	if !errors.Is(err, driver.ErrConfig) {
		t.Errorf("error %v does not match driver.ErrConfig", err)
	}
	_, err = redis.Open(t.Context(), "redis://"+r.servers[0].Addr()+"?timeout="+busyTimeout().String(), nil)
	checkMentions(t, err, "part of a Redis Cluster", "redis+cluster://")
	_, err = redis.Open(t.Context(), r.url("&db=1"), nil)
	checkMentions(t, err, "database 0")
	// The URL names one shard, as with some managed services.
	c := r.newClient("")
	r.release(r.acquire(c, "k", nil))
}

// A cluster may not know the address that its clients use, and may use names for its nodes.
func TestClusterIsReachedThroughOneName(t *testing.T) {
	cert, err := redisproc.NewCertificate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for kind, args := range map[string][]string{
		"unknown endpoint": {"--cluster-preferred-endpoint-type", "unknown-endpoint"},
		"host names":       {"--cluster-preferred-endpoint-type", "hostname", "--cluster-announce-hostname", "localhost"},
	} {
		t.Run(kind, func(t *testing.T) {
			r := startCluster(t, &redisproc.ClusterOptions{Masters: 2, Server: redisproc.Options{TLS: cert, Args: append(args, "--tls-cluster", "yes")}})
			_, port, _ := strings.Cut(r.servers[0].Addr(), ":")
			d := openURL(t, "rediss+cluster://localhost:"+port+"?timeout="+busyTimeout().String()+"&ca="+cert.Cert, nil)
			c := r.clientOf(d, nil)
			for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
				r.release(r.acquire(c, name, nil))
			}
			r.move("a", nil)
			r.release(r.acquire(c, "a", nil))
			for _, n := range d.Nodes() {
				if !strings.HasPrefix(n.Node, "localhost:") {
					t.Errorf("node %s cannot be reached by its name", n.Node)
				}
			}
		})
	}
}
