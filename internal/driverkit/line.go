package driverkit

import (
	"sync"
	"time"
)

// DefaultRoom is the room of a Line at first.
const DefaultRoom = 64

// Line gives requests of one client their turns, first come first served. As many turns are out at once as the line has
// room for. The other requests wait in the client: they have sent nothing, and cost nothing if their callers leave.
//
// Lane has a Line with a fixed room, in which a goroutine waits for each request. The engine of a quorum has one whose
// room follows from the answers, in which a claim waits without a goroutine. The zero value has the DefaultRoom.
type Line struct {
	mu      sync.Mutex // guards the fields below; nothing else is locked under it
	room    int        // the number of turns that may be out; 0: DefaultRoom
	out     int        // the number of turns that are out
	waiting int        // the number of turns in queues
	passed  int        // the number of turns that left a queue
	heard   int64      // the time of the last answer, or since when turns wait
	queues  [2]turnQueue
}

// Rank orders the requests in a Line.
type Rank int

// The ranks. Of four turns that come, Later gets one at least.
const (
	Soon  Rank = iota // requests on which others wait, such as a release, or which lapse
	Later             // requests that begin something
)

// Turn is a place in a Line.
type Turn struct {
	Rank  Rank
	Begin func() // called when the turn has come, without a mutex; must not block

	next, prev *Turn
	queued     bool
}

// Load is the state of a Line.
type Load struct {
	Room, Out, Waiting int
	Silence            time.Duration // the time without an answer while turns wait
}

// Pass reports whether a request may begin at once. It then ends with Leave.
func (l *Line) Pass(r Rank) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.passLocked(r)
}

func (l *Line) passLocked(r Rank) bool {
	if l.room == 0 {
		l.room = DefaultRoom
	}
	if l.out >= l.room || l.queues[Soon].first != nil || r == Later && l.queues[Later].first != nil {
		return false
	}
	l.out++
	return true
}

// Enter reports whether the request of t may begin at once. If not, t waits, and Line calls its Begin. Either way the
// request ends with Leave, unless Withdraw takes t out before.
func (l *Line) Enter(t *Turn, now int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.passLocked(t.Rank) {
		return true
	}
	if l.waiting == 0 {
		l.heard = now
	}
	l.queues[t.Rank].push(t)
	l.waiting++
	return false
}

// Withdraw takes t out of the queue, and reports whether t was in it.
func (l *Line) Withdraw(t *Turn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !t.queued {
		return false
	}
	l.queues[t.Rank].remove(t)
	l.waiting--
	return true
}

// Leave ends a request, and begins the waiting requests that the line then has room for. Answered means that an answer has ended the
// request. resize, if it is not nil, returns the room from now on; Line calls it under its mutex.
func (l *Line) Leave(now int64, answered bool, resize func(Load) int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if answered {
		l.heard = now
	}
	if resize != nil {
		l.room = resize(l.loadLocked(now))
	}
	l.out--
	for l.out < l.room {
		t := l.nextLocked()
		if t == nil {
			return
		}
		l.out++
		l.mu.Unlock()
		t.Begin()
		l.mu.Lock()
	}
}

// nextLocked takes the next turn out of its queue; nil if none waits.
func (l *Line) nextLocked() *Turn {
	first := Soon
	if l.passed%4 == 3 {
		first = Later
	}
	for _, r := range [...]Rank{first, Soon, Later} {
		if t := l.queues[r].first; t != nil {
			l.queues[r].remove(t)
			l.waiting--
			l.passed++
			return t
		}
	}
	return nil
}

// Load returns the state of the line.
func (l *Line) Load(now int64) Load {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.loadLocked(now)
}

func (l *Line) loadLocked(now int64) Load {
	return Load{Room: l.room, Out: l.out, Waiting: l.waiting, Silence: time.Duration(now - l.heard)}
}

// noteAnswer records the answer to a request that had no turn.
func (l *Line) noteAnswer(now int64) {
	l.mu.Lock()
	l.heard = now
	l.mu.Unlock()
}

// turnQueue is a list of turns that wait.
type turnQueue struct{ first, last *Turn }

func (q *turnQueue) push(t *Turn) {
	t.prev, t.queued = q.last, true
	if q.last == nil {
		q.first = t
	} else {
		q.last.next = t
	}
	q.last = t
}

func (q *turnQueue) remove(t *Turn) {
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
