package zookeeper_test

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
)

// checkNotOutlived fails the test if the next holder got the lock while the old one still trusted it.
func (r *rig) checkNotOutlived(trusted time.Time, old driver.Grant) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), 3*longTTL)
	defer cancel()
	d := r.newDirectDriver()
	next, err := d.Acquire(ctx, driver.Request{Key: old.Key, TTL: longTTL})
	r.NoError(err)
	if early := time.Until(trusted); early > 0 {
		r.Errorf("the next holder came %v before the old one's trust ended", early)
	}
	if next.Token <= old.Token {
		r.Errorf("token %d after %d", next.Token, old.Token)
	}
	r.NoError(d.Release(r.WaitContext(), next, 0))
}

// A TTL counts from before the request was sent, and servers end a session less than a tick late.
func TestSlowAnswersShortenTrust(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		for phase := range 20 {
			d := r.newDriver()
			r.EachLinkOf(d, func(_ int, l *fixture.Link) { l.Slow = 900 * time.Millisecond })
			const ttl = 15 * time.Second
			g := r.AcquireGrant(d, "k", ttl)
			trusted := g.TrustedUntil
			if phase%2 == 0 {
				time.Sleep(time.Duration(phase) * 37 * time.Millisecond)
				n := d.Renew(r.WaitContext(), []driver.Grant{g})[0]
				r.NoError(n.Err)
				trusted = n.TrustedUntil
			}
			r.EachLinkOf(d, func(_ int, l *fixture.Link) { l.Hole = true })
			r.checkNotOutlived(trusted, g)
			r.EachLinkOf(d, func(_ int, l *fixture.Link) { l.Hole = false })
			r.NoError(d.Close())
			time.Sleep(2 * longTTL)
		}
	})
}

// The leader learns of another member's client only from that member's pings, and when the client resumes its
// session. So a renewal over an old connection counts from the start of that connection.
func TestFollowerAnswerDoesNotExtendTrust(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		d := r.newDriver()
		r.EachLinkOf(d, func(i int, l *fixture.Link) { l.Refuse = i > 0 })
		g := r.AcquireGrant(d, "k", 40*time.Second)
		time.Sleep(4800 * time.Millisecond) // below the age at which a renewal opens a new connection
		n := d.Renew(r.WaitContext(), []driver.Grant{g})[0]
		r.NoError(n.Err)
		r.fake.update(func() { r.fake.members[0].parted = true })
		r.checkNotOutlived(n.TrustedUntil, g)
	})
}

// This holds for any number of waiters.
func TestHandoverWakesNextWaiterOnly(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		d := r.newDriver()
		g := r.AcquireGrant(d, "k", longTTL)
		var waiting []driver.Driver
		var granted []<-chan driver.Grant
		for i := range 5 {
			w := r.newDriver()
			waiting = append(waiting, w)
			granted = append(granted, fixture.RunAsync(func() driver.Grant { return r.AcquireGrant(w, "k", longTTL) }))
			r.awaitNodes(r.newDirectDriver(), "k", i+2)
		}
		time.Sleep(time.Second)
		for i := range waiting {
			before := make([]map[string]int, len(waiting))
			for n, w := range waiting {
				before[n] = r.Counts(w, "ping", "srvr")
			}
			r.NoError(d.Release(r.WaitContext(), g, 0))
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
