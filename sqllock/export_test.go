package sqllock

import "time"

// Sleepy has the waiters of d ask so seldom.
func (d *Driver) Sleepy(every time.Duration) {
	d.manners.poll, d.manners.hasty, d.manners.slowest = every, every, every
}
