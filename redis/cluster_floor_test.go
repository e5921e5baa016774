package redis_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis"
)

// When a replica takes over, the counters that it had not received are lost. Then the slot moves to another
// shard with the remaining counters, and the shard whose marker has the floor leaves.
func TestTokensRiseWhenSlotLeavesFailedOverShard(t *testing.T) {
	r := startCluster(t, &redisproc.ClusterOptions{
		Masters: 3, Replicas: 1, Server: redisproc.Options{Args: []string{"--cluster-require-full-coverage", "no"}},
	})
	old, next, safe := r.servers[0], r.servers[3], r.servers[2]
	tag := ""
	for i := 0; tag == "" || wire.Slot(tag) >= wire.Slots/3; i++ { // a slot of the shard that has a replica
		tag = fmt.Sprintf("{%d}", i)
	}
	open := func(dial func(context.Context, string, string) (net.Conn, error)) *holdfast.Client {
		d := newDriver(t, []redis.Node{{Addr: safe.Addr()}}, &redis.Options{Cluster: true, NoQuarantine: true, Timeout: busyTimeout(), Dial: dial})
		return r.clientOf(d, nil)
	}
	var away atomic.Bool
	first, cutOff := open(nil), open(func(ctx context.Context, network, addr string) (net.Conn, error) {
		if away.Load() && addr == next.Addr() {
			return nil, errors.New("no route to it")
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	})
	names := []string{tag + "starts later", tag + "is cut off"}
	take := func(c *holdfast.Client, name string) holdfast.Token {
		l := r.acquire(c, name, nil)
		r.release(l)
		return l.Token()
	}
	for _, name := range names { // counters that the replica has
		take(cutOff, name)
	}
	r.awaitReplica(3)
	r.do(0, "ACL", "SETUSER", "default", "-sync", "-psync")
	r.do(0, "CLIENT", "KILL", "TYPE", "replica")
	last := make(map[string]holdfast.Token)
	for _, name := range names {
		for range 3 {
			last[name] = take(first, name)
		}
	}
	away.Store(true)
	old.Kill()
	if _, err := next.Do("CLUSTER", "FAILOVER", "TAKEOVER"); err != nil {
		t.Fatal(err)
	}
	r.eventually("all know that the replica has taken over", func() bool {
		m, _ := r.master(tag)
		return m == next && r.cluster.Await(t.Context()) == nil
	})
	take(first, tag) // admits the shard
	r.noError(r.cluster.Move(next, safe, nil, wire.Slot(tag)))
	next.Kill()
	for i, c := range []*holdfast.Client{open(nil), cutOff} {
		for range 2 {
			if token := take(c, names[i]); token <= last[names[i]] {
				t.Errorf("a client that %s has token %d, after %d", names[i][len(tag):], token, last[names[i]])
			} else {
				last[names[i]] = token
			}
		}
	}
}
