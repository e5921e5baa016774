package engine

import "github.com/holdfast-go/holdfast/internal/quorum"

// Request is one request to one node. Whoever receives it calls exactly one of
// the answers, once, and does not touch it afterwards.
type Request struct {
	Kind     quorum.Request
	Lock     *Lock
	Owner    string
	From     string // adopt: whose lock it is
	TTL      int64  // ns
	Token    int64  // reclaim: the counter
	Stamp    int64  // acquire, give-back: place in the queue, µs since 1970; 0: none
	Clock    string // acquire, adopt, renew: this client's wall clock, µs since 1970
	HandOver int64  // release, give-back: ns; 0: to nobody
	Sent     int64  // Engine.Now when it was handed to Node.Send
	Deadline int64  // Engine.Now after which it is pointless to send it
	NoWait   bool   // a node that hangs is no use, even if it may be the only one: who asks does not wait

	claim *claim
	node  int
	id    uint32
	epoch uint8
}

// Lock names one lock for the nodes.
type Lock struct {
	Name              string
	Key, Fence, Queue string // as Config.Keys gave them
}

// answer is an event with what the protocol core does not need to know.
type answer struct {
	quorum.Event
	holder  string
	waiters int
	err     error
	woken   string // the id that was

	begins bool // told is to hear the next outcome
	told   func(quorum.Outcome)
	sent   chan struct{} // not an event: closed when those before have been carried out
}

// Granted answers acquire and adopt: the lock is the owner's, and base its first token.
func (r *Request) Granted(base int64) {
	r.answer(answer{Event: quorum.Event{Kind: quorum.Granted, Token: base}})
}

// Denied answers acquire and adopt: holder has the lock, for left ns unless it renews or,
// if left is negative, for ever. Among the waiters is the asker, if it has a stamp.
func (r *Request) Denied(left int64, holder string, waiters int) {
	others := waiters
	if r.Stamp != 0 {
		others = max(others-1, 0)
	}
	r.answer(answer{
		Event: quorum.Event{
			Kind: quorum.Denied, Left: left, Queued: r.Stamp != 0,
			Strange: r.claim.engine.shared != nil || ClientOf(holder) == "",
		},
		holder: holder, waiters: others,
	})
}

// Committed answers commit.
func (r *Request) Committed(ok bool) {
	kind := quorum.Refused
	if ok {
		kind = quorum.Accepted
	}
	r.answer(answer{Event: quorum.Event{Kind: kind}})
}

// Kept answers renew and reclaim: the lock stands.
func (r *Request) Kept(waiters int) {
	r.answer(answer{Event: quorum.Event{Kind: quorum.Kept}, waiters: waiters})
}

// NotMine answers renew and reclaim: the lock is another's.
func (r *Request) NotMine() { r.answer(answer{Event: quorum.Event{Kind: quorum.NotMine}}) }

// Superseded answers renew: the lock is free, but was another's since; counter is the
// highest token promised.
func (r *Request) Superseded(counter int64) {
	r.answer(answer{Event: quorum.Event{Kind: quorum.NotMine, Token: counter}})
}

// Freed answers release and give-back.
func (r *Request) Freed() { r.answer(answer{Event: quorum.Event{Kind: quorum.Freed}}) }

// Fail answers any request that got no answer, or an error.
func (r *Request) Fail(f Failure) {
	r.answer(answer{
		Event: quorum.Event{Kind: quorum.Failed, Of: r.Kind, Unsent: f.Unsent, Fatal: f.Fatal},
		err:   f.Err,
	})
}

// Failure says what became of a request.
type Failure struct {
	Err error
	// Unsent: the node cannot have seen it.
	Unsent bool
	// Fatal: the server refused it, and will until somebody mends the server.
	Fatal bool
}

func (r *Request) answer(a answer) {
	a.Node, a.ID, a.Epoch, a.Sent, a.TTL = r.node, r.id, r.epoch, r.Sent, r.TTL
	c := r.claim
	*r = Request{}
	c.engine.requests.Put(r)
	c.post(a)
}
