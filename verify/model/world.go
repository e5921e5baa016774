package model

import "github.com/holdfast-go/holdfast/internal/quorum"

const (
	maxNodes   = 3
	maxClients = 3
	maxIDs     = 6 // ids of one client in use at once

	now  = int64(1)       // time of every event: timers run out by moves
	soon = int64(1) << 40 // when a running timer would run out
	far  = int64(1) << 50 // when a lock would expire
	ttl  = int64(10_000_000_000)

	brief     = int64(1_000_000_000) // the short TTL, if there are two
	stageTime = int64(2_000_000_000) // a stage of time, if there are two TTLs: more than brief, and twice as long is less than ttl

	startClock = int64(100_000_000) // more than a minute above zero
	clockStep  = int64(1) << 20     // the clock runs ahead of all counters
	clockJump  = int64(1) << 27     // µs; more than a minute
)

// owners are the ids of the clients: a letter for the client and a digit for the id.
var owners = func() (o [maxClients][maxIDs]string) {
	for c := range o {
		for id := range o[c] {
			o[c][id] = string([]byte{'a' + byte(c), '0' + byte(id)})
		}
	}
	return o
}()

func splitOwner(owner string) (client int, id uint8) { return int(owner[0] - 'a'), owner[1] - '0' }

// message is a request to a node, or an answer.
type message struct {
	kind    uint8 // quorum.AskKind or quorum.Kind
	of      uint8 // answers: the request, or wakeUp
	id      uint8
	epoch   uint8
	round   uint8 // the client's round when the request was sent
	stage   uint8 // stage of time when the request was sent
	marked  bool  // acquire: with the stamp; denied: queued
	brief   bool  // the TTL of the request
	restore bool  // renew: set a free lock again
	token   int32
	least   int32 // requests: first token that the client may use
}

// wakeUp is the value of message.of for a wake-up, which answers no request.
const wakeUp = 255

// line is a first-in-first-out queue of messages, like a connection.
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

// wire holds the messages between one client and one node.
type wire struct {
	requests, answers line
	failures          line  // of a broken connection: noticed in any order
	woken             uint8 // wake-ups in flight apart from the answers, by id
	cut               bool  // no message passes
	low               bool  // the node has granted a token that the client could not use
}

type node struct {
	lock   quorum.Lock
	wires  [maxClients]wire
	ghosts line   // requests of a broken connection
	ghost  uint8  // client of the ghosts
	proof  string // marker of the ghosts
	away   uint8  // clients whose leases must end before the node votes
	ahead  bool   // its clock is wrong
	frozen int64  // fixed value of the counter; 0: it counts

	saved quorum.Lock // data on its replica or disk
	floor int64       // first usable token since the node returned to the saved data
}

type claimLife uint8

const (
	idle claimLife = iota
	running
	ended
	crashed
)

type client struct {
	claim  quorum.Claim
	life   claimLife
	token  int32 // committed token; 0: none yet
	before uint8 // clients that had committed when this one began
	renews uint8 // renewals left
	round  uint8 // round of renewals
	rests  uint8 // rests left
	since  int64 // with setup.slot: time when the client found the slot on its current server
}

// world is the whole state.
type world struct {
	nodes   [maxNodes]node
	clients [maxClients]client
	clock   int64
	stage   uint8 // number of stages that have passed, if there are two TTLs
	left    faults
	members *members // nil: all nodes vote
}

// timeAt returns the clients' time, in ns.
func (s *setup) timeAt(stage, round uint8) int64 {
	return now + int64(stage)*s.stageTime() + int64(round)
}

// faults holds the number of times that each fault may still happen.
type faults struct {
	lock   uint8 // a node forgets a lock
	fence  uint8 // a node forgets a counter
	wipe   uint8 // a node forgets everything, and its connections break
	flush  uint8 // a node forgets everything, and its connections stay open
	crash  uint8 // a client dies
	broken uint8 // a connection breaks
	cut    uint8 // a client can no longer reach a node
	wake   uint8 // a wake-up is lost
	repeat uint8 // an acquire is delivered again at any later time
	place  uint8 // a place in a queue expires although its client waits
	jump   uint8 // the clock of a node jumps far ahead, or back
	others uint8 // another lock of a node is granted
	outage uint8 // a node forgets a lock while its holder has all nodes and knows it
	over   uint8 // a replica takes over from a node
	older  uint8 // a node is restarted with older data
	stage  uint8 // a stage of time passes

	// Faults of admission:
	again      uint8 // a node is restarted with its data
	files      uint8 // a node is restarted with the data and marker of another node
	copied     uint8 // a node gets the data of another node while its connections stay open
	restored   uint8 // a node gets its own saved data
	nodeClock  uint8 // a node's clock is set ahead
	localClock uint8 // a client's clock is set ahead
	bothClocks uint8 // the shared clock of a node and client 1 is set ahead
}

// setup describes the initial world and its behaviour.
type setup struct {
	nodes   int
	clients int
	waiting uint8             // clients that wait, by bit
	fences  []int64           // initial counters of the nodes
	frozen  bool              // counters stand still, for queue rows, which need no tokens
	skew    int64             // difference between the clients' clocks, µs
	renews  uint8             // renewals of each client; 255: no bound
	keeps   bool              // client 0 never releases; the world is done when it has every node
	adopts  uint8             // clients that adopt the detached lease of client 0, by bit
	deaf    uint8             // clients that receive no wake-ups, by bit
	rests   uint8             // times that each waiter's fallback timer runs out; 255: no bound
	cancel  bool              // clients may give up
	calm    bool              // timers run out only if no message of the client is in flight
	apart   bool              // wake-ups use their own connections, and so arrive in any order
	cut     [maxClients]uint8 // nodes that a client cannot reach, by bit
	holds   int               // nodes on which client 0, which does not wait, initially holds the lock
	fragile uint8             // clients whose connections may break, by bit; 0: all
	alone   bool              // two holders at once break the promise
	orders  bool              // tokens are checked
	fair    bool              // waiters are served in the order of their stamps
	after   bool              // a round that began after another commit must not renew a lease
	gate    bool              // a node with older data does not vote until its earlier grants are over
	spans   bool              // renewals ask for one of two TTLs, and locks expire with time
	starts  bool              // with spans: clients ask for the lock with the brief TTL
	slot    bool              // the node is a hash slot: clients find it on another server, and use their own clocks
	faults  faults
	hasty   bool            // patience and deadlines also count as slow
	admits  *admissionRules // nodes vote once admitted; nil: always
	prelude []move          // moves made first
	mutant  mutant
}

// mutant turns off one rule of the protocol.
type mutant struct {
	commitByAnyone   bool // commit without the owner check
	commitAnyToken   bool // commit without the check of the token that the node gave
	handOverUnseeded bool // C1: a hand-over does not seed a lost counter
	seedAnyTime      bool // C5: a counter starts at the node's clock, however wrong that is
	keepID           bool // C3: an unanswered give-back counts as answered
	ignoreOwed       bool // C3, seen from the client: a grant that overtakes the answer to a give-back counts
	keepForGiver     bool // C4: a give-back by the head keeps the node for it
	askOne           bool // C4: a wake-up asks only its own node
	keepPartial      bool // partial grants are not given back
	stay             bool // a client known to a minority does not withdraw
	byArrival        bool // each node orders waiters by arrival
	barge            bool // C6: a free lock goes to any client that asks
	anyOrder         bool // C7: wake-ups grant even if they arrive apart from the answers
	lowTokens        bool // C11: a node with older data gives tokens that it may have given before
	lateLow          bool // C13: a new client knows only the floors in its answers
	foundLow         bool // C13: the same for a client that finds its slot elsewhere
	regainNever      bool // C8: a node without the lock stays lost
	anewAtOnce       bool // C8: a node sets the lock again before a quorum has kept it in the round
	adoptAny         bool // C9: the lock of any owner is adopted
	adoptFree        bool // C9: a free lock is adopted too
	regrants         bool // C15: a late request gets the lock that was taken from its owner
	staysOut         bool // C16: a client that asks does not get its expired place again
	shortens         bool // C14: a request of an owner shortens what another has promised
	follows          bool // C14: the same, and the client trusts the shortest TTL that it asked for

	// Rules of admission:
	anyRun        bool // the run in the marker counts as the current one
	anyName       bool // the marker's name for the node counts as the client's
	anySet        bool // clients need not agree on the set
	durable       bool // each node counts as durable
	forgets       bool // the client forgets in which runs it saw the node admitted
	oldWatch      bool // the client keeps counting after the marker has changed
	wallClock     bool // the client counts by its wall clock
	nodesClock    bool // the client uses only the node's wall clock
	ownClock      bool // the client uses only its own clock
	onePeriod     bool // one period by wall clocks is enough
	blindly       bool // the marker is written without a comparison
	noProof       bool // requests are executed with any marker
	hiddenRun     bool // a node with a hidden run counts as never restarted
	noPromotion   bool // the run of a node that fails over does not show its promotions
	staysAndVotes bool // the only node grants in its quarantine
}

// move is one step of the world.
type move struct {
	kind   kind
	client uint8
	node   uint8
	index  uint8
}

type kind uint8

const (
	begin      kind = iota // a client asks for the lock
	execute                // a node executes the first request of a client
	ghost                  // a node executes a request of a broken connection
	answer                 // a client receives the first answer of a node
	failure                // a client notices that a request failed
	wake                   // a wake-up arrives
	silence                // a client no longer expects an answer
	patience               // a client's patience with partial grants ends
	rest                   // a client's fallback timer runs out
	renew                  // a holder renews
	release                // a holder releases, or a client gives up
	crash                  // a client dies
	lapse                  // a lock without a holder expires
	loseLock               // a node forgets a lock
	loseFence              // a node forgets a counter
	wipe                   // a node forgets everything, and its connections break
	flush                  // a node forgets everything, and its connections stay open
	sever                  // a connection breaks after index sent requests
	cutOff                 // a client can no longer reach a node
	loseWake               // a wake-up is lost
	repeat                 // an acquire will be delivered again
	losePlace              // a place in a queue expires
	jump                   // the clock of a node jumps
	outage                 // a node forgets a lock
	other                  // another lock of a node is granted
	pass                   // a stage of time passes
	save                   // a node's data is copied to its replica or disk
	takeOver               // the replica takes the node's place
	rewind                 // a node continues from its disk
	look                   // a client observes a node and decides about it
	swap                   // a node replaces its marker
	again                  // a node is restarted with its data
	files                  // a node is restarted with the data of node index
	copied                 // a node gets the data of node index
	restored               // a node gets its own saved data
	nodeClock              // a node's clock is set ahead
	localClock             // a client's clock is set ahead
	bothClocks             // the shared clock of a node and client 1 is set ahead
)

func (s *setup) initialWorld() world {
	w := world{clock: startClock, left: s.faults}
	for n := range s.nodes {
		node := &w.nodes[n]
		if n < len(s.fences) {
			node.lock.Fence = s.fences[n]
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
		if cl.claim.N, cl.claim.TTL = int8(s.nodes), ttl; s.starts {
			cl.claim.TTL = brief
		}
		cl.renews, cl.rests = s.renews, s.rests
		if s.waiting&(1<<c) != 0 {
			cl.claim.Stamp = int64(c + 1)
			cl.claim.Renews = !s.apart || s.mutant.anyOrder
		}
	}
	if s.admits != nil {
		w.members = s.initialMembers(&w)
	}
	if s.holds > 0 {
		w, _ = s.applyMove(&w, move{kind: begin})
		for n := range s.nodes {
			wire := &w.nodes[n].wires[0]
			if n >= s.holds {
				wire.requests = line{} // was lost
				continue
			}
			w, _ = s.applyMove(&w, move{kind: execute, node: uint8(n)})
			w, _ = s.applyMove(&w, move{kind: answer, node: uint8(n)})
		}
		w.clients[0].claim.Granted &= quorum.All(s.holds)
	}
	if s.adopts != 0 {
		for c := range s.clients {
			w.clients[c].claim.Adopts = s.adopts&(1<<c) != 0
		}
		if !s.keeps {
			w.clients[0].life = crashed // makes no difference to the nodes
			s.normalize(&w)
		}
	}
	for _, m := range s.prelude {
		w, _ = s.applyMove(&w, m)
	}
	return w
}

func (s *setup) isSlow(m move) bool {
	switch m.kind {
	case rest, lapse:
		return true
	case patience, silence:
		return s.hasty
	}
	return false
}

func (s *setup) isDone(w *world) bool {
	if s.keeps {
		return s.holdsLock(w, 0, s.nodes)
	}
	for c := range s.clients {
		switch cl := &w.clients[c]; {
		case cl.life == crashed || cl.life == ended:
		case s.isCutOff(w, c):
		default:
			return false
		}
	}
	return true
}

// holdsLock reports whether a client holds the lock, on at least that many nodes.
func (s *setup) holdsLock(w *world, c, nodes int) bool {
	cl := &w.clients[c]
	if cl.life != running || cl.claim.Phase != quorum.Held {
		return false
	}
	for n := range s.nodes {
		if w.nodes[n].lock.Owner == owners[c][cl.claim.ID] {
			nodes--
		}
	}
	return nodes <= 0
}

// isCutOff reports whether a client can reach no quorum.
func (s *setup) isCutOff(w *world, c int) bool {
	reach := 0
	for n := range s.nodes {
		if !w.nodes[n].wires[c].cut {
			reach++
		}
	}
	return reach < quorum.Majority(s.nodes)
}

func (s *setup) appendMoves(w *world, out []move) []move {
	add := func(k kind, client, node, index int) {
		out = append(out, move{k, uint8(client), uint8(node), uint8(index)})
	}
	for c := range s.clients {
		s.clientMoves(w, c, add)
	}
	for n := range s.nodes {
		for c := range s.clients {
			s.wireMoves(w, c, n, add)
		}
		s.nodeMoves(w, n, add)
	}
	if w.members != nil {
		s.memberMoves(w, add)
	}
	if w.left.stage > 0 {
		add(pass, 0, 0, 0)
	}
	return out
}

// clientMoves adds the moves of a client itself.
func (s *setup) clientMoves(w *world, c int, add func(k kind, client, node, index int)) {
	cl := &w.clients[c]
	if cl.life == idle && s.mayBegin(w, c) {
		add(begin, c, 0, 0)
	}
	if cl.life != running {
		return
	}
	switch {
	case cl.claim.Phase == quorum.Held:
		if c != 0 || !s.keeps {
			add(release, c, 0, 0)
		}
		if cl.renews > 0 && (cl.renews < 255 || !s.isBusy(w, c)) {
			add(renew, c, 0, 0)
			if s.spans {
				add(renew, c, 0, 1)
			}
		}
	case s.cancel:
		add(release, c, 0, 0)
	}
	if w.left.crash > 0 {
		add(crash, c, 0, 0)
	}
	if s.calm && s.isBusy(w, c) {
		return
	}
	for n := range cl.claim.Unanswered().Nodes {
		if cl.claim.Phase == quorum.Seeking {
			add(silence, c, n, 0)
		}
	}
	if cl.claim.GiveBackAt != 0 {
		add(patience, c, 0, 0)
	}
	if cl.claim.RestUntil != 0 && cl.rests > 0 {
		add(rest, c, 0, 0)
	}
}

// wireMoves adds the moves of messages between a client and a node.
func (s *setup) wireMoves(w *world, c, n int, add func(k kind, client, node, index int)) {
	wire := &w.nodes[n].wires[c]
	if wire.requests.n > 0 {
		add(execute, c, n, 0)
	}
	if wire.answers.n > 0 {
		add(answer, c, n, 0)
	}
	for i := range int(wire.failures.n) {
		add(failure, c, n, i)
	}
	for i, a := range wire.answers.all() {
		if a.of == wakeUp && w.left.wake > 0 {
			add(loseWake, c, n, i)
		}
	}
	for id := range maxIDs {
		if wire.woken&(1<<id) != 0 {
			add(wake, c, n, id)
			if w.left.wake > 0 {
				add(loseWake, c, n, id)
			}
		}
	}
	if w.left.broken > 0 && !wire.cut && w.nodes[n].ghosts.n == 0 && (s.fragile == 0 || s.fragile&(1<<c) != 0) {
		for sent := range int(wire.requests.n) + 1 {
			if sent > 0 || wire.answers.n > 0 {
				add(sever, c, n, sent)
			}
		}
	}
	if w.left.place > 0 && w.clients[c].life == running {
		for p := range w.nodes[n].lock.Queue.Places {
			if p.Owner == owners[c][w.clients[c].claim.ID] {
				add(losePlace, c, n, 0)
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

// nodeMoves adds the moves of a node and its data.
func (s *setup) nodeMoves(w *world, n int, add func(k kind, client, node, index int)) {
	node := &w.nodes[n]
	if node.ghosts.n > 0 {
		add(ghost, int(node.ghost), n, 0)
	}
	if node.lock.Owner != "" {
		if s.isAbandoned(w, n) {
			add(lapse, 0, n, 0)
		}
		if w.left.lock > 0 {
			add(loseLock, 0, n, 0)
		}
		if w.left.outage > 0 && s.holdsLock(w, 0, s.nodes) && w.clients[0].claim.Granted == quorum.All(s.nodes) {
			add(outage, 0, n, 0)
		}
	}
	if w.left.fence > 0 && node.lock.Fence != 0 {
		add(loseFence, 0, n, 0)
	}
	if w.left.wipe > 0 && !s.isEmpty(w, n) {
		add(wipe, 0, n, 0)
	}
	if w.left.flush > 0 && !s.isEmpty(w, n) {
		add(flush, 0, n, 0)
	}
	if w.left.over+w.left.older+w.left.restored > 0 && s.hasUnsaved(w, n) {
		add(save, 0, n, 0)
	}
	if w.left.over > 0 && s.isHit(n) {
		add(takeOver, 0, n, 0)
	}
	if w.left.older > 0 && s.mayRewind(w, n) {
		add(rewind, 0, n, 0)
	}
	if w.left.jump > 0 {
		add(jump, 0, n, 0)
	}
	if w.left.others > 0 && node.lock.Fence != 0 {
		add(other, 0, n, 0)
	}
}

// isBusy reports whether a message of a client is in flight.
func (s *setup) isBusy(w *world, c int) bool {
	for n := range s.nodes {
		wire := &w.nodes[n].wires[c]
		if wire.requests.n+wire.answers.n+wire.failures.n > 0 || wire.woken != 0 {
			return true
		}
	}
	return false
}

// isAbandoned reports whether no client relies on the lock of a node: if timers are slow, the lock expires
// after all messages of its owner have arrived.
func (s *setup) isAbandoned(w *world, n int) bool {
	nd := &w.nodes[n]
	c, id := splitOwner(nd.lock.Owner)
	cl := &w.clients[c]
	if s.calm && nd.wires[c].requests.n > 0 {
		return false
	}
	return cl.life != running || uint32(id) != cl.claim.ID || nd.wires[c].cut
}

func (s *setup) applyMove(from *world, m move) (world, string) {
	w := *from
	if w.members != nil {
		w.members = new(*w.members)
	}
	broken := s.applyClient(&w, m)
	s.failUnreachable(&w)
	s.normalize(&w)
	if s.hasTime() && broken == "" && s.hasOverlap(&w) {
		broken = "two hold the lock"
	}
	return w, broken
}

// applyClient makes a client's own move, or calls applyWire for another.
func (s *setup) applyClient(w *world, m move) (broken string) {
	c := int(m.client)
	cl := &w.clients[c]
	switch m.kind {
	case begin:
		return s.beginClient(w, c)
	case silence:
		cl.claim.AnswerBy[m.node] = now
		return s.stepClient(w, c, quorum.Event{Kind: quorum.Tick})
	case patience:
		cl.claim.GiveBackAt = now
		return s.stepClient(w, c, quorum.Event{Kind: quorum.Tick})
	case rest:
		if cl.rests != 255 {
			cl.rests--
		}
		cl.claim.RestUntil = now
		return s.stepClient(w, c, quorum.Event{Kind: quorum.Tick})
	case renew:
		if cl.renews < 255 {
			cl.renews--
		}
		return s.stepClient(w, c, quorum.Event{Kind: quorum.Renew, TTL: ttlOf(m.index == 1)})
	case release:
		return s.stepClient(w, c, quorum.Event{Kind: quorum.Release})
	case crash:
		w.left.crash--
		cl.life = crashed
		return ""
	}
	return s.applyWire(w, m)
}

func (s *setup) beginClient(w *world, c int) (broken string) {
	cl := &w.clients[c]
	cl.life = running
	if s.slot && !s.mutant.lateLow {
		cl.since = w.clock
	}
	for o := range s.clients {
		if w.clients[o].token != 0 {
			cl.before |= 1 << o
		}
	}
	return s.stepClient(w, c, quorum.Event{Kind: quorum.Start, Nodes: s.subscribedNodes(c)})
}

// applyWire makes a move between a client and a node, or calls applyNode for another.
func (s *setup) applyWire(w *world, m move) (broken string) {
	c, n := int(m.client), int(m.node)
	nd := &w.nodes[n]
	wire := &nd.wires[c]
	switch m.kind {
	case execute:
		s.executeRequest(w, c, n)
	case answer:
		return s.deliverAnswer(w, c, n, wire.answers.pop(0))
	case failure:
		return s.deliverAnswer(w, c, n, wire.failures.pop(int(m.index)))
	case wake:
		wire.woken &^= 1 << m.index
		if cl := &w.clients[c]; cl.life == running && cl.claim.ID == uint32(m.index) {
			return s.deliverAnswer(w, c, n, message{kind: uint8(quorum.Woken), of: wakeUp, id: m.index, token: int32(nd.frozen)})
		}
	case loseWake:
		w.left.wake--
		if s.apart {
			wire.woken &^= 1 << m.index
		} else {
			wire.answers.pop(int(m.index))
		}
	case sever:
		w.left.broken--
		s.breakConnection(w, c, n, int(m.index))
	case repeat:
		w.left.repeat--
		nd.ghosts.push(wire.requests.m[0])
		nd.ghost = m.client
	case losePlace:
		w.left.place--
		nd.lock.Queue = nd.lock.Queue.Without(owners[c][w.clients[c].claim.ID])
	case cutOff:
		w.left.cut--
		wire.cutOff()
	default:
		return s.applyNode(w, m)
	}
	return ""
}

// executeRequest makes a node answer the first request of a client.
func (s *setup) executeRequest(w *world, c, n int) {
	nd := &w.nodes[n]
	r := nd.wires[c].requests.pop(0)
	kind := quorum.AskKind(r.kind)
	answer := r.failedAnswer()
	if s.admitsRequest(w, c, n, kind) && (nd.away == 0 || s.faults.over != 0 && (kind == quorum.AskRenew || kind.Frees())) {
		answer = s.serveRequest(w, c, n, r)
	}
	s.sendAnswer(w, c, n, answer)
}

// cutOff drops all later messages. A wake-up in flight would arrive after its lock has expired.
func (v *wire) cutOff() {
	v.cut = true
	for i := int(v.answers.n) - 1; i >= 0; i-- {
		if v.answers.m[i].of == wakeUp {
			v.answers.pop(i)
		}
	}
}

// applyNode makes a move of a node, lets time pass, or calls applyMember for another move.
func (s *setup) applyNode(w *world, m move) (broken string) {
	c, n := int(m.client), int(m.node)
	nd := &w.nodes[n]
	switch m.kind {
	case ghost:
		if r := nd.ghosts.pop(0); nd.away == 0 && s.markerMatches(w, n, nd.proof) {
			s.serveRequest(w, c, n, r) // the answer is lost
		}
	case lapse:
		nd.dropLock()
	case loseLock:
		w.left.lock--
		nd.dropLock()
	case outage:
		w.left.outage--
		nd.dropLock()
	case loseFence:
		w.left.fence--
		nd.lock.Fence = 0
		w.clock += clockStep
	case wipe:
		w.left.wipe--
		s.restartNode(w, n, quorum.Lock{})
		s.setMarker(w, n, "")
	case flush:
		w.left.flush--
		s.flushNode(w, n)
	case save:
		s.saveNode(w, n)
	case takeOver:
		w.left.over--
		s.promoteReplica(w, n)
	case rewind:
		w.left.older--
		s.rewindNode(w, n)
	case jump:
		w.left.jump--
		if nd.ahead = !nd.ahead; nd.ahead {
			nd.lock = quorum.Lock{Fence: nd.lock.Fence} // all else has expired
			w.clock += clockStep
		}
	case other:
		w.left.others--
		nd.lock.Fence += quorum.Block
	case pass:
		w.left.stage--
		w.stage++
		w.clock += s.stageTime() / 1000
	default:
		return s.applyMember(w, m)
	}
	return ""
}

// dropLock makes the node forget the owner and nothing else.
func (nd *node) dropLock() { nd.lock.Owner, nd.lock.Token, nd.lock.Until = "", 0, 0 }
