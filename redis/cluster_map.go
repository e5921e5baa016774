package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis/internal/place"
	"github.com/holdfast-go/holdfast/redis/internal/server"
)

const (
	lookPause = 200 * time.Millisecond // pause between a doubt and the next look
)

// slotMap is a map of the cluster: the shard of each slot, and the time at which the map was read.
type slotMap struct {
	mapTime
	spans []place.Span
}

// followMap keeps the map up to date.
func (c *cluster) followMap() {
	tick := time.NewTicker(c.mapInterval())
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-c.doubt:
			pauseFor(c.d.ctx, lookPause) // collects further doubts
		case <-c.d.ctx.Done():
			return
		}
		c.updateMap(c.d.ctx) // requests that fail until then name the reason
	}
}

// updateMap asks one node after the other for the map, until one returns it.
func (c *cluster) updateMap(ctx context.Context) error {
	m, err := c.readMap(ctx)
	if err == nil {
		c.applyMap(m)
	}
	return err
}

// readMap asks one node after the other for the map, each time beginning with another node.
func (c *cluster) readMap(ctx context.Context) (slotMap, error) {
	candidates := c.members()
	slices.SortStableFunc(candidates, func(a, b *node) int { // connected nodes first
		return strings.Compare(strconv.FormatBool(a.link.Load() == nil), strconv.FormatBool(b.link.Load() == nil))
	})
	up := 0
	for _, n := range candidates {
		if n.link.Load() != nil {
			up++
		}
	}
	if up > 0 {
		c.mu.Lock()
		c.turn++
		by := c.turn % up
		c.mu.Unlock()
		candidates = slices.Concat(candidates[by:up], candidates[:by], candidates[up:])
	}
	for _, seed := range c.seeds {
		if !slices.ContainsFunc(candidates, func(n *node) bool { return n.addr == seed.Addr }) {
			candidates = append(candidates, newNode(c.d, 0, seed))
		}
	}
	u := &driver.UnavailableError{Need: 1}
	for _, n := range candidates {
		var m slotMap
		err := resp.CatchPanic(func() (err error) {
			m, err = c.askForMap(ctx, n)
			return err
		})
		if err == nil {
			return m, nil
		}
		if server.IsPermanent(err) && !c.d.admitted.Load() {
			return m, fmt.Errorf("node %s: %w", n.addr, err)
		}
		u.Nodes = append(u.Nodes, driver.NodeError{Node: n.addr, Err: err})
	}
	if err := ctx.Err(); err != nil {
		return slotMap{}, fmt.Errorf("%w: %w", err, u)
	}
	return slotMap{}, u
}

// mapCommands ask for the map. All versions know CLUSTER SLOTS.
var mapCommands = [][]string{{"CLUSTER", "SLOTS"}, {"CLUSTER", "INFO"}, {"TIME"}}

// askForMap asks n for the map.
func (c *cluster) askForMap(ctx context.Context, n *node) (m slotMap, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.d.opts.Timeout)
	defer cancel()
	var replies []any
	sent := time.Now()
	if n.link.Load() != nil {
		replies, err = n.runCommands(ctx, mapCommands...)
	} else {
		replies, err = n.askApart(ctx, mapCommands)
	}
	m.at = time.Now()
	if err != nil {
		return m, err
	}
	for _, r := range replies {
		if err, ok := r.(error); ok {
			return m, server.AddAdvice(err, c.d.opts.TLS != nil)
		}
	}
	state, _ := replies[1].(string)
	node, err := server.TimeOf(replies[2])
	if err != nil {
		return m, err
	}
	m.mapTime = newMapTime(sent, m.at, node)
	m.spans, err = place.ParseSlots(replies[0], n.addr)
	switch {
	case err != nil:
		return m, err
	case len(m.spans) == 0:
		return m, server.UnfitError("create it (redis-cli --cluster create)", "its cluster has no hash slots")
	case !strings.Contains(state, "cluster_state:ok") && c.hasMap():
		return m, errors.New("the cluster is down, as far as it knows") // it may be isolated, and its map outdated
	}
	return m, nil
}

// hasMap reports whether there is a map.
func (c *cluster) hasMap() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.shards) > 0
}

// askApart sends commands over a separate, new connection.
func (n *node) askApart(ctx context.Context, cmds [][]string) (replies []any, err error) {
	err = n.net.Visit(ctx, n.addr, func(l *resp.Conn) error {
		if _, err := n.place.Login(ctx, n.addr, l); err != nil {
			return err
		}
		values, err := l.Do(cmds...)
		for _, v := range values {
			replies = append(replies, v.Decode())
		}
		return err
	})
	return replies, err
}

// nodesToExamine returns the masters for a diagnosis, and the findings about the cluster as a whole.
func (c *cluster) nodesToExamine(ctx context.Context) (masters []*node, e nodeExam) {
	e = nodeExam{Findings: driverkit.Findings{Node: c.Name()}, g: c.d.gate, n: newNode(c.d, 0, c.seeds[0])}
	m, err := c.readMap(ctx)
	if err != nil {
		e.addFailure("reach", err)
		return nil, e
	}
	covered := 0
	for _, s := range m.spans {
		covered += s.Last - s.First + 1
		if !slices.ContainsFunc(masters, func(n *node) bool { return n.addr == s.Addr }) {
			n := newNode(c.d, 0, Node{Addr: s.Addr})
			n.engine = c.d.engine
			masters = append(masters, n)
		}
	}
	if covered < wire.Slots {
		e.addFault("slots", driver.VerdictFault, server.Advise(fmt.Errorf("%d of %d hash slots have no master: the names in them cannot be locked",
			wire.Slots-covered, wire.Slots), "redis-cli --cluster fix"))
	} else {
		e.OK("slots", "%d masters have all of them", len(masters))
	}
	return masters, e
}

// applyMap applies a map that was read.
func (c *cluster) applyMap(m slotMap) {
	came := c.isOutdated(m.at)
	has := make(map[*node]bool)
	var seen [wire.Slots]*node
	for _, s := range m.spans {
		n := c.shardAt(s.Addr)
		if n == nil {
			continue // there are too many shards: the slot keeps the present one
		}
		has[n] = true
		for i := s.First; i <= s.Last; i++ {
			came = came || c.slots[i].Load() != n
			seen[i] = n
		}
	}
	if came {
		c.noteMovedSlot() // before the requests go there
	}
	c.looked.Store(&m.mapTime)
	for i, n := range seen {
		if c.slots[i].Load() != n {
			c.slots[i].Store(n)
		}
	}
	c.mu.Lock()
	var gone []*node
	c.shards = slices.DeleteFunc(c.shards, func(n *node) bool {
		if !has[n] {
			gone = append(gone, n)
		}
		return !has[n]
	})
	c.mu.Unlock()
	for _, n := range gone {
		c.retireShard(n)
	}
}

// retireShard ends the connection to a node that has no slots any more. The new shards of its slots get the
// releases that it has not executed.
func (c *cluster) retireShard(n *node) {
	n.mu.Lock()
	n.err = place.ErrNotMaster
	n.mu.Unlock()
	due := n.takeDebts()
	n.stop()
	c.takeOverDebts(n, due)
}

// takeOverDebts passes the releases that n has not executed to the shards that now have the locks.
func (c *cluster) takeOverDebts(n *node, debts []debt) {
	parts := make(map[*node][]debt)
	for _, d := range debts {
		to := c.nodeForRelease(&d.Lock, n)
		parts[to] = append(parts[to], d)
	}
	for to, part := range parts {
		to.returnDebts(part)
	}
}

var _ engine.Node = (*cluster)(nil)
