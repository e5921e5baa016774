package etcd_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/etcd"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
)

// checkNoBlame fails the test if d reports a member as not up.
func (r *rig) checkNoBlame(d driver.Driver) {
	d.(driver.Notifier).Notify(func(e driver.NodeEvent) { r.Errorf("%s is %s: %v", e.Node, e.State, e.Err) })
}

// The callers leave during each kind of call.
func TestCancelDoesNotMarkMemberDown(t *testing.T) {
	inBubble(t, func(r *rig) {
		d := r.newDriver()
		r.NoError(d.Release(r.WaitContext(), r.AcquireGrant(d, "free", longTTL), 0))
		r.checkNoBlame(d)
		holder := r.newDirectDriver()
		r.AcquireGrant(holder, "held", longTTL)
		for _, kind := range []string{"", "Range", "Txn", "LeaseGrant", "LeaseTimeToLive", "Watch", "LeaseKeepAlive"} {
			r.EachLinkOf(d, func(_ int, l *fixture.Link) { l.Stop, l.Halted = kind, kind != "" })
			var all sync.WaitGroup
			for i := range 20 {
				ctx, leave := context.WithCancel(r.Context())
				time.AfterFunc(rand.N(300*time.Millisecond), leave) // before a member counts as late
				all.Go(func() {
					key := []string{"free", "held"}[i%2]
					if g, err := d.Acquire(ctx, driver.Request{Key: key, TTL: longTTL, NoWait: i%3 == 0}); err == nil {
						d.Renew(ctx, []driver.Grant{g})
						d.Release(r.Context(), g, 0)
					}
				})
			}
			all.Wait()
			r.EachLinkOf(d, func(_ int, l *fixture.Link) { l.Stop, l.Halted = "", false })
			time.Sleep(5 * time.Second) // wait for requests in the background
		}
		r.checkNoBlame(d)
	})
}

// The client was suspended, so the time limit of its request has passed when it resumes.
func TestSuspendedClientDoesNotMarkMemberDown(t *testing.T) {
	inBubble(t, func(r *rig) {
		d := r.newDirectDriver()
		r.NoError(d.Release(r.WaitContext(), r.AcquireGrant(d, "k", longTTL), 0))
		r.checkNoBlame(d)
		err := d.Call(r.WaitContext(), time.Second, func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(2 * time.Second)
			return ctx.Err()
		})
		if want := "this process stood still for 2s"; err == nil || !strings.Contains(err.Error(), want) {
			r.Errorf("Call() = %v, want %s", err, want)
		}
	})
}

func TestMembersWithoutAnswersAreStalled(t *testing.T) {
	inBubble(t, func(r *rig) {
		d := r.newDirectDriver()
		stalled := make(map[string]bool)
		d.Notify(func(e driver.NodeEvent) {
			if e.State == driver.NodeStalled {
				stalled[e.Node] = true
			}
		})
		err := d.Call(r.WaitContext(), time.Second, func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		})
		if want := "no answer in 1s"; err == nil || !strings.Contains(err.Error(), want) {
			r.Errorf("Call() = %v, want %s", err, want)
		}
		if len(stalled) != 3 {
			r.Errorf("stalled members = %v, want all three", stalled)
		}
	})
}

// kine, for example, is recognized by its behavior, and the error names the fix.
func TestImitationsOfEtcdAreRejected(t *testing.T) {
	refused := func(r *rig, what string, err error) {
		r.Helper()
		if !errors.Is(err, driver.ErrConfig) || !strings.Contains(err.Error(), "as kine") || !strings.Contains(err.Error(), "use etcd itself") {
			r.Errorf("%s = %v, want ErrConfig and a likely cause", what, err)
		}
	}
	t.Run("no cluster and no member", func(t *testing.T) {
		inBubbleOf(t, 1, func(r *rig) {
			r.fake.members[0].update(func(m *fakeMember) {
				m.twist = func(method string, reply proto.Message) {
					if s, ok := reply.(*pb.StatusResponse); ok {
						s.Header, s.Leader = &pb.ResponseHeader{}, 0
					} else if h, ok := reply.(interface{ GetHeader() *pb.ResponseHeader }); ok && h.GetHeader() != nil {
						h.GetHeader().ClusterId, h.GetHeader().MemberId = 0, 0
					}
				}
			})
			_, err := r.openDriver(r.addrs(), &etcd.Options{})
			refused(r, "New()", err)
			_, err = r.newDirectDriver().Acquire(r.WaitContext(), driver.Request{Key: "k", TTL: longTTL})
			refused(r, "Acquire()", err)
			r.wantOneFinding(r.findingsAt(r.addrs(), 0), "reach", driver.VerdictFault, "as kine", "use etcd itself")
		})
	})
	t.Run("leases without names", func(t *testing.T) {
		inBubbleOf(t, 1, func(r *rig) {
			r.fake.members[0].update(func(m *fakeMember) {
				m.twist = func(method string, reply proto.Message) {
					if l, ok := reply.(*pb.LeaseGrantResponse); ok {
						l.ID = l.TTL
					}
				}
			})
			_, err := r.newDirectDriver().Acquire(r.WaitContext(), driver.Request{Key: "k", TTL: longTTL})
			refused(r, "Acquire()", err)
			r.wantOneFinding(r.findingsAt(r.addrs(), 0), "floor", driver.VerdictFault, "as kine", "use etcd itself")
		})
	})
}

// The member gets the limit with the request, and its clock may be slightly ahead.
func TestMemberTimeLimitIsStall(t *testing.T) {
	inBubbleOf(t, 1, func(r *rig) {
		d := r.newDirectDriver()
		r.fake.members[0].update(func(m *fakeMember) {
			m.fail = func(string) error { return status.FromContextError(context.DeadlineExceeded).Err() }
		})
		_, err := d.Acquire(r.WaitContext(), driver.Request{Key: "k", TTL: longTTL, NoWait: true})
		if n := d.Nodes()[0]; n.State != driver.NodeStalled {
			r.Errorf("the member is %s after %v, want stalled", n.State, err)
		}
	})
}
