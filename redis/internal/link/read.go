package link

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/holdfast-go/holdfast/internal/resp"
)

// readLoop delivers answers and wake-ups until the connection breaks, and then fails the remaining requests. A
// panic in a handler ends this connection, not the program.
func (l *Link) readLoop() {
	l.failAll(resp.CatchPanic(func() error {
		for {
			if err := l.deliverNext(); err != nil {
				return err
			}
		}
	}))
}

// deliverNext delivers the next answer or wake-up.
func (l *Link) deliverNext() error {
	v, err := l.cfg.Conn.Next()
	if err != nil {
		return err
	}
	switch {
	case v.Kind == '>' && !l.isConfirmation(v):
		l.sink.Push(v)
	case !l.deliverAnswer(v):
		return fmt.Errorf("%w: a reply without a request", resp.ErrFormat)
	}
	return nil
}

// replyRoom returns how much memory the next answer may take.
func (l *Link) replyRoom() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pending.len() > 0 {
		if c := l.pending.first().Call; c != nil {
			return c.room
		}
	}
	return resp.ReplyRoom
}

// isConfirmation reports whether a push is the answer to SUBSCRIBE, or to a similar command.
func (l *Link) isConfirmation(v resp.Value) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(v.Elems) > 0 && l.pending.len() > 0 && l.pending.first().confirmedBy(string(v.Elems[0].Text))
}

// deliverAnswer delivers v to its request. It returns false if there is none.
func (l *Link) deliverAnswer(v resp.Value) bool {
	l.mu.Lock()
	if l.pending.len() == 0 {
		l.mu.Unlock()
		return false
	}
	if first := l.pending.first(); first.Asking {
		first.Asking = false
		l.mu.Unlock()
		return true
	}
	if c := l.pending.first().Call; c != nil && len(c.Replies) < len(c.cmds)-1 {
		c.room -= l.cfg.Conn.Took()
		l.mu.Unlock()
		c.Replies = append(c.Replies, v.Decode())
		return true
	}
	e := l.pending.pop()
	l.lastAnswer = l.cfg.Now()
	l.paused = l.paused || e.Req != nil && e.loads < maxLoads && isNoScript(v)
	repeat := l.paused && e.Req != nil
	if repeat {
		e.loads++
		l.resend = append(l.resend, e)
	}
	resend := l.resend != nil
	l.mu.Unlock()
	if ended := l.cfg.SessionError(v); ended != nil {
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
		l.resendAll()
	}
	return true
}

// resendAll sends all requests again from the first one whose script the server did not have, once all of them
// have been answered. All scripts may be repeated, so the requests keep their order. The scripts travel with
// them, so that only another SCRIPT FLUSH can fail them again.
func (l *Link) resendAll() {
	l.mu.Lock()
	if l.pending.len() > 0 || l.resend == nil {
		l.mu.Unlock()
		return
	}
	load := Entry{Call: NewCall(l.cfg.Loads(), nil), At: l.resend[0].At}
	l.queue = slices.Concat([]Entry{load}, l.resend, l.queue)
	l.resend, l.paused = nil, false
	l.mu.Unlock()
	signalWithoutBlocking(l.wake)
}

func isNoScript(v resp.Value) bool { return v.IsError() && bytes.HasPrefix(v.Text, []byte("NOSCRIPT")) }
