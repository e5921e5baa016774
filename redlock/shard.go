package redlock

import (
	"errors"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// The marker of a shard is in a hash slot that the shard has. So the scripts of locks
// cannot compare it, and each client asks once a second whether the master is the one
// that it was let in to (verify). That is often enough: a replica that has taken over
// grants nothing for MaxTTL + 2 s. And a slot that moves takes a marker with it, which
// says nothing of the shard that gets the slot.

// identify learns from the node itself by which id the cluster knows it, and which slots
// it has.
func (n *node) identify(l *resp.Conn) error {
	values, err := ask(l, []string{"CLUSTER", "MYID"}, []string{"CLUSTER", "SLOTS"})
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

// remembers says whether a shard has forgotten nothing, though its marker does not say so:
// this client has let it in since its last promotion, or it was never promoted, and the
// marker is missing or another's. A marker of its own is that of a run that ended.
func (g *gate) remembers(m marker, s sight) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	in := func(run string) bool { return marker{run: run}.in(s.run) }
	return slices.ContainsFunc(g.admitted[s.addr], in) || !strings.Contains(s.run, "/") && m.shard != s.shard
}

// least is the first token that a grant over l may have. A slot may have come from any
// shard, with counters that are older than its promotion.
func (l *link) least() int64 {
	if c := l.n.d.cluster; c != nil {
		return c.floor.Load()
	}
	return l.floor
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
	if c != nil {
		nudge(c.doubt)
	}
}

var errNotMaster = errors.New("it is no master with hash slots, or no longer")
