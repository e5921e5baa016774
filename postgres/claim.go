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
	// place bounds the time that a place in the queue lasts without a sign of its client.
	place = 8 * time.Second
	// blockedPlace is the same while the client blocks at the turnstile, where it asks each turnPoll. A freed lock is left to the oldest
	// that blocks, and the waiters behind it are not notified: so the tickets of dead waiters there must not stay for long.
	blockedPlace = 3 * time.Second
	// relaxed is the time between two polls of a waiter that is notified of its turn; hasty is the time between the polls of
	// another waiter, after a while.
	relaxed = 2 * time.Second
	hasty   = 200 * time.Millisecond
	// grace is the time in which a waiter has to confirm a hand-over. A dead waiter costs the waiters behind it this time. A waiter that
	// is notified of its turn takes a round trip, and one that polls hasty and a round trip.
	grace = time.Second
)

// claim is one attempt at a lock.
type claim struct {
	d      *Driver
	req    driver.Request
	owner  string
	holder string
	from   string        // whose lock it takes over; empty: nobody's
	wake   chan struct{} // it is its turn to have the lock

	left  bool // there may be something on the server
	doubt bool // a statement had no answer, and may be executed late
	place bool // it has one in the queue

	visit   *visit // at the turnstile; nil: it is not there
	visited bool   // it has been there, or cannot go: it waits with a ticket

	channel *string         // where its client listens, as the server knows; nil: nowhere
	tuned   <-chan struct{} // closed when that is otherwise
}

func (d *Driver) newClaim(req driver.Request) *claim {
	c := &claim{d: d, req: req, owner: d.owners.Next(req.Adoptable), holder: driverkit.AsJSON(req.Holder), wake: make(chan struct{}, 1)}
	if !req.NoWait {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.waiting[c.owner] = c.wake
	}
	return c
}

// leave removes the claim from the waiters that can be woken.
func (c *claim) leave() {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	delete(c.d.waiting, c.owner)
}

// acquireLock asks until the lock is granted or that is out of the question.
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

// answer has the columns that acquire returns.
type answer struct {
	Token              *int64 // nil: denied
	Owner              *string
	Holder             holder
	Age, Left, Waiters *int64
}

// readAnswer does without reflection, as it is in the way of every lock.
func readAnswer(row pgx.CollectableRow) (a answer, err error) {
	if err = row.Scan(&a.Token, &a.Owner, &a.Holder, &a.Age, &a.Left, &a.Waiters); err == nil {
		err = a.check()
	}
	return a, err
}

// check returns an error if the answer names a holder and not what belongs to it: then it is none of our functions that answers.
func (a answer) check() error {
	if a.Token == nil && a.Owner != nil && (a.Age == nil || a.Left == nil || a.Waiters == nil) {
		return errors.New("the answer is incomplete; look what answers at this address")
	}
	return nil
}

// tryOnce asks the server once, or reads the reply that came through the turnstile. If the claim's owner name was granted
// the lock and has lost it already, tryOnce takes another name and asks again.
func (c *claim) tryOnce(ctx context.Context) (driver.Grant, error) {
	if v := c.visit; v != nil && !v.heard && v.isOver() {
		v.heard = true
		if v.ear == nil {
			c.doubt = c.doubt || isDoubtful(v.err)
			c.left = c.left || c.doubt
			c.visit, c.visited = nil, true
		} else {
			c.place = true
			granted := min(c.req.TTL, entryTTL)
			g, err := c.readReply(ctx, v.answer, granted, nil)
			if errors.Is(err, driver.ErrHeld) || err == nil && pace.Until(g.TrustedUntil, time.Now()) >= granted/2 {
				return g, err
			}
			// The grant is too short for who does not renew it, or the statement was sent too long ago: it is confirmed by another.
		}
	}
	send := c.requestLock
	if c.from != "" {
		send = c.requestAdoption
	}
	r, err := send(ctx)
	return c.readReply(ctx, r, c.req.TTL, err)
}

// readReply returns the meaning of the answer to the claim, which asked for the lock for granted.
func (c *claim) readReply(ctx context.Context, r reply[answer], granted time.Duration, err error) (driver.Grant, error) {
	c.doubt = c.doubt || r.doubt || isDoubtful(err)
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
		Key: c.req.Key, Owner: c.owner, Token: *r.rows[0].Token, Block: driverkit.Block, TTL: ttl, TrustedUntil: driverkit.Trust(r.sent, granted),
	}
	if left := pace.Until(g.TrustedUntil, time.Now()); left < ttl/2 && (left <= 0 || !c.req.Renews) {
		return driver.Grant{}, c.d.unavailableError(errors.New("the answer came too late"))
	}
	c.d.noteDoubt(c.owner, c.doubt)
	return g, nil
}

// rename gives the claim another owner name. The lock was handed to the claim and taken away before the claim knew, and an
// owner name stands for one grant only. Statements sent under the old name take nothing.
func (c *claim) rename() {
	if v := c.visit; v != nil && !v.heard { // it is there under the old name
		if ear, _ := v.end(); ear != nil {
			c.d.quitLater(ear)
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

// requestLock asks for the lock, or for a place in the queue. The first question is only for the lock if the claim can go to the turnstile.
func (c *claim) requestLock(ctx context.Context) (reply[answer], error) {
	c.channel, c.tuned = c.d.currentChannel()
	at, lasts := c.channel, place
	switch v := c.visit; {
	case v == nil && !c.visited && !c.req.NoWait && c.d.ears.isReady():
	case v == nil:
		c.place = !c.req.NoWait
	default:
		c.place = true
		at = v.ticketChannel(c.channel)
		if !v.heard {
			lasts = blockedPlace
		}
	}
	return queryRow(ctx, c.d, readAnswer, c.d.schema.acquire, c.req.Key, c.owner, driverkit.InMicros(c.req.TTL),
		c.holder, c.place, at, driverkit.InMicros(grace), driverkit.InMicros(lasts))
}

// requestAdoption asks for the lock that another owner has.
func (c *claim) requestAdoption(ctx context.Context) (reply[answer], error) {
	ttl := c.req.TTL
	_, c.tuned = c.d.currentChannel()
	r, err := queryRow(ctx, c.d, pgx.RowTo[*int64], c.d.schema.adopt, c.req.Key, c.from, c.owner, driverkit.InMicros(ttl), c.holder)
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

// isGone reports that the owner has had the lock, or was given up.
func (a answer) isGone() bool { return a.Token == nil && a.Waiters == nil }

// heldError returns an error that names the holder. The server counts the asker as well if the asker has a place.
func (a answer) heldError(place bool) error {
	held := &driver.HeldError{}
	if a.Owner != nil {
		held.Owner, held.Remaining, held.Waiters = *a.Owner, max(driverkit.Micros(*a.Left), 0), int(*a.Waiters)
		held.Since, held.Kept = time.Now().Add(-driverkit.Micros(*a.Age)), driverkit.IsKept(*a.Owner)
	}
	if place {
		held.Waiters = max(held.Waiters-1, 0)
	}
	held.Holder = driver.Holder(a.Holder)
	return held
}

// planPause returns how long to wait until the next question: until the lock lapses at most, and not longer than what the client knows
// of its turn allows.
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
		case v == nil && c.visited && !c.place: // there was no room at the turnstile
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
		// A transaction outlives the lease (Fenced), and its end wakes nobody. Whoever asks next hands
		// the lock to the first: all together ask so often.
		limit = min(limit, pace.ShortPause*time.Duration(held.Waiters+1))
	} else if ok {
		limit = min(limit, held.Remaining+pace.ShortPause)
	} else if !errors.Is(obstacle, driver.ErrAuth) { // a server that counts wrong passwords locks a user out
		limit = min(pace.ShortPause<<min(tries, 10), pace.LongPause)
	}
	return limit, again
}

// leaveTurnstile lets the next one through. The claim keeps its place in the queue.
func (c *claim) leaveTurnstile() {
	c.d.quitLater(c.visit.ear)
	c.visit, c.visited = nil, true
}

// noteResult notes what the driver holds, or begins to clear away what the claim may have left,
// and returns the outcome of the claim.
func (c *claim) noteResult(g driver.Grant, err error) (driver.Grant, error) {
	if err != nil {
		c.abandon()
		return g, err
	}
	d := c.d
	if v := c.visit; v != nil {
		if ear, known := v.end(); !known {
			d.noteDoubt(g.Owner, true)
		} else if ear != nil {
			d.holdTurnstile(g.Owner, ear)
		}
	}
	d.startListening()
	d.mu.Lock()
	d.held[g.Owner] = g.Key
	retuned := c.tuned != d.tuned
	d.mu.Unlock()
	if retuned { // the look at what is held may have come before the grant
		d.calls.Go(func() { d.lookForForced([]string{g.Key}, []string{g.Owner}) })
	}
	return g, nil
}

// abandon clears away, in the background, what the claim has left on the server. What it
// cannot clear away lapses.
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
			switch ear, known := v.end(); {
			case !known:
				d.noteDoubt(g.Owner, true)
				left = true
			case ear != nil:
				d.holdTurnstile(g.Owner, ear)
				left = true
			case len(v.answer.rows) > 0: // it was through, before it was ended
				left = true
			}
		}
		if left {
			d.insistOnFree(g, 0, func() {})
		}
	})
}
