package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
)

// Renew implements driver.Driver. It retries until ctx ends.
func (d *Driver) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	out := make([]driver.Renewal, len(grants))
	if err := d.calls.Enter(); err != nil {
		for i := range out {
			out[i].Err = err
		}
		return out
	}
	defer d.calls.Leave()
	together := make(map[time.Duration][]int)
	for i, g := range grants {
		together[g.TTL] = append(together[g.TTL], i)
	}
	for _, ttl := range slices.Sorted(maps.Keys(together)) { // the shortest leases first
		for some := range slices.Chunk(together[ttl], batch) {
			d.renewTogether(ctx, ttl, grants, some, out)
		}
	}
	return out
}

// renewalResult is the outcome of an attempt to renew some grants.
type renewalResult struct {
	kept  []int               // the indexes of the grants that are not lost
	sent  time.Time           // time of the statement that renewed them
	found map[string]standing // by key
}

// renewTogether renews the grants with indices some, which share one TTL.
func (d *Driver) renewTogether(ctx context.Context, ttl time.Duration, grants []driver.Grant, some []int, out []driver.Renewal) {
	r, err := d.tryRenewal(ctx, ttl, func(ctx context.Context, first bool) (r renewalResult, err error) {
		r.found = make(map[string]standing, len(some))
		done := false
		if first && d.dialect == MySQL { // SQLite always needs one statement; after a lost answer the stamps are unknown
			done, r.sent, err = d.renewUnchanged(ctx, ttl, grants, some, r.found)
			r.kept = some
		}
		if err == nil && !done {
			r.kept, r.sent, err = d.renewBatch(ctx, ttl, grants, some, r.found)
		}
		return r, err
	})
	for _, at := range some {
		g := grants[at]
		switch s := r.found[g.Key]; {
		case err != nil:
			out[at].Err = err
		case !slices.Contains(r.kept, at):
			out[at].Err = driver.ErrLost
		default:
			if s.isHeldBy(g) {
				d.updateHeldLock(g.Owner, s.stamp, s.waiters == 0)
			}
			until := driverkit.TrustEnd(r.sent, ttl)
			if until.Before(g.TrustedUntil) { // the answer was slower than the grant's: never shorten the trust
				until = g.TrustedUntil
			}
			out[at] = driver.Renewal{TrustedUntil: until, Waiters: s.waiters}
		}
	}
}

// renewUnchanged renews the grants by one statement, and reports whether it has renewed all. It needs their
// stamps, and locks that had no waiters when last seen: a new waiter changes the stamp.
func (d *Driver) renewUnchanged(ctx context.Context, ttl time.Duration, grants []driver.Grant, some []int, found map[string]standing,
) (done bool, sent time.Time, err error) {
	by, args := 1+rand.Int64N(stampEnd), make([]any, 2, 2+2*len(some))
	args[0], args[1] = by, driverkit.ToMicros(ttl)
	d.mu.Lock()
	for _, at := range some {
		g := grants[at]
		own, known := d.heldLocks[g.Owner]
		if !known || !own.alone {
			d.mu.Unlock()
			return false, sent, nil
		}
		args = append(args, g.Key, own.stamp)
		found[g.Key] = standing{owner: g.Owner, token: g.Token, stamp: renewedStamp(own.stamp, by), left: driverkit.ToMicros(ttl)}
	}
	d.mu.Unlock()
	change, sent := d.renewKnown(len(some)), time.Now()
	err = d.runOn(ctx, d.renewDB, func(q querier) error {
		n, err := execCount(ctx, q, change, args...)
		done = n == int64(len(some))
		return err
	})
	return done, sent, err
}

// renewBatch repeats the renewal until one statement has renewed all grants that are not lost. It returns
// their indices and the time at which that statement was sent. Only the expiry that the statement sets counts:
// the rows read afterwards may come from a lagging replica, and show no more than later changes.
func (d *Driver) renewBatch(ctx context.Context, ttl time.Duration, grants []driver.Grant, some []int, found map[string]standing) ([]int, time.Time, error) {
	for rest := some; ; {
		names, owners := make([]any, len(rest)), make([]any, len(rest))
		for i, at := range rest {
			names[i], owners[i] = grants[at].Key, grants[at].Owner
		}
		args := slices.Concat([]any{1 + rand.Int64N(stampEnd), driverkit.ToMicros(ttl)}, names, owners)
		change, sent := d.renewStatement(len(rest)), time.Now()
		var renewed int64
		err := d.runOn(ctx, d.renewDB, func(q querier) (err error) {
			if d.dialect == SQLite { // it returns the renewed rows
				renewed, err = scanStandings(ctx, q, change, args, names, found)
				return err
			}
			renewed, err = execCount(ctx, q, change, args...)
			return err
		})
		if err == nil && (d.dialect != SQLite || renewed < int64(len(rest))) {
			err = d.readStandings(ctx, names, found)
		}
		if err != nil {
			return nil, sent, err
		}
		lost := func(at int) bool { return !found[grants[at].Key].isHeldBy(grants[at]) }
		if renewed >= int64(len(rest)) {
			lost = func(at int) bool { return found[grants[at].Key].followsLossOf(grants[at]) }
		}
		before := len(rest)
		rest = slices.DeleteFunc(slices.Clone(rest), lost)
		switch {
		case renewed >= int64(before) || len(rest) == 0:
			return rest, sent, nil
		case len(rest) == before:
			// Another client has decided that a lock had expired, and its statement may still come.
			return nil, sent, d.unavailableError(errors.New("a lock had lapsed and is held again: the clock was set back, or a read was answered by a replica"))
		}
	}
}

// readStandings reads the states of the named locks.
func (d *Driver) readStandings(ctx context.Context, names []any, found map[string]standing) error {
	look := d.selectStandings(len(names))
	return d.runOn(ctx, d.renewDB, func(q querier) error {
		_, err := scanStandings(ctx, q, look, names, names, found)
		return err
	})
}

// scanStandings stores the states of the named locks that a statement returns, and returns their number.
func scanStandings(ctx context.Context, q querier, s statement, args, names []any, found map[string]standing) (n int64, err error) {
	for _, name := range names {
		delete(found, name.(string))
	}
	err = queryRows(ctx, q, s, args, func(rows *sql.Rows) error {
		var key string
		var s standing
		err := rows.Scan(&key, &s.owner, &s.token, &s.stamp, &s.left, &s.waiters)
		found[key] = s
		n++
		return err
	})
	return n, err
}

// standing is the state of a lock after a renewal.
type standing struct {
	owner   string
	token   int64
	stamp   int64
	left    int64 // µs
	waiters int
}

// isHeldBy reports whether g still has the lock.
func (s standing) isHeldBy(g driver.Grant) bool {
	return s.left > 0 && s.owner == g.Owner && isSameGrant(s.token, g)
}

// followsLossOf reports whether this state can only follow the loss of g. Tokens rise with each grant, so a
// lower token, or no row, is a state from before g.
func (s standing) followsLossOf(g driver.Grant) bool {
	return s.token > g.Token && g.Token != 0 || s.owner != g.Owner && s.token >= g.Token && s != standing{}
}

// errStaleRead reports that a lock was read in a state from before its grant.
var errStaleRead = errors.New("the lock was read as it was before it was granted: by a replica that lags, or from a database that was set back")

// isSameGrant reports whether a lock with this token, held by the owner of g, is still the grant g. The token
// differs if the lock was taken away and then handed to a late ticket of the owner. A client that adopts a
// grant may not know its token.
func isSameGrant(token int64, g driver.Grant) bool { return g.Token == 0 || g.Token == token }
