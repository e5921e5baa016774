package quorum

// Phase is the state of a Claim.
type Phase uint8

// The phases of a Claim.
const (
	Seeking Phase = iota // asks, rests between rounds, commits
	Held                 // a quorum has granted the lock; renews
	Over                 // released, lost or given up: the id is never used again
)

// Kind is the type of an Event.
type Kind uint8

// The events of a Claim. An event with a node is an answer, or replaces one.
const (
	Start              Kind = iota // ask for the lock; the first event
	Granted                        // acquire: this id has the lock; Token is the node's first token
	Denied                         // acquire: another id has the lock, for the time Left
	Accepted                       // commit: the lock has the token
	Refused                        // commit: the lock keeps another token or owner
	Kept                           // renew: this id has the lock, still or again
	NotMine                        // renew: another id has the lock, or it is free
	Freed                          // release, give-back: done
	Failed                         // no answer to the request Of, or an error
	Woken                          // the node has handed the lock to the present id of the claim
	Tick                           // the time of Claim.Alarm has come, or a round has run out of time
	SubscriptionChange             // Nodes are the nodes whose wake-ups reach this client from now on
	Renew                          // start a round of renewals with TTL
	Release                        // give up the lock, or the attempt
)

// Event is one input of a Claim.
type Event struct {
	Kind  Kind
	Of    AskKind // answers: the kind of the request
	Node  int
	ID    uint32 // answers: Claim.ID when the request was sent
	Epoch uint8  // answers: Claim.Epoch[Node] when the request was sent
	At    int64  // the present time
	Sent  int64  // answers: when the request was handed over for sending
	TTL   int64  // Granted, Kept: the TTL of the request; Renew: the new TTL; Woken: the TTL of the hand-over; Release: Ask.MinHold
	Token int64  // Granted, Woken: the first token that the node gave; Woken: 0 if the message has none
	Left  int64  // Denied: time until the lock expires; negative: it never expires
	Nodes Set    // Start, SubscriptionChange
	Rand  uint32 // for jitter
	// Waiters, with Denied and Kept, is the number of waiting ids, including the client's own.
	Waiters int
	// Queued, with Denied, reports that this id has a place in the node's queue.
	Queued bool
	// Foreign, with Denied, reports that other programs use this lock too, without queue and wake-ups: its
	// next release may wake nobody.
	Foreign bool
	// Unsent, with Failed, reports that the node cannot have received the request.
	Unsent bool
	// Fatal, with Failed, reports that asking again is pointless: an operator has to fix the cause of the
	// server's error.
	Fatal bool
}

// Outcome is the result of a Step for the caller.
type Outcome uint8

// The outcomes.
const (
	None        Outcome = iota
	Won                 // the lock is held, with Claim.Token, until Claim.TrustedUntil
	Busy                // a quorum answered, and another client holds the lock
	Unavailable         // too few nodes answered
	Renewed             // a quorum kept the lock: see Claim.TrustedUntil
	NotRenewed          // this round found no quorum; the earlier trust still counts
	Lost                // the lease cannot be kept
	Released            // a quorum has freed the lock
	NotReleased         // too few nodes answered the release
)

// Actions lists the requests and other effects of a Step. The fields are in the order of execution.
type Actions struct {
	Release  Set  // final, under the id before the Step
	FreshID  bool // take a new id: Claim.ID has changed
	GiveBack Set  // release, but keep the place in the queue
	Acquire  Set
	Stamped  Set // nodes of Acquire that put the id into their queue
	Commit   Set // with Claim.Token
	Renew    Set
	Restore  Set // nodes of Renew that restore the lock if it is free there
	// Subscribe asks for the nodes' wake-ups. A SubscriptionChange follows when they arrive.
	Subscribe bool
	Outcome   Outcome
	// Obstacle is the reason why a round failed, Busy or Unavailable, if the claim asks again later.
	Obstacle Outcome
}

// Claim is one client's claim to one lock, from the first request to the release. A zero Claim with N, TTL
// and, for a claim that waits, Stamp is ready for Start. It is a plain value: copying it copies the claim.
type Claim struct {
	N      int8 // number of nodes
	Phase  Phase
	ID     uint32
	TTL    int64
	Stamp  int64 // place in the queue, the same on every node; 0: does not wait
	Adopts bool  // takes over the lock of another id, which does not use it any more
	Renews bool  // the holder will soon renew a lease with less than half of TTL left
	Token  int64 // set once a quorum has granted (chooseToken), final once a quorum has it (decideOutcome: Won); 0 before

	Granted   Set   // nodes on which this id has the lock
	Owed      Set   // nodes that have not answered a give-back, which may still free what they grant
	RoundTrip int64 // longest recent round trip

	// Sends counts, per node, the requests of this id that may have been executed. A node with 0 needs no
	// release.
	Sends [MaxNodes]uint8
	// Epoch counts the give-backs per node. An answer to a request of an earlier epoch is void.
	Epoch    [MaxNodes]uint8
	Base     [MaxNodes]int64 // per granted node, the first token that it gave
	Until    [MaxNodes]int64 // per granted node, the time until which it is certain to keep the lock
	AnswerBy [MaxNodes]int64 // per node with an open request, the time at which the request counts as failed
	// Answered is the send time of the last request of this id that the node has answered.
	Answered [MaxNodes]int64

	Seek
	Hold
	End

	Unreported bool // held, over: the outcome of the present round has not been reported yet
}

// Seek is the state of a claim while it seeks the lock.
type Seek struct {
	Asked      Set // nodes with an unanswered acquire
	Agreed     Set // nodes on which the lock has the token
	Pending    Set // nodes with an unanswered commit
	Denied     Set // nodes on which another id has the lock
	Failed     Set // nodes without an answer
	Fatal      Set // nodes with an error that lasts
	Queued     Set // nodes on which the id has a place in the queue
	GivenBack  Set // nodes that got a give-back and no request since: the lock may be free there
	HandedOver Set // nodes whose grant is known only from a wake-up
	Subscribed Set // nodes whose wake-ups reach this client

	Queueing bool  // acquires carry the stamp
	Polls    uint8 // number of rests without a place in the queue

	MaxWaiters int   // highest number of waiters in any denial
	MinLeft    int64 // shortest remaining time in any denial; 0: no denial yet
	GiveBackAt int64 // time at which an incomplete hand-over is given back; 0: none is in progress
	RestUntil  int64 // time at which all nodes are asked again; 0: not resting
}

// Hold is the state of a claim while it holds the lock.
type Hold struct {
	Renewing Set // nodes with an unanswered renewal of this round
	Kept     Set // nodes that have kept the lock in this round
	Missing  Set // nodes that have answered in this round that this id does not have the lock

	AtRisk  bool  // the last finished round found exactly a quorum
	Regains uint8 // how often Missing nodes have been asked again since Renew

	TrustUntil int64 // a quorum keeps the lock until then; 0: none yet
	RoundStart int64 // start of this round of renewals
}

// End is the state of a claim in the phase Over.
type End struct {
	Releasing Set // nodes with an unanswered release
	Released  Set // nodes that have released the lock, or never had a request

	MinHold int64 // Ask.MinHold of the release
}

// Detached returns a claim to a lock that another client has detached, of which it knows only the id. The
// claim can be renewed while a quorum has the lock, and released. A node that has lost the lock does not get
// it back.
func Detached(n int, ttl int64) Claim {
	c := Claim{N: int8(n), TTL: ttl, Phase: Held}
	for i := range n {
		c.Sends[i] = sendsCertain
	}
	return c
}

// Step applies e to c. It depends on nothing else: the same claim and event always give the same result.
func (c *Claim) Step(e Event) (a Actions) {
	if e.Kind.isAnswer() && (e.ID != c.ID || e.Epoch != c.Epoch[e.Node]) {
		return a // a release or give-back followed the request, so its answer does not count
	}
	c.countAnswer(&e)
	switch c.Phase {
	case Seeking:
		c.stepSeeking(&e, &a)
	case Held:
		c.stepHeld(&e, &a)
	case Over:
		c.stepEnded(&e, &a)
	}
	if c.Phase != Seeking {
		c.GiveBackAt, c.RestUntil = 0, 0
	}
	return a
}

// Alarm returns the time at which the claim needs a Tick; 0: never.
func (c *Claim) Alarm() int64 {
	alarm := earlierTime(c.GiveBackAt, c.RestUntil)
	for n := range c.Unanswered().Nodes {
		alarm = earlierTime(alarm, c.AnswerBy[n])
	}
	return alarm
}

// earlierTime returns the earlier of two times. The time 0 means never.
func earlierTime(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// TrustedUntil returns the time until which the holder may rely on the lock: a quorum of nodes keeps it at
// least that long.
func (c *Claim) TrustedUntil() int64 { return c.TrustUntil }

// Quorum returns the number of nodes that form a quorum.
func (c *Claim) Quorum() int { return Majority(int(c.N)) }

func (k Kind) isAnswer() bool { return Granted <= k && k <= Failed }

func (c *Claim) allNodes() Set { return All(int(c.N)) }

// canBeQuorum reports whether the nodes in s are enough for a quorum.
func (c *Claim) canBeQuorum(s Set) bool { return s.Len() >= c.Quorum() }

// notePromise records until when the node of an answer is certain to keep the lock. The TTL counts from the
// sending of the request: the answer may be slow.
func (c *Claim) notePromise(e *Event) {
	c.Until[e.Node] = max(c.Until[e.Node], e.Sent+e.TTL-Drift(e.TTL))
}

// keptUntil returns the time until which a quorum of the nodes in s keeps the lock: the quorum-th latest of
// their times.
func (c *Claim) keptUntil(s Set) int64 {
	var best [MaxNodes + 1]int64 // in descending order
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

// touchedNodes returns the nodes that may have executed a request of this id.
func (c *Claim) touchedNodes() Set {
	var s Set
	for n := range c.allNodes().Nodes {
		if c.Sends[n] > 0 {
			s |= Only(n)
		}
	}
	return s
}

const sendsCertain = 255 // the node has certainly received a request of this id

// countAnswer updates Sends, RoundTrip and Answered from an answer.
func (c *Claim) countAnswer(e *Event) {
	switch {
	case e.Kind == Woken:
		c.Sends[e.Node] = sendsCertain
	case !e.Kind.isAnswer():
	case e.Kind == Failed && e.Unsent:
		if s := &c.Sends[e.Node]; *s > 0 && *s < sendsCertain {
			*s--
		}
	case e.Kind == Failed:
	default:
		c.Sends[e.Node] = sendsCertain
		// A single slow round trip, as in an outage, soon loses its effect.
		c.RoundTrip = max(min(e.At-e.Sent, RequestTimeout(c.TTL)), c.RoundTrip-c.RoundTrip/8)
		c.Answered[e.Node] = max(c.Answered[e.Node], e.Sent)
	}
}

// countSends counts a request to each node in s that may leave a lock or a queue entry behind.
func (c *Claim) countSends(s Set) {
	for n := range s.Nodes {
		if c.Sends[n] < sendsCertain {
			c.Sends[n]++
		}
	}
}

// setDeadlines sets the deadline of requests sent to the nodes in s at the time at.
func (c *Claim) setDeadlines(s Set, at int64) {
	for n := range s.Nodes {
		c.AnswerBy[n] = at + RequestTimeout(c.TTL)
	}
}

// Unanswered returns the nodes that have not answered yet: an acquire or a commit, and later a renewal or a
// release.
func (c *Claim) Unanswered() Set {
	return c.Asked | c.Pending | c.Renewing | c.Releasing
}

// overdueNodes returns the nodes that have not answered within the time of a request.
func (c *Claim) overdueNodes(at int64) Set {
	var s Set
	for n := range c.Unanswered().Nodes {
		if at >= c.AnswerBy[n] {
			s |= Only(n)
		}
	}
	return s
}

// dropGrants removes the grants of the nodes in s.
func (c *Claim) dropGrants(s Set) {
	c.Granted &^= s
	c.Agreed &^= s
	c.Kept &^= s
	c.Pending &^= s
	c.HandedOver &^= s
	for n := range s.Nodes {
		c.Until[n] = 0
	}
}
