package redis_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/redis"
)

// startSeeking starts to wait for "k" at the driver. It returns the obstacles of the wait, and its result.
func (r *rig) startSeeking(d *redis.Driver) (obstacles chan error, ended chan error) {
	obstacles, ended = make(chan error, 100), make(chan error, 1)
	ctx := r.boundedContext()
	go func() {
		g, err := d.Acquire(ctx, driver.Request{Key: "k", TTL: longTTL, OnObstacle: func(err error) { obstacles <- err }})
		if err == nil {
			d.Release(ctx, g, 0) // if the server answers
		}
		ended <- err
	}()
	return obstacles, ended
}

// A wait continues through temporary errors, whether or not a lock was ever granted here. A call that does not
// wait gets the error at once.
func TestWaitSurvivesTemporaryErrors(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		begin, end func(r *rig)
		says       string
	}{
		"too few replicas": {
			func(r *rig) { r.do(0, "CONFIG", "SET", "min-replicas-to-write", "1") },
			func(r *rig) { r.do(0, "CONFIG", "SET", "min-replicas-to-write", "0") },
			"NOREPLICAS",
		},
		"no memory": {
			func(r *rig) { r.do(0, "CONFIG", "SET", "maxmemory", "1") },
			func(r *rig) { r.do(0, "CONFIG", "SET", "maxmemory", "0") },
			"OOM",
		},
		"the only node is down": {
			func(r *rig) { r.servers[0].Kill() },
			func(r *rig) {
				if err := r.servers[0].Restart(r.Context()); err != nil {
					r.Error(err)
				}
			},
			"",
		},
		"the only node hangs": {
			func(r *rig) {
				r.noError(r.servers[0].Pause())
			},
			func(r *rig) {
				if err := r.servers[0].Resume(); err != nil {
					r.Error(err)
				}
			},
			"",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := startRig(t, 1)
			d := r.openDriver(r.nodes(), nil)
			t.Cleanup(func() { d.Close() })
			row.begin(r)
			r.eventually("who does not wait is told", func() bool {
				_, err := d.Acquire(r.boundedContext(), driver.Request{Key: "k", TTL: longTTL, NoWait: true})
				return errors.Is(err, holdfast.ErrUnavailable) && strings.Contains(err.Error(), row.says)
			})
			obstacles, ended := r.startSeeking(d)
			select {
			case err := <-obstacles:
				if !errors.Is(err, holdfast.ErrUnavailable) {
					t.Errorf("obstacle: %v", err)
				}
			case err := <-ended:
				t.Fatalf("the wait ended: %v", err)
			}
			row.end(r)
			if err := <-ended; err != nil {
				t.Errorf("the wait ended: %v", err)
			}
		})
	}
}

// A server that rejects a login that it accepted before is an obstacle of the wait, and is reported, until it
// accepts the login again.
func TestWaitReportsRejectedCredentials(t *testing.T) {
	r := startRig(t, 1)
	l := r.acquire(r.newClient(), "k", nil)
	r.do(0, "ACL", "SETUSER", "app", "on", ">old", "~*", "&*", "+@all")
	d := r.openDriver([]redis.Node{{Addr: r.servers[0].Addr(), Username: "app", Password: "old"}}, nil)
	t.Cleanup(func() { d.Close() })
	obstacles, ended := r.startSeeking(d)
	if err := <-obstacles; !errors.Is(err, holdfast.ErrHeld) {
		t.Fatalf("obstacle: %v", err)
	}
	r.do(0, "ACL", "SETUSER", "app", "resetpass", ">new")
	r.do(0, "CLIENT", "KILL", "USER", "app")
	for refused := false; !refused; {
		select {
		case err := <-obstacles:
			refused = errors.Is(err, driver.ErrAuth) && errors.Is(err, holdfast.ErrUnavailable)
		case err := <-ended:
			t.Fatalf("the wait ended: %v", err)
		}
	}
	r.do(0, "ACL", "SETUSER", "app", ">old")
	r.release(l)
	if err := <-ended; err != nil {
		t.Errorf("the wait ended: %v", err)
	}
}

// After a failover the name of a node resolves to the new master, but an open connection leads to the old one.
func TestReplicaIsDialedAgain(t *testing.T) {
	r := startRig(t, 2)
	way := newRoute(t, r.servers[:1])
	events := make(chan driver.NodeEvent, 100)
	d := r.openDriver(way.nodes(), nil)
	c := r.clientOf(d, &holdfast.Options{Hooks: holdfast.Hooks{Node: func(e driver.NodeEvent) { events <- e }}})
	r.release(r.acquire(c, "k", nil))
	host, port, _ := strings.Cut(r.servers[1].Addr(), ":")
	r.do(0, "REPLICAOF", host, port)
	_, ended := r.startSeeking(d)
	for timeout := time.After(patience()); ; {
		var e driver.NodeEvent
		select {
		case e = <-events:
		case <-timeout:
			t.Fatal("no event reports that the node is a replica")
		}
		if e.Err != nil && strings.Contains(e.Err.Error(), "replica") {
			break
		}
	}
	way[0].Redirect(r.servers[1].Addr())
	if err := <-ended; err != nil {
		t.Errorf("the wait ended: %v", err)
	}
}

// After a server has cut a connection at its first use, the client pauses before the next one: each costs the
// server a dozen commands.
func TestShortConnectionIsNotRedialedAtOnce(t *testing.T) {
	r := startRig(t, 1)
	holder := r.newClient()
	l := r.acquire(holder, "k", nil)
	way := newRoute(t, r.servers)
	d := r.openDriver(way.nodes(), nil)
	t.Cleanup(func() { d.Close() })
	cut := way[0].CutAfter(func(args [][]byte) bool {
		return bytes.EqualFold(args[0], []byte("SUBSCRIBE")) && !bytes.Contains(args[1], []byte("~probe"))
	}, 1000)
	_, ended := r.startSeeking(d)
	var first time.Time
	const cuts = 7
	for i := range cuts {
		select {
		case <-cut:
		case err := <-ended:
			t.Fatalf("the wait ended: %v", err)
		}
		if i == 0 {
			first = time.Now()
		}
	}
	// The second attempt follows at once. Later pauses double from 20 ms, each less a random part of up to half.
	if took, least := time.Since(first), (20+40+80+160+320)/2*time.Millisecond; took < least {
		t.Errorf("%d connections in %v, want no less than %v", cuts, took, least)
	}
	r.release(l)
}

func TestOpenAllowsDownNodes(t *testing.T) {
	r := startRig(t, 3)
	for _, s := range r.servers[:2] {
		s.Kill()
	}
	if _, err := r.open(r.nodes(), nil); !errors.Is(err, holdfast.ErrUnavailable) {
		t.Fatalf("Open = %v, want ErrUnavailable", err)
	}
	d := r.openDriver(r.nodes(), &redis.Options{AllowDown: true})
	t.Cleanup(func() { d.Close() })
	if _, err := d.Acquire(r.boundedContext(), driver.Request{Key: "k", TTL: longTTL, NoWait: true}); !errors.Is(err, holdfast.ErrUnavailable) {
		t.Errorf("TryAcquire = %v, want ErrUnavailable", err)
	}
	obstacles, ended := r.startSeeking(d)
	if err := <-obstacles; !errors.Is(err, holdfast.ErrUnavailable) {
		t.Errorf("obstacle: %v", err)
	}
	r.noError(r.servers[0].Restart(t.Context()))
	if err := <-ended; err != nil {
		t.Errorf("the wait ended: %v", err)
	}
}

func TestOpenWithAllowDownFailsWhenRejected(t *testing.T) {
	r := startWith(t, &redisproc.Options{Password: "secret"})
	d, err := r.open([]redis.Node{{Addr: r.servers[0].Addr(), Password: "wrong"}}, &redis.Options{AllowDown: true})
	if !errors.Is(err, driver.ErrAuth) {
		t.Errorf("Open = %v, %v, want driver.ErrAuth", d, err)
	}
}

// A subscriber to all channels is not a waiter: the node does not hand a lock to a dead waiter because another
// client received the message.
func TestPatternSubscriberDoesNotReplaceDeadWaiter(t *testing.T) {
	for name, less := range map[string][]string{
		"PUBSUB": nil, "without the right to it": {"+pubsub|numsub"},
	} {
		t.Run(name, func(t *testing.T) {
			r, holder, waiter, _ := startLockers(t, slices.DeleteFunc(slices.Clone(permissions), func(s string) bool { return slices.Contains(less, s) })...)
			conn, err := net.Dial("tcp", r.servers[0].Addr())
			r.noError(err)
			defer conn.Close()
			fmt.Fprint(conn, "PSUBSCRIBE *\r\n")
			r.eventually("the console listens", func() bool { return r.do(0, "PUBSUB", "NUMPAT") == int64(1) })
			l := r.acquire(holder, "k", &holdfast.AcquireOptions{TTL: longTTL})
			got := fixture.RunAsync(func() *holdfast.Lease { return r.acquire(waiter, "k", &holdfast.AcquireOptions{TTL: longTTL}) })
			r.awaitWaiters(holder, "k", 1)
			dead := strings.Repeat("0", 25) + ".a"
			r.do(0, zaddPlaceArgs("holdfast:queue:{lock:k}", dead, 1)...)
			r.release(l)
			if owner := fmt.Sprint(r.do(0, "GET", "lock:k")); strings.HasPrefix(owner, dead+" ") != (less != nil) {
				t.Errorf("the lock belongs to %s", owner)
			}
			r.release(<-got)
		})
	}
}
