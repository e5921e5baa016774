package model

import (
	"bytes"
	"slices"

	"github.com/holdfast-go/holdfast/internal/quorum"
)

// normalize replaces irrelevant differences between worlds by one form, to keep the number of states small.
func (s *setup) normalize(w *world) {
	for c := range s.clients {
		cl := &w.clients[c]
		if cl.life == ended || cl.life == crashed {
			cl.claim = quorum.Claim{ID: maxIDs}
			cl.before, cl.renews, cl.round, cl.rests, cl.since = 0, 0, 0, 0, 0
		}
		for n := range s.nodes {
			s.normalizeWire(w, c, n)
		}
		s.normalizeClaim(&cl.claim, w)
		if cl.round > 0 && !s.isBusy(w, c) { // no answer of an older round is in flight
			cl.round, cl.claim.RoundStart = 1, now
		}
		s.normalizeIDs(w, c)
	}
	if w.members != nil {
		s.normalizeMembers(w)
	}
	for n := range s.nodes {
		nd := &w.nodes[n]
		for c := range s.clients {
			if w.clients[c].life != running {
				nd.away &^= 1 << c
			}
		}
		if nd.ghosts.n == 0 {
			nd.ghost = 0
		}
		if w.left.over+w.left.older+w.left.restored == 0 {
			nd.saved = quorum.Lock{}
		}
		l := &nd.lock
		for _, l := range []*quorum.Lock{l, &nd.saved} {
			switch {
			case s.hasTime():
				if s.nodeTime(w, n)/1000 > l.Until {
					l.Owner, l.Token, l.Until = "", 0, 0
				}
			case l.Owner != "":
				l.Until = far
			}
			settleTimes(l)
		}
		if s.mutant.byArrival { // only the order matters
			stamp := int64(0)
			changePlaces(l, func(p *quorum.Place) { stamp++; p.Stamp = stamp })
		}
	}
}

// normalizeWire drops answers that no longer count, and numbers epochs from the oldest one in use.
func (s *setup) normalizeWire(w *world, c, n int) {
	nd := &w.nodes[n]
	wire := &nd.wires[c]
	cl := &w.clients[c]
	for _, l := range [...]*line{&wire.answers, &wire.failures} {
		for i := int(l.n) - 1; i >= 0; i-- {
			if !s.isCurrentAnswer(w, c, n, l.m[i]) {
				l.pop(i)
			}
		}
	}
	if cl.life != running {
		wire.woken = 0
	}
	epoch := &cl.claim.Epoch[n]
	if *epoch == 0 {
		return
	}
	least := *epoch
	lines := [...]*line{&wire.requests, &wire.answers, &wire.failures}
	for _, l := range lines {
		for _, m := range l.all() {
			if uint32(m.id) == cl.claim.ID && m.of != wakeUp {
				least = min(least, m.epoch)
			}
		}
	}
	if least == 0 {
		return
	}
	*epoch -= least
	for _, l := range lines {
		for i := range l.all() {
			if uint32(l.m[i].id) == cl.claim.ID && l.m[i].of != wakeUp {
				l.m[i].epoch -= least
			}
		}
	}
}

func (s *setup) normalizeClaim(c *quorum.Claim, w *world) {
	for n := range s.nodes {
		set := quorum.Only(n)
		switch {
		case c.Granted&set == 0, s.hasTime() && c.Until[n] <= s.timeAt(w.stage, 0):
			c.Until[n] = 0
		case !s.hasTime():
			c.Until[n] = far
		}
		if c.Granted&set == 0 || c.Phase != quorum.Seeking {
			c.Base[n] = 0
		}
		if c.AnswerBy[n] = 0; c.Unanswered()&set != 0 {
			c.AnswerBy[n] = soon
		}
		if c.Sends[n] > 0 {
			c.Sends[n] = 255
		}
	}
	if c.Queueing {
		c.Denied, c.Failed = 0, 0 // only the length of a rest depends on them
	}
	if c.Phase == quorum.Held && !c.Unreported {
		c.Renewing = 0 // only the outcome depends on it
	}
	c.MinLeft, c.MaxWaiters, c.RoundTrip, c.Polls, c.AtRisk = 0, 0, 0, 0, false
	if c.TrustUntil != 0 && !s.hasTime() {
		c.TrustUntil = far
	}
	if c.GiveBackAt != 0 {
		c.GiveBackAt = soon
	}
	if c.RestUntil != 0 {
		c.RestUntil = soon
	}
}

// normalizeIDs renames the ids of a client that are still in use to 0, 1, … in order.
func (s *setup) normalizeIDs(w *world, c int) {
	cl := &w.clients[c]
	if cl.claim.ID == 0 {
		return
	}
	var used uint8
	if cl.life == running {
		used |= 1 << cl.claim.ID
	}
	s.replaceIDs(w, c, func(id uint8) uint8 { used |= 1 << id; return id })
	var name [maxIDs]uint8
	fresh, same := uint8(0), true
	for id := range uint8(maxIDs) {
		if used&(1<<id) != 0 {
			same = same && id == fresh
			name[id] = fresh
			fresh++
		}
	}
	if same {
		return
	}
	s.replaceIDs(w, c, func(id uint8) uint8 { return name[id] })
	if cl.life == running {
		cl.claim.ID = uint32(name[cl.claim.ID])
	}
}

// replaceIDs replaces each id of c in the world.
func (s *setup) replaceIDs(w *world, c int, to func(uint8) uint8) {
	for n := range s.nodes {
		nd := &w.nodes[n]
		wire := &nd.wires[c]
		lines := []*line{&wire.requests, &wire.answers, &wire.failures}
		if nd.ghosts.n > 0 && int(nd.ghost) == c {
			lines = append(lines, &nd.ghosts)
		}
		for _, l := range lines {
			for i := range l.all() {
				l.m[i].id = to(l.m[i].id)
			}
		}
		var woken uint8
		for id := range uint8(maxIDs) {
			if wire.woken&(1<<id) != 0 {
				woken |= 1 << to(id)
			}
		}
		wire.woken = woken
		for _, l := range []*quorum.Lock{&nd.lock, &nd.saved} {
			if l.Owner != "" {
				if o, id := splitOwner(l.Owner); o == c {
					l.Owner = owners[c][to(id)]
				}
			}
			changePlaces(l, func(p *quorum.Place) {
				if o, id := splitOwner(p.Owner); o == c {
					p.Owner = owners[c][to(id)]
				}
			})
			var notes quorum.Notes
			for owner, until := range l.Notes.Owners {
				if o, id := splitOwner(owner); o == c {
					owner = owners[c][to(id)]
				}
				notes = notes.With(owner, until)
			}
			l.Notes = notes
		}
	}
}

// settleTimes removes the end of places and notes: a place expires by a move, and a note never.
func settleTimes(l *quorum.Lock) {
	changePlaces(l, func(p *quorum.Place) { p.Until = far })
	var notes quorum.Notes
	for owner := range l.Notes.Owners {
		notes = notes.With(owner, far)
	}
	l.Notes = notes
}

// changePlaces changes each place of a queue.
func changePlaces(l *quorum.Lock, change func(p *quorum.Place)) {
	var queue quorum.Queue
	for p := range l.Queue.Places {
		change(&p)
		queue = queue.With(p)
	}
	l.Queue = queue
}

// encodeWorld appends the bytes that identify a world. It sorts the parts of nodes, because nodes that differ
// only in their number are the same.
func (s *setup) encodeWorld(w *world, b []byte) []byte {
	f := &w.left
	b = append(b, f.lock, f.fence, f.wipe, f.flush, f.crash, f.broken, f.cut, f.wake, f.repeat, f.place, f.jump, f.others, f.outage, f.over, f.older, f.stage)
	b = append(b, f.again, f.files, f.copied, f.restored, f.nodeClock, f.localClock, f.bothClocks)
	b = append(b, w.stage, byte(w.clock/clockStep))
	for c := range s.clients {
		cl := &w.clients[c]
		b = append(b, byte(cl.life), cl.before, cl.renews, cl.round, cl.rests)
		b = appendInt32(b, cl.token)
		if cl.life != running {
			continue
		}
		k := &cl.claim
		b = append(b, byte(k.Phase), byte(k.ID), k.Regains,
			packFlags(k.Queueing, k.Unreported, k.GiveBackAt != 0, k.RestUntil != 0, k.TrustUntil != 0, k.RoundStart != 0))
		b = appendInt32(b, int32(k.Token))
		if s.hasTime() {
			b = appendInt32(append(b, packFlags(k.TTL == brief)), int32(k.TrustUntil/coarseTick))
		}
		if s.slot {
			b = appendInt32(b, int32(cl.since))
		}
	}
	var parts [maxNodes][]byte
	var space [maxNodes][512]byte
	for n := range s.nodes {
		parts[n] = s.encodeNode(w, n, space[n][:0])
	}
	slices.SortFunc(parts[:s.nodes], bytes.Compare)
	for _, p := range parts[:s.nodes] {
		b = append(b, p...)
		b = append(b, 255)
	}
	return b
}

func (s *setup) encodeNode(w *world, n int, b []byte) []byte {
	nd := &w.nodes[n]
	b = append(b, nd.lock.Owner...)
	b = append(b, '/', nd.away, packFlags(nd.ahead))
	b = appendInt32(appendInt32(b, int32(nd.lock.Fence)), int32(nd.lock.Token))
	if s.hasTime() {
		b = appendInt32(b, int32(nd.lock.Until))
	}
	for p := range nd.lock.Queue.Places {
		b = append(append(b, p.Owner...), byte(p.Stamp))
	}
	for owner := range nd.lock.Notes.Owners {
		b = append(append(b, '~'), owner...)
	}
	if s.faults.over+s.faults.older+s.faults.restored > 0 {
		o := &nd.saved
		b = append(append(b, '/'), o.Owner...)
		b = appendInt32(appendInt32(appendInt32(b, int32(o.Fence)), int32(o.Token)), int32(nd.floor))
		for p := range o.Queue.Places {
			b = append(append(b, p.Owner...), byte(p.Stamp))
		}
		for owner := range o.Notes.Owners {
			b = append(append(b, '~'), owner...)
		}
	}
	if w.members != nil {
		b = s.encodeMember(w, n, b)
	}
	b = append(b, '/', nd.ghost)
	b = encodeLine(&nd.ghosts, b)
	for c := range s.clients {
		cl := &w.clients[c]
		if cl.life == running {
			k, set := &cl.claim, quorum.Only(n)
			b = append(b,
				packFlags((k.Asked|k.Renewing)&set != 0, k.Granted&set != 0, k.Owed&set != 0, (k.Agreed|k.Kept)&set != 0, k.Pending&set != 0,
					(k.Denied|k.Missing)&set != 0),
				packFlags(k.Failed&set != 0, k.Fatal&set != 0, k.Queued&set != 0, k.GivenBack&set != 0, k.Subscribed&set != 0, k.Sends[n] != 0, k.Answered[n] != 0),
				k.Epoch[n])
			b = appendInt32(b, int32(k.Base[n]))
			if s.hasTime() {
				b = appendInt32(b, int32(k.Until[n]/coarseTick))
			}
		}
		wire := &nd.wires[c]
		b = append(b, wire.woken, packFlags(wire.cut, wire.low))
		b = encodeLine(&wire.requests, b)
		b = encodeLine(&wire.answers, b)
		at := len(b)
		b = encodeLine(&wire.failures, b)
		sortMessages(b[at+1:])
	}
	return b
}

const messageLen = 15

// coarseTick is the unit, in ns, in which encoded times still distinguish stages and TTLs.
const coarseTick = 100_000_000

func encodeLine(l *line, b []byte) []byte {
	b = append(b, l.n)
	for _, m := range l.all() {
		b = append(b, m.kind, m.of, m.id, m.epoch, m.round, m.stage, packFlags(m.marked, m.brief, m.restore))
		b = appendInt32(b, m.token)
		b = appendInt32(b, m.least)
	}
	return b
}

// sortMessages sorts encoded messages whose order does not matter.
func sortMessages(b []byte) {
	for i := messageLen; i < len(b); i += messageLen {
		for j := i; j > 0 && bytes.Compare(b[j-messageLen:j], b[j:j+messageLen]) > 0; j -= messageLen {
			var m [messageLen]byte
			copy(m[:], b[j:])
			copy(b[j:], b[j-messageLen:j])
			copy(b[j-messageLen:], m[:])
		}
	}
}

func appendInt32(b []byte, v int32) []byte {
	return append(b, byte(v), byte(v>>8), byte(v>>16), byte(v>>24))
}

func packFlags(set ...bool) byte {
	var f byte
	for i, on := range set {
		if on {
			f |= 1 << i
		}
	}
	return f
}
