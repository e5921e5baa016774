package zookeeper_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/leaktest"
	"github.com/holdfast-go/holdfast/internal/rig/zkproc"
	"github.com/holdfast-go/holdfast/locktest"
	"github.com/holdfast-go/holdfast/zookeeper"
)

const (
	// patience is how long anything may take that is certain to come.
	patience = 20 * time.Second
	// long is a TTL that does not end within a test.
	long = 40 * time.Second
)

// ensemble is one for all tests that leave it alone; each has a path of its own.
var (
	ensemble *zkproc.Ensemble
	paths    atomic.Int32
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
	if ensemble, err = zkproc.Start(context.Background(), 3); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer ensemble.Stop()
	return s.M.Run()
}

// rig is a path of an ensemble and its clients.
type rig struct {
	testing.TB
	ensemble *zkproc.Ensemble
	opts     zookeeper.Options
	mu       sync.Mutex // guards what follows
	routes   map[driver.Driver][]*proxy
}

// start makes a rig for one parallel test.
func start(t *testing.T) *rig {
	t.Helper()
	t.Parallel()
	return newRig(t, ensemble)
}

// alone makes a rig with an ensemble of its own, which the test may break.
func alone(t *testing.T, members int, more ...string) *rig {
	t.Helper()
	t.Parallel()
	e, err := zkproc.Start(t.Context(), members, more...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
	})
	return newRig(t, e)
}

func newRig(t testing.TB, e *zkproc.Ensemble) *rig {
	t.Helper()
	return &rig{TB: t, ensemble: e, opts: zookeeper.Options{Path: fmt.Sprint("/test/", paths.Add(1))}, routes: make(map[driver.Driver][]*proxy)}
}

// open returns the driver of one more client, behind proxies of its own.
func (r *rig) open() (driver.Driver, error) {
	var all []*proxy
	var addrs []string
	for _, m := range r.ensemble.Members {
		p := newProxy(r, m.Addr)
		all, addrs = append(all, p), append(addrs, p.addr)
	}
	d, err := zookeeper.New(addrs, &r.opts)
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
func (r *rig) straight() *zookeeper.Driver {
	r.Helper()
	d, err := zookeeper.New(r.ensemble.Addrs(), &r.opts)
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
	if k > len(r.ensemble.Members)/2 {
		k = len(r.ensemble.Members)
	}
	r.all(func(i int, p *proxy) { p.refuse = i < k })
}

// leftovers are the nodes of all attempts.
func (r *rig) leftovers() (left []string, err error) {
	d, err := zookeeper.New(r.ensemble.Addrs(), &r.opts)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	err = d.List(ctx, "", func(st driver.Status) bool {
		left = append(left, fmt.Sprintf("%s: %s and %d others", st.Key, st.Owner, st.Waiters))
		return true
	})
	return left, err
}

func (r *rig) within() context.Context {
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	r.Cleanup(cancel)
	return ctx
}

// service is r for the conformance suite.
func (r *rig) service() locktest.Service {
	return locktest.Service{
		Open: r.open, Nodes: len(r.ensemble.Members),
		Cut:         func(d driver.Driver) { r.on(d, func(_ int, p *proxy) { p.hole = true }) },
		Mend:        func(d driver.Driver) { r.on(d, func(_ int, p *proxy) { p.hole = false }) },
		LoseReplies: func(k int) { r.all(func(_ int, p *proxy) { p.lose = k }) },
		Delay:       func(d time.Duration) { r.all(func(_ int, p *proxy) { p.slow = d }) },
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

// nodes awaits that so many have the lock or wait for it.
func (r *rig) nodes(d *zookeeper.Driver, name string, n int) {
	r.Helper()
	r.eventually(fmt.Sprintf("%d nodes of %s", n, name), func() bool {
		st, err := d.Inspect(r.Context(), name)
		count := st.Waiters
		if st.Held {
			count++
		}
		return err == nil && count == n
	})
}

// waiter awaits that somebody waits, and says who is the first.
func (r *rig) waiter(d *zookeeper.Driver, name string) (owner string) {
	r.Helper()
	r.eventually("somebody waits for "+name, func() bool {
		all, err := d.Queue(r.Context(), name, 1)
		if err == nil && len(all) == 1 {
			owner = all[0].Owner
		}
		return owner != ""
	})
	return owner
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

func (r *rig) leader() (m *zkproc.Member) {
	r.Helper()
	r.eventually("there is a leader", func() bool { m = r.ensemble.Leader(); return m != nil })
	return m
}
