package redlock

import (
	"fmt"
	"slices"

	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/resp"
)

// reads delivers answers and wake-ups until the connection breaks, and then fails
// what is left.
func (l *link) reads() {
	for {
		if err := l.next(); err != nil {
			l.end(err)
			return
		}
	}
}

// next delivers the next answer or wake-up.
func (l *link) next() error {
	v, err := l.in.Next()
	if err != nil {
		return err
	}
	switch {
	case v.Kind == '>' && !l.confirms(v):
		l.n.woken(v, l)
	case !l.answer(v):
		return fmt.Errorf("%w: a reply without a request", resp.ErrFormat)
	}
	return nil
}

// confirms says whether a push is the answer to SUBSCRIBE, or to one of its kin.
func (l *link) confirms(v resp.Value) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(v.Elems) > 0 && l.flight.len() > 0 && l.flight.first().subscribes(string(v.Elems[0].Text))
}

// answer delivers v to its request. It says whether there was one.
func (l *link) answer(v resp.Value) bool {
	l.mu.Lock()
	if l.flight.len() == 0 {
		l.mu.Unlock()
		return false
	}
	if first := l.flight.first(); first.asks {
		first.asks = false
		l.mu.Unlock()
		return true
	}
	if c := l.flight.first().call; c != nil && len(c.replies) < len(c.cmds)-1 {
		l.mu.Unlock()
		c.replies = append(c.replies, decode(v))
		return true
	}
	e := l.flight.pop()
	l.heard = l.n.engine.Now()
	l.held = l.held || e.req != nil && e.loads < loadMost && noScript(v)
	repeat := l.held && e.req != nil
	if repeat {
		e.loads++
		l.again = append(l.again, e)
	}
	resend := l.again != nil
	l.mu.Unlock()
	gone := outdated(v)
	if gone != nil {
		l.hangUp(gone) // the gate looks again before anything else counts
	}
	switch {
	case repeat:
	case e.route != nil && l.n.d.cluster.redirected(l.n, e, v):
	case e.req != nil && gone != nil:
		l.n.fail(e, engine.Failure{Err: serverError(v)})
	case e.req != nil:
		l.n.note(e.req.Kind, v)
		l.follow(e.req, v)
		if e.route != nil {
			l.n.d.cluster.over(e.route, e.req)
		}
		deliver(e.req, v, l)
	default:
		e.call.replies = append(e.call.replies, decode(v))
		e.call.end(nil)
	}
	if resend {
		l.repeat()
	}
	return true
}

// repeat sends all requests again from the first script that the server did not
// know, once all of them have been answered: all scripts may be repeated, and so
// their order is kept. The scripts travel with them, so that only a SCRIPT FLUSH in
// between can fail them again.
func (l *link) repeat() {
	l.mu.Lock()
	if l.flight.len() > 0 || l.again == nil {
		l.mu.Unlock()
		return
	}
	load := entry{call: newCall(l.n.d.opts.format().loads()), at: l.again[0].at}
	l.queue = slices.Concat([]entry{load}, l.again, l.queue)
	l.again, l.held = nil, false
	l.mu.Unlock()
	nudge(l.wake)
}
