package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
)

const (
	// place bounds the time that a place in the queue lasts without a sign of its client.
	place = 8 * time.Second
	// grace is the time in which a waiter has to confirm a hand-over, which takes it manners.slowest and two round trips. A dead waiter
	// costs the waiters behind it this time.
	grace = time.Second
)

// claim is one attempt at a lock.
type claim struct {
	d      *Driver
	req    driver.Request
	owner  string
	holder string
	from   driver.Grant  // which it takes over; zero: none
	wake   chan struct{} // it is its turn to have the lock
	rung   atomic.Bool   // likewise, and it has not asked since

	left  bool // there may be something in the database
	doubt bool // a statement that takes the lock unread had no answer, and may be carried out late
	place bool // it has one in the queue
	ear   *ear // which waits before the turnstile of the lock, or is inside; nil: none does
	heard bool // it has asked since the ear was let in
	begun time.Time
	count int   // how many wait, as was read when it began
	ahead int64 // about how many come before it
}

func (d *Driver) newClaim(req driver.Request) *claim {
	c := &claim{d: d, req: req, begun: time.Now(), owner: d.owners.Next(req.Adoptable), holder: driverkit.AsJSON(req.Holder), wake: make(chan struct{}, 1)}
	if !req.NoWait {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.waiting[c.owner] = c
	}
	return c
}

// isAdoption reports whether the claim takes over the lock of another owner.
func (c *claim) isAdoption() bool { return c.from.Owner != "" }

// leave removes the claim from the waiters that a release of this client can wake.
func (c *claim) leave() {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	delete(c.d.waiting, c.owner)
}

// acquireLock asks until the lock is granted or that is out of the question.
func (c *claim) acquireLock(ctx context.Context) (driver.Grant, error) {
	first, look := true, true // the first look counts the waiters
	attempt := driverkit.Attempt{
		Calls: c.d.calls, Lane: c.d.lane, Request: c.req, Adopts: c.isAdoption(), Turn: c.wake, Pause: c.planPause,
		Ask: func(ctx, caller context.Context) (driver.Grant, error) {
			if first && c.d.turnstile != nil && c.d.turnstile.isCrowded(c.req.Key) && c.enterTurnstile(caller) {
				first = false
				return driver.Grant{}, driverkit.ErrAgain
			}
			counts := look
			first, look = false, false
			return c.tryOnce(ctx, caller, counts)
		},
		Queued: func() bool { return c.place || c.ear.isInside() },
	}
	if c.isAdoption() {
		attempt.Last = c.d.unavailableError(errors.New("no answer yet"))
	}
	return attempt.Run(ctx)
}

// tryOnce takes the lock if it may. The first time, with look, it does so unread if it can. The caller's context ends with its call.
func (c *claim) tryOnce(ctx, caller context.Context, look bool) (driver.Grant, error) {
	if c.d.dialect == SQLite {
		return c.tryTogether(ctx, look)
	}
	if look && c.ear == nil && !c.isAdoption() && c.d.take.text != "" {
		if g, taken, err := c.takeUnread(ctx); taken || err != nil {
			return g, err
		}
	}
	if c.ear.isInside() && !c.heard {
		c.heard = true
		if g, taken, err := c.takeInside(ctx); taken || err != nil {
			return g, err
		}
	}
	return c.tryRead(ctx, caller, look)
}

// tryRead reads the lock and changes what it has read, until nobody else was faster. Trust counts from before the read, as the time of
// the database at which the lock lapses does.
func (c *claim) tryRead(ctx, caller context.Context, look bool) (driver.Grant, error) {
	for tries := 0; ; tries++ {
		sent := time.Now()
		r, err := c.d.readLock(ctx, c.req.Key, c.owner, look)
		if err != nil {
			return driver.Grant{}, err
		}
		if look {
			c.count = r.count
		}
		c.d.notePlaces(c.req.Key, r.places, r.there && r.first == nil)
		if c.place && r.place == nil && r.owner != c.owner {
			c.rename()
		}
		if r.isReserved() && !c.ear.isInside() && c.enterTurnstile(caller) {
			return driver.Grant{}, driverkit.ErrAgain
		}
		want, err := c.nextRow(r)
		if err != nil {
			return driver.Grant{}, err
		}
		if want.owner != c.owner && want.stamp == r.stamp && r.there { // nothing changes
			return driver.Grant{}, c.queueUp(ctx, caller, r)
		}
		if want.owner == c.owner && r.owner != c.owner && c.isShutOut() {
			c.d.turnstile.shunKey(c.req.Key)
		}
		c.left = true
		changed, err := c.d.changeLock(ctx, c.req.Key, r, &want)
		switch {
		case err != nil:
			return driver.Grant{}, err
		case !changed: // another was faster
			if tries > 0 {
				driverkit.Sleep(ctx, rand.N(min(time.Duration(tries)*time.Millisecond, pace.ShortPause)))
			}
			continue
		case want.owner == c.owner:
			return c.completeGrant(ctx, r, want, sent)
		}
	}
}

// enterTurnstile has the claim wait before the turnstile of its lock, and reports whether it does. A caller that will not wait for long polls: its
// end would cost the connection.
func (c *claim) enterTurnstile(caller context.Context) bool {
	c.dropBrokenEar()
	if c.ear != nil {
		return true
	}
	if c.d.turnstile == nil || c.req.NoWait || c.isAdoption() {
		return false
	}
	if end, ok := caller.Deadline(); ok && time.Until(end) < 2*ticketAfter {
		return false
	}
	c.ear, c.heard = c.d.turnstile.enter(c.req.Key), false
	return c.ear != nil
}

// dropBrokenEar has the claim do without an ear whose connection broke, for a while.
func (c *claim) dropBrokenEar() {
	if c.ear != nil && c.ear.isOver() && !c.ear.isInside() {
		c.d.turnstile.shunKey(c.req.Key)
		c.leaveTurnstile()
	}
}

// leaveTurnstile ends, in the background, what the claim has begun before the turnstile.
func (c *claim) leaveTurnstile() {
	if c.ear != nil {
		c.d.calls.Go(c.ear.leave)
		c.ear = nil
	}
}

// isShutOut reports whether the claim still waits before the turnstile after a whole GET_LOCK.
func (c *claim) isShutOut() bool { return c.ear != nil && !c.ear.isOver() && c.ear.rearmed.Load() }

// takeInside takes the lock, as takeUnread does, for a claim that the turnstile has just let in. Its statement waits until
// the release that let the claim in has committed. A claim that has a ticket, or does not know the number of places, has to
// read the lock anyway, but sends the statement first: so the read never sees the lock as it was before the release.
func (c *claim) takeInside(ctx context.Context) (g driver.Grant, taken bool, err error) {
	places, known := c.d.knownPlaces(c.req.Key)
	if !known || c.place {
		places = -1 // no row has that
	}
	stamp, sent := newStamp(), time.Now()
	token, taken, err := c.ear.takeLock(ctx, c, stamp, places)
	switch {
	case err != nil: // what it was, the next statement tells, over another connection
		c.ear, c.doubt, c.left = nil, true, true
		return driver.Grant{}, false, nil
	case !taken:
		return driver.Grant{}, false, nil
	}
	c.left = true
	if token < minToken {
		return driver.Grant{}, false, nil
	}
	g, err = c.newGrant(token, sent)
	if err == nil {
		c.d.noteGrip(c, grip{stamp: stamp, alone: true})
	}
	return g, true, err
}

// minToken is below the token of each grant, as tokens follow the clock of the server in µs: it is of the year 2001. A server, or a proxy,
// that tells less, or nothing, for what LAST_INSERT_ID has kept did not tell the token. The row has it, and the next look at that finds
// that the claim has the lock.
const minToken = 1e15

// takeUnread takes the lock by one statement if it is free and nobody waits: a first row for a name that this client does not know,
// and otherwise a change under the condition that no place in the queue was given since the client saw that nobody had one.
func (c *claim) takeUnread(ctx context.Context) (g driver.Grant, taken bool, err error) {
	stamp, ttl := newStamp(), driverkit.InMicros(c.req.TTL)
	s, args := c.d.first, []any{c.req.Key, stamp, c.owner, c.holder, ttl}
	places, known := c.d.knownPlaces(c.req.Key)
	if known {
		s, args = c.d.take, []any{stamp, c.owner, c.holder, ttl, c.req.Key, places}
	}
	var token int64
	var sent time.Time
	sends := 0
	err = c.d.run(ctx, func(q querier) (err error) {
		sends++
		sent = time.Now()
		token, taken, err = c.d.execTake(ctx, q, s, args...)
		return err
	})
	if c.doubt = err != nil || sends > 1; c.doubt {
		c.left = true
	}
	if err != nil || !taken {
		if err == nil && known && c.d.turnstile != nil {
			c.d.turnstile.noteCrowd(c.req.Key)
		}
		return driver.Grant{}, false, err
	}
	c.left = true
	if token < minToken {
		return driver.Grant{}, false, nil
	}
	c.d.notePlaces(c.req.Key, places, true)
	g, err = c.newGrant(token, sent)
	if err == nil {
		c.d.noteGrip(c, grip{stamp: stamp, alone: true})
	}
	return g, true, err
}

// rename gives a claim that has lost its place another owner. It may have had its turn, and the lock was taken away before it knew;
// and an owner names one grant.
func (c *claim) rename() {
	c.leave()
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	c.owner, c.place = c.d.owners.Next(c.req.Adoptable), false
	c.d.waiting[c.owner] = c
}

// nextRow returns the row to which the claim would change a lock: its own if it may take the lock, the next waiter's if a hand-over is due,
// and else the row as it was read.
func (c *claim) nextRow(r row) (row, error) {
	mine := r.owner == c.owner // also where a hand-over has lapsed: nobody else has asked since
	switch {
	case c.isAdoption() && r.precedes(c.from):
		return r, c.d.unavailableError(errPrecedes)
	case c.isAdoption() && !(r.isHeldBy(c.from.Owner) && isSameGrant(r.token, c.from)) && !r.isHeldBy(c.owner):
		return r, driver.ErrLost
	case c.isAdoption(), mine, !r.isHeld() && (r.isTurnOf(c.owner) || c.ear.isInside() && r.first.isQueued()):
		next := r.grant(c.owner, c.holder, c.req.TTL)
		if mine && c.place {
			c.d.noteHandOver(r)
		}
		if c.isAdoption() {
			next.since = r.since
		}
		next.stamp = newStamp()
		return next, nil
	case r.isReserved() && r.first != nil && !c.ear.isInside():
		return r, nil
	case !r.isHeld():
		next := r.pass()
		next.stamp = newStamp()
		return next, nil
	}
	return r, nil
}

// completeGrant returns the grant that the claim has received, without its place in the queue.
func (c *claim) completeGrant(ctx context.Context, r, own row, sent time.Time) (driver.Grant, error) {
	if r.place != nil {
		if _, err := c.d.execRepeated(ctx, c.d.leave, c.req.Key, c.owner); err != nil {
			return driver.Grant{}, err
		}
	}
	g, err := c.newGrant(own.token, sent)
	if err == nil {
		c.d.noteGrip(c, grip{stamp: own.stamp, alone: r.first == nil})
		c.d.notePlaces(c.req.Key, r.places+r.endCount(&own), r.there && r.first == nil)
	}
	return g, err
}

// newGrant returns the grant with that token, which was asked for at sent, unless too little is left of it.
func (c *claim) newGrant(token int64, sent time.Time) (driver.Grant, error) {
	ttl := c.req.TTL
	g := driver.Grant{Key: c.req.Key, Owner: c.owner, Token: token, Block: driverkit.Block, TTL: ttl, TrustedUntil: driverkit.Trust(sent, ttl)}
	if left := pace.Until(g.TrustedUntil, time.Now()); left < ttl/2 && (left <= 0 || !c.req.Renews) {
		return driver.Grant{}, c.d.unavailableError(errors.New("the answer came too late"))
	}
	return g, nil
}

// queueUp gives the claim a place in the queue, or keeps its place, and returns the holder as an error.
func (c *claim) queueUp(ctx, caller context.Context, r row) error {
	held := c.heldError(r)
	if c.req.NoWait {
		return held
	}
	if c.ear.isInside() && r.isUnconfirmed() { // the waiter that the lock was handed to may stand behind
		c.leaveTurnstile()
	} else if c.enterTurnstile(caller) && !c.place && (time.Since(c.begun) < ticketAfter || !c.ear.isQueued()) {
		return held // the ticket comes after the place in GET_LOCK, and so has the order of that
	}
	c.left, c.ahead = true, r.waitersAhead()
	until := r.now + driverkit.InMicros(place)
	switch {
	case r.place == nil:
		if r.dead {
			if err := c.d.sweepTickets(ctx); err != nil {
				return err
			}
		}
		// First the ticket, then the stamp: a release that has not seen the one finds another than it has read, and reads again.
		holder := c.holder
		if c.ear != nil {
			holder += queued
		}
		if _, err := c.d.execRepeated(ctx, c.d.join, c.req.Key, c.owner, r.places+1, holder, until); err != nil {
			return err
		}
		if _, err := c.d.execRepeated(ctx, c.d.stir, c.req.Key, newStamp(), 1); err != nil {
			return err
		}
		c.place, c.ahead = true, int64(c.count)
	case r.lapse-r.now < driverkit.InMicros(place/2):
		if _, err := c.d.execRepeated(ctx, c.d.stay, c.req.Key, c.owner, until); err != nil {
			return err
		}
	}
	return held
}

// heldError returns an error that names the holder as it was read.
func (c *claim) heldError(r row) *driver.HeldError {
	held := r.heldError()
	held.Waiters = c.count
	return held
}

// planPause returns how long to wait until the next question: until the lock lapses at most, and otherwise less for a claim that will
// soon be the first in line, and longer while the holder has had the lock for long. Where a hand-over rings, a look is for a ring that
// was lost.
func (c *claim) planPause(obstacle error, tries int) (limit time.Duration, again <-chan struct{}) {
	m := c.d.manners
	c.dropBrokenEar()
	if c.ear != nil && !c.heard {
		again = c.ear.done
	}
	if errors.Is(obstacle, driverkit.ErrAgain) {
		return ticketAfter - min(time.Since(c.begun), ticketAfter*4/5), again
	}
	limit = min(pace.ShortPause<<min(tries, 10), pace.LongPause)
	if held, ok := errors.AsType[*driver.HeldError](obstacle); ok {
		patient := min(max(m.poll, time.Since(held.Since)/20), m.hasty)
		limit = min(max(patient, m.poll*time.Duration(min(c.ahead+1, 1000))), m.slowest)
		if c.place && c.d.hasBell() {
			limit = m.slowest
		}
		limit = min(limit, held.Remaining+m.poll)
		switch {
		case c.ear != nil && !c.place: // then it writes a ticket
			limit = min(limit, ticketAfter)
		case again != nil:
			limit = min(m.blocked*time.Duration(min(c.ahead+1, 5)), held.Remaining+m.poll)
		}
	}
	return limit, again
}

// abandon clears away, in the background, what the claim has left in the database. What it cannot
// clear away lapses.
func (c *claim) abandon() {
	if !c.left {
		return
	}
	g := driver.Grant{Key: c.req.Key, Owner: c.owner, TTL: max(c.req.TTL, place)}
	c.d.calls.Go(func() {
		c.d.insistFree(g.TTL, func() {}, func(ctx context.Context) error {
			return c.d.runTogether(ctx, func(ctx context.Context) error { return c.d.giveUp(ctx, g) })
		})
	})
}

// giveUp frees what a claim that has failed may have, and may get by what was sent and not answered. It takes its place away and
// then changes the stamp and the number of places, which are what all of that was decided by. So what it finds then stays.
func (d *Driver) giveUp(ctx context.Context, g driver.Grant) error {
	if _, err := d.execRepeated(ctx, d.leave, g.Key, g.Owner); err != nil {
		return err
	}
	stirred, err := d.execRepeated(ctx, d.stir, g.Key, newStamp(), 1)
	if err == nil && !stirred { // a first row that is still to come would find none
		r, err := d.readLock(ctx, g.Key, g.Owner, false)
		if err == nil && !r.there {
			free := row{now: r.now, stamp: newStamp(), token: r.now - driverkit.Block, since: r.now, expires: r.now}
			_, err = d.changeLock(ctx, g.Key, row{}, &free)
		}
		if err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	return d.freeLock(ctx, g, 0)
}

// readLock reads a lock, for owner. With look it counts the waiters.
func (d *Driver) readLock(ctx context.Context, key, owner string, look bool) (r row, err error) {
	s := d.tables.read
	if look {
		s = d.look
	}
	err = d.run(ctx, func(q querier) error {
		var c columns
		r = row{}
		if err := q.QueryRowContext(ctx, s.text, s.orderArgs([]any{key, owner})...).Scan(r.scanTargets(&c)...); err != nil {
			return err
		}
		r.complete(&c)
		return nil
	})
	return r, err
}

// changeLock changes a lock to another row if it is still as it was read, and reports whether it was. A hand-over removes the ticket, and wakes
// the waiter if it is one of this client.
func (d *Driver) changeLock(ctx context.Context, key string, was row, is *row) (changed bool, err error) {
	if was.there {
		changed, err = d.execRepeated(ctx, d.put, is.stamp, is.token, is.owner, is.holder, is.since, is.expires, was.endCount(is), key, was.stamp)
	} else {
		changed, err = d.execRepeated(ctx, d.insert, key, is.stamp, is.token, is.owner, is.holder, is.since, is.expires)
	}
	if !changed || err != nil || was.first == nil {
		return changed, err
	}
	if is.owner == "" {
		d.wakeWaiter(was.first.owner)
	}
	if is.owner != was.first.owner {
		return true, nil
	}
	d.notePassed(key)
	if u := unitOf(ctx); u != nil {
		u.handed = append(u.handed, is.owner)
	} else {
		d.wakeWaiter(is.owner)
	}
	d.execRepeated(ctx, d.leave, key, is.owner) // an error changes nothing: the new owner takes it away, or it lapses
	return true, nil
}

// wakeWaiter tells the waiter with that owner, which the lock was handed to, to confirm that at once: one of this client directly, and
// one of another by the bell, if there is one.
func (d *Driver) wakeWaiter(owner string) {
	if !d.wakeOwn(owner) && d.bell != nil {
		d.bell.Ring(owner)
	}
}

// stampEnd is above what a renewal adds to a stamp, and half of what a column takes.
const stampEnd = 1 << 62

// newStamp returns a stamp that no row has.
func newStamp() int64 { return rand.Int64() }

// scanRow scans a row of a listing.
func scanRow(rows *sql.Rows) (r row, key string, err error) {
	err = rows.Scan(&r.now, &key, &r.token, &r.owner, &r.holder, &r.since, &r.expires, &r.count)
	return r, key, err
}
