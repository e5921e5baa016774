package zookeeper_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	gates "github.com/holdfast-go/holdfast/internal/rig"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/internal/rig/zkproc"
	"github.com/holdfast-go/holdfast/locktest"
	"github.com/holdfast-go/holdfast/zookeeper"
)

// longTTL is a TTL that does not end within a test.
const longTTL = fixture.LongTTL

// paths counts the tests: each test has its own path.
var paths atomic.Int32

// ensemble starts the servers shared by all tests that do not break them, at the first use: most tests, and
// the processes of a fuzzer, need none.
var ensemble = sync.OnceValues(func() (*zkproc.Ensemble, error) { return zkproc.Start(context.Background(), 3) })

var serversStarted atomic.Bool

func TestMain(m *testing.M) {
	fixture.Main(m, 6, func(context.Context) (stop func() error, err error) {
		return func() error {
			if !serversStarted.Load() {
				return nil
			}
			e, err := ensemble()
			if err != nil {
				return nil // the tests have reported it
			}
			return e.Stop()
		}, nil
	})
}

// sharedRig starts a rig on the shared servers.
func sharedRig(t testing.TB) *rig {
	t.Helper()
	gates.NeedsServer(t)
	serversStarted.Store(true)
	e, err := ensemble()
	if err != nil {
		t.Fatal(err)
	}
	return newRig(t, e)
}

// rig holds a path of an ensemble and the clients that use it.
type rig struct {
	*fixture.Rig
	ensemble *zkproc.Ensemble // nil: a fake is used
	opts     zookeeper.Options
	addrs    []string
	fake     *fake // nil: real members
}

// startRig starts a rig for a parallel test.
func startRig(t *testing.T) *rig {
	t.Helper()
	t.Parallel()
	return sharedRig(t)
}

// startAlone starts a rig with its own ensemble, which the test may break.
func startAlone(t *testing.T, members int, more ...string) *rig {
	t.Helper()
	gates.NeedsServer(t)
	t.Parallel()
	e, err := zkproc.Start(t.Context(), members, more...)
	return newRig(t, fixture.StopAtEnd(t, e, err))
}

func newRig(t testing.TB, e *zkproc.Ensemble) *rig {
	t.Helper()
	return &rig{Rig: fixture.New(t), ensemble: e, opts: zookeeper.Options{Path: fmt.Sprint("/test/", paths.Add(1))}, addrs: e.Addrs()}
}

// openLinked opens a driver for one more client, behind its own links.
func (r *rig) openLinked() (driver.Driver, error) {
	var links []*fixture.Link
	addrs, opts := r.addrs, withoutCheck(r.opts)
	if r.fake != nil {
		links = r.memberLinks()
		opts = zookeeper.WithDial(*opts, r.dialThrough(links, func() fixture.Protocol { return &juteProtocol{} }))
	} else {
		addrs = nil
		for _, addr := range r.addrs {
			l := fixture.Relay(r, addr, func() fixture.Protocol { return &juteProtocol{} })
			links, addrs = append(links, l), append(addrs, l.Addr)
		}
	}
	d, err := zookeeper.New(r.Context(), addrs, opts)
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
func (r *rig) newDirectDriver() *zookeeper.Driver {
	r.Helper()
	d, err := zookeeper.New(r.Context(), r.addrs, withoutCheck(r.opts))
	return fixture.CloseAtEnd(r.Rig, d, err)
}

// openAt opens a driver without links for another path.
func (r *rig) openAt(path string) (*zookeeper.Driver, error) {
	opts := r.opts
	opts.Path = path
	return zookeeper.New(r.Context(), r.addrs, withoutCheck(opts))
}

// leftoverNodes returns the nodes of all claims.
func (r *rig) leftoverNodes() (left []string, err error) {
	d, err := zookeeper.New(r.Context(), r.addrs, withoutCheck(r.opts))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	ctx, cancel := context.WithTimeout(r.Context(), fixture.MaxWait())
	defer cancel()
	err = d.List(ctx, "", func(st driver.Status) bool {
		left = append(left, fmt.Sprintf("%s: %s and %d others", st.Key, st.Owner, st.Waiters))
		return true
	})
	return left, err
}

// lockService returns r as a service for the conformance suite.
func (r *rig) lockService() locktest.Service {
	return r.Service(len(r.addrs), r.openLinked, r.leftoverNodes)
}

// awaitNodes waits until the holder and the waiters of the lock have n nodes.
func (r *rig) awaitNodes(d *zookeeper.Driver, name string, n int) {
	r.Helper()
	r.Eventually(fmt.Sprintf("%d nodes of %s", n, name), func() bool {
		st, err := d.Inspect(r.Context(), name)
		count := st.Waiters
		if st.Held {
			count++
		}
		return err == nil && count == n
	})
}

// awaitWaiter waits until the lock has a waiter, and returns the first waiter's owner.
func (r *rig) awaitWaiter(d *zookeeper.Driver, name string) (owner string) {
	r.Helper()
	r.Eventually("somebody waits for "+name, func() bool {
		all, err := d.Queue(r.Context(), name, 1)
		if err == nil && len(all) == 1 {
			owner = all[0].Owner
		}
		return owner != ""
	})
	return owner
}

func (r *rig) leader() (m *zkproc.Member) {
	r.Helper()
	r.Eventually("there is a leader", func() bool { m = r.ensemble.Leader(); return m != nil })
	return m
}

// withoutCheck returns opts with NoCheck set.
func withoutCheck(opts zookeeper.Options) *zookeeper.Options {
	opts.NoCheck = true
	return &opts
}
