package engine

import "github.com/holdfast-go/holdfast/internal/quorum"

// Request is one request to one node. The node calls exactly one of the answer methods, once, and does not use
// the request afterwards.
type Request struct {
	quorum.Ask

	Lock     *Lock
	Deadline int64 // time, as in Engine.Now, after which sending is pointless
	NoWait   bool  // the caller does not wait: a hung node is skipped, even if no other can replace it

	claim *claim
}

// Lock names one lock for the nodes.
type Lock struct {
	Name              string
	Key, Fence, Queue string // from Config.Keys
	Counter           int    // index of Fence among the node's shared counters; -1: not shared by all locks
	Moves             bool   // the keys may move to another server, one by one
}

// answer is a reply, or another event of a claim.
type answer struct {
	quorum.Reply

	woken string // owner id in a Woken message

	isAnswer   bool // the answer to a request
	entersLane bool // the turn of the claim in its lane has come
	fromTimer  bool // the timer of the claim has fired
	fromCaller bool // onOutcome gets the next outcome
	onOutcome  func(quorum.Outcome)
	flushed    chan struct{} // not an event: closed when all events before it have been carried out
}

// eventAnswer wraps e in an answer.
func eventAnswer(e quorum.Event) answer { return answer{Reply: quorum.Reply{Event: e}} }

// Granted answers acquire and adopt: the owner has the lock, and base is its first token.
func (r *Request) Granted(base int64) {
	r.Answer(quorum.Reply{Event: quorum.Event{Kind: quorum.Granted, Token: base}})
}

// Denied answers acquire and adopt: holder has the lock, for left ns unless it renews or, if left is negative,
// forever. waiters includes the caller if the request has a stamp.
func (r *Request) Denied(left int64, holder string, waiters int) {
	r.Answer(quorum.Reply{Event: quorum.Event{Kind: quorum.Denied, Left: left, Waiters: waiters}, Holder: holder})
}

// Committed answers a commit. ok reports whether the node accepted it.
func (r *Request) Committed(ok bool) {
	kind := quorum.Refused
	if ok {
		kind = quorum.Accepted
	}
	r.Answer(quorum.Reply{Event: quorum.Event{Kind: kind}})
}

// Kept answers renew: the owner still has the lock.
func (r *Request) Kept(waiters int) {
	r.Answer(quorum.Reply{Event: quorum.Event{Kind: quorum.Kept, Waiters: waiters}})
}

// NotOwner answers renew: another owner has the lock, or it is free.
func (r *Request) NotOwner() { r.Answer(quorum.Reply{Event: quorum.Event{Kind: quorum.NotMine}}) }

// Freed answers release and give-back.
func (r *Request) Freed() { r.Answer(quorum.Reply{Event: quorum.Event{Kind: quorum.Freed}}) }

// Fail answers any request that failed or was not answered.
func (r *Request) Fail(f Failure) {
	r.Answer(quorum.Reply{Event: quorum.Event{Kind: quorum.Failed, Unsent: f.Unsent, Fatal: f.Fatal}, Err: f.Err})
}

// Failure is the reason why a request was not answered.
type Failure struct {
	Err error
	// Unsent reports that the node cannot have received the request.
	Unsent bool
	// Fatal reports that the server rejects the request until an operator changes something.
	Fatal bool
}

// Answer passes reply to the claim of r.
func (r *Request) Answer(reply quorum.Reply) {
	c := r.claim
	a := answer{Reply: r.Reply(reply), isAnswer: true}
	if a.Kind == quorum.Denied {
		a.Foreign = c.engine.yields != nil || quorum.ClientOf(a.Holder) == ""
		if a.Queued {
			a.Waiters = max(a.Waiters-1, 0)
		}
	}
	*r = Request{}
	c.engine.requestPool.Put(r)
	c.post(a)
}
