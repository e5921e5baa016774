package sim

import (
	"github.com/holdfast-go/holdfast/internal/quorum"
)

// Record lists what the nodes and clients of a run did about its one lock, in order. Package spec
// compares it with the specification. It has only what can be seen from outside: requests, answers,
// and states of nodes. Times of requests are the laboratory's, so they rest on no computation of a
// claim.
type Record struct {
	Nodes int
	TTL   int64 // ns, of each lease at first; the longest that a renewal asks for
	Steps []Step
}

// Step is one thing that happened. Which fields it has is told by Kind.
type Step struct {
	Kind  StepKind
	At    int64  // ns, by the laboratory's clock
	Node  int    // what happens at a node, or is about one
	Owner string // the id that it is about

	From  string // Begins: the id whose lease is adopted; "": none
	Stamp int64  // Begins: its place in the queue; 0: it does not wait

	Ask     quorum.Ask  // Executes
	Deaf    []string    // Executes, Forces: waiters there that do not hear the node
	Says    quorum.Kind // Executes: the answer
	Lock    quorum.Lock // Executes, Forces, Forgets: what the node has then
	Keeps   int64       // Executes, Forces: ns that the node still keeps the lock for its owner, at least
	Lasts   int64       // Executes, Forces: ns that a hand-over stands
	Floor   int64       // Admits
	Token   int64       // Chooses, Wins, Spreads
	TTL     int64       // Renews: ns
	Trust   int64       // ns that the client goes on trusting the lease; 0: it does not hold one
	Of      int         // Hears, Wakes: the step in which the node executed what is answered
	Sent    int64       // Hears, Wakes: when the request was sent that is answered, or was last answered
	Current bool        // Hears: it was sent in the present round of renewals
}

// StepKind names the event of a step.
type StepKind int

// The kinds of a step. A client's are told by what it sends, and by what it tells its caller.
const (
	Begins    StepKind = iota // a client asks under a fresh id
	Executes                  // a node carries out a request
	Hears                     // an answer reaches the claim that asked, and is not void
	Wakes                     // a wake-up reaches a claim, which takes it for a grant
	Chooses                   // a client fixes the token and has it committed
	Wins                      // a client tells its caller that it has the lease
	Spreads                   // a client has its token committed where that is not needed for the lease
	Renews                    // a client begins a round of renewals
	SetsAgain                 // a client asks a node to set the lock again
	Renewed                   // a client tells its caller that the lease was renewed
	Uses                      // a caller has looked whether it may rely on the lease, and may
	GivesBack                 // a client gives back what a node granted
	Ends                      // a client releases, or has lost the lease: the id is over
	Lapses                    // the time of a lock is over at a node
	Unnotes                   // a node forgets that a lock was taken from the owner
	Vacates                   // a node drops the owner's place in the queue, as its client has not asked for long
	Forgets                   // a node forgets everything
	Admits                    // a node is admitted
	Loses                     // a node forgets the lock, before its time
	Forces                    // an operator takes the lock at a node from the owner
)

// addStep appends a step and returns its number.
func (r *Record) addStep(w *world, s Step) int {
	if r == nil {
		return 0
	}
	s.At = w.now
	r.Steps = append(r.Steps, s)
	return len(r.Steps) - 1
}

// recordExecution records what n has made of the lock before.
func (n *node) recordExecution(before, after quorum.Lock, s Step) int {
	if n.w.cfg.Record == nil {
		return 0
	}
	s.Node, s.Lock = n.i, after
	for p := range before.Queue.Places {
		if p.Owner != s.Owner && !n.hearsOwner(p.Owner) {
			s.Deaf = append(s.Deaf, p.Owner)
		}
	}
	if after.Owner != "" {
		s.Keeps = int64(float64((after.Until+1)*1000-n.wallClock()) * 1000 / n.rate) // it drops the lock once its clock is past Until
	}
	return n.w.cfg.Record.addStep(n.w, s)
}

// recordLapse records what the node has dropped since it last looked.
func (n *node) recordLapse(stored, now quorum.Lock) {
	if stored.Owner != "" && now.Owner == "" {
		n.w.cfg.Record.addStep(n.w, Step{Kind: Lapses, Node: n.i})
	}
	for p := range stored.Queue.Places {
		if now.Queue.Without(p.Owner) == now.Queue {
			n.w.cfg.Record.addStep(n.w, Step{Kind: Vacates, Node: n.i, Owner: p.Owner})
		}
	}
	for owner := range stored.Notes.Owners {
		if _, known := now.Notes.Until(owner); !known {
			n.w.cfg.Record.addStep(n.w, Step{Kind: Unnotes, Node: n.i, Owner: owner})
		}
	}
}

// recorded is the record's state of a claim.
type recorded struct {
	round    int                    // of renewals, from 1
	renews   bool                   // a request to renew has gone out under this id
	chosen   int64                  // the token whose commit has gone out
	answered [quorum.MaxNodes]int64 // when the last request was sent that the node has answered
	woken    int                    // the step that handed over the lock of the wake-up at hand
}

// recordStart records that a claim asks under a fresh id.
func (cl *claim) recordStart() {
	cl.rec = recorded{}
	cl.c.w.cfg.Record.addStep(cl.c.w, Step{Kind: Begins, Owner: cl.owner, From: cl.from, Stamp: cl.st.Stamp})
}

// recordEvent records what a claim has made of an event: before and owner are of before it, fresh says that
// it goes on under another owner since.
func (cl *claim) recordEvent(before *quorum.Claim, owner string, fresh bool, e *quorum.Event, do *quorum.Actions, r *request) {
	w, rec, st := cl.c.w, cl.c.w.cfg.Record, &cl.st
	if rec == nil {
		return
	}
	if e.Kind == quorum.Start {
		cl.recordStart()
		return
	}
	same := !fresh
	held := same && st.Phase == quorum.Held
	add := func(s Step) {
		s.Owner = owner
		if held {
			s.Trust = max(cl.c.laboratoryTime(st.TrustedUntil())-w.now, 0)
		}
		rec.addStep(w, s)
	}
	switch n := e.Node; {
	case r != nil && e.Kind != quorum.Failed && e.ID == before.ID && e.Epoch == before.Epoch[n]:
		cl.rec.answered[n] = max(cl.rec.answered[n], r.began)
		s := Step{Kind: Hears, Node: n, Of: r.step, Sent: r.began, Current: r.round == cl.rec.round}
		if before.Phase == quorum.Seeking { // it trusts nothing yet, whatever else this step brings
			s.Owner = owner
			rec.addStep(w, s)
		} else if before.Phase == quorum.Held {
			add(s)
		}
	case e.Kind == quorum.Woken && same && st.Granted.Has(n) && !before.Granted.Has(n):
		rec.addStep(w, Step{Kind: Wakes, Owner: owner, Node: n, Of: cl.rec.woken, Sent: cl.rec.answered[n]})
	}
	cl.recordActions(e, do, same, held, add)
	if !same || st.Phase == quorum.Over && before.Phase != quorum.Over {
		add(Step{Kind: Ends})
	}
	if !same {
		cl.recordStart()
	}
}

// recordActions records what a claim does next: same says that it goes on under its id, held that it has the lease.
func (cl *claim) recordActions(e *quorum.Event, do *quorum.Actions, same, held bool, add func(Step)) {
	st := &cl.st
	if do.Commit != 0 && same && st.Phase == quorum.Seeking && cl.rec.chosen != st.Token {
		cl.rec.chosen = st.Token
		add(Step{Kind: Chooses, Token: st.Token})
	}
	if do.Outcome == quorum.Won {
		add(Step{Kind: Wins, Token: st.Token})
	}
	if do.Commit != 0 && held && cl.rec.chosen != st.Token {
		cl.rec.chosen = st.Token
		add(Step{Kind: Spreads, Token: st.Token})
	}
	if e.Kind == quorum.Renew && do.Renew != 0 || do.Renew&^do.Restore != 0 && !cl.rec.renews {
		if e.Kind == quorum.Renew {
			cl.rec.round++
		}
		cl.rec.renews = true
		add(Step{Kind: Renews, TTL: st.TTL})
	}
	if do.Outcome == quorum.Renewed {
		add(Step{Kind: Renewed})
	}
	if do.Restore != 0 {
		add(Step{Kind: SetsAgain})
	}
	for n := range do.GiveBack.Nodes {
		add(Step{Kind: GivesBack, Node: n})
	}
}
