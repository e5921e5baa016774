package sqllock

import (
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// heldLock holds what the client knows of a lock that it has.
type heldLock struct {
	stamp int64 // as last known
	alone bool  // it had no waiters when last seen
	doubt bool  // an acquire of this owner may be executed late
	ear   *ear  // ear inside the turnstile; nil: none
	since time.Time
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

// notePassed remembers that the lock was handed to a waiter.
func (d *Driver) notePassed(key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.passed = key
}

// wasPassed reports whether the lock was handed to a waiter and not seen without waiters since.
func (d *Driver) wasPassed(key string) bool {
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

// noteGrip remembers the held lock of a claim that has succeeded, with its ear if that is inside the turnstile.
func (d *Driver) noteGrip(c *claim, g heldLock) {
	g.doubt, g.since = c.doubt, time.Now()
	if c.ear.isInside() {
		g.ear, c.ear = c.ear, nil
	}
	d.warmRenewals()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.grips[c.owner] = g
}

// renewGrip updates the stamp of a renewed lock, if this client has taken it.
func (d *Driver) renewGrip(owner string, stamp int64, alone bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if g, known := d.grips[owner]; known {
		g.stamp, g.alone = stamp, alone
		if alone && g.ear != nil { // no waiter for long: free the connection for the next waiters
			d.calls.Go(g.ear.leave)
			g.ear = nil
		}
		d.grips[owner] = g
	}
}

// reclaimEar makes the longest holder inside a turnstile leave it, unless it came in a moment ago: a waiter
// needs the connection more. The next client that is let in polls until the lock is released, which costs
// little beside such a lease.
func (d *Driver) reclaimEar() {
	d.mu.Lock()
	defer d.mu.Unlock()
	oldest := ""
	for owner, own := range d.grips {
		if own.ear != nil && (oldest == "" || own.since.Before(d.grips[oldest].since)) {
			oldest = owner
		}
	}
	own := d.grips[oldest]
	if own.ear == nil || time.Since(own.since) < longInside {
		return
	}
	d.calls.Go(own.ear.leave)
	own.ear = nil
	d.grips[oldest] = own
}

// Detach implements driver.Adopter. It does not block: unanswered statements of the owner name the stamp of
// its grant, and so find nothing after the adoption.
func (d *Driver) Detach(g driver.Grant) {
	d.mu.Lock()
	own := d.grips[g.Owner]
	delete(d.grips, g.Owner)
	d.mu.Unlock()
	if own.ear != nil && d.calls.Enter() == nil {
		d.calls.Go(own.ear.leave)
		d.calls.Leave()
	}
}
