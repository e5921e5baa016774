package model

import "github.com/holdfast-go/holdfast/internal/quorum"

// fail answers at once what is asked where nothing gets through.
func (s *setup) fail(w *world) {
	for again := true; again; {
		again = false
		for c := range s.clients {
			for n := range s.nodes {
				wire := &w.nodes[n].wires[c]
				for wire.cut && wire.requests.n > 0 {
					r := wire.requests.pop(0)
					a := message{kind: uint8(quorum.Failed), of: r.kind, id: r.id, epoch: r.epoch, round: r.round}
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
	l, owner := nd.lock, owners[c][r.id]
	clock, told := w.clock, w.clock+int64(c)*s.skew
	if nd.ahead {
		clock += clockJump
	}
	if s.mutant.seedAnyTime {
		told = clock
	}
	a := message{of: r.kind, id: r.id, epoch: r.epoch, round: r.round}
	stamp := int64(0)
	if r.marked {
		stamp = w.place(s, c, n)
	}
	hears := func(owner string) bool {
		c, _ := split(owner)
		return w.clients[c].life != crashed
	}
	var woken quorum.Wake
	switch quorum.Request(r.kind) {
	case quorum.AskAcquire, quorum.AskAdopt:
		var reply quorum.AcquireReply
		queue := l.Queue
		if s.mutant.barge {
			l.Queue = ""
		}
		if from := owners[0][0]; quorum.Request(r.kind) == quorum.AskAdopt {
			if s.mutant.adoptAny && l.Owner != "" || s.mutant.adoptFree && l.Owner == "" {
				l.Owner, l.Until = from, far
			}
			l, reply = l.Adopt(clock, from, owner, ttlMS, told)
		} else {
			l, reply = l.Acquire(clock, owner, ttlMS, told, stamp, hears)
		}
		woken = reply.Woken
		if s.mutant.barge {
			if l.Queue = queue.Without(owner); !reply.Granted && stamp != 0 {
				l.Queue = queue.With(owner, stamp)
			}
		}
		a.kind, a.marked = uint8(quorum.Denied), r.marked
		if reply.Refused {
			a.kind, a.marked = uint8(quorum.Failed), false
		}
		if reply.Granted {
			a.kind, a.marked, a.token = uint8(quorum.Granted), false, int32(reply.Base)
			if nd.frozen != 0 {
				a.token = int32(nd.frozen)
			}
		}
	case quorum.AskCommit:
		var ok bool
		if l, ok = s.commit(l, clock, owner, int64(r.token)); ok {
			a.kind = uint8(quorum.Accepted)
		} else {
			a.kind = uint8(quorum.Refused)
		}
	case quorum.AskRenew:
		lost := l.Fence == 0
		var verdict quorum.Verdict
		l, verdict = l.Renew(clock, owner, ttlMS, told, int64(r.token))
		if s.mutant.renewSeedsToken && lost && l.Fence != 0 {
			l.Fence = int64(r.token) + quorum.Block - 1
		}
		switch verdict {
		case quorum.RenewKept:
			a.kind = uint8(quorum.Kept)
		case quorum.RenewRefused:
			a.kind = uint8(quorum.Failed)
		case quorum.RenewSuperseded:
			a.kind, a.token = uint8(quorum.NotMine), int32(l.Fence)
		default:
			a.kind = uint8(quorum.NotMine)
		}
	case quorum.AskReclaim:
		a.kind = uint8(quorum.NotMine)
		var ok bool
		counter := int64(r.token)
		if s.mutant.reclaimAny {
			counter = l.Fence
		}
		if l, ok = l.Reclaim(clock, owner, ttlMS, counter); ok {
			a.kind = uint8(quorum.Kept)
		}
	case quorum.AskRelease, quorum.AskGiveBack:
		before := l
		l, woken = l.Release(clock, owner, stamp, ttlMS, hears)
		if head, _ := l.Queue.Head(); s.mutant.keepForGiver && before.Owner == owner && head == owner && woken.Owner == "" {
			l.Owner, l.Until, l.Queue, woken.Owner = owner, far, l.Queue.Without(owner), owner
			l.Fence += quorum.Block
		}
		if s.mutant.handOverUnseeded && before.Fence == 0 && woken.Owner != "" {
			l.Owner, l.Until, l.Fence, woken.Base = woken.Owner, far, quorum.Block, 1
		}
		a.kind = uint8(quorum.Freed)
	}
	if nd.frozen != 0 {
		l.Fence = nd.frozen
	}
	nd.lock = l
	if woken.Owner != "" {
		s.wake(w, n, woken)
	}
	return a
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
func (w *world) place(s *setup, c, n int) int64 {
	if !s.mutant.byArrival {
		return w.clients[c].claim.Stamp
	}
	last := int64(0)
	for stamp := range w.nodes[n].lock.Queue.Entries {
		last = stamp
	}
	return last + 1
}

func (s *setup) commit(l quorum.Lock, clock int64, owner string, token int64) (quorum.Lock, bool) {
	end := token + quorum.Block - 1
	switch {
	case s.mutant.commitByAnyone && l.Fence <= end, s.mutant.commitAnyToken && l.Owner == owner:
		l.Fence, l.FenceUntil = max(l.Fence, end), far
		return l, true
	}
	return l.Commit(clock, owner, ttlMS, token)
}

// reply sends an answer, unless nobody would care.
func (s *setup) reply(w *world, c, n int, a message) {
	if s.cares(w, c, n, a) {
		w.nodes[n].wires[c].answers.push(a)
	}
}

// wipe lets a node start anew, without anything it knew.
func (s *setup) wipe(w *world, n int) {
	nd := &w.nodes[n]
	nd.lock = quorum.Lock{}
	nd.ghosts = line{}
	w.clock += clockStep
	for c := range s.clients {
		s.sever(w, c, n, int(nd.wires[c].requests.n))
		nd.ghosts = line{}
		if s.gate && w.clients[c].life == running {
			nd.away |= 1 << c
		}
	}
}

// flush lets a node forget all it knew over open connections. With the marker it executes
// nothing of what is sent over them, until what it granted is over.
func (s *setup) flush(w *world, n int) {
	nd := &w.nodes[n]
	nd.lock = quorum.Lock{}
	w.clock += clockStep
	for c := range s.clients {
		if s.marker && w.clients[c].life == running {
			nd.away |= 1 << c
		}
	}
}

// sever breaks a connection. The first sent requests had left and may still be
// executed, in order; the others go over the next connection.
func (s *setup) sever(w *world, c, n, sent int) {
	nd := &w.nodes[n]
	wire := &nd.wires[c]
	fail := func(of uint8, m message) {
		a := message{kind: uint8(quorum.Failed), of: of, id: m.id, epoch: m.epoch, round: m.round}
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
}
