package etcd_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/etcd"
	"github.com/holdfast-go/holdfast/internal/rig/faultproxy"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
)

// The test runs with one member and with three. All connections silently stop passing data, as behind a
// firewall that drops them, and new ones work. Only a new connection can renew the lease.
func TestDeadConnectionsAreReplaced(t *testing.T) {
	r := startRig(t)
	for _, members := range []int{1, 3} {
		var ways []*faultproxy.Proxy
		var addrs []string
		for _, m := range r.cluster.Members[:members] {
			way, err := faultproxy.NewOpaque(m.Addr)
			r.NoError(err)
			t.Cleanup(func() { way.Close() })
			ways, addrs = append(ways, way), append(addrs, way.Addr())
		}
		d, err := etcd.New(r.Context(), addrs, withoutCheck(r.opts))
		d = fixture.CloseAtEnd(r.Rig, d, err)
		g := r.AcquireGrant(d, "k", longTTL)
		for _, way := range ways {
			way.Strand()
		}
		if err := d.Renew(r.WaitContext(), []driver.Grant{g})[0].Err; err != nil {
			t.Errorf("%d members: Renew() = %v", members, err)
		}
		r.NoError(d.Release(r.WaitContext(), g, 0))
		r.NoError(d.Close())
	}
}

// The leases have a TTL of 5 s, and the connections die at different times. The waiter keeps its turn too.
func TestLeaseSurvivesDeadConnections(t *testing.T) {
	for _, members := range []int{1, 3} {
		t.Run(fmt.Sprint(members), func(t *testing.T) {
			inBubbleOf(t, members, func(r *rig) {
				holder, waiter := r.Client(r.newDirectDriver()), r.Client(r.newDirectDriver())
				for after := time.Duration(0); after < 2*time.Second; after += 100 * time.Millisecond {
					l := r.Acquire(holder, "k", 5*time.Second)
					next := fixture.RunAsync(func() *holdfast.Lease { return r.Acquire(waiter, "k", 5*time.Second) })
					r.awaitKeys("k", 2)
					time.Sleep(after)
					r.net.killConnections()
					r.AwaitRenewals(l, 3)
					if err := context.Cause(l.Context()); err != nil {
						r.Errorf("%v after the grant: the lease ended: %v", after, err)
					}
					r.Release(l)
					r.Release(<-next)
				}
			})
		})
	}
}

// During the login the driver asks the member for its state, and the member answers.
func TestSlowLoginKeepsItsConnection(t *testing.T) {
	inBubbleOf(t, 1, func(r *rig) {
		r.fake.members[0].update(func(m *fakeMember) { m.login = 4 * time.Second })
		r.opts.Username, r.opts.Password = "me", fixture.Secret
		d := r.newDirectDriver()
		r.NoError(d.Release(r.WaitContext(), r.AcquireGrant(d, "k", longTTL), 0))
		if n := r.net.connectionCount(); n != 1 {
			r.Errorf("%d connections, want one", n)
		}
	})
}
