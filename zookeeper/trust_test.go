package zookeeper_test

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
)

// checkNotOutlived fails the test if the next holder came while the old one still trusted its lock.
func (r *rig) checkNotOutlived(trusted time.Time, old driver.Grant) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), 3*long)
	defer cancel()
	d := r.newDirectDriver()
	next, err := d.Acquire(ctx, driver.Request{Key: old.Key, TTL: long})
	r.Must(err)
	if early := time.Until(trusted); early > 0 {
		r.Errorf("the next holder came %v before the old one's trust ended", early)
	}
	if next.Token <= old.Token {
		r.Errorf("token %d after %d", next.Token, old.Token)
	}
	r.Must(d.Release(r.Within(), next, 0))
}

// TestSlowAnswersShortenTrust: a TTL counts from before the request was sent, and servers end a session less than a tick late.
func TestSlowAnswersShortenTrust(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		for phase := range 20 {
			d := r.newDriver()
			r.On(d, func(_ int, l *fixture.Link) { l.Slow = 900 * time.Millisecond })
			const ttl = 15 * time.Second
			g := r.Grant(d, "k", ttl)
			trusted := g.TrustedUntil
			if phase%2 == 0 {
				time.Sleep(time.Duration(phase) * 37 * time.Millisecond)
				n := d.Renew(r.Within(), []driver.Grant{g})[0]
				r.Must(n.Err)
				trusted = n.TrustedUntil
			}
			r.On(d, func(_ int, l *fixture.Link) { l.Hole = true })
			r.checkNotOutlived(trusted, g)
			r.On(d, func(_ int, l *fixture.Link) { l.Hole = false })
			r.Must(d.Close())
			time.Sleep(2 * long)
		}
	})
}

// TestFollowersAnswerProvesNoTrust: the member that leads hears of a client of another member with that member's pings alone, and when the
// client comes with its session. So a renewal over a connection of some age counts from the beginning of that connection.
func TestFollowersAnswerProvesNoTrust(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		d := r.newDriver()
		r.On(d, func(i int, l *fixture.Link) { l.Refuse = i > 0 })
		g := r.Grant(d, "k", 40*time.Second)
		time.Sleep(4800 * time.Millisecond) // less than the age at which a renewal opens a connection anew
		n := d.Renew(r.Within(), []driver.Grant{g})[0]
		r.Must(n.Err)
		r.fake.update(func() { r.fake.members[0].parted = true })
		r.checkNotOutlived(n.TrustedUntil, g)
	})
}

// TestHandoverWakesNextWaiterOnly, however many wait behind it.
func TestHandoverWakesNextWaiterOnly(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		d := r.newDriver()
		g := r.Grant(d, "k", long)
		var waiting []driver.Driver
		var granted []<-chan driver.Grant
		for i := range 5 {
			w := r.newDriver()
			waiting = append(waiting, w)
			granted = append(granted, fixture.Later(func() driver.Grant { return r.Grant(w, "k", long) }))
			r.awaitNodes(r.newDirectDriver(), "k", i+2)
		}
		time.Sleep(time.Second)
		for i := range waiting {
			before := make([]map[string]int, len(waiting))
			for n, w := range waiting {
				before[n] = r.Counts(w, "ping", "srvr")
			}
			r.Must(d.Release(r.Within(), g, 0))
			d, g = waiting[i], <-granted[i]
			time.Sleep(time.Second)
			for n := i + 1; n < len(waiting); n++ {
				for kind, count := range r.Counts(waiting[n], "ping", "srvr") {
					if count != before[n][kind] {
						t.Errorf("hand-over to waiter %d: waiter %d has sent %d times %s", i, n, count-before[n][kind], kind)
					}
				}
			}
		}
	})
}
