package quorum

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
	Kept                 // renew: the lock is this id's, still or again
	NotMine              // renew: it is another's, or nobody's
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
	TTL   int64  // Granted, Kept: the TTL of the request; Renew: the new one; Woken: of the hand-over; Release: Ask.MinHold
	Token int64  // Granted, Woken: the first token that the node gave; Woken: 0, if it is not told
	Left  int64  // Denied: until the lock lapses; negative: never
	Nodes Set    // Start, Audible
	Rand  uint32 // for jitter
	// Waiters says of Denied and Kept how many ids wait, the client's own among them.
	Waiters int
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
	Anew     Set // those of Renew that set the lock again if it is free there
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
	Renews bool  // the holder soon renews what is trusted for less than half of TTL
	Token  int64 // chosen once a quorum has granted (elect), final when a quorum has it (decide: Won); 0 before

	Granted Set   // the lock there is this id's
	Owed    Set   // a give-back is unanswered: what the node grants may be freed by it
	Trip    int64 // longest round trip seen lately

	// Sends counts per node the requests of this id that may have been
	// executed: a node with none needs no release.
	Sends [MaxNodes]uint8
	// Epoch counts per node the give-backs: an answer from before one is void.
	Epoch [MaxNodes]uint8
	Base  [MaxNodes]int64 // the first token that the node gave, where granted
	Until [MaxNodes]int64 // the node keeps the lock at least until then, where granted
	AskBy [MaxNodes]int64 // then the request to the node counts as failed, where one is out
	// Answered is when the last request of this id was sent that the node has answered.
	Answered [MaxNodes]int64

	Seek
	Hold
	End

	Unreported bool // held, over: the outcome of the round has not been reported
}

// Seek is what a claim knows while it seeks.
type Seek struct {
	Asked   Set // an acquire is unanswered
	Agreed  Set // the token stands there
	Pending Set // a commit is unanswered
	Denied  Set // the lock there is another's
	Failed  Set // no answer
	Fatal   Set // an answer that will not change
	Queued  Set // the id has a place in the queue there
	Back    Set // given back and not asked since: the lock there may be nobody's
	Handed  Set // granted by a wake-up alone
	Heard   Set // nodes whose wake-ups reach this client

	Queueing bool  // asks with the stamp
	Polls    uint8 // rests without a place in the queue so far

	Crowd    int   // most waiters that a denial reported
	Left     int64 // shortest time to expiry that a denial reported; 0: none did
	Patience int64 // then an incomplete hand-over is given back; 0: none is under way
	Rest     int64 // then every node is asked again; 0: not resting
}

// Hold is what a claim knows while the lock is held.
type Hold struct {
	Renewing Set // a renewal of this round is unanswered
	Kept     Set // has kept the lock in this round
	Away     Set // has not, as the lock there is not this id's

	AtRisk bool  // the last round that was finished has found a quorum and no more
	Again  uint8 // how often nodes that are not this id's were asked again since Renew

	Trust int64 // a quorum keeps the lock until then; 0: none has yet
	Round int64 // when this round of renewals began
}

// End is what a claim knows that is over.
type End struct {
	Releasing Set // a release is unanswered
	Released  Set // has released the lock, or never had a request

	MinHold int64 // Ask.MinHold of the release
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

// Step applies e to c, and to nothing else: the same claim and event always
// give the same result.
func (c *Claim) Step(e Event) (a Actions) {
	if e.Kind.answer() && (e.ID != c.ID || e.Epoch != c.Epoch[e.Node]) {
		return a // released or given back after the request: what it says is void
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
	return a
}

// Alarm is when the claim wants a Tick; 0 for never.
func (c *Claim) Alarm() int64 {
	alarm := soonest(c.Patience, c.Rest)
	for n := range c.Unanswered().Nodes {
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

// promised notes until when the node of an answer keeps the lock at least: for the TTL from when
// it was asked, and not from its answer, which may be slow.
func (c *Claim) promised(e *Event) {
	c.Until[e.Node] = max(c.Until[e.Node], e.Sent+e.TTL-Drift(e.TTL))
}

// keptUntil is until when a quorum of the nodes in s keeps the lock: the quorum-th
// latest of their times.
func (c *Claim) keptUntil(s Set) int64 {
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
		c.Answered[e.Node] = max(c.Answered[e.Node], e.Sent)
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

// Unanswered is the nodes that still owe an answer: to an acquire or a commit, in the
// phases that follow to a renewal or a release.
func (c *Claim) Unanswered() Set {
	return c.Asked | c.Pending | c.Renewing | c.Releasing
}

// overdue is the nodes whose request has run out of time.
func (c *Claim) overdue(at int64) Set {
	var s Set
	for n := range c.Unanswered().Nodes {
		if at >= c.AskBy[n] {
			s |= Only(n)
		}
	}
	return s
}

// drop forgets what the nodes in s granted.
func (c *Claim) drop(s Set) {
	c.Granted &^= s
	c.Agreed &^= s
	c.Kept &^= s
	c.Pending &^= s
	c.Handed &^= s
	for n := range s.Nodes {
		c.Until[n] = 0
	}
}
