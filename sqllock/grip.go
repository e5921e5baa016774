package sqllock

import (
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// grip has the client's knowledge of a lock that it holds.
type grip struct {
	stamp int64 // as last known
	alone bool  // nobody waited then
	doubt bool  // a statement that takes the lock for this owner may come late
	ear   *ear  // which is inside; nil: none is
	since time.Time
}

// maxPlaces bounds for how many keys a client remembers the number of places.
const maxPlaces = 4096

// notePlaces remembers how many places in the queue of a lock were given, if nobody has one, and otherwise forgets it.
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
		for other := range d.places { // any: it costs one statement to learn it again
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

// wasPassed reports whether the lock was handed to a waiter, and was not seen without waiters since.
func (d *Driver) wasPassed(key string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.passed == key
}

// knownPlaces returns how many places in the queue of a lock were given when nobody had one.
func (d *Driver) knownPlaces(key string) (places int64, known bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	places, known = d.places[key]
	return places, known
}

// noteGrip remembers what is known of the lock that a claim has got, and that its ear stays inside meanwhile.
func (d *Driver) noteGrip(c *claim, g grip) {
	g.doubt, g.since = c.doubt, time.Now()
	if c.ear.isInside() {
		g.ear, c.ear = c.ear, nil
	}
	d.warmRenewals()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.grips[c.owner] = g
}

// renewGrip remembers the stamp of a lock that was renewed, if this client has taken it.
func (d *Driver) renewGrip(owner string, stamp int64, alone bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if g, known := d.grips[owner]; known {
		g.stamp, g.alone = stamp, alone
		if alone && g.ear != nil { // nobody has waited for long: the next waiters find the connection free
			d.calls.Go(g.ear.leave)
			g.ear = nil
		}
		d.grips[owner] = g
	}
}

// reclaimEar has the longest holder inside a turnstile leave it, unless that is there only for a moment: a waiter needs its connection
// more. Whoever is let in then polls until the lock is released, which costs little beside such a lease.
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

// Detach implements driver.Adopter. It does not block: what the owner has sent and had no answer to finds the stamp of its grant, and
// changes nothing.
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
