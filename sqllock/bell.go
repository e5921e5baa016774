package sqllock

import (
	"time"

	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/sqllock/internal/doorbell"
)

const (
	// ringTime bounds the age of a hand-over that a waiter finds by itself. The ring for an older one counts as lost.
	ringTime = 100 * time.Millisecond
	// deafTime is the time after a lost ring in which waiters poll as if there were no bell: the process that hands the lock over may
	// run under another user, or an older program, and be unable to ring.
	deafTime = 30 * time.Second
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

// bell reaches the waiters and holders of other clients sooner than they would look at their lock. What it sends may be lost, doubled or
// false, which costs time and never safety: each waiter polls besides, and a holder renews. Whoever receives a ring calls wakeOwn.
type bell = doorbell.Ringer

// wakeOwn wakes the waiter of this client with that owner, if there is one.
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
	default: // it is awake
	}
	return true
}

// hasBell reports whether waiters may rely on the bell, and look only now and then in case that a ring was lost.
func (d *Driver) hasBell() bool {
	lost := d.ringLost.Load()
	return d.bell != nil && (lost == nil || time.Since(*lost) > deafTime)
}

// noteHandOver notes a ring that was lost, where a waiter confirms what was handed to it as it was read.
func (d *Driver) noteHandOver(r row) {
	if d.bell != nil && driverkit.Micros(r.now-r.since) > ringTime {
		now := time.Now()
		d.ringLost.Store(&now)
	}
}
