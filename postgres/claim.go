package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
)

const (
	// place bounds the lifetime of a waiter's ticket after the client's last request.
	place = 8 * time.Second
	// blockedPlace bounds the lifetime of a ticket while its client blocks at the turnstile and polls each
	// turnPoll. A release leaves the lock to the oldest waiter there and does not notify others, so the ticket
	// of a dead waiter must expire soon.
	blockedPlace = 3 * time.Second
	// relaxed is the poll interval of a waiter that receives notifications; hasty is the longest poll interval
	// of any other waiter.
	relaxed = 2 * time.Second
	hasty   = 200 * time.Millisecond
	// grace is a waiter's time to confirm a hand-over. If the waiter is dead, the waiters behind it lose this
	// time. A waiter that is notified needs one round trip to confirm; a waiter that polls needs up to hasty
	// more.
	grace = time.Second
)

// claim is one attempt to acquire a lock.
type claim struct {
	d      *Driver
	req    driver.Request
	owner  string
	holder string
	from   string        // owner whose lock the claim adopts; empty: none
	wake   chan struct{} // receives when the lock was handed to this claim

	left  bool // the server may have a lock or a ticket of this claim
	doubt bool // a statement got no answer and may still be executed
	place bool // it has a ticket in the queue

	visit   *visit // wait at the turnstile; nil: none
	visited bool   // it left the turnstile or cannot go there: it waits with a ticket

	channel *string         // the client's channel, as last sent to the server; nil: it does not listen
	tuned   <-chan struct{} // closed when the client's channel changes
}

func (d *Driver) newClaim(req driver.Request) *claim {
	c := &claim{d: d, req: req, owner: d.owners.Next(req.Adoptable), holder: driverkit.HolderJSON(req.Holder), wake: make(chan struct{}, 1)}
	if !req.NoWait {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.waiting[c.owner] = c.wake
	}
	return c
}

// leave removes the claim from the waiters that notifications can wake.
func (c *claim) leave() {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	delete(c.d.waiting, c.owner)
}

// acquireLock asks until the server grants the lock or an error ends the attempt.
func (c *claim) acquireLock(ctx context.Context) (driver.Grant, error) {
	attempt := driverkit.Attempt{
		Calls: c.d.calls, Lane: c.d.lane, Request: c.req, Adopts: c.from != "", Turn: c.wake, Pause: c.planPause,
		Ask: func(ctx, caller context.Context) (driver.Grant, error) {
			return c.tryOnce(context.WithValue(ctx, callerKey{}, caller))
		},
		Queued: func() bool { return c.place },
	}
	c.channel, c.tuned = c.d.currentChannel()
	if !c.req.NoWait && !attempt.Adopts && c.d.isCrowded(c.req.Key) && ctx.Err() == nil && c.startVisit() {
		timer := time.NewTimer(ticketTime)
		defer timer.Stop()
		select {
		case <-c.visit.done:
		case <-timer.C:
		case <-ctx.Done():
		case <-c.d.calls.Alive.Done():
		}
	}
	if attempt.Adopts {
		attempt.Last = c.d.unavailableError(errors.New("no answer yet"))
	}
	return attempt.Run(ctx)
}

// answer holds the columns that the SQL function acquire returns.
type answer struct {
	Token              *int64 // nil: denied
	Owner              *string
	Holder             holder
	Age, Left, Waiters *int64
}

// readAnswer scans one row. It uses no reflection, because each acquisition calls it.
func readAnswer(row pgx.CollectableRow) (a answer, err error) {
	if err = row.Scan(&a.Token, &a.Owner, &a.Holder, &a.Age, &a.Left, &a.Waiters); err == nil {
		err = a.check()
	}
	return a, err
}

// check returns an error if the answer names a holder but lacks other columns: then another program answered.
func (a answer) check() error {
	if a.Token == nil && a.Owner != nil && (a.Age == nil || a.Left == nil || a.Waiters == nil) {
		return errors.New("the answer is incomplete; look what answers at this address")
	}
	return nil
}

// tryOnce asks the server once, or uses the reply that the turnstile has returned. If the claim's owner was
// granted the lock and has lost it already, tryOnce asks again under a new owner name.
func (c *claim) tryOnce(ctx context.Context) (driver.Grant, error) {
	if v := c.visit; v != nil && !v.heard && v.isOver() {
		v.heard = true
		if v.waitConn == nil {
			c.doubt = c.doubt || mayHaveRun(v.err)
			c.left = c.left || c.doubt
			c.visit, c.visited = nil, true
		} else {
			c.place = true
			granted := min(c.req.TTL, entryTTL)
			g, err := c.readReply(ctx, v.answer, granted, nil)
			if errors.Is(err, driver.ErrHeld) || err == nil && pace.Until(g.TrustedUntil, time.Now()) >= granted/2 {
				return g, err
			}
			// The grant at the turnstile is too short for a holder that does not renew, or its statement was
			// sent too long ago. The claim confirms it by a second statement.
		}
	}
	send := c.requestLock
	if c.from != "" {
		send = c.requestAdoption
	}
	r, err := send(ctx)
	return c.readReply(ctx, r, c.req.TTL, err)
}

// readReply turns the server's answer into a grant or an error. The claim asked for a TTL of granted.
func (c *claim) readReply(ctx context.Context, r reply[answer], granted time.Duration, err error) (driver.Grant, error) {
	c.doubt = c.doubt || r.doubt || mayHaveRun(err)
	switch {
	case err != nil:
		c.left = c.left || c.doubt
		return driver.Grant{}, err
	case r.rows[0].isGone():
		c.rename()
		return c.tryOnce(ctx)
	case r.rows[0].Token == nil:
		c.left = c.left || c.doubt || c.place
		return driver.Grant{}, r.rows[0].heldError(c.place)
	}
	c.left = true
	ttl := c.req.TTL
	g := driver.Grant{
		Key: c.req.Key, Owner: c.owner, Token: *r.rows[0].Token, Block: driverkit.Block, TTL: ttl, TrustedUntil: driverkit.TrustEnd(r.sent, granted),
	}
	if left := pace.Until(g.TrustedUntil, time.Now()); left < ttl/2 && (left <= 0 || !c.req.WillRenew) {
		return driver.Grant{}, c.d.unavailableError(errors.New("the answer came too late"))
	}
	c.d.noteDoubt(c.owner, c.doubt)
	return g, nil
}

// rename gives the claim a new owner name. The lock was handed to the claim and taken away before the claim
// read the grant, and one owner name stands for one grant only. Statements that were sent under the old name
// take nothing.
func (c *claim) rename() {
	if v := c.visit; v != nil && !v.heard { // it waits there under the old name
		if waitConn, _ := v.end(); waitConn != nil {
			c.d.quitInBackground(waitConn)
		}
		c.visit, c.visited = nil, true
	}
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	delete(c.d.waiting, c.owner)
	c.owner, c.left, c.doubt, c.place = c.d.owners.Next(c.req.Adoptable), false, false, false
	if !c.req.NoWait {
		c.d.waiting[c.owner] = c.wake
	}
}

// requestLock asks for the lock, and for a ticket in the queue. The first request asks for no ticket if the
// claim can wait at the turnstile.
func (c *claim) requestLock(ctx context.Context) (reply[answer], error) {
	c.channel, c.tuned = c.d.currentChannel()
	at, lasts := c.channel, place
	switch v := c.visit; {
	case v == nil && !c.visited && !c.req.NoWait && c.d.waitConns.isReady():
	case v == nil:
		c.place = !c.req.NoWait
	default:
		c.place = true
		at = v.ticketChannel(c.channel)
		if !v.heard {
			lasts = blockedPlace
		}
	}
	return queryRow(ctx, c.d, readAnswer, c.d.schema.acquire, c.req.Key, c.owner, driverkit.ToMicros(c.req.TTL),
		c.holder, c.place, at, driverkit.ToMicros(grace), driverkit.ToMicros(lasts))
}

// requestAdoption asks the server to transfer the lock from the owner in c.from.
func (c *claim) requestAdoption(ctx context.Context) (reply[answer], error) {
	ttl := c.req.TTL
	_, c.tuned = c.d.currentChannel()
	r, err := queryRow(ctx, c.d, pgx.RowTo[*int64], c.d.schema.adopt, c.req.Key, c.from, c.owner, driverkit.ToMicros(ttl), c.holder)
	out := reply[answer]{sent: r.sent, doubt: r.doubt}
	switch {
	case err != nil:
	case r.rows[0] == nil:
		err = driver.ErrLost
	case *r.rows[0] == 0:
		err = c.d.unavailableError(errors.New("a transaction still relies on the lease"))
	default:
		out.rows = []answer{{Token: r.rows[0]}}
	}
	return out, err
}

// isGone reports that the owner has lost or released the lock.
func (a answer) isGone() bool { return a.Token == nil && a.Waiters == nil }

// heldError returns an error that names the holder. If the caller has a place in the queue, it is not counted
// among the waiters.
func (a answer) heldError(place bool) error {
	held := &driver.HeldError{}
	if a.Owner != nil {
		held.Owner, held.Remaining, held.Waiters = *a.Owner, max(driverkit.FromMicros(*a.Left), 0), int(*a.Waiters)
		held.Since, held.Kept = time.Now().Add(-driverkit.FromMicros(*a.Age)), driverkit.IsMinHoldID(*a.Owner)
	}
	if place {
		held.Waiters = max(held.Waiters-1, 0)
	}
	held.Holder = driver.Holder(a.Holder)
	return held
}

// planPause returns how long to wait until the next request: at most until the lock expires, and at most as
// long as the claim can rely on a notification.
func (c *claim) planPause(obstacle error, tries int) (limit time.Duration, again <-chan struct{}) {
	if c.req.NoWait {
		return pace.ShortPause, nil
	}
	c.d.startListening()
	again = c.tuned
	limit = relaxed
	if errors.Is(obstacle, driver.ErrHeld) {
		if c.visit == nil && !c.visited && !c.place && c.from == "" {
			c.visited = !c.startVisit()
		}
		switch v := c.visit; {
		case v == nil && c.visited && !c.place: // no connection to wait at the turnstile
			return 0, nil
		case v == nil && c.channel == nil:
			limit = min(pace.ShortPause<<min(tries, 10), hasty)
		case v == nil:
		case !v.heard && !c.place:
			return ticketTime, nil
		case !v.heard:
			limit, again = turnPoll, nil
		case time.Since(v.begun) >= visitTime:
			c.leaveTurnstile()
			return 0, nil
		case !v.tells:
			limit = min(time.Millisecond<<min(v.looks, 10), pace.ShortPause)
			v.looks++
		default:
			limit = visitTime
		}
	}
	if held, ok := errors.AsType[*driver.HeldError](obstacle); ok && held.Remaining == 0 {
		// The lease is over, but a transaction still relies on it (FenceTx). The end of that transaction wakes
		// no waiter: the next request hands the lock over. So all waiters together ask once each ShortPause.
		limit = min(limit, pace.ShortPause*time.Duration(held.Waiters+1))
	} else if ok {
		limit = min(limit, held.Remaining+pace.ShortPause)
	} else if !errors.Is(obstacle, driver.ErrAuth) { // a server that counts wrong passwords locks a user out
		limit = min(pace.ShortPause<<min(tries, 10), pace.LongPause)
	}
	return limit, again
}

// leaveTurnstile passes the turnstile to the next waiter. The claim keeps its ticket.
func (c *claim) leaveTurnstile() {
	c.d.quitInBackground(c.visit.waitConn)
	c.visit, c.visited = nil, true
}

// noteResult records a grant, or begins to release what a failed claim may have left, and returns the outcome.
func (c *claim) noteResult(g driver.Grant, err error) (driver.Grant, error) {
	if err != nil {
		c.abandon()
		return g, err
	}
	d := c.d
	if v := c.visit; v != nil {
		if waitConn, known := v.end(); !known {
			d.noteDoubt(g.Owner, true)
		} else if waitConn != nil {
			d.holdTurnstile(g.Owner, waitConn)
		}
	}
	d.startListening()
	d.mu.Lock()
	d.held[g.Owner] = g.Key
	retuned := c.tuned != d.tuned
	d.mu.Unlock()
	if retuned { // the check for forced locks may have run before this grant
		d.calls.Go(func() { d.alertForcedUntilDone([]string{g.Key}, []string{g.Owner}) })
	}
	return g, nil
}

// abandon releases in the background what the claim may have left on the server. What it cannot release
// expires.
func (c *claim) abandon() {
	d, v, left := c.d, c.visit, c.left
	if !left && v == nil {
		return
	}
	if left {
		d.noteDoubt(c.owner, c.doubt)
	}
	g := driver.Grant{Key: c.req.Key, Owner: c.owner, TTL: max(c.req.TTL, place)}
	d.calls.Go(func() {
		if v != nil {
			switch waitConn, known := v.end(); {
			case !known:
				d.noteDoubt(g.Owner, true)
				left = true
			case waitConn != nil:
				d.holdTurnstile(g.Owner, waitConn)
				left = true
			case len(v.answer.rows) > 0: // it came through the turnstile before it was ended
				left = true
			}
		}
		if left {
			d.repeatRelease(g, 0, func() {})
		}
	})
}
