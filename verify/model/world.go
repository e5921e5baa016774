package model

import (
	"bytes"
	"slices"

	"github.com/holdfast-go/holdfast/internal/quorum"
)

const (
	maxNodes   = 3
	maxClients = 3
	maxIDs     = 6 // of one client, at the same time in use

	now   = int64(1)       // the time of every event: what runs out does so by a move
	soon  = int64(1) << 40 // when a timer that runs would run out
	far   = int64(1) << 50 // when a lock would lapse
	ttl   = int64(10_000_000_000)
	ttlMS = ttl / 1_000_000

	startClock = int64(1000)
	clockStep  = int64(1) << 20 // the clock runs ahead of all counters
	clockJump  = int64(1) << 27 // µs; more than a minute
)

// owners are the ids that clients go by: a letter for the client, a digit for
// the id.
var owners = func() (o [maxClients][maxIDs]string) {
	for c := range o {
		for id := range o[c] {
			o[c][id] = string([]byte{'a' + byte(c), '0' + byte(id)})
		}
	}
	return o
}()

func split(owner string) (client int, id uint8) { return int(owner[0] - 'a'), owner[1] - '0' }

// message is a request on its way to a node, or an answer on its way back.
type message struct {
	kind   uint8 // quorum.Request or quorum.Kind
	of     uint8 // answers: the request
	id     uint8
	epoch  uint8
	marked bool // acquire: with the stamp; denied: queued
	token  int32
}

// line is a first-in-first-out line of messages, as a connection carries them.
type line struct {
	n uint8
	m [7]message
}

func (l *line) push(m message) {
	l.m[l.n] = m // out of range: the model needs longer lines
	l.n++
}

func (l *line) pop(i int) message {
	m := l.m[i]
	copy(l.m[i:], l.m[i+1:l.n])
	l.n--
	l.m[l.n] = message{}
	return m
}

func (l *line) all() []message { return l.m[:l.n] }

// wire is what travels between one client and one node.
type wire struct {
	requests, answers line
	failures          line  // of a broken connection: they are noticed in any order
	woken             uint8 // wake-ups under way, by id
	cut               bool  // nothing gets through any more
}

type node struct {
	lock   quorum.Lock
	wires  [maxClients]wire
	ghosts line  // sent over a connection that has broken since
	ghost  uint8 // whose they are
	away   uint8 // clients whose end the node waits for before it votes
	ahead  bool  // its clock is wrong
	frozen int64 // the counter stays here; 0: it counts
}

type life uint8

const (
	idle life = iota
	running
	ended
	crashed
)

type client struct {
	claim  quorum.Claim
	life   life
	token  int32 // committed; 0: not yet
	before uint8 // clients that had committed when this one began
	renews uint8 // left
	rests  uint8 // left
}

// world is the state of everything.
type world struct {
	nodes   [maxNodes]node
	clients [maxClients]client
	clock   int64
	left    faults
}

// faults is how often each fault may still happen.
type faults struct {
	lock   uint8 // a node forgets a lock
	fence  uint8 // a node forgets a counter
	wipe   uint8 // a node forgets everything
	crash  uint8 // a client dies
	broken uint8 // a connection breaks
	cut    uint8 // a client can no longer reach a node
	wake   uint8 // a wake-up is lost
	repeat uint8 // an acquire is delivered once more, any time later
	jump   uint8 // the clock of a node jumps far ahead, or back
}

// setup is a world to begin with, and how it behaves.
type setup struct {
	nodes   int
	clients int
	waiting uint8             // clients that wait, by bit
	fences  []int64           // counters of the nodes at first
	frozen  bool              // counters do not count: queue rows, which ask for nothing of them
	skew    int64             // how far apart the clients' clocks are, µs
	renews  uint8             // how often each client renews
	rests   uint8             // how often each waiter's fallback timer runs out; 255: no bound
	cancel  bool              // clients may give up
	calm    bool              // timers run out only when nothing of the client's is on its way
	cut     [maxClients]uint8 // nodes that a client cannot reach, by bit
	holds   int               // on how many nodes client 0, which does not wait, holds the lock at first
	fragile uint8             // clients whose connections may break, by bit; 0: all
	alone   bool              // two holders at the same time break the promise
	orders  bool              // tokens are checked
	fair    bool              // waiters are served in the order of their stamps
	gate    bool              // a wiped node does not vote until what it granted is over
	faults  faults
	hasty   bool   // patience and deadlines count as slow too, not only what lasts a second
	prelude []move // made before everything else
	mutant  mutant
}

// mutant switches one rule of the protocol off.
type mutant struct {
	commitByAnyone   bool // commit without the owner check
	commitAnyToken   bool // commit without the check of the counter
	handOverUnseeded bool // C1: a hand-over does not seed a counter that ran out
	renewSeedsToken  bool // C2: a renewal seeds a lost counter from its token
	seedAnyTime      bool // C5: a counter starts at the node's clock, however wrong that is
	keepID           bool // C3: an unanswered give-back is taken for an answered one
	ignoreOwed       bool // C3, seen from the client: a grant that overtakes the answer to a give-back counts
	keepForGiver     bool // C4: a give-back by the head keeps the node for it
	askOne           bool // C4: a wake-up asks the node it came from
	keepPartial      bool // partial grants are not given back
	stay             bool // who is known to a minority does not withdraw
	byArrival        bool // each node orders waiters as they come
	barge            bool // C6: a free lock goes to whoever asks
}

// move is one thing that can happen.
type move struct {
	kind   kind
	client uint8
	node   uint8
	index  uint8
}

type kind uint8

const (
	begin     kind = iota // a client asks for the lock
	execute               // a node executes the first request of a client's
	ghost                 // a node executes a request of a broken connection
	answer                // a client gets the first answer of a node
	failure               // a client notices that a request failed
	wake                  // a wake-up arrives
	silence               // a client no longer counts on an answer
	patience              // a client's patience with partial grants is over
	rest                  // a client's fallback timer runs out
	renew                 // a holder renews
	release               // a holder releases, or a client gives up
	crash                 // a client dies
	lapse                 // a lock lapses that nobody relies on
	loseLock              // a node forgets a lock
	loseFence             // a node forgets a counter
	wipe                  // a node forgets everything
	sever                 // a connection breaks; index requests had been sent
	cutOff                // a client can no longer reach a node
	loseWake              // a wake-up is lost
	repeat                // an acquire will be delivered once more
	jump                  // the clock of a node jumps
)

func (s *setup) initial() world {
	w := world{clock: startClock, left: s.faults}
	for n := range s.nodes {
		node := &w.nodes[n]
		if n < len(s.fences) {
			node.lock.Fence = s.fences[n]
			node.lock.FenceUntil = far
		}
		if s.frozen {
			node.frozen = node.lock.Fence
		}
		for c := range s.clients {
			node.wires[c].cut = s.cut[c]&(1<<n) != 0
		}
	}
	for c := range s.clients {
		cl := &w.clients[c]
		cl.claim.N, cl.claim.TTL = int8(s.nodes), ttl
		cl.renews, cl.rests = s.renews, s.rests
		if s.waiting&(1<<c) != 0 {
			cl.claim.Stamp = int64(c + 1)
		}
	}
	if s.holds > 0 {
		w, _ = s.apply(&w, move{kind: begin})
		for n := range s.nodes {
			wire := &w.nodes[n].wires[0]
			if n >= s.holds {
				wire.requests = line{} // was lost
				continue
			}
			w, _ = s.apply(&w, move{kind: execute, node: uint8(n)})
			w, _ = s.apply(&w, move{kind: answer, node: uint8(n)})
		}
		w.clients[0].claim.Granted &= quorum.All(s.holds)
	}
	for _, m := range s.prelude {
		w, _ = s.apply(&w, m)
	}
	return w
}

func (s *setup) slow(m move) bool {
	switch m.kind {
	case rest, lapse:
		return true
	case patience, silence:
		return s.hasty
	}
	return false
}

func (s *setup) done(w *world) bool {
	for c := range s.clients {
		switch cl := &w.clients[c]; {
		case cl.life == crashed || cl.life == ended:
		case s.severed(w, c):
		default:
			return false
		}
	}
	return true
}

// severed says that a client can reach no quorum: nobody can help it.
func (s *setup) severed(w *world, c int) bool {
	reach := 0
	for n := range s.nodes {
		if !w.nodes[n].wires[c].cut {
			reach++
		}
	}
	return reach < quorum.Majority(s.nodes)
}

func (s *setup) moves(w *world, out []move) []move {
	add := func(k kind, client, node, index int) {
		out = append(out, move{k, uint8(client), uint8(node), uint8(index)})
	}
	for c := range s.clients {
		cl := &w.clients[c]
		if cl.life == idle {
			add(begin, c, 0, 0)
		}
		if cl.life != running {
			continue
		}
		switch {
		case cl.claim.Phase == quorum.Held:
			add(release, c, 0, 0)
			if cl.renews > 0 {
				add(renew, c, 0, 0)
			}
		case s.cancel:
			add(release, c, 0, 0)
		}
		if w.left.crash > 0 {
			add(crash, c, 0, 0)
		}
		if s.calm && s.busy(w, c) {
			continue
		}
		for n := range (cl.claim.Asked | cl.claim.Pending).Nodes {
			if cl.claim.Phase == quorum.Seeking {
				add(silence, c, n, 0)
			}
		}
		if cl.claim.Patience != 0 {
			add(patience, c, 0, 0)
		}
		if cl.claim.Rest != 0 && cl.rests > 0 {
			add(rest, c, 0, 0)
		}
	}
	for n := range s.nodes {
		node := &w.nodes[n]
		for c := range s.clients {
			wire := &node.wires[c]
			if wire.requests.n > 0 {
				add(execute, c, n, 0)
			}
			if wire.answers.n > 0 {
				add(answer, c, n, 0)
			}
			for i := range int(wire.failures.n) {
				add(failure, c, n, i)
			}
			for id := range maxIDs {
				if wire.woken&(1<<id) != 0 {
					add(wake, c, n, id)
					if w.left.wake > 0 {
						add(loseWake, c, n, id)
					}
				}
			}
			if w.left.broken > 0 && !wire.cut && node.ghosts.n == 0 && (s.fragile == 0 || s.fragile&(1<<c) != 0) {
				for sent := range int(wire.requests.n) + 1 {
					if sent > 0 || wire.answers.n > 0 {
						add(sever, c, n, sent)
					}
				}
			}
			if w.left.repeat > 0 && wire.requests.n > 0 && wire.requests.m[0].kind == uint8(quorum.AskAcquire) {
				add(repeat, c, n, 0)
			}
			if w.left.cut > 0 && !wire.cut && w.clients[c].life <= running {
				add(cutOff, c, n, 0)
			}
		}
		if node.ghosts.n > 0 {
			add(ghost, int(node.ghost), n, 0)
		}
		if node.lock.Owner != "" {
			if s.dead(w, n) {
				add(lapse, 0, n, 0)
			}
			if w.left.lock > 0 {
				add(loseLock, 0, n, 0)
			}
		}
		if w.left.fence > 0 && node.lock.Fence != 0 {
			add(loseFence, 0, n, 0)
		}
		if w.left.wipe > 0 && node.lock != (quorum.Lock{}) {
			add(wipe, 0, n, 0)
		}
		if w.left.jump > 0 {
			add(jump, 0, n, 0)
		}
	}
	return out
}

// busy says that something of a client's is on its way.
func (s *setup) busy(w *world, c int) bool {
	for n := range s.nodes {
		wire := &w.nodes[n].wires[c]
		if wire.requests.n+wire.answers.n+wire.failures.n > 0 || wire.woken != 0 {
			return true
		}
	}
	return false
}

// dead says that nobody relies on the lock of a node: it lapses some time, if
// timers are slow, after all that its owner has sent has arrived.
func (s *setup) dead(w *world, n int) bool {
	nd := &w.nodes[n]
	c, id := split(nd.lock.Owner)
	cl := &w.clients[c]
	if s.calm && nd.wires[c].requests.n > 0 {
		return false
	}
	return cl.life != running || uint32(id) != cl.claim.ID || nd.wires[c].cut
}

func (s *setup) apply(from *world, m move) (world, string) {
	w := *from
	c, n := int(m.client), int(m.node)
	cl, nd := &w.clients[c], &w.nodes[n]
	wire := &nd.wires[c]
	broken := ""
	switch m.kind {
	case begin:
		cl.life = running
		for o := range s.clients {
			if w.clients[o].token != 0 {
				cl.before |= 1 << o
			}
		}
		broken = s.event(&w, c, quorum.Event{Kind: quorum.Start, Nodes: quorum.All(s.nodes)})
	case execute:
		r := wire.requests.pop(0)
		if nd.away != 0 {
			s.reply(&w, c, n, message{kind: uint8(quorum.Failed), of: r.kind, id: r.id, epoch: r.epoch})
			break
		}
		s.reply(&w, c, n, s.serve(&w, c, n, r))
	case ghost:
		s.serve(&w, c, n, nd.ghosts.pop(0)) // nobody hears the answer
	case answer:
		broken = s.hear(&w, c, n, wire.answers.pop(0))
	case failure:
		broken = s.hear(&w, c, n, wire.failures.pop(int(m.index)))
	case wake:
		wire.woken &^= 1 << m.index
		if cl.life == running && cl.claim.ID == uint32(m.index) {
			broken = s.event(&w, c, quorum.Event{Kind: quorum.Woken, Node: n})
		}
	case loseWake:
		w.left.wake--
		wire.woken &^= 1 << m.index
	case silence:
		cl.claim.AskBy[n] = now
		broken = s.event(&w, c, quorum.Event{Kind: quorum.Tick})
	case patience:
		cl.claim.Patience = now
		broken = s.event(&w, c, quorum.Event{Kind: quorum.Tick})
	case rest:
		if cl.rests != 255 {
			cl.rests--
		}
		cl.claim.Rest = now
		broken = s.event(&w, c, quorum.Event{Kind: quorum.Tick})
	case renew:
		cl.renews--
		broken = s.event(&w, c, quorum.Event{Kind: quorum.Renew, TTL: ttl})
	case release:
		broken = s.event(&w, c, quorum.Event{Kind: quorum.Release})
	case crash:
		w.left.crash--
		cl.life = crashed
	case lapse:
		nd.lock.Owner, nd.lock.Until = "", 0
	case loseLock:
		w.left.lock--
		nd.lock.Owner, nd.lock.Until = "", 0
	case loseFence:
		w.left.fence--
		nd.lock.Fence, nd.lock.FenceUntil = 0, 0
		w.clock += clockStep
	case wipe:
		w.left.wipe--
		s.wipe(&w, n)
	case repeat:
		w.left.repeat--
		nd.ghosts.push(wire.requests.m[0])
		nd.ghost = m.client
	case sever:
		w.left.broken--
		s.sever(&w, c, n, int(m.index))
	case cutOff:
		w.left.cut--
		wire.cut = true
	case jump:
		w.left.jump--
		if nd.ahead = !nd.ahead; nd.ahead {
			nd.lock = quorum.Lock{} // all of it has expired
			w.clock += clockStep
		}
	}
	s.fail(&w)
	s.tidy(&w)
	return w, broken
}

// fail answers at once what is asked where nothing gets through.
func (s *setup) fail(w *world) {
	for again := true; again; {
		again = false
		for c := range s.clients {
			for n := range s.nodes {
				wire := &w.nodes[n].wires[c]
				for wire.cut && wire.requests.n > 0 {
					r := wire.requests.pop(0)
					a := message{kind: uint8(quorum.Failed), of: r.kind, id: r.id, epoch: r.epoch}
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
	a := message{of: r.kind, id: r.id, epoch: r.epoch}
	stamp := int64(0)
	if r.marked {
		stamp = w.place(s, c, n)
	}
	hears := func(owner string) bool {
		c, _ := split(owner)
		return w.clients[c].life != crashed
	}
	woken := ""
	switch quorum.Request(r.kind) {
	case quorum.AskAcquire:
		var reply quorum.AcquireReply
		queue := l.Queue
		if s.mutant.barge {
			l.Queue = ""
		}
		l, reply = l.Acquire(clock, owner, ttlMS, told, stamp, hears)
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
		default:
			a.kind = uint8(quorum.NotMine)
		}
	case quorum.AskRelease, quorum.AskGiveBack:
		before := l
		l, woken = l.Release(clock, owner, stamp, ttlMS, hears)
		if head, _ := l.Queue.Head(); s.mutant.keepForGiver && before.Owner == owner && head == owner && woken == "" {
			l.Owner, l.Until, l.Queue, woken = owner, far, l.Queue.Without(owner), owner
			l.Fence += quorum.Block
		}
		if s.mutant.handOverUnseeded && before.Fence == 0 && woken != "" {
			l.Fence = quorum.Block
		}
		a.kind = uint8(quorum.Freed)
	}
	if nd.frozen != 0 {
		l.Fence = nd.frozen
	}
	nd.lock = l
	if woken != "" {
		to, id := split(woken)
		nd.wires[to].woken |= 1 << id
	}
	return a
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

// cares says whether an answer still means something to the client: it would
// be void for another id or epoch, and once the claim is over nothing counts.
func (s *setup) cares(w *world, c, n int, a message) bool {
	cl := &w.clients[c]
	return cl.life == running && cl.claim.ID == uint32(a.id) && cl.claim.Epoch[n] == a.epoch
}

func (s *setup) hear(w *world, c, n int, a message) string {
	return s.event(w, c, quorum.Event{
		Kind: quorum.Kind(a.kind), Of: quorum.Request(a.of), Node: n, ID: uint32(a.id), Epoch: a.epoch,
		Sent: now, TTL: ttl, Token: int64(a.token), Left: ttl, Queued: a.marked,
	})
}

// event brings an event to a client and carries out what it wants done.
func (s *setup) event(w *world, c int, e quorum.Event) string {
	cl := &w.clients[c]
	e.At = now
	if s.mutant.keepID && e.Kind == quorum.Failed && e.Of == quorum.AskGiveBack {
		e.Kind = quorum.Freed
	}
	was := cl.claim
	next, a := quorum.Step(was, e)
	s.mutate(was, &next, &e, &a)
	cl.claim = next
	id := uint8(next.ID)
	s.send(w, c, quorum.AskRelease, a.Release, uint8(was.ID), 0)
	s.send(w, c, quorum.AskGiveBack, a.GiveBack, id, a.GiveBack)
	s.send(w, c, quorum.AskAcquire, a.Acquire, id, a.Stamped)
	s.send(w, c, quorum.AskCommit, a.Commit, id, 0)
	s.send(w, c, quorum.AskRenew, a.Renew, id, 0)
	if a.Outcome == quorum.Renewed {
		for n := range s.nodes {
			w.nodes[n].away &^= 1 << c
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
	if s.mutant.ignoreOwed {
		next.Owed = 0
	}
	if s.mutant.stay && a.FreshID && !next.Queueing {
		*next = was
		next.Asked, next.Rest, next.Patience = 0, soon, 0
		*a = quorum.Actions{}
	}
}

func (s *setup) send(w *world, c int, kind quorum.Request, to quorum.Set, id uint8, stamped quorum.Set) {
	cl := &w.clients[c]
	for n := range to.Nodes {
		m := message{kind: uint8(kind), id: id, epoch: cl.claim.Epoch[n], marked: stamped.Has(n)}
		if kind == quorum.AskCommit || kind == quorum.AskRenew {
			m.token = int32(cl.claim.Token)
		}
		w.nodes[n].wires[c].requests.push(m)
	}
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
		if s.alone && other.life == running && other.claim.Phase == quorum.Held {
			return "two hold the lock"
		}
		if s.fair && other.life == running && other.claim.Phase == quorum.Seeking && other.claim.Stamp < cl.claim.Stamp {
			return "a later waiter is served first"
		}
		if !s.orders || other.token == 0 {
			continue
		}
		if d := cl.token - other.token; -quorum.Block < d && d < quorum.Block {
			return "two grants share a token"
		}
		if cl.before&(1<<o) != 0 && cl.token < other.token {
			return "a later grant has a lower token"
		}
	}
	cl.before = 0
	return ""
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

// sever breaks a connection. The first sent requests had left and may still be
// executed, in order; the others go over the next connection.
func (s *setup) sever(w *world, c, n, sent int) {
	nd := &w.nodes[n]
	wire := &nd.wires[c]
	fail := func(of uint8, m message) {
		a := message{kind: uint8(quorum.Failed), of: of, id: m.id, epoch: m.epoch}
		if s.cares(w, c, n, a) {
			wire.failures.push(a)
		}
	}
	for wire.answers.n > 0 {
		a := wire.answers.pop(0)
		fail(a.of, a)
	}
	for range sent {
		r := wire.requests.pop(0)
		fail(r.kind, r)
		nd.ghosts.push(r)
		nd.ghost = uint8(c)
	}
}

// tidy brings what does not matter to one form, so that the states are few.
func (s *setup) tidy(w *world) {
	for c := range s.clients {
		cl := &w.clients[c]
		if cl.life == ended || cl.life == crashed {
			cl.claim = quorum.Claim{ID: maxIDs}
			cl.before, cl.renews, cl.rests = 0, 0, 0
		}
		for n := range s.nodes {
			s.tidyWire(w, c, n)
		}
		s.tidyClaim(&cl.claim)
		s.tidyIDs(w, c)
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
		l := &nd.lock
		if l.Owner != "" {
			l.Until = far
		}
		if l.Fence != 0 {
			l.FenceUntil = far
		}
		if l.QueueUntil = 0; l.Queue != "" {
			l.QueueUntil = far
		}
		if s.mutant.byArrival { // what counts is the order
			var queue quorum.Queue
			stamp := int64(0)
			for _, owner := range l.Queue.Entries {
				stamp++
				queue = queue.With(owner, stamp)
			}
			l.Queue = queue
		}
	}
}

// tidyWire drops the answers that no longer matter, and counts epochs from the
// oldest in use.
func (s *setup) tidyWire(w *world, c, n int) {
	nd := &w.nodes[n]
	wire := &nd.wires[c]
	cl := &w.clients[c]
	for _, l := range [...]*line{&wire.answers, &wire.failures} {
		for i := int(l.n) - 1; i >= 0; i-- {
			if !s.cares(w, c, n, l.m[i]) {
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
			if uint32(m.id) == cl.claim.ID {
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
			if uint32(l.m[i].id) == cl.claim.ID {
				l.m[i].epoch -= least
			}
		}
	}
}

func (s *setup) tidyClaim(c *quorum.Claim) {
	for n := range s.nodes {
		set := quorum.Only(n)
		if c.Granted&set == 0 {
			c.Base[n], c.Until[n] = 0, 0
		} else {
			c.Until[n] = far
		}
		if c.AskBy[n] = 0; (c.Asked|c.Pending)&set != 0 {
			c.AskBy[n] = soon
		}
		if c.Sends[n] > 0 {
			c.Sends[n] = 255
		}
	}
	if c.Queueing && c.Reached {
		c.Denied, c.Failed = 0, 0 // only how long to wait depends on them
	}
	c.Left, c.Trip, c.Polls, c.Round = 0, 0, 0, 0
	if c.Trust != 0 {
		c.Trust = far
	}
	if c.Patience != 0 {
		c.Patience = soon
	}
	if c.Rest != 0 {
		c.Rest = soon
	}
}

// tidyIDs names a client's ids that are still in use 0, 1, … in their order.
func (s *setup) tidyIDs(w *world, c int) {
	cl := &w.clients[c]
	if cl.claim.ID == 0 {
		return
	}
	var used uint8
	if cl.life == running {
		used |= 1 << cl.claim.ID
	}
	s.eachID(w, c, func(id uint8) uint8 { used |= 1 << id; return id })
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
	s.eachID(w, c, func(id uint8) uint8 { return name[id] })
	if cl.life == running {
		cl.claim.ID = uint32(name[cl.claim.ID])
	}
}

// eachID replaces each mention of an id of c.
func (s *setup) eachID(w *world, c int, to func(uint8) uint8) {
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
		if l := &nd.lock; l.Owner != "" {
			if o, id := split(l.Owner); o == c {
				l.Owner = owners[c][to(id)]
			}
		}
		var queue quorum.Queue
		for stamp, owner := range nd.lock.Queue.Entries {
			if o, id := split(owner); o == c {
				owner = owners[c][to(id)]
			}
			queue = queue.With(owner, stamp)
		}
		nd.lock.Queue = queue
	}
}

// encode writes what a world is. Nodes that differ only in their number are
// the same: their parts are sorted.
func (s *setup) encode(w *world, b []byte) []byte {
	f := &w.left
	b = append(b, f.lock, f.fence, f.wipe, f.crash, f.broken, f.cut, f.wake, f.repeat, f.jump, byte(w.clock/clockStep))
	for c := range s.clients {
		cl := &w.clients[c]
		b = append(b, byte(cl.life), cl.before, cl.renews, cl.rests)
		b = append32(b, cl.token)
		if cl.life != running {
			continue
		}
		k := &cl.claim
		b = append(b, byte(k.Phase), byte(k.ID), flags(k.Queueing, k.Reached, k.Untold, k.Patience != 0, k.Rest != 0, k.Trust != 0))
		b = append32(b, int32(k.Token))
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
	b = append(b, '/', nd.away, flags(nd.ahead))
	b = append32(b, int32(nd.lock.Fence))
	for stamp, owner := range nd.lock.Queue.Entries {
		b = append(b, owner...)
		b = append(b, byte(stamp))
	}
	b = append(b, '/', nd.ghost)
	b = encodeLine(&nd.ghosts, b)
	for c := range s.clients {
		cl := &w.clients[c]
		if cl.life == running {
			k, set := &cl.claim, quorum.Only(n)
			b = append(b,
				flags(k.Asked&set != 0, k.Granted&set != 0, k.Owed&set != 0, k.Agreed&set != 0, k.Pending&set != 0, k.Denied&set != 0),
				flags(k.Failed&set != 0, k.Fatal&set != 0, k.Queued&set != 0, k.Heard&set != 0, k.Sends[n] != 0), k.Epoch[n])
			b = append32(b, int32(k.Base[n]))
		}
		wire := &nd.wires[c]
		b = append(b, wire.woken, flags(wire.cut))
		b = encodeLine(&wire.requests, b)
		b = encodeLine(&wire.answers, b)
		at := len(b)
		b = encodeLine(&wire.failures, b)
		sortMessages(b[at+1:])
	}
	return b
}

const messageLen = 9

func encodeLine(l *line, b []byte) []byte {
	b = append(b, l.n)
	for _, m := range l.all() {
		b = append(b, m.kind, m.of, m.id, m.epoch, flags(m.marked))
		b = append32(b, m.token)
	}
	return b
}

// sortMessages sorts encoded messages, for which order means nothing.
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

func append32(b []byte, v int32) []byte {
	return append(b, byte(v), byte(v>>8), byte(v>>16), byte(v>>24))
}

func flags(set ...bool) byte {
	var f byte
	for i, on := range set {
		if on {
			f |= 1 << i
		}
	}
	return f
}
