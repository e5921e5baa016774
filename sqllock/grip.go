package sqllock

import (
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// heldLock holds the client's record of a lock that it has.
type heldLock struct {
	stamp    int64     // as last known
	alone    bool      // it had no waiters when last seen
	doubt    bool      // an acquire of this owner may be executed late
	waitConn *waitConn // wait connection inside the turnstile; nil: none
	since    time.Time
}

// maxPlaces bounds the number of keys for which a client remembers the number of places.
const maxPlaces = 4096

// notePlaces remembers how many places a lock's queue has given, if the queue is empty. Otherwise it forgets
// the number.
func (d *Driver) notePlaces(key string, places int64, nobody bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !nobody {
		delete(d.places, key)
		return
	}
	if d.passed == key {
		d.passed = ""
	}
	if _, known := d.places[key]; !known && len(d.places) >= maxPlaces {
		for other := range d.places { // any key: learning it again costs one statement
			delete(d.places, other)
			break
		}
	}
	d.places[key] = places
}

// recordHandOver remembers that the lock was handed to a waiter.
func (d *Driver) recordHandOver(key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.passed = key
}

// wasHandedOver reports whether the lock was handed to a waiter and not seen without waiters since then.
func (d *Driver) wasHandedOver(key string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.passed == key
}

// knownPlaces returns the number of places that a lock's queue had given when it was last seen empty.
func (d *Driver) knownPlaces(key string) (places int64, known bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	places, known = d.places[key]
	return places, known
}

// noteHeldLock remembers the held lock of a claim that has succeeded, with its wait connection if that is
// inside the turnstile.
func (d *Driver) noteHeldLock(c *claim, g heldLock) {
	g.doubt, g.since = c.doubt, time.Now()
	if c.waitConn.isInside() {
		g.waitConn, c.waitConn = c.waitConn, nil
	}
	d.warmRenewals()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.heldLocks[c.owner] = g
}

// updateHeldLock updates the stamp of a renewed lock, if this client has taken it.
func (d *Driver) updateHeldLock(owner string, stamp int64, alone bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if g, known := d.heldLocks[owner]; known {
		g.stamp, g.alone = stamp, alone
		if alone && g.waitConn != nil { // no waiter for long: free the connection for the next waiters
			d.calls.Go(g.waitConn.leave)
			g.waitConn = nil
		}
		d.heldLocks[owner] = g
	}
}

// reclaimWaitConn takes the wait connection from the client's longest holder inside a turnstile, because another
// waiter needs it more. It spares a holder that has just entered. The next client inside polls until the lock is
// released, which costs little compared with such a lease.
func (d *Driver) reclaimWaitConn() {
	d.mu.Lock()
	defer d.mu.Unlock()
	oldest := ""
	for owner, own := range d.heldLocks {
		if own.waitConn != nil && (oldest == "" || own.since.Before(d.heldLocks[oldest].since)) {
			oldest = owner
		}
	}
	own := d.heldLocks[oldest]
	if own.waitConn == nil || time.Since(own.since) < longInside {
		return
	}
	d.calls.Go(own.waitConn.leave)
	own.waitConn = nil
	d.heldLocks[oldest] = own
}

// Detach implements driver.Adopter. It does not block: unanswered statements of the owner name the stamp of
// its grant, and so find nothing after the adoption.
func (d *Driver) Detach(g driver.Grant) {
	d.mu.Lock()
	own := d.heldLocks[g.Owner]
	delete(d.heldLocks, g.Owner)
	d.mu.Unlock()
	if own.waitConn != nil && d.calls.Enter() == nil {
		d.calls.Go(own.waitConn.leave)
		d.calls.Leave()
	}
}
