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
	// place bounds the lifetime of a waiter's ticket after the client's last request.
	place = 8 * time.Second
	// grace is a waiter's time to confirm a hand-over. A waiter needs up to pollTiming.slowest and two round
	// trips. If the waiter is dead, the waiters behind it lose this time.
	grace = time.Second
)

// claim is one attempt to acquire a lock.
type claim struct {
	d      *Driver
	req    driver.Request
	owner  string
	holder string
	from   driver.Grant  // the grant that the claim adopts; zero: none
	wake   chan struct{} // receives when the lock was handed to this claim
	rung   atomic.Bool   // the claim was woken and has not asked since

	left     bool      // the database may have a lock or a ticket of this claim
	doubt    bool      // an unread acquire got no answer and may be executed late
	place    bool      // it has a ticket in the queue
	waitConn *waitConn // its connection before or inside the turnstile; nil: none
	heard    bool      // it has asked since its wait connection was let in
	begun    time.Time
	count    int   // number of waiters, as read at the start
	ahead    int64 // approximate number of waiters before it
}

func (d *Driver) newClaim(req driver.Request) *claim {
	c := &claim{d: d, req: req, begun: time.Now(), owner: d.owners.Next(req.Adoptable), holder: driverkit.HolderJSON(req.Holder), wake: make(chan struct{}, 1)}
	if !req.NoWait {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.waiting[c.owner] = c
	}
	return c
}

// isAdoption reports whether the claim adopts the lock of another owner.
func (c *claim) isAdoption() bool { return c.from.Owner != "" }

// leave removes the claim from the waiters that this client can wake.
func (c *claim) leave() {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	delete(c.d.waiting, c.owner)
}

// acquireLock asks until the database grants the lock or an error ends the attempt.
func (c *claim) acquireLock(ctx context.Context) (driver.Grant, error) {
	first, look := true, true // the first read counts the waiters
	attempt := driverkit.Attempt{
		Calls: c.d.calls, Lane: c.d.lane, Request: c.req, Adopts: c.isAdoption(), Turn: c.wake, Pause: c.planPause,
		Ask: func(ctx, caller context.Context) (driver.Grant, error) {
			if first && c.d.turnstile != nil && c.d.turnstile.isCrowded(c.req.Key) && c.enterTurnstile(caller) {
				first = false
				return driver.Grant{}, driverkit.ErrRetryNow
			}
			counts := look
			first, look = false, false
			return c.tryOnce(ctx, caller, counts)
		},
		Queued: func() bool { return c.place || c.waitConn.isInside() },
	}
	if c.isAdoption() {
		attempt.Last = c.d.unavailableError(errors.New("no answer yet"))
	}
	return attempt.Run(ctx)
}

// tryOnce takes the lock if it may. With look, on the first try, it takes the lock without reading it, if it
// can. The context caller ends with the call of the claim.
func (c *claim) tryOnce(ctx, caller context.Context, look bool) (driver.Grant, error) {
	if c.d.dialect == SQLite {
		return c.tryTogether(ctx, look)
	}
	if look && c.waitConn == nil && !c.isAdoption() && c.d.take.text != "" {
		if g, taken, err := c.takeUnread(ctx); taken || err != nil {
			return g, err
		}
	}
	if c.waitConn.isInside() && !c.heard {
		c.heard = true
		if g, taken, err := c.takeInside(ctx); taken || err != nil {
			return g, err
		}
	}
	return c.tryRead(ctx, caller, look)
}

// tryRead reads the lock and changes the row that it has read. It repeats both while other clients change the
// row in between. Trust and the expiry of the lock count from before the read.
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
		if r.isReserved() && !c.waitConn.isInside() && c.enterTurnstile(caller) {
			return driver.Grant{}, driverkit.ErrRetryNow
		}
		want, err := c.nextRow(r)
		if err != nil {
			return driver.Grant{}, err
		}
		if want.owner != c.owner && want.stamp == r.stamp && r.there { // the row stays as it is
			return driver.Grant{}, c.queueUp(ctx, caller, r)
		}
		if want.owner == c.owner && r.owner != c.owner && c.isOutsideTurnstile() {
			c.d.turnstile.avoidTurnstile(c.req.Key)
		}
		c.left = true
		changed, err := c.d.changeLock(ctx, c.req.Key, r, &want)
		switch {
		case err != nil:
			return driver.Grant{}, err
		case !changed: // another client was faster
			if tries > 0 {
				driverkit.Sleep(ctx, rand.N(min(time.Duration(tries)*time.Millisecond, pace.ShortPause)))
			}
			continue
		case want.owner == c.owner:
			return c.completeGrant(ctx, r, want, sent)
		}
	}
}

// enterTurnstile queues the claim at the turnstile of its lock, and reports whether it did. A caller with
// little time polls instead, because its timeout would cost the connection.
func (c *claim) enterTurnstile(caller context.Context) bool {
	c.dropBrokenWaitConn()
	if c.waitConn != nil {
		return true
	}
	if c.d.turnstile == nil || c.req.NoWait || c.isAdoption() {
		return false
	}
	if end, ok := caller.Deadline(); ok && time.Until(end) < 2*ticketAfter {
		return false
	}
	c.waitConn, c.heard = c.d.turnstile.enter(c.req.Key), false
	return c.waitConn != nil
}

// dropBrokenWaitConn drops a wait connection that broke. The claim then polls, and the client avoids the
// turnstile for a while.
func (c *claim) dropBrokenWaitConn() {
	if c.waitConn != nil && c.waitConn.isOver() && !c.waitConn.isInside() {
		c.d.turnstile.avoidTurnstile(c.req.Key)
		c.leaveTurnstile()
	}
}

// leaveTurnstile ends the claim's wait at the turnstile, in the background.
func (c *claim) leaveTurnstile() {
	if c.waitConn != nil {
		c.d.calls.Go(c.waitConn.leave)
		c.waitConn = nil
	}
}

// isOutsideTurnstile reports whether the claim still waits at the turnstile after a whole GET_LOCK.
func (c *claim) isOutsideTurnstile() bool {
	return c.waitConn != nil && !c.waitConn.isOver() && c.waitConn.rearmed.Load()
}

// takeInside takes the lock, as takeUnread does, for a claim that has just passed the turnstile. Its statement
// waits until the release that let the claim in has committed. A claim that has a ticket or does not know the
// number of places must read the lock anyway. It still sends the statement first, so that the read sees the
// lock after the release.
func (c *claim) takeInside(ctx context.Context) (g driver.Grant, taken bool, err error) {
	places, known := c.d.knownPlaces(c.req.Key)
	if !known || c.place {
		places = -1 // no row matches
	}
	stamp, sent := newStamp(), time.Now()
	token, taken, err := c.waitConn.takeLock(ctx, c, stamp, places)
	switch {
	case err != nil: // the next statement, on another connection, shows the outcome
		c.waitConn, c.doubt, c.left = nil, true, true
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
		c.d.noteHeldLock(c, heldLock{stamp: stamp, alone: true})
	}
	return g, true, err
}

// minToken is below the token of any grant, because tokens follow the server's clock in µs: it is a time in
// 2001. A smaller number means that a server or proxy did not return what LAST_INSERT_ID has kept. The row has
// the token, and the next read finds that the claim has the lock.
const minToken = 1e15

// takeUnread takes a lock that is free and has no waiters by one statement. For a name that this client does
// not know, it inserts the first row. Otherwise it updates the row, if no client has joined the queue since
// this client found it empty.
func (c *claim) takeUnread(ctx context.Context) (g driver.Grant, taken bool, err error) {
	stamp, ttl := newStamp(), driverkit.ToMicros(c.req.TTL)
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
		c.d.noteHeldLock(c, heldLock{stamp: stamp, alone: true})
	}
	return g, true, err
}

// rename gives a claim that has lost its ticket a new owner name. The lock may have been handed to the claim
// and taken away before the claim knew, and one owner name stands for one grant only.
func (c *claim) rename() {
	c.leave()
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	c.owner, c.place = c.d.owners.Next(c.req.Adoptable), false
	c.d.waiting[c.owner] = c
}

// nextRow returns the row to which the claim would change a lock: its own if it may take the lock, the next
// waiter's if a hand-over is due, otherwise the row as read.
func (c *claim) nextRow(r row) (row, error) {
	mine := r.owner == c.owner // also after a hand-over has expired: no other client has asked since
	switch {
	case c.isAdoption() && r.precedes(c.from):
		return r, c.d.unavailableError(errStaleRead)
	case c.isAdoption() && !(r.isHeldBy(c.from.Owner) && isSameGrant(r.token, c.from)) && !r.isHeldBy(c.owner):
		return r, driver.ErrLost
	case c.isAdoption(), mine, !r.isHeld() && (r.isTurnOf(c.owner) || c.waitConn.isInside() && r.first.isQueued()):
		next := r.grant(c.owner, c.holder, c.req.TTL)
		if mine && c.place {
			c.d.noteHandOver(r)
		}
		if c.isAdoption() {
			next.since = r.since
		}
		next.stamp = newStamp()
		return next, nil
	case r.isReserved() && r.first != nil && !c.waitConn.isInside():
		return r, nil
	case !r.isHeld():
		next := r.pass()
		next.stamp = newStamp()
		return next, nil
	}
	return r, nil
}

// completeGrant removes the claim's ticket and returns the grant.
func (c *claim) completeGrant(ctx context.Context, r, own row, sent time.Time) (driver.Grant, error) {
	if r.place != nil {
		if _, err := c.d.execRepeated(ctx, c.d.leave, c.req.Key, c.owner); err != nil {
			return driver.Grant{}, err
		}
	}
	g, err := c.newGrant(own.token, sent)
	if err == nil {
		c.d.noteHeldLock(c, heldLock{stamp: own.stamp, alone: r.first == nil})
		c.d.notePlaces(c.req.Key, r.places+r.leaseEnds(&own), r.there && r.first == nil)
	}
	return g, err
}

// newGrant returns the grant with this token, for a request sent at sent. It fails if too little of the TTL is
// left.
func (c *claim) newGrant(token int64, sent time.Time) (driver.Grant, error) {
	ttl := c.req.TTL
	g := driver.Grant{Key: c.req.Key, Owner: c.owner, Token: token, Block: driverkit.Block, TTL: ttl, TrustedUntil: driverkit.TrustEnd(sent, ttl)}
	if left := pace.Until(g.TrustedUntil, time.Now()); left < ttl/2 && (left <= 0 || !c.req.WillRenew) {
		return driver.Grant{}, c.d.unavailableError(errors.New("the answer came too late"))
	}
	return g, nil
}

// queueUp gives the claim a ticket, or prolongs it, and returns an error that names the holder.
func (c *claim) queueUp(ctx, caller context.Context, r row) error {
	held := c.heldError(r)
	if c.req.NoWait {
		return held
	}
	if c.waitConn.isInside() && r.isUnconfirmed() { // the lock may have been handed to a waiter further back
		c.leaveTurnstile()
	} else if c.enterTurnstile(caller) && !c.place && (time.Since(c.begun) < ticketAfter || !c.waitConn.isQueued()) {
		return held // write the ticket once the wait connection is queued, so that tickets have the order of GET_LOCK
	}
	c.left, c.ahead = true, r.waitersAhead()
	until := r.now + driverkit.ToMicros(place)
	switch {
	case r.place == nil:
		if r.dead {
			if err := c.d.sweepTickets(ctx); err != nil {
				return err
			}
		}
		// Write the ticket before the stamp: a release that has not seen the ticket then finds another stamp
		// and reads again.
		holder := c.holder
		if c.waitConn != nil {
			holder += queuedMark
		}
		if _, err := c.d.execRepeated(ctx, c.d.join, c.req.Key, c.owner, r.places+1, holder, until); err != nil {
			return err
		}
		if _, err := c.d.execRepeated(ctx, c.d.stir, c.req.Key, newStamp(), 1); err != nil {
			return err
		}
		c.place, c.ahead = true, int64(c.count)
	case r.lapse-r.now < driverkit.ToMicros(place/2):
		if _, err := c.d.execRepeated(ctx, c.d.stay, c.req.Key, c.owner, until); err != nil {
			return err
		}
	}
	return held
}

// heldError returns an error that names the holder.
func (c *claim) heldError(r row) *driver.HeldError {
	held := r.heldError()
	held.Waiters = c.count
	return held
}

// planPause returns how long to wait until the next request: at most until the lock expires. It is shorter for
// a claim that will soon be first, and longer if the holder has had the lock for long. With a bell, the claim
// polls only for lost rings.
func (c *claim) planPause(obstacle error, tries int) (limit time.Duration, again <-chan struct{}) {
	m := c.d.pollTiming
	c.dropBrokenWaitConn()
	if c.waitConn != nil && !c.heard {
		again = c.waitConn.done
	}
	if errors.Is(obstacle, driverkit.ErrRetryNow) {
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
		case c.waitConn != nil && !c.place: // the next request writes a ticket
			limit = min(limit, ticketAfter)
		case again != nil:
			limit = min(m.blocked*time.Duration(min(c.ahead+1, 5)), held.Remaining+m.poll)
		}
	}
	return limit, again
}

// abandon releases in the background what the claim may have left in the database. What it cannot release
// expires.
func (c *claim) abandon() {
	if !c.left {
		return
	}
	g := driver.Grant{Key: c.req.Key, Owner: c.owner, TTL: max(c.req.TTL, place)}
	c.d.calls.Go(func() {
		c.d.freeUntilConfirmed(g.TTL, func() {}, func(ctx context.Context) error {
			return c.d.runTogether(ctx, func(ctx context.Context) error { return c.d.giveUp(ctx, g) })
		})
	})
}

// giveUp frees the lock that a failed claim may have or may still get by an unanswered statement. It deletes
// the claim's ticket, and then changes the stamp and the number of places, on which all those statements
// depend. So they find nothing afterwards.
func (d *Driver) giveUp(ctx context.Context, g driver.Grant) error {
	if _, err := d.execRepeated(ctx, d.leave, g.Key, g.Owner); err != nil {
		return err
	}
	stirred, err := d.execRepeated(ctx, d.stir, g.Key, newStamp(), 1)
	if err == nil && !stirred { // an unanswered insert of the first row must find a row
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

// readLock reads a lock for owner. With look it also counts the waiters.
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

// changeLock changes a lock to another row if the lock is still as read, and reports whether it was. A
// hand-over deletes the ticket and wakes the waiter if it belongs to this client.
func (d *Driver) changeLock(ctx context.Context, key string, was row, is *row) (changed bool, err error) {
	if was.there {
		changed, err = d.execRepeated(ctx, d.put, is.stamp, is.token, is.owner, is.holder, is.since, is.expires, was.leaseEnds(is), key, was.stamp)
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
	d.recordHandOver(key)
	if u := currentTx(ctx); u != nil {
		u.handed = append(u.handed, is.owner)
	} else {
		d.wakeWaiter(is.owner)
	}
	d.execRepeated(ctx, d.leave, key, is.owner) // ignore an error: the new owner deletes the ticket, or it expires
	return true, nil
}

// wakeWaiter makes the waiter with that owner confirm its hand-over at once: directly in this client, by the
// bell in another.
func (d *Driver) wakeWaiter(owner string) {
	if !d.wakeOwn(owner) && d.bell != nil {
		d.bell.Ring(owner)
	}
}

// stampEnd is above what a renewal adds to a stamp, and half of the range of the column.
const stampEnd = 1 << 62

// newStamp returns a random stamp, different from the stamp of every row.
func newStamp() int64 { return rand.Int64() }

// scanRow scans a row of a listing.
func scanRow(rows *sql.Rows) (r row, key string, err error) {
	err = rows.Scan(&r.now, &key, &r.token, &r.owner, &r.holder, &r.since, &r.expires, &r.count)
	return r, key, err
}
