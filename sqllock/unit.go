package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
)

// unit is a transaction of SQLite for statements that belong together. SQLite runs in this process, so one
// transaction costs less than its statements alone, no other writer comes between them, and no broken
// connection can leave it open.
type unit struct {
	tx     querier
	failed error    // error of a statement: the whole transaction is repeated or fails
	handed []string // owners to which locks were handed: woken after the commit
}

// txKey is the key of the unit in the context of its statements.
type txKey struct{}

// currentTx returns the transaction that statements with this context belong to; nil: none.
func currentTx(ctx context.Context) *unit {
	u, _ := ctx.Value(txKey{}).(*unit)
	return u
}

// runTogether calls fn. On SQLite it runs all statements of fn's context in one transaction, and repeats that
// while the file is busy. On other databases each statement commits on its own, so that no row stays locked
// between two of them. It returns the error of fn or of the transaction.
func (d *Driver) runTogether(ctx context.Context, fn func(ctx context.Context) error) error {
	if d.dialect != SQLite || currentTx(ctx) != nil {
		return fn(ctx)
	}
	var u *unit
	var outcome error
	err := d.run(ctx, func(q querier) error {
		tx, on, err := d.beginTogether(ctx, q)
		if err != nil {
			return err
		}
		defer tx.Rollback() // ignore the error: the transaction is over, or its error is returned
		u = &unit{tx: on}
		outcome = fn(context.WithValue(ctx, txKey{}, u))
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

// beginTogether begins a transaction on q, a connection that run has provided.
func (d *Driver) beginTogether(ctx context.Context, q querier) (tx *sql.Tx, on querier, err error) {
	switch q := q.(type) {
	case *preparedPool:
		// Prepare before the transaction begins, as it may use the only connection.
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

// tryTogether takes an SQLite lock if it may. One statement suffices if the lock is free without waiters or
// was handed to the claim. Otherwise, and at once if the client has just handed the lock to a waiter, it reads
// the lock and takes it or queues up in one transaction, so that no release comes between the read and the
// ticket.
func (c *claim) tryTogether(ctx context.Context, look bool) (g driver.Grant, err error) {
	rung := c.rung.Swap(false)
	switch {
	case c.isAdoption():
		ctx = c.d.withUrgency(ctx, c.begun.Add(c.from.TTL))
	case rung: // a hand-over expires unless confirmed soon
		ctx = c.d.withUrgency(ctx, time.Now().Add(grace))
	}
	if !c.isAdoption() && (!c.place && !(look && c.d.wasHandedOver(c.req.Key)) || rung) { // other claims read first, because a write blocks all others
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
			ctx = c.d.withUrgency(ctx, time.Now().Add(grace))
		}
		fresh := r.place != nil && r.lapse-r.now >= driverkit.ToMicros(place/2)
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

// takeFree takes a free SQLite lock without other waiters by one statement, or confirms a hand-over to the
// claim.
func (c *claim) takeFree(ctx context.Context) (g driver.Grant, taken bool, err error) {
	c.left = true
	own := row{stamp: newStamp()}
	var r row
	var sent time.Time
	var queued, others bool // the claim has a ticket; other clients have one
	err = c.d.run(ctx, func(q querier) error {
		sent = time.Now()
		r.now = sent.UnixMicro()
		err := q.QueryRowContext(ctx, c.d.takeFree.text, c.d.takeFree.orderArgs([]any{
			c.req.Key, own.stamp, r.now, c.owner, c.holder, r.now + driverkit.ToMicros(c.req.TTL),
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
