package zookeeper

// This file has the exchange of requests and answers over one connection.

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// errCut reports that a connection ended before the answer came.
var errCut = errors.New("the connection ended before the answer")

// link is one connection of a session.
type link struct {
	s      *session
	member *member
	conn   net.Conn
	in     *bufio.Reader
	leads  bool      // the member is known to be the leader, which decides how long sessions last
	opened time.Time // before the greeting was sent
	limit  time.Duration
	wake   chan struct{} // receives when there is something to write

	mu      sync.Mutex       // guards the fields below
	out     []byte           // bytes to write
	pending []pendingRequest // requests without an answer, in the order of sending
	heard   time.Time        // start of the member's time for the next answer
	until   time.Time        // end of that time; zero: no answer is due
	pinged  time.Time        // time of the unanswered ping; zero: none
	dead    error
}

// batch is a group of requests that were sent together.
type batch struct {
	left int
	room int   // bytes that the remaining answers may have
	err  error // why some requests got no answer
	done chan struct{}
}

// pendingRequest is a request that was sent and has no answer.
type pendingRequest struct {
	*request
	batch *batch
	xid   int32
	sent  time.Time
}

// exchangePacket sends one packet and reads one. Call it only before readLoop.
func (l *link) exchangePacket(p []byte) ([]byte, error) {
	if _, err := l.conn.Write(p); err != nil {
		return nil, err
	}
	return readPacket(l.in, func() int { return maxWelcome })
}

// packetRoom returns the maximal size of the next packet.
func (l *link) packetRoom() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) == 0 {
		return maxWelcome
	}
	return l.pending[0].batch.room
}

// askOnce sends one request and reads its answer. Call it only before readLoop.
func (l *link) askOnce(r *request) ([]byte, error) {
	p, _ := l.formPacket(r)
	return l.exchangePacket(p)
}

// login authenticates the client.
func (l *link) login(auth string) error {
	reply, err := l.exchangePacket(packet(func(w *writer) {
		w.int32(xidAuth)
		w.int32(opAuth)
		w.int32(0)
		w.text("digest")
		w.text(auth)
	}))
	if err != nil {
		return err
	}
	r := reader{b: reply}
	r.take(4 + 8)
	if c := code(r.int32()); c != 0 {
		return l.s.d.refusedError(c)
	}
	return r.err
}

// sendRequests queues requests for writing.
func (l *link) sendRequests(all []*request) *batch {
	b := &batch{left: len(all), room: maxAnswers, done: make(chan struct{})}
	if slices.ContainsFunc(all, func(r *request) bool { return r.listing }) {
		b.room = maxListing
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead != nil {
		b.err = l.cutError(l.dead)
		close(b.done)
		return b
	}
	now := time.Now()
	for _, r := range all {
		p, xid := l.formPacket(r)
		l.out = append(l.out, p...)
		l.pending = append(l.pending, pendingRequest{r, b, xid, now})
	}
	l.wakeWriter()
	return b
}

// formPacket encodes a request with the next number of the session. The number is unique in the session,
// because a member that executes a late request of an earlier connection sends the answer over the current
// one.
func (l *link) formPacket(r *request) (p []byte, xid int32) {
	xid = int32(l.s.xids.Add(1) & math.MaxInt32)
	return packet(func(w *writer) {
		w.int32(xid)
		w.int32(r.op)
		r.write(w)
	}), xid
}

// wakeWriter wakes writeLoop. The caller has the mutex.
func (l *link) wakeWriter() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
	l.setDue()
}

// setDue sets the time by which the member must answer. The member answers one request after another, so each
// answer restarts the time for the next. The caller has the mutex.
func (l *link) setDue() {
	oldest := l.pinged
	if len(l.pending) > 0 && (oldest.IsZero() || l.pending[0].sent.Before(oldest)) {
		oldest = l.pending[0].sent
	}
	l.until = time.Time{}
	if !oldest.IsZero() {
		if l.heard.After(oldest) {
			oldest = l.heard
		}
		l.until = oldest.Add(l.limit)
	}
	l.conn.SetReadDeadline(l.until)
}

// Read reads from the connection. If this process was suspended for longer than the member's time, it reads
// again: an answer may be waiting, and the silence proves nothing about the member.
func (l *link) Read(p []byte) (n int, err error) {
	for {
		n, err = l.conn.Read(p)
		if timeout, ok := errors.AsType[net.Error](err); !ok || !timeout.Timeout() || !l.excuseDelay() {
			return n, err
		}
	}
}

// excuseDelay restarts the member's time if this process was suspended, and reports whether it did.
func (l *link) excuseDelay() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.until.IsZero() || !wasSuspended(l.until, l.limit) {
		return false
	}
	l.heard = time.Now()
	l.setDue()
	return true
}

// readLoop reads answers and events until the connection ends, and returns why.
func (l *link) readLoop() error {
	stop, cancel := context.WithCancel(context.Background())
	var writing sync.WaitGroup
	writing.Go(func() { l.writeLoop(stop) })
	defer writing.Wait()
	defer cancel()
	for {
		p, err := readPacket(l.in, l.packetRoom)
		if err == nil {
			err = l.receivePacket(p)
		}
		if err != nil {
			l.end(explainError(context.Background(), err))
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.dead
		}
	}
}

// writeLoop writes queued bytes. Six times per TTL it pings the member, makes the session look for stray
// nodes, and ends the session if no lock needs it.
func (l *link) writeLoop(stop context.Context) {
	ping := packet(func(w *writer) {
		w.int32(xidPing)
		w.int32(opPing)
	})
	tick := time.NewTicker(l.s.ttl / 6)
	defer tick.Stop()
	for {
		l.mu.Lock()
		out := l.out
		l.out = nil
		l.mu.Unlock()
		if len(out) > 0 {
			l.conn.SetWriteDeadline(time.Now().Add(l.limit))
			if _, err := l.conn.Write(out); err != nil {
				l.end(explainError(context.Background(), err))
				return
			}
		}
		select {
		case <-l.wake:
		case <-tick.C:
			if l.s.d.retireSession(l.s) {
				continue
			}
			l.s.sweepStrays()
			l.mu.Lock()
			if l.pinged.IsZero() {
				l.pinged = time.Now()
			}
			l.out = append(l.out, ping...)
			l.setDue()
			l.mu.Unlock()
		case <-stop.Done():
			return
		}
	}
}

// receivePacket handles one packet of the member.
func (l *link) receivePacket(p []byte) error {
	r := reader{b: p}
	xid, zxid, c := r.int32(), r.int64(), code(r.int32())
	if r.err != nil {
		return r.err
	}
	switch xid {
	case xidWatch:
		r.take(4 + 4)
		l.s.fireWatches(r.text())
		return r.err
	case xidPing:
		l.s.noteAlive()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.pinged = time.Time{}
		l.setDue()
		return nil
	}
	l.mu.Lock()
	if len(l.pending) == 0 || l.pending[0].xid != xid {
		l.mu.Unlock()
		return fmt.Errorf("an answer to request %d, which was not the next", xid)
	}
	f := l.pending[0]
	l.pending = l.pending[1:]
	f.batch.room -= len(p)
	l.heard = time.Now()
	l.setDue()
	l.mu.Unlock()
	if c != 0 {
		f.err = c
	}
	f.reply = r
	l.s.noteAnswer(l, f, zxid)
	l.mu.Lock()
	defer l.mu.Unlock()
	if f.batch.left--; f.batch.left == 0 {
		close(f.batch.done)
	}
	if c == codeExpired || c == codeMoved {
		return c // the next greeting shows which
	}
	return nil
}

// isAlive returns false once the connection has ended, even before the session notices.
func (l *link) isAlive() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dead == nil
}

// end ends the connection.
func (l *link) end(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead == nil {
		l.dead = why
	}
	l.conn.Close()
}

// failPending fails the pending requests.
func (l *link) failPending() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.pending {
		if f.batch.err == nil {
			f.batch.err = l.cutError(l.dead)
			close(f.batch.done)
		}
	}
	l.pending = nil
}

// cutError returns the error for a request without an answer.
func (l *link) cutError(why error) error {
	return l.s.d.states.Unavailable(nil, driver.NodeError{Node: l.member.name, Err: fmt.Errorf("%w: %w", errCut, why)})
}
