package sim

import (
	"maps"
	"slices"

	"github.com/holdfast-go/holdfast/internal/quorum"
)

// Fault is a kind of fault.
type Fault int

// The faults.
const (
	Break        Fault = iota // a connection breaks
	Slow                      // a link is slow for a while
	Cut                       // clients and nodes cannot reach each other
	Twice                     // requests are executed twice
	Sleep                     // a client is suspended and resumes
	Die                       // a client dies; another one takes its place
	Freeze                    // a node is suspended and resumes
	Restart                   // a node is restarted with its data
	Wipe                      // a node is restarted without data
	Older                     // a node is restarted with older data
	Forget                    // a lock expires early
	Jump                      // a node's clock jumps by three minutes, any number of times
	JumpHour                  // a node's clock jumps by an hour
	JumpMajority              // the clocks of a majority jump by an hour, and back
	Force                     // an operator force-releases a lock, on all nodes
)

// Property names one checked property.
type Property string

// The properties; the package comment describes them.
const (
	P1 Property = "P1 unique tokens"
	P2 Property = "P2 token order"
	P3 Property = "P3 exclusion"
	P4 Property = "P4 fenced store"
	P5 Property = "P5 recovery"
	P7 Property = "P7 no ghost locks"
	P9 Property = "P9 a lease lives"
)

// Class is a set of faults, with the properties promised under them.
type Class struct {
	Name     string
	Faults   []Fault
	Promised []Property
}

var (
	network = []Fault{Break, Break, Slow, Cut, Twice}
	clients = []Fault{Sleep, Sleep, Die}
	nodes   = []Fault{Freeze, Restart}
	all     = []Property{P1, P2, P3, P4, P5, P7}
)

// Classes is the table of fault classes.
//
// Tokens stay in order whatever clocks do, as long as no counter is lost. A node that forgets loses its
// counter. The clients' clocks then replace the counter, if they agree.
var Classes = []Class{
	{"calm", nil, all},
	{"network", network, all},
	{"clients", clients, all},
	{"nodes", nodes, all},
	{"amnesia", []Fault{Wipe}, all},
	{"everything", slices.Concat(network, clients, nodes, []Fault{Wipe, Older}), all},
	{"older", slices.Concat(network, clients, []Fault{Older, Older}), []Property{P1, P2, P4, P5, P7}}, // and P3 with several nodes
	{"early", slices.Concat(network, clients, []Fault{Forget, Forget, Forget}), []Property{P1, P2, P4, P5, P7}},
	{"forced", slices.Concat(network, clients, []Fault{Force, Force}), []Property{P1, P2, P4, P5, P7}},
	{"clocks", slices.Concat(network, clients, []Fault{Jump, Jump, Jump}), []Property{P1, P2, P4}},
	{"hours", slices.Concat(network, clients, nodes, []Fault{Wipe, JumpHour, JumpHour}), []Property{P2, P4}},
	{"majority", slices.Concat(network, []Fault{JumpMajority, JumpMajority, JumpMajority}), []Property{P1, P2, P4}},
}

// hasClockJumps reports whether clocks jump so far that a lost counter cannot start from them.
func (c Class) hasClockJumps() bool { return c.Has(JumpHour) || c.Has(JumpMajority) }

// Has reports whether f is one of the class's faults.
func (c Class) Has(f Fault) bool { return slices.Contains(c.Faults, f) }

func (c Class) promisesProperty(p Property) bool { return slices.Contains(c.Promised, p) }

func (c Class) hasFaults() bool { return len(c.Faults) > 0 }

// scheduleFaults distributes faults over the time before the calm.
func (w *world) scheduleFaults() {
	kinds := slices.DeleteFunc(slices.Clone(w.cfg.Class.Faults), func(f Fault) bool { return f == Twice })
	if len(kinds) == 0 {
		return
	}
	for at := w.upTo(8 * w.pause); at < w.calm; at += w.upTo(4 * w.pause) {
		kind := kinds[w.rng.IntN(len(kinds))]
		w.scheduleAfter(at, func() { w.causeFault(kind, w.calm-w.now) })
	}
	if w.cfg.Class.hasClockJumps() {
		w.scheduleAfter(w.calm+swings*swing, func() {
			for _, n := range w.nodes {
				n.off = 0
			}
		})
	}
}

// causeFault causes one fault, which ends after left.
func (w *world) causeFault(kind Fault, left int64) {
	c := w.clients[w.rng.IntN(len(w.clients))]
	n := w.nodes[w.rng.IntN(len(w.nodes))]
	l := c.links[n.i]
	long := min(w.upTo(min(3*w.ttl, 20*w.pause)), left)
	switch kind {
	case Break:
		w.logEvent("FAULT %s loses its connection to node %d", c.name, n.i)
		l.breakConnection(true)
	case Slow:
		w.logEvent("FAULT the way from %s to node %d is slow for %d ms", c.name, n.i, long/ms)
		l.slow, l.slowTill = min(w.upTo(2*w.ttl), left), w.now+long
	case Cut:
		w.partitionNetwork(w.now + long)
	case Sleep:
		w.pauseClient(c, long, left)
	case Die:
		if !c.dead && len(w.clients) < 300 {
			w.killClient(c)
		}
	case Freeze:
		n.freeze(long)
	case Restart, Wipe:
		n.restart(long, kind == Wipe)
	case Older:
		saved, fence, lost := maps.Clone(n.locks), n.fence, w.upTo(long)
		w.scheduleAfter(lost, func() { n.restoreState(saved, fence, long-lost) })
	case Forget:
		n.loseLock(w.keys[w.rng.IntN(len(w.keys))])
	case Jump:
		w.setClock(n, w.rng.Int64N(2*maxJump)-maxJump)
	case Force:
		w.forceLock(w.keys[w.rng.IntN(len(w.keys))])
	case JumpHour:
		w.setClock(n, []int64{-hour, hour, 0}[w.rng.IntN(3)])
	case JumpMajority:
		w.setMajority([]int64{-hour, hour}[w.rng.IntN(2)], long)
	}
}

// pauseClient suspends the client, or instead one that holds a lock, for longer than its trust lasts: few
// clients hold a lock at any time.
func (w *world) pauseClient(c *client, long, left int64) {
	if holders := w.trustingClients(); len(holders) > 0 && w.rollChance(0.5) {
		c, long = holders[w.rng.IntN(len(holders))], min(w.ttl+w.upTo(w.ttl), left)
	}
	w.logEvent("FAULT %s is stopped for %d ms", c.name, long/ms)
	c.asleep = max(c.asleep, w.now+long)
}

// trustingClients returns the clients that trust a lock.
func (w *world) trustingClients() (out []*client) {
	for _, c := range w.clients {
		if slices.ContainsFunc(c.workers, func(wk *worker) bool { return wk.grant != nil }) {
			out = append(out, c)
		}
	}
	return out
}

// freeze suspends the node, unless it is restarted meanwhile.
func (n *node) freeze(long int64) {
	if n.down || n.frozen {
		return
	}
	n.w.logEvent("FAULT node %d is stopped for %d ms", n.i, long/ms)
	n.frozen = true
	boot := n.boot
	n.w.scheduleAfter(long, func() {
		if n.boot == boot {
			n.thaw()
		}
	})
}

// restart takes the node down for a time; afterwards it has its data, or none.
func (n *node) restart(long int64, wiped bool) {
	if n.down {
		return
	}
	n.w.logEvent("FAULT node %d is down for %d ms; forgets everything: %v", n.i, long/ms, wiped)
	n.stop()
	n.w.scheduleAfter(long, func() {
		if n.start(); wiped {
			n.restoreLocks(make(map[*key]quorum.Lock), 0)
		}
	})
}

// loseLock makes the node lose a lock early.
func (n *node) loseLock(k *key) {
	n.w.logEvent("FAULT %s lapses on node %d", k.name, n.i)
	lock := n.locks[k]
	if lock.Owner != "" {
		n.w.cfg.Record.addStep(n.w, Step{Kind: Loses, Node: n.i})
	}
	lock.Owner, lock.Token, lock.Until = "", 0, 0
	n.locks[k] = lock
}

// setMajority sets the clocks of a majority for a time.
func (w *world) setMajority(off, long int64) {
	for _, i := range w.rng.Perm(len(w.nodes))[:quorum.Majority(len(w.nodes))] {
		n := w.nodes[i]
		w.setClock(n, off)
		w.scheduleAfter(long, func() { n.off = 0 })
	}
}

// restoreState restarts the node with older data. A single server is down for longer than clocks differ; for
// several, a quarantine ensures that.
func (n *node) restoreState(saved map[*key]quorum.Lock, fence, long int64) {
	if n.down {
		return
	}
	if len(n.w.nodes) == 1 {
		long = max(long, 2*second)
	}
	n.w.logEvent("FAULT node %d is down for %d ms, and goes back to older data", n.i, long/ms)
	n.stop()
	n.w.scheduleAfter(long, func() {
		n.start()
		n.restoreLocks(saved, fence)
	})
}

// How often and how fast a clock swings.
const (
	swings = 8
	swing  = 5 * ms
	hour   = 3600_000_000 // µs

	maxJump = 170_000_000 // µs
)

// forceLock force-releases the lock of the holder that some node names.
func (w *world) forceLock(k *key) {
	owner := w.nodes[w.rng.IntN(len(w.nodes))].locks[k].Owner
	w.logEvent("FAULT %s is taken from %s", k.name, owner)
	for _, n := range w.nodes {
		w.scheduleAfter(w.upTo(w.lag), func() {
			if !n.isReady() {
				return
			}
			before := n.lockState(k).At(n.wallClock())
			n.recordLapse(n.locks[k], before)
			l, _, woken := before.Force(n.wallClock(), owner, n.floor, quorum.HandOverTime(w.maxTTL)/ms, quorum.NoteTime(w.maxTTL)/ms, n.isListening)
			if l.Owner != n.locks[k].Owner {
				n.issued[k] = w.now
			}
			n.storeLock(k, l)
			step := n.recordExecution(before, l, Step{Kind: Forces, Owner: owner, Lasts: quorum.HandOverTime(w.maxTTL)})
			if woken.Owner != "" {
				n.publishWakeUp(woken, n.issued[k], step)
			}
		})
	}
}

// setClock sets the offset of a clock; sometimes the clock swings for a while.
func (w *world) setClock(n *node, off int64) {
	w.logEvent("FAULT the clock of node %d is off by %d s", n.i, off/1_000_000)
	back := n.off
	n.off = off
	if w.rollChance(0.3) {
		for i := range swings {
			w.scheduleAfter(int64(i+1)*swing, func() { n.off, back = back, n.off })
		}
	}
}

// partitionNetwork separates some clients from some nodes: messages in flight arrive later, or the connections
// break.
func (w *world) partitionNetwork(until int64) {
	some, breaks := w.rng.IntN(1<<len(w.nodes)), w.rollChance(0.5)
	w.logEvent("FAULT some clients do not reach the nodes %b until %d ms (connections break: %v)", some, until/ms, breaks)
	for _, c := range w.clients {
		if w.rollChance(0.5) {
			continue
		}
		for i, l := range c.links {
			if quorum.Set(some).Has(i) {
				l.cut = max(l.cut, until)
				if breaks {
					l.breakConnection(true)
				}
			}
		}
	}
}

// killClient ends a client; another one begins in its place.
func (w *world) killClient(c *client) {
	w.logEvent("FAULT %s dies", c.name)
	for _, wk := range c.workers {
		if wk.claim != nil {
			wk.endTrust()
			w.working--
		}
	}
	for _, l := range c.links {
		l.breakConnection(true)
		for gen, f := range l.fate {
			f.at = min(f.at, w.now+w.ttl) // requests that a dead process left in the network
			l.fate[gen] = f
		}
	}
	c.dead = true
	w.newClient(len(c.workers))
}
