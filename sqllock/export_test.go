package sqllock

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Ping pings the database, as an idle driver does.
func (d *Driver) Ping(ctx context.Context) error { return d.pingDatabase(ctx, d.renewDB) }

// SetPollInterval sets all poll intervals of d's waiters to every.
func (d *Driver) SetPollInterval(every time.Duration) {
	d.pollTiming.poll, d.pollTiming.hasty, d.pollTiming.slowest, d.pollTiming.blocked = every, every, every, every
}

// RemoveBell removes d's bell, as in an older program. Nothing else may use d meanwhile.
func (d *Driver) RemoveBell() { d.bell = nil }

// DecideTwice has a claim of owner, with a ticket if place, decide about the lock "k" twice: by the one statement
// of SQLite, whose change stays, and by the row as it was before. It returns both decisions; an empty owner
// leaves the lock.
func (d *Driver) DecideTwice(ctx context.Context, owner string, place bool) (byStatement, byRow Decision, err error) {
	c := d.newClaim(driver.Request{Key: "k", TTL: time.Minute})
	defer c.leave()
	c.owner, c.place = owner, place
	r, err := d.readLock(ctx, "k", owner, false)
	if err != nil {
		return byStatement, byRow, err
	}
	if want, err := c.nextRow(r); err == nil && want.owner == owner {
		byRow = Decision{owner, want.token - r.token, want.since - r.since}
	}
	g, taken, err := c.takeFree(ctx)
	if err == nil && taken {
		after, err := d.readLock(ctx, "k", owner, false)
		if err != nil || after.token != g.Token || after.place != nil {
			return byStatement, byRow, fmt.Errorf("the lock is %+v, %w, after the grant %+v", after, err, g)
		}
		byStatement = Decision{after.owner, after.token - r.token, after.since - r.since}
	}
	return byStatement, byRow, err
}

// BusyPauses returns the pauses before the next try at a busy file, after the time waited: of a statement that
// must succeed by end, and of one without a deadline.
func BusyPauses(waited time.Duration, end time.Time) (hurried, newcomer time.Duration) {
	d := &Driver{dialect: SQLite}
	return busyPause(d.withUrgency(context.Background(), end), waited), busyPause(context.Background(), waited)
}

// Decision is a change to a lock by a claim.
type Decision struct {
	Owner                    string
	TokenRises, SinceChanges int64
}

// UserLock returns the name of the turnstile of key.
func (d *Driver) UserLock(key string) string {
	d.turnstile.mu.Lock()
	known := d.turnstile.known
	d.turnstile.mu.Unlock()
	if !known {
		if conn, err := d.db.Conn(context.Background()); err == nil {
			d.turnstile.tryOut(context.Background(), conn)
			conn.Close()
		}
	}
	return d.turnstile.userLock(key)
}
