package model

import (
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/internal/quorum"
)

// writeTrace formats a trace for people, one line per move.
func (s *setup) writeTrace(trace []move) string {
	var b strings.Builder
	w := s.initialWorld()
	for i, m := range trace {
		next, broken := s.applyMove(&w, m)
		fmt.Fprintf(&b, "%3d  %s\n", i+1, s.describeMove(&w, m))
		if broken != "" {
			fmt.Fprintf(&b, "     %s: %s\n", broken, s.describeTokens(&next))
		}
		w = next
	}
	b.WriteString(s.describeNodes(&w))
	return b.String()
}

func clientName(c uint8) string { return string(rune('A' + c)) }

var answerNames = map[quorum.Kind]string{
	quorum.Granted: "granted", quorum.Denied: "denied", quorum.Accepted: "accepted", quorum.Refused: "refused",
	quorum.Kept: "kept", quorum.NotMine: "not mine", quorum.Freed: "freed", quorum.Failed: "failed",
}

func (s *setup) describeMove(w *world, m move) string {
	who, node := clientName(m.client), fmt.Sprint("node ", m.node+1)
	wire := &w.nodes[m.node].wires[m.client]
	switch m.kind {
	case begin:
		return who + " asks for the lock"
	case execute, ghost:
		return s.describeExecution(w, m)
	case answer:
		return describeAnswer(wire.answers.m[0], who, node)
	case failure:
		return fmt.Sprintf("%s notices that %s at %s failed", who, quorum.AskKind(wire.failures.m[m.index].of), node)
	case wake:
		return fmt.Sprintf("%s is woken by %s", who, node)
	case losePlace:
		return fmt.Sprintf("%s: the place of %s lapses", node, who)
	case loseWake:
		return fmt.Sprintf("the wake-up for %s from %s is lost", who, node)
	case silence:
		return fmt.Sprintf("%s no longer counts on an answer of %s", who, node)
	case patience:
		return who + " has waited long enough for the rest of its hand-over"
	case rest:
		return who + "'s fallback timer runs out"
	case renew:
		if m.index == 1 {
			return who + " renews with the brief TTL"
		}
		return who + " renews"
	case release:
		return who + " releases"
	case crash:
		return who + " dies"
	case lapse:
		return fmt.Sprintf("the lock lapses on %s", node)
	case loseLock, outage:
		return fmt.Sprintf("%s forgets the lock", node)
	case loseFence:
		return fmt.Sprintf("%s forgets the counter", node)
	case wipe:
		return fmt.Sprintf("%s forgets everything", node)
	case save:
		return fmt.Sprintf("all that %s has is saved", node)
	case takeOver:
		return fmt.Sprintf("a replica takes the place of %s, with what was saved", node)
	case rewind:
		return fmt.Sprintf("%s is restarted with what was saved", node)
	case flush:
		return fmt.Sprintf("the data of %s are wiped, and its connections go on", node)
	case repeat:
		return fmt.Sprintf("the acquire of %s at %s is sent twice", who, node)
	case sever:
		return fmt.Sprintf("the connection of %s to %s breaks after %d requests", who, node, m.index)
	case other:
		return fmt.Sprintf("another lock of %s is granted", node)
	case pass:
		return fmt.Sprintf("%d s pass", stageTime/1_000_000_000)
	case jump:
		if w.nodes[m.node].ahead {
			return fmt.Sprintf("the clock of %s is right again", node)
		}
		return fmt.Sprintf("the clock of %s jumps ahead, and what it kept expires", node)
	case cutOff:
		return fmt.Sprintf("%s can no longer reach %s", who, node)
	}
	return s.describeMemberMove(w, m)
}

// describeExecution describes how a node executes a request.
func (s *setup) describeExecution(w *world, m move) string {
	r, late := w.nodes[m.node].wires[m.client].requests.m[0], ""
	if m.kind == ghost {
		r, late = w.nodes[m.node].ghosts.m[0], ", which comes late"
	}
	next := *w
	a := s.serveRequest(&next, int(m.client), int(m.node), r)
	says := answerNames[quorum.Kind(a.kind)]
	if quorum.Kind(a.kind) == quorum.Granted || quorum.Kind(a.kind) == quorum.NotMine && a.token != 0 {
		says += fmt.Sprint(" ", a.token)
	}
	what := quorum.AskKind(r.kind).String()
	if r.token != 0 {
		what += fmt.Sprint(" ", r.token)
	}
	line := fmt.Sprintf("node %d executes %s of %s%d%s: %s", m.node+1, what, clientName(m.client), r.id, late, says)
	if o := next.nodes[m.node].lock.Owner; o != w.nodes[m.node].lock.Owner && o != "" && quorum.Kind(a.kind) == quorum.Freed {
		line += ", handed to " + strings.ToUpper(o)
	}
	return line
}

// describeAnswer describes an answer of a node to a client.
func describeAnswer(a message, who, node string) string {
	switch {
	case a.of == wakeUp && a.token != 0:
		return fmt.Sprintf("%s is woken by %s and has the lock there with %d", who, node, a.token)
	case a.of == wakeUp:
		return fmt.Sprintf("%s is woken by %s", who, node)
	}
	return fmt.Sprintf("%s hears from %s: %s %s", who, node, quorum.AskKind(a.of), answerNames[quorum.Kind(a.kind)])
}

func (s *setup) describeTokens(w *world) string {
	var parts []string
	for c := range s.clients {
		if t := w.clients[c].token; t != 0 {
			parts = append(parts, fmt.Sprintf("%s committed %d", clientName(uint8(c)), t))
		}
	}
	return strings.Join(parts, ", ")
}

func (s *setup) describeNodes(w *world) string {
	var b strings.Builder
	for n := range s.nodes {
		l := w.nodes[n].lock
		fmt.Fprintf(&b, "     node %d: owner %q, counter %d, waiting", n+1, strings.ToUpper(l.Owner), l.Fence)
		for p := range l.Queue.Places {
			fmt.Fprint(&b, " ", strings.ToUpper(p.Owner))
		}
		if w.members != nil {
			fmt.Fprintf(&b, ", marker%s", shortMarker(w.members.nodes[n].marker))
		}
		b.WriteString("\n")
	}
	return b.String()
}
