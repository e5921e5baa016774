package quorum

// seek is the phase in which the lock is asked for.
func (c *Claim) seek(e *Event, a *Actions) {
	n := Only(e.Node)
	switch e.Kind {
	case Start:
		c.Heard = e.Nodes
		c.Queueing = c.Stamp != 0 && c.possible(c.Heard)
		c.ask(c.all(), e.At, a)
		return
	case Audible:
		c.listen(e, a)
		return
	case Woken:
		c.wake(e, n, a)
		return
	case Release:
		c.over(e.At, a)
		return
	case Granted, Denied:
		if c.Owed&n != 0 {
			// It overtook the answer to the give-back, so that went over another
			// connection and may still be executed (trace C3).
			c.renounce(a)
			c.ask(c.all(), e.At, a)
			return
		}
		if e.Kind == Denied && e.Left == leftOfFree*ms && !c.Adopts {
			// The lock was forced from this id before its client knew that it had it.
			c.renounce(a)
			c.ask(c.all(), e.At, a)
			return
		}
		c.Asked &^= n
		c.Failed &^= n
		c.Fatal &^= n
		c.vote(e, n, a)
	case Accepted:
		c.Pending &^= n
		c.Agreed |= n & c.Granted
	case Refused:
		c.Pending &^= n
		c.drop(n)
		c.Denied |= n
	case Freed:
		c.Owed &^= n
	case Failed:
		if e.Of == AskGiveBack {
			// It may still be executed, and would then free a lock that this id
			// holds again: the id is dead (trace C3).
			c.renounce(a)
			c.ask(c.all(), e.At, a)
			return
		}
		c.fail(e, n)
	case Tick:
		if c.tick(e, a) {
			return
		}
	}
	c.decide(e, a)
}

// ask sends an acquire to the nodes in s. Where one is out already it keeps its
// deadline: the new one is answered after it.
func (c *Claim) ask(s Set, at int64, a *Actions) {
	if s == 0 {
		return
	}
	a.Acquire |= s
	if c.Queueing {
		a.Stamped |= s & c.Heard
	}
	c.expect(s&^c.Asked, at)
	c.Asked |= s
	c.Back &^= s
	c.Denied &^= s // the denials of an earlier round do not count in this one
	c.Failed &^= s
	c.send(s)
	c.Rest = 0
	if s == c.all() {
		c.Left, c.Crowd = 0, 0
	}
}

// listen notes which wake-ups can be heard, and takes a place in the queue
// where that has become possible.
func (c *Claim) listen(e *Event, a *Actions) {
	fresh := e.Nodes &^ c.Heard
	c.Heard = e.Nodes
	c.Queued &= c.Heard // a place whose wake-up is not heard is skipped
	switch {
	case c.Queueing:
		c.ask(fresh&^c.Granted, e.At, a)
	case c.Stamp != 0 && c.Rest != 0 && c.possible(c.Heard):
		c.Queueing = true
		c.ask(c.all(), e.At, a)
	}
}

// wake starts or feeds a hand-over. Every node is asked, for others may have become
// free without a message to this client (trace C4). Not so where the node names the
// token: then somebody releases everywhere, as a rule, and a node where this id is
// queued behind another's lock says so itself. The timer still runs.
func (c *Claim) wake(e *Event, n Set, a *Actions) {
	if c.Stamp == 0 || c.Granted&n != 0 {
		return
	}
	if c.Patience == 0 {
		c.Patience = e.At + c.trips()
	}
	others := c.all() &^ (c.Granted | c.Asked | n)
	if e.Token != 0 {
		others &^= c.Queued &^ c.Back
		c.Denied = 0 // what an earlier round heard says nothing of this one
	}
	if !c.grants(e, n) {
		c.ask(n|others, e.At, a)
		return
	}
	c.vote(e, n, a)
	if c.decide(e, a); c.Phase == Seeking && !a.FreshID {
		c.ask(others, e.At, a)
	}
}

// grants says whether a wake-up is as good as an answer that grants the lock, and
// until when. The node sent it after the last answer that has arrived, and so handed
// the lock over after it was sent what it answered there: in order, or a hand-over
// from before a give-back would count (trace C7). Enough must be left for the first
// renewal, also where round trips are slow or this process gets little time.
func (c *Claim) grants(e *Event, n Set) bool {
	e.Sent = c.Answered[e.Node]
	left := e.Sent + e.TTL - Drift(e.TTL) - e.At
	return c.Renews && e.Token != 0 && e.Sent != 0 && c.Owed&n == 0 && left >= max(e.TTL/2, 8*c.Trip)
}

// trips is how long partial grants wait for the rest: a few round trips.
func (c *Claim) trips() int64 {
	return min(max(4*c.Trip, patientLeast), HandOver(c.TTL)/2)
}

// vote counts an answer to acquire.
func (c *Claim) vote(e *Event, n Set, a *Actions) {
	if e.Kind == Denied {
		c.drop(n)
		c.Denied |= n
		c.Queued &^= n
		if e.Queued {
			c.Queued |= n & c.Heard
		}
		c.noteLeft(e)
		c.Crowd = max(c.Crowd, e.Waiters)
		return
	}
	c.Denied &^= n
	c.Queued &^= n
	if c.Base[e.Node] != e.Token {
		c.drop(n) // the node forgot the lock meanwhile and granted it anew
	}
	c.Granted |= n
	c.Handed &^= n
	if e.Kind == Woken {
		c.Handed |= n
	}
	c.Base[e.Node] = e.Token
	c.promised(e)
	if c.Token != 0 {
		c.agree(e.Node, e.At, a)
	}
}

// noteLeft notes how soon a denial's lock lapses, or is worth another try.
func (c *Claim) noteLeft(e *Event) {
	left := e.Left
	if left < 0 {
		left = fallbackMost
	}
	if e.Strange {
		left = min(left, strangeLeast+int64(e.Rand)%(strangeMost-strangeLeast))
	}
	if left = max(left, ms); c.Left == 0 || left < c.Left {
		c.Left = left
	}
}

// agree brings a granted node to the fixed token, where it can be.
func (c *Claim) agree(node int, at int64, a *Actions) {
	n := Only(node)
	switch {
	case c.Agreed&n != 0:
	case c.Base[node] == c.Token:
		c.Agreed |= n
	case c.Base[node] < c.Token:
		a.Commit |= n
		c.Pending |= n
		c.expect(n, at)
	}
}

// fail counts a request without an answer.
func (c *Claim) fail(e *Event, n Set) {
	switch {
	case e.Of == AskCommit, c.Handed&n != 0:
		c.drop(n)
	case c.Granted&n != 0:
		c.Asked &^= n // an earlier request was answered; this one was spare
		return
	}
	c.Asked &^= n
	c.silence(n)
	c.Fatal &^= n
	if e.Fatal {
		c.Fatal |= n
	}
}

// silence counts the nodes in s as failed. Whether they keep a place in the
// queue is no longer known.
func (c *Claim) silence(s Set) {
	c.Failed |= s
	c.Denied &^= s
	c.Queued &^= s
}

// tick does what has become due, and says whether that settles the event.
func (c *Claim) tick(e *Event, a *Actions) bool {
	if s := c.overdue(e.At); s != 0 {
		c.drop(s & (c.Pending | c.Handed))
		c.Asked &^= s
		c.silence(s &^ c.Granted)
	}
	if c.Rest != 0 && e.At >= c.Rest {
		c.Rest = 0
		c.ask(c.missing(), e.At, a)
		return true
	}
	if c.Patience != 0 && e.At >= c.Patience {
		c.Patience = 0
		c.rest(e, a)
		return true
	}
	return false
}

// missing is the nodes that are asked when the claim has rested. One that adopts keeps
// alive what it has, and knows that a denial stands: nobody gives the lock back to the id
// that had it.
func (c *Claim) missing() Set {
	if c.Adopts {
		return c.all() &^ c.Denied
	}
	return c.all() &^ c.Granted
}

// decide looks whether the votes make a quorum, or can no longer make one.
func (c *Claim) decide(e *Event, a *Actions) {
	if c.Token == 0 || c.outgrown() {
		c.elect(e.At, a)
	}
	if c.Token != 0 && c.possible(c.Agreed) {
		trust := c.keptUntil(c.Agreed)
		if told := c.Handed & c.Agreed; told != 0 && trust-e.At < HandOver(c.TTL)/4 {
			c.ask(told&^c.Asked, e.At, a) // too little is left to renew in
			return
		}
		if trust > e.At {
			c.Phase, c.Hold, c.Seek = Held, Hold{Kept: c.Agreed, Trust: trust}, Seek{}
			a.Outcome = Won
			return
		}
		c.expire(e, a)
		return
	}
	open := c.Asked | c.Granted
	if c.Token != 0 {
		open = c.Asked | c.Agreed | c.Pending
	}
	if c.possible(open) {
		c.hurry(e.At)
		return
	}
	if c.Stamp != 0 {
		c.rest(e, a)
		return
	}
	if c.Adopts && c.possible(c.all()&^(c.Denied|c.Fatal)) {
		if c.Rest == 0 { // what has not answered may have done it: only that node can say
			a.Obstacle, c.Rest = Unavailable, e.At+c.poll(e.Rand)
		}
		return
	}
	if a.Outcome = c.verdict(); a.Outcome != None {
		c.over(e.At, a)
	}
}

// verdict is why the nodes' answers make no lock: Busy, Unavailable, or None while
// one that is still to come tells these apart.
func (c *Claim) verdict() Outcome {
	answered := c.Granted | c.Denied | c.Back
	switch {
	case c.Adopts && !c.possible(c.all()&^c.Denied), !c.Adopts && c.Denied != 0 && c.possible(answered):
		return Busy
	case c.Asked != 0 && c.possible(c.all()&^c.Failed), answered|c.Failed == 0:
		return None
	}
	return Unavailable
}

// hurry sees to it that a waiter's partial grants are not kept from others for
// the sake of a node that is slow or dead: once a quorum has answered, the rest
// has a few round trips.
func (c *Claim) hurry(at int64) {
	if c.Stamp == 0 || c.Granted == 0 || c.Denied == 0 || !c.possible(c.Granted|c.Denied) {
		return
	}
	by := at + c.trips()
	for n := range c.Asked.Nodes {
		c.AskBy[n] = min(c.AskBy[n], by)
	}
}

// elect chooses the token: the base that a quorum shares, or, as soon as a
// quorum has granted, the highest one. It is final when decide sets the outcome Won: by then a quorum
// has the lock with this token. Until then rest and expire drop it together with the id, and a claim that
// adopts may choose a later one (outgrown).
func (c *Claim) elect(at int64, a *Actions) {
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
	if !c.possible(c.Granted) {
		return
	}
	if c.Token != 0 { // what a node answers to an earlier request may be about the old one (trace C12)
		c.Asked, c.Agreed, c.Pending = 0, 0, 0
		for n := range c.all().Nodes {
			c.Epoch[n]++
		}
	}
	c.Token = top
	for n := range c.Granted.Nodes {
		c.agree(n, at, a)
	}
}

// outgrown says that a quorum has granted but can no longer share the token, because a node that
// granted after it was chosen has given a later one. A claim that adopts then takes the highest base
// for its token: it cannot begin anew under a fresh id, to which no node would give the lock (trace C12).
func (c *Claim) outgrown() bool {
	return c.Adopts && c.possible(c.Granted) && !c.possible(c.Asked|c.Agreed|c.Pending)
}

// expire handles a quorum that came too late to be of use.
func (c *Claim) expire(e *Event, a *Actions) {
	if c.Stamp == 0 {
		a.Outcome = Unavailable
		c.over(e.At, a)
		return
	}
	a.Obstacle = Unavailable
	c.renounce(a)
	c.Rest = e.At + c.poll(e.Rand)
}

// rest ends a round without a quorum: partial grants go back, and the claim
// waits for a wake-up, for nodes that come back, or for its own timer.
func (c *Claim) rest(e *Event, a *Actions) {
	if c.Patience != 0 {
		return // a hand-over is under way: its other nodes follow
	}
	a.Obstacle = c.verdict()
	answered := c.possible(c.Granted | c.Denied)
	if !c.possible(c.all() &^ c.Fatal) {
		a.Outcome = Unavailable
		c.over(e.At, a)
		return
	}
	a.Subscribe = !c.Queueing // also in an outage: so that the wake-ups of nodes that come back arrive, and these are asked at once
	if c.Token != 0 || !c.Queueing && c.Granted != 0 {
		c.renounce(a) // an id that committed, or has no place to keep, ends here
		c.Rest = e.At + c.poll(e.Rand)
		return
	}
	c.giveBack(a)
	switch {
	case c.Queueing && !c.possible(c.Queued|c.Asked):
		// Known to a minority it could block the others' heads for ever.
		c.renounce(a)
		c.Queueing = false
		c.Rest = e.At + c.poll(e.Rand)
	case c.Queueing:
		if c.Rest == 0 {
			c.Rest = e.At + c.fallback(e.Rand)
		}
	case answered && c.possible(c.Heard):
		c.Queueing = true
		c.ask(c.all(), e.At, a)
	default:
		if c.Rest == 0 {
			c.Rest = e.At + c.poll(e.Rand)
		}
	}
}

// giveBack returns partial grants and keeps the place in the queue.
func (c *Claim) giveBack(a *Actions) {
	back := c.Granted
	for n := range back.Nodes {
		c.Epoch[n]++
	}
	c.drop(back)
	c.Asked &^= back
	c.Owed |= back
	c.Back |= back
	c.Queued |= back & c.Heard
	a.GiveBack |= back
}

// renounce ends the id everywhere; the claim goes on under a fresh one, at the
// same place in the queue. What else this step would have sent under the id is void:
// it would go out under the fresh one, and a give-back would queue that one.
func (c *Claim) renounce(a *Actions) {
	a.Release |= c.touched()
	a.GiveBack, a.Commit = 0, 0
	a.FreshID = true
	*c = Claim{
		N: c.N, ID: c.ID + 1, TTL: c.TTL, Stamp: c.Stamp, Renews: c.Renews, Trip: c.Trip,
		Seek: Seek{Fatal: c.Fatal, Heard: c.Heard, Queueing: c.Queueing, Polls: c.Polls},
	}
}

// fallback is how long a queued waiter rests when no wake-up comes. A crowd asks together
// about as often as a hundred do.
func (c *Claim) fallback(rand uint32) int64 {
	d := fallbackMost
	if c.Left != 0 {
		d = min(c.Left, fallbackMost)
	}
	if c.Crowd > crowd { // at any time, one of them soon asks and finds a lock that has lapsed
		d = min(int64(c.Crowd)*fallbackMost/crowd, crowdMost)
		return d/2 + int64(rand)%(d/2)
	}
	return d + int64(rand)%(d/8+ms)
}

// poll is how long a waiter without a place in the queue rests: 20 ms doubling
// to 1 s, with full jitter, and no longer than the lock of a denial stands.
func (c *Claim) poll(rand uint32) int64 {
	d := min(pollLeast<<c.Polls, pollMost)
	if d < pollMost {
		c.Polls++
	}
	if c.Left != 0 {
		d = min(d, max(c.Left, pollLeast))
	}
	return ms + int64(rand)%d
}
