package memory

import (
	"errors"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/quorum/engine"
)

var (
	errStopped = errors.New("node is stopped")
	errFrozen  = errors.New("node is frozen")
)

// Node is one of the nodes. Tests make it fail as servers do. Its methods are safe for concurrent use.
type Node struct {
	cluster *cluster
	name    string

	mu       sync.Mutex             // guards the fields below
	locks    map[string]quorum.Lock // without their Fence and Notes
	notes    map[string]*notes      // of the locks that were forced or adopted
	fence    int64                  // highest token, for all locks
	state    state
	delay    time.Duration
	shift    time.Duration
	lose     int // number of replies to lose
	pending  []pendingRequest
	draining bool
}

type state int

const (
	running state = iota
	stopped
	frozen
)

// pendingRequest is a request that has not been executed yet.
type pendingRequest struct {
	due time.Time
	in  *nodeConn
	r   *engine.Request
}

// Stop makes the node reject every request at once, like a killed server. Its locks survive, as on a server
// that keeps its data on disk.
func (n *Node) Stop() { n.setState(stopped) }

// Freeze makes the node accept requests without answering, like a server after SIGSTOP. It executes them when
// Start is called, however late.
func (n *Node) Freeze() { n.setState(frozen) }

// Start ends Stop and Freeze.
func (n *Node) Start() { n.setState(running) }

// Wipe deletes all data of the node, like a restart of a server without persistence.
func (n *Node) Wipe() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.locks)
	clear(n.notes)
	n.fence = 0
}

// DropLock deletes the lock on key from the node, but not the counter of tokens and the queue.
func (n *Node) DropLock(key string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.lockState(key)
	l.Owner, l.Token, l.Until = "", 0, 0
	n.storeLock(key, l)
}

// Delay makes each request take d before it is executed. Requests keep their order.
func (n *Node) Delay(d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.delay = d
}

// ShiftClock sets the node's clock d ahead of the machine's.
func (n *Node) ShiftClock(d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.shift = d
}

// LoseReplies lets the node execute the next k requests and lose their replies.
func (n *Node) LoseReplies(k int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lose = k
}

func (n *Node) setState(s state) {
	n.mu.Lock()
	changed := n.state != s
	n.state = s
	n.mu.Unlock()
	if changed {
		n.cluster.tellClients(n.event())
	}
	n.executeDue()
}

// event returns the node's state.
func (n *Node) event() driver.NodeEvent {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch n.state {
	case stopped:
		return driver.NodeEvent{Node: n.name, State: driver.NodeDown, Err: errStopped}
	case frozen:
		return driver.NodeEvent{Node: n.name, State: driver.NodeStalled, Err: errFrozen}
	}
	return driver.NodeEvent{Node: n.name, State: driver.NodeUp, RoundTrip: n.delay}
}

// now returns the node's clock in µs. The caller holds mu.
func (n *Node) now() int64 { return time.Now().Add(n.shift).UnixMicro() }

// acceptWork accepts a request, and executes it at once if nothing delays it.
func (n *Node) acceptWork(w pendingRequest) {
	n.mu.Lock()
	if n.state == stopped {
		n.mu.Unlock()
		w.r.Fail(engine.Failure{Err: errStopped, Unsent: true})
		return
	}
	w.due = time.Now().Add(n.delay)
	if n.delay > 0 {
		time.AfterFunc(n.delay, n.executeDue)
	}
	n.pending = append(n.pending, w)
	n.mu.Unlock()
	n.executeDue()
}

// executeDue executes the requests that are due, in order, in one goroutine at a time.
func (n *Node) executeDue() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.draining {
		return
	}
	n.draining = true
	defer func() { n.draining = false }()
	for n.state != frozen && len(n.pending) > 0 {
		w := n.pending[0]
		if n.state == running && time.Now().Before(w.due) {
			return
		}
		n.pending = n.pending[1:]
		var then func()
		switch {
		case n.state == stopped:
			then = func() { w.r.Fail(engine.Failure{Err: errStopped}) }
		default:
			then = n.executeWork(w)
		}
		n.mu.Unlock()
		then()
		n.mu.Lock()
	}
}

// executeWork applies a request to the lock and returns a function that sends the reply and the wake-up.
// The caller holds mu.
func (n *Node) executeWork(w pendingRequest) (then func()) {
	c, i := w.in.driver.cluster, w.in.index
	hears := func(owner string) bool { return c.reachesOwner(i, owner) }
	name, ask := w.r.Lock.Name, &w.r.Ask
	l, reply, woken := n.lockState(name, ask.Owner, ask.From).Execute(n.now(), ask, hears)
	n.storeLock(name, l)
	lost := n.lose > 0
	if lost {
		n.lose--
	}
	return func() {
		if !lost {
			w.r.Answer(reply)
		}
		if woken.Owner != "" {
			c.wakeOwner(i, woken)
		}
	}
}

// lockState returns the state of a lock on the node, with the notes about the owners of a request. The caller holds mu.
func (n *Node) lockState(name string, owners ...string) quorum.Lock {
	l := n.locks[name]
	l.Fence = n.fence
	if all := n.notes[name]; all != nil {
		for _, owner := range owners {
			if until, ok := all.until[owner]; ok {
				l.Notes = l.Notes.With(owner, until)
			}
		}
	}
	return l
}

// storeLock stores a lock, or deletes it if it is empty. The caller holds mu.
func (n *Node) storeLock(name string, l quorum.Lock) {
	for owner, until := range l.Notes.Owners {
		if n.notes[name] == nil {
			n.notes[name] = &notes{until: make(map[string]int64)}
		}
		n.notes[name].add(owner, until)
	}
	n.forgetNotes(name)
	n.fence, l.Fence, l.Notes = l.Fence, 0, quorum.Notes{}
	if l == (quorum.Lock{}) {
		delete(n.locks, name)
		return
	}
	n.locks[name] = l
}

// notes holds the notes about one lock. They are stored apart from the lock, because there may be many and a
// request needs two.
type notes struct {
	until map[string]int64 // by owner
	order []string         // owners in the order of their notes, which is usually the order of expiry
}

func (n *notes) add(owner string, until int64) {
	if _, known := n.until[owner]; !known {
		n.order = append(n.order, owner)
	}
	n.until[owner] = until
}

// forgetNotes deletes the expired notes about a lock. The caller holds mu.
func (n *Node) forgetNotes(name string) {
	all := n.notes[name]
	if all == nil {
		return
	}
	now := n.now() / 1000
	for len(all.order) > 0 && all.until[all.order[0]] < now {
		delete(all.until, all.order[0])
		all.order = all.order[1:]
	}
	if len(all.order) == 0 {
		delete(n.notes, name)
	}
}

// viewOf returns the view of a lock on the node.
func (n *Node) viewOf(name string) engine.View {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.state != running {
		return engine.View{Err: errStopped}
	}
	now := n.now()
	l := n.locks[name].At(now)
	v := engine.View{Owner: l.Owner, Token: l.Token, Waiters: l.Queue.Len()}
	if l.Owner != "" {
		v.Left = time.Duration(l.Until-now/1000) * time.Millisecond
	}
	return v
}

// forceLock takes a lock away from owner. It reports whether it did, and returns the waiter that it woke.
func (n *Node) forceLock(name, owner string, noted time.Duration, hears func(owner string) bool) (ok bool, woken string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.state != running {
		return false, "", errStopped
	}
	l, ok, w := n.lockState(name, owner).Force(n.now(), owner, 0, quorum.Millis(quorum.MaxHandOver), quorum.Millis(int64(noted)), hears)
	n.storeLock(name, l)
	return ok, w.Owner, nil
}

// dropKept frees a released lock that is kept for its MinHold, if it is still the lock of st.
func (n *Node) dropKept(name string, st driver.Status) (done bool, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.state != running {
		return false, errStopped
	}
	l := n.lockState(name).At(n.now())
	if done = st.Kept && l.Owner == st.Owner; done {
		l.Owner, l.Token, l.Until = "", 0, 0
		n.storeLock(name, l)
	}
	return done, nil
}

// sweepExpired deletes expired entries and returns the names of the locks that are held or waited for.
func (n *Node) sweepExpired() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	for name := range n.notes {
		n.forgetNotes(name)
	}
	var names []string
	for name := range n.locks {
		l := n.lockState(name).At(n.now())
		n.storeLock(name, l)
		if l.Owner != "" || l.Queue != "" {
			names = append(names, name)
		}
	}
	return names
}
