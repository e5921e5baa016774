package model

import (
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/session"
)

// cares says whether an answer still means something to the client: it would
// be void for another id or epoch, and once the claim is over nothing counts.
func (s *setup) cares(w *world, c, n int, a message) bool {
	cl := &w.clients[c]
	return cl.life == running && cl.claim.ID == uint32(a.id) && (a.of == wakeUp || cl.claim.Epoch[n] == a.epoch)
}

// least is the first token that a client may use at a node, as it knows.
func (s *setup) least(w *world, c, n int) int64 {
	switch {
	case s.mutant.lowTokens, s.frozen:
		return 0
	case w.members != nil:
		return w.members.clients[c][n].floor
	case s.slot && w.clients[c].since != 0:
		return quorum.Base(w.clients[c].since)
	case s.slot: // it went with the server
		return 0
	}
	return w.nodes[n].floor // no answer is of before it rose: the connection broke then
}

func (s *setup) hear(w *world, c, n int, a message) string {
	gate := session.Gate{Floor: s.least(w, c, n)}
	switch quorum.Kind(a.kind) {
	case quorum.Granted:
		if gate.CheckGrant(int64(a.token)) != nil {
			a = a.asFailed()
			w.nodes[n].wires[c].low = true
		}
	case quorum.Woken:
		a.token = int32(gate.Wake(quorum.Wake{Base: int64(a.token)}).Base)
	}
	lasts := span(a.brief)
	if a.of == wakeUp && s.spans {
		lasts = quorum.HandOver(ttl)
	}
	return s.event(w, c, quorum.Event{
		Kind: quorum.Kind(a.kind), Of: quorum.AskKind(a.of), Node: n, ID: uint32(a.id), Epoch: a.epoch,
		Sent: s.at(a.stage, a.round), TTL: lasts, Token: int64(a.token), Left: ttl, Queued: a.marked,
	})
}

// event brings an event to a client and carries out what it wants done.
func (s *setup) event(w *world, c int, e quorum.Event) string {
	cl := &w.clients[c]
	e.At = s.at(w.stage, cl.round)
	if s.mutant.keepID && e.Kind == quorum.Failed && e.Of == quorum.AskGiveBack {
		e.Kind = quorum.Freed
	}
	was := cl.claim
	next := was
	a := next.Step(e)
	s.mutate(was, &next, &e, &a)
	cl.claim = next
	for ask := range a.Asks(was.ID, &next, e.At, quorum.Owners{}) {
		m := message{kind: uint8(ask.Kind), id: uint8(ask.ID), epoch: ask.Epoch, round: cl.round, stage: w.stage}
		m.marked, m.brief, m.anew, m.token = ask.Stamp != 0, ask.TTL == brief, ask.Anew, int32(ask.Token)
		nd, gate := &w.nodes[ask.Node], session.Gate{Floor: s.least(w, c, ask.Node)}
		// A token of another lock may have shown that the counter is above the floor.
		gate.Above = !s.slot && !nd.wires[c].low && nd.lock.Fence >= gate.Floor-1
		if gate.Prepare(&ask) != nil {
			nd.wires[c].failures.push(m.failed())
			continue
		}
		m.least = int32(ask.Least)
		nd.wires[c].requests.push(m)
	}
	if next.Round == e.At && next.Phase == quorum.Held {
		cl.round++ // what is sent from now on is sent later
	}
	if e.Kind == quorum.Renew && s.after {
		cl.before = 0
		for o := range s.clients {
			if w.clients[o].token > cl.token {
				cl.before |= 1 << o
			}
		}
	}
	switch a.Outcome {
	case quorum.Renewed:
		for n := range s.nodes {
			w.nodes[n].away &^= 1 << c
		}
		if s.after && cl.before != 0 {
			return "a lease goes on after another was committed"
		}
	case quorum.Lost:
		if s.keeps && s.adopts == 0 {
			return "a lease is lost that a majority kept"
		}
	}
	if next.Phase == quorum.Over {
		cl.life = ended
	}
	if a.Outcome == quorum.Won {
		return s.won(w, c)
	}
	return ""
}

// heard is the nodes whose wake-ups reach a client.
func (s *setup) heard(c int) quorum.Set {
	if s.deaf&(1<<c) != 0 {
		return 0
	}
	return quorum.All(s.nodes)
}

// mutate switches rules of the client off.
func (s *setup) mutate(was quorum.Claim, next *quorum.Claim, e *quorum.Event, a *quorum.Actions) {
	if s.mutant.keepPartial && a.GiveBack != 0 {
		for n := range a.GiveBack.Nodes {
			next.Epoch[n]--
			next.Base[n], next.Until[n] = was.Base[n], far
			if e.Kind == quorum.Granted && e.Node == n {
				next.Base[n] = e.Token
			}
		}
		next.Granted |= a.GiveBack
		next.Owed &^= a.GiveBack
		next.Queued &^= a.GiveBack
		a.GiveBack = 0
	}
	if s.mutant.askOne && e.Kind == quorum.Woken && was.Phase == quorum.Seeking {
		other := a.Acquire &^ quorum.Only(e.Node)
		next.Asked &^= other &^ was.Asked
		a.Acquire &^= other
		a.Stamped &^= other
	}
	if s.mutant.follows && e.Kind == quorum.Renew {
		until := e.At + e.TTL - quorum.Drift(e.TTL)
		for n := range s.nodes {
			next.Until[n] = min(next.Until[n], until)
		}
		next.Trust = min(next.Trust, until)
	}
	switch {
	case s.mutant.regainNever:
		a.Renew &^= a.Anew
	case s.mutant.anewAtOnce:
		a.Anew = a.Renew
	}
	if s.mutant.ignoreOwed {
		next.Owed = 0
	}
	if s.mutant.stay && a.FreshID && !next.Queueing {
		*next = was
		next.Asked, next.Rest, next.Patience = 0, soon, 0
		*a = quorum.Actions{}
	}
}

// trusts says whether a client relies on its lease.
func (s *setup) trusts(w *world, c int) bool {
	cl := &w.clients[c]
	return cl.life == running && cl.claim.Phase == quorum.Held && (!s.timed() || cl.claim.Trust > s.at(w.stage, cl.round))
}

// overlap says whether two clients rely on their leases.
func (s *setup) overlap(w *world) bool {
	holders := 0
	for c := range s.clients {
		if s.trusts(w, c) {
			holders++
		}
	}
	return holders > 1
}

// won looks whether a client may hold the lock.
func (s *setup) won(w *world, c int) string {
	cl := &w.clients[c]
	cl.token = int32(cl.claim.Token)
	for o := range s.clients {
		other := &w.clients[o]
		if o == c {
			continue
		}
		if s.alone && s.trusts(w, o) {
			return "two hold the lock"
		}
		if s.adopts&(1<<c) != 0 && s.adopts&(1<<o) != 0 && other.token != 0 {
			return "one lease is adopted twice"
		}
		if s.fair && other.life == running && other.claim.Phase == quorum.Seeking && other.claim.Stamp < cl.claim.Stamp {
			return "a later waiter is served first"
		}
		if !s.orders || other.token == 0 || cl.token == 0 {
			continue
		}
		if d := cl.token - other.token; -quorum.Block < d && d < quorum.Block {
			return "two grants share a token"
		}
		if cl.before&(1<<o) != 0 && cl.token < other.token {
			return "a later grant has a lower token"
		}
	}
	if cl.token != 0 {
		cl.before = 0
	}
	return ""
}
