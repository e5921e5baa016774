package sim

import (
	"github.com/holdfast-go/holdfast/internal/quorum"
)

// longestWork is the longest time that a worker holds a lock, in TTLs.
const longestWork = 3

// worker is one goroutine of a client. Under a lock it reads a number from a store and writes the next one,
// again and again.
type worker struct {
	c     *client
	cycle int // number of its cycle; events of older cycles are void
	asked int64
	claim *claim
	grant *grant // set while it trusts the lock
	keeps func() // replaces the work of a worker that keeps the lock; nil: it works
}

// pauseBetweenCycles pauses between two cycles. After the last fault no new cycle begins.
func (wk *worker) pauseBetweenCycles() {
	w := wk.c.w
	pause := min(w.ttl/4, 4*w.pause)
	wk.c.scheduleAfter(w.upTo(pause), func() {
		if w.now < w.calm {
			wk.start()
		}
	})
}

func (wk *worker) start() {
	w, c := wk.c.w, wk.c
	wk.cycle++
	cycle := wk.cycle
	wk.asked = w.now
	w.working++
	w.report.Attempts++
	wait := w.rollChance(0.85)
	ttl := w.ttl
	if w.rollChance(0.3) && w.cfg.Nodes == 0 { // still some round trips
		ttl = max(ttl/int64(2+w.rng.IntN(4)), min(10*w.lag, ttl))
	}
	cl := c.newClaim(w.keys[w.rng.IntN(len(w.keys))], ttl, wait)
	wk.claim = cl
	if wait && w.rollChance(0.2) { // give up
		c.scheduleAfter(w.upTo(2*w.ttl), func() {
			if wk.cycle == cycle && wk.claim == cl && cl.st.Phase == quorum.Seeking {
				wk.giveUp()
			}
		})
	}
	w.logEvent("%s wants %s (waits: %v)", cl.owner, cl.key.name, wait)
	cl.postAwaited(quorum.Event{Kind: quorum.Start}, wk.handleOutcome)
}

// endCycle ends a cycle.
func (wk *worker) endCycle() {
	wk.cycle++
	wk.claim = nil
	wk.c.w.working--
	wk.pauseBetweenCycles()
}

func (wk *worker) giveUp() {
	wk.c.w.logEvent("%s gives up", wk.claim.owner)
	wk.claim.postAwaited(quorum.Event{Kind: quorum.Release}, nil)
	wk.claim.forgetClaim()
	wk.endCycle()
}

// handleOutcome handles the outcome of a request.
func (wk *worker) handleOutcome(o quorum.Outcome) {
	if o != quorum.Won {
		wk.claim.forgetClaim()
		wk.endCycle()
		return
	}
	w, cl := wk.c.w, wk.claim
	g := &grant{owner: cl.owner, token: cl.st.Token, asked: wk.asked, issued: w.now, from: w.now}
	for n := range cl.st.Kept.Nodes {
		g.issued = min(g.issued, cl.issued[n])
	}
	wk.grant = g
	cl.key.grants = append(cl.key.grants, g)
	w.report.Grants++
	w.logEvent("%s holds %s, token %d", cl.owner, cl.key.name, g.token)
	w.checkLooks(cl.key)
	if cl.st.Adopts {
		w.report.Adopted++
	}
	if w.cfg.Adopt && (w.cfg.Nodes == 0 || !cl.st.Adopts) && w.rollChance(0.5) {
		wk.adoptLease()
		return
	}
	wk.watchTrust()
	if wk.keeps != nil {
		wk.keeps()
		return
	}
	wk.doWork()
}

// adoptLease adopts the lease under another owner, as another client would. That ends with the TTL.
func (wk *worker) adoptLease() {
	w, from, cycle := wk.c.w, wk.claim, wk.cycle
	wk.endTrust()
	from.forgetClaim()
	wk.asked = w.now
	cl := wk.c.newClaim(from.key, from.st.TTL, false)
	cl.st.Adopts, cl.from, wk.claim = true, from.owner, cl
	w.logEvent("%s adopts %s from %s", cl.owner, cl.key.name, cl.from)
	wk.c.scheduleAfter(cl.st.TTL, func() {
		if wk.cycle == cycle && wk.claim == cl && cl.st.Phase == quorum.Seeking {
			wk.giveUp()
		}
	})
	cl.postAwaited(quorum.Event{Kind: quorum.Start}, wk.handleOutcome)
}

// trustsLock reports whether the holder, by its own clock, still trusts the lock.
func (wk *worker) trustsLock() bool {
	over := wk.c.monotonicClock() >= wk.claim.st.TrustedUntil() && !wk.c.w.cfg.Rules.TrustForever
	return wk.grant != nil && wk.claim.st.Phase == quorum.Held && !over
}

// endTrust ends the trust, by release or by loss.
func (wk *worker) endTrust() {
	if wk.grant != nil {
		wk.grant.until = wk.c.w.now
		if !wk.c.w.cfg.Rules.TrustForever {
			wk.grant.until = min(wk.grant.until, wk.c.worldTime(wk.claim.st.TrustedUntil()))
		}
		wk.grant = nil
	}
}

// otherTTLs returns how many TTLs a renewal may choose from, other than its own. A holder that must survive
// outages does not use the shortest, which could end before a late answer.
func (wk *worker) otherTTLs() int {
	if wk.keeps != nil {
		return 2
	}
	return 3
}

// watchTrust renews every third of the TTL, and notices the end of trust.
func (wk *worker) watchTrust() {
	w, cl, cycle := wk.c.w, wk.claim, wk.cycle
	own := cl.st.TTL
	current := func() bool { return wk.cycle == cycle && wk.grant != nil }
	var renew, expire func()
	renew = func() {
		if !current() {
			return
		}
		if !wk.trustsLock() {
			wk.loseLease()
			return
		}
		settled, ttl := false, own
		if w.rollChance(0.2) { // sometimes use another TTL
			ttl = []int64{own / 2, w.maxTTL, own / 5}[w.rng.IntN(wk.otherTTLs())]
		}
		cl.postAwaited(quorum.Event{Kind: quorum.Renew, TTL: ttl}, func(o quorum.Outcome) {
			settled = true
			switch {
			case !current():
			case o == quorum.Lost:
				wk.loseLease()
			case o == quorum.Renewed:
				wk.c.scheduleAfter(ttl/3, renew)
			default:
				wk.c.scheduleAfter(min(max(ttl/10, 10*ms), second), renew)
			}
		})
		wk.c.scheduleAfter(quorum.RequestTimeout(ttl), func() {
			if !settled && current() {
				cl.postEvent(quorum.Event{Kind: quorum.Tick})
			}
		})
	}
	expire = func() {
		switch {
		case !current():
		case !wk.trustsLock():
			wk.loseLease()
		default:
			wk.c.scheduleAfter(max(cl.st.TrustedUntil()-wk.c.monotonicClock(), ms), expire)
		}
	}
	first := own / 3
	if given := cl.st.TrustedUntil() - wk.c.monotonicClock(); given < own/2 || len(w.nodes) > 2 {
		first = given / 32
	}
	wk.c.scheduleAfter(first, renew)
	expire()
}

func (wk *worker) loseLease() {
	wk.c.w.report.Lost++
	wk.c.w.logEvent("%s has lost %s", wk.claim.owner, wk.claim.key.name)
	if wk.keeps != nil {
		wk.noteLostLease()
	}
	wk.releaseLock()
}

// doWork reads, computes, writes and releases.
func (wk *worker) doWork() {
	w, k, g, cycle := wk.c.w, wk.claim.key, wk.grant, wk.cycle
	long := w.upTo(min(20*ms, w.lag))
	often := 0.1
	if w.cfg.Nodes > 0 { // few leases are followed: let half of them be renewed
		often = 0.5
	}
	if w.rollChance(often) {
		long = w.upTo(longestWork * w.ttl)
	}
	travel := func(do func()) { // to a store or back, with any delay
		d := w.upTo(2 * ms)
		if w.cfg.Class.hasFaults() && w.rollChance(0.05) {
			d = w.upTo(2 * w.ttl)
		}
		w.scheduleAfter(d, do)
	}
	still := func() bool {
		if wk.cycle != cycle || wk.grant != g || !wk.trustsLock() {
			return false
		}
		w.cfg.Record.addStep(w, Step{Kind: Uses, Owner: wk.claim.owner})
		return true
	}
	travel(func() {
		fenced, ok := k.fenced.claimWrite(g.token, g.owner)
		unfenced := k.unfenced.value
		w.schedule(wk.c, w.upTo(ms), func() {
			wk.c.scheduleAfter(long, func() {
				if still() { // from here on any delay is allowed
					travel(func() {
						w.writeStores(k, g, fenced, unfenced, ok)
						w.schedule(wk.c, w.upTo(ms), func() {
							if wk.cycle == cycle && wk.grant == g {
								wk.releaseLock()
							}
						})
					})
				}
			})
		})
	})
}

// releaseLock releases the lock. The claim stays until the nodes have answered or had time to answer.
func (wk *worker) releaseLock() {
	wk.endTrust()
	w, cl, cycle := wk.c.w, wk.claim, wk.cycle
	end := func() {
		if wk.cycle == cycle {
			cl.forgetClaim()
			wk.endCycle()
		}
	}
	cl.postAwaited(quorum.Event{Kind: quorum.Release}, func(quorum.Outcome) { end() })
	wk.c.scheduleAfter(quorum.RequestTimeout(w.ttl), end)
}

// store holds a number that holders of a lock increment.
type store struct {
	value int64
	token int64 // highest token seen
	owner string
	lost  int // lost updates
}

// claimWrite returns the value on which a write builds. ok is false for a late holder.
func (s *store) claimWrite(token int64, owner string) (value int64, ok bool) {
	if token < s.token || token == s.token && owner != s.owner {
		return 0, false
	}
	s.token, s.owner = token, owner
	return s.value, true
}

// putValue writes value, which was computed from old.
func (s *store) putValue(old, value int64) {
	if s.value != old {
		s.lost++
	}
	s.value = value
}

// writeStores writes to both stores: one compares tokens, one does not.
func (w *world) writeStores(k *key, g *grant, fenced, unfenced int64, claimed bool) {
	w.report.Writes++
	k.unfenced.putValue(unfenced, unfenced+1)
	if !claimed {
		w.report.Refused++
		return
	}
	if _, ok := k.fenced.claimWrite(g.token, g.owner); !ok {
		w.report.Refused++
		return
	}
	k.fenced.putValue(fenced, fenced+1)
}
