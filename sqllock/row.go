package sqllock

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
)

// row is a lock as a client has read it, with the first ticket of its queue. Its next state depends on it
// alone: see grant, pass and keep.
type row struct {
	there   bool // the row exists
	now     int64
	stamp   int64
	token   int64
	owner   string // empty: nobody
	holder  string
	since   int64
	expires int64
	places  int64

	place *int64 // place of the reader's ticket; nil: it has none
	lapse int64  // end of the reader's ticket
	first *ticket
	dead  bool // some tickets have expired
	count int  // number of waiters, if asked for
}

// ticket is a waiter's entry in the queue.
type ticket struct {
	owner, holder string
	place         int64
}

// queuedMark follows the holder in the ticket of a waiter that also waits at the turnstile, and so needs no
// hand-over by ticket.
const queuedMark = " "

// isQueued reports whether the waiter also waits at the turnstile.
func (t *ticket) isQueued() bool { return strings.HasSuffix(t.holder, queuedMark) }

// columns holds the columns of readSQL that may be NULL.
type columns struct {
	stamp, token, since, expires, places, lapse, place *int64
	owner, holder, firstOwner, firstHolder             *string
}

// scanTargets returns the scan targets for the columns of readSQL.
func (r *row) scanTargets(c *columns) []any {
	return []any{
		&r.now, &c.stamp, &c.token, &c.owner, &c.holder, &c.since, &c.expires, &c.places, &r.place, &c.lapse,
		&c.firstOwner, &c.firstHolder, &c.place, &r.dead, &r.count,
	}
}

// complete copies the columns that are not NULL.
func (r *row) complete(c *columns) {
	if r.there = c.stamp != nil; r.there {
		r.stamp, r.token, r.owner, r.holder, r.since, r.expires, r.places = *c.stamp, *c.token, *c.owner, *c.holder, *c.since, *c.expires, *c.places
	}
	if c.lapse != nil {
		r.lapse = *c.lapse
	}
	if c.firstOwner != nil && c.firstHolder != nil && c.place != nil {
		r.first = &ticket{owner: *c.firstOwner, holder: *c.firstHolder, place: *c.place}
	}
}

// isHeld reports whether an owner has the lock.
func (r row) isHeld() bool { return r.owner != "" && r.expires > r.now }

// isHeldBy reports whether owner has the lock.
func (r row) isHeldBy(owner string) bool { return r.isHeld() && r.owner == owner }

// isReserved reports whether the lock is free and reserved for the next client at the turnstile. If the
// reservation lasts longer than reserved, the clock was set back since, and it does not count.
func (r row) isReserved() bool {
	left := driverkit.FromMicros(r.expires - r.now)
	return r.there && r.owner == "" && left > 0 && left <= reserved && (r.first == nil || r.first.isQueued())
}

// isUnconfirmed reports whether the lock may have been handed to a waiter that has not confirmed it.
func (r row) isUnconfirmed() bool {
	return r.isHeld() && r.expires-r.since <= driverkit.ToMicros(grace)
}

// leaseEnds returns 1 if the change of r to is ends a lease, otherwise 0.
func (r row) leaseEnds(is *row) int64 {
	if r.owner != "" && r.owner != is.owner {
		return 1
	}
	return 0
}

// precedes reports whether the lock was read in a state from before g: tokens rise with each grant.
func (r row) precedes(g driver.Grant) bool { return g.Token != 0 && r.token < g.Token }

// isTurnOf reports whether owner may take a free lock: no other waiter is before it.
func (r row) isTurnOf(owner string) bool { return r.first == nil || r.first.owner == owner }

// nextToken returns the first token of the next grant. It also follows the clock, so that tokens still rise
// after a row was lost, with a lagging replica or by a purge.
func (r row) nextToken() int64 { return max(r.token+driverkit.Block, r.now) }

// grant gives the lock to owner for ttl. If the lock was handed to owner before, it keeps the token.
func (r row) grant(owner, holder string, ttl time.Duration) row {
	if r.owner != owner {
		r.token, r.since = r.nextToken(), r.now
	}
	r.owner, r.holder, r.expires = owner, holder, r.now+driverkit.ToMicros(ttl)
	return r
}

// pass hands the lock to the first waiter, which must confirm it, or frees it.
func (r row) pass() row {
	if r.first == nil {
		r.owner, r.holder, r.expires = "", "", r.now
		return r
	}
	return r.grant(r.first.owner, strings.TrimSuffix(r.first.holder, queuedMark), grace)
}

// end ends the lease by a hand-over to the first waiter, or frees the lock. If the first waiter waits at the
// turnstile, the lock is reserved for the next client there.
func (r row) end() row {
	if r.first == nil || !r.first.isQueued() {
		return r.pass()
	}
	r.owner, r.holder, r.expires = "", "", r.now+driverkit.ToMicros(reserved)
	return r
}

// keep holds the lock for a time under an owner that no client has: no owner name ends in "!". So no statement
// of the former owner prolongs or adopts it.
func (r row) keep(d time.Duration) row {
	r.owner, r.expires = driverkit.MinHoldID(r.owner), r.now+driverkit.ToMicros(d)
	return r
}

// hasToken reports whether token is a token of the holder. During MinHold the token is 0.
func (r row) hasToken(token int64) bool {
	if driverkit.IsMinHoldID(r.owner) {
		return token == 0
	}
	return driverkit.InBlock(r.token, token)
}

// waitersAhead returns the approximate number of waiters before the reader.
func (r row) waitersAhead() int64 {
	if r.place == nil || r.first == nil {
		return 0
	}
	return max(*r.place-r.first.place, 0)
}

// heldError returns an error that names the holder.
func (r row) heldError() *driver.HeldError {
	held := &driver.HeldError{
		Owner: r.owner, Holder: parseHolder(r.holder), Remaining: max(driverkit.FromMicros(r.expires-r.now), 0),
		Waiters: r.count, Kept: driverkit.IsMinHoldID(r.owner),
	}
	held.Since = time.Now().Add(-driverkit.FromMicros(r.now - r.since))
	return held
}

// lockStatus converts the row to a driver.Status.
func (r row) lockStatus(key, node string) driver.Status {
	st := driver.Status{Key: key, Waiters: r.count}
	if r.isHeld() {
		st.Held, st.Owner, st.Token, st.Remaining, st.Holder = true, r.owner, r.token, driverkit.FromMicros(r.expires-r.now), parseHolder(r.holder)
		st.Since = time.Now().Add(-driverkit.FromMicros(r.now - r.since))
		if st.Kept = driverkit.IsMinHoldID(r.owner); st.Kept {
			st.Token = 0
		}
	}
	st.Nodes = []driver.NodeView{{Node: node, Owner: st.Owner, Token: st.Token, Remaining: st.Remaining, Waiters: st.Waiters}}
	return st
}

// parseHolder decodes the description of a holder.
func parseHolder(text string) (h driver.Holder) {
	json.Unmarshal([]byte(text), &h) // text that does not decode gives an empty holder
	return h
}
