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
	tryAgainAfter = 10 * time.Millisecond // while the keys of a name are split over two shards
	downAfter     = 50 * time.Millisecond // while the cluster serves nothing
	turnsMost     = 5                     // redirections of a request without a pause
)

var (
	errNoShard  = errors.New("no shard of the cluster has the hash slot of this name")
	errMoving   = errors.New("the hash slot of this name is being moved to another shard")
	errOvertook = errors.New("sent to another shard after a later request was carried out")
)

// cluster is a Redis Cluster. To the engine it is one engine.Node, which sends each request to
// the shard that has the hash slot of the lock. A shard is a node of its own: the
// connection to a master. Names are independent of one another, so that the protocol
// sees one server that answers some names and not others.
type cluster struct {
	d     *core
	seeds []Node
	doubt chan struct{} // the map may be out of date

	slots  [wire.Slots]atomic.Pointer[node]  // who has the slot; nil: nobody
	routes [wire.Slots]atomic.Pointer[route] // made when first needed

	astray engine.Lane // of locks whose hash slot nobody has
	news   news        // of shards whose wake-ups are heard

	floor  atomic.Int64            // the first token that a shard may give
	looked atomic.Pointer[glimpse] // the last look at the map, or when tokens began after it; nil: there was none
	came   atomic.Bool             // a slot was found at another shard after floor was raised

	mu     sync.Mutex // guards what follows
	shards []*node    // masters with slots
	turn   int        // whom to ask next for the map
}

// route is the way of the requests of one hash slot. They keep their order also where the
// slot moves: those that a shard did not carry out wait until it has answered all that
// were sent to it, and then go to the next shard, with those that have come meanwhile.
type route struct {
	slot int

	mu    sync.Mutex    // guards what follows
	on    *node         // where the last requests went
	out   int           // how many of them are not answered
	again []link.Entry  // those that went to the wrong shard, in order
	held  []link.Entry  // those that came after these
	asked *node         // the shard that is asked for them while the slot moves; nil: the slot's
	pause time.Duration // before they are sent
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
	c.hand(to, e)
}

// lane returns the lane of the shard that has the lock, in which claims take their turn. A shard that is slow or silent delays
// no lock of another shard.
func (c *cluster) lane(lock engine.Lock) *engine.Lane {
	if n := c.slots[wire.Slot(lock.Key)].Load(); n != nil {
		return &n.lane
	}
	return &c.astray
}

// hand sends e to a shard.
func (c *cluster) hand(to *node, e link.Entry) {
	if to == nil {
		if rt, ok := e.Route.(*route); ok {
			c.carried(rt, nil)
		}
		e.Req.Fail(engine.Failure{Err: errNoShard, Unsent: true})
		return
	}
	to.send(e)
}

// carried notes that a request of rt has its answer, or never will, and sends what has
// waited for that. It takes those out of again that later ones of the same lock have
// overtaken, where done is such a one.
func (c *cluster) carried(rt *route, done *engine.Request) {
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
	c.flush(rt)
	for _, e := range late {
		e.Route = nil
		on.fail(e, engine.Failure{Err: errOvertook, Unsent: true})
	}
}

// flush sends what waits, if nothing is under way. What the slot's shard has not carried out because its keys are, or would
// be, at the next shard goes there, at once and alone: for all else the keys may still be where they were. The caller holds
// rt.mu, which flush unlocks.
func (c *cluster) flush(rt *route) {
	if rt.out > 0 || rt.rests || len(rt.again)+len(rt.held) == 0 {
		rt.mu.Unlock()
		return
	}
	to := rt.asked
	var waiting, left []link.Entry
	if to != nil && to.opening() {
		to, rt.pause = nil, max(rt.pause, tryAgainAfter)
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
		if to != nil && to.opening() {
			rt.pause = max(rt.pause, tryAgainAfter)
		}
		if rt.pause > 0 {
			rt.rests = true
			time.AfterFunc(rt.pause, func() {
				rt.mu.Lock()
				rt.rests, rt.pause, rt.asked = false, 0, nil
				c.flush(rt)
			})
			rt.mu.Unlock()
			return
		}
		waiting, rt.held = slices.Concat(rt.again, rt.held), nil
	}
	now := c.d.engine.Now()
	var late, list []link.Entry
	for _, e := range waiting {
		if e.At, e.Asking = now, asks; now > limit(&e) {
			late = append(late, e)
		} else {
			list = append(list, e)
		}
	}
	rt.again, rt.asked = left, nil
	rt.on, rt.out = to, len(list)
	rt.mu.Unlock()
	for _, e := range late {
		c.drop(to, e, errMoving)
	}
	for _, e := range list {
		c.hand(to, e)
	}
	if len(list) == 0 { // nobody's answer will send what is left
		rt.mu.Lock()
		c.flush(rt)
	}
}

// drop fails a request that no shard has carried out. It is in no route any more.
func (c *cluster) drop(n *node, e link.Entry, err error) {
	e.Route = nil
	if n == nil {
		e.Req.Fail(engine.Failure{Err: err, Unsent: true})
		return
	}
	n.fail(e, engine.Failure{Err: err, Unsent: true})
}

// limit returns the time until which e may look for its shard.
func limit(e *link.Entry) int64 {
	if e.Frees() {
		return e.Req.Deadline + int64(pace.FindShardTime())
	}
	return e.Req.Deadline
}

// redirected takes the answer of n to e, if that says that n does not carry it out, and
// sends e where it belongs.
func (c *cluster) redirected(n *node, e link.Entry, v resp.Value) bool {
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
		c.moved(n, rest)
	case "ASK":
		_, to = c.place(n, rest)
	case "TRYAGAIN":
		pause = tryAgainAfter
	case "CLUSTERDOWN":
		pause = downAfter
		c.suspect()
	default:
		return false
	}
	if c.d.engine.Now() > limit(&e) {
		c.carried(rt, nil)
		c.drop(n, e, v.Err())
		return true
	}
	if e.Turns++; e.Turns > turnsMost {
		pause = max(pause, tryAgainAfter)
	}
	e.Asking = to != nil
	rt.mu.Lock()
	rt.out--
	rt.again = append(rt.again, e)
	rt.pause = max(rt.pause, pause)
	if to != nil {
		rt.asked = to
	}
	c.flush(rt)
	return true
}

// moved takes the place of a slot from a MOVED of n.
func (c *cluster) moved(n *node, rest string) {
	if slot, to := c.place(n, rest); to != nil {
		if c.slots[slot].Load() != to {
			c.arrived() // before a request goes there
		}
		c.slots[slot].Store(to)
		c.suspect()
	}
}

// place reads the "SLOT HOST:PORT" of a redirection of n. An empty host is n's own.
func (c *cluster) place(n *node, text string) (slot int, to *node) {
	number, addr, _ := strings.Cut(text, " ")
	slot, err := strconv.Atoi(number)
	colon := strings.LastIndex(addr, ":")
	if err != nil || slot < 0 || slot >= wire.Slots || colon < 0 {
		return 0, nil
	}
	addr, ok := place.Join(addr[:colon], addr[colon+1:], n.addr)
	if !ok {
		return 0, nil
	}
	return slot, c.shard(addr)
}

// shard returns the node with that address, connected or on the way to it; nil where there are as many as there may be, as
// with a server that sends requests to ever other places.
func (c *cluster) shard(addr string) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.shards {
		if n.addr == addr {
			return n
		}
	}
	if len(c.shards) >= 2*place.MaxShards { // those of the map, and of the map before
		return nil
	}
	n := newNode(c.d, 0, Node{Addr: addr})
	n.engine, n.opened = c.d.engine, make(chan struct{})
	n.ctx, n.stop = context.WithCancel(c.d.ctx)
	n.listening.Store(c.d.subscribed.Load())
	c.shards = append(c.shards, n)
	c.d.work.Go(func() {
		n.open(n.ctx)
		close(n.opened)
		c.d.tell(n.event())
	})
	return n
}

// opening reports whether the first attempt to connect to n goes on.
func (n *node) opening() bool {
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

func (c *cluster) voters(lock engine.Lock) []*node {
	if n := c.slots[wire.Slot(lock.Key)].Load(); n != nil {
		return []*node{n}
	}
	return nil
}

func (c *cluster) need(members int) int { return members } // each has names that no other has
func (c *cluster) spare(*node) bool     { return false }
func (c *cluster) beside() bool         { return false } // it may be in another shard

func (c *cluster) blame(n *node, err error) error { return fmt.Errorf("shard %s: %w", n.addr, err) }

func (c *cluster) over(e link.Entry, done *engine.Request) {
	if rt, ok := e.Route.(*route); ok {
		c.carried(rt, done)
	}
}

// greeted subscribes before anything else, so that no wake-up of the shard is missed.
func (c *cluster) greeted(s *connection) {
	c.learn(s.floor)
	if s.n.listening.Load() {
		s.early = true
		s.n.listen(s)
	}
}

func (c *cluster) lost(*node) { c.suspect() }

// Subscribe implements engine.Node.
func (c *cluster) Subscribe() {
	c.d.subscribed.Store(true)
	for _, n := range c.members() {
		n.Subscribe()
	}
}

func (c *cluster) heard(s *connection, refused error) {
	s.hears.Store(refused == nil)
	c.news.tell(c.hears, func(yes bool) { c.d.engine.Hears(0, yes) })
}

// hears reports whether wake-ups come from all connected shards. A shard that is connected later gets the subscription before
// anything else.
func (c *cluster) hears() bool {
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

// news orders reports of a state that several goroutines change.
type news struct{ count atomic.Uint64 }

// tell reports the state that look finds, after a change by the caller. Another goroutine may have changed the state and
// reported it meanwhile: then tell looks again, so that the last report is true.
func (n *news) tell(look func() bool, say func(bool)) {
	for at := n.count.Add(1); ; {
		say(look())
		now := n.count.Load()
		if now == at {
			return
		}
		at = now
	}
}

// wakes reports whether a wake-up of owner from n counts. A cluster passes it on to all nodes, but only the shard that has the
// lock sends it in order with its answers.
func (c *cluster) wakes(n *node, owner string) bool {
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

// keeper returns the shard that has a lock now, or n if no shard has it.
func (c *cluster) keeper(lock *engine.Lock, n *node) *node {
	if to := c.slots[wire.Slot(lock.Key)].Load(); to != nil {
		return to
	}
	return n
}

// views asks the shards what they know of some locks.
func (c *cluster) views(ctx context.Context, locks []engine.Lock) [][]engine.View {
	ctx, cancel := context.WithTimeout(ctx, pace.AskTime())
	defer cancel()
	views := make([][]engine.View, len(locks))
	left := make([]int, len(locks))
	for i := range locks {
		left[i] = i
	}
	for {
		c.ask(ctx, locks, left, views)
		left = slices.DeleteFunc(left, func(i int) bool { return !isRedirection(views[i][0].Err) })
		if len(left) == 0 || ctx.Err() != nil {
			return views
		}
		wait(ctx, tryAgainAfter)
	}
}

// ask fills in the views of those locks whose numbers are in some.
func (c *cluster) ask(ctx context.Context, locks []engine.Lock, some []int, views [][]engine.View) {
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
			n.contain(func() {
				for j, v := range n.views(ctx, asked) {
					if isRedirection(v.Err) {
						said, _ := errors.AsType[resp.Error](v.Err)
						if kind, rest, _ := strings.Cut(string(said), " "); kind == "MOVED" {
							c.moved(n, rest)
						}
						c.suspect()
					}
					views[part[j]][0] = v
				}
			})
		})
	}
	all.Wait()
}

// connect opens the connections to all masters. It fails where none is fit, or one never
// will be.
func (c *cluster) connect(ctx context.Context) error {
	err := c.look(ctx)
	c.d.work.Go(c.follow)
	if err != nil {
		if c.d.opts.AllowDown && !server.Lasting(err) {
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
		err := n.why()
		u.Nodes = append(u.Nodes, driver.NodeError{Node: n.addr, Err: err})
		if server.Lasting(err) {
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
