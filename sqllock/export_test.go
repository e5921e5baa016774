package sqllock

import (
	"context"
	"time"
)

// Ping is what d asks the database now and then.
func (d *Driver) Ping(ctx context.Context) error { return d.ping(ctx) }

// Sleepy has the waiters of d ask so seldom.
func (d *Driver) Sleepy(every time.Duration) {
	d.manners.poll, d.manners.hasty, d.manners.slowest = every, every, every
}

// Mute has d ring for nobody, as an older program does. Nothing else uses d meanwhile.
func (d *Driver) Mute() { d.bell = nil }
