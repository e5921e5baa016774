package redis_test

import (
	"fmt"
	"testing"

	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/redis"
)

// One node of a set fails over, and another is stopped: the third and the one that took over are a majority.
func TestURLSetSurvivesOneFailover(t *testing.T) {
	c := startReplicatedPair(t)
	plain := redistest.StartN(t, 2)
	url := fmt.Sprintf("redis+replicas://%s,%s?maxttl=%v&timeout="+busyTimeout().String()+" redis://%s redis://%s",
		c.servers[0].Addr(), c.servers[1].Addr(), briefMaxTTL, plain[0].Addr(), plain[1].Addr())
	open := func(opts *redis.Options) *redis.Driver {
		t.Helper()
		d := openURL(t, url, opts)
		return d
	}
	open(&redis.Options{NoQuarantine: true}).Close()
	d := open(nil)
	locks := c.clientOf(d, nil)
	if n := len(d.Nodes()); n != 3 {
		t.Fatalf("%d nodes: %v", n, d.Nodes())
	}
	before := c.acquire(locks, "k", nil)
	c.release(before)
	c.promoteReplica()
	c.checkWaits(d)
	plain[0].Kill()
	after := c.acquire(locks, "k", nil) // after its quarantine
	if after.Token() <= before.Token() {
		t.Errorf("token %d after %d", after.Token(), before.Token())
	}
	c.release(after)
}
