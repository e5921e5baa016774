package etcd_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/etcd"
	gates "github.com/holdfast-go/holdfast/internal/rig"
	"github.com/holdfast-go/holdfast/internal/rig/etcdproc"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/locktest"
)

// longTTL is a TTL that does not end within a test.
const longTTL = fixture.LongTTL

// shared is one cluster for all tests that do not break it; each test has its own prefix. The first test that
// needs it starts it.
var (
	shared = sync.OnceValues(func() (*etcdproc.Cluster, error) {
		begun.Store(true)
		return etcdproc.Start(context.Background(), 3)
	})
	begun    atomic.Bool
	prefixes atomic.Int32
)

func TestMain(m *testing.M) {
	fixture.Main(m, 6, func(context.Context) (stop func() error, err error) {
		return func() error {
			if !begun.Load() {
				return nil
			}
			c, err := shared()
			if err != nil {
				return err
			}
			return c.Stop()
		}, nil
	})
}

// rig holds a prefix of a cluster and the clients that use it.
type rig struct {
	*fixture.Rig
	cluster *etcdproc.Cluster // nil: the fake is used
	fake    *fake
	net     *network
	opts    etcd.Options
	direct  *clientv3.Client
}

// startRig starts a rig for a parallel test.
func startRig(t *testing.T) *rig {
	t.Helper()
	gates.NeedsServer(t)
	t.Parallel()
	c, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return newRig(t, c)
}

// inBubble runs a test on a fake with three members, in virtual time.
func inBubble(t *testing.T, test func(r *rig)) {
	t.Helper()
	inBubbleOf(t, 3, test)
}

func inBubbleOf(t *testing.T, members int, test func(r *rig)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { test(newFakeRig(t, members)) })
}

func newFakeRig(t testing.TB, members int) *rig {
	t.Helper()
	n := newNetwork()
	r := &rig{Rig: fixture.New(t), fake: newFake(t, n, members), net: n, opts: etcd.Options{Prefix: "test/"}}
	r.connectClient(clientv3.Config{DialOptions: []grpc.DialOption{grpc.WithContextDialer(n.dialStable)}})
	return r
}

// connectClient connects the test's own client.
func (r *rig) connectClient(config clientv3.Config) {
	r.Helper()
	config.Endpoints, config.Logger = r.addrs(), zap.NewNop()
	var err error
	r.direct, err = clientv3.New(config)
	r.NoError(err)
	r.Cleanup(func() { r.direct.Close() })
}

func (r *rig) addrs() []string {
	if r.fake != nil {
		return r.fake.addrs()
	}
	return r.cluster.Addrs()
}

// startAlone starts a rig with its own cluster, which the test may break.
func startAlone(t *testing.T, members int, args ...string) *rig {
	t.Helper()
	return aloneWith(t, nil, members, args...)
}

func aloneWith(t *testing.T, config *tls.Config, members int, args ...string) *rig {
	t.Helper()
	gates.NeedsServer(t)
	t.Parallel()
	c, err := etcdproc.Start(t.Context(), members, args...)
	return newRigWith(t, fixture.StopAtEnd(t, c, err), config)
}

func newRig(t testing.TB, c *etcdproc.Cluster) *rig { t.Helper(); return newRigWith(t, c, nil) }

func newRigWith(t testing.TB, c *etcdproc.Cluster, config *tls.Config) *rig {
	t.Helper()
	r := &rig{Rig: fixture.New(t), cluster: c, opts: etcd.Options{Prefix: fmt.Sprintf("test/%d/", prefixes.Add(1))}}
	r.connectClient(clientv3.Config{TLS: config})
	return r
}

// openDriver opens a driver for one more client of these members. opts may be nil.
func (r *rig) openDriver(addrs []string, opts *etcd.Options) (*etcd.Driver, error) {
	if r.net == nil {
		return etcd.New(r.Context(), addrs, opts)
	}
	return etcd.NewDialled(r.Context(), addrs, opts, r.net.dial)
}

// openLinked opens a driver for one more client, behind its own links.
func (r *rig) openLinked() (driver.Driver, error) {
	var links []*fixture.Link
	var addrs []string
	for _, m := range r.addrs() {
		l := r.proxyTo(m)
		links, addrs = append(links, l), append(addrs, l.Addr)
	}
	d, err := r.openDriver(addrs, withoutCheck(r.opts))
	if err != nil {
		return nil, err
	}
	r.Route(d, links...)
	return d, nil
}

// newDriver returns a driver that is closed with the test.
func (r *rig) newDriver() driver.Driver {
	r.Helper()
	d, err := r.openLinked()
	return fixture.CloseAtEnd(r.Rig, d, err)
}

// newDirectDriver returns a driver without links.
func (r *rig) newDirectDriver() *etcd.Driver {
	r.Helper()
	d, err := r.openDriver(r.addrs(), withoutCheck(r.opts))
	return fixture.CloseAtEnd(r.Rig, d, err)
}

// leftoverKeys returns all keys except the token base.
func (r *rig) leftoverKeys() (left []string, err error) {
	ctx, cancel := context.WithTimeout(r.Context(), fixture.MaxWait())
	defer cancel()
	resp, err := r.direct.Get(ctx, r.opts.Prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	for _, kv := range resp.Kvs {
		if key := string(kv.Key); !strings.HasSuffix(key, ",tokens") {
			left = append(left, key)
		}
	}
	return left, nil
}

// lockService returns r as a service for the conformance suite.
func (r *rig) lockService() locktest.Service {
	s := r.Service(len(r.addrs()), r.openLinked, r.leftoverKeys)
	s.Delay = nil // gRPC calls do not wait for one another
	return s
}

// awaitKeys waits until the lock has n keys.
func (r *rig) awaitKeys(name string, n int) {
	r.Helper()
	r.Eventually(fmt.Sprintf("%d keys of %s", n, name), func() bool {
		left, err := r.leftoverKeys()
		count := 0
		for _, key := range left {
			if strings.HasPrefix(key, r.opts.Prefix+name+",") {
				count++
			}
		}
		return err == nil && count == n
	})
}

func (r *rig) leader() (m *etcdproc.Member) {
	r.Helper()
	r.Eventually("there is a leader", func() bool { m = r.cluster.Leader(r.Context()); return m != nil })
	return m
}

// withoutCheck returns opts with NoCheck set.
func withoutCheck(opts etcd.Options) *etcd.Options {
	opts.NoCheck = true
	return &opts
}
