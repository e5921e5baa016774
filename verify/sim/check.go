package sim

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/holdfast-go/holdfast/internal/quorum"
)

// Report holds the outcome of a run.
type Report struct {
	Seed       uint64
	Class      string
	Events     int
	Attempts   int
	Grants     int
	Adopted    int     // adopted grants
	Lost       int     // lost leases
	Writes     int     // attempted writes
	Refused    int     // writes rejected by the store that compares tokens
	Recovery   []int64 // ns, for each key with waiters: see checkRecovery
	Unfenced   int     // updates lost by the store without tokens
	Broken     []Violation
	Unpromised map[Property]int // violations of properties that the class does not promise
}

// Violation is a property that does not hold.
type Violation struct {
	Property Property
	What     string
}

func (v Violation) String() string { return fmt.Sprintf("%s: %s", v.Property, v.What) }

// noteFailure records a violation.
func (w *world) noteFailure(p Property, format string, args ...any) {
	w.logEvent("VIOLATION "+string(p)+": "+format, args...)
	if !w.cfg.Class.promisesProperty(p) {
		if w.report.Unpromised == nil {
			w.report.Unpromised = make(map[Property]int)
		}
		w.report.Unpromised[p]++
		return
	}
	w.report.Broken = append(w.report.Broken, Violation{p, fmt.Sprintf(format, args...)})
}

// checkHistory checks the whole history.
func (w *world) checkHistory() {
	for _, c := range w.clients {
		for _, wk := range c.workers {
			if !c.dead && wk.grant != nil {
				wk.endTrust()
			}
		}
	}
	for _, k := range w.keys {
		w.checkTokens(k)
		w.checkOrder(k)
		w.checkOverlap(k)
		w.checkRecovery(k)
		w.report.Unfenced += k.unfenced.lost
		if k.fenced.lost > 0 {
			w.noteFailure(P4, "%d updates of %s are lost", k.fenced.lost, k.name)
		}
	}
	w.checkLeftoverLocks()
}

// checkTokens checks that all blocks of tokens are disjoint.
func (w *world) checkTokens(k *key) {
	byToken := slices.SortedFunc(slices.Values(k.grants), func(a, b *grant) int { return cmp.Compare(a.token, b.token) })
	for i, g := range byToken[min(1, len(byToken)):] {
		if before := byToken[i]; g.token-before.token < quorum.Block {
			w.noteFailure(P1, "%s and %s have %s with tokens %d and %d", before.owner, g.owner, k.name, before.token, g.token)
		}
	}
}

// checkLooks checks that no reader of a lock takes an earlier grant's token for its holder's. If an earlier
// holder's lock is set again after a later grant, that holder does not count.
func (w *world) checkLooks(k *key) {
	asked := w.rng.Perm(len(w.nodes))
	for most := quorum.Majority(len(asked)); most <= len(asked); most++ {
		firsts := make(map[string][]int64)
		for _, i := range asked[:most] {
			if l := w.nodes[i].lockState(k).At(w.nodes[i].wallClock()); l.Owner != "" {
				firsts[l.Owner] = append(firsts[l.Owner], l.Token)
			}
		}
		for owner, all := range firsts {
			if len(all) < quorum.Majority(len(asked)) {
				continue
			}
			certain, earlier := quorum.CertainToken(all, len(asked)), k.grants
			if i := slices.IndexFunc(k.grants, func(g *grant) bool { return g.owner == owner }); i >= 0 {
				earlier = k.grants[:i]
			}
			for _, g := range earlier[max(0, len(earlier)-8):] {
				for _, first := range all {
					if first >= certain && first < g.token+quorum.Block && g.token < first+quorum.Block {
						w.noteFailure(P2, "%s had %s with token %d, and a look finds that %s has", g.owner, k.name, g.token, owner)
					}
				}
			}
		}
	}
}

// checkOrder checks that a grant's token is above all that were committed before the grant was issued.
func (w *world) checkOrder(k *key) {
	byIssue := slices.SortedStableFunc(slices.Values(k.grants), func(a, b *grant) int { return cmp.Compare(a.issued, b.issued) })
	var top *grant // highest grant committed so far; k.grants is in the order of commits
	next := 0
	for _, g := range byIssue {
		for ; next < len(k.grants) && k.grants[next].from < g.issued; next++ {
			if top == nil || k.grants[next].token > top.token {
				top = k.grants[next]
			}
		}
		if top != nil && top.token >= g.token {
			w.noteFailure(P2, "%s has %s with token %d after %s had it with %d", g.owner, k.name, g.token, top.owner, top.token)
		}
	}
}

// checkOverlap checks that each trust has ended when the next begins. k.grants is in the order in which trust
// began.
func (w *world) checkOverlap(k *key) {
	var last *grant
	for _, g := range k.grants {
		if last != nil && g.from < last.until {
			w.noteFailure(P3, "%s has %s from %.3f ms, and %s until %.3f ms",
				g.owner, k.name, float64(g.from)/float64(ms), last.owner, float64(last.until)/float64(ms))
		}
		if last == nil || g.until > last.until {
			last = g
		}
	}
}

// checkRecovery records how long a key with waiters was free after the last fault, beyond the TTL of a dead
// holder's lock. P5, the end of each wait, is checked by run.
func (w *world) checkRecovery(k *key) {
	if w.cfg.Class.Has(Wipe) || w.cfg.Class.Has(Older) {
		return // a quarantine may come in between
	}
	idle := w.calm
	for _, g := range k.grants {
		if g.from >= w.calm {
			if g.asked < w.calm {
				w.report.Recovery = append(w.report.Recovery, max(g.from-idle-w.maxTTL, 0))
			}
			return
		}
		idle = max(idle, g.until)
	}
}

// checkLeftoverLocks checks that no node still holds a lock after all workers have left: at once in a world
// without faults, where the queues must be empty too, and otherwise after the longest TTL, drift and a hand-over.
func (w *world) checkLeftoverLocks() {
	if w.working > 0 {
		return
	}
	late := w.now
	for _, e := range w.todo { // messages in flight still arrive
		if e.to == nil {
			late = max(late, e.at)
		}
	}
	for len(w.todo) > 0 { // deliver them, without new work
		e := w.todo[0]
		if e.at > late {
			break
		}
		e = w.todo.pop()
		if e.to == nil {
			w.now = max(w.now, e.at)
			e.do()
		}
	}
	w.now = max(w.now, late)
	if w.cfg.Class.hasFaults() {
		w.now += w.maxTTL + quorum.Drift(w.maxTTL) + quorum.HandOverTime(w.maxTTL)
	}
	for _, n := range w.nodes {
		for _, k := range w.keys {
			l := n.locks[k].At(n.wallClock())
			if l.Owner != "" {
				w.noteFailure(P7, "node %d keeps %s for %s", n.i, k.name, l.Owner)
			}
			if l.Queue != "" && !w.cfg.Class.hasFaults() {
				w.noteFailure(P7, "node %d keeps a queue of %d for %s", n.i, l.Queue.Len(), k.name)
			}
		}
	}
}
