package sqllock

import (
	"time"

	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/sqllock/internal/doorbell"
)

const (
	// ringTime bounds the age of a hand-over that a waiter finds by polling. An older hand-over means that its
	// ring was lost.
	ringTime = 100 * time.Millisecond
	// lostRingTime is the time after a lost ring in which waiters poll as if there were no bell. The process that
	// hands locks over may lack the permission to ring, or run an older program.
	lostRingTime = 30 * time.Second
)

func init() {
	doorbell.Attach = func(driver any, open func(client string, wake func(owner string)) (bell, error)) error {
		d := driver.(*Driver)
		b, err := open(d.owners.Client, func(owner string) { d.wakeOwn(owner) })
		if err == nil {
			d.bell = b
		}
		return err
	}
}

// bell wakes waiters and alerts holders of other clients before their next poll. A ring may be lost, doubled
// or false: this costs time and never safety, because each waiter also polls and each holder renews. The
// receiver of a ring calls wakeOwn.
type bell = doorbell.Ringer

// wakeOwn wakes the waiter of this client with that owner. It reports whether there is one.
func (d *Driver) wakeOwn(owner string) (ours bool) {
	d.mu.Lock()
	c := d.waiting[owner]
	d.mu.Unlock()
	if c == nil {
		return false
	}
	c.rung.Store(true)
	select {
	case c.wake <- struct{}{}:
	default: // it is awake already
	}
	return true
}

// hasBell reports whether waiters may rely on the bell and poll only rarely, for lost rings.
func (d *Driver) hasBell() bool {
	lost := d.ringLost.Load()
	return d.bell != nil && (lost == nil || time.Since(*lost) > lostRingTime)
}

// noteHandOver records a lost ring if the hand-over that a waiter has read is older than ringTime.
func (d *Driver) noteHandOver(r row) {
	if d.bell != nil && driverkit.FromMicros(r.now-r.since) > ringTime {
		now := time.Now()
		d.ringLost.Store(&now)
	}
}
