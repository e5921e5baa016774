package engine

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/quorum"
)

// claim runs one quorum.Claim. It passes events to Step one after the other and carries out the actions in the
// same order, because the protocol relies on that order.
type claim struct {
	engine *Engine
	lock   Lock
	from   string // owner id whose lock the claim adopts
	note   string // part of its owner ids
	lane   *Lane  // where its rounds begin

	adoptable bool // another process may adopt the grant

	mu        sync.Mutex // guards the fields below; never held while sending
	state     quorum.Claim
	owner     string
	forgotten bool  // the engine does not know the claim any more
	freesLock bool  // the release frees the lock even if clients wait
	draining  bool  // a goroutine empties inbox
	wonAt     int64 // when the lock was granted
	inbox     []answer
	read      int // number of answers of inbox that step has handled
	out       []*Request
	errs      []error // by node, the reason why its last request has no answer
	// Initial storage of inbox, out and errs, enough for a lock on one node.
	firstIn  [1]answer
	firstOut [1]*Request
	firstErr [1]error

	timer *time.Timer
	alarm int64 // time at which timer fires; 0: stopped

	turn        driverkit.Turn          // turn in lane
	inLane      bool                    // turn waits, or has come and was not handled yet
	rounds      int                     // number of rounds in lane that belong to this claim: 1 in a round, and for a moment 2
	sentAt      int64                   // when the last requests of that round were sent
	unanswered  [quorum.MaxNodes]uint16 // per node, number of requests without an answer
	exit        roundExit               // end of the round that the last step has ended
	endedRounds int                     // number of rounds that the last step has ended

	holder    string // owner in the last denial
	left      int64
	waiters   int
	onOutcome func(quorum.Outcome) // receives the next outcome, without mu

	lastObstacle error       // reason for the last failure; nil: none
	unreported   []error     // obstacles that have not been reported yet
	onObstacle   func(error) // nil: obstacles are not reported
	reporting    bool        // a goroutine calls onObstacle
}

// post passes an event to the claim. The goroutine that finds the claim idle works until the inbox is empty;
// others only add their event. So a node may answer inside Send, and no goroutine waits for a mutex while a
// request travels.
func (c *claim) post(a answer) {
	c.mu.Lock()
	c.inbox = append(c.inbox, a)
	if c.draining {
		c.mu.Unlock()
		return
	}
	c.draining = true
	for c.read = 0; c.read < len(c.inbox); {
		c.read++
		if sent := c.inbox[c.read-1].flushed; sent != nil {
			close(sent)
			continue
		}
		overtaken, notify, do := c.step(&c.inbox[c.read-1])
		endedRounds, end := c.endedRounds, c.exit
		c.mu.Unlock()
		if overtaken != nil {
			overtaken(quorum.None)
		}
		for _, r := range c.out {
			c.engine.nodes[r.Node].Send(r)
		}
		if do.Subscribe || do.Outcome == quorum.Won { // a winner subscribes to learn of a Force
			c.engine.subscribeOnce()
		}
		if notify != nil {
			notify(do.Outcome)
		}
		for range endedRounds {
			c.lane.endRound(end)
			end = roundExit{}
		}
		c.mu.Lock()
	}
	c.inbox, c.read, c.draining = c.inbox[:0], 0, false
	c.mu.Unlock()
}

// step applies one event and turns the actions into requests in c.out. The caller holds mu. It returns the
// callback that gets no outcome any more, and the callback for do.Outcome.
func (c *claim) step(a *answer) (overtaken, notify func(quorum.Outcome), do quorum.Actions) {
	c.out, c.endedRounds = c.out[:0], 0
	switch {
	case c.isOutdated(a):
		return nil, nil, do
	case a.Kind == quorum.Renew && c.state.Phase == quorum.Over:
		return nil, a.onOutcome, quorum.Actions{Outcome: quorum.Lost} // a caller of Release keeps waiting
	}
	read := time.Now()
	now := c.engine.clock.At(read)
	if a.isAnswer && a.Kind != quorum.Failed {
		c.lane.nodeAnswers[a.Node].Store(now)
	}
	abandoned := c.forgotten && c.onOutcome == nil && !a.fromCaller // a forgotten claim renews and regains nothing
	if c.state.Phase == quorum.Held && (abandoned || a.fromTimer) {
		c.updateRound(a.Kind, &do, now)
		c.setTimer(now)
		return nil, nil, do
	}
	if a.fromCaller {
		overtaken, c.onOutcome = c.onOutcome, a.onOutcome
	}
	a.At = now
	switch a.Kind {
	case quorum.Start, quorum.SubscriptionChange:
		a.Nodes = quorum.Set(c.engine.subscribed.Load())
	}
	a.Rand = rand.Uint32()
	c.blameSilentNodes(now)
	c.recordAnswer(a)
	before, owner := c.state.ID, c.owner
	do = c.state.Step(a.Event)
	c.noteObstacle(do)
	if do.FreshID {
		c.owner = c.engine.renameClaim(c, owner)
	}
	for ask := range do.Asks(before, &c.state, now, quorum.Owners{Before: owner, Now: c.owner, From: c.from}) {
		if ask.Kind.MayStartCounter() { // one clock for all nodes: new counters then start with the same token, and the grant needs no second round
			ask.Clock, ask.Noted = read.UnixMicro(), int64(c.engine.noted)
		}
		c.addRequest(&ask)
	}
	c.updateRound(a.Kind, &do, now)
	c.setTimer(now)
	if do.Outcome == quorum.Won {
		c.wonAt = now
	}
	if do.Outcome != quorum.None {
		notify, c.onOutcome = c.onOutcome, nil
	}
	return overtaken, notify, do
}

// isOutdated counts a in the lane's statistics, and reports whether the claim can ignore it. The caller holds
// mu.
func (c *claim) isOutdated(a *answer) bool {
	if a.isAnswer {
		c.unanswered[a.Node]--
	}
	if a.entersLane && a.Kind == quorum.Tick {
		c.inLane = false
		if c.forgotten || c.state.Phase != quorum.Seeking { // the caller has left, or a wake-up came first
			c.endedRounds, c.exit = 1, roundExit{}
			return true
		}
	}
	if a.entersLane {
		c.rounds++
		c.sentAt = 0
	}
	return a.Kind == quorum.Woken && a.woken != c.owner // the claim has taken a new id since
}

// recordAnswer keeps the parts of an answer that errors and renewals report.
func (c *claim) recordAnswer(a *answer) {
	if a.ID != c.state.ID {
		return
	}
	switch a.Kind {
	case quorum.Denied:
		c.holder, c.left, c.waiters = a.Holder, a.Left, a.Waiters
		if c.engine.yields != nil && quorum.ClientOf(a.Holder) == "" {
			c.engine.yields.noteForeignHolder(c.lock.Name)
		}
	case quorum.Kept:
		c.waiters = a.Waiters
	case quorum.Granted, quorum.Accepted, quorum.Refused, quorum.NotMine, quorum.Freed, quorum.Failed:
	default:
		return
	}
	c.errs[a.Node] = a.Err
}

// blameSilentNodes records the nodes that had time to answer and did not. The caller holds mu.
func (c *claim) blameSilentNodes(now int64) {
	timeout, overdue := quorum.RequestTimeout(c.state.TTL), int64(pace.OverdueTime())
	for n := range c.state.Unanswered().Nodes {
		if by := c.state.AnswerBy[n]; c.errs[n] == nil && now >= by-timeout+min(timeout, overdue) {
			c.errs[n] = errNoAnswer
		}
	}
}

// addRequest appends ask to c.out.
func (c *claim) addRequest(ask *quorum.Ask) {
	switch ask.Kind {
	case quorum.AskGiveBack, quorum.AskRenew: // the last attempts before the end of a lease are too short to blame a node
	default:
		c.errs[ask.Node] = nil
	}
	deadline := ask.Sent + quorum.RequestTimeout(ask.TTL)
	if trusted := c.state.TrustedUntil(); ask.Kind == quorum.AskRenew && trusted > ask.Sent {
		deadline = min(deadline, trusted) // a lost lease is not renewed
	}
	if c.freesLock && ask.Kind == quorum.AskRelease {
		ask.HandOver = 0
	}
	r, _ := c.engine.requestPool.Get().(*Request)
	if r == nil {
		r = new(Request)
	}
	*r = Request{Ask: *ask, Lock: &c.lock, Deadline: deadline, NoWait: c.makesOneAttempt(), claim: c}
	c.out = append(c.out, r)
	c.unanswered[ask.Node]++
}

// makesOneAttempt reports whether the claim tries once and does not wait. The caller holds mu.
func (c *claim) makesOneAttempt() bool {
	return c.state.Phase == quorum.Seeking && c.state.Stamp == 0 && !c.state.Adopts
}

// setTimer sets the timer to the claim's next Alarm. A timer that is early stays as it is, because an early
// Tick does nothing. So does the timer of a claim that has just won: the release may follow at once and need
// it again. While the lock is held, the timer only ends the claim's round in the lane, because Engine.Renew
// ends renewal rounds.
func (c *claim) setTimer(now int64) {
	alarm := c.state.Alarm()
	if c.state.Phase == quorum.Held {
		alarm = 0
	}
	if c.rounds > 0 && c.isDecided() {
		if end := c.roundEnd(); alarm == 0 || end < alarm {
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
		c.timer = time.AfterFunc(time.Duration(alarm-now), c.onTimer)
		c.alarm = alarm
	default:
		c.timer.Reset(time.Duration(alarm - now))
		c.alarm = alarm
	}
}

// updateRound applies the requests in do to the round of the claim in its lane. kind is the event that caused
// them. The caller holds mu.
func (c *claim) updateRound(kind quorum.Kind, do *quorum.Actions, now int64) {
	if c.rounds == 0 {
		return
	}
	if do.Acquire|do.Commit|do.Release != 0 {
		c.sentAt = now
	}
	if !c.isDecided() || now < c.roundEnd() && c.awaitsAnswers(now) {
		return
	}
	c.rounds, c.endedRounds, c.exit = 0, c.rounds, roundExit{at: now}
	switch kind {
	case quorum.Granted, quorum.Denied, quorum.Accepted, quorum.Refused, quorum.Freed:
		c.exit.answered = true
	case quorum.Tick:
	default:
		return
	}
	if c.sentAt != 0 {
		c.exit.duration = max(now-c.sentAt, 1)
	}
}

// isDecided reports whether the claim needs no further answers. The caller holds mu.
func (c *claim) isDecided() bool {
	switch c.state.Phase {
	case quorum.Seeking:
		return c.state.RestUntil != 0
	case quorum.Over:
		return c.state.Releasing == 0 || !c.state.Unreported
	}
	return true
}

// awaitsAnswers reports whether a node that is not silent has not answered yet. If rounds did not wait for
// such a node, it would fall behind the others without bound, and could not replace one of them. The caller
// holds mu.
func (c *claim) awaitsAnswers(now int64) bool {
	for n := range c.engine.nodes {
		if c.unanswered[n] > 0 && !c.lane.isSilent(n, now) {
			return true
		}
	}
	return false
}

// roundEnd returns the latest end of a decided round. The caller holds mu.
func (c *claim) roundEnd() int64 {
	return c.sentAt + min(quorum.RequestTimeout(c.state.TTL), int64(pace.OverdueTime()))
}

// onTimer handles the timer. A claim at the end of its pause asks the nodes again, in its turn.
func (c *claim) onTimer() {
	c.mu.Lock()
	if c.forgotten && c.state.Phase == quorum.Seeking { // its release waits in the lane
		c.mu.Unlock()
		return
	}
	again := c.state.RestUntil != 0 && c.state.GiveBackAt == 0 && c.engine.clock.Now() >= c.state.RestUntil
	if c.state.Adopts || c.rounds > 0 || !again {
		c.mu.Unlock()
		a := eventAnswer(quorum.Event{Kind: quorum.Tick})
		a.fromTimer = true
		c.post(a)
		return
	}
	c.enterLane()
}

// updateSubscribed handles a change of the nodes whose wake-ups arrive. A resting claim asks the newly
// subscribed nodes for a place in their queues, in its turn.
func (c *claim) updateSubscribed(more bool) {
	c.mu.Lock()
	if c.state.Adopts || c.rounds > 0 || !more || c.state.RestUntil == 0 {
		c.mu.Unlock()
		c.post(eventAnswer(quorum.Event{Kind: quorum.SubscriptionChange}))
		return
	}
	c.enterLane()
}

// enterLane queues the claim in its lane, to ask when its turn comes. The caller holds mu, which enterLane
// unlocks.
func (c *claim) enterLane() {
	if c.inLane {
		c.mu.Unlock()
		return
	}
	c.inLane = true
	c.turn.Rank, c.turn.Begin = driverkit.Later, func() { c.engine.spawn(c.beginRound) }
	c.mu.Unlock()
	if c.lane.Enter(&c.turn, c.engine.clock.Now()) {
		c.beginRound()
	}
}

// beginRound begins the round of a claim whose turn has come.
func (c *claim) beginRound() {
	c.post(eventAnswer(quorum.Event{Kind: quorum.SubscriptionChange}))
	a := eventAnswer(quorum.Event{Kind: quorum.Tick})
	a.entersLane = true
	c.post(a)
}

// yieldToOthers makes the release of a shared lock free it for other programs, if that is due.
func (c *claim) yieldToOthers() {
	c.mu.Lock()
	defer c.mu.Unlock()
	held := time.Duration(c.engine.clock.Now() - c.wonAt)
	c.freesLock = c.state.Phase == quorum.Held && c.engine.yields.yieldSometimes(c.lock.Name, held)
}

// postCall posts e. onOutcome gets the outcome that follows. A caller that waits for an earlier outcome is told
// that none will come.
func (c *claim) postCall(e quorum.Event, onOutcome func(quorum.Outcome)) {
	a := eventAnswer(e)
	a.fromCaller, a.onOutcome = true, onOutcome
	c.post(a)
}

// flush returns when all events that were posted before have been handed to the nodes. That takes little time,
// because the goroutine that does it waits for nothing.
func (c *claim) flush() {
	sent := make(chan struct{})
	c.post(answer{flushed: sent})
	<-sent
}
