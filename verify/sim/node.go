package sim

import (
	"fmt"

	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/session"
)

// node is one server.
type node struct {
	w    *world
	i    int
	rate float64 // rate of its clock
	off  int64   // offset of its clock, in µs

	locks   map[*key]quorum.Lock // without their Fence
	fence   int64                // shared counter
	issued  map[*key]int64       // time when the lock was last given to another owner
	ears    map[*link]int        // generations of connections that listen, as the node believes
	down    bool                 // no process
	frozen  bool
	boot    int      // number of its process
	votes   int64    // time before which it does not vote
	floor   int64    // first usable token since its last admission
	away    bool     // not admitted since it may have lost data
	backlog []func() // requests of a frozen node
}

func (w *world) newNode(i int) *node {
	n := &node{
		w: w, i: i, rate: w.randomRate(), off: w.rng.Int64N(600_000) - 300_000,
		locks: make(map[*key]quorum.Lock), issued: make(map[*key]int64), ears: make(map[*link]int), away: true,
	}
	return n
}

// randomRate returns the slowest or the fastest allowed rate of a clock: any two clocks stay within
// quorum.Drift.
func (w *world) randomRate() float64 { return 1 + []float64{-1, 1}[w.rng.IntN(2)]/201 }

// wallClock returns the node's wall clock in µs.
func (n *node) wallClock() int64 {
	return epoch + n.off + int64(float64(n.w.now)*n.rate)/1000
}

// request is one request of a claim.
type request struct {
	quorum.Ask

	key   *key
	claim *claim              // nil: an owed release
	debt  *session.Debt[*key] // the owed release; nil: none
	began int64               // by the simulation's clock
	round int                 // the claim's round of renewals when it was sent
	step  int                 // step of its last execution
	done  bool                // answered or failed, at the client
}

// reply is an answer of the node, with the time when the lock was given to its owner.
type reply struct {
	quorum.Reply

	issued int64
}

// receiveRequest passes a request from l to the node's process. boot is the process to which the connection
// led.
func (n *node) receiveRequest(l *link, gen, boot int, r *request) {
	switch {
	case n.down || n.boot != boot:
		return // died with the process
	case n.frozen:
		n.backlog = append(n.backlog, func() { n.receiveRequest(l, gen, boot, r) })
		return
	}
	rep := n.executeScript(r)
	if n.w.cfg.Class.Has(Twice) && n.w.rollChance(0.01) {
		n.w.logEvent("node %d executes the next one twice", n.i)
		rep = n.executeScript(r)
	}
	l.deliverReply(gen, r, rep)
}

// executeScript runs a script, or the script without one of its rules.
func (n *node) executeScript(r *request) reply {
	now := n.wallClock()
	before, ask := n.lockState(r.key).At(now), r.Ask
	n.recordLapse(n.locks[r.key], before)
	if n.w.cfg.Rules.SeedAtAnyTime {
		ask.Clock = now // the clock check then always passes
	}
	l, rep, woken := n.lockWithoutRule(before, &ask).Execute(now, &ask, n.isListening)
	if ask.Kind == quorum.AskCommit {
		if l.Owner = before.Owner; rep.Kind == quorum.Refused {
			l.Token, l.Fence = before.Token, before.Fence
		}
	}
	if n.w.cfg.Rules.Shorten && before.Owner == ask.Owner && l.Owner == ask.Owner && ask.Kind != quorum.AskCommit {
		l.Until = now/1000 + quorum.Millis(ask.TTL)
	}
	n.storeLock(r.key, l)
	r.step = n.recordExecution(before, l, Step{Kind: Executes, Owner: ask.Owner, Ask: ask, Says: rep.Kind, Lasts: quorum.HandOverTime(ask.TTL)})
	if l.Owner != before.Owner {
		n.issued[r.key] = n.w.now
	}
	if n.w.cfg.Log != nil {
		n.w.logEvent("node %d: %v %s for %s (token %d, stamp %d): %s; owner %q, counter %d, %d wait",
			n.i, r.Kind, r.key.name, r.Owner, r.Token, r.Stamp, eventText(rep.Event), l.Owner, l.Fence, l.Queue.Len())
	}
	if woken.Owner != "" {
		n.publishWakeUp(woken, n.issued[r.key], r.step)
	}
	return reply{Reply: rep, issued: n.issued[r.key]}
}

// lockState returns the node's state of a lock.
func (n *node) lockState(k *key) quorum.Lock {
	l := n.locks[k]
	l.Fence = n.fence
	return l
}

// storeLock stores a lock.
func (n *node) storeLock(k *key, l quorum.Lock) {
	n.fence, l.Fence = l.Fence, 0
	n.locks[k] = l
}

// lockWithoutRule returns the lock as a commit or a release sees it without one of its rules.
func (n *node) lockWithoutRule(l quorum.Lock, ask *quorum.Ask) quorum.Lock {
	if ask.Kind == quorum.AskCommit && n.w.cfg.Rules.CommitAnybody {
		l.Owner = ask.Owner
	}
	if ask.Kind == quorum.AskCommit && n.w.cfg.Rules.CommitAnyToken {
		l.Token = min(l.Token, ask.Token)
	}
	if ask.Kind.Frees() && ask.Stamp == 0 && n.w.cfg.Rules.ReleaseAnybody {
		l.Owner = ask.Owner
	}
	return l
}

func (n *node) isListening(owner string) bool {
	for l := range n.ears {
		if l.c.name == clientOf(owner) {
			return true
		}
	}
	return false
}

// publishWakeUp publishes to the clients that seem to listen.
func (n *node) publishWakeUp(wake quorum.Wake, issued int64, step int) {
	for _, c := range n.w.clients {
		if l := c.links[n.i]; c.name == clientOf(wake.Owner) {
			if gen, ok := n.ears[l]; ok {
				n.w.logEvent("node %d hands over: %v", n.i, wake)
				l.deliverInOrder(gen, func() { c.wakeClaim(n.i, wake, issued, step) })
			}
		}
	}
}

// stop ends the process: its connections break, and their messages are lost.
func (n *node) stop() {
	n.down = true
	n.frozen, n.backlog = false, nil
	n.boot++
	clear(n.ears)
	for _, c := range n.w.clients {
		c.links[n.i].breakConnection(false)
	}
}

// start starts the process with the data of the last one.
func (n *node) start() { n.down = false }

// restoreLocks replaces the node's data by these locks and their counter.
func (n *node) restoreLocks(locks map[*key]quorum.Lock, fence int64) {
	n.locks, n.fence, n.away = locks, fence, true
	n.w.cfg.Record.addStep(n.w, Step{Kind: Forgets, Node: n.i, Lock: quorum.Lock{Fence: fence}})
	if len(n.w.nodes) > 1 && !n.w.cfg.Rules.NoQuarantine {
		n.votes = n.w.now + n.w.quarantineTime()
	}
}

// admitNode lets the node vote, with tokens that begin at the clock, if c and the node agree on the clock.
func (n *node) admitNode(c *client) bool {
	if n.isReady() && n.away {
		floor, ok := quorum.Seed(n.wallClock(), c.wallClock())
		if n.away = !ok; ok {
			n.floor = floor
			n.w.cfg.Record.addStep(n.w, Step{Kind: Admits, Node: n.i, Floor: floor})
		}
	}
	return n.isReady() && !n.away
}

func (n *node) thaw() {
	backlog := n.backlog
	n.frozen, n.backlog = false, nil
	for _, do := range backlog {
		do()
	}
}

// isReady reports whether a connection can be opened and checked.
func (n *node) isReady() bool { return !n.down && !n.frozen && n.w.now >= n.votes }

func eventText(e quorum.Event) string {
	switch e.Kind {
	case quorum.Granted:
		return fmt.Sprintf("granted %d", e.Token)
	case quorum.Denied:
		return fmt.Sprintf("denied, %d ms left", e.Left/ms)
	case quorum.Accepted:
		return "accepted"
	case quorum.Refused:
		return "refused"
	case quorum.Kept:
		return "kept"
	case quorum.NotMine:
		return "not mine"
	case quorum.Freed:
		return "freed"
	case quorum.Failed:
		return "failed " + e.Of.String()
	}
	return fmt.Sprint("event ", e.Kind)
}
