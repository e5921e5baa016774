package model

import (
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/session"
)

// ttlOf returns the long or the short TTL.
func ttlOf(short bool) int64 {
	if short {
		return brief
	}
	return ttl
}

// answerOf returns an answer of that kind to the request r.
func (r message) answerOf(kind uint8) message {
	return message{kind: kind, of: r.kind, id: r.id, epoch: r.epoch, round: r.round, stage: r.stage, brief: r.brief}
}

// failedAnswer returns the event of a request r without an answer.
func (r message) failedAnswer() message { return r.answerOf(uint8(quorum.Failed)) }

// asFailure returns the event of a lost answer r.
func (r message) asFailure() message {
	r.kind, r.marked, r.token = uint8(quorum.Failed), false, 0
	return r
}

// failUnreachable fails the requests to unreachable nodes at once.
func (s *setup) failUnreachable(w *world) {
	for again := true; again; {
		again = false
		for c := range s.clients {
			for n := range s.nodes {
				wire := &w.nodes[n].wires[c]
				for (wire.cut || !s.isOpen(w, c, n)) && wire.requests.n > 0 {
					r := wire.requests.pop(0)
					a := r.failedAnswer()
					if s.isCurrentAnswer(w, c, n, a) {
						s.deliverAnswer(w, c, n, a)
						again = true
					}
				}
			}
		}
	}
}

// serveRequest makes a node execute a request, and returns the answer.
func (s *setup) serveRequest(w *world, c, n int, r message) message {
	nd := &w.nodes[n]
	clock := w.clock
	switch {
	case nd.ahead:
		clock += clockJump
	case w.members != nil:
		clock = s.nodeTime(w, n)
	}
	ask := quorum.Ask{
		Kind: quorum.AskKind(r.kind), Epoch: r.epoch, Node: n, ID: uint32(r.id), TTL: ttlOf(r.brief), HandOver: quorum.HandOverTime(ttl),
		Token: int64(r.token), Restore: r.restore, Least: int64(r.least),
		Owner: owners[c][r.id], From: owners[0][0], Clock: w.clock + int64(c)*s.skew, Noted: quorum.NoteTime(ttl),
	}
	if nd.away != 0 || s.onlyKeeps(w, c, n) {
		session.Gate{Floor: ask.Least, Stays: true}.Prepare(&ask)
	}
	if r.marked {
		ask.Stamp = w.stampOf(s, c, n, ask.Owner)
	}
	if s.mutant.seedAnyTime {
		ask.Clock = clock
	}
	hears := func(owner string) bool {
		c, _ := splitOwner(owner)
		return w.clients[c].life != crashed
	}
	before := nd.lock
	l, reply, woken := s.mutateBefore(before, &ask).Execute(clock, &ask, hears)
	s.mutateAfter(clock, w.clients[c].claim.Queued.Has(n), before, &l, &ask, &reply, &woken)
	a := r.answerOf(uint8(reply.Kind))
	a.marked, a.token = reply.Queued, int32(reply.Token)
	if nd.frozen != 0 {
		if l.Fence = nd.frozen; l.Owner != "" {
			l.Token = nd.frozen
		}
		if reply.Kind == quorum.Granted {
			a.token = int32(nd.frozen)
		}
	}
	nd.lock = l
	if woken.Owner != "" {
		s.sendWakeUp(w, n, woken)
	}
	return a
}

// mutateBefore changes the lock, or also the request, so that the node acts without one of its rules.
func (s *setup) mutateBefore(l quorum.Lock, ask *quorum.Ask) quorum.Lock {
	m := &s.mutant
	switch {
	case m.barge && ask.Kind == quorum.AskAcquire:
		l.Queue = ""
	case ask.Kind == quorum.AskAdopt && (m.adoptAny && l.Owner != "" || m.adoptFree && l.Owner == ""):
		l.Owner, l.Until = ask.From, far
	case m.regrants && ask.Kind == quorum.AskAcquire:
		l.Notes = quorum.Notes{}
	case m.commitByAnyone && ask.Kind == quorum.AskCommit:
		l.Owner, l.Until = ask.Owner, far
	case m.commitAnyToken && ask.Kind == quorum.AskCommit:
		l.Token = min(l.Token, ask.Token)
	}
	return l
}

// mutateAfter changes the outcome to that of a node without the rule. waits reports whether the client believes
// that it has a place there.
func (s *setup) mutateAfter(now int64, waits bool, before quorum.Lock, l *quorum.Lock, ask *quorum.Ask, reply *quorum.Reply, woken *quorum.Wake) {
	m := &s.mutant
	if m.shortens && before.Owner == ask.Owner && l.Owner == ask.Owner && ask.Kind != quorum.AskCommit {
		l.Until = now/1000 + quorum.Millis(ask.TTL)
	}
	switch ask.Kind {
	case quorum.AskAcquire:
		if m.regrants {
			l.Notes = before.Notes
		}
		if m.staysOut && waits && before.Queue.Without(ask.Owner) == before.Queue {
			l.Queue = l.Queue.Without(ask.Owner)
		}
		if m.barge {
			if l.Queue = before.Queue.Without(ask.Owner); reply.Kind != quorum.Granted && ask.Stamp != 0 {
				l.Queue = before.Queue.With(quorum.Place{Owner: ask.Owner, Stamp: ask.Stamp, Until: far})
			}
		}
	case quorum.AskCommit:
		if m.commitByAnyone || m.commitAnyToken {
			l.Owner, l.Until, l.Token = before.Owner, before.Until, before.Token
		}
	case quorum.AskRelease, quorum.AskGiveBack:
		if head, _ := l.Queue.Head(); m.keepForGiver && before.Owner == ask.Owner && head == ask.Owner && woken.Owner == "" {
			l.Owner, l.Until, l.Queue, woken.Owner = ask.Owner, far, l.Queue.Without(ask.Owner), ask.Owner
			l.Token = l.Fence + 1
			l.Fence = quorum.LastOfBlock(l.Token)
		}
		if m.handOverUnseeded && before.Fence == 0 && woken.Owner != "" {
			l.Owner, l.Token, l.Until, l.Fence, woken.Base = woken.Owner, 1, far, quorum.LastOfBlock(1), 1
		}
	}
}

// sendWakeUp sends node n's wake-up to the client of woken. A cut link drops it.
func (s *setup) sendWakeUp(w *world, n int, woken quorum.Wake) {
	nd := &w.nodes[n]
	to, id := splitOwner(woken.Owner)
	switch {
	case s.apart:
		nd.wires[to].woken |= 1 << id
		return
	case nd.wires[to].cut:
		return
	}
	m := message{kind: uint8(quorum.Woken), of: wakeUp, id: id, token: int32(woken.Base)}
	if nd.frozen != 0 && m.token != 0 {
		m.token = int32(nd.frozen)
	}
	s.sendAnswer(w, to, n, m)
}

// stampOf returns the stamp of a waiter's id on a node.
func (w *world) stampOf(s *setup, c, n int, owner string) int64 {
	if !s.mutant.byArrival {
		return w.clients[c].claim.Stamp
	}
	last := int64(0)
	for p := range w.nodes[n].lock.Queue.Places {
		if last = p.Stamp; p.Owner == owner {
			return last
		}
	}
	return last + 1
}

// sendAnswer sends an answer, unless it no longer counts.
func (s *setup) sendAnswer(w *world, c, n int, a message) {
	if s.isCurrentAnswer(w, c, n, a) {
		w.nodes[n].wires[c].answers.push(a)
	}
}

// restartNode restarts a node that has only this lock.
func (s *setup) restartNode(w *world, n int, lock quorum.Lock) {
	nd := &w.nodes[n]
	nd.lock = lock
	nd.ghosts = line{}
	w.clock += clockStep
	s.beginRun(w, n)
	for c := range s.clients {
		s.breakConnection(w, c, n, int(nd.wires[c].requests.n))
		nd.ghosts = line{}
		if s.gate && w.clients[c].life == running {
			nd.away |= 1 << c
		}
	}
}

// rewindNode restarts a node with its saved, older data.
func (s *setup) rewindNode(w *world, n int) {
	s.restartNode(w, n, w.nodes[n].saved)
	w.nodes[n].floor = quorum.FirstOfBlock(w.clock)
	if w.members != nil {
		s.setMarker(w, n, w.members.nodes[n].saved)
	}
}

// promoteReplica replaces a node by another server, with the data that this server had received. With the gate
// it only keeps its locks, until all possible grants of the other server are over or were renewed on it.
func (s *setup) promoteReplica(w *world, n int) {
	nd := &w.nodes[n]
	nd.lock = nd.saved
	w.clock += clockStep
	s.promoteServer(w, n)
	nd.floor = quorum.FirstOfBlock(w.clock)
	for c := range s.clients {
		s.breakConnection(w, c, n, int(nd.wires[c].requests.n))
		nd.ghosts = line{} // the other server executes them, without effect here
		if s.gate && w.clients[c].claim.Phase == quorum.Held {
			nd.away |= 1 << c
		}
	}
}

// flushNode makes a node forget everything, without closing connections.
func (s *setup) flushNode(w *world, n int) {
	nd := &w.nodes[n]
	nd.lock = quorum.Lock{}
	w.clock += clockStep
	s.setMarker(w, n, "")
}

// breakConnection breaks a connection. The first sent requests may still be executed, in order; the others go
// over the next connection.
func (s *setup) breakConnection(w *world, c, n, sent int) {
	nd := &w.nodes[n]
	wire := &nd.wires[c]
	wire.low = false
	if s.slot && !s.mutant.foundLow && w.clients[c].life == running {
		w.clients[c].since = w.clock
	}
	fail := func(of uint8, m message) {
		m.kind = of
		a := m.failedAnswer()
		if s.isCurrentAnswer(w, c, n, a) {
			wire.failures.push(a)
		}
	}
	for wire.answers.n > 0 {
		if a := wire.answers.pop(0); a.of != wakeUp {
			fail(a.of, a)
		}
	}
	for range sent {
		r := wire.requests.pop(0)
		fail(r.kind, r)
		nd.ghosts.push(r)
		nd.ghost = uint8(c)
	}
	if w.members != nil {
		v := &w.members.clients[c][n]
		nd.proof, v.open = v.proof, false
	}
}
