package faultproxy

import (
	"bytes"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/internal/resp"
)

// Match selects requests by their arguments, the command's name first. It is called with the proxy's mutex
// held, when the request is about to be forwarded: it must be quick and must not call the proxy.
type Match func(args [][]byte) bool

// Command matches requests that begin with these words, in any case. Without words it matches every request.
func Command(words ...string) Match {
	return func(args [][]byte) bool {
		if len(args) < len(words) {
			return false
		}
		for i, word := range words {
			if !bytes.EqualFold(args[i], []byte(word)) {
				return false
			}
		}
		return true
	}
}

// loss drops replies.
type loss struct {
	match Match
	cut   bool
	left  int
	seen  chan struct{}
}

// CutAfter lets the next matching requests, as many as times, be executed, drops their replies and closes
// their connections after the earlier answers are delivered. Later requests on such a connection may or may
// not be executed; none is answered. The channel receives once for each dropped reply.
func (p *Proxy) CutAfter(match Match, times int) <-chan struct{} {
	return p.addLoss(&loss{match: match, cut: true, left: times})
}

// MuteAfter is CutAfter for a connection that hangs: it stays open and its requests are executed, but nothing
// more reaches the client over it: no replies, no pushes and no end of the server.
func (p *Proxy) MuteAfter(match Match, times int) <-chan struct{} {
	return p.addLoss(&loss{match: match, left: times})
}

func (p *Proxy) addLoss(l *loss) <-chan struct{} {
	l.seen = make(chan struct{}, l.left)
	p.changeState(func() { p.losses = append(p.losses, l) })
	return l.seen
}

// claimLoss counts when a request is forwarded, so that no more replies than wanted are lost. settle returns
// unused losses.
func (p *Proxy) claimLoss(args [][]byte) *loss {
	for _, l := range p.losses {
		if l.left > 0 && l.match(args) {
			l.left--
			return l
		}
	}
	return nil
}

// rewrite changes replies.
type rewrite struct {
	match Match
	edit  func(text string) string
}

// Rewrite passes the text in the replies to matching requests through edit. Replies that are not strings stay
// as they are. edit is called like a Match. stop ends the rewriting.
func (p *Proxy) Rewrite(match Match, edit func(text string) string) (stop func()) {
	w := &rewrite{match, edit}
	p.changeState(func() { p.rewrites = append(p.rewrites, w) })
	return func() {
		p.changeState(func() { p.rewrites = slices.DeleteFunc(p.rewrites, func(other *rewrite) bool { return other == w }) })
	}
}

// rewriteReply returns the bytes that the client receives for v. v answers r; r is nil if v answers no
// request.
func (p *Proxy) rewriteReply(r *request, v resp.Value) []byte {
	if r == nil || v.Null || (v.Kind != '$' && v.Kind != '=') {
		return v.Raw
	}
	raw := v.Raw
	text := string(v.Text)
	if v.Kind == '=' {
		_, text, _ = strings.Cut(text, ":") // after "txt"
	}
	for _, w := range p.rewrites {
		if w.match(r.args) {
			text = w.edit(text)
			raw = resp.AppendString(nil, text)
		}
	}
	return raw
}

// Hold keeps requests from the server until it is released.
type Hold struct {
	p        *Proxy
	match    Match
	left     int
	caught   chan struct{}
	requests []*request
	released bool
}

// HoldRequest stops the next matching requests, as many as times, and everything after each on its connection,
// before they reach the server. Release delivers them, even if the client has closed its connection or Cut has
// ended it, but not if the server has.
func (p *Proxy) HoldRequest(match Match, times int) *Hold {
	h := &Hold{p: p, match: match, left: times, caught: make(chan struct{}, times)}
	p.changeState(func() { p.holds = append(p.holds, h) })
	return h
}

// Caught returns a channel that receives once for each stopped request.
func (h *Hold) Caught() <-chan struct{} { return h.caught }

// Release delivers the requests and stops no more. It blocks until the server has answered each of them or its
// connection has ended, so it does not return while Blackhole stops the way up. A second Release does nothing.
func (h *Hold) Release() {
	var requests []*request
	h.p.changeState(func() {
		h.released, h.left = true, 0
		h.p.holds = slices.DeleteFunc(h.p.holds, func(other *Hold) bool { return other == h })
		requests = h.requests
	})
	for _, r := range requests {
		<-r.done
	}
}

// holdFor returns the Hold that stops r now. A request is stopped only once.
func (p *Proxy) holdFor(r *request) *Hold {
	if r.done != nil {
		return nil
	}
	for _, h := range p.holds {
		if h.left > 0 && h.match(r.args) {
			h.left--
			r.done = make(chan struct{})
			h.requests = append(h.requests, r)
			h.caught <- struct{}{}
			return h
		}
	}
	return nil
}
