package quorum

// stepSeeking applies an event in the phase Seeking.
func (c *Claim) stepSeeking(e *Event, a *Actions) {
	n := Only(e.Node)
	switch e.Kind {
	case Start:
		c.Subscribed = e.Nodes
		c.Queueing = c.Stamp != 0 && c.canBeQuorum(c.Subscribed)
		c.askNodes(c.allNodes(), e.At, a)
		return
	case SubscriptionChange:
		c.updateSubscribed(e, a)
		return
	case Woken:
		c.handleWakeUp(e, n, a)
		return
	case Release:
		c.endClaim(e.At, a)
		return
	case Granted, Denied:
		if c.Owed&n != 0 {
			// The answer overtook the answer to the give-back. So the give-back went over another connection,
			// and may still be executed (trace C3).
			c.renewID(a)
			c.askNodes(c.allNodes(), e.At, a)
			return
		}
		if e.Kind == Denied && e.Left == remainingWhenFree*ms && !c.Adopts {
			// Force took the lock from this id before its client learned of the grant.
			c.renewID(a)
			c.askNodes(c.allNodes(), e.At, a)
			return
		}
		c.Asked &^= n
		c.Failed &^= n
		c.Fatal &^= n
		c.countVote(e, n, a)
	case Accepted:
		c.Pending &^= n
		c.Agreed |= n & c.Granted
	case Refused:
		c.Pending &^= n
		c.dropGrants(n)
		c.Denied |= n
	case Freed:
		c.Owed &^= n
	case Failed:
		if e.Of == AskGiveBack {
			// The give-back may still be executed, and would then free a lock that this id holds again: the id
			// must not be used any more (trace C3).
			c.renewID(a)
			c.askNodes(c.allNodes(), e.At, a)
			return
		}
		c.countFailure(e, n)
	case Tick:
		if c.handleTick(e, a) {
			return
		}
	}
	c.decideOutcome(e, a)
}

// askNodes sends an acquire to the nodes in s. A node with a pending request keeps its deadline, because it
// answers that request first.
func (c *Claim) askNodes(s Set, at int64, a *Actions) {
	if s == 0 {
		return
	}
	a.Acquire |= s
	if c.Queueing {
		a.Stamped |= s & c.Subscribed
	}
	c.setDeadlines(s&^c.Asked, at)
	c.Asked |= s
	c.GivenBack &^= s
	c.Denied &^= s // the denials of an earlier round do not count in this one
	c.Failed &^= s
	c.countSends(s)
	c.RestUntil = 0
	if s == c.allNodes() {
		c.MinLeft, c.MaxWaiters = 0, 0
	}
}

// updateSubscribed records the nodes whose wake-ups arrive. It starts queueing when that becomes possible.
func (c *Claim) updateSubscribed(e *Event, a *Actions) {
	fresh := e.Nodes &^ c.Subscribed
	c.Subscribed = e.Nodes
	c.Queued &= c.Subscribed // nodes skip a place whose client does not listen
	switch {
	case c.Queueing:
		c.askNodes(fresh&^c.Granted, e.At, a)
	case c.Stamp != 0 && c.RestUntil != 0 && c.canBeQuorum(c.Subscribed):
		c.Queueing = true
		c.askNodes(c.allNodes(), e.At, a)
	}
}

// handleWakeUp starts or continues a hand-over. It asks all nodes, because the lock may have become free on
// others without a message to this client (trace C4). If the message has a token, it skips the nodes that
// queue this id: the holder usually releases everywhere, and they send wake-ups of their own. The timer still
// runs.
func (c *Claim) handleWakeUp(e *Event, n Set, a *Actions) {
	if c.Stamp == 0 || c.Granted&n != 0 {
		return
	}
	if c.GiveBackAt == 0 {
		c.GiveBackAt = e.At + c.partialWait()
	}
	others := c.allNodes() &^ (c.Granted | c.Asked | n)
	if e.Token != 0 {
		others &^= c.Queued &^ c.GivenBack
		c.Denied = 0 // denials of an earlier round do not count in this one
	}
	if !c.isGrantingWakeUp(e, n) {
		c.askNodes(n|others, e.At, a)
		return
	}
	c.countVote(e, n, a)
	if c.decideOutcome(e, a); c.Phase == Seeking && !a.FreshID {
		c.askNodes(others, e.At, a)
	}
}

// isGrantingWakeUp reports whether a wake-up counts like an answer that grants the lock, and sets e.Sent, from
// which the node's promise counts. The node sent the wake-up after the last answer that has arrived, so it
// handed the lock over after the request of that answer was sent. That holds only for a wake-up in its place
// among the answers: otherwise a hand-over from before a give-back would count (trace C7). Enough time must be
// left for the first renewal, even with slow round trips and on a busy machine.
func (c *Claim) isGrantingWakeUp(e *Event, n Set) bool {
	e.Sent = c.Answered[e.Node]
	left := e.Sent + e.TTL - Drift(e.TTL) - e.At
	return c.Renews && e.Token != 0 && e.Sent != 0 && c.Owed&n == 0 && left >= max(e.TTL/2, 8*c.RoundTrip)
}

// partialWait returns how long partial grants wait for the other nodes: a few round trips.
func (c *Claim) partialWait() int64 {
	return min(max(4*c.RoundTrip, minPartialWait), HandOverTime(c.TTL)/2)
}

// countVote counts an answer to an acquire.
func (c *Claim) countVote(e *Event, n Set, a *Actions) {
	if e.Kind == Denied {
		c.dropGrants(n)
		c.Denied |= n
		c.Queued &^= n
		if e.Queued {
			c.Queued |= n & c.Subscribed
		}
		c.noteExpiry(e)
		c.MaxWaiters = max(c.MaxWaiters, e.Waiters)
		return
	}
	c.Denied &^= n
	c.Queued &^= n
	if c.Base[e.Node] != e.Token {
		c.dropGrants(n) // the node has forgotten the lock and granted it again
	}
	c.Granted |= n
	c.HandedOver &^= n
	if e.Kind == Woken {
		c.HandedOver |= n
	}
	c.Base[e.Node] = e.Token
	c.notePromise(e)
	if c.Token != 0 {
		c.alignToken(e.Node, e.At, a)
	}
}

// noteExpiry records when the lock of a denial expires, or should be tried again.
func (c *Claim) noteExpiry(e *Event) {
	left := e.Left
	if left < 0 {
		left = maxQueuedRest
	}
	if e.Foreign {
		left = min(left, minForeignRest+int64(e.Rand)%(maxForeignRest-minForeignRest))
	}
	if left = max(left, ms); c.MinLeft == 0 || left < c.MinLeft {
		c.MinLeft = left
	}
}

// alignToken commits the chosen token on a node that granted another one, if possible.
func (c *Claim) alignToken(node int, at int64, a *Actions) {
	n := Only(node)
	switch {
	case c.Agreed&n != 0:
	case c.Base[node] == c.Token:
		c.Agreed |= n
	case c.Base[node] < c.Token:
		a.Commit |= n
		c.Pending |= n
		c.setDeadlines(n, at)
	}
}

// countFailure counts a request that was not answered.
func (c *Claim) countFailure(e *Event, n Set) {
	switch {
	case e.Of == AskCommit, c.HandedOver&n != 0:
		c.dropGrants(n)
	case c.Granted&n != 0:
		c.Asked &^= n // an earlier request was answered, which is enough
		return
	}
	c.Asked &^= n
	c.markFailed(n)
	c.Fatal &^= n
	if e.Fatal {
		c.Fatal |= n
	}
}

// markFailed counts the nodes in s as failed. They may have lost the id's place in the queue.
func (c *Claim) markFailed(s Set) {
	c.Failed |= s
	c.Denied &^= s
	c.Queued &^= s
}

// handleTick does the work that is due, and reports whether nothing else follows from the event.
func (c *Claim) handleTick(e *Event, a *Actions) bool {
	if s := c.overdueNodes(e.At); s != 0 {
		c.dropGrants(s & (c.Pending | c.HandedOver))
		c.Asked &^= s
		c.markFailed(s &^ c.Granted)
	}
	if c.RestUntil != 0 && e.At >= c.RestUntil {
		c.RestUntil = 0
		c.askNodes(c.nodesToAsk(), e.At, a)
		return true
	}
	if c.GiveBackAt != 0 && e.At >= c.GiveBackAt {
		c.GiveBackAt = 0
		c.endRound(e, a)
		return true
	}
	return false
}

// nodesToAsk returns the nodes to ask after a pause. An adopting claim also asks the nodes that granted, to
// keep their locks alive. It skips the nodes that denied, because no node gives the lock back to the id that
// had it.
func (c *Claim) nodesToAsk() Set {
	if c.Adopts {
		return c.allNodes() &^ c.Denied
	}
	return c.allNodes() &^ c.Granted
}

// decideOutcome ends the round if the votes form a quorum, or no longer can.
func (c *Claim) decideOutcome(e *Event, a *Actions) {
	if c.Token == 0 || c.needsLaterToken() {
		c.chooseToken(e.At, a)
	}
	if c.Token != 0 && c.canBeQuorum(c.Agreed) {
		trust := c.keptUntil(c.Agreed)
		if unconfirmed := c.HandedOver & c.Agreed; unconfirmed != 0 && trust-e.At < HandOverTime(c.TTL)/4 {
			c.askNodes(unconfirmed&^c.Asked, e.At, a) // too little time is left for the renewal
			return
		}
		if trust > e.At {
			c.Phase, c.Hold, c.Seek = Held, Hold{Kept: c.Agreed, TrustUntil: trust}, Seek{}
			a.Outcome = Won
			return
		}
		c.dropLateQuorum(e, a)
		return
	}
	open := c.Asked | c.Granted
	if c.Token != 0 {
		open = c.Asked | c.Agreed | c.Pending
	}
	if c.canBeQuorum(open) {
		c.shortenDeadlines(e.At)
		return
	}
	if c.Stamp != 0 {
		c.endRound(e, a)
		return
	}
	if c.Adopts && c.canBeQuorum(c.allNodes()&^(c.Denied|c.Fatal)) {
		if c.RestUntil == 0 { // a silent node may have executed the request, so it has to be asked again
			a.Obstacle, c.RestUntil = Unavailable, e.At+c.pollPause(e.Rand)
		}
		return
	}
	if a.Outcome = c.failedOutcome(); a.Outcome != None {
		c.endClaim(e.At, a)
	}
}

// failedOutcome returns why the answers give no lock, Busy or Unavailable. It returns None while a missing
// answer may still decide between the two.
func (c *Claim) failedOutcome() Outcome {
	answered := c.Granted | c.Denied | c.GivenBack
	switch {
	case c.Adopts && !c.canBeQuorum(c.allNodes()&^c.Denied), !c.Adopts && c.Denied != 0 && c.canBeQuorum(answered):
		return Busy
	case c.Asked != 0 && c.canBeQuorum(c.allNodes()&^c.Failed), answered|c.Failed == 0:
		return None
	}
	return Unavailable
}

// shortenDeadlines bounds how long a slow or dead node makes a waiter keep partial grants: once a quorum has
// answered, the other nodes get a few round trips.
func (c *Claim) shortenDeadlines(at int64) {
	if c.Stamp == 0 || c.Granted == 0 || c.Denied == 0 || !c.canBeQuorum(c.Granted|c.Denied) {
		return
	}
	by := at + c.partialWait()
	for n := range c.Asked.Nodes {
		c.AnswerBy[n] = min(c.AnswerBy[n], by)
	}
}

// chooseToken chooses the token: the base that a quorum shares or, as soon as a quorum has granted, the
// highest base. The token is final when decideOutcome sets the outcome Won: by then a quorum has the lock with
// this token. Before that, endRound and dropLateQuorum drop it together with the id, and an adopting claim may
// choose a later token (needsLaterToken).
func (c *Claim) chooseToken(at int64, a *Actions) {
	var top int64
	for n := range c.Granted.Nodes {
		base, same := c.Base[n], 0
		for m := range c.Granted.Nodes {
			if c.Base[m] == base {
				same++
			}
		}
		if same >= c.Quorum() {
			top = base
			break
		}
		top = max(top, base)
	}
	if !c.canBeQuorum(c.Granted) {
		return
	}
	if c.Token != 0 { // the answer to an earlier request may be about the old token (trace C12)
		c.Asked, c.Agreed, c.Pending = 0, 0, 0
		for n := range c.allNodes().Nodes {
			c.Epoch[n]++
		}
	}
	c.Token = top
	for n := range c.Granted.Nodes {
		c.alignToken(n, at, a)
	}
}

// needsLaterToken reports that a quorum has granted but can no longer share the token, because a node that
// granted after the choice has given a later one. An adopting claim then chooses the highest base: it cannot
// start over under a new id, to which no node would give the lock (trace C12).
func (c *Claim) needsLaterToken() bool {
	return c.Adopts && c.canBeQuorum(c.Granted) && !c.canBeQuorum(c.Asked|c.Agreed|c.Pending)
}

// dropLateQuorum handles a quorum that was reached too late.
func (c *Claim) dropLateQuorum(e *Event, a *Actions) {
	if c.Stamp == 0 {
		a.Outcome = Unavailable
		c.endClaim(e.At, a)
		return
	}
	a.Obstacle = Unavailable
	c.renewID(a)
	c.RestUntil = e.At + c.pollPause(e.Rand)
}

// endRound ends a round without a quorum. The claim gives partial grants back and waits for a wake-up, for
// nodes that come back, or for its timer.
func (c *Claim) endRound(e *Event, a *Actions) {
	if c.GiveBackAt != 0 {
		return // a hand-over is in progress: its other nodes follow
	}
	a.Obstacle = c.failedOutcome()
	answered := c.canBeQuorum(c.Granted | c.Denied)
	if !c.canBeQuorum(c.allNodes() &^ c.Fatal) {
		a.Outcome = Unavailable
		c.endClaim(e.At, a)
		return
	}
	a.Subscribe = !c.Queueing // even in an outage, so that a node is asked as soon as its wake-ups arrive again
	if c.Token != 0 || !c.Queueing && c.Granted != 0 {
		c.renewID(a) // an id that committed, or has no place to keep, ends here
		c.RestUntil = e.At + c.pollPause(e.Rand)
		return
	}
	c.giveBack(a)
	switch {
	case c.Queueing && !c.canBeQuorum(c.Queued|c.Asked):
		// A waiter that only a minority knows could block the heads of their queues forever.
		c.renewID(a)
		c.Queueing = false
		c.RestUntil = e.At + c.pollPause(e.Rand)
	case c.Queueing:
		if c.RestUntil == 0 {
			c.RestUntil = e.At + c.queuedPause(e.Rand)
		}
	case answered && c.canBeQuorum(c.Subscribed):
		c.Queueing = true
		c.askNodes(c.allNodes(), e.At, a)
	default:
		if c.RestUntil == 0 {
			c.RestUntil = e.At + c.pollPause(e.Rand)
		}
	}
}

// giveBack releases partial grants and keeps the place in the queue.
func (c *Claim) giveBack(a *Actions) {
	back := c.Granted
	for n := range back.Nodes {
		c.Epoch[n]++
	}
	c.dropGrants(back)
	c.Asked &^= back
	c.Owed |= back
	c.GivenBack |= back
	c.Queued |= back & c.Subscribed
	a.GiveBack |= back
}

// renewID releases the id everywhere and continues under a new id, at the same place in the queue. It drops
// the other requests of this step: they would be sent under the new id, and a give-back would queue that id.
func (c *Claim) renewID(a *Actions) {
	a.Release |= c.touchedNodes()
	a.GiveBack, a.Commit = 0, 0
	a.FreshID = true
	*c = Claim{
		N: c.N, ID: c.ID + 1, TTL: c.TTL, Stamp: c.Stamp, Renews: c.Renews, RoundTrip: c.RoundTrip,
		Seek: Seek{Fatal: c.Fatal, Subscribed: c.Subscribed, Queueing: c.Queueing, Polls: c.Polls},
	}
}

// queuedPause returns the pause of a queued waiter without a wake-up. It grows with the number of waiters, so
// that together they ask about as often as a hundred waiters do.
func (c *Claim) queuedPause(rand uint32) int64 {
	d := maxQueuedRest
	if c.MinLeft != 0 {
		d = min(c.MinLeft, maxQueuedRest)
	}
	if c.MaxWaiters > crowdSize { // so that at any time one of the waiters soon asks and finds an expired lock
		d = min(int64(c.MaxWaiters)*maxQueuedRest/crowdSize, maxCrowdRest)
		return d/2 + int64(rand)%(d/2)
	}
	return d + int64(rand)%(d/8+ms)
}

// pollPause returns the pause of a waiter without a place in the queue: 20 ms, doubling to 1 s, with full
// jitter, but no longer than the denied lock lasts.
func (c *Claim) pollPause(rand uint32) int64 {
	d := min(minPollRest<<c.Polls, maxPollRest)
	if d < maxPollRest {
		c.Polls++
	}
	if c.MinLeft != 0 {
		d = min(d, max(c.MinLeft, minPollRest))
	}
	return ms + int64(rand)%d
}
