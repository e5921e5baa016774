package engine

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/quorum"
)

// claim runs one quorum.Claim: it brings events to Step one after the other and
// carries out the actions in the same order, which the protocol relies on.
type claim struct {
	engine *Engine
	lock   Lock
	from   string // the owner id whose lock it adopts
	note   string // the note in its owner ids
	lane   *Lane  // where its rounds begin

	adoptable bool // another process may adopt what it is granted

	mu    sync.Mutex // guards what follows; never held while sending
	state quorum.Claim
	owner string
	gone  bool  // forgotten by the engine
	free  bool  // its release frees the lock even if clients wait
	busy  bool  // a goroutine empties inbox
	won   int64 // when it was granted the lock
	inbox []answer
	read  int // answers of inbox that step has had
	out   []*Request
	errs  []error // by node, why its last request has no answer
	// What inbox, out and errs begin with: enough for a lock on one node.
	firstIn  [1]answer
	firstOut [1]*Request
	firstErr [1]error

	timer *time.Timer
	alarm int64 // what timer is set to

	turn   driverkit.Turn          // in lane
	queued bool                    // it waits for its turn, or has not heard yet that it has come
	places int                     // how many of those under way in lane are its: 1 in a round, and for a moment 2
	sent   int64                   // when the last requests of that round were
	owed   [quorum.MaxNodes]uint16 // requests to each node that it has not answered
	exit   exit                    // of step's last event, where that has ended the round
	exits  int                     // the places that it leaves then

	holder  string // of the last denial
	left    int64
	waiters int
	told    func(quorum.Outcome) // called with the next outcome, without mu

	last    error       // what stood in the way last; nil: nothing did
	news    []error     // obstacles that are not reported yet
	report  func(error) // nil: obstacles are not reported
	reports bool        // a goroutine calls report
}

// post brings an event to the claim. The goroutine that finds it idle works until the
// inbox is empty; others only leave their event. So a node may answer from
// within Send, and no goroutine waits for a mutex while a request travels.
func (c *claim) post(a answer) {
	c.mu.Lock()
	c.inbox = append(c.inbox, a)
	if c.busy {
		c.mu.Unlock()
		return
	}
	c.busy = true
	for c.read = 0; c.read < len(c.inbox); {
		c.read++
		if sent := c.inbox[c.read-1].sent; sent != nil {
			close(sent)
			continue
		}
		overtaken, told, do := c.step(&c.inbox[c.read-1])
		exits, end := c.exits, c.exit
		c.mu.Unlock()
		if overtaken != nil {
			overtaken(quorum.None)
		}
		for _, r := range c.out {
			c.engine.nodes[r.Node].Send(r)
		}
		if do.Subscribe || do.Outcome == quorum.Won { // or nobody could tell it of a Force
			c.engine.subscribe()
		}
		if told != nil {
			told(do.Outcome)
		}
		for range exits {
			c.lane.leave(end)
			end = exit{}
		}
		c.mu.Lock()
	}
	c.inbox, c.read, c.busy = c.inbox[:0], 0, false
	c.mu.Unlock()
}

// step applies one event and turns the actions into requests in c.out. The
// caller holds mu. It returns the caller that gets no outcome any more, and the
// one that gets do.Outcome.
func (c *claim) step(a *answer) (overtaken, told func(quorum.Outcome), do quorum.Actions) {
	c.out, c.exits = c.out[:0], 0
	switch {
	case c.outdated(a):
		return nil, nil, do
	case a.Kind == quorum.Renew && c.state.Phase == quorum.Over:
		return nil, a.told, quorum.Actions{Outcome: quorum.Lost} // a caller that waits for its release goes on waiting
	}
	read := time.Now()
	now := c.engine.clock.Of(read)
	if a.answers && a.Kind != quorum.Failed {
		c.lane.answered[a.Node].Store(now)
	}
	lapses := c.gone && c.told == nil && !a.begins // nothing is renewed or taken back for it
	if c.state.Phase == quorum.Held && (lapses || a.rings) {
		c.round(a.Kind, &do, now)
		c.setTimer(now)
		return nil, nil, do
	}
	if a.begins {
		overtaken, c.told = c.told, a.told
	}
	a.At = now
	switch a.Kind {
	case quorum.Start, quorum.Audible:
		a.Nodes = quorum.Set(c.engine.heard.Load())
	}
	a.Rand = rand.Uint32()
	c.blame(now)
	c.record(a)
	before, owner := c.state.ID, c.owner
	do = c.state.Step(a.Event)
	c.noteObstacle(do)
	if do.FreshID {
		c.owner = c.engine.rename(c, owner)
	}
	for ask := range do.Asks(before, &c.state, now, quorum.Owners{Before: owner, Now: c.owner, From: c.from}) {
		if ask.Kind.Seeds() { // one clock for all nodes: counters that are new start with one token, and the grant needs no second round
			ask.Clock, ask.Noted = read.UnixMicro(), int64(c.engine.noted)
		}
		c.request(&ask)
	}
	c.round(a.Kind, &do, now)
	c.setTimer(now)
	if do.Outcome == quorum.Won {
		c.won = now
	}
	if do.Outcome != quorum.None {
		told, c.told = c.told, nil
	}
	return overtaken, told, do
}

// outdated counts a, and says whether the claim has no use for it any more. The caller holds mu.
func (c *claim) outdated(a *answer) bool {
	if a.answers {
		c.owed[a.Node]--
	}
	if a.enters && a.Kind == quorum.Tick {
		c.queued = false
		if c.gone || c.state.Phase != quorum.Seeking { // its caller has left, or a wake-up has come first
			c.exits, c.exit = 1, exit{}
			return true
		}
	}
	if a.enters {
		c.places++
		c.sent = 0
	}
	return a.Kind == quorum.Woken && a.woken != c.owner // it has a fresh id since
}

// record keeps what an answer says for people.
func (c *claim) record(a *answer) {
	if a.ID != c.state.ID {
		return
	}
	switch a.Kind {
	case quorum.Denied:
		c.holder, c.left, c.waiters = a.Holder, a.Left, a.Waiters
		if c.engine.shared != nil && quorum.ClientOf(a.Holder) == "" {
			c.engine.shared.meet(c.lock.Name)
		}
	case quorum.Kept:
		c.waiters = a.Waiters
	case quorum.Granted, quorum.Accepted, quorum.Refused, quorum.NotMine, quorum.Freed, quorum.Failed:
	default:
		return
	}
	c.errs[a.Node] = a.Err
}

// blame notes the nodes that have had time to answer, and have not. The caller
// holds mu.
func (c *claim) blame(now int64) {
	timeout, overdue := quorum.RequestTimeout(c.state.TTL), int64(pace.Overdue())
	for n := range c.state.Unanswered().Nodes {
		if by := c.state.AskBy[n]; c.errs[n] == nil && now >= by-timeout+min(timeout, overdue) {
			c.errs[n] = errNoAnswer
		}
	}
}

// request puts ask into c.out.
func (c *claim) request(ask *quorum.Ask) {
	switch ask.Kind {
	case quorum.AskGiveBack, quorum.AskRenew: // the last tries before the end of a lease have no time to blame a node anew
	default:
		c.errs[ask.Node] = nil
	}
	deadline := ask.Sent + quorum.RequestTimeout(ask.TTL)
	if trusted := c.state.Trusted(); ask.Kind == quorum.AskRenew && trusted > ask.Sent {
		deadline = min(deadline, trusted) // nothing is renewed after it was lost
	}
	if c.free && ask.Kind == quorum.AskRelease {
		ask.HandOver = 0
	}
	r, _ := c.engine.requests.Get().(*Request)
	if r == nil {
		r = new(Request)
	}
	*r = Request{Ask: *ask, Lock: &c.lock, Deadline: deadline, NoWait: c.hasty(), claim: c}
	c.out = append(c.out, r)
	c.owed[ask.Node]++
}

// hasty says whether the claim makes one attempt and no more. The caller holds mu.
func (c *claim) hasty() bool {
	return c.state.Phase == quorum.Seeking && c.state.Stamp == 0 && !c.state.Adopts
}

// setTimer sees to it that a Tick comes when the claim wants one. A timer that
// is early is left alone: an early Tick does nothing. So is one that is set when the lock
// is granted, as the release may come before it and want it again. While the lock is held,
// it can only end the claim's round in the lane: renewals are timed together, by Engine.Renew.
func (c *claim) setTimer(now int64) {
	alarm := c.state.Alarm()
	if c.state.Phase == quorum.Held {
		alarm = 0
	}
	if c.places > 0 && c.decided() {
		if end := c.end(); alarm == 0 || end < alarm {
			alarm = end
		}
	}
	switch {
	case alarm == 0:
		if c.alarm != 0 && c.state.Phase != quorum.Held {
			c.timer.Stop()
			c.alarm = 0
		}
	case c.alarm != 0 && c.alarm > now && c.alarm <= alarm:
	case c.timer == nil:
		c.timer = time.AfterFunc(time.Duration(alarm-now), c.ring)
		c.alarm = alarm
	default:
		c.timer.Reset(time.Duration(alarm - now))
		c.alarm = alarm
	}
}

// round notes what the requests of do mean for the place of the claim in its lane, where kind has
// led to them. The caller holds mu.
func (c *claim) round(kind quorum.Kind, do *quorum.Actions, now int64) {
	if c.places == 0 {
		return
	}
	if do.Acquire|do.Commit|do.Release != 0 {
		c.sent = now
	}
	if !c.decided() || now < c.end() && c.awaits(now) {
		return
	}
	c.places, c.exits, c.exit = 0, c.places, exit{at: now}
	switch kind {
	case quorum.Granted, quorum.Denied, quorum.Accepted, quorum.Refused, quorum.Freed:
		c.exit.heard = true
	case quorum.Tick:
	default:
		return
	}
	if c.sent != 0 {
		c.exit.took = max(now-c.sent, 1)
	}
}

// decided says whether the claim needs no answer to what it has asked. The caller holds mu.
func (c *claim) decided() bool {
	switch c.state.Phase {
	case quorum.Seeking:
		return c.state.Rest != 0
	case quorum.Over:
		return c.state.Releasing == 0 || !c.state.Unreported
	}
	return true
}

// awaits says whether a node is still to answer that is not silent. It would fall behind the
// others without bound, if rounds did not wait for it, and could not stand in for one of them any
// more. The caller holds mu.
func (c *claim) awaits(now int64) bool {
	for n := range c.engine.nodes {
		if c.owed[n] > 0 && !c.lane.silent(n, now) {
			return true
		}
	}
	return false
}

// end is when the round ends at the latest, once it is decided. The caller holds mu.
func (c *claim) end() int64 {
	return c.sent + min(quorum.RequestTimeout(c.state.TTL), int64(pace.Overdue()))
}

// ring is the alarm. A claim that has rested asks the nodes again in its turn.
func (c *claim) ring() {
	c.mu.Lock()
	if c.gone && c.state.Phase == quorum.Seeking { // its release waits for its turn
		c.mu.Unlock()
		return
	}
	again := c.state.Rest != 0 && c.state.Patience == 0 && c.engine.clock.Now() >= c.state.Rest
	if c.state.Adopts || c.places > 0 || !again {
		c.mu.Unlock()
		a := event(quorum.Event{Kind: quorum.Tick})
		a.rings = true
		c.post(a)
		return
	}
	c.queue()
}

// hears tells the claim which wake-ups can be heard. One that rests asks for a place in the
// queue of a node whose wake-ups can be heard now; it does so in its turn.
func (c *claim) hears(more bool) {
	c.mu.Lock()
	if c.state.Adopts || c.places > 0 || !more || c.state.Rest == 0 {
		c.mu.Unlock()
		c.post(event(quorum.Event{Kind: quorum.Audible}))
		return
	}
	c.queue()
}

// queue has the claim ask in its turn. The caller holds mu, which queue unlocks.
func (c *claim) queue() {
	if c.queued {
		c.mu.Unlock()
		return
	}
	c.queued = true
	c.turn.Rank, c.turn.Begin = driverkit.Later, func() { c.engine.spawn(c.ask) }
	c.mu.Unlock()
	if c.lane.Enter(&c.turn, c.engine.clock.Now()) {
		c.ask()
	}
}

// ask begins the round of a claim whose turn has come.
func (c *claim) ask() {
	c.post(event(quorum.Event{Kind: quorum.Audible}))
	a := event(quorum.Event{Kind: quorum.Tick})
	a.enters = true
	c.post(a)
}

// leave has the release of a shared lock that is held give others a chance, where one
// is due.
func (c *claim) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	held := time.Duration(c.engine.clock.Now() - c.won)
	c.free = c.state.Phase == quorum.Held && c.engine.shared.leave(c.lock.Name, held)
}

// begin posts e; told is called with the outcome that follows it. A caller that
// waited for an earlier outcome learns that none comes.
func (c *claim) begin(e quorum.Event, told func(quorum.Outcome)) {
	a := event(e)
	a.begins, a.told = true, told
	c.post(a)
}

// flush returns when what was posted before has been handed to the nodes. That is
// soon: the goroutine that does so waits for nothing.
func (c *claim) flush() {
	sent := make(chan struct{})
	c.post(answer{sent: sent})
	<-sent
}
