package etcd_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/etcd"
	"github.com/holdfast-go/holdfast/internal/rig/etcdproc"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
)

// startForeign starts another cluster with one member.
func (r *rig) startForeign(args ...string) *rig {
	r.Helper()
	c, err := etcdproc.Start(r.WaitContext(), 1, args...)
	return newRig(r.TB, fixture.StopAtEnd(r.TB, c, err))
}

// Open rejects the members, and with NoCheck each request does. Otherwise each cluster could grant the same
// lock.
func TestMembersOfTwoClustersAreRejected(t *testing.T) {
	r := startAlone(t, 1)
	other := r.startForeign()
	addrs := []string{r.cluster.Addrs()[0], other.cluster.Addrs()[0]}
	d, err := etcd.Open(r.WaitContext(), "etcd://"+strings.Join(addrs, ","), nil)
	if err == nil {
		d.Close()
		t.Error("Open() accepted members of two clusters")
	} else if !strings.Contains(err.Error(), "different clusters") {
		t.Errorf("Open() = %v", err)
	}
	d, err = etcd.New(r.Context(), addrs, withoutCheck(etcd.Options{}))
	d = fixture.CloseAtEnd(r.Rig, d, err)
	for range 10 {
		if _, err := d.Acquire(r.WaitContext(), driver.Request{Key: "k", TTL: longTTL, NoWait: true}); !errors.Is(err, driver.ErrUnavailable) ||
			!strings.Contains(err.Error(), "another cluster") {
			t.Fatalf("Acquire() = %v, want that there are two clusters", err)
		}
	}
}

// The other half may belong to another cluster, which serves a second client.
func TestHalfOfMembersIsNotMajority(t *testing.T) {
	r := startAlone(t, 1)
	d, err := etcd.New(r.Context(), []string{r.cluster.Addrs()[0], "127.0.0.1:1"}, withoutCheck(etcd.Options{}))
	d = fixture.CloseAtEnd(r.Rig, d, err)
	_, err = d.Acquire(r.WaitContext(), driver.Request{Key: "k", TTL: longTTL, NoWait: true})
	if want := "need 2 nodes: node 127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused"; err == nil || err.Error() != want {
		t.Errorf("Acquire() = %v, want %s", err, want)
	}
}

// The error names the other cluster.
func TestMemberOfAnotherClusterIsNotAsked(t *testing.T) {
	r := startAlone(t, 3)
	d := r.newDirectDriver()
	c := r.Client(d)
	l := r.Acquire(c, "k", 10*time.Second)
	old := r.cluster.Members[0]
	old.Kill()
	other := r.startForeign("--listen-client-urls=http://"+old.Addr, "--advertise-client-urls=http://"+old.Addr)
	at := func(d *etcd.Driver) driver.NodeEvent {
		for _, n := range d.Nodes() {
			if n.Node == old.Addr {
				return n
			}
		}
		return driver.NodeEvent{}
	}
	clients := []*etcd.Driver{d, r.newDirectDriver(), r.newDirectDriver(), r.newDirectDriver()}
	for _, d := range clients {
		for range 5 {
			g := r.AcquireGrant(d, "other", longTTL)
			r.NoError(d.Release(r.WaitContext(), g, 0))
		}
		r.Eventually("it is known for what it is", func() bool { n := at(d); return n.Err != nil && strings.Contains(n.Err.Error(), "another cluster") })
	}
	r.AwaitRenewals(l, 2)
	direct, err := clientv3.New(clientv3.Config{Endpoints: []string{old.Addr}})
	r.NoError(err)
	defer direct.Close()
	if resp, err := direct.Get(r.WaitContext(), r.opts.Prefix, clientv3.WithPrefix()); err != nil || resp.Count > 0 {
		t.Errorf("the other cluster has %v, %v", resp, err)
	}
	other.cluster.Stop()
	r.NoError(old.Restart(r.WaitContext()))
	for _, d := range clients {
		r.Eventually("it is back", func() bool { return at(d).State == driver.NodeUp })
	}
	if err := l.Release(r.WaitContext()); err != nil && !errors.Is(err, holdfast.ErrLost) { // an election on a busy machine may outlast the TTL
		t.Errorf("Release() = %v", err)
	}
}

// After a restore the clients lose their leases and need no restart.
func TestReplacedClusterServesItsClients(t *testing.T) {
	r := startAlone(t, 1)
	d := r.newDirectDriver()
	g := r.AcquireGrant(d, "k", longTTL)
	old := r.cluster.Members[0]
	old.Kill()
	r.startForeign("--listen-client-urls=http://"+old.Addr, "--advertise-client-urls=http://"+old.Addr)
	if err := d.Renew(r.WaitContext(), []driver.Grant{g})[0].Err; !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew() = %v, want ErrLost", err)
	}
	next := r.AcquireGrant(d, "k", longTTL)
	if next.Token < g.Token {
		t.Errorf("token %d after %d", next.Token, g.Token)
	}
	r.NoError(d.Release(r.WaitContext(), next, 0))
}

// A key under the inner prefix is not a lock of the outer one, whatever its name.
func TestNestedPrefixesAreIndependent(t *testing.T) {
	inBubble(t, func(r *rig) {
		outer := r.newDirectDriver()
		prefix := r.opts.Prefix
		for _, inner := range []string{"team/", "team", "team//", "/"} {
			r.opts.Prefix = prefix + inner
			d := r.newDirectDriver()
			for _, name := range []string{"x", "team", "team/x", "/"} {
				g := r.AcquireGrant(d, name, longTTL)
				var taken []driver.Grant
				for _, mine := range []string{"team", "team/x", "team/" + name, "x", "/"} {
					o, err := outer.Acquire(r.WaitContext(), driver.Request{Key: mine, TTL: longTTL, NoWait: true})
					if err != nil {
						r.Errorf("%q in %q: the outer lock %q: %v", name, inner, mine, err)
						continue
					}
					if st, err := outer.Inspect(r.WaitContext(), mine); err != nil || st.Owner != o.Owner || st.Waiters != 0 {
						r.Errorf("%q in %q: Inspect(%q) = %+v, %v", name, inner, mine, st, err)
					}
					if done, err := outer.Force(r.WaitContext(), mine, o.Token, ""); !done || err != nil {
						r.Errorf("%q in %q: Force(%q) = %v, %v", name, inner, mine, done, err)
					}
					taken = append(taken, o)
				}
				if err := d.Renew(r.WaitContext(), []driver.Grant{g})[0].Err; err != nil {
					r.Errorf("%q in %q is lost: %v", name, inner, err)
				}
				r.NoError(outer.List(r.WaitContext(), "", func(st driver.Status) bool {
					r.Errorf("%q in %q: the outer prefix has %+v", name, inner, st)
					return true
				}))
				for _, o := range taken {
					r.NoError(outer.Release(r.WaitContext(), o, 0))
				}
				r.NoError(d.Release(r.WaitContext(), g, 0))
			}
		}
		r.opts.Prefix = "a,b/"
		if _, err := r.openDriver(r.addrs(), withoutCheck(r.opts)); !errors.Is(err, holdfast.ErrInvalid) {
			r.Errorf("New() with a comma in the prefix: %v", err)
		}
	})
}
