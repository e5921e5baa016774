package model

import (
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/session"
)

// isCurrentAnswer reports whether an answer counts for the client: it must be for the current id and epoch, and
// the claim must not be over.
func (s *setup) isCurrentAnswer(w *world, c, n int, a message) bool {
	cl := &w.clients[c]
	return cl.life == running && cl.claim.ID == uint32(a.id) && (a.of == wakeUp || cl.claim.Epoch[n] == a.epoch)
}

// leastToken returns the first token that a client may use at a node, as far as the client knows.
func (s *setup) leastToken(w *world, c, n int) int64 {
	switch {
	case s.mutant.lowTokens, s.frozen:
		return 0
	case w.members != nil:
		return w.members.clients[c][n].floor
	case s.slot && w.clients[c].since != 0:
		return quorum.FirstOfBlock(w.clients[c].since)
	case s.slot: // the floor went with the server
		return 0
	}
	return w.nodes[n].floor // the connection broke when the floor rose, so every answer is later
}

func (s *setup) deliverAnswer(w *world, c, n int, a message) string {
	gate := session.Gate{Floor: s.leastToken(w, c, n)}
	switch quorum.Kind(a.kind) {
	case quorum.Granted:
		if gate.CheckGrant(int64(a.token)) != nil {
			a = a.asFailure()
			w.nodes[n].wires[c].low = true
		}
	case quorum.Woken:
		a.token = int32(gate.Wake(quorum.Wake{Base: int64(a.token)}).Base)
	}
	lasts := ttlOf(a.brief)
	if a.of == wakeUp && s.spans {
		lasts = quorum.HandOverTime(ttl)
	}
	return s.stepClient(w, c, quorum.Event{
		Kind: quorum.Kind(a.kind), Of: quorum.AskKind(a.of), Node: n, ID: uint32(a.id), Epoch: a.epoch,
		Sent: s.timeAt(a.stage, a.round), TTL: lasts, Token: int64(a.token), Left: ttl, Queued: a.marked,
	})
}

// stepClient passes an event to a client and sends the resulting requests.
func (s *setup) stepClient(w *world, c int, e quorum.Event) string {
	cl := &w.clients[c]
	e.At = s.timeAt(w.stage, cl.round)
	if s.mutant.keepID && e.Kind == quorum.Failed && e.Of == quorum.AskGiveBack {
		e.Kind = quorum.Freed
	}
	was := cl.claim
	next := was
	a := next.Step(e)
	s.mutateClient(was, &next, &e, &a)
	cl.claim = next
	for ask := range a.Asks(was.ID, &next, e.At, quorum.Owners{}) {
		m := message{kind: uint8(ask.Kind), id: uint8(ask.ID), epoch: ask.Epoch, round: cl.round, stage: w.stage}
		m.marked, m.brief, m.restore, m.token = ask.Stamp != 0, ask.TTL == brief, ask.Restore, int32(ask.Token)
		nd, gate := &w.nodes[ask.Node], session.Gate{Floor: s.leastToken(w, c, ask.Node)}
		// A grant of another lock may have shown that the counter is above the floor.
		gate.Above = !s.slot && !nd.wires[c].low && nd.lock.Fence >= gate.Floor-1
		if gate.Prepare(&ask) != nil {
			nd.wires[c].failures.push(m.failedAnswer())
			continue
		}
		m.least = int32(ask.Least)
		nd.wires[c].requests.push(m)
	}
	if next.RoundStart == e.At && next.Phase == quorum.Held {
		cl.round++ // later requests have a later send time
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
		return s.checkWin(w, c)
	}
	return ""
}

// subscribedNodes returns the nodes whose wake-ups reach a client.
func (s *setup) subscribedNodes(c int) quorum.Set {
	if s.deaf&(1<<c) != 0 {
		return 0
	}
	return quorum.All(s.nodes)
}

// mutateClient applies the mutants of the client.
func (s *setup) mutateClient(was quorum.Claim, next *quorum.Claim, e *quorum.Event, a *quorum.Actions) {
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
		next.TrustUntil = min(next.TrustUntil, until)
	}
	switch {
	case s.mutant.regainNever:
		a.Renew &^= a.Restore
	case s.mutant.anewAtOnce:
		a.Restore = a.Renew
	}
	if s.mutant.ignoreOwed {
		next.Owed = 0
	}
	if s.mutant.stay && a.FreshID && !next.Queueing {
		*next = was
		next.Asked, next.RestUntil, next.GiveBackAt = 0, soon, 0
		*a = quorum.Actions{}
	}
}

// trustsLease reports whether a client trusts its lease.
func (s *setup) trustsLease(w *world, c int) bool {
	cl := &w.clients[c]
	return cl.life == running && cl.claim.Phase == quorum.Held && (!s.hasTime() || cl.claim.TrustUntil > s.timeAt(w.stage, cl.round))
}

// hasOverlap reports whether two clients trust their leases.
func (s *setup) hasOverlap(w *world) bool {
	holders := 0
	for c := range s.clients {
		if s.trustsLease(w, c) {
			holders++
		}
	}
	return holders > 1
}

// checkWin returns the promise that a client breaks by winning the lock, or "".
func (s *setup) checkWin(w *world, c int) string {
	cl := &w.clients[c]
	cl.token = int32(cl.claim.Token)
	for o := range s.clients {
		other := &w.clients[o]
		if o == c {
			continue
		}
		if s.alone && s.trustsLease(w, o) {
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
