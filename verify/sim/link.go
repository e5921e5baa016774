package sim

import (
	"errors"

	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/session"
)

const (
	lookEvery = 250 * ms // interval of checks of a connection with unanswered requests
	minRedial = 5 * ms
	maxRedial = 200 * ms // shorter than in a program, because faults are frequent here
)

// link is one client's link to one node. A broken link is dialed again, and each connection is a generation.
// Package session decides about its requests, as in a program.
type link struct {
	w *world
	c *client
	n *node

	gen      int
	up       bool
	boot     int // the node's process
	there    int64
	home     int64 // arrival of the last message, each way
	slow     int64 // extra delay each way
	slowTill int64
	cut      int64 // time until which nothing passes
	sent     int   // number of requests on this connection
	above    bool  // an answer has shown that the node's counter is above the floor
	began    int64 // time when the connection was opened
	heard    int64 // time of the last answer
	away     []*request
	fate     map[int]brokenRequests // fate of broken connections

	watch  session.Watch
	looks  int // generation under watch; 0: none
	redial session.Redial
	ledger session.Ledger[*key]
}

// brokenRequests decides what happens to the requests on a broken connection.
type brokenRequests struct {
	at   int64 // time of their execution
	most int   // number of requests that are executed
}

func (w *world) newLink(c *client, n *node) *link {
	return &link{
		w: w, c: c, n: n, gen: 1, up: n.admitNode(c), boot: n.boot, fate: make(map[int]brokenRequests),
		redial: session.Redial{Min: minRedial, Max: max(min(maxRedial, 8*w.pause), 1)},
	}
}

// messageDelay returns the delay of a message.
func (l *link) messageDelay() int64 {
	d := 100_000 + l.w.upTo(l.w.lag)
	if l.w.rollChance(0.01) {
		d += l.w.upTo(60 * ms)
	}
	if l.w.now < l.slowTill {
		d += l.w.upTo(l.slow)
	}
	return max(d, l.cut-l.w.now)
}

// sendRequest sends r or fails it.
func (l *link) sendRequest(r *request) {
	switch {
	case !l.up:
		l.keepRelease(r)
		l.w.schedule(l.c, 0, func() { l.failRequest(r, true) })
		return
	case session.ShouldSkip(r.Kind, l.silentTime(), func() bool { return l.canSpare(r) }), l.sessionGate().Prepare(&r.Ask) != nil:
		l.w.schedule(l.c, 0, func() { l.failRequest(r, true) })
		return
	}
	if r.claim != nil {
		r.round = r.claim.rec.round
	}
	r.began, r.Clock, r.Noted = l.w.now, l.c.wallClock(), quorum.NoteTime(l.w.maxTTL)
	l.away = append(l.away, r)
	l.watchSilence()
	l.sent++
	gen, boot, index := l.gen, l.boot, l.sent
	l.there = max(l.there, l.w.now+l.messageDelay())
	l.w.scheduleAfter(l.there-l.w.now, func() {
		if f, broken := l.fate[gen]; broken {
			if index <= f.most {
				l.w.scheduleAfter(f.at-l.w.now, func() { l.n.receiveRequest(l, gen, boot, r) })
			}
			return
		}
		l.n.receiveRequest(l, gen, boot, r)
	})
}

// deliverReply delivers the reply to r.
func (l *link) deliverReply(gen int, r *request, rep reply) {
	l.deliverInOrder(gen, func() { l.answerRequest(r, rep) })
}

// deliverInOrder runs do at the client after the messages before it, unless the connection breaks.
func (l *link) deliverInOrder(gen int, do func()) {
	if gen != l.gen || !l.up {
		return
	}
	l.home = max(l.home, l.w.now+l.messageDelay())
	l.w.schedule(l.c, l.home-l.w.now, func() {
		if gen == l.gen && l.up {
			do()
		}
	})
}

// answerRequest delivers the reply to r to its claim. Replies come in the order of the requests, so older
// requests are finished.
func (l *link) answerRequest(r *request, rep reply) {
	for i, a := range l.away {
		if a == r {
			l.away = append(l.away[:i:i], l.away[i+1:]...)
			break
		}
	}
	l.heard = l.w.now
	l.finishRequest(r, rep)
}

func (l *link) finishRequest(r *request, rep reply) {
	if r.done || r.claim == nil {
		return
	}
	r.done = true
	e := r.Reply(rep.Reply).Event
	if e.Kind == quorum.Granted {
		if l.above = l.sessionGate().CheckGrant(e.Token) == nil; !l.above {
			e = r.Reply(quorum.Reply{Event: quorum.Event{Kind: quorum.Failed}}).Event
		}
	}
	if e.Kind == quorum.Granted && e.ID == r.claim.st.ID {
		r.claim.issued[l.n.i] = rep.issued
	}
	r.claim.postAnswer(e, r)
}

// sessionGate returns what the client knows of the connection. The floor is the same for everything on it.
func (l *link) sessionGate() session.Gate {
	if l.w.cfg.Rules.NoFloor {
		return session.Gate{}
	}
	return session.Gate{Floor: l.n.floor, Above: l.above}
}

// silentTime returns the time for which the node has answered no pending request.
func (l *link) silentTime() int64 {
	if len(l.away) == 0 {
		return 0
	}
	return l.w.now - max(l.away[0].began, l.heard)
}

// canSpare reports whether the client can do without an answer to r: it makes one attempt, or the other nodes
// suffice.
func (l *link) canSpare(r *request) bool {
	if st := &r.claim.st; st.Phase == quorum.Seeking && st.Stamp == 0 && !st.Adopts {
		return true
	}
	well := 0
	for _, other := range l.c.links {
		if other != l && other.up && !other.watch.Stalled {
			well++
		}
	}
	return well >= quorum.Majority(len(l.c.links))
}

// watchSilence makes the client check the connection at intervals while requests are pending, and disconnect if
// the node is silent.
func (l *link) watchSilence() {
	if l.looks == l.gen {
		return
	}
	l.looks = l.gen
	gen := l.gen
	l.w.schedule(l.c, lookEvery, func() {
		if gen != l.gen || !l.up {
			return
		}
		sight := session.Snapshot{Now: l.w.now, Silent: l.silentTime()}
		for _, r := range l.away {
			if r.Kind == quorum.AskRenew && (sight.Renewal == 0 || r.TTL < sight.Renewal) {
				sight.Renewal = r.TTL
			}
		}
		err := l.watch.Check(sight)
		if err == nil && l.watch.Doubted && l.w.now >= l.cut && l.n.admitNode(l.c) {
			err = errReplaced
		}
		if err != nil {
			l.w.logEvent("%s leaves node %d: %v", l.c.name, l.n.i, err)
			l.breakConnection(true)
			return
		}
		if l.looks = 0; len(l.away) > 0 {
			l.watchSilence()
		}
	})
}

// errReplaced ends a connection that another one has replaced.
var errReplaced = errors.New("another connection is open")

func (l *link) failRequest(r *request, unsent bool) {
	l.finishRequest(r, reply{Reply: quorum.Reply{Event: quorum.Event{Kind: quorum.Failed, Unsent: unsent}}})
}

// keepRelease keeps a release for the next connection.
func (l *link) keepRelease(r *request) {
	switch {
	case r.debt != nil:
		l.ledger.Return(*r.debt)
	case r.Kind.Frees():
		l.ledger.Owe(r.key, &r.Ask, l.c.monotonicClock())
	}
}

// breakConnection breaks the connection. If the node lives, requests in flight may still be executed much later.
func (l *link) breakConnection(nodeLives bool) {
	if !l.up {
		return
	}
	l.up, l.above = false, false
	l.redial.Ended(l.w.now - l.began)
	f := brokenRequests{at: l.w.now + l.w.upTo([]int64{3 * l.w.ttl, 20 * l.w.pause}[l.w.rng.IntN(2)])}
	if nodeLives {
		f.most = l.sent - l.w.rng.IntN(len(l.away)+1)
	}
	l.fate[l.gen] = f
	away := l.away
	l.away = nil
	l.w.schedule(l.c, 0, func() {
		for _, r := range away {
			l.keepRelease(r)
		}
		for _, r := range away {
			l.failRequest(r, false)
		}
		l.c.noteWakeUps(l.n.i, false)
	})
	if nodeLives {
		gen := l.gen
		l.w.scheduleAfter(l.w.upTo(2*second), func() { // the node notices later
			if l.n.ears[l] == gen {
				delete(l.n.ears, l)
			}
		})
	}
	l.reconnect()
}

// reconnect opens the next connection as soon as the gate allows.
func (l *link) reconnect() {
	wait := max(l.n.votes-l.w.now, 0) // earlier attempts would only cost simulation time
	l.w.schedule(l.c, wait+l.redial.Next(l.w.rng.Uint32())+l.messageDelay(), func() {
		if l.w.now < l.cut || !l.n.admitNode(l.c) {
			l.reconnect()
			return
		}
		l.gen++
		l.up, l.boot, l.began = true, l.n.boot, l.w.now
		l.there, l.home, l.sent = 0, 0, 0
		l.watch = session.Watch{}
		for _, d := range l.ledger.Take(l.c.monotonicClock()) {
			l.sendRequest(&request{Ask: d.Ask, key: d.Lock, debt: &d})
		}
		l.w.logEvent("%s reconnects to node %d", l.c.name, l.n.i)
		if l.c.subscribed {
			l.subscribeOver()
		}
	})
}

// subscribeOver subscribes over the current connection.
func (l *link) subscribeOver() {
	if !l.up {
		return
	}
	gen, boot := l.gen, l.boot
	l.there = max(l.there, l.w.now+l.messageDelay())
	l.w.scheduleAfter(l.there-l.w.now, func() {
		if _, broken := l.fate[gen]; broken {
			return
		}
		l.subscribeOnNode(gen, boot)
	})
}

// subscribeOnNode executes a subscription on the node.
func (l *link) subscribeOnNode(gen, boot int) {
	switch {
	case l.n.down || l.n.boot != boot:
	case l.n.frozen:
		l.n.backlog = append(l.n.backlog, func() { l.subscribeOnNode(gen, boot) })
	case gen == l.gen && l.up:
		l.n.ears[l] = gen
		l.deliverInOrder(gen, func() { l.c.noteWakeUps(l.n.i, true) })
	}
}
