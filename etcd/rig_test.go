package etcd_test

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/etcd"
	"github.com/holdfast-go/holdfast/internal/rig/etcdproc"
	"github.com/holdfast-go/holdfast/internal/rig/leaktest"
	"github.com/holdfast-go/holdfast/locktest"
)

const (
	// patience is how long anything may take that is certain to come.
	patience = 20 * time.Second
	// long is a TTL that does not end within a test.
	long = 40 * time.Second
)

// cluster is one cluster for all tests that leave it alone; each has a prefix of its own.
var (
	cluster  *etcdproc.Cluster
	prefixes atomic.Int32
)

// TestMain lets more tests run at once than there are processors, as most of them wait.
func TestMain(m *testing.M) {
	flag.Parse()
	flag.Set("test.parallel", "4")
	os.Exit(leaktest.Run(served{m}))
}

type served struct{ *testing.M }

func (s served) Run() int {
	var err error
	if cluster, err = etcdproc.Start(context.Background(), 3); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer cluster.Stop()
	return s.M.Run()
}

// rig is a prefix of a cluster and its clients.
type rig struct {
	testing.TB
	cluster *etcdproc.Cluster
	opts    etcd.Options
	direct  *clientv3.Client

	mu     sync.Mutex // guards what follows
	routes map[driver.Driver][]*proxy
}

// start makes a rig for one parallel test.
func start(t *testing.T) *rig {
	t.Helper()
	t.Parallel()
	return newRig(t, cluster)
}

// alone makes a rig with a cluster of its own, which the test may break.
func alone(t *testing.T, members int, args ...string) *rig {
	t.Helper()
	return aloneWith(t, nil, members, args...)
}

func aloneWith(t *testing.T, config *tls.Config, members int, args ...string) *rig {
	t.Helper()
	t.Parallel()
	c, err := etcdproc.Start(t.Context(), members, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return newRigWith(t, c, config)
}

func newRig(t testing.TB, c *etcdproc.Cluster) *rig { t.Helper(); return newRigWith(t, c, nil) }

func newRigWith(t testing.TB, c *etcdproc.Cluster, config *tls.Config) *rig {
	t.Helper()
	r := &rig{
		TB: t, cluster: c, opts: etcd.Options{Prefix: fmt.Sprintf("test/%d/", prefixes.Add(1))}, routes: make(map[driver.Driver][]*proxy),
	}
	var err error
	if r.direct, err = clientv3.New(clientv3.Config{Endpoints: c.Addrs(), TLS: config, Logger: zap.NewNop()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.direct.Close() })
	return r
}

// open returns the driver of one more client, behind proxies of its own.
func (r *rig) open() (driver.Driver, error) {
	var all []*proxy
	var addrs []string
	for _, m := range r.cluster.Members {
		p := newProxy(r, m.Addr)
		all, addrs = append(all, p), append(addrs, p.addr)
	}
	d, err := etcd.New(addrs, &r.opts)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.routes[d] = all
	return d, nil
}

// driver is one that is closed with the test.
func (r *rig) driver() driver.Driver {
	r.Helper()
	d, err := r.open()
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { d.Close() })
	return d
}

// straight is a driver without proxies.
func (r *rig) straight() *etcd.Driver {
	r.Helper()
	d, err := etcd.New(r.cluster.Addrs(), &r.opts)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { d.Close() })
	return d
}

func (r *rig) client(d driver.Driver) *holdfast.Client {
	r.Helper()
	c, err := holdfast.New(d, nil)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { c.Close() })
	return c
}

// on does something to the proxies of a driver.
func (r *rig) on(d driver.Driver, f func(i int, p *proxy)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, p := range r.routes[d] {
		p.set(func() { f(i, p) })
	}
}

func (r *rig) all(f func(i int, p *proxy)) {
	r.mu.Lock()
	all := make([]driver.Driver, 0, len(r.routes))
	for d := range r.routes {
		all = append(all, d)
	}
	r.mu.Unlock()
	for _, d := range all {
		r.on(d, f)
	}
}

// stop makes k members look as if they were down. As the real ones go on, all are cut off
// where those that are left would be no majority.
func (r *rig) stop(k int) {
	if k > len(r.cluster.Members)/2 {
		k = len(r.cluster.Members)
	}
	r.all(func(i int, p *proxy) { p.refuse = i < k })
}

// leftovers are all keys.
func (r *rig) leftovers() (left []string, err error) {
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	resp, err := r.direct.Get(ctx, r.opts.Prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	for _, kv := range resp.Kvs {
		left = append(left, string(kv.Key))
	}
	return left, nil
}

func (r *rig) within() context.Context {
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	r.Cleanup(cancel)
	return ctx
}

// service is r for the conformance suite.
func (r *rig) service() locktest.Service {
	return locktest.Service{
		Open: r.open, Nodes: len(r.cluster.Members),
		Cut:         func(d driver.Driver) { r.on(d, func(_ int, p *proxy) { p.hole = true }) },
		Mend:        func(d driver.Driver) { r.on(d, func(_ int, p *proxy) { p.hole = false }) },
		LoseReplies: func(k int) { r.all(func(_ int, p *proxy) { p.lose = k }) },
		StopNodes:   r.stop, StartNodes: func() { r.stop(0) },
		Leftovers: r.leftovers,
	}
}

// acquire asks again when answers came too late, as they may on a busy machine.
func (r *rig) acquire(c *holdfast.Client, key string, ttl time.Duration) *holdfast.Lease {
	r.Helper()
	l, err := c.Acquire(r.within(), key, &holdfast.AcquireOptions{TTL: ttl})
	if err != nil {
		r.Errorf("Acquire(%q) = %v", key, err)
		panic("no lease")
	}
	return l
}

func (r *rig) release(leases ...*holdfast.Lease) {
	r.Helper()
	for _, l := range leases {
		if err := l.Release(r.Context()); err != nil && !errors.Is(err, holdfast.ErrUnavailable) {
			r.Fatalf("Release of %q = %v", l.Key(), err)
		}
	}
}

// eventually waits until ok returns true.
func (r *rig) eventually(what string, ok func() bool) {
	r.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			r.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// keys awaits that the lock has so many keys.
func (r *rig) keys(name string, n int) {
	r.Helper()
	r.eventually(fmt.Sprintf("%d keys of %s", n, name), func() bool {
		left, err := r.leftovers()
		count := 0
		for _, key := range left {
			if strings.HasPrefix(key, r.opts.Prefix+name+"/") {
				count++
			}
		}
		return err == nil && count == n
	})
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// grant is a lock that is taken by d itself.
func (r *rig) grant(d driver.Driver, key string, ttl time.Duration) driver.Grant {
	r.Helper()
	g, err := d.Acquire(r.within(), driver.Request{Key: key, TTL: ttl})
	r.must(err)
	return g
}

func (r *rig) leader() (m *etcdproc.Member) {
	r.Helper()
	r.eventually("there is a leader", func() bool { m = r.cluster.Leader(r.Context()); return m != nil })
	return m
}
