package holdfast

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"log/slog"
	"math/bits"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/clock"
)

const (
	// lookEvery is the interval at which leases are compared with the wall clock: after a
	// suspend the monotonic clock, and with it every timer, is late.
	lookEvery = time.Second
	// maxBatch bounds the renewals in one call.
	maxBatch = 512
)

// unscheduled is term.index of a term that the watchdog does not know.
const unscheduled = -1

// schedule is a heap of terms by the time at which the watchdog looks at them.
// One timer serves all of them.
type schedule []*term

func (s schedule) Len() int           { return len(s) }
func (s schedule) Less(i, j int) bool { return s[i].nextLook.Before(s[j].nextLook) }
func (s schedule) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index, s[j].index = i, j
}

// Push implements heap.Interface.
func (s *schedule) Push(x any) {
	t := x.(*term)
	t.index = len(*s)
	*s = append(*s, t)
}

// Pop implements heap.Interface.
func (s *schedule) Pop() any {
	old := *s
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*s = old[:len(old)-1]
	t.index = unscheduled
	return t
}

func (s *schedule) remove(t *term) {
	if t.index != unscheduled {
		heap.Remove(s, t.index)
	}
}

// planRenewal sets when the watchdog looks at t next: RenewEvery after it was last
// granted or renewed, and at its end. A grant that came with little trust is renewed
// soon, and so is one that perhaps a bare majority of the nodes has given, yet not at once:
// many locks are held for less than that, and need no renewal. The caller holds mu.
func (t *term) planRenewal() {
	every, room := t.holder.opts.renewEvery(t.grant.TTL), t.grantedFor-t.holder.opts.Margin
	wait := min(every, room*3/4)
	if bare := t.renewedAt.Equal(t.taken) && t.client.limits.Nodes > 2; bare || room < (t.grant.TTL-t.holder.opts.Margin)/2 {
		wait = min(wait, room/32)
	}
	t.client.reschedule(t, t.renewAt(t.renewedAt.Add(wait)))
}

// usableTrust returns for how long t lasts without a renewal, at its best. The caller holds mu.
func (t *term) usableTrust() time.Duration {
	return max(min(t.grant.TTL, t.grantedFor)-t.holder.opts.Margin, 0)
}

// earlyBy returns by how much t may be renewed before its time. The caller holds mu.
func (t *term) earlyBy() time.Duration {
	return min(t.usableTrust(), 3*t.holder.opts.renewEvery(t.grant.TTL)) / 64
}

// renewAt returns want, or the end of t if no renewal is due before that.
func (t *term) renewAt(want time.Time) time.Time {
	if t.holder.opts.NoRenew || want.After(t.endsAt) {
		return t.endsAt
	}
	return want
}

// reschedule lets the watchdog look at t at next. The caller holds mu.
func (c *Client) reschedule(t *term, next time.Time) {
	if t.ended {
		return
	}
	t.nextLook = next
	if t.index == unscheduled {
		heap.Push(&c.terms, t)
	} else {
		heap.Fix(&c.terms, t.index)
	}
	if c.sleeps.IsZero() || next.Before(c.sleeps) {
		select {
		case c.nudge <- struct{}{}:
		default:
		}
	}
}

// watchLeases is the watchdog of all leases. It renews them in batches and ends leases
// that could not be renewed in time. It never waits for the service.
func (c *Client) watchLeases() {
	timer := time.NewTimer(lookEvery)
	defer timer.Stop()
	idle := false
	for {
		due, lost := c.collectDue(time.Now())
		c.carryOut(lost...)
		for _, group := range due {
			c.tasks.Go(func() { c.renewAll(group) })
		}
		var tick <-chan time.Time
		if wait, some := c.nextSleep(); some || !idle {
			idle = !some
			timer.Reset(wait)
			tick = timer.C
		} else {
			c.sleepUntilNudged()
		}
		select {
		case <-tick:
		case <-c.nudge:
			idle = false
		case <-c.alive.Done():
			return
		}
	}
}

// renewalGroup is the key by which terms are renewed together: the trust that is left, and the trust at the
// start, in powers of two.
type renewalGroup struct{ left, span int }

// collectDue takes the terms due for renewal from the schedule, and ends the terms whose time is over.
// Renewals come up to a small part of their time early, so that many leases are
// renewed together and the watchdog wakes seldom. They are grouped so that no
// renewal waits for the answers of one with a longer TTL, and none is hurried
// by one that is nearly over.
func (c *Client) collectDue(now time.Time) (due map[renewalGroup][]*term, lost []followUp) {
	c.mu.Lock()
	defer c.mu.Unlock()
	due = make(map[renewalGroup][]*term)
	if !c.sleeps.IsZero() && now.Sub(c.sleeps) > starvedAfter {
		c.starved = now
	}
	if now.Sub(c.looked) >= lookEvery {
		c.looked = now
		var late []*term
		for _, t := range c.terms { // a copy, as expire changes the schedule
			if t.timeLeft(now) <= 0 {
				late = append(late, t)
			}
		}
		for _, t := range late {
			if t.timeLeft(now) <= 0 { // the end of a writer's place has left the gate its Margin
				lost = append(lost, t.expire(now))
			}
		}
	}
	for len(c.terms) > 0 {
		t := c.terms[0]
		switch {
		case t.nextLook.After(now.Add(t.earlyBy())):
			return due, lost
		case t.timeLeft(now) <= 0:
			lost = append(lost, t.expire(now))
			continue
		case t.nextLook.Equal(t.endsAt):
			return due, lost // the end is near, and there is nothing to do before it
		}
		if !t.renewing && t.renewAt(now) != t.endsAt {
			group := renewalGroup{bits.Len64(uint64(t.timeLeft(now))), bits.Len64(uint64(t.usableTrust()))}
			due[group] = append(due[group], t)
			t.renewing, t.dueAt = true, t.nextLook
		}
		t.nextLook = t.endsAt
		heap.Fix(&c.terms, 0)
	}
	return due, lost
}

// nextSleep returns for how long the watchdog can sleep, and whether there is any lease.
func (c *Client) nextSleep() (wait time.Duration, some bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.sleeps = now.Add(lookEvery)
	if len(c.terms) > 0 && c.terms[0].nextLook.Before(c.sleeps) {
		c.sleeps = c.terms[0].nextLook
	}
	return c.sleeps.Sub(now), len(c.terms) > 0
}

const (
	// A process whose watchdog comes later than starvedAfter gets too little processor time; the client remembers
	// that for starvedFor.
	starvedAfter = 250 * time.Millisecond
	starvedFor   = 10 * time.Second
)

// isStarved reports whether this process got too little processor time a moment ago. Then a lease that begins with a
// second of trust, as after a hand-over, may end before its first renewal is answered: the client asks the driver to
// confirm it first, which takes a round trip and gives it all of its TTL.
func (c *Client) isStarved(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.starved.IsZero() && now.Sub(c.starved) < starvedFor
}

// sleepUntilNudged lets the watchdog sleep until the next lease.
func (c *Client) sleepUntilNudged() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.terms) == 0 {
		c.sleeps = time.Time{}
		return
	}
	select { // a lease has just come
	case c.nudge <- struct{}{}:
	default:
	}
}

// leastTrust returns the least trust left of due at now. The caller holds the client's mu.
func leastTrust(due []*term, now time.Time) time.Duration {
	left := due[0].timeLeft(now)
	for _, t := range due[1:] {
		left = min(left, t.timeLeft(now))
	}
	return left
}

// renewAll renews terms with about as much trust left, batch after batch: ten
// thousand at once would wait for one another until each has run out of time. A
// batch without an answer delays the next, but only so long that all are under
// way within a quarter of what is left.
func (c *Client) renewAll(due []*term) {
	c.mu.Lock()
	left := leastTrust(due, time.Now())
	c.mu.Unlock()
	patience := left / 4 / time.Duration(1+len(due)/maxBatch)
	late := time.NewTimer(patience)
	defer late.Stop()
	for b := range slices.Chunk(due, maxBatch) {
		done := make(chan struct{})
		c.tasks.Go(func() { defer close(done); c.renew(b) })
		late.Reset(patience)
		select {
		case <-done:
		case <-late.C:
		}
	}
}

// renew runs one batch of renewals, of terms that collectDue has marked.
func (c *Client) renew(due []*term) {
	grants := make([]driver.Grant, len(due))
	c.mu.Lock()
	start := time.Now()
	left := leastTrust(due, start)
	for i, t := range due {
		grants[i] = t.grant
	}
	c.mu.Unlock()
	// All get their outcome when the last has one: in time to try again.
	ctx, cancel := context.WithTimeout(c.alive, left*3/4)
	defer cancel()
	out := c.drv.Renew(ctx, grants)
	all, rounds := make([]followUp, len(out)), make([]round, len(out))
	c.mu.Lock()
	for i, r := range out {
		all[i], rounds[i] = c.applyRenewal(due[i], r, start)
	}
	c.reportRounds(rounds...)
	c.mu.Unlock()
	c.carryOut(all...)
}

// round is the outcome of one renewal, for the hooks and the log.
type round struct {
	lease *term        // the holder's: for a writer's place the gate; nil: no lease is concerned
	event RenewedEvent // without a key: none
	quiet bool         // a failure is not for the log
}

// renewalRound returns the outcome r of a renewal of t. A writer is told that it was renewed when all of its locks were: by the
// gate's rounds or, after a failure, by the last place to recover. The caller holds mu.
func (t *term) renewalRound(r driver.Renewal, recovered bool) round {
	lease := cmp.Or(t.holder.gate, t)
	if lease.holder.isPart || lease.ended || lease.stopping {
		return round{}
	}
	t.atRisk = r.AtRisk
	fails := slices.ContainsFunc(lease.holder.places, func(place *Lease) bool { return place.term.failed != nil })
	if r.Err == nil && (fails || lease.failed != nil || lease != t && !recovered) {
		return round{lease: lease}
	}
	err := r.Err
	if err != nil && lease != t {
		err = t.holder.holds[0].withKey(err)
	}
	return round{lease: lease, event: RenewedEvent{Key: lease.givenKey(), Owner: lease.holder.owner, Token: lease.holder.token, Waiters: lease.waiters, Err: err}}
}

// reportRounds tells the hooks and the log of rounds that have ended together, once for each lease: a writer's has several, of
// which one that failed counts. The caller holds mu, so that no event of a lease comes after its end.
func (c *Client) reportRounds(all ...round) {
	chosen := make(map[*term]int) // of writers
	for i, r := range all {
		if r.event.Key == "" || len(r.lease.holder.places) == 0 {
			continue
		}
		if j, ok := chosen[r.lease]; !ok || all[j].event.Err == nil && r.event.Err != nil {
			chosen[r.lease] = i
		}
	}
	for i, r := range all {
		if r.lease == nil || r.lease.ended || r.lease.stopping {
			continue
		}
		if j, several := chosen[r.lease]; r.event.Key != "" && (!several || i == j) {
			e := r.event
			e.Deadline = r.lease.deadline(r.lease.holder.places)
			if e.Err != nil && !r.quiet {
				c.events.log(slog.LevelWarn, "renewal failed; trying again", "key", r.lease.lock.key, "left", e.Left, "cause", e.Err)
			}
			c.events.renewed(e)
		}
		c.reportRisk(r.lease)
	}
}

// reportRisk tells the hooks where the redundancy of a lease has changed. The caller holds mu.
func (c *Client) reportRisk(t *term) {
	risk := t.atRisk || slices.ContainsFunc(t.holder.places, func(place *Lease) bool { return place.term.atRisk })
	if risk != t.riskTold {
		t.riskTold = risk
		c.events.atRisk(AtRiskEvent{Key: t.givenKey(), Owner: t.holder.owner, Token: t.holder.token, AtRisk: risk})
	}
}

// applyRenewal applies the outcome of a renewal of t that was started at start. A term
// that has ended meanwhile stays as it is: nothing is renewed after it was lost.
// The caller holds mu.
func (c *Client) applyRenewal(t *term, r driver.Renewal, start time.Time) (followUp, round) {
	t.renewing = false
	if t.idle != nil {
		close(t.idle)
		t.idle = nil
	}
	now := time.Now()
	left, late := t.timeLeft(now), time.Duration(0)
	if !t.dueAt.IsZero() {
		late, t.dueAt = max(clock.Elapsed(t.dueAt, now), 0), time.Time{}
	}
	failed := t.failed != nil
	if r.Err != nil && !errors.Is(r.Err, ErrLost) {
		t.failed = r.Err
	}
	switch {
	case t.ended, t.stopping:
		return followUp{}, round{}
	case left <= 0:
		return t.expire(now), round{}
	case errors.Is(r.Err, ErrLost):
		return t.end(t.goneError(r.Err), now), round{}
	case r.Err == nil:
		t.failed, t.waiters = nil, r.Waiters
		if !t.checking {
			t.alerts = 0
		}
		t.extendTrust(r.TrustedUntil, now)
		t.renewedAt, t.grantedFor = start, clock.Until(t.keptUntil, start)
		t.planRenewal()
	default:
		if !r.TrustedUntil.IsZero() { // by answers that came late
			t.extendTrust(r.TrustedUntil, now)
		}
		pause := min(max(t.usableTrust()/10, 10*time.Millisecond), time.Second)
		c.reschedule(t, t.renewAt(now.Add(pause)))
	}
	ended := t.renewalRound(r, failed)
	ended.event.Left, ended.event.Late = left, late
	return followUp{}, ended
}
