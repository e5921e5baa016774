package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis/internal/link"
	"github.com/holdfast-go/holdfast/redis/internal/place"
	"github.com/holdfast-go/holdfast/redis/internal/server"
)

const (
	splitKeysPause   = 10 * time.Millisecond // while the keys of a name are split over two shards
	clusterDownPause = 50 * time.Millisecond // while the cluster is down
	maxTurns         = 5                     // redirections of a request without a pause
)

var (
	errNoShard  = errors.New("no shard of the cluster has the hash slot of this name")
	errMoving   = errors.New("the hash slot of this name is being moved to another shard")
	errOvertook = errors.New("sent to another shard after a later request was carried out")
)

// cluster is a Redis Cluster. The engine sees it as one engine.Node, which sends each request to the shard of
// the lock's hash slot. A shard is a separate node: the connection to a master. Names are independent of one
// another, so for the protocol the cluster is one server that answers for some names and not for others.
type cluster struct {
	d     *core
	seeds []Node
	doubt chan struct{} // receives a value when the map may be out of date

	slots  [wire.Slots]atomic.Pointer[node]  // the shard of each slot; nil: none
	routes [wire.Slots]atomic.Pointer[route] // created when first needed

	astray engine.Lane // for locks whose hash slot no shard has
	news   reportOrder // orders the reports whether wake-ups arrive

	floor  atomic.Int64            // lowest token that a shard may grant
	looked atomic.Pointer[mapTime] // last look at the map, or the later time at which tokens began; nil: none
	came   atomic.Bool             // a slot was found at another shard after floor was raised

	mu     sync.Mutex // guards the fields below
	shards []*node    // masters with slots
	turn   int        // index of the shard to ask next for the map
}

// route keeps the requests of one hash slot in order, also while the slot moves. If a shard did not carry out
// a request, the request waits until the shard has answered everything else that it was sent. Then it goes to
// the next shard, before requests that came meanwhile.
type route struct {
	slot int

	mu    sync.Mutex    // guards the fields below
	on    *node         // shard that got the last requests
	out   int           // number of its unanswered requests
	again []link.Entry  // requests that went to the wrong shard, in order
	held  []link.Entry  // later requests
	asked *node         // the importing shard that is asked for them with ASKING; nil: the slot's shard
	pause time.Duration // pause before they are sent
	rests bool          // the pause has begun
}

// Name implements engine.Node.
func (c *cluster) Name() string { return "cluster " + c.seeds[0].Addr }

// Send implements engine.Node.
func (c *cluster) Send(r *engine.Request) {
	slot := wire.Slot(r.Lock.Key)
	rt := c.routes[slot].Load()
	if rt == nil {
		c.routes[slot].CompareAndSwap(nil, &route{slot: slot})
		rt = c.routes[slot].Load()
	}
	e := link.Entry{Req: r, At: r.Sent, Route: rt}
	rt.mu.Lock()
	rt.held = append(rt.held, e)
	if len(rt.held)+len(rt.again) > 1 || rt.out > 0 && rt.on != c.slots[slot].Load() {
		rt.mu.Unlock()
		return
	}
	rt.held = rt.held[:0]
	rt.on = c.slots[slot].Load()
	rt.out++
	to := rt.on
	rt.mu.Unlock()
	c.sendTo(to, e)
}

// laneOf returns the lane in which claims on a lock take their turns: the lane of its shard. A slow or silent
// shard delays no lock of another shard.
func (c *cluster) laneOf(lock engine.Lock) *engine.Lane {
	if n := c.slots[wire.Slot(lock.Key)].Load(); n != nil {
		return &n.lane
	}
	return &c.astray
}

// sendTo sends e to a shard.
func (c *cluster) sendTo(to *node, e link.Entry) {
	if to == nil {
		if rt, ok := e.Route.(*route); ok {
			c.noteExecuted(rt, nil)
		}
		e.Req.Fail(engine.Failure{Err: errNoShard, Unsent: true})
		return
	}
	to.sendEntry(e)
}

// noteExecuted records that a request of rt was answered, or never will be, and sends the requests that waited
// for it. Earlier requests of the same lock that done overtook fail.
func (c *cluster) noteExecuted(rt *route, done *engine.Request) {
	var late []link.Entry
	rt.mu.Lock()
	rt.out--
	if done != nil && len(rt.again) > 0 {
		name := done.Lock.Name
		rt.again = slices.DeleteFunc(rt.again, func(e link.Entry) bool {
			if e.Req.Lock.Name == name {
				late = append(late, e)
			}
			return e.Req.Lock.Name == name
		})
	}
	on := rt.on
	c.flushRoute(rt)
	for _, e := range late {
		e.Route = nil
		on.failEntry(e, engine.Failure{Err: errOvertook, Unsent: true})
	}
}

// flushRoute sends the waiting requests, if none is in progress. A request that its shard did not carry out,
// because its keys are or will be at the importing shard, goes there at once, with ASKING; the keys of all
// others may still be at the old shard. The caller holds rt.mu, which flushRoute unlocks.
func (c *cluster) flushRoute(rt *route) {
	if rt.out > 0 || rt.rests || len(rt.again)+len(rt.held) == 0 {
		rt.mu.Unlock()
		return
	}
	to := rt.asked
	var waiting, left []link.Entry
	if to != nil && to.isOpening() {
		to, rt.pause = nil, max(rt.pause, splitKeysPause)
	}
	asks := to != nil
	if asks {
		for _, e := range rt.again {
			if e.Asking {
				waiting = append(waiting, e)
			} else {
				left = append(left, e)
			}
		}
	} else {
		to = c.slots[rt.slot].Load()
		if to != nil && to.isOpening() {
			rt.pause = max(rt.pause, splitKeysPause)
		}
		if rt.pause > 0 {
			rt.rests = true
			time.AfterFunc(rt.pause, func() {
				rt.mu.Lock()
				rt.rests, rt.pause, rt.asked = false, 0, nil
				c.flushRoute(rt)
			})
			rt.mu.Unlock()
			return
		}
		waiting, rt.held = slices.Concat(rt.again, rt.held), nil
	}
	now := c.d.engine.Now()
	var late, list []link.Entry
	for _, e := range waiting {
		if e.At, e.Asking = now, asks; now > seekDeadline(&e) {
			late = append(late, e)
		} else {
			list = append(list, e)
		}
	}
	rt.again, rt.asked = left, nil
	rt.on, rt.out = to, len(list)
	rt.mu.Unlock()
	for _, e := range late {
		c.failUnexecuted(to, e, errMoving)
	}
	for _, e := range list {
		c.sendTo(to, e)
	}
	if len(list) == 0 { // no answer will send the rest
		rt.mu.Lock()
		c.flushRoute(rt)
	}
}

// failUnexecuted fails a request that no shard has executed and that is on no route any more.
func (c *cluster) failUnexecuted(n *node, e link.Entry, err error) {
	e.Route = nil
	if n == nil {
		e.Req.Fail(engine.Failure{Err: err, Unsent: true})
		return
	}
	n.failEntry(e, engine.Failure{Err: err, Unsent: true})
}

// seekDeadline returns the time until which e may search for its shard.
func seekDeadline(e *link.Entry) int64 {
	if e.Frees() {
		return e.Req.Deadline + int64(pace.FindShardTime())
	}
	return e.Req.Deadline
}

// takeRedirection reports whether the answer v of n redirects e to another shard, and sends e there.
func (c *cluster) takeRedirection(n *node, e link.Entry, v resp.Value) bool {
	rt, ok := e.Route.(*route)
	if !ok || !v.IsError() {
		return false
	}
	text := string(v.Text)
	kind, rest, _ := strings.Cut(text, " ")
	var to *node
	var pause time.Duration
	switch kind {
	case "MOVED":
		c.followMoved(n, rest)
	case "ASK":
		_, to = c.parseRedirection(n, rest)
	case "TRYAGAIN":
		pause = splitKeysPause
	case "CLUSTERDOWN":
		pause = clusterDownPause
		c.requestLook()
	default:
		return false
	}
	if c.d.engine.Now() > seekDeadline(&e) {
		c.noteExecuted(rt, nil)
		c.failUnexecuted(n, e, v.Err())
		return true
	}
	if e.Turns++; e.Turns > maxTurns {
		pause = max(pause, splitKeysPause)
	}
	e.Asking = to != nil
	rt.mu.Lock()
	rt.out--
	rt.again = append(rt.again, e)
	rt.pause = max(rt.pause, pause)
	if to != nil {
		rt.asked = to
	}
	c.flushRoute(rt)
	return true
}

// followMoved applies a MOVED of n to the map.
func (c *cluster) followMoved(n *node, rest string) {
	if slot, to := c.parseRedirection(n, rest); to != nil {
		if c.slots[slot].Load() != to {
			c.noteMovedSlot() // before a request goes there
		}
		c.slots[slot].Store(to)
		c.requestLook()
	}
}

// parseRedirection parses the "SLOT HOST:PORT" of a redirection by n. An empty host means n's own.
func (c *cluster) parseRedirection(n *node, text string) (slot int, to *node) {
	number, addr, _ := strings.Cut(text, " ")
	slot, err := strconv.Atoi(number)
	colon := strings.LastIndex(addr, ":")
	if err != nil || slot < 0 || slot >= wire.Slots || colon < 0 {
		return 0, nil
	}
	addr, ok := place.ResolveAddr(addr[:colon], addr[colon+1:], n.addr)
	if !ok {
		return 0, nil
	}
	return slot, c.shardAt(addr)
}

// shardAt returns the node with that address, and connects to it if it is new. It returns nil if there are too
// many, for example because a server redirects requests to ever more addresses.
func (c *cluster) shardAt(addr string) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.shards {
		if n.addr == addr {
			return n
		}
	}
	if len(c.shards) >= 2*place.MaxShards { // the shards of this map, and of the one before
		return nil
	}
	n := newNode(c.d, 0, Node{Addr: addr})
	n.engine, n.opened = c.d.engine, make(chan struct{})
	n.ctx, n.stop = context.WithCancel(c.d.ctx)
	n.listening.Store(c.d.subscribed.Load())
	c.shards = append(c.shards, n)
	c.d.work.Go(func() {
		n.connectFirst(n.ctx)
		close(n.opened)
		c.d.notifyNode(n.currentEvent())
	})
	return n
}

// isOpening reports whether the first attempt to connect to n has not ended.
func (n *node) isOpening() bool {
	select {
	case <-n.opened:
		return false
	default:
		return true
	}
}

func (c *cluster) members() []*node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.shards)
}

func (c *cluster) votersOf(lock engine.Lock) []*node {
	if n := c.slots[wire.Slot(lock.Key)].Load(); n != nil {
		return []*node{n}
	}
	return nil
}

func (c *cluster) neededAnswers(members int) int { return members } // each shard has its own names
func (c *cluster) canSpare(*node) bool           { return false }
func (c *cluster) hasEveryName() bool            { return false } // another shard may have it

func (c *cluster) blameNode(n *node, err error) error { return fmt.Errorf("shard %s: %w", n.addr, err) }

func (c *cluster) noteAnswered(e link.Entry, done *engine.Request) {
	if rt, ok := e.Route.(*route); ok {
		c.noteExecuted(rt, done)
	}
}

// prepareConnection subscribes before it sends anything else, so that no wake-up of the shard is missed.
func (c *cluster) prepareConnection(s *connection) {
	c.raiseFloor(s.floor)
	if s.n.listening.Load() {
		s.early = true
		s.n.subscribeOver(s)
	}
}

func (c *cluster) noteLoss(*node) { c.requestLook() }

// Subscribe implements engine.Node.
func (c *cluster) Subscribe() {
	c.d.subscribed.Store(true)
	for _, n := range c.members() {
		n.Subscribe()
	}
}

func (c *cluster) noteSubscription(s *connection, refused error) {
	s.hears.Store(refused == nil)
	c.news.publishState(c.receivesAllWakeUps, func(yes bool) { c.d.engine.SetSubscribed(0, yes) })
}

// receivesAllWakeUps reports whether wake-ups arrive from all connected shards. A shard that is connected later
// subscribes before anything else.
func (c *cluster) receivesAllWakeUps() bool {
	for _, n := range c.members() {
		l := n.link.Load()
		if l == nil || l.hears.Load() {
			continue
		}
		n.mu.Lock()
		deaf := n.deaf
		n.mu.Unlock()
		if deaf != nil || !l.early {
			return false
		}
	}
	return true
}

// reportOrder orders the reports of a state that several goroutines change.
type reportOrder struct{ count atomic.Uint64 }

// publishState calls say with the state that look returns, after the caller has changed the state. If another
// goroutine changes the state meanwhile, publishState repeats this, so that the last report is correct.
func (n *reportOrder) publishState(look func() bool, say func(bool)) {
	for at := n.count.Add(1); ; {
		say(look())
		now := n.count.Load()
		if now == at {
			return
		}
		at = now
	}
}

// acceptsWakeUp reports whether a wake-up of owner from n counts. A cluster forwards each message to all nodes,
// but only the shard of the lock sends it in order with its answers.
func (c *cluster) acceptsWakeUp(n *node, owner string) bool {
	key := c.d.engine.KeyOf(owner)
	if key == "" {
		return false
	}
	rt := c.routes[wire.Slot(key)].Load()
	if rt == nil {
		return false
	}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	return rt.on == n
}

// nodeForRelease returns the present shard of a lock, or n if no shard has it.
func (c *cluster) nodeForRelease(lock *engine.Lock, n *node) *node {
	if to := c.slots[wire.Slot(lock.Key)].Load(); to != nil {
		return to
	}
	return n
}

// fetchViews asks the shards for the state of some locks.
func (c *cluster) fetchViews(ctx context.Context, locks []engine.Lock) [][]engine.View {
	ctx, cancel := context.WithTimeout(ctx, pace.AskTime())
	defer cancel()
	views := make([][]engine.View, len(locks))
	left := make([]int, len(locks))
	for i := range locks {
		left[i] = i
	}
	for {
		c.fillViews(ctx, locks, left, views)
		left = slices.DeleteFunc(left, func(i int) bool { return !isRedirection(views[i][0].Err) })
		if len(left) == 0 || ctx.Err() != nil {
			return views
		}
		pauseFor(ctx, splitKeysPause)
	}
}

// fillViews fills in the views of the locks with the indexes some.
func (c *cluster) fillViews(ctx context.Context, locks []engine.Lock, some []int, views [][]engine.View) {
	parts := make(map[*node][]int)
	for _, i := range some {
		n := c.slots[wire.Slot(locks[i].Key)].Load()
		parts[n] = append(parts[n], i)
	}
	var all sync.WaitGroup
	for n, part := range parts {
		all.Go(func() {
			asked := make([]engine.Lock, len(part))
			for j, i := range part {
				asked[j] = locks[i]
				views[i] = []engine.View{{Err: errNoShard}}
			}
			if n == nil {
				return
			}
			n.containPanic(func() {
				for j, v := range n.fetchViews(ctx, asked) {
					if isRedirection(v.Err) {
						said, _ := errors.AsType[resp.Error](v.Err)
						if kind, rest, _ := strings.Cut(string(said), " "); kind == "MOVED" {
							c.followMoved(n, rest)
						}
						c.requestLook()
					}
					views[part[j]][0] = v
				}
			})
		})
	}
	all.Wait()
}

// connect opens the connections to all masters. It fails if none of them votes, or if one of them has an error
// that waiting does not fix.
func (c *cluster) connect(ctx context.Context) error {
	err := c.updateMap(ctx)
	c.d.work.Go(c.followMap)
	if err != nil {
		if c.d.opts.AllowDown && !server.IsPermanent(err) {
			c.d.opts.Logger.Warn("the cluster cannot be reached", "cause", err)
			return nil
		}
		return err
	}
	u := &driver.UnavailableError{Need: 1}
	shards := c.members()
	var unfit error
	for _, n := range shards {
		select {
		case <-n.opened:
		case <-ctx.Done():
		}
		if n.link.Load() != nil {
			continue
		}
		err := n.downCause()
		u.Nodes = append(u.Nodes, driver.NodeError{Node: n.addr, Err: err})
		if server.IsPermanent(err) {
			unfit = fmt.Errorf("node %s: %w", n.addr, err)
		}
	}
	switch {
	case unfit != nil:
		return unfit
	case len(u.Nodes) < len(shards), c.d.opts.AllowDown:
		for _, n := range u.Nodes {
			c.d.opts.Logger.Warn("shard is down: the locks in its hash slots are not available", "node", n.Node, "cause", n.Err)
		}
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", ctx.Err(), u)
	}
	return u
}
