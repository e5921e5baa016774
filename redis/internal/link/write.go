package link

import (
	"runtime"

	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/session"
)

// Send queues e, and writes it if that cannot wait. It does not block.
func (l *Link) Send(e Entry) {
	l.mu.Lock()
	switch {
	case l.err != nil:
		err := l.err
		l.mu.Unlock()
		l.sink.Fail(e, engine.Failure{Err: err, Unsent: true})
		return
	case e.Req != nil && session.Skips(e.Req.Kind, l.silence(e.At), func() bool { return e.Req.NoWait || l.sink.Spare() }):
		l.mu.Unlock()
		l.sink.Fail(e, engine.Failure{Err: ErrStalled, Unsent: true})
		return
	}
	l.queue = append(l.queue, e)
	switch {
	case l.writing || l.held: // the goroutine that writes will see it
		l.mu.Unlock()
	case e.Call != nil || !l.light():
		l.mu.Unlock()
		nudge(l.wake)
	default:
		if l.write(e.At) {
			nudge(l.wake)
		}
	}
}

// light says whether the goroutine that has sent the last request may write what waits: so
// little fits into any socket, and the write does not wait for the node. The caller holds mu.
func (l *Link) light() bool {
	if l.pipe {
		return false
	}
	if len(l.queue) == 1 {
		return l.flight.size <= l.direct
	}
	return l.cfg.Sole && len(l.queue) >= groupMost && l.flight.size <= groupRoom
}

func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// ready says whether a request waits while no goroutine writes. The caller holds mu.
func (l *Link) ready() bool { return len(l.queue) > 0 && !l.writing && !l.held && l.err == nil }

// write sends the next batch, and says whether another one waits then. The caller holds
// mu, which write unlocks, and no other goroutine writes.
func (l *Link) write(now int64) (more bool) {
	l.writing = true
	late := l.load(now)
	l.mu.Unlock()
	for _, e := range late {
		l.sink.Fail(e, engine.Failure{Err: ErrStalled, Unsent: true})
	}
	if len(l.out) > 0 {
		if _, err := l.cfg.Conn.Write(l.out); err != nil {
			l.HangUp(err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writing = false
	return l.ready()
}

// load moves the next batch from the queue to flight and to out, except for what
// is late. The caller holds mu.
func (l *Link) load(now int64) (late []Entry) {
	l.out = l.out[:0]
	n := 0
	for ; n < min(len(l.queue), batchMost) && len(l.out) < groupRoom; n++ {
		e := l.queue[n]
		before := len(l.out)
		switch {
		case e.Call != nil:
			for _, c := range e.Call.cmds {
				l.out = resp.AppendCommand(l.out, c...)
			}
		case now > e.Req.Deadline && !e.Frees():
			late = append(late, e)
			continue
		default:
			if e.Asking {
				l.out = resp.AppendCommand(l.out, "ASKING")
			}
			l.out = l.cfg.Encode(l.out, e.Req)
		}
		e.At, e.size = now, len(l.out)-before
		l.flight.push(e)
	}
	rest := copy(l.queue, l.queue[n:])
	clear(l.queue[rest:])
	l.queue = l.queue[:rest]
	return late
}

// writes sends what callers have left in the queue, until the link is gone.
func (l *Link) writes() {
	for {
		select {
		case <-l.wake:
		case <-l.gone:
			return
		}
		for {
			runtime.Gosched() // a request is seldom alone
			l.mu.Lock()
			if !l.ready() {
				l.mu.Unlock()
				break
			}
			l.write(l.cfg.Now())
		}
	}
}
