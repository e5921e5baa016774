package quorum

const againMost = 6 // how often a round of renewals asks again for nodes that are another's

// hold is the phase in which the lock is kept.
func (c *Claim) hold(e *Event, a *Actions) {
	n := Only(e.Node)
	if c.Trust != 0 && e.At >= c.Trust && e.Kind != Release {
		c.lose(e.At, a) // whatever the node says: another may have had the lock since
		return
	}
	switch e.Kind {
	case Renew:
		c.renew(e, a)
	case Woken:
		// The node lost the lock or was never granted: it has come round.
		if !c.renewsSoon(e.At) {
			a.Renew |= n
		}
		if 0 < e.Token && e.Token < c.Token {
			a.Commit |= n
		}
	case Release:
		c.MinHold = e.TTL
		c.over(e.At, a)
		return
	case Granted: // late, after the commit: kept as redundancy
		c.confirm(e)
		if e.Token < c.Token {
			a.Commit |= n
		}
	case Denied, Refused:
		c.drop(n)
	case Kept:
		c.Away &^= n
		c.confirm(e)
		if e.Sent >= c.Round {
			c.Renewing &^= n
			c.Kept |= n & c.Granted
		}
	case NotMine:
		c.drop(n)
		c.Renewing &^= n
		c.Away |= n
		// Only a round whose outcome is awaited ends the claim: of another the holder would not hear.
		if c.Unreported && !c.possible(c.all()&^c.Away) {
			c.lose(e.At, a)
			return
		}
	case Freed:
		c.Owed &^= n
	case Failed:
		if e.Of == AskRenew && e.Sent >= c.Round {
			c.Renewing &^= n
		}
	case Tick: // the driver says when the round of a held lock is over
		c.Renewing = 0
	}
	c.report(c.Kept, c.Renewing, Renewed, NotRenewed, a)
	c.regain(e.At, a)
}

// regain asks again for the nodes that do not have the lock, once a quorum has kept it in this
// round: nobody else has one then, and those nodes set it again if it is free there. Where
// another has it, it is a rival's partial grant, which is soon given back (trace C8).
func (c *Claim) regain(at int64, a *Actions) {
	if c.Token == 0 || c.Away == 0 || !c.possible(c.Kept) || c.Again == againMost {
		return
	}
	c.Again++
	a.Renew |= c.Away
	a.Anew = c.Away
	c.Renewing |= c.Away
	c.expect(c.Away, at)
	c.send(c.Away)
	c.Away = 0
}

// renewsSoon says that all nodes are about to be asked for a renewal, the first.
func (c *Claim) renewsSoon(at int64) bool { return c.Renews && c.Round == 0 && c.Trust-at < c.TTL/2 }

// lose ends a claim that was held.
func (c *Claim) lose(at int64, a *Actions) {
	a.Outcome = Lost
	c.over(at, a)
}

// renew starts a round of renewals. With a shorter TTL than before the lock stands for as
// long as it did: nodes never shorten what they have promised (trace C14).
func (c *Claim) renew(e *Event, a *Actions) {
	c.assess(e.At)
	c.TTL = e.TTL
	c.Unreported, c.Again, c.Round = true, 0, e.At
	c.Renewing, c.Kept, c.Away = c.all(), 0, 0
	c.expect(c.all(), e.At)
	a.Renew = c.all()
	c.send(c.all())
}

// assess says what the round that is over has shown: that losing one more node costs
// the lock. A round that is followed so soon that answers to it are still on their way
// shows nothing, unless enough have come. Nor does it where no node can be spared at
// the best.
func (c *Claim) assess(at int64) {
	if c.Round == 0 || int(c.N) == c.Quorum() {
		return
	}
	more := c.Kept.Len() > c.Quorum()
	if more || c.Renewing&^c.overdue(at) == 0 {
		c.AtRisk = !more
	}
}

// confirm notes that the node of an answer has the lock, and until when: no request of this
// id shortens that, whenever it is executed (trace C14). A give-back that is still out may
// take the lock away at any time (trace C3).
func (c *Claim) confirm(e *Event) {
	n := Only(e.Node)
	if c.Owed&n != 0 {
		return
	}
	c.Granted |= n
	c.promised(e)
	c.Trust = max(c.Trust, c.keptUntil(c.Granted))
}

// over ends the claim.
func (c *Claim) over(at int64, a *Actions) {
	c.Phase = Over
	a.Release |= c.touched()
	c.Asked, c.Pending, c.Renewing = 0, 0, 0
	c.Releasing = a.Release
	c.Released = c.all() &^ a.Release
	c.Unreported = true
	c.expect(c.Releasing, at)
}

// end is the phase after the last release.
func (c *Claim) end(e *Event, a *Actions) {
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
		c.Releasing &^= c.overdue(e.At)
	case Woken:
		a.Release |= n
	case Release: // the holder had not heard of the loss yet: the outcome is reported to it
		c.Unreported = true
	}
	c.report(c.Released, c.Releasing, Released, NotReleased, a)
}

// report reports a round's outcome, once: good where done is a quorum, bad where it and
// the nodes whose answer is out cannot become one.
func (c *Claim) report(done, out Set, good, bad Outcome, a *Actions) {
	switch {
	case !c.Unreported:
	case c.possible(done):
		a.Outcome, c.Unreported = good, false
	case !c.possible(done | out):
		a.Outcome, c.Unreported = bad, false
	}
}
