package driverkit

import (
	"sync"
	"time"
)

// DefaultRoom is the initial limit of a Line.
const DefaultRoom = 64

// Line gives the requests of one client their turns, first come first served. At most room turns are out at
// once. The other requests wait in the client: they have sent nothing, and cost nothing if their callers
// leave.
//
// Lane uses a Line with a fixed room, and a goroutine waits for each request. The engine of a quorum uses one
// whose room follows the answers, and its claims wait without goroutines. The zero value has the DefaultRoom.
type Line struct {
	mu      sync.Mutex // guards the fields below; no other mutex is locked while it is held
	room    int        // number of turns that may be out; 0: DefaultRoom
	out     int        // number of turns that are out
	waiting int        // number of turns in queues
	passed  int        // number of turns that left a queue
	heard   int64      // time of the last answer, or of the first turn that waits
	queues  [2]turnQueue
}

// Rank is the urgency of a request in a Line.
type Rank int

// The ranks. Later gets at least every fourth turn.
const (
	Soon  Rank = iota // requests that others wait for, such as a release, or that expire
	Later             // requests that begin something
)

// Turn is a position in a Line.
type Turn struct {
	Rank  Rank
	Begin func() // called without a mutex when the turn has come; must not block

	next, prev *Turn
	queued     bool
}

// Load is the state of a Line.
type Load struct {
	Room, Out, Waiting int
	Silence            time.Duration // time without an answer while turns wait
}

// Pass reports whether a request may begin at once. Such a request ends with Leave.
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

// Enter reports whether the request of t may begin at once. If not, t waits, and Line calls its Begin when the
// turn comes. In both cases the request ends with Leave, unless Withdraw removes t before.
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

// Withdraw removes t from the queue, and reports whether t was in it.
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

// Leave ends a request, and begins waiting requests if the line has room for them. answered reports that an
// answer has ended the request. resize, if it is not nil, returns the new room; Line calls it with its mutex
// held.
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

// nextLocked removes the next turn from its queue; nil if none waits.
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

// noteAnswer records the answer to a request without a turn.
func (l *Line) noteAnswer(now int64) {
	l.mu.Lock()
	l.heard = now
	l.mu.Unlock()
}

// turnQueue is a list of waiting turns.
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
