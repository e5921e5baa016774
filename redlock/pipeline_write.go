package redlock

import (
	"runtime"

	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/resp"
)

// send queues e, and writes it if that cannot wait. It does not block.
func (l *link) send(e entry) {
	l.mu.Lock()
	switch {
	case l.err != nil:
		err := l.err
		l.mu.Unlock()
		l.n.fail(e, engine.Failure{Err: err, Unsent: true})
		return
	case e.req != nil && !e.release() && l.silence(e.at) > stallAfter && (e.req.NoWait || l.n.spare()):
		l.mu.Unlock()
		l.n.fail(e, engine.Failure{Err: errStalled, Unsent: true})
		return
	}
	l.queue = append(l.queue, e)
	switch {
	case l.writing || l.held: // the goroutine that writes will see it
		l.mu.Unlock()
	case e.call != nil || l.alone && e.req.Kind == quorum.AskCommit || !l.light():
		// The goroutine that reads sends a commit. Where a write waits for the other end, as on a pipe in memory, nobody would read.
		l.mu.Unlock()
		nudge(l.wake)
	default:
		if l.write(e.at) {
			nudge(l.wake)
		}
	}
}

// light says whether the goroutine that has sent the last request may write what waits: so
// little fits into any socket, and the write does not wait for the node. The caller holds mu.
func (l *link) light() bool {
	if len(l.queue) == 1 {
		return l.flight.size <= l.direct
	}
	return l.alone && len(l.queue) >= groupMost && l.flight.size <= groupRoom
}

func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// ready says whether a request waits while no goroutine writes. The caller holds mu.
func (l *link) ready() bool { return len(l.queue) > 0 && !l.writing && !l.held && l.err == nil }

// write sends the next batch, and says whether another one waits then. The caller holds
// mu, which write unlocks, and no other goroutine writes.
func (l *link) write(now int64) (more bool) {
	l.writing = true
	late := l.load(now)
	l.mu.Unlock()
	for _, e := range late {
		l.n.fail(e, engine.Failure{Err: errStalled, Unsent: true})
	}
	if len(l.out) > 0 {
		if _, err := l.conn.Write(l.out); err != nil {
			l.hangUp(err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writing = false
	return l.ready()
}

// load moves the next batch from the queue to flight and to out, except for what
// is late. The caller holds mu.
func (l *link) load(now int64) (late []entry) {
	l.out = l.out[:0]
	n := 0
	for ; n < min(len(l.queue), batchMost) && len(l.out) < groupRoom; n++ {
		e := l.queue[n]
		before := len(l.out)
		switch {
		case e.call != nil:
			for _, c := range e.call.cmds {
				l.out = resp.AppendCommand(l.out, c...)
			}
		case now > e.req.Deadline && !e.release():
			late = append(late, e)
			continue
		default:
			if e.asks {
				l.out = resp.AppendCommand(l.out, "ASKING")
			}
			l.out = l.text.append(l.out, e.req)
		}
		e.at, e.size = now, len(l.out)-before
		l.flight.push(e)
	}
	rest := copy(l.queue, l.queue[n:])
	clear(l.queue[rest:])
	l.queue = l.queue[:rest]
	return late
}

// writes sends what callers have left in the queue, until the link is gone.
func (l *link) writes() {
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
			l.write(l.n.engine.Now())
		}
	}
}
