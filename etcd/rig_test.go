package etcd_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/etcd"
	"github.com/holdfast-go/holdfast/internal/rig/etcdproc"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/locktest"
)

// long is a TTL that does not end within a test.
const long = fixture.Long

// cluster is one cluster for all tests that leave it alone; each has a prefix of its own.
var (
	cluster  *etcdproc.Cluster
	prefixes atomic.Int32
)

func TestMain(m *testing.M) {
	fixture.Main(m, 4, func(ctx context.Context) (stop func() error, err error) {
		if cluster, err = etcdproc.Start(ctx, 3); err != nil {
			return nil, err
		}
		return cluster.Stop, nil
	})
}

// rig is a prefix of a cluster and its clients.
type rig struct {
	*fixture.Rig
	cluster *etcdproc.Cluster
	opts    etcd.Options
	direct  *clientv3.Client
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
	if testing.Short() {
		t.Skip("-short starts no servers for one test alone")
	}
	t.Parallel()
	c, err := etcdproc.Start(t.Context(), members, args...)
	return newRigWith(t, fixture.Stopped(t, c, err), config)
}

func newRig(t testing.TB, c *etcdproc.Cluster) *rig { t.Helper(); return newRigWith(t, c, nil) }

func newRigWith(t testing.TB, c *etcdproc.Cluster, config *tls.Config) *rig {
	t.Helper()
	r := &rig{Rig: fixture.New(t), cluster: c, opts: etcd.Options{Prefix: fmt.Sprintf("test/%d/", prefixes.Add(1))}}
	var err error
	if r.direct, err = clientv3.New(clientv3.Config{Endpoints: c.Addrs(), TLS: config, Logger: zap.NewNop()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.direct.Close() })
	return r
}

// open returns the driver of one more client, behind links of its own.
func (r *rig) open() (driver.Driver, error) {
	var links []*fixture.Link
	var addrs []string
	for _, m := range r.cluster.Members {
		l := r.proxy(m.Addr)
		links, addrs = append(links, l), append(addrs, l.Addr)
	}
	d, err := etcd.New(r.Context(), addrs, unchecked(r.opts))
	if err != nil {
		return nil, err
	}
	r.Route(d, links...)
	return d, nil
}

// driver is one that is closed with the test.
func (r *rig) driver() driver.Driver {
	r.Helper()
	d, err := r.open()
	return fixture.Closed(r.Rig, d, err)
}

// straight is a driver without links.
func (r *rig) straight() *etcd.Driver {
	r.Helper()
	d, err := etcd.New(r.Context(), r.cluster.Addrs(), unchecked(r.opts))
	return fixture.Closed(r.Rig, d, err)
}

// leftovers are all keys but that of the base of tokens.
func (r *rig) leftovers() (left []string, err error) {
	ctx, cancel := context.WithTimeout(r.Context(), fixture.Patience())
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

// service is r for the conformance suite.
func (r *rig) service() locktest.Service {
	s := r.Service(len(r.cluster.Members), r.open, r.leftovers)
	s.Delay = nil // replies are calls, which do not wait for one another
	return s
}

// keys awaits that the lock has so many keys.
func (r *rig) keys(name string, n int) {
	r.Helper()
	r.Eventually(fmt.Sprintf("%d keys of %s", n, name), func() bool {
		left, err := r.leftovers()
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

// unchecked are opts for a driver that was not asked whether it works.
func unchecked(opts etcd.Options) *etcd.Options {
	opts.NoCheck = true
	return &opts
}
