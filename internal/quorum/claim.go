package quorum

const againMost = 6 // how often a round of renewals asks again for nodes that are another's

// Phase is where a Claim stands.
type Phase uint8

// The phases of a Claim.
const (
	Seeking Phase = iota // asks, rests between rounds, commits
	Held                 // a quorum granted; renews
	Over                 // released, lost or given up: the id is never used again
)

// Kind is what happened.
type Kind uint8

// The events of a Claim. Those with a node are answers, or stand for one.
const (
	Start    Kind = iota // ask for the lock; the first event
	Granted              // acquire: the lock is this id's; Token is the base
	Denied               // acquire: another holds the lock; Left until it lapses
	Accepted             // commit: the token stands
	Refused              // commit: it does not
	Kept                 // renew, reclaim: the lock is this id's, still or again
	NotMine              // renew, reclaim: it is another's; or, with Token, free, and the node has promised up to that
	Freed                // release, give-back: done
	Failed               // no answer to the request Of, or an error
	Woken                // the node handed the lock to the id that the claim has now
	Tick                 // the time of Claim.Alarm has come, or a round's time is over
	Audible              // the nodes whose wake-ups reach this client are now Nodes
	Renew                // start a round of renewals with TTL
	Release              // give up what is held or sought
)

// Event is one thing that happened to a Claim.
type Event struct {
	Kind  Kind
	Of    AskKind // answers: what was asked
	Node  int
	ID    uint32 // answers: Claim.ID when the request was sent
	Epoch uint8  // answers: Claim.Epoch[Node] when the request was sent
	At    int64  // now
	Sent  int64  // answers: when the request was handed on for sending
	TTL   int64  // Granted, Kept: the TTL of the request; Renew: the new one; Woken: of the hand-over
	Token int64  // Granted, Woken: base of the node's block; NotMine: its counter; Woken, NotMine: 0, if it is not told
	Left  int64  // Denied: until the lock lapses; negative: never
	Nodes Set    // Start, Audible
	Rand  uint32 // for jitter
	// Queued says of Denied that the node keeps a place for this id.
	Queued bool
	// Strange says of Denied that the lock is shared with others, who know neither queue
	// nor wake-ups: its next release may wake nobody.
	Strange bool
	// Unsent says of Failed that the node cannot have seen the request.
	Unsent bool
	// Fatal says of Failed that asking again is pointless: the server answered
	// with an error that an operator must mend.
	Fatal bool
}

// Outcome is what a Step decided for the caller.
type Outcome uint8

// The outcomes.
const (
	None        Outcome = iota
	Won                 // the lock is held, with Claim.Token, until Claim.Trusted
	Busy                // a quorum answered, and another holds the lock
	Unavailable         // too few nodes answered
	Renewed             // a quorum kept the lock: see Claim.Trusted
	NotRenewed          // this round found no quorum; the old trust stands
	Lost                // the nodes have said that the lock cannot be kept
	Released            // a quorum has freed the lock
	NotReleased         // too few nodes answered the release
)

// Actions is what a Step wants done, in the order of its fields.
type Actions struct {
	Release  Set  // for good, under the id so far
	FreshID  bool // take a new id: Claim.ID has changed
	GiveBack Set  // release, but keep the place in the queue
	Acquire  Set
	Stamped  Set // those of Acquire that shall queue the id
	Commit   Set // with Claim.Token
	Renew    Set
	Reclaim  Set // while the counter there is Claim.Base
	// Subscribe asks for wake-ups from the nodes; Audible tells when they can
	// be heard.
	Subscribe bool
	Outcome   Outcome
	// Obstacle is why a round has got no lock, Busy or Unavailable, where the claim
	// asks again.
	Obstacle Outcome
}

// Claim is one client's claim to one lock, from the first request to the
// release. Its zero value with N, TTL and, for a claim that waits, Stamp set is
// ready for Start. It is a plain value: copying it copies the claim.
type Claim struct {
	N      int8  // number of nodes
	Phase  Phase // where it stands
	ID     uint32
	TTL    int64
	Stamp  int64 // place in the queue, the same on every node; 0: does not wait
	Adopts bool  // asks for the lock that another id has, which is not going to answer for it
	Brief  bool  // whoever holds the lock soon renews what is trusted for less than half of TTL
	Token  int64 // fixed once a quorum has granted; 0 before

	Asked   Set // an acquire or, when held, a renewal or, when over, a release is unanswered
	Granted Set // the lock there is this id's
	Owed    Set // a give-back is unanswered: what the node grants may be freed by it
	Agreed  Set // seeking: the token stands there; held: kept in this round; over: freed
	Pending Set // a commit is unanswered
	Denied  Set // the lock there is another's
	Failed  Set // no answer
	Fatal   Set // an answer that will not change
	Queued  Set // the id has a place in the queue there
	Back    Set // given back and not asked since: the lock there may be nobody's
	Told    Set // granted by a wake-up alone
	Free    Set // held: nobody has the lock there, but somebody had it since; so this round has shown
	Ripe    Set // held: so an earlier round has shown, and Base is still what it was
	Taken   Set // held: another has the lock there; so this round has shown
	Heard   Set // nodes whose wake-ups reach this client

	Queueing bool // asks with the stamp
	Untold   bool // held, over: the round's outcome has not been told
	AtRisk   bool // held: the last round that was finished has found a quorum and no more
	Polls    uint8
	Again    uint8 // held: how often nodes that are not this id's were asked again since Renew

	// Sends counts per node the requests of this id that may have been
	// executed: a node with none needs no release.
	Sends [MaxNodes]uint8
	// Epoch counts per node the give-backs: an answer from before one is void.
	Epoch [MaxNodes]uint8
	Base  [MaxNodes]int64 // first token of the node's block, where granted; its counter, where Free or Ripe
	Until [MaxNodes]int64 // the node keeps the lock at least until then, where granted
	AskBy [MaxNodes]int64 // then the request to the node counts as failed, where one is out
	// Heeded is when the last request of this id was sent that the node has answered.
	Heeded [MaxNodes]int64

	Trust    int64 // held: a quorum keeps the lock until then; 0: none has yet
	Round    int64 // held: when this round of renewals began
	Changed  int64 // held: when the TTL last changed
	Left     int64 // shortest time to expiry that a denial reported; 0: none did
	Trip     int64 // longest round trip seen lately
	Patience int64 // then an incomplete hand-over is given back; 0: none is under way
	Rest     int64 // then everybody is asked again; 0: not resting
}

// Detached is a claim to a lock that another client has left standing: it has only the
// id. It can be renewed while a quorum has it, and released; where a node has lost it,
// it stays lost.
func Detached(n int, ttl int64) Claim {
	c := Claim{N: int8(n), TTL: ttl, Phase: Held}
	for i := range n {
		c.Sends[i] = sendsKnown
	}
	return c
}

// Step applies e to c. It is a pure function: the same claim and event always
// give the same result.
func Step(c Claim, e Event) (Claim, Actions) {
	var a Actions
	if e.Kind.answer() && (e.ID != c.ID || e.Epoch != c.Epoch[e.Node]) {
		return c, a // released or given back after the request: what it says is void
	}
	c.count(&e)
	switch c.Phase {
	case Seeking:
		c.seek(&e, &a)
	case Held:
		c.hold(&e, &a)
	case Over:
		c.end(&e, &a)
	}
	if c.Phase != Seeking {
		c.Patience, c.Rest = 0, 0
	}
	return c, a
}

// Alarm is when the claim wants a Tick; 0 for never.
func (c *Claim) Alarm() int64 {
	alarm := soonest(c.Patience, c.Rest)
	for n := range (c.Asked | c.Pending).Nodes {
		alarm = soonest(alarm, c.AskBy[n])
	}
	return alarm
}

// soonest is the earlier of two times, of which 0 is never.
func soonest(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// Trusted is until when a held lock can be relied on: a quorum of nodes keeps
// it at least so long.
func (c *Claim) Trusted() int64 { return c.Trust }

// Quorum is how many nodes decide.
func (c *Claim) Quorum() int { return Majority(int(c.N)) }

func (k Kind) answer() bool { return Granted <= k && k <= Failed }

func (c *Claim) all() Set { return All(int(c.N)) }

// possible says whether a quorum can still come from s.
func (c *Claim) possible(s Set) bool { return s.Len() >= c.Quorum() }

// kept is until when a quorum of the nodes in s keeps the lock: the quorum-th
// latest of their times.
func (c *Claim) kept(s Set) int64 {
	var best [MaxNodes + 1]int64 // descending
	for n := range s.Nodes {
		t := c.Until[n]
		for i := range best {
			if t > best[i] {
				t, best[i] = best[i], t
			}
		}
	}
	return best[c.Quorum()-1]
}

// touched is the nodes that may have executed a request of this id.
func (c *Claim) touched() Set {
	var s Set
	for n := range c.all().Nodes {
		if c.Sends[n] > 0 {
			s |= Only(n)
		}
	}
	return s
}

const sendsKnown = 255 // the node has certainly seen the id

// count keeps Sends and Trip up with the answers.
func (c *Claim) count(e *Event) {
	switch {
	case e.Kind == Woken:
		c.Sends[e.Node] = sendsKnown
	case !e.Kind.answer():
	case e.Kind == Failed && e.Unsent:
		if s := &c.Sends[e.Node]; *s > 0 && *s < sendsKnown {
			*s--
		}
	case e.Kind == Failed:
	default:
		c.Sends[e.Node] = sendsKnown
		// One that is slow for once, as in an outage, is soon forgotten.
		c.Trip = max(min(e.At-e.Sent, RequestTimeout(c.TTL)), c.Trip-c.Trip/8)
		c.Heeded[e.Node] = max(c.Heeded[e.Node], e.Sent)
	}
}

// send counts requests to the nodes in s that can leave something behind.
func (c *Claim) send(s Set) {
	for n := range s.Nodes {
		if c.Sends[n] < sendsKnown {
			c.Sends[n]++
		}
	}
}

// expect sets the deadline of requests to the nodes in s that leave at at.
func (c *Claim) expect(s Set, at int64) {
	for n := range s.Nodes {
		c.AskBy[n] = at + RequestTimeout(c.TTL)
	}
}

// silent is the nodes whose request has run out of time.
func (c *Claim) silent(at int64) Set {
	var s Set
	for n := range (c.Asked | c.Pending).Nodes {
		if at >= c.AskBy[n] {
			s |= Only(n)
		}
	}
	return s
}

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
	c.Denied &^= s // what an earlier round heard says nothing of this one
	c.Failed &^= s
	c.send(s)
	c.Rest = 0
	if s == c.all() {
		c.Left = 0
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
	if !c.handed(e, n) {
		c.ask(n|others, e.At, a)
		return
	}
	c.vote(e, n, a)
	if c.decide(e, a); c.Phase == Seeking && !a.FreshID {
		c.ask(others, e.At, a)
	}
}

// handed says whether a wake-up is as good as an answer that grants the lock, and
// until when. The node sent it after the last answer that has arrived, and so handed
// the lock over after it was sent what it answered there: in order, or a hand-over
// from before a give-back would count (trace C7). Enough must be left for the first
// renewal, also where round trips are slow or this process gets little time.
func (c *Claim) handed(e *Event, n Set) bool {
	e.Sent = c.Heeded[e.Node]
	e.TTL = min(e.TTL, HandOver(c.TTL)) // a request that is out may shorten what the last holder gave
	left := e.Sent + e.TTL - Drift(e.TTL) - e.At
	return c.Brief && e.Token != 0 && e.Sent != 0 && c.Owed&n == 0 && left >= max(e.TTL/2, 8*c.Trip)
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
		c.left(e)
		return
	}
	c.Denied &^= n
	c.Queued &^= n
	if c.Base[e.Node] != e.Token {
		c.drop(n) // the node forgot the lock meanwhile, and granted it anew
	}
	c.Granted |= n
	c.Told &^= n
	if e.Kind == Woken {
		c.Told |= n
	}
	c.Base[e.Node] = e.Token
	c.Until[e.Node] = max(c.Until[e.Node], e.Sent+e.TTL-Drift(e.TTL))
	if c.Token != 0 {
		c.settle(e.Node, e.At, a)
	}
}

// left notes how soon a denial's lock lapses, or is worth another try.
func (c *Claim) left(e *Event) {
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

// settle brings a granted node to the fixed token, where it can be.
func (c *Claim) settle(node int, at int64, a *Actions) {
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

// drop forgets what the nodes in s granted.
func (c *Claim) drop(s Set) {
	c.Granted &^= s
	c.Agreed &^= s
	c.Pending &^= s
	c.Told &^= s
	for n := range s.Nodes {
		c.Until[n] = 0
	}
}

// fail counts a request without an answer.
func (c *Claim) fail(e *Event, n Set) {
	switch {
	case e.Of == AskCommit, c.Told&n != 0:
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
	if s := c.silent(e.At); s != 0 {
		c.drop(s & (c.Pending | c.Told))
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
	if c.Token == 0 {
		c.elect(e.At, a)
	}
	if c.Token != 0 && c.possible(c.Agreed) {
		trust := c.kept(c.Agreed)
		if told := c.Told & c.Agreed; told != 0 && trust-e.At < HandOver(c.TTL)/4 {
			c.ask(told&^c.Asked, e.At, a) // too little is left to renew in
			return
		}
		if trust > e.At {
			c.Phase, c.Trust = Held, trust
			c.Asked, c.Pending, c.Denied, c.Failed, c.Fatal = 0, 0, 0, 0, 0
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

// elect fixes the token: the base that a quorum shares, or, as soon as a
// quorum has granted, the highest one.
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
	c.Token = top
	for n := range c.Granted.Nodes {
		c.settle(n, at, a)
	}
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
	a.Subscribe = !c.Queueing // also in an outage: nodes that come back are heard, and asked at once
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
// same place in the queue.
func (c *Claim) renounce(a *Actions) {
	a.Release |= c.touched()
	a.FreshID = true
	*c = Claim{
		N: c.N, ID: c.ID + 1, TTL: c.TTL, Stamp: c.Stamp,
		Brief: c.Brief, Fatal: c.Fatal, Heard: c.Heard, Queueing: c.Queueing, Polls: c.Polls, Trip: c.Trip,
	}
}

// over ends the claim.
func (c *Claim) over(at int64, a *Actions) {
	c.Phase = Over
	a.Release |= c.touched()
	c.Asked, c.Pending = a.Release, 0
	c.Agreed = c.all() &^ a.Release
	c.Untold = true
	c.expect(c.Asked, at)
}

// fallback is how long a queued waiter rests when no wake-up comes.
func (c *Claim) fallback(rand uint32) int64 {
	d := fallbackMost
	if c.Left != 0 {
		d = min(c.Left, fallbackMost)
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

// hold is the phase in which the lock is kept.
func (c *Claim) hold(e *Event, a *Actions) {
	n := Only(e.Node)
	if c.Trust != 0 && e.At >= c.Trust && e.Kind != Release {
		c.lose(e.At, a) // however good the news: others may have had the lock
		return
	}
	switch e.Kind {
	case Renew:
		c.renew(e, a)
	case Woken:
		// The node lost the lock or was never granted: it has come round.
		if !c.brief(e.At) {
			a.Renew |= n
		}
		if 0 < e.Token && e.Token < c.Token {
			a.Commit |= n
		}
	case Release:
		c.over(e.At, a)
		return
	case Granted: // late, after the commit: kept as redundancy
		c.Base[e.Node] = e.Token
		c.keep(e)
		if e.Token < c.Token {
			a.Commit |= n
		}
	case Denied, Refused:
		c.drop(n)
	case Kept:
		c.Denied &^= n
		c.Free &^= n
		c.Ripe &^= n
		c.Taken &^= n
		c.keep(e)
		if e.Sent >= c.Round {
			c.Asked &^= n
			c.Agreed |= n & c.Granted
		}
	case NotMine:
		c.drop(n)
		c.Asked &^= n
		c.Denied |= n
		// A round that nobody awaits does not end it: its holder would not hear of that.
		if c.Untold && !c.possible(c.all()&^c.Denied) {
			c.lose(e.At, a)
			return
		}
		c.displaced(e, n)
	case Freed:
		c.Owed &^= n
	case Failed:
		if (e.Of == AskRenew || e.Of == AskReclaim) && e.Sent >= c.Round {
			c.Asked &^= n
		}
	case Tick: // whoever holds the lock says when a round is over
		c.Asked = 0
	}
	c.tell(Renewed, NotRenewed, a)
	c.regain(e.At, a)
}

// displaced notes that a node is somebody else's, or was since.
func (c *Claim) displaced(e *Event, n Set) {
	switch {
	case e.Sent < c.Round:
	case e.Token == 0:
		c.Ripe &^= n
		c.Taken |= n
	case c.Ripe&n == 0 || c.Base[e.Node] != e.Token:
		c.Ripe &^= n
		c.Free |= n
		c.Base[e.Node] = e.Token
	}
}

// regain asks for the nodes that others have had since, once a quorum has kept the lock
// in this round. Those others had no quorum, if the node was free before the round began
// and nobody has had it since: that is what Ripe is for. For a node that was found free
// in this round another one begins at once, as rivals may not leave it alone for long.
// Where somebody has a partial grant at the moment, the node is asked again, for it is
// soon given back (trace C8).
func (c *Claim) regain(at int64, a *Actions) {
	if c.Token == 0 || !c.possible(c.Agreed) {
		return
	}
	a.Reclaim = c.Ripe
	c.Asked |= c.Ripe
	c.expect(c.Ripe, at)
	c.Ripe = 0
	if c.Free|c.Taken == 0 || c.Again == againMost {
		return
	}
	c.Again++
	if c.Free == 0 {
		a.Renew |= c.Taken
		c.Asked |= c.Taken
		c.expect(c.Taken, at)
		c.Taken = 0
		return
	}
	c.round(c.all()&^(c.Free|a.Reclaim), at, a)
}

// round begins a round of renewals on the nodes in s; on the others there is nothing to
// be renewed.
func (c *Claim) round(s Set, at int64, a *Actions) {
	c.Round = at
	c.Ripe |= c.Free
	c.Free, c.Taken = 0, 0
	c.Asked, c.Agreed, c.Denied = s|a.Reclaim, 0, c.all()&^s
	c.expect(s, at)
	a.Renew |= s
	c.send(s)
}

// brief says that all nodes are about to be asked for a renewal, the first.
func (c *Claim) brief(at int64) bool { return c.Brief && c.Round == 0 && c.Trust-at < c.TTL/2 }

// lose ends a claim that was held.
func (c *Claim) lose(at int64, a *Actions) {
	a.Outcome = Lost
	c.over(at, a)
}

// renew starts a round of renewals. A shorter TTL counts at once, for the
// nodes may have it before they answer.
func (c *Claim) renew(e *Event, a *Actions) {
	c.assess(e.At)
	until := e.At + e.TTL - Drift(e.TTL)
	for n := range c.Granted.Nodes {
		c.Until[n] = min(c.Until[n], until)
	}
	c.Trust = min(c.Trust, until)
	if e.TTL != c.TTL {
		c.TTL, c.Changed = e.TTL, e.At
	}
	c.Untold, c.Again = true, 0
	c.round(c.all(), e.At, a)
}

// assess says what the round that is over has shown: that losing one more node costs
// the lock. A round that is followed so soon that answers to it are still on their way
// shows nothing, unless enough have come. Nor does it where no node can be spared at
// the best.
func (c *Claim) assess(at int64) {
	if c.Round == 0 || int(c.N) == c.Quorum() {
		return
	}
	more := c.Agreed.Len() > c.Quorum()
	if more || c.Asked&^c.silent(at) == 0 {
		c.AtRisk = !more
	}
}

// keep notes that the node of an answer has the lock, and until when. What was
// asked before the TTL changed says nothing of how long it has it now, and a
// give-back that is still out may take it away at any time (trace C3).
func (c *Claim) keep(e *Event) {
	n := Only(e.Node)
	if c.Owed&n != 0 {
		return
	}
	c.Granted |= n
	if e.Sent >= c.Changed {
		ttl := min(e.TTL, c.TTL)
		c.Until[e.Node] = max(c.Until[e.Node], e.Sent+ttl-Drift(ttl))
	}
	c.Trust = max(c.Trust, c.kept(c.Granted))
}

// end is the phase after the last release.
func (c *Claim) end(e *Event, a *Actions) {
	n := Only(e.Node)
	switch e.Kind {
	case Freed:
		c.Asked &^= n
		c.Agreed |= n
	case Failed:
		if e.Of == AskRelease {
			c.Asked &^= n
		}
	case Tick:
		c.Asked &^= c.silent(e.At)
	case Woken:
		a.Release |= n
	case Release: // it was lost, and nobody asked; what has been told is told again
		c.Untold = true
	}
	c.tell(Released, NotReleased, a)
}

// tell reports a round's outcome, once.
func (c *Claim) tell(good, bad Outcome, a *Actions) {
	switch {
	case !c.Untold:
	case c.possible(c.Agreed):
		a.Outcome, c.Untold = good, false
	case !c.possible(c.Agreed | c.Asked):
		a.Outcome, c.Untold = bad, false
	}
}
