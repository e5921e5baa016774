package engine

import "github.com/holdfast-go/holdfast/internal/quorum"

// Request is one request to one node. The node calls exactly one of the answers, once,
// and does not touch the request afterwards.
type Request struct {
	quorum.Ask

	Lock     *Lock
	Deadline int64 // Engine.Now after which it is pointless to send it
	NoWait   bool  // its caller does not wait: a node that hangs is no use, even if no other can replace it

	claim *claim
}

// Lock names one lock for the nodes.
type Lock struct {
	Name              string
	Key, Fence, Queue string // as Config.Keys gave them
	Counter           int    // which of the counters that a node has for all locks Fence is; -1: none of them
	Moves             bool   // the keys may move to another server, one by one
}

// answer is a reply, or another event of a claim.
type answer struct {
	quorum.Reply

	woken string // Woken: the owner id that was

	answers bool // it is the answer to a request
	enters  bool // the claim's turn in its lane has come
	rings   bool // the claim's timer has
	begins  bool // told is to hear the next outcome
	told    func(quorum.Outcome)
	sent    chan struct{} // not an event: closed when those before have been carried out
}

// event is e for a claim.
func event(e quorum.Event) answer { return answer{Reply: quorum.Reply{Event: e}} }

// Granted answers acquire and adopt: the lock is the owner's, and base its first token.
func (r *Request) Granted(base int64) {
	r.Answer(quorum.Reply{Event: quorum.Event{Kind: quorum.Granted, Token: base}})
}

// Denied answers acquire and adopt: holder has the lock, for left ns unless it renews or,
// if left is negative, for ever. The waiters include the caller, if it has a stamp.
func (r *Request) Denied(left int64, holder string, waiters int) {
	r.Answer(quorum.Reply{Event: quorum.Event{Kind: quorum.Denied, Left: left, Waiters: waiters}, Holder: holder})
}

// Committed answers commit.
func (r *Request) Committed(ok bool) {
	kind := quorum.Refused
	if ok {
		kind = quorum.Accepted
	}
	r.Answer(quorum.Reply{Event: quorum.Event{Kind: kind}})
}

// Kept answers renew: the lock stands.
func (r *Request) Kept(waiters int) {
	r.Answer(quorum.Reply{Event: quorum.Event{Kind: quorum.Kept, Waiters: waiters}})
}

// NotMine answers renew: another owner has the lock, or nobody.
func (r *Request) NotMine() { r.Answer(quorum.Reply{Event: quorum.Event{Kind: quorum.NotMine}}) }

// Freed answers release and give-back.
func (r *Request) Freed() { r.Answer(quorum.Reply{Event: quorum.Event{Kind: quorum.Freed}}) }

// Fail answers any request that got no answer, or an error.
func (r *Request) Fail(f Failure) {
	r.Answer(quorum.Reply{Event: quorum.Event{Kind: quorum.Failed, Unsent: f.Unsent, Fatal: f.Fatal}, Err: f.Err})
}

// Failure says how a request failed.
type Failure struct {
	Err error
	// Unsent: the node cannot have seen it.
	Unsent bool
	// Fatal: the server refused it, and will until an operator changes something.
	Fatal bool
}

// Answer answers r.
func (r *Request) Answer(reply quorum.Reply) {
	c := r.claim
	a := answer{Reply: r.Reply(reply), answers: true}
	if a.Kind == quorum.Denied {
		a.Strange = c.engine.shared != nil || quorum.ClientOf(a.Holder) == ""
		if a.Queued {
			a.Waiters = max(a.Waiters-1, 0)
		}
	}
	*r = Request{}
	c.engine.requests.Put(r)
	c.post(a)
}
