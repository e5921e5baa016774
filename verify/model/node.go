package model

import (
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/session"
)

// span is a TTL.
func span(short bool) int64 {
	if short {
		return brief
	}
	return ttl
}

// answered is an answer of that kind to the request r.
func (r message) answered(kind uint8) message {
	return message{kind: kind, of: r.kind, id: r.id, epoch: r.epoch, round: r.round, stage: r.stage, brief: r.brief}
}

// failed is that r gets no answer.
func (r message) failed() message { return r.answered(uint8(quorum.Failed)) }

// asFailed is the answer a as none.
func (r message) asFailed() message {
	r.kind, r.marked, r.token = uint8(quorum.Failed), false, 0
	return r
}

// fail answers at once what is asked where nothing gets through.
func (s *setup) fail(w *world) {
	for again := true; again; {
		again = false
		for c := range s.clients {
			for n := range s.nodes {
				wire := &w.nodes[n].wires[c]
				for (wire.cut || !s.open(w, c, n)) && wire.requests.n > 0 {
					r := wire.requests.pop(0)
					a := r.failed()
					if s.cares(w, c, n, a) {
						s.hear(w, c, n, a)
						again = true
					}
				}
			}
		}
	}
}

// serve lets a node execute a request, and is its answer.
func (s *setup) serve(w *world, c, n int, r message) message {
	nd := &w.nodes[n]
	clock := w.clock
	switch {
	case nd.ahead:
		clock += clockJump
	case w.members != nil:
		clock = s.nodeTime(w, n)
	}
	ask := quorum.Ask{
		Kind: quorum.AskKind(r.kind), Epoch: r.epoch, Node: n, ID: uint32(r.id), TTL: span(r.brief), HandOver: quorum.HandOver(ttl),
		Token: int64(r.token), Anew: r.anew, Least: int64(r.least),
		Owner: owners[c][r.id], From: owners[0][0], Clock: w.clock + int64(c)*s.skew, Noted: quorum.Noted(ttl),
	}
	if nd.away != 0 || s.stays(w, c, n) {
		session.Gate{Floor: ask.Least, Stays: true}.Prepare(&ask)
	}
	if r.marked {
		ask.Stamp = w.place(s, c, n, ask.Owner)
	}
	if s.mutant.seedAnyTime {
		ask.Clock = clock
	}
	hears := func(owner string) bool {
		c, _ := split(owner)
		return w.clients[c].life != crashed
	}
	before := nd.lock
	l, reply, woken := s.bend(before, &ask).Answer(clock, &ask, hears)
	s.mend(clock, w.clients[c].claim.Queued.Has(n), before, &l, &ask, &reply, &woken)
	a := r.answered(uint8(reply.Kind))
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
		s.wake(w, n, woken)
	}
	return a
}

// bend is the lock as a request finds it without one of the node's rules. It may change the
// request, too.
func (s *setup) bend(l quorum.Lock, ask *quorum.Ask) quorum.Lock {
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

// mend makes of what the bent lock came to what the node without the rule has come to.
// waits says that the client believes that it has a place there.
func (s *setup) mend(now int64, waits bool, before quorum.Lock, l *quorum.Lock, ask *quorum.Ask, reply *quorum.Reply, woken *quorum.Wake) {
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
			l.Fence = quorum.Top(l.Token)
		}
		if m.handOverUnseeded && before.Fence == 0 && woken.Owner != "" {
			l.Owner, l.Token, l.Until, l.Fence, woken.Base = woken.Owner, 1, far, quorum.Top(1), 1
		}
	}
}

// wake sends a wake-up on its way.
func (s *setup) wake(w *world, n int, woken quorum.Wake) {
	nd := &w.nodes[n]
	to, id := split(woken.Owner)
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
	s.reply(w, to, n, m)
}

// place is the stamp that a waiter's id has on a node.
func (w *world) place(s *setup, c, n int, owner string) int64 {
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

// reply sends an answer, unless nobody would care.
func (s *setup) reply(w *world, c, n int, a message) {
	if s.cares(w, c, n, a) {
		w.nodes[n].wires[c].answers.push(a)
	}
}

// restart lets a node start anew, with no more than lock.
func (s *setup) restart(w *world, n int, lock quorum.Lock) {
	nd := &w.nodes[n]
	nd.lock = lock
	nd.ghosts = line{}
	w.clock += clockStep
	s.closeAll(w, n)
	for c := range s.clients {
		s.sever(w, c, n, int(nd.wires[c].requests.n))
		nd.ghosts = line{}
		if s.gate && w.clients[c].life == running {
			nd.away |= 1 << c
		}
	}
}

// rewind lets a node start anew with older data.
func (s *setup) rewind(w *world, n int) {
	s.restart(w, n, w.nodes[n].saved)
	w.nodes[n].floor = quorum.Base(w.clock)
	if w.members != nil {
		s.mark(w, n, w.members.nodes[n].saved)
	}
}

// takeOver lets another server take the place of a node, with what it had received. With the
// gate it only keeps what it has, until all that the other may have granted is over or has
// been renewed on it.
func (s *setup) takeOver(w *world, n int) {
	nd := &w.nodes[n]
	nd.lock = nd.saved
	w.clock += clockStep
	s.promote(w, n)
	nd.floor = quorum.Base(w.clock)
	for c := range s.clients {
		s.sever(w, c, n, int(nd.wires[c].requests.n))
		nd.ghosts = line{} // the other server executes them, to no effect here
		if s.gate && w.clients[c].claim.Phase == quorum.Held {
			nd.away |= 1 << c
		}
	}
}

// flush lets a node forget all it knew over open connections.
func (s *setup) flush(w *world, n int) {
	nd := &w.nodes[n]
	nd.lock = quorum.Lock{}
	w.clock += clockStep
	s.mark(w, n, "")
}

// sever breaks a connection. The first sent requests had left and may still be
// executed, in order; the others go over the next connection.
func (s *setup) sever(w *world, c, n, sent int) {
	nd := &w.nodes[n]
	wire := &nd.wires[c]
	wire.low = false
	if s.slot && !s.mutant.foundLow && w.clients[c].life == running {
		w.clients[c].since = w.clock
	}
	fail := func(of uint8, m message) {
		m.kind = of
		a := m.failed()
		if s.cares(w, c, n, a) {
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
