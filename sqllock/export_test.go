package sqllock

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Ping asks the database as d does now and then.
func (d *Driver) Ping(ctx context.Context) error { return d.pingDatabase(ctx, d.renewDB) }

// Sleepy has the waiters of d ask so seldom.
func (d *Driver) Sleepy(every time.Duration) {
	d.manners.poll, d.manners.hasty, d.manners.slowest, d.manners.blocked = every, every, every, every
}

// Mute has d ring for nobody, as an older program does. Nothing else uses d meanwhile.
func (d *Driver) Mute() { d.bell = nil }

// Decide has a claim of owner, who may have a place in the queue, decide about the lock "k" twice: by the one statement of SQLite, whose
// change stays, and by the row as it was before. It returns what each makes of the lock; an empty owner: it leaves the lock.
func (d *Driver) Decide(ctx context.Context, owner string, place bool) (byStatement, byRow Decision, err error) {
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

// BusyPauses returns how long a statement that has waited so long pauses before its next try at a busy file: one that has to be through
// by end, and one of a newcomer.
func BusyPauses(waited time.Duration, end time.Time) (hurried, newcomer time.Duration) {
	d := &Driver{dialect: SQLite}
	return busyPause(d.withHurry(context.Background(), end), waited), busyPause(context.Background(), waited)
}

// Decision is the change that a claim would make to a lock.
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
