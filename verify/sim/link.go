package sim

import "github.com/holdfast-go/holdfast/internal/quorum"

const (
	stallAfter  = 250 * ms // then only releases are queued behind what is unanswered
	redialLeast = 5 * ms
	redialMost  = 200 * ms
)

// link is one client's way to one node. A broken one is dialled again; each
// connection is a generation.
type link struct {
	w *world
	c *client
	n *node

	gen      int
	up       bool
	boot     int // process at the other end
	there    int64
	home     int64 // when the last message arrives, each way
	slow     int64 // added to each way
	slowTill int64
	cut      int64 // until then nothing passes
	sent     int   // requests on this connection
	above    bool  // an answer on it has shown that the node's counter is above the floor
	away     []*request
	fate     map[int]fate // of broken connections
	owed     []owed
}

// fate is what becomes of the requests on a connection that broke.
type fate struct {
	at   int64 // when they are executed
	most int   // the first so many of them
}

// owed is a release to be sent on the next connection.
type owed struct {
	r     *request
	until int64
}

func (w *world) newLink(c *client, n *node) *link {
	return &link{w: w, c: c, n: n, up: n.admit(c), boot: n.boot, fate: make(map[int]fate)}
}

// delay is how long a message takes.
func (l *link) delay() int64 {
	d := 100_000 + l.w.upTo(l.w.lag)
	if l.w.chance(0.01) {
		d += l.w.upTo(60 * ms)
	}
	if l.w.now < l.slowTill {
		d += l.w.upTo(l.slow)
	}
	return max(d, l.cut-l.w.now)
}

// send puts r on the way, or fails it.
func (l *link) send(r *request) {
	switch {
	case !l.up:
		l.owe(r)
		l.w.schedule(l.c, 0, func() { l.fail(r, true) })
		return
	case !r.Kind.Frees() && len(l.away) > 0 && l.w.now-l.away[0].began > stallAfter:
		l.w.schedule(l.c, 0, func() { l.fail(r, true) })
		return
	case r.Kind == quorum.AskCommit && r.Token < l.floor(): // it was chosen over an earlier connection (trace C11)
		l.w.schedule(l.c, 0, func() { l.fail(r, true) })
		return
	}
	if r.claim != nil {
		r.round = r.claim.rec.round
	}
	r.began, r.Clock, r.Noted, r.Least = l.w.now, l.c.wall(), quorum.Noted(l.w.maxTTL), l.said()
	l.away = append(l.away, r)
	l.sent++
	gen, boot, index := l.gen, l.boot, l.sent
	l.there = max(l.there, l.w.now+l.delay())
	l.w.after(l.there-l.w.now, func() {
		if f, broken := l.fate[gen]; broken {
			if index <= f.most {
				l.w.after(f.at-l.w.now, func() { l.n.arrive(l, gen, boot, r) })
			}
			return
		}
		l.n.arrive(l, gen, boot, r)
	})
}

// back carries the reply to r.
func (l *link) back(gen int, r *request, rep reply) {
	l.deliver(gen, func() { l.answer(r, rep) })
}

// deliver brings something from the node to the client, in order, unless the
// connection breaks.
func (l *link) deliver(gen int, do func()) {
	if gen != l.gen || !l.up {
		return
	}
	l.home = max(l.home, l.w.now+l.delay())
	l.w.schedule(l.c, l.home-l.w.now, func() {
		if gen == l.gen && l.up {
			do()
		}
	})
}

// answer brings the reply to r to its claim. Replies come in the order of the
// requests; so what is left of the older ones is done.
func (l *link) answer(r *request, rep reply) {
	for i, a := range l.away {
		if a == r {
			l.away = append(l.away[:i:i], l.away[i+1:]...)
			break
		}
	}
	l.finish(r, rep)
}

func (l *link) finish(r *request, rep reply) {
	if r.done || r.claim == nil {
		return
	}
	r.done = true
	e := r.Reply(rep.Reply).Event
	if e.Kind == quorum.Granted {
		if l.above = e.Token >= l.floor(); !l.above {
			e = r.Reply(quorum.Reply{Event: quorum.Event{Kind: quorum.Failed}}).Event
		}
	}
	if e.Kind == quorum.Granted && e.ID == r.claim.st.ID {
		r.claim.issued[l.n.i] = rep.issued
	}
	r.claim.answer(e, r)
}

// floor is the first token that may be used at the node. It is the same for all that comes
// over one connection.
func (l *link) floor() int64 {
	if l.w.cfg.Rules.NoFloor {
		return 0
	}
	return l.n.floor
}

// said is what a request says of the floor.
func (l *link) said() int64 {
	if l.above {
		return 0
	}
	return l.floor()
}

func (l *link) fail(r *request, unsent bool) {
	l.finish(r, reply{Reply: quorum.Reply{Event: quorum.Event{Kind: quorum.Failed, Unsent: unsent}}})
}

// owe keeps a release for the next connection. One that fails again is dropped.
func (l *link) owe(r *request) {
	if r.claim == nil || !r.Kind.Frees() {
		return
	}
	again := *r
	again.claim, again.Kind, again.Stamp = nil, quorum.AskRelease, 0
	l.owed = append(l.owed, owed{r: &again, until: l.w.now + r.TTL})
}

// sever breaks the connection. Where the node lives, what was under way may still
// be executed, a good while later.
func (l *link) sever(nodeLives bool) {
	if !l.up {
		return
	}
	l.up, l.above = false, false
	f := fate{at: l.w.now + l.w.upTo([]int64{3 * l.w.ttl, 20 * l.w.pause}[l.w.rng.IntN(2)])}
	if nodeLives {
		f.most = l.sent - l.w.rng.IntN(len(l.away)+1)
	}
	l.fate[l.gen] = f
	away := l.away
	l.away = nil
	l.w.schedule(l.c, 0, func() {
		for _, r := range away {
			l.owe(r)
		}
		for _, r := range away {
			l.fail(r, false)
		}
		l.c.hear(l.n.i, false)
	})
	if nodeLives {
		gen := l.gen
		l.w.after(l.w.upTo(2*second), func() { // the node notices later
			if l.n.ears[l] == gen {
				delete(l.n.ears, l)
			}
		})
	}
	l.redial()
}

// redial opens the next connection as soon as the gate lets it.
func (l *link) redial() {
	wait := max(l.n.votes-l.w.now, 0) // trying earlier would only take longer to simulate
	l.w.schedule(l.c, wait+redialLeast+l.w.upTo(min(redialMost, 8*l.w.pause)), func() {
		if l.w.now < l.cut || !l.n.admit(l.c) {
			l.redial()
			return
		}
		l.gen++
		l.up, l.boot = true, l.n.boot
		l.there, l.home, l.sent = 0, 0, 0
		owed := l.owed
		l.owed = nil
		for _, o := range owed {
			if l.w.now < o.until {
				l.send(o.r)
			}
		}
		l.w.log("%s reconnects to node %d", l.c.name, l.n.i)
		if l.c.subscribed {
			l.listen()
		}
	})
}

// listen subscribes over the present connection.
func (l *link) listen() {
	if !l.up {
		return
	}
	gen, boot := l.gen, l.boot
	l.there = max(l.there, l.w.now+l.delay())
	l.w.after(l.there-l.w.now, func() {
		if _, broken := l.fate[gen]; broken {
			return
		}
		l.subscribe(gen, boot)
	})
}

// subscribe is what the node does with it.
func (l *link) subscribe(gen, boot int) {
	switch {
	case l.n.down || l.n.boot != boot:
	case l.n.frozen:
		l.n.backlog = append(l.n.backlog, func() { l.subscribe(gen, boot) })
	case gen == l.gen && l.up:
		l.n.ears[l] = gen
		l.deliver(gen, func() { l.c.hear(l.n.i, true) })
	}
}
