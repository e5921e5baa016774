package engine

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/quorum"
)

// claim runs one quorum.Claim: it brings events to Step one after the other and
// carries out the actions in the same order, which the protocol relies on.
type claim struct {
	engine *Engine
	lock   Lock
	from   string // the owner id whose lock it adopts
	note   string // the note in its owner ids

	mu    sync.Mutex // guards what follows; never held while sending
	state quorum.Claim
	owner string
	gone  bool  // forgotten by the engine
	won   int64 // when it was granted the lock
	free  bool  // its release frees the lock even if clients wait
	inbox []answer
	read  int  // answers of inbox that step has had
	busy  bool // a goroutine empties inbox
	out   []*Request
	// What inbox and out begin with: enough for a lock on one node.
	firstIn  [1]answer
	firstOut [1]*Request

	timer *time.Timer
	alarm int64 // what timer is set to

	holder  string // of the last denial
	left    int64
	waiters int
	errs    [quorum.MaxNodes]error // why a node's last request has no answer
	told    func(quorum.Outcome)   // called with the next outcome, without mu

	obstacle quorum.Outcome           // what stood in the way of the last round: Busy, Unavailable, or None
	down     *driver.UnavailableError // the last time that it was Unavailable
	news     []error                  // obstacles that are not reported yet
	report   func(error)              // nil: obstacles are not reported
	reports  bool                     // a goroutine calls report
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
		overtaken, told, do := c.step(c.inbox[c.read-1])
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
		c.mu.Lock()
	}
	c.inbox, c.read, c.busy = c.inbox[:0], 0, false
	c.mu.Unlock()
}

// step applies one event and turns the actions into requests in c.out. The
// caller holds mu. It returns the caller that gets no outcome any more, and the
// one that gets do.Outcome.
func (c *claim) step(a answer) (overtaken, told func(quorum.Outcome), do quorum.Actions) {
	c.out = c.out[:0]
	if (a.Kind == quorum.Renew || a.Kind == quorum.Raise) && c.state.Phase == quorum.Over {
		return nil, a.told, quorum.Actions{Outcome: quorum.Lost} // a caller that waits for its release goes on waiting
	}
	if a.Kind == quorum.Woken && a.woken != c.owner {
		return nil, nil, quorum.Actions{} // it has a fresh id since
	}
	if c.gone && c.state.Phase == quorum.Held && c.told == nil && !a.begins {
		return nil, nil, quorum.Actions{} // it is to lapse: nothing is renewed or taken back for it
	}
	if a.begins {
		overtaken, c.told = c.told, a.told
	}
	read := time.Now()
	now := c.engine.clock.Of(read)
	a.At = now
	switch a.Kind {
	case quorum.Start, quorum.Audible:
		a.Nodes = quorum.Set(c.engine.heard.Load())
	}
	a.Rand = rand.Uint32()
	c.blame(now)
	c.record(&a)
	before, owner := c.state.ID, c.owner
	c.state, do = quorum.Step(c.state, a.Event)
	c.noteObstacle(do)
	if do.FreshID {
		c.owner = c.engine.rename(c, owner)
	}
	for ask := range do.Asks(before, &c.state, now) {
		if ask.Kind.Seeds() { // one clock for all nodes: counters that are new start with one token, and the grant needs no second round
			ask.Clock = read.UnixMicro()
		}
		c.request(ask, owner)
	}
	c.setTimer(now)
	if do.Outcome == quorum.Won {
		c.won = now
	}
	if do.Outcome != quorum.None {
		told, c.told = c.told, nil
	}
	return overtaken, told, do
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
	timeout := quorum.RequestTimeout(c.state.TTL)
	for n := range c.state.Unanswered().Nodes {
		if by := c.state.AskBy[n]; c.errs[n] == nil && now >= by-timeout+min(timeout, overdue) {
			c.errs[n] = errNoAnswer
		}
	}
}

// request puts ask into c.out. owner is the id before the step.
func (c *claim) request(ask quorum.Ask, owner string) {
	if ask.Kind != quorum.AskGiveBack {
		c.errs[ask.Node] = nil
	}
	deadline := ask.Sent + quorum.RequestTimeout(ask.TTL)
	if trusted := c.state.Trusted(); (ask.Kind == quorum.AskRenew || ask.Kind == quorum.AskReclaim) && trusted > ask.Sent {
		deadline = min(deadline, trusted) // nothing is renewed after it was lost
	}
	if ask.Owner = c.owner; ask.ID != c.state.ID {
		ask.Owner = owner
	}
	if c.free && ask.Kind == quorum.AskRelease {
		ask.HandOver = 0
	}
	ask.From, ask.Life = c.from, int64(c.engine.life)
	r, _ := c.engine.requests.Get().(*Request)
	if r == nil {
		r = new(Request)
	}
	*r = Request{Ask: ask, Lock: &c.lock, Deadline: deadline, NoWait: c.hasty(), claim: c}
	c.out = append(c.out, r)
}

// hasty says whether the claim makes one attempt and no more. The caller holds mu.
func (c *claim) hasty() bool {
	return c.state.Phase == quorum.Seeking && c.state.Stamp == 0 && !c.state.Adopts
}

// setTimer sees to it that a Tick comes when the claim wants one. A timer that
// is early is left alone: an early Tick does nothing. Rounds of a held lock are
// timed together, by Engine.Renew.
func (c *claim) setTimer(now int64) {
	alarm := c.state.Alarm()
	if c.state.Phase == quorum.Held {
		alarm = 0
	}
	switch {
	case alarm == 0:
		if c.alarm != 0 {
			c.timer.Stop()
			c.alarm = 0
		}
	case c.alarm != 0 && c.alarm > now && c.alarm <= alarm:
	case c.timer == nil:
		c.timer = time.AfterFunc(time.Duration(alarm-now), func() { c.post(event(quorum.Event{Kind: quorum.Tick})) })
		c.alarm = alarm
	default:
		c.timer.Reset(time.Duration(alarm - now))
		c.alarm = alarm
	}
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
