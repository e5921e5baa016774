package redlock

import (
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/internal/clock"
	"github.com/holdfast-go/holdfast/internal/member"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redlock/internal/server"
)

// The marker of a shard is in a hash slot that the shard has. So the scripts of locks
// cannot compare it, and each client asks once a second whether the master is the one
// that it was let in to (verify). That is often enough: a replica that has taken over
// grants nothing for MaxTTL + 2 s. And a slot that moves takes a marker with it, which
// says nothing of the shard that gets the slot.

// identify learns from the node itself by which id the cluster knows it, and which slots
// it has.
func (n *node) identify(l *resp.Conn) error {
	values, err := server.Ask(l, []string{"CLUSTER", "MYID"}, []string{"CLUSTER", "SLOTS"})
	if err != nil {
		return err
	}
	spans, err := parseSlots(values[1].Decode(), n.addr)
	if err != nil {
		return err
	}
	n.id, n.slots, n.top = string(values[0].Text), 0, -1
	for _, s := range spans {
		if s.id == n.id {
			n.slots += s.last - s.first + 1
			n.top = max(n.top, s.last) // tools that move slots begin with the lowest
		}
	}
	if n.top < 0 {
		return errNotMaster
	}
	return nil
}

// tag puts a key into a hash slot of n: the one with its marker.
func (n *node) tag() string {
	if n.d.cluster == nil {
		return ""
	}
	return "{" + wire.SlotTag(n.top) + "}"
}

// markerKey names the marker of n.
func (g *gate) markerKey(n *node) string {
	if n.d.cluster == nil {
		return g.opts.setKey()
	}
	return wire.ShardKey(g.opts.Prefix, n.top)
}

// A slot that leaves a shard takes its counters along, and not the floor in the shard's marker.
// So where a client finds a slot at another shard than before, its tokens begin at its clock,
// as they do where a slot may have left its shard and come back unseen: after half of the
// time for which a shard whose data went back keeps its slots in quarantine. To a client that
// starts, each slot has come. ASK says nothing new: the data are those of the shard that says
// so, whose floor this client has.

// least is the first token that a shard may give now.
func (c *cluster) least() (int64, error) {
	if c.came.Load() || c.outdated(time.Now()) {
		if err := c.begin(); err != nil {
			c.suspect()
			return 0, err
		}
	}
	return c.floor.Load(), nil
}

// arrived notes that a slot was found at another shard than before.
func (c *cluster) arrived() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.came.Store(true)
}

// outdated says whether a slot may have left its shard and come back after the last look.
func (c *cluster) outdated(now time.Time) bool {
	last := c.looked.Load()
	return last == nil || clock.Elapsed(last.at, now) > c.quarantine()/2
}

// quarantine is how long a shard that may have lost counters keeps its slots.
func (c *cluster) quarantine() time.Duration { return member.Quarantine(c.d.opts.MaxTTL) }

// lookEvery is the time between two looks at a cluster that is well. No map is outdated by the
// next look, also where a node lets the client wait: or tokens would begin anew with each look.
func (c *cluster) lookEvery() time.Duration { return min(lookMost, c.quarantine()/4) }

// begin lets tokens begin at the clock. It goes by the client's and that of a node, as a new
// counter does.
func (c *cluster) begin() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	last, now := c.looked.Load(), time.Now()
	if last == nil {
		return errNoShard
	}
	passed := now.Sub(last.at).Microseconds()
	next := &glimpse{at: now, client: now.UnixMicro(), node: last.node + passed}
	if step := next.client - last.client - passed; max(step, -step) > quorum.ClockTrust {
		return errStep
	}
	floor, ok := quorum.Seed(next.node, next.client)
	if !ok {
		return errClocks
	}
	c.learn(floor)
	c.looked.Store(next)
	c.came.Store(false)
	return nil
}

// learn notes the floor of a shard.
func (c *cluster) learn(floor int64) {
	if c == nil {
		return
	}
	for {
		old := c.floor.Load()
		if floor <= old || c.floor.CompareAndSwap(old, floor) {
			return
		}
	}
}

// suspect has the map looked at again.
func (c *cluster) suspect() {
	if c == nil {
		return
	}
	select {
	case c.doubt <- struct{}{}:
	default: // it is on its way
	}
}

// errStep is why a clock is not believed until it was compared with a node's once more.
var errStep = errors.New("this machine's clock was set, or it slept: it is compared with a node's first")

var errNotMaster = errors.New("it is no master with hash slots, or no longer")
