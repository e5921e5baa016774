package redis_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/rig/faultproxy"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis"
)

// A lock was on two nodes of three, and one of them lost its data while connected. That node and the third must
// not grant the lock again.
func TestWipedServerLosesVoteWhileConnected(t *testing.T) {
	copied := func(r *rig) {
		host, port, _ := strings.Cut(r.servers[2].Addr(), ":")
		r.do(1, "REPLICAOF", host, port)
		r.eventually("the data of the other node", func() bool {
			info := fmt.Sprint(r.do(1, "INFO", "replication"))
			return strings.Contains(info, "master_link_status:up")
		})
		r.do(1, "REPLICAOF", "NO", "ONE")
	}
	for name, wipe := range map[string]func(r *rig){
		"FLUSHALL":                              func(r *rig) { r.do(1, "FLUSHALL") },
		"FLUSHDB":                               func(r *rig) { r.do(1, "FLUSHDB", "ASYNC") },
		"SWAPDB":                                func(r *rig) { r.do(1, "SWAPDB", "0", "1") },
		"REPLICAOF":                             copied,
		"REPLICAOF of servers that are durable": copied, // the marker is copied too
	} {
		t.Run(name, func(t *testing.T) {
			begin := startRig
			if strings.Contains(name, "durable") {
				begin = startAlways
			}
			r := begin(t, 3)
			way := newRoute(t, r.servers)
			r.openVoting(redis.Options{MaxTTL: time.Minute}).Close()
			d := newDriver(t, way.nodes(), &redis.Options{Timeout: busyTimeout()})
			c := r.clientOf(d, nil)
			rival := newDriver(t, r.nodes(), &redis.Options{Timeout: busyTimeout()})
			other := r.clientOf(rival, nil)
			way.downNode(2, true)
			r.eventually("two nodes", func() bool {
				st, err := d.Inspect(t.Context(), "k")
				return err == nil && st.Nodes[2].Err != nil
			})
			l := r.acquire(c, "k", &holdfast.AcquireOptions{TTL: longTTL, NoRenew: true})
			wipe(r)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			for ctx.Err() == nil {
				if got, err := other.TryAcquire(t.Context(), "k", nil); err == nil {
					t.Fatalf("two holders, with tokens %d and %d", l.Token(), got.Token())
				}
			}
			r.checkQuarantined(rival, 1)
			r.release(l)
		})
	}
}

// A proxy that understands commands may send the commands of one connection to another server.
func TestProxyThatSwitchesServersHasOneVote(t *testing.T) {
	r := startRig(t, 4)
	nodes := r.nodes()
	for _, set := range [][]redis.Node{nodes[:3], {nodes[0], nodes[3], nodes[2]}} { // all vote, each in a set of three
		opts := &redis.Options{Timeout: busyTimeout()}
		d, err := r.open(set, opts)
		r.noError(err)
		d.Close()
	}
	way := newRelay(t, r.servers[1].Addr()).start()
	d := newDriver(t, []redis.Node{nodes[0], way.node(), nodes[2]}, &redis.Options{Timeout: busyTimeout()})
	c := r.clientOf(d, nil)
	r.release(r.acquire(c, "k", nil))
	other := r.servers[3].Addr()
	way.server.Store(&other)
	r.noError(r.servers[2].Pause())
	defer r.servers[2].Resume()
	if _, err := c.TryAcquire(t.Context(), "k", nil); err == nil {
		t.Error("an unchecked server voted")
	} else {
		checkMentions(t, err, "data were lost or replaced", way.node().Addr)
	}
	r.eventually("the gate has looked at the other server", func() bool {
		l, err := c.TryAcquire(t.Context(), "k", nil)
		if err != nil {
			return false
		}
		r.release(l)
		return true
	})
}

// The data are wiped after the quarantine ends, before a client records the end.
func TestServerWipedBeforeAdmissionDoesNotVote(t *testing.T) {
	r := startRig(t, 3)
	way := newRoute(t, r.servers)
	opts := &redis.Options{MaxTTL: briefMaxTTL, Timeout: busyTimeout()}
	_, err := redis.New(t.Context(), r.nodes(), opts)
	checkMentions(t, err, "quarantine")
	var holds []*faultproxy.Hold
	for _, p := range way {
		holds = append(holds, p.HoldRequest(callsOf(wire.Admit), 1))
	}
	opened := make(chan error, 1)
	r.eventually("a client is about to let the nodes vote", func() bool {
		go func() {
			d, err := redis.New(t.Context(), way.nodes(), opts)
			if err == nil {
				d.Close()
			}
			opened <- err
		}()
		select {
		case <-holds[0].Caught():
			return true
		case <-opened: // still in quarantine
			return false
		}
	})
	for i := range r.servers {
		r.do(i, "FLUSHALL")
	}
	for _, h := range holds {
		h.Release()
	}
	checkMentions(t, <-opened, "quarantine", "votes in")
	for i := range r.servers {
		if marker := fmt.Sprint(r.do(i, "GET", wire.Set)); strings.Contains(marker, "run=") {
			t.Errorf("marker = %q", marker)
		}
	}
}
