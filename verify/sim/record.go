package sim

import (
	"github.com/holdfast-go/holdfast/internal/quorum"
)

// Record lists what the nodes and clients of a run did about its one lock, in order. Package spec compares it
// with the specification. It has only what is visible from outside: requests, answers, and states of nodes.
// Times of requests are the simulation's, so they depend on no computation of a claim.
type Record struct {
	Nodes int
	TTL   int64 // ns, of each lease at first; the longest that a renewal asks for
	Steps []Step
}

// Step is one event. Kind decides which fields are set.
type Step struct {
	Kind  StepKind
	At    int64  // ns, by the simulation's clock
	Node  int    // the node, if there is one
	Owner string // the owner, if there is one

	From  string // Begins: owner of the adopted lease; "": none
	Stamp int64  // Begins: its place in the queue; 0: it does not wait

	Ask     quorum.Ask  // Executes
	Deaf    []string    // Executes, Forces: waiters on the node that do not listen to it
	Says    quorum.Kind // Executes: the answer
	Lock    quorum.Lock // Executes, Forces, Forgets: the node's state afterwards
	Keeps   int64       // Executes, Forces: minimal ns for which the node keeps the lock
	Lasts   int64       // Executes, Forces: ns until a hand-over expires
	Floor   int64       // Admits
	Token   int64       // Chooses, Wins, Spreads
	TTL     int64       // Renews: ns
	Trust   int64       // ns for which the client still trusts the lease; 0: it has none
	Of      int         // Hears, Wakes: step in which the node executed the request
	Sent    int64       // Hears, Wakes: send time of the last answered request
	Current bool        // Hears: the request belongs to the current round of renewals
}

// StepKind names the event of a step.
type StepKind int

// The kinds of a step. A client's step is recorded from what it sends, and from what it returns to its caller.
const (
	Begins    StepKind = iota // a client asks under a new owner
	Executes                  // a node executes a request
	Hears                     // a valid answer reaches its claim
	Wakes                     // a wake-up reaches a claim, which counts it as a grant
	Chooses                   // a client chooses the token and commits it
	Wins                      // a client returns the lease to its caller
	Spreads                   // a client commits its token on further nodes
	Renews                    // a client begins a round of renewals
	SetsAgain                 // a client asks a node to set the lock again
	Renewed                   // a client reports a renewed lease to its caller
	Uses                      // a caller has checked that it may trust the lease
	GivesBack                 // a client gives back a node's grant
	Ends                      // a client has released or lost the lease: the owner is over
	Lapses                    // a lock expires at a node
	Unnotes                   // a node's note about a forced owner expires
	Vacates                   // an owner's place in a node's queue expires
	Forgets                   // a node forgets everything
	Admits                    // a node is admitted
	Loses                     // a node loses the lock early
	Forces                    // an operator force-releases the lock at a node
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

// recordExecution records how n changed the lock since before.
func (n *node) recordExecution(before, after quorum.Lock, s Step) int {
	if n.w.cfg.Record == nil {
		return 0
	}
	s.Node, s.Lock = n.i, after
	for p := range before.Queue.Places {
		if p.Owner != s.Owner && !n.isListening(p.Owner) {
			s.Deaf = append(s.Deaf, p.Owner)
		}
	}
	if after.Owner != "" {
		s.Keeps = int64(float64((after.Until+1)*1000-n.wallClock()) * 1000 / n.rate) // the node drops the lock once its clock is past Until
	}
	return n.w.cfg.Record.addStep(n.w, s)
}

// recordLapse records what has expired on the node since the last access.
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

// recordedClaim is the record's state of a claim.
type recordedClaim struct {
	round    int                    // round of renewals, from 1
	renews   bool                   // a renewal was sent under this owner
	chosen   int64                  // token whose commit was sent
	answered [quorum.MaxNodes]int64 // by node: send time of the last answered request
	woken    int                    // step of the hand-over behind the current wake-up
}

// recordStart records that a claim asks under a new owner.
func (cl *claim) recordStart() {
	cl.rec = recordedClaim{}
	cl.c.w.cfg.Record.addStep(cl.c.w, Step{Kind: Begins, Owner: cl.owner, From: cl.from, Stamp: cl.st.Stamp})
}

// recordEvent records the effect of an event on a claim. before and owner are the values before the event.
// fresh means that the claim has a new owner since then.
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
			s.Trust = max(cl.c.worldTime(st.TrustedUntil())-w.now, 0)
		}
		rec.addStep(w, s)
	}
	switch n := e.Node; {
	case r != nil && e.Kind != quorum.Failed && e.ID == before.ID && e.Epoch == before.Epoch[n]:
		cl.rec.answered[n] = max(cl.rec.answered[n], r.began)
		s := Step{Kind: Hears, Node: n, Of: r.step, Sent: r.began, Current: r.round == cl.rec.round}
		if before.Phase == quorum.Seeking { // it trusts nothing yet
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

// recordActions records the next actions of a claim. same means that its owner is unchanged, and held that it
// has the lease.
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
