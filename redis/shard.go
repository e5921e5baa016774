package redis

import (
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/internal/member"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/quorum"
)

// A slot that leaves a shard takes its counters along, but not the floor in the shard's marker. So if a client
// finds a slot at another shard than before, its tokens begin at its clock. They also do if a slot may have
// left its shard and come back unseen: after half of the quarantine of a shard whose data went back. A client
// that starts has seen no slot before. A redirection by ASK changes nothing: the data come from the shard that
// redirects, whose floor this client has.

// maxLookPause bounds the time between two reads of the map of a healthy cluster.
const maxLookPause = 5 * time.Second

// mapTime is the time at which a map was read.
type mapTime struct {
	at           time.Time
	client, node int64 // clocks of this machine and of the node that sent the map, in µs since 1970
}

// newMapTime returns the time of a map that was requested at sent and arrived at at. node is the clock of the
// node in the answer. That clock may have advanced before the answer arrived: of its possible times, the one
// nearest to this machine's counts. Otherwise a late answer would let tokens begin in the past.
func newMapTime(sent, at time.Time, node int64) mapTime {
	g := mapTime{at: at, client: at.UnixMicro(), node: node}
	g.node += min(max(g.client-node, 0), pace.Elapsed(sent, at).Microseconds())
	return g
}

// leastToken returns the lowest token that a shard may grant now.
func (c *cluster) leastToken(*connection) (int64, error) {
	if c.came.Load() || c.isOutdated(time.Now()) {
		if err := c.beginAtClock(); err != nil {
			c.requestLook()
			return 0, err
		}
	}
	return c.floor.Load(), nil
}

// noteMovedSlot records that a slot was found at another shard than before.
func (c *cluster) noteMovedSlot() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.came.Store(true)
}

// isOutdated reports whether a slot may have left its shard and come back after the last look.
func (c *cluster) isOutdated(now time.Time) bool {
	last := c.looked.Load()
	return last == nil || pace.Elapsed(last.at, now) > c.quarantineTime()/2
}

// quarantineTime returns the quarantine of a shard that may have lost counters.
func (c *cluster) quarantineTime() time.Duration { return member.Quarantine(c.d.opts.MaxTTL) }

// mapInterval returns the time between two reads of the map of a healthy cluster. The map is never outdated at
// the next read, even if a node delays its answer: otherwise tokens would begin at the clock again with each
// read.
func (c *cluster) mapInterval() time.Duration { return min(maxLookPause, c.quarantineTime()/4) }

// beginAtClock makes tokens begin at the clock, if the clocks of client and node agree, as for a new counter.
func (c *cluster) beginAtClock() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	last, now := c.looked.Load(), time.Now()
	if last == nil {
		return errNoShard
	}
	passed := now.Sub(last.at).Microseconds()
	next := &mapTime{at: now, client: now.UnixMicro(), node: last.node + passed}
	if step := next.client - last.client - passed; max(step, -step) > quorum.TrustedClockSkew {
		return errClockStep
	}
	floor, ok := quorum.Seed(next.node, next.client)
	if !ok {
		return errClocks
	}
	c.raiseFloor(floor)
	c.looked.Store(next)
	c.came.Store(false)
	return nil
}

// raiseFloor raises c.floor, the lowest token that a shard may grant, to at least floor. It never lowers it.
func (c *cluster) raiseFloor(floor int64) {
	for {
		old := c.floor.Load()
		if floor <= old || c.floor.CompareAndSwap(old, floor) {
			return
		}
	}
}

// requestLook asks followMap to read the map again.
func (c *cluster) requestLook() {
	select {
	case c.doubt <- struct{}{}:
	default: // a look is already requested
	}
}

// errClockStep rejects this machine's clock until it has been compared with a node's clock again.
var errClockStep = errors.New("this machine's clock was set, or it slept: it is compared with a node's first")
