package zookeeper_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/zookeeper"
)

// lateRequest is a request that is held back, and whose sender and connection are gone.
type lateRequest struct {
	*rig
	d     driver.Driver
	there *fixture.Link
}

// stopRequest holds back the next request of a kind that do makes d send, and drops its connection. d then
// reconnects to the same member, or with elsewhere only to other members until the request is delivered. do may
// continue meanwhile.
func (r *rig) stopRequest(d driver.Driver, kind string, elsewhere bool, do func()) lateRequest {
	r.Helper()
	r.EachLinkOf(d, func(_ int, link *fixture.Link) { link.Stop, link.Halted = kind, true })
	do()
	var l lateRequest
	r.Eventually("a request is stopped: "+kind, func() bool {
		for _, link := range r.Links(d) {
			select {
			case flow := <-link.Caught:
				l = lateRequest{r, d, link}
				r.EachLinkOf(d, func(_ int, other *fixture.Link) { other.Stop, other.Hole = "", elsewhere && other == link })
				flow.Drop()
				return true
			default:
			}
		}
		return false
	})
	return l
}

// reconnect lets d connect to the member again.
func (r *rig) reconnect(d driver.Driver) {
	r.EachLinkOf(d, func(_ int, link *fixture.Link) { link.Refuse = false })
}

// deliver delivers the request. It returns once the server has answered it or closed its connection.
func (l lateRequest) deliver() {
	l.Helper()
	l.EachLinkOf(l.d, func(_ int, link *fixture.Link) { link.Hole, link.Halted = false, false })
	select {
	case <-l.there.Late:
	case <-time.After(fixture.MaxWait()):
		l.Fatal("the late request did not end")
	}
}

// startWait prepares an acquire: begin starts it, and got returns its outcome.
func (r *rig) startWait(ctx context.Context, d driver.Driver, ttl time.Duration) (begin func(), got func() (driver.Grant, error)) {
	var g driver.Grant
	var err error
	done := make(chan struct{})
	begin = func() {
		go func() {
			defer close(done)
			g, err = d.Acquire(ctx, driver.Request{Key: "k", TTL: ttl})
		}()
	}
	return begin, func() (driver.Grant, error) { <-done; return g, err }
}

// greetingCase returns a case in which a greeting arrives late while the lock is held. The driver's next
// request, a renewal or the release, finds that the session has moved.
func greetingCase(renew bool) func(r *rig, d driver.Driver, stop func(kind string, do func()) lateRequest) (newest int64) {
	return func(r *rig, d driver.Driver, stop func(string, func()) lateRequest) int64 {
		g := r.AcquireGrant(d, "k", longTTL)
		l := stop("greeting", func() { r.EachLinkOf(d, func(_ int, link *fixture.Link) { link.Refuse = true }); r.reconnect(d) })
		r.NoError(d.Renew(r.WaitContext(), []driver.Grant{g})[0].Err)
		l.deliver()
		if renew {
			r.NoError(d.Renew(r.WaitContext(), []driver.Grant{g})[0].Err)
		}
		r.NoError(d.Release(r.WaitContext(), g, 0))
		return g.Token
	}
}

// A request that is executed after its sender and its connection have ended neither ends a held lock nor
// creates one without a holder. Each request is held back while the driver continues over a new connection, to
// the same or to another member.
func TestLateRequestHasNoEffect(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]func(r *rig, d driver.Driver, stop func(kind string, do func()) lateRequest) (newest int64){
		"creation, and the lock is held": func(r *rig, d driver.Driver, stop func(string, func()) lateRequest) int64 {
			begin, got := r.startWait(r.WaitContext(), d, longTTL)
			l := stop("create", begin)
			g, err := got()
			r.NoError(err)
			l.deliver()
			r.NoError(d.Renew(r.WaitContext(), []driver.Grant{g})[0].Err)
			r.NoError(d.Release(r.WaitContext(), g, 0))
			return g.Token
		},
		"creation, and the lock was released": func(r *rig, d driver.Driver, stop func(string, func()) lateRequest) int64 {
			begin, got := r.startWait(r.WaitContext(), d, longTTL)
			l := stop("create", begin)
			g, err := got()
			r.NoError(err)
			r.NoError(d.Release(r.WaitContext(), g, 0))
			l.deliver()
			return g.Token
		},
		"creation, and the caller has left": func(r *rig, d driver.Driver, stop func(string, func()) lateRequest) int64 {
			ctx, cancel := context.WithCancel(r.WaitContext())
			begin, got := r.startWait(ctx, d, longTTL)
			l := stop("create", begin)
			cancel()
			if _, err := got(); err != nil && !errors.Is(err, context.Canceled) {
				r.Errorf("Acquire() = %v", err)
			}
			l.deliver()
			return 0
		},
		"creation, and the session is over": func(r *rig, d driver.Driver, stop func(string, func()) lateRequest) int64 {
			begin, got := r.startWait(r.WaitContext(), d, longTTL)
			l := stop("create", begin)
			g, err := got()
			r.NoError(err)
			r.NoError(d.(*zookeeper.Driver).Expire(r.WaitContext(), longTTL))
			l.deliver()
			if err := d.Renew(r.WaitContext(), []driver.Grant{g})[0].Err; !errors.Is(err, driver.ErrLost) {
				r.Errorf("Renew() = %v, want ErrLost", err)
			}
			return g.Token
		},
		"renewal, and the lock was renewed": func(r *rig, d driver.Driver, stop func(string, func()) lateRequest) int64 {
			g := r.AcquireGrant(d, "k", longTTL)
			renewed := make(chan driver.Renewal, 1)
			l := stop("multi", func() { go func() { renewed <- d.Renew(r.WaitContext(), []driver.Grant{g})[0] }() })
			r.NoError((<-renewed).Err)
			l.deliver()
			r.NoError(d.Renew(r.WaitContext(), []driver.Grant{g})[0].Err)
			r.NoError(d.Release(r.WaitContext(), g, 0))
			return g.Token
		},
		"renewal, and the lock was released": func(r *rig, d driver.Driver, stop func(string, func()) lateRequest) int64 {
			g := r.AcquireGrant(d, "k", longTTL)
			l := stop("multi", func() { go d.Renew(r.WaitContext(), []driver.Grant{g}) })
			if err := d.Release(r.WaitContext(), g, 0); err != nil && !errors.Is(err, driver.ErrUnavailable) {
				r.Errorf("Release() = %v", err)
			}
			l.deliver()
			return g.Token
		},
		"release, and the next has the lock": func(r *rig, d driver.Driver, stop func(string, func()) lateRequest) int64 {
			g := r.AcquireGrant(d, "k", longTTL)
			l := stop("delete", func() { go d.Release(r.WaitContext(), g, 0) })
			next := r.AcquireGrant(d, "k", longTTL)
			l.deliver()
			r.NoError(d.Renew(r.WaitContext(), []driver.Grant{next})[0].Err)
			r.NoError(d.Release(r.WaitContext(), next, 0))
			return next.Token
		},
		"force, and the next has the lock": func(r *rig, d driver.Driver, stop func(string, func()) lateRequest) int64 {
			holder := r.newDirectDriver()
			g := r.AcquireGrant(holder, "k", longTTL)
			l := stop("multi", func() { go d.(driver.Forcer).Force(r.WaitContext(), "k", g.Token, "for a test") })
			next := r.AcquireGrant(holder, "k", longTTL)
			l.deliver()
			r.NoError(holder.Renew(r.WaitContext(), []driver.Grant{next})[0].Err)
			r.NoError(holder.Release(r.WaitContext(), next, 0))
			return next.Token
		},
		"greeting, and then a renewal": greetingCase(true),
		"greeting, and then a release": greetingCase(false),
		"greeting of a new session": func(r *rig, d driver.Driver, stop func(string, func()) lateRequest) int64 {
			begin, got := r.startWait(r.WaitContext(), d, longTTL-time.Second)
			l := stop("greeting", begin)
			g, err := got()
			r.NoError(err)
			l.deliver()
			r.NoError(d.Renew(r.WaitContext(), []driver.Grant{g})[0].Err)
			r.NoError(d.Release(r.WaitContext(), g, 0))
			return g.Token
		},
	} {
		for where, elsewhere := range map[string]bool{"the same member": false, "others": true} {
			t.Run(name+", over "+where, func(t *testing.T) {
				runInBubble(t, func(t *testing.T, r *rig) {
					d, looker := r.newDriver(), r.newDirectDriver()
					other := r.AcquireGrant(d, "other", longTTL) // keeps the session
					newest := run(r, d, func(kind string, do func()) lateRequest { return r.stopRequest(d, kind, elsewhere, do) })
					// The driver finds out where the session is, or that it is over. A client would do so soon.
					if err := d.Renew(r.WaitContext(), []driver.Grant{other})[0].Err; err != nil && !errors.Is(err, driver.ErrLost) {
						r.Errorf("Renew() = %v", err)
					}
					next := r.AcquireGrant(looker, "k", longTTL)
					if next.Token <= newest {
						t.Errorf("token %d after %d", next.Token, newest)
					}
					r.NoError(looker.Release(r.WaitContext(), next, 0))
					r.awaitNodes(looker, "k", 0)
				})
			})
		}
	}
}

// When a session returns to a member, that member may execute a request from the earlier connection, after the
// driver has searched for its node. The session lasts because of another lock.
func TestLateNodeIsDeleted(t *testing.T) {
	for name, leaves := range map[string]bool{"the lock is taken": false, "the caller has left": true} {
		t.Run(name, func(t *testing.T) {
			runInBubble(t, func(t *testing.T, r *rig) {
				d, looker := r.newDirectDriver(), r.newDirectDriver()
				r.AcquireGrant(d, "other", longTTL)
				r.NoError(d.Release(r.WaitContext(), r.AcquireGrant(d, "k", longTTL), 0)) // creates the folder
				all := func(op int32) {
					r.fake.update(func() {
						for _, m := range r.fake.members {
							m.holds = op
						}
					})
				}
				all(opCreate2)
				ctx, cancel := context.WithCancel(r.WaitContext())
				defer cancel()
				begin, got := r.startWait(ctx, d, longTTL)
				begin()
				r.Eventually("a creation is held", func() bool { r.fake.mu.Lock(); defer r.fake.mu.Unlock(); return r.fake.held == 1 })
				if leaves {
					cancel()
				}
				r.fake.cutConnections()
				time.Sleep(time.Second) // the driver has looked for the node over its next connection
				all(0)
				g, err := got()
				if (err == nil) == leaves {
					t.Fatalf("Acquire() = %+v, %v", g, err)
				}
				if err == nil {
					r.NoError(d.Release(r.WaitContext(), g, 0))
				}
				r.NoError(looker.Release(r.WaitContext(), r.AcquireGrant(looker, "k", longTTL), 0))
				r.awaitNodes(looker, "k", 0)
				if r.fake.nodes[r.opts.Path+"/lock:k"].creates < 3 {
					t.Error("the late create was not executed")
				}
			})
		})
	}
}
