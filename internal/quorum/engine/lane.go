package engine

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/quorum"
)

const (
	roomFirst = 64 // rounds under way at first
	roomLeast = 16
	roomMost  = 1024
	// queueMost is how long requests of this client shall keep one another waiting: half of the
	// shortest quorum.RequestTimeout, so that a renewal is in time behind all of them.
	queueMost = int64(25 * time.Millisecond)
	// variesMost is how much longer than usual the way may take besides, where it is as long as that
	// itself: little beside what a request has, as a machine that was busy seems to be a long way off.
	variesMost = int64(100 * time.Millisecond)
)

// Lane is where claims begin their rounds, first come first served. A round is what a claim asks
// of the nodes until it has its outcome, or rests, and all nodes have answered that are not
// silent. As many are under way as the nodes answer soon; the others have sent nothing yet. So
// what a client wants of its nodes at once waits in the client, where it costs the nodes nothing,
// and no request waits for its answer behind thousands of others, until that is of no use any
// more. A claim that rests is in no lane.
//
// Those that release come before those that ask. Renewals, and what follows a wake-up, take no
// turn at all: they have to be in time, and wait for their answers behind no more than what is
// under way.
//
// Package direct has a Lane as well, in which a goroutine waits for each request and the room is
// fixed. Here the answers decide how much room there is, and a claim that has rested waits for its
// turn without a goroutine. One type for both would be two mechanisms and a flag.
//
// The zero value is ready for use. Engine has one, unless Config.Lane says that nodes do not
// answer all locks alike.
type Lane struct {
	mu      sync.Mutex // guards what follows; nothing is locked under it
	room    int        // how many rounds may be under way; 0: roomFirst
	out     int        // how many are
	changed int64      // when room became less; what was sent before says nothing of it
	way     int64      // how long answers take also where few rounds are under way
	heard   int64      // when a round was answered last, or the others began to wait

	queues  [2]queue // who waits, by turn.kind
	waiting int      // how many

	answered [quorum.MaxNodes]atomic.Int64 // when each node answered last; not guarded by mu
}

// silent says whether the node has answered nothing lately. No round waits for it where the
// others have decided. One that nothing was asked of seems silent until its next answer.
func (l *Lane) silent(node int, now int64) bool {
	last := l.answered[node].Load()
	return last == 0 || now-last > int64(pace.Overdue())
}

// The kinds of turns, in the order of their queues.
const (
	releases = iota
	asks
)

// turn is a place in a lane.
type turn struct {
	kind       int    // releases or asks
	begin      func() // called once it is the turn's, without a mutex; does not block
	next, prev *turn
	queued     bool
}

// queue is a list of turns.
type queue struct{ first, last *turn }

func (q *queue) push(t *turn) {
	t.prev, t.queued = q.last, true
	if q.last == nil {
		q.first = t
	} else {
		q.last.next = t
	}
	q.last = t
}

func (q *queue) remove(t *turn) {
	if t.prev == nil {
		q.first = t.next
	} else {
		t.prev.next = t.next
	}
	if t.next == nil {
		q.last = t.prev
	} else {
		t.next.prev = t.prev
	}
	t.next, t.prev, t.queued = nil, nil, false
}

// exit is the end of a round.
type exit struct {
	at    int64 // now
	took  int64 // from its last requests to its end; 0: that says nothing of the nodes
	heard bool  // it was an answer that ended it
}

// pass says whether a round may begin at once.
func (l *Lane) pass(kind int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.admit(kind)
}

// admit is pass for a caller that holds mu.
func (l *Lane) admit(kind int) bool {
	if l.room == 0 {
		l.room = roomFirst
	}
	if l.out >= l.room || l.queues[releases].first != nil || kind == asks && l.queues[asks].first != nil {
		return false
	}
	l.out++
	return true
}

// enter says whether a round may begin at once. Otherwise t waits, and its begin is called.
func (l *Lane) enter(t *turn, now int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.admit(t.kind) {
		return true
	}
	if l.waiting == 0 {
		l.heard = now
	}
	l.queues[t.kind].push(t)
	l.waiting++
	return false
}

// withdraw takes t out of those that wait, and says whether it was among them.
func (l *Lane) withdraw(t *turn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !t.queued {
		return false
	}
	l.queues[t.kind].remove(t)
	l.waiting--
	return true
}

// leave ends a round, and begins those that there is room for then.
func (l *Lane) leave(e exit) {
	l.mu.Lock()
	l.fit(e)
	l.out--
	for l.out < l.room {
		q := &l.queues[releases]
		if q.first == nil {
			q = &l.queues[asks]
		}
		t := q.first
		if t == nil {
			break
		}
		q.remove(t)
		l.waiting--
		l.out++
		l.mu.Unlock()
		t.begin()
		l.mu.Lock()
	}
	l.mu.Unlock()
}

// fit makes room for one more where answers come soon and rounds wait, and for half of what is
// under way where they take long. If they do so with the least room as well, it is not the
// requests that keep one another waiting but the way, or a machine that is busy. The caller
// holds mu.
func (l *Lane) fit(e exit) {
	if e.heard {
		l.heard = e.at
	}
	if e.took == 0 || e.at-e.took < l.changed {
		return
	}
	if l.way == 0 {
		l.way = e.took
	}
	l.way -= max(l.way-e.took, 0) / 256
	switch {
	case e.took <= l.way+min(l.way, variesMost)+queueMost:
		if l.waiting > 0 {
			l.room = min(l.room+1, roomMost)
		}
	case l.room > roomLeast:
		l.room, l.changed = max(min(l.room, l.out)/2, roomLeast), e.at
	case e.heard:
		l.way += (e.took - l.way) / 8
	}
}

// await blocks until a round may begin in l, which the caller then has to leave: for patience at
// most, if that is not 0, until ctx ends, or Close.
func (e *Engine) await(ctx context.Context, l *Lane, patience time.Duration) error {
	if l.pass(asks) {
		return nil
	}
	ready := make(chan struct{})
	t := &turn{kind: asks, begin: func() { close(ready) }}
	if l.enter(t, e.clock.Now()) {
		return nil
	}
	var late <-chan time.Time
	if patience > 0 {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		late = timer.C
	}
	var err error
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		err = driverkit.WithObstacle(ctx.Err(), e.crowded(l))
	case <-late:
		err = e.crowded(l)
	case <-e.closing:
		err = driver.ErrClosed
	}
	if !l.withdraw(t) { // its turn has come meanwhile
		l.leave(exit{})
	}
	return err
}

// silence is for how long no round has been answered while others wait.
func (l *Lane) silence(now int64) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return now - l.heard
}

// crowded says that others of this client are served first.
func (e *Engine) crowded(l *Lane) error {
	l.mu.Lock()
	waiting, out, silent := l.waiting, l.out, e.clock.Now()-l.heard
	l.mu.Unlock()
	err := fmt.Errorf("this client has %d requests waiting for their turn", max(waiting, 1))
	if silent > int64(pace.Overdue()) {
		err = fmt.Errorf("%w, and none of the %d that were sent has been answered for %v", err, out, time.Duration(silent).Round(time.Millisecond))
	}
	return &driver.UnavailableError{Need: quorum.Majority(len(e.nodes)), Err: err}
}

// awaitTurn blocks until begun is closed, as long as the nodes answer others meanwhile and ctx
// has not ended.
func (c *claim) awaitTurn(ctx context.Context, begun <-chan struct{}) error {
	most := pace.TurnTime()
	look := time.NewTicker(most)
	defer look.Stop()
	for {
		select {
		case <-begun:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-look.C:
			if c.lane.silence(c.engine.clock.Now()) >= int64(most) {
				return c.engine.crowded(c.lane)
			}
		}
	}
}

// depart releases c in its turn, or at once where the engine closes, and lets the lock stand for
// keep; told is called with the outcome. It returns nil if the turn has come, and otherwise a
// channel that is closed then.
func (c *claim) depart(keep time.Duration, told func(quorum.Outcome)) <-chan struct{} {
	a := event(quorum.Event{Kind: quorum.Release, TTL: int64(keep)})
	a.begins, a.told = true, told
	c.mu.Lock()
	inside := c.places > 0
	c.mu.Unlock()
	switch {
	case inside:
		c.post(a)
		return nil
	case c.lane.pass(releases):
		a.enters = true
		c.post(a)
		return nil
	}
	return c.departLater(a)
}

// departLater is depart where others are before c.
func (c *claim) departLater(a answer) <-chan struct{} {
	begun, ready := make(chan struct{}), make(chan struct{})
	t := &turn{kind: releases, begin: func() { close(ready) }}
	if c.lane.enter(t, c.engine.clock.Now()) {
		close(ready)
	}
	waits := c.engine.spawn(func() {
		defer close(begun)
		select {
		case <-ready:
			a.enters = true
		case <-c.engine.closing:
		}
		c.post(a)
	})
	if !waits { // the engine is closed
		c.post(a)
		return nil
	}
	return begun
}
