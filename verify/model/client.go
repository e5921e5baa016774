package model

import "github.com/holdfast-go/holdfast/internal/quorum"

// cares says whether an answer still means something to the client: it would
// be void for another id or epoch, and once the claim is over nothing counts.
func (s *setup) cares(w *world, c, n int, a message) bool {
	cl := &w.clients[c]
	return cl.life == running && cl.claim.ID == uint32(a.id) && (a.of == wakeUp || cl.claim.Epoch[n] == a.epoch)
}

func (s *setup) hear(w *world, c, n int, a message) string {
	floor := w.nodes[n].floor // no answer is of before it rose: the connection broke then
	switch {
	case s.mutant.lowTokens:
		floor = 0
	case s.slot && w.clients[c].since != 0:
		floor = quorum.Base(w.clients[c].since)
	case s.slot: // it went with the server
		floor = 0
	}
	return s.event(w, c, quorum.Event{
		Kind: quorum.Kind(a.kind), Of: quorum.AskKind(a.of), Node: n, ID: uint32(a.id), Epoch: a.epoch,
		Sent: now + int64(a.round), TTL: ttl, Token: int64(a.token), Floor: floor, Left: ttl, Queued: a.marked,
	})
}

// event brings an event to a client and carries out what it wants done.
func (s *setup) event(w *world, c int, e quorum.Event) string {
	cl := &w.clients[c]
	e.At = now + int64(cl.round)
	if s.mutant.keepID && e.Kind == quorum.Failed && e.Of == quorum.AskGiveBack {
		e.Kind = quorum.Freed
	}
	was := cl.claim
	next, a := quorum.Step(was, e)
	s.mutate(was, &next, &e, &a)
	cl.claim = next
	for ask := range a.Asks(was.ID, &next, e.At) {
		m := message{kind: uint8(ask.Kind), id: uint8(ask.ID), epoch: ask.Epoch, round: cl.round, marked: ask.Stamp != 0, token: int32(ask.Token)}
		if s.ages && ask.Kind.Seeds() {
			m.clock = int32(w.clock)
		}
		w.nodes[ask.Node].wires[c].requests.push(m)
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
			if !s.marker { // there, kept may be of before the data were wiped
				w.nodes[n].away &^= 1 << c
			}
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
	if s.mutant.reclaimNever {
		a.Reclaim = 0
	}
	if s.mutant.reclaimAtOnce && e.Kind == quorum.NotMine && e.Token != 0 && next.Phase == quorum.Held {
		a.Reclaim |= quorum.Only(e.Node)
		next.Base[e.Node] = e.Token
		next.Free &^= quorum.Only(e.Node)
	}
	if s.mutant.reclaimUnchecked && next.Again != was.Again {
		a.Reclaim |= next.Ripe
		next.Ripe = 0
	}
	if e.Kind == quorum.Raise && s.mutant.raiseAlone {
		next.Raised, a.Outcome, next.Lifts, next.Unreported = next.Raising, quorum.Won, false, false
		next.Raising, a.Commit = 0, 0
	}
	if e.Kind == quorum.Raise && s.mutant.raiseStale {
		next.Epoch = was.Epoch
	}
	if s.mutant.keepToken && was.Token != 0 && next.Token > was.Token && next.Phase == quorum.Seeking {
		next.Token, next.Agreed, next.Epoch, next.Rest = was.Token, was.Agreed&next.Granted, was.Epoch, soon
		next.Pending, a.Commit = 0, 0
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

// won looks whether a client may hold the lock.
func (s *setup) won(w *world, c int) string {
	cl := &w.clients[c]
	if s.raise == 0 || c != 0 || cl.raised {
		cl.token = int32(cl.claim.Token)
	}
	for o := range s.clients {
		other := &w.clients[o]
		if o == c {
			continue
		}
		if s.alone && other.life == running && other.claim.Phase == quorum.Held {
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
