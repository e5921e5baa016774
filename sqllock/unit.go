package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
)

// unit is a transaction of SQLite for statements that belong together. SQLite is in this process: so a transaction costs less
// than its statements by themselves, nobody comes between these, and nothing that is cut off leaves it open.
type unit struct {
	tx     querier
	failed error    // of a statement: the transaction is repeated or given up as a whole
	handed []string // owners that were handed a lock, and are woken behind the transaction
}

// unitKey is the key of the unit in the context of its statements.
type unitKey struct{}

// unitOf returns the unit that statements with this context belong to; nil: none.
func unitOf(ctx context.Context) *unit {
	u, _ := ctx.Value(unitKey{}).(*unit)
	return u
}

// runTogether calls fn, and on SQLite has all statements that fn runs with its context in one transaction, which it repeats while the file
// asks for that. Elsewhere each statement stands for itself, so that nothing is locked between two of them. It returns the error of fn,
// or why the transaction failed.
func (d *Driver) runTogether(ctx context.Context, fn func(ctx context.Context) error) error {
	if d.dialect != SQLite || unitOf(ctx) != nil {
		return fn(ctx)
	}
	var u *unit
	var outcome error
	err := d.run(ctx, func(q querier) error {
		tx, on, err := d.beginUnit(ctx, q)
		if err != nil {
			return err
		}
		defer tx.Rollback() // says nothing new: the transaction is over, or its error is on its way
		u = &unit{tx: on}
		outcome = fn(context.WithValue(ctx, unitKey{}, u))
		if u.failed != nil {
			return u.failed
		}
		return tx.Commit()
	})
	if err != nil {
		return err
	}
	for _, owner := range u.handed {
		d.wakeWaiter(owner)
	}
	return outcome
}

// beginUnit begins a transaction on what run has given.
func (d *Driver) beginUnit(ctx context.Context, q querier) (tx *sql.Tx, on querier, err error) {
	switch q := q.(type) {
	case *prepared:
		// Within the transaction none is prepared, as it may have all connections that there are.
		for _, s := range []*statement{&d.tables.read, &d.look, &d.put, &d.insert, &d.stir, &d.join, &d.stay, &d.leave} {
			q.statementFor(ctx, s.text)
		}
		tx, err = q.db.BeginTx(q.statementContext(ctx), nil)
		return tx, preparedTx{q, tx}, err
	case *sql.Conn:
		tx, err = q.BeginTx(ctx, nil)
		return tx, tx, err
	}
	return nil, nil, errors.New("no transaction begins within another")
}

// runStep runs a step of the transaction.
func (u *unit) runStep(fn func(querier) error) error {
	err := fn(u.tx)
	if err != nil {
		u.failed = err
	}
	return err
}

// tryTogether takes the lock of SQLite if it may: by one statement if it is free and nobody waits, or was handed to the claim. Else, and
// at once where the client has just handed it to a waiter, it reads the lock, and takes it or queues up, in one transaction, so that no
// release comes between the look and the place in the queue.
func (c *claim) tryTogether(ctx context.Context, look bool) (g driver.Grant, err error) {
	rung := c.rung.Swap(false)
	switch {
	case c.isAdoption():
		ctx = c.d.withHurry(ctx, c.begun.Add(c.from.TTL))
	case rung: // what was handed over lapses
		ctx = c.d.withHurry(ctx, time.Now().Add(grace))
	}
	if !c.isAdoption() && (!c.place && !(look && c.d.wasPassed(c.req.Key)) || rung) { // others look first, as who writes keeps all from it
		if g, taken, err := c.takeFree(ctx); taken || err != nil {
			return g, err
		}
	}
	if c.place || c.req.NoWait && !c.isAdoption() {
		r, err := c.d.readLock(ctx, c.req.Key, c.owner, look)
		if err != nil {
			return driver.Grant{}, err
		}
		if look {
			c.count = r.count
		}
		if r.owner == c.owner {
			ctx = c.d.withHurry(ctx, time.Now().Add(grace))
		}
		fresh := r.place != nil && r.lapse-r.now >= driverkit.InMicros(place/2)
		if r.isHeld() && r.owner != c.owner && (fresh || c.req.NoWait) {
			c.ahead = r.waitersAhead()
			return driver.Grant{}, c.heldError(r)
		}
	}
	err = c.d.runTogether(ctx, func(ctx context.Context) (err error) {
		g, err = c.tryRead(ctx, ctx, look)
		return err
	})
	return g, err
}

// takeFree takes a lock of SQLite by one statement if it is free and nobody waits for it, or confirms one that was handed to the claim.
func (c *claim) takeFree(ctx context.Context) (g driver.Grant, taken bool, err error) {
	c.left = true
	own := row{stamp: newStamp()}
	var r row
	var sent time.Time
	var queued, others bool // have a ticket
	err = c.d.run(ctx, func(q querier) error {
		sent = time.Now()
		r.now = sent.UnixMicro()
		err := q.QueryRowContext(ctx, c.d.takeFree.text, c.d.takeFree.orderArgs([]any{
			c.req.Key, own.stamp, r.now, c.owner, c.holder, r.now + driverkit.InMicros(c.req.TTL),
		})...).Scan(&own.token, &queued, &others)
		if taken = err == nil; errors.Is(err, sql.ErrNoRows) {
			err = nil
		}
		return err
	})
	if err != nil || !taken {
		return driver.Grant{}, false, err
	}
	if queued {
		r.place = new(int64)
	}
	if others {
		r.first = &ticket{}
	}
	g, err = c.completeGrant(ctx, r, own, sent)
	return g, true, err
}
