package link

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/holdfast-go/holdfast/internal/resp"
)

// reads delivers answers and wake-ups until the connection breaks, and then fails
// what is left. A panic of whatever handles them ends this connection, not the program.
func (l *Link) reads() {
	l.end(resp.Contain(func() error {
		for {
			if err := l.next(); err != nil {
				return err
			}
		}
	}))
}

// next delivers the next answer or wake-up.
func (l *Link) next() error {
	v, err := l.cfg.Conn.Next()
	if err != nil {
		return err
	}
	switch {
	case v.Kind == '>' && !l.confirms(v):
		l.sink.Push(v)
	case !l.answer(v):
		return fmt.Errorf("%w: a reply without a request", resp.ErrFormat)
	}
	return nil
}

// room returns how much memory the next answer may take.
func (l *Link) room() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flight.len() > 0 {
		if c := l.flight.first().Call; c != nil {
			return c.room
		}
	}
	return resp.ReplyRoom
}

// confirms says whether a push is the answer to SUBSCRIBE, or to one of its kin.
func (l *Link) confirms(v resp.Value) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(v.Elems) > 0 && l.flight.len() > 0 && l.flight.first().subscribes(string(v.Elems[0].Text))
}

// answer delivers v to its request. It says whether there was one.
func (l *Link) answer(v resp.Value) bool {
	l.mu.Lock()
	if l.flight.len() == 0 {
		l.mu.Unlock()
		return false
	}
	if first := l.flight.first(); first.Asking {
		first.Asking = false
		l.mu.Unlock()
		return true
	}
	if c := l.flight.first().Call; c != nil && len(c.Replies) < len(c.cmds)-1 {
		c.room -= l.cfg.Conn.Took()
		l.mu.Unlock()
		c.Replies = append(c.Replies, v.Decode())
		return true
	}
	e := l.flight.pop()
	l.heard = l.cfg.Now()
	l.held = l.held || e.Req != nil && e.loads < loadMost && noScript(v)
	repeat := l.held && e.Req != nil
	if repeat {
		e.loads++
		l.again = append(l.again, e)
	}
	resend := l.again != nil
	l.mu.Unlock()
	if ended := l.cfg.Ends(v); ended != nil {
		l.HangUp(ended)
	}
	switch {
	case repeat:
	case e.Req != nil:
		l.sink.Answer(e, v)
	default:
		e.Call.Replies = append(e.Call.Replies, v.Decode())
		e.Call.End(nil)
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
func (l *Link) repeat() {
	l.mu.Lock()
	if l.flight.len() > 0 || l.again == nil {
		l.mu.Unlock()
		return
	}
	load := Entry{Call: NewCall(l.cfg.Loads(), nil), At: l.again[0].At}
	l.queue = slices.Concat([]Entry{load}, l.again, l.queue)
	l.again, l.held = nil, false
	l.mu.Unlock()
	nudge(l.wake)
}

func noScript(v resp.Value) bool { return v.IsError() && bytes.HasPrefix(v.Text, []byte("NOSCRIPT")) }
