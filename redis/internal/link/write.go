package link

import (
	"runtime"

	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/session"
)

// Send queues e, and writes it at once if it should not wait. It does not block.
func (l *Link) Send(e Entry) {
	l.mu.Lock()
	switch {
	case l.err != nil:
		err := l.err
		l.mu.Unlock()
		l.sink.Fail(e, engine.Failure{Err: err, Unsent: true})
		return
	case e.Req != nil && session.ShouldSkip(e.Req.Kind, l.silentForLocked(e.At), func() bool { return e.Req.NoWait || l.sink.CanBeSpared() }):
		l.mu.Unlock()
		l.sink.Fail(e, engine.Failure{Err: ErrStalled, Unsent: true})
		return
	}
	l.queue = append(l.queue, e)
	switch {
	case l.writing || l.paused: // the writing goroutine will see it
		l.mu.Unlock()
	case e.Call != nil || !l.mayWriteDirectly():
		l.mu.Unlock()
		signalWithoutBlocking(l.wake)
	default:
		if l.writeBatch(e.At) {
			signalWithoutBlocking(l.wake)
		}
	}
}

// mayWriteDirectly reports whether the goroutine that sent the last request may write the waiting ones: such a
// small amount fits into any socket buffer, so the write does not wait for the node. The caller holds mu.
func (l *Link) mayWriteDirectly() bool {
	if l.pipe {
		return false
	}
	if len(l.queue) == 1 {
		return l.pending.size <= l.maxDirect
	}
	return l.cfg.Sole && len(l.queue) >= maxGroup && l.pending.size <= maxBatchBytes
}

func signalWithoutBlocking(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// canWrite reports whether a request waits while no goroutine writes. The caller holds mu.
func (l *Link) canWrite() bool { return len(l.queue) > 0 && !l.writing && !l.paused && l.err == nil }

// writeBatch sends the next batch, and reports whether another one waits. No other goroutine writes. The
// caller holds mu, which writeBatch unlocks.
func (l *Link) writeBatch(now int64) (more bool) {
	l.writing = true
	late := l.loadBatch(now)
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
	return l.canWrite()
}

// loadBatch moves the next batch from the queue to pending and encodes it into out. It returns the requests
// that are too late. The caller holds mu.
func (l *Link) loadBatch(now int64) (late []Entry) {
	l.out = l.out[:0]
	n := 0
	for ; n < min(len(l.queue), maxBatch) && len(l.out) < maxBatchBytes; n++ {
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
		l.pending.push(e)
	}
	rest := copy(l.queue, l.queue[n:])
	clear(l.queue[rest:])
	l.queue = l.queue[:rest]
	return late
}

// writeLoop sends the requests that callers have left in the queue, until the link has ended.
func (l *Link) writeLoop() {
	for {
		select {
		case <-l.wake:
		case <-l.gone:
			return
		}
		for {
			runtime.Gosched() // a request is seldom alone
			l.mu.Lock()
			if !l.canWrite() {
				l.mu.Unlock()
				break
			}
			l.writeBatch(l.cfg.Now())
		}
	}
}
