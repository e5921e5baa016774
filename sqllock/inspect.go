package sqllock

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// Adopt implements driver.Adopter.
func (d *Driver) Adopt(ctx context.Context, g driver.Grant) (driver.Grant, error) {
	if err := d.calls.Enter(); err != nil {
		return driver.Grant{}, err
	}
	defer d.calls.Leave()
	if !driver.IsAdoptable(g.Owner) { // nor is the owner of a kept lock
		return driver.Grant{}, fmt.Errorf("%w: it was not acquired to be adopted", driver.ErrInvalid)
	}
	c := d.newClaim(driver.Request{Key: g.Key, TTL: g.TTL, Adoptable: true})
	c.from = g
	ctx, cancel := context.WithTimeout(ctx, g.TTL)
	defer cancel()
	return d.runClaim(ctx, c)
}

// Force implements driver.Forcer. With a bell it sends the holder the reason.
func (d *Driver) Force(ctx context.Context, key string, token int64, reason string) (forced bool, err error) {
	holder := ""
	err = d.callBriefly(ctx, func(ctx context.Context) (err error) {
		forced, err = d.updateLock(ctx, key, func(r row) (row, bool) {
			holder = r.owner
			return r.end(), r.isHeld() && r.hasToken(token)
		})
		return err
	})
	if forced && d.bell != nil {
		d.bell.Forced(holder, reason)
	}
	return forced, err
}

// callBriefly calls fn as a call of the driver, for some seconds at most.
func (d *Driver) callBriefly(ctx context.Context, fn func(context.Context) error) error {
	if err := d.calls.Enter(); err != nil {
		return err
	}
	defer d.calls.Leave()
	ctx, cancel := context.WithTimeout(ctx, pace.RequestTime(time.Minute, pace.Alone))
	defer cancel()
	return fn(ctx)
}

// Check implements driver.Checker.
func (d *Driver) Check(ctx context.Context, g driver.Grant) error {
	return d.callBriefly(ctx, func(ctx context.Context) error {
		r, err := d.readLock(ctx, g.Key, g.Owner, false)
		switch {
		case err != nil:
			return err
		case r.precedes(g):
			return d.unavailableError(errStaleRead)
		case !r.isHeldBy(g.Owner) || !isSameGrant(r.token, g):
			return driver.ErrLost
		}
		return nil
	})
}

// Inspect implements driver.Inspector.
func (d *Driver) Inspect(ctx context.Context, key string) (st driver.Status, err error) {
	err = d.callBriefly(ctx, func(ctx context.Context) error {
		r, err := d.readLock(ctx, key, "", true)
		if err == nil {
			st = r.lockStatus(key, d.node)
		}
		return err
	})
	if err != nil {
		st = driver.Status{Key: key, Nodes: []driver.NodeView{{Node: d.node, Err: err}}}
	}
	return st, err
}

// List implements driver.Lister.
func (d *Driver) List(ctx context.Context, prefix string, yield func(driver.Status) bool) error {
	for from, last := prefix, ""; ; {
		var found []driver.Status
		err := d.callBriefly(ctx, func(ctx context.Context) error {
			return d.run(ctx, func(q querier) error {
				found = nil
				return queryRows(ctx, q, d.list, []any{from, last}, func(rows *sql.Rows) error {
					r, key, err := scanRow(rows)
					found = append(found, r.lockStatus(key, d.node))
					return err
				})
			})
		})
		if err != nil {
			return err
		}
		for _, st := range found {
			if !strings.HasPrefix(st.Key, prefix) || !yield(st) {
				return nil
			}
			from, last = st.Key, st.Key
		}
		if len(found) < listPageSize {
			return nil
		}
	}
}

// Queue implements driver.Queuer. The table does not record the start of a wait.
func (d *Driver) Queue(ctx context.Context, key string, limit int) (waiters []driver.Waiter, err error) {
	err = d.callBriefly(ctx, func(ctx context.Context) error {
		return d.run(ctx, func(q querier) error {
			waiters = nil
			return queryRows(ctx, q, d.queue, []any{key, limit}, func(rows *sql.Rows) error {
				var owner, holder string
				err := rows.Scan(&owner, &holder)
				waiters = append(waiters, driver.Waiter{Owner: owner, Holder: parseHolder(holder)})
				return err
			})
		})
	})
	return waiters, err
}

// Nodes implements driver.Notifier: the database is the one node.
func (d *Driver) Nodes() []driver.NodeEvent { return d.states.Nodes() }

// Notify implements driver.Notifier.
func (d *Driver) Notify(fn func(driver.NodeEvent)) { d.states.Notify(fn) }
