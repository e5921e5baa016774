package model

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/member"
	"github.com/holdfast-go/holdfast/internal/quorum"
)

// period is the length of a quarantine, and of a stage of time if nodes are admitted. A lease is over by then.
var period = int64(member.Quarantine(time.Duration(ttl)))

const clockSet = int64(30_000_000) // µs by which a clock jumps: more than two periods, less than a minute

// admissionRules holds the rules of admission in a world, and the parts that faults affect.
type admissionRules struct {
	rules   member.Rules
	others  *member.Rules // rules of client 1, if it has its own
	fresh   uint8         // nodes that no client has seen yet, by bit
	durable uint8         // nodes that sync to disk before they answer, by bit
	brief   uint8         // clients that restart each second and remember nothing, by bit
	hits    uint8         // nodes that faults hit, by bit
	hidden  bool          // nodes hide their run
	seen    bool          // nodes return only to data of an earlier run, after all clients saw them vote in it and in the current one
	shows   bool          // the row searches for a node that votes
	anyTime bool          // clocks of nodes also jump while they keep locks
	half    bool          // a stage is half of a quarantine
}

// members holds the records of nodes and clients about the admission of nodes.
type members struct {
	nodes   [maxNodes]memory
	clients [maxClients][maxNodes]view
	clocks  [maxClients]int64 // lead of a client's wall clock, µs
}

// memory holds the facts that a node remembers.
type memory struct {
	marker, saved string
	run           uint8 // number of the run, of one server or of two that take turns
	server        uint8 // active server of a node that fails over
	promotions    uint8
	ahead         int64 // lead of its clock, µs
}

// view holds the facts that a client knows of a node.
type view struct {
	state      member.State
	open       bool   // the client may send requests
	stay       bool   // but only requests that keep its locks
	proof      string // marker that goes with each request
	floor      int64
	seen, next string // the client is about to replace the marker seen by next
}

func (s *setup) hasTime() bool { return s.spans || s.admits != nil && s.alone }

func (s *setup) stageTime() int64 {
	switch {
	case s.admits == nil:
		return stageTime
	case s.admits.half:
		return period / 2
	}
	return period
}

// nodeTime returns a node's clock, µs.
func (s *setup) nodeTime(w *world, n int) int64 {
	if w.members == nil {
		return w.clock
	}
	return w.clock + w.members.nodes[n].ahead
}

// isHit reports whether faults hit a node.
func (s *setup) isHit(n int) bool { return s.admits == nil || s.admits.hits&(1<<n) != 0 }

// isEmpty reports whether a node has nothing to lose.
func (s *setup) isEmpty(w *world, n int) bool {
	return !s.isHit(n) || w.nodes[n].lock == (quorum.Lock{}) && (w.members == nil || w.members.nodes[n].marker == "")
}

func (s *setup) hasUnsaved(w *world, n int) bool {
	return s.isHit(n) && (w.nodes[n].saved != w.nodes[n].lock || w.members != nil && w.members.nodes[n].saved != w.members.nodes[n].marker)
}

func (s *setup) saveNode(w *world, n int) {
	w.nodes[n].saved = w.nodes[n].lock
	if w.members != nil {
		w.members.nodes[n].saved = w.members.nodes[n].marker
	}
}

// setMarker replaces the marker of a node.
func (s *setup) setMarker(w *world, n int, marker string) {
	if w.members != nil {
		w.members.nodes[n].marker = marker
	}
}

// beginRun starts another run of a node and ends all connections to it.
func (s *setup) beginRun(w *world, n int) {
	if w.members == nil {
		return
	}
	w.members.nodes[n].run++
	s.disconnectAll(w, n)
}

func (s *setup) disconnectAll(w *world, n int) {
	for c := range s.clients {
		w.members.clients[c][n] = view{state: w.members.clients[c][n].state}
	}
}

// promoteServer makes the other server of a node that fails over take over, with the saved data.
func (s *setup) promoteServer(w *world, n int) {
	if w.members == nil {
		return
	}
	m := &w.members.nodes[n]
	m.marker = m.saved
	m.server = 1 - m.server
	m.promotions++
	s.disconnectAll(w, n)
}

// runOf returns the name of a node's run.
func (s *setup) runOf(w *world, n int) string {
	m := &w.members.nodes[n]
	switch {
	case s.admits.hidden && s.mutant.hiddenRun:
		return "any"
	case s.admits.hidden:
		return ""
	case m.promotions > 0 && !s.mutant.noPromotion:
		return member.Run(runs[m.server][m.run], runs[2][m.promotions])
	case s.admits.rules.FailsOver:
		return runs[m.server][m.run]
	}
	return runs[n][m.run]
}

// runs are names of runs.
var runs = func() (names [maxNodes][8]string) {
	for n := range names {
		for run := range names[n] {
			names[n][run] = fmt.Sprintf("%c%d", 'p'+n, run+1)
		}
	}
	return names
}()

var nodeNames = [maxNodes]string{"n1", "n2", "n3"}

func (s *setup) rulesOf(c int) member.Rules {
	if c == 1 && s.admits.others != nil {
		return *s.admits.others
	}
	return s.admits.rules
}

// initialMembers returns a world in which nodes that are not fresh are admitted, and all clients but B are
// connected.
func (s *setup) initialMembers(w *world) *members {
	w.members = new(members)
	for n := range s.nodes {
		if s.admits.fresh&(1<<n) != 0 {
			continue
		}
		r, m := s.admits.rules, &w.members.nodes[n]
		r.NoQuarantine = true
		o := s.observeNode(w, 0, n)
		o.Durable = s.isDurable(n)
		_, v := r.Decide(member.State{}, o)
		m.marker = v.Write
		for c := range s.clients {
			if c != 1 && !w.nodes[n].wires[c].cut {
				s.observeAndDecide(w, c, n)
			}
		}
		s.saveNode(w, n)
	}
	return w.members
}

func (s *setup) isDurable(n int) member.Answer {
	return member.AnswerOf(s.admits.durable&(1<<n) != 0 || s.mutant.durable)
}

// observeNode returns a client's current observation of a node.
func (s *setup) observeNode(w *world, c, n int) member.Observation {
	o := member.Observation{
		Marker: w.members.nodes[n].marker, Name: nodeNames[n], Run: s.runOf(w, n),
		Mono: time.Duration(w.clock) * time.Microsecond, Client: w.clock + w.members.clocks[c], Node: s.nodeTime(w, n),
	}
	m := &s.mutant
	if run := markerField(o.Marker, "run"); m.anyRun && run != "" {
		o.Run = run
	}
	if name := markerField(o.Marker, "durable"); m.anyName && name != "" {
		o.Name = name
	}
	if m.wallClock {
		o.Mono = time.Duration(o.Client) * time.Microsecond
	}
	if m.nodesClock {
		o.Client = o.Node
	}
	if m.ownClock {
		o.Node = o.Client
	}
	if m.onePeriod && markerField(o.Marker, "seen") != "" && markerField(o.Marker, "client2") == "" {
		o.Marker += " client2=" + markerField(o.Marker, "client") + " node2=" + markerField(o.Marker, "node")
	}
	return o
}

// markerField returns the value of a field in a marker.
func markerField(marker, name string) string {
	_, text, _ := strings.Cut(marker, " "+name+"=")
	text, _, _ = strings.Cut(text, " ")
	return text
}

// observeAndDecide makes a client observe a node and decide, as the gate of package redis does.
func (s *setup) observeAndDecide(w *world, c, n int) {
	v := &w.members.clients[c][n]
	marker := w.members.nodes[n].marker
	if s.admits.brief&(1<<c) != 0 {
		v.state = member.State{}
	}
	was, o := v.state, s.observeNode(w, c, n)
	verdict := s.decideVote(v, o, c, n)
	if conflict, ok := errors.AsType[*member.ConflictError](verdict.Err); ok && s.mutant.anySet {
		o.Marker = conflict.Ours + strings.TrimPrefix(o.Marker, conflict.Theirs)
		verdict = s.decideVote(v, o, c, n)
	}
	if s.mutant.oldWatch && was.Waiting != "" && v.state.Waiting != "" {
		v.state.Since = was.Since
	}
	v.open, v.stay = verdict.Votes, false
	if _, ok := errors.AsType[*member.QuarantineError](verdict.Err); ok && s.nodes == 1 {
		v.open, v.stay = true, !s.mutant.staysAndVotes
	}
	if v.open {
		v.proof = marker
		v.floor, _ = member.Floor(marker, o.Run, o.Node, o.Client)
	}
	if verdict.Write != "" {
		v.seen, v.next = marker, verdict.Write
	}
}

// decideVote decides about a node. If the verdict asks whether the node is durable, it answers that.
func (s *setup) decideVote(v *view, o member.Observation, c, n int) (verdict member.Verdict) {
	r, admitted := s.rulesOf(c), v.state.Admitted
	if s.mutant.forgets {
		v.state.Admitted = nil
		defer func() { v.state.Admitted = slices.Concat(admitted, v.state.Admitted) }()
	}
	if v.state, verdict = r.Decide(v.state, o); verdict.AskDurable {
		o.Durable = s.isDurable(n)
		v.state, verdict = r.Decide(v.state, o)
	}
	return verdict
}

// isOpen reports whether a client may send requests to a node.
func (s *setup) isOpen(w *world, c, n int) bool {
	return w.members == nil || w.members.clients[c][n].open
}

// onlyKeeps reports whether client c may keep its locks on node n, but may not get other locks there.
func (s *setup) onlyKeeps(w *world, c, n int) bool {
	return w.members != nil && w.members.clients[c][n].stay
}

// mayBegin reports whether a client has a quorum of nodes to ask.
func (s *setup) mayBegin(w *world, c int) bool {
	if w.members == nil {
		return true
	}
	open := 0
	for n := range s.nodes {
		if v := &w.members.clients[c][n]; v.open && !v.stay {
			open++
		}
	}
	return open >= quorum.Majority(int(w.clients[c].claim.N))
}

// markerMatches reports whether a node has the marker that goes with a request.
func (s *setup) markerMatches(w *world, n int, proof string) bool {
	return w.members == nil || s.mutant.noProof || !s.admits.rules.Guarded() || w.members.nodes[n].marker == proof
}

// admitsRequest reports whether a node executes a client's request. If not, the client disconnects.
func (s *setup) admitsRequest(w *world, c, n int, kind quorum.AskKind) bool {
	switch {
	case w.members == nil:
		return true
	case s.onlyKeeps(w, c, n) && kind != quorum.AskRenew && !kind.Frees():
		return false
	case s.markerMatches(w, n, w.members.clients[c][n].proof):
		return true
	}
	wire := &w.nodes[n].wires[c]
	for _, l := range [...]*line{&wire.answers, &wire.requests} {
		for l.n > 0 {
			m := l.pop(0)
			if l == &wire.requests {
				m.of = m.kind
			}
			if m.kind = m.of; m.of != wakeUp && s.isCurrentAnswer(w, c, n, m.failedAnswer()) {
				wire.failures.push(m.failedAnswer())
			}
		}
	}
	w.members.clients[c][n] = view{state: w.members.clients[c][n].state}
	return false
}

// memberMoves adds the moves of clients that observe nodes, and the faults of admission.
func (s *setup) memberMoves(w *world, add func(k kind, client, node, index int)) {
	for c := range s.clients {
		for n := range s.nodes {
			v := &w.members.clients[c][n]
			switch {
			case w.clients[c].life > running || w.nodes[n].wires[c].cut || v.open && !v.stay:
			case v.next != "":
				add(swap, c, n, 0)
			default:
				add(look, c, n, 0)
			}
		}
	}
	if w.left.localClock > 0 {
		add(localClock, 1, 0, 0)
	}
	for n := range s.nodes {
		if !s.isHit(n) {
			continue
		}
		if w.left.again > 0 {
			add(again, 0, n, 0)
		}
		for from := range s.nodes {
			if from == n || from > 0 && from-1 != n { // one source is enough
				continue
			}
			if w.left.files > 0 {
				add(files, 0, n, from)
			}
			if w.left.copied > 0 {
				add(copied, 0, n, from)
			}
		}
		if w.left.restored > 0 && s.hasUnsaved(w, n) {
			add(restored, 0, n, 0)
		}
		if s.admits.anyTime || w.nodes[n].lock.Owner == "" {
			if w.left.nodeClock > 0 {
				add(nodeClock, 0, n, 0)
			}
			if w.left.bothClocks > 0 {
				add(bothClocks, 1, n, 0)
			}
		}
	}
}

// mayRewind reports whether a node may return to older data.
func (s *setup) mayRewind(w *world, n int) bool {
	if !s.isHit(n) || s.admits == nil || !s.admits.seen {
		return s.isHit(n)
	}
	saved := markerField(w.members.nodes[n].saved, "run")
	for c := range s.clients {
		seen := w.members.clients[c][n].state.Admitted
		if w.clients[c].life <= running && !(slices.Contains(seen, saved) && slices.Contains(seen, s.runOf(w, n))) {
			return false
		}
	}
	return saved != s.runOf(w, n)
}

func (s *setup) applyMember(w *world, m move) (broken string) {
	c, n := int(m.client), int(m.node)
	nd := &w.members.nodes[n]
	switch m.kind {
	case look:
		s.observeAndDecide(w, c, n)
		if v := w.members.clients[c][n]; s.admits.shows && nd.run > 0 && v.open {
			broken = nodeVotes
		}
	case swap:
		v := &w.members.clients[c][n]
		if nd.marker == v.seen || s.mutant.blindly {
			nd.marker = v.next
		}
		v.seen, v.next = "", ""
	case again:
		w.left.again--
		s.restartNode(w, n, w.nodes[n].lock)
	case files:
		w.left.files--
		s.restartNode(w, n, w.nodes[m.index].lock)
		nd.marker = w.members.nodes[m.index].marker
	case copied:
		w.left.copied--
		w.nodes[n].lock, nd.marker = w.nodes[m.index].lock, w.members.nodes[m.index].marker
	case restored:
		w.left.restored--
		w.nodes[n].lock, nd.marker = w.nodes[n].saved, nd.saved
	case nodeClock:
		w.left.nodeClock--
		nd.ahead += clockSet
	case localClock:
		w.left.localClock--
		w.members.clocks[c] += clockSet
	case bothClocks:
		w.left.bothClocks--
		nd.ahead += clockSet
		w.members.clocks[c] += clockSet
	}
	return broken
}

// nodeVotes is the property that some rows search for. It shows that some node votes in the other rows.
const nodeVotes = "the node votes again"

// normalizeMembers replaces irrelevant differences by one form.
func (s *setup) normalizeMembers(w *world) {
	for c := range s.clients {
		if w.clients[c].life > running {
			w.members.clients[c] = [maxNodes]view{}
		}
	}
	for n := range s.nodes {
		if w.left.older+w.left.over+w.left.restored == 0 {
			w.members.nodes[n].saved = ""
		}
		if w.nodes[n].ghosts.n == 0 {
			w.nodes[n].proof = ""
		}
	}
}

// encodeMember encodes what a node and the clients remember about its admission.
func (s *setup) encodeMember(w *world, n int, b []byte) []byte {
	text := func(t string) { b = append(append(b, t...), '|') }
	m := &w.members.nodes[n]
	b = append(b, byte(n), m.run, m.server, m.promotions, byte(m.ahead/clockSet))
	text(m.marker)
	text(m.saved)
	text(w.nodes[n].proof)
	for c := range s.clients {
		v := &w.members.clients[c][n]
		b = append(b, packFlags(v.open, v.stay), byte(w.members.clocks[c]/clockSet))
		text(v.proof)
		text(v.seen)
		text(v.next)
		text(v.state.Waiting)
		b = appendInt32(appendInt32(b, int32(v.state.Since/time.Millisecond)), int32(v.floor))
		for _, run := range v.state.Admitted {
			text(run)
		}
		b = append(b, '/')
	}
	return b
}

// describeMemberMove describes a move of memberMoves.
func (s *setup) describeMemberMove(w *world, m move) string {
	who, node := clientName(m.client), fmt.Sprint("node ", m.node+1)
	v := &w.members.clients[m.client][m.node]
	switch m.kind {
	case look:
		next := *w
		next.members = new(*w.members)
		s.observeAndDecide(&next, int(m.client), int(m.node))
		now := &next.members.clients[m.client][m.node]
		switch {
		case now.stay:
			return fmt.Sprintf("%s looks at %s: it is in quarantine, and keeps what it has", who, node)
		case now.open:
			return fmt.Sprintf("%s looks at %s: it votes", who, node)
		case now.next != "":
			return fmt.Sprintf("%s looks at %s, and is about to write%s", who, node, shortMarker(now.next))
		}
		return fmt.Sprintf("%s looks at %s: it does not vote", who, node)
	case swap:
		if w.members.nodes[m.node].marker == v.seen || s.mutant.blindly {
			return fmt.Sprintf("%s notes what %s is about to write", node, who)
		}
		return fmt.Sprintf("%s does not note what %s is about to write, as its marker has changed", node, who)
	case again:
		return fmt.Sprintf("%s is restarted with its data", node)
	case files:
		return fmt.Sprintf("%s is restarted with the data of node %d", node, m.index+1)
	case copied:
		return fmt.Sprintf("%s gets the data of node %d, and its connections go on", node, m.index+1)
	case restored:
		return fmt.Sprintf("%s gets back what was saved, and its connections go on", node)
	case nodeClock:
		return fmt.Sprintf("the clock of %s is set ahead by %d s", node, clockSet/1_000_000)
	case localClock:
		return fmt.Sprintf("the clock of %s is set ahead by %d s", who, clockSet/1_000_000)
	case bothClocks:
		return fmt.Sprintf("the clock of %s and %s is set ahead by %d s", who, node, clockSet/1_000_000)
	}
	return "?"
}

var beforeRun = regexp.MustCompile(`^.*?( run=| seen=)`)

// shortMarker returns a marker without the part on which all clients agree.
func shortMarker(marker string) string { return beforeRun.ReplaceAllString(marker, "$1") }
