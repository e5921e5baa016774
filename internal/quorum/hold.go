package quorum

const maxRegains = 6 // how often a round of renewals asks the Missing nodes again

// stepHeld applies an event in the phase Held.
func (c *Claim) stepHeld(e *Event, a *Actions) {
	n := Only(e.Node)
	if c.TrustUntil != 0 && e.At >= c.TrustUntil && e.Kind != Release {
		c.loseLock(e.At, a) // whatever the answer is: another client may have had the lock since
		return
	}
	switch e.Kind {
	case Renew:
		c.startRenewal(e, a)
	case Woken:
		// The node had lost or never granted the lock, and has now handed it over to this id.
		if !c.renewsSoon(e.At) {
			a.Renew |= n
		}
		if 0 < e.Token && e.Token < c.Token {
			a.Commit |= n
		}
	case Release:
		c.MinHold = e.TTL
		c.endClaim(e.At, a)
		return
	case Granted: // after the commit: kept as redundancy
		c.confirmNode(e)
		if e.Token < c.Token {
			a.Commit |= n
		}
	case Denied, Refused:
		c.dropGrants(n)
	case Kept:
		c.Missing &^= n
		c.confirmNode(e)
		if e.Sent >= c.RoundStart {
			c.Renewing &^= n
			c.Kept |= n & c.Granted
		}
	case NotMine:
		c.dropGrants(n)
		c.Renewing &^= n
		c.Missing |= n
		// Only a round with an awaited outcome ends the claim: the holder would not learn of any other.
		if c.Unreported && !c.canBeQuorum(c.allNodes()&^c.Missing) {
			c.loseLock(e.At, a)
			return
		}
	case Freed:
		c.Owed &^= n
	case Failed:
		if e.Of == AskRenew && e.Sent >= c.RoundStart {
			c.Renewing &^= n
		}
	case Tick: // the engine ends the round of a held lock
		c.Renewing = 0
	}
	c.reportOutcome(c.Kept, c.Renewing, Renewed, NotRenewed, a)
	c.regainNodes(e.At, a)
}

// regainNodes asks the Missing nodes again once a quorum has kept the lock in this round. No other client has
// a quorum then, and a node restores the lock if it is free there. A node where it is not free holds a rival's
// partial grant, which the rival soon gives back (trace C8).
func (c *Claim) regainNodes(at int64, a *Actions) {
	if c.Token == 0 || c.Missing == 0 || !c.canBeQuorum(c.Kept) || c.Regains == maxRegains {
		return
	}
	c.Regains++
	a.Renew |= c.Missing
	a.Restore = c.Missing
	c.Renewing |= c.Missing
	c.setDeadlines(c.Missing, at)
	c.countSends(c.Missing)
	c.Missing = 0
}

// renewsSoon reports whether the first renewal of all nodes is about to be sent.
func (c *Claim) renewsSoon(at int64) bool {
	return c.Renews && c.RoundStart == 0 && c.TrustUntil-at < c.TTL/2
}

// loseLock ends a held claim because its lease is lost.
func (c *Claim) loseLock(at int64, a *Actions) {
	a.Outcome = Lost
	c.endClaim(at, a)
}

// startRenewal starts a round of renewals. A TTL shorter than before does not shorten the lease: nodes never
// shorten what they have promised (trace C14).
func (c *Claim) startRenewal(e *Event, a *Actions) {
	c.assessRisk(e.At)
	c.TTL = e.TTL
	c.Unreported, c.Regains, c.RoundStart = true, 0, e.At
	c.Renewing, c.Kept, c.Missing = c.allNodes(), 0, 0
	c.setDeadlines(c.allNodes(), e.At)
	a.Renew = c.allNodes()
	c.countSends(c.allNodes())
}

// assessRisk sets AtRisk after a round: whether the loss of one more node would cost the lock. A round with
// missing answers shows nothing, unless enough have come. Nor does any round of a set that cannot spare a
// node.
func (c *Claim) assessRisk(at int64) {
	if c.RoundStart == 0 || int(c.N) == c.Quorum() {
		return
	}
	more := c.Kept.Len() > c.Quorum()
	if more || c.Renewing&^c.overdueNodes(at) == 0 {
		c.AtRisk = !more
	}
}

// confirmNode records that the node of an answer has the lock, and until when. No request of this id shortens
// that time, whenever the node executes it (trace C14). A node that has not answered a give-back may still
// free the lock at any time (trace C3).
func (c *Claim) confirmNode(e *Event) {
	n := Only(e.Node)
	if c.Owed&n != 0 {
		return
	}
	c.Granted |= n
	c.notePromise(e)
	c.TrustUntil = max(c.TrustUntil, c.keptUntil(c.Granted))
}

// endClaim releases the lock everywhere and ends the claim.
func (c *Claim) endClaim(at int64, a *Actions) {
	c.Phase = Over
	a.Release |= c.touchedNodes()
	c.Asked, c.Pending, c.Renewing = 0, 0, 0
	c.Releasing = a.Release
	c.Released = c.allNodes() &^ a.Release
	c.Unreported = true
	c.setDeadlines(c.Releasing, at)
}

// stepEnded applies an event in the phase Over.
func (c *Claim) stepEnded(e *Event, a *Actions) {
	n := Only(e.Node)
	switch e.Kind {
	case Freed:
		c.Releasing &^= n
		c.Released |= n
	case Failed:
		if e.Of == AskRelease {
			c.Releasing &^= n
		}
	case Tick:
		c.Releasing &^= c.overdueNodes(e.At)
	case Woken:
		a.Release |= n
	case Release: // the holder does not know of the loss, and waits for this outcome
		c.Unreported = true
	}
	c.reportOutcome(c.Released, c.Releasing, Released, NotReleased, a)
}

// reportOutcome reports the outcome of a round, once: good if done is a quorum, and bad if done cannot become
// one because of the nodes in out.
func (c *Claim) reportOutcome(done, out Set, good, bad Outcome, a *Actions) {
	switch {
	case !c.Unreported:
	case c.canBeQuorum(done):
		a.Outcome, c.Unreported = good, false
	case !c.canBeQuorum(done | out):
		a.Outcome, c.Unreported = bad, false
	}
}
