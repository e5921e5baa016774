package redis_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/rig/faultproxy"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/internal/rig/leaktest"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/internal/rig/tempo"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis"
)

// longTTL is a TTL that does not end within a test.
const longTTL = 40 * time.Second

// busyTimeout bounds the check of a connection on a busy machine. It is longer than the default at any pace,
// because some tests wait for its end.
func busyTimeout() time.Duration { return min(pace.Scale(5*time.Second), 10*time.Second) }

// patience bounds the wait for an event that is certain to come.
func patience() time.Duration { return fixture.MaxWait() }

// TestMain lets more tests run at once than there are processors, because most of them wait. It also serves as
// the program of helper processes.
func TestMain(m *testing.M) {
	if role := os.Getenv(helperVariable); role != "" {
		tempo.Adopt()
		os.Exit(runHelper(role))
	}
	flag.Parse()
	flag.Set("test.parallel", "8")
	os.Exit(leaktest.Run(m))
}

// rig is a set of servers with test helpers.
type rig struct {
	*testing.T
	servers []*redisproc.Server
}

// startRig starts n servers for one parallel test.
func startRig(t *testing.T, n int) *rig {
	t.Helper()
	t.Parallel()
	return &rig{T: t, servers: redistest.StartN(t, n)}
}

func startWith(t *testing.T, opts *redisproc.Options) *rig {
	t.Helper()
	t.Parallel()
	return &rig{T: t, servers: []*redisproc.Server{redistest.Start(t, opts)}}
}

// replicaOf returns the arguments of a replica of the i-th server.
func (r *rig) replicaOf(i int) []string {
	host, port, _ := strings.Cut(r.servers[i].Addr(), ":")
	return []string{"--replicaof", host, port}
}

// nodes returns a redis.Node for each server.
func (r *rig) nodes() []redis.Node {
	var nodes []redis.Node
	for _, s := range r.servers {
		nodes = append(nodes, redis.Node{Addr: s.Addr()})
	}
	return nodes
}

// open opens a driver over nodes, and lets servers vote that have just been started.
func (r *rig) open(nodes []redis.Node, opts *redis.Options) (*redis.Driver, error) {
	var o redis.Options
	if opts != nil {
		o = *opts
	}
	o.NoQuarantine = true
	if o.Timeout == 0 {
		o.Timeout = busyTimeout()
	}
	return redis.New(r.Context(), nodes, &o)
}

func (r *rig) openDriver(nodes []redis.Node, opts *redis.Options) *redis.Driver {
	r.Helper()
	d, err := r.open(nodes, opts)
	r.noError(err)
	return d
}

// newDriver returns a driver of package redis without the defaults of openDriver, and closes it at the end of the test.
func newDriver(t testing.TB, nodes []redis.Node, opts *redis.Options) *redis.Driver {
	t.Helper()
	d, err := redis.New(t.Context(), nodes, opts)
	return closeAtEnd(t, d, err)
}

func openURL(t testing.TB, url string, opts *redis.Options) *redis.Driver {
	t.Helper()
	d, err := redis.Open(t.Context(), url, opts)
	return closeAtEnd(t, d, err)
}

func closeAtEnd[C io.Closer](t testing.TB, c C, err error) C {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// newClient returns another client of the servers.
func (r *rig) newClient() *holdfast.Client {
	r.Helper()
	return r.clientOf(r.openDriver(r.nodes(), nil), nil)
}

func (r *rig) clientOf(d driver.Driver, opts *holdfast.Options) *holdfast.Client {
	r.Helper()
	return openClient(r, d, opts)
}

func openClient(t testing.TB, d driver.Driver, opts *holdfast.Options) *holdfast.Client {
	t.Helper()
	c, err := holdfast.New(d, opts)
	return closeAtEnd(t, c, err)
}

func acquire(t testing.TB, c *holdfast.Client, key string, opts *holdfast.AcquireOptions) *holdfast.Lease {
	t.Helper()
	l, err := c.Acquire(t.Context(), key, opts)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// boundedContext returns a context that bounds the wait for an event that is certain to come.
func (r *rig) boundedContext() context.Context {
	ctx, cancel := context.WithTimeout(r.Context(), patience())
	r.Cleanup(cancel)
	return ctx
}

// acquire acquires a lock. It tries again if answers came too late, as they may on a busy machine.
func (r *rig) acquire(c *holdfast.Client, key string, opts *holdfast.AcquireOptions) *holdfast.Lease {
	r.Helper()
	for end := time.Now().Add(patience()); ; {
		l, err := c.Acquire(r.boundedContext(), key, opts)
		if err == nil {
			return l
		}
		if !errors.Is(err, holdfast.ErrUnavailable) || time.Now().After(end) {
			r.Fatalf("Acquire(%q) = %v", key, err)
		}
	}
}

func (r *rig) noError(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// waitAndRelease acquires a lock in the background and releases it. The channel receives the error.
func (r *rig) waitAndRelease(c *holdfast.Client, key string, opts *holdfast.AcquireOptions) <-chan error {
	return fixture.RunAsync(func() error {
		l, err := c.Acquire(r.boundedContext(), key, opts)
		if err == nil {
			err = l.Release(context.Background())
		}
		return err
	})
}

func (r *rig) release(leases ...*holdfast.Lease) {
	r.Helper()
	for _, l := range leases {
		if err := l.Release(r.Context()); err != nil && !errors.Is(err, holdfast.ErrUnavailable) {
			r.Fatalf("Release of %q = %v", l.Key(), err)
		}
	}
}

// retryLate repeats a call that failed because answers came too late, as they may on a busy machine.
func (r *rig) retryLate(fn func() error) error {
	for end := time.Now().Add(patience()); ; {
		if err := fn(); !errors.Is(err, holdfast.ErrUnavailable) || time.Now().After(end) {
			return err
		}
	}
}

// eventsOfChanges returns the events so far of a single node that was up, without stalls, which a busy machine
// may cause.
func eventsOfChanges(events <-chan driver.NodeEvent) (told []driver.NodeEvent) {
	state := driver.NodeUp
	for len(events) > 0 {
		if e := <-events; e.State != driver.NodeStalled && e.State != state {
			state = e.State
			told = append(told, e)
		}
	}
	return told
}

// eventually waits until ok returns true.
func (r *rig) eventually(what string, ok func() bool) {
	r.Helper()
	for end := time.Now().Add(patience()); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			r.Fatalf("not within %v: %s", patience(), what)
		}
	}
}

// awaitReplica waits until the i-th server has applied all that the first, its master, has written. (WAIT would
// wait only for what its own connection has written.)
func (r *rig) awaitReplica(i int) {
	r.Helper()
	offset := func(i int, field string) int64 {
		n, err := strconv.ParseInt(r.infoField(i, field), 10, 64)
		r.noError(err)
		return n
	}
	written := offset(0, "master_repl_offset")
	r.eventually("the replica has it", func() bool { return offset(i, "slave_repl_offset") >= written })
}

// do sends a command to the i-th server.
func (r *rig) do(i int, args ...string) any {
	r.Helper()
	v, err := r.servers[i].Do(args...)
	r.noError(err)
	return v
}

// findLeftovers returns the locks and queues on the servers whose lock keys begin with
// prefix.
func findLeftovers(servers []*redisproc.Server, prefix string) ([]string, error) {
	var all []string
	for _, s := range servers {
		for _, pattern := range []string{prefix + "*", "holdfast:queue:*" + prefix + "*"} {
			reply, err := s.Do("KEYS", pattern)
			if err != nil {
				return nil, err
			}
			list, _ := reply.([]any)
			for _, key := range list {
				name, _ := key.(string)
				if strings.HasPrefix(name, wire.Queue) { // the note of a force or an adoption may stay
					if places, err := s.Do("ZCOUNT", name, "(-1e14", "+inf"); err == nil && places == int64(0) {
						continue
					}
				}
				all = append(all, fmt.Sprintf("%v on %s", key, s.Addr()))
			}
		}
	}
	return all, nil
}

// checkCleared checks that no lock and no queue is left on any server, long before it could expire.
func (r *rig) checkCleared() {
	r.Helper()
	var left []string
	for end := time.Now().Add(longTTL / 4); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		var err error
		if left, err = findLeftovers(r.servers, "lock:"); err != nil {
			r.Fatal(err)
		}
		if len(left) == 0 {
			return
		}
	}
	r.Errorf("left behind: %q", left)
}

// checkMentions checks that err contains all words.
func checkMentions(t testing.TB, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one that contains %q", words)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not contain %q", err, w)
		}
	}
}

// route is the way of one client to the servers, with a proxy before each.
type route []*faultproxy.Proxy

func newRoute(t testing.TB, servers []*redisproc.Server) route {
	t.Helper()
	var r route
	for _, s := range servers {
		p, err := faultproxy.New(s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		r = append(r, p)
	}
	return r
}

func (r route) nodes() []redis.Node {
	var nodes []redis.Node
	for _, p := range r {
		nodes = append(nodes, redis.Node{Addr: p.Addr()})
	}
	return nodes
}

// dial connects to the proxy of a server, and directly to any other address.
func (r route) dial(servers []*redisproc.Server) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if i := slices.IndexFunc(servers, func(s *redisproc.Server) bool { return s.Addr() == addr }); i >= 0 {
			addr = r[i].Addr()
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
}

func (r route) blackhole(yes bool) {
	for _, p := range r {
		p.Blackhole(yes, yes)
	}
}

// downNode makes a node unreachable, like a killed server.
func (r route) downNode(node int, yes bool) {
	r[node].Refuse(yes)
	if yes {
		r[node].Cut()
	}
}

// scriptCalls matches every call of a script.
var scriptCalls = faultproxy.Command("EVALSHA")

// callsOf matches every call of one script.
func callsOf(s *wire.Script) faultproxy.Match { return faultproxy.Command("EVALSHA", s.SHA) }

// fleet is a service for package locktest: every client has its own route to the same servers.
type fleet struct {
	t       testing.TB
	servers []*redisproc.Server
	prefix  string
	format  redis.Format
	budget  []atomic.Int32 // number of replies to lose, by node
	node    *redis.Node    // the node that the servers form together; nil: each server is a node

	mu     sync.Mutex // guards the fields below
	routes map[driver.Driver]route
	down   int
}

func newFleet(t testing.TB, servers []*redisproc.Server, prefix string) *fleet {
	return &fleet{
		t: t, servers: servers, prefix: prefix,
		budget: make([]atomic.Int32, len(servers)), routes: make(map[driver.Driver]route),
	}
}

func (f *fleet) openDriver() (driver.Driver, error) {
	way := newRoute(f.t, f.servers)
	for i, p := range way {
		p.CutAfter(func(args [][]byte) bool {
			return scriptCalls(args) && f.budget[i].Load() > 0 && f.budget[i].Add(-1) >= 0
		}, 1<<20)
	}
	nodes, opts := way.nodes(), &redis.Options{Prefix: f.prefix, Format: f.format, NoQuarantine: true, Timeout: busyTimeout()}
	if f.node != nil {
		nodes, opts.Dial = []redis.Node{*f.node}, way.dial(f.servers)
	}
	d, err := redis.New(f.t.Context(), nodes, opts)
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

func (f *fleet) route(d driver.Driver) route {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.routes[d]
}

func (f *fleet) loseReplies(k int) {
	for i := range f.budget {
		f.budget[i].Store(int32(k))
	}
}

func (f *fleet) stopServers(k int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = k
	for _, way := range f.routes {
		for i := range way {
			way.downNode(i, i < k)
		}
	}
}

func (f *fleet) delayServers(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, way := range f.routes {
		for _, p := range way {
			p.SetDelay(d)
		}
	}
}

func (f *fleet) findLeftovers() ([]string, error) { return findLeftovers(f.servers, f.prefix) }

// guardedResource is a resource under a lock. It notices simultaneous holders, and tokens that do not rise.
type guardedResource struct {
	t     testing.TB
	count atomic.Int64
	lossy bool // counters are lost: a late request brings an older clock, and only a request after a grant gets a higher token

	mu     sync.Mutex // guards the fields below
	inside map[*holdfast.Lease]bool
	last   int64 // highest token
}

// hold uses the resource for d as the holder of l. A holder that was suspended past the end of its lease breaks
// no rule.
func (g *guardedResource) hold(l *holdfast.Lease, d time.Duration) {
	token := int64(l.Token())
	g.mu.Lock()
	now := time.Now()
	trusted := func(l *holdfast.Lease) bool { return now.Before(l.Deadline()) && l.Context().Err() == nil }
	for other := range g.inside {
		if trusted(other) && trusted(l) {
			g.t.Errorf("two holders at once: tokens %d and %d", other.Token(), token)
		}
	}
	if token <= g.last && !g.lossy && trusted(l) {
		g.t.Errorf("token %d after %d", token, g.last)
	}
	if g.inside == nil {
		g.inside = make(map[*holdfast.Lease]bool)
	}
	g.inside[l] = true
	g.last = max(g.last, token)
	g.mu.Unlock()
	g.count.Add(1)
	time.Sleep(d) // otherwise two holders would never meet
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.inside, l)
}

// lastToken returns the highest token of all holders.
func (g *guardedResource) lastToken() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.last
}

// startLoad makes clients acquire the lock in turn until stop is called.
func (g *guardedResource) startLoad(r *rig, clients int, key string, opts *holdfast.AcquireOptions) (stop func()) {
	all := make([]*holdfast.Client, clients)
	for i := range all {
		all[i] = r.newClient()
	}
	return g.loadBy(r, all, key, opts)
}

func (g *guardedResource) loadBy(r *rig, clients []*holdfast.Client, key string, opts *holdfast.AcquireOptions) (stop func()) {
	ctx, cancel := context.WithCancel(r.Context())
	var all sync.WaitGroup
	for _, c := range clients {
		all.Go(func() {
			for ctx.Err() == nil {
				before := g.lastToken()
				l, err := c.Acquire(ctx, key, opts)
				if err != nil {
					if ctx.Err() == nil && !errors.Is(err, holdfast.ErrUnavailable) {
						r.Errorf("Acquire() = %v", err)
					}
					continue
				}
				if g.lossy {
					before -= quorum.TrustedClockSkew // a counter that is lost twice begins at the clock of a request that was already sent
				}
				if int64(l.Token()) <= before {
					r.Errorf("token %d was granted after token %d was already known", l.Token(), before)
				}
				g.hold(l, rand.N(time.Millisecond))
				if err := l.Release(r.Context()); err != nil && !errors.Is(err, holdfast.ErrUnavailable) {
					r.Errorf("Release() = %v", err)
				}
			}
		})
	}
	return func() {
		cancel()
		all.Wait()
	}
}

// zaddPlaceArgs returns the command that gives an owner a place in a queue that does not expire.
func zaddPlaceArgs(queue, owner string, stamp int) []string {
	return []string{"ZADD", queue, strconv.Itoa(stamp), owner, "-9000000000000", wire.ExpiryMember(owner)}
}
