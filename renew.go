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
	// lookEvery is how often leases are compared with the wall clock: after a
	// suspend the monotonic clock, and with it every timer, is late.
	lookEvery = time.Second
	// batchMost is how many renewals travel in one call.
	batchMost = 512
)

// unscheduled is term.at of a term that the watchdog does not know.
const unscheduled = -1

// schedule is a heap of terms by the time at which the watchdog looks at them.
// One timer serves all of them.
type schedule []*term

func (s schedule) Len() int           { return len(s) }
func (s schedule) Less(i, j int) bool { return s[i].next.Before(s[j].next) }
func (s schedule) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].at, s[j].at = i, j
}

// Push implements heap.Interface.
func (s *schedule) Push(x any) {
	t := x.(*term)
	t.at = len(*s)
	*s = append(*s, t)
}

// Pop implements heap.Interface.
func (s *schedule) Pop() any {
	old := *s
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*s = old[:len(old)-1]
	t.at = unscheduled
	return t
}

func (s *schedule) remove(t *term) {
	if t.at != unscheduled {
		heap.Remove(s, t.at)
	}
}

// plan sets when the watchdog looks at t next: RenewEvery after it was last
// granted or renewed, and at its end. A grant that came with little trust is renewed
// soon, and so is one that perhaps a bare majority of the nodes has given, yet not at once:
// many locks are held for less than that, and need no renewal. The caller holds mu.
func (t *term) plan() {
	every, room := t.now.opts.renewEvery(t.grant.TTL), t.given-t.now.opts.Margin
	wait := min(every, room*3/4)
	if bare := t.start.Equal(t.taken) && t.client.limits.Nodes > 2; bare || room < (t.grant.TTL-t.now.opts.Margin)/2 {
		wait = min(wait, room/32)
	}
	t.client.reschedule(t, t.renewAt(t.start.Add(wait)))
}

// span is how long t can do without a renewal, at its best. The caller holds mu.
func (t *term) span() time.Duration {
	return max(min(t.grant.TTL, t.given)-t.now.opts.Margin, 0)
}

// early is by how much t may be renewed before its time. The caller holds mu.
func (t *term) early() time.Duration {
	return min(t.span(), 3*t.now.opts.renewEvery(t.grant.TTL)) / 64
}

// renewAt is want, or the end where no renewal is due before it.
func (t *term) renewAt(want time.Time) time.Time {
	if t.now.opts.NoRenew || want.After(t.ends) {
		return t.ends
	}
	return want
}

// reschedule lets the watchdog look at t at next. The caller holds mu.
func (c *Client) reschedule(t *term, next time.Time) {
	if t.over {
		return
	}
	t.next = next
	if t.at == unscheduled {
		heap.Push(&c.terms, t)
	} else {
		heap.Fix(&c.terms, t.at)
	}
	if c.sleeps.IsZero() || next.Before(c.sleeps) {
		select {
		case c.nudge <- struct{}{}:
		default:
		}
	}
}

// watch is the watchdog of all leases. It renews them in batches and ends leases
// that could not be renewed in time. It never waits for the service.
func (c *Client) watch() {
	timer := time.NewTimer(lookEvery)
	defer timer.Stop()
	idle := false
	for {
		due, lost := c.look(time.Now())
		c.carryOut(lost...)
		for _, group := range due {
			c.tasks.Go(func() { c.renewAll(group) })
		}
		var tick <-chan time.Time
		if wait, some := c.doze(); some || !idle {
			idle = !some
			timer.Reset(wait)
			tick = timer.C
		} else {
			c.sleepOn()
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

// alike is what terms that are renewed together have in common: the trust that is
// left, and the trust that they had, in powers of two.
type alike struct{ left, span int }

// look takes from the schedule what is due for renewal, and finds what is lost.
// Renewals come up to a small part of their time early, so that many leases are
// renewed together and the watchdog wakes seldom. They are grouped so that no
// renewal waits for the answers of one with a longer TTL, and none is hurried
// by one that is nearly over.
func (c *Client) look(now time.Time) (due map[alike][]*term, lost []followUp) {
	c.mu.Lock()
	defer c.mu.Unlock()
	due = make(map[alike][]*term)
	if !c.sleeps.IsZero() && now.Sub(c.sleeps) > starvedAfter {
		c.starved = now
	}
	if now.Sub(c.looked) >= lookEvery {
		c.looked = now
		var late []*term
		for _, t := range c.terms { // which expire changes
			if t.left(now) <= 0 {
				late = append(late, t)
			}
		}
		for _, t := range late {
			if t.left(now) <= 0 { // the end of a writer's place has left the gate its Margin
				lost = append(lost, t.expire(now))
			}
		}
	}
	for len(c.terms) > 0 {
		t := c.terms[0]
		switch {
		case t.next.After(now.Add(t.early())):
			return due, lost
		case t.left(now) <= 0:
			lost = append(lost, t.expire(now))
			continue
		case t.next.Equal(t.ends):
			return due, lost // the end is near, and there is nothing to do before it
		}
		if !t.renewing && t.renewAt(now) != t.ends {
			group := alike{bits.Len64(uint64(t.left(now))), bits.Len64(uint64(t.span()))}
			due[group] = append(due[group], t)
			t.renewing, t.due = true, t.next
		}
		t.next = t.ends
		heap.Fix(&c.terms, 0)
	}
	return due, lost
}

// doze says how long the watchdog can sleep, and whether there is any lease.
func (c *Client) doze() (wait time.Duration, some bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.sleeps = now.Add(lookEvery)
	if len(c.terms) > 0 && c.terms[0].next.Before(c.sleeps) {
		c.sleeps = c.terms[0].next
	}
	return c.sleeps.Sub(now), len(c.terms) > 0
}

const (
	// starvedAfter is how late the watchdog comes where its process gets too little time, and starvedFor how long the
	// client remembers that.
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

// sleepOn lets the watchdog sleep until the next lease.
func (c *Client) sleepOn() {
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

// least is the least trust left of due at now. The caller holds the client's mu.
func least(due []*term, now time.Time) time.Duration {
	left := due[0].left(now)
	for _, t := range due[1:] {
		left = min(left, t.left(now))
	}
	return left
}

// renewAll renews terms with about as much trust left, batch after batch: ten
// thousand at once would wait for one another until each has run out of time. A
// batch without an answer delays the next, but only so long that all are under
// way within a quarter of what is left.
func (c *Client) renewAll(due []*term) {
	c.mu.Lock()
	left := least(due, time.Now())
	c.mu.Unlock()
	patience := left / 4 / time.Duration(1+len(due)/batchMost)
	late := time.NewTimer(patience)
	defer late.Stop()
	for b := range slices.Chunk(due, batchMost) {
		done := make(chan struct{})
		c.tasks.Go(func() { defer close(done); c.renew(b) })
		late.Reset(patience)
		select {
		case <-done:
		case <-late.C:
		}
	}
}

// renew runs one batch of renewals, of terms that look has marked.
func (c *Client) renew(due []*term) {
	grants := make([]driver.Grant, len(due))
	c.mu.Lock()
	start := time.Now()
	left := least(due, start)
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
		all[i], rounds[i] = c.settle(due[i], r, start)
	}
	c.report(rounds...)
	c.mu.Unlock()
	c.carryOut(all...)
}

// round is the outcome of one renewal, for the hooks and the log.
type round struct {
	lease *term        // that of the holder: of a writer's place the gate; nil: there is nobody to tell of
	event RenewedEvent // without a key: there is none
	quiet bool         // a failure is not for the log
}

// round returns the outcome r of a renewal of t. A writer is told that it was renewed when all of its locks were: by the
// gate's rounds or, after a failure, by the last place to recover. The caller holds mu.
func (t *term) round(r driver.Renewal, recovered bool) round {
	lease := cmp.Or(t.now.whole, t)
	if lease.now.inner || lease.over || lease.stopping {
		return round{}
	}
	t.atRisk = r.AtRisk
	fails := slices.ContainsFunc(lease.now.rest, func(place *Lease) bool { return place.term.failed != nil })
	if r.Err == nil && (fails || lease.failed != nil || lease != t && !recovered) {
		return round{lease: lease}
	}
	err := r.Err
	if err != nil && lease != t {
		err = t.now.holds[0].named(err)
	}
	return round{lease: lease, event: RenewedEvent{Key: lease.givenKey(), Owner: lease.now.owner, Token: lease.now.token, Waiters: lease.waiters, Err: err}}
}

// report tells the hooks and the log of rounds that have ended together, once for each lease: a writer's has several, of
// which one that failed counts. The caller holds mu, so that no event of a lease comes after its end.
func (c *Client) report(all ...round) {
	chosen := make(map[*term]int) // of writers
	for i, r := range all {
		if r.event.Key == "" || len(r.lease.now.rest) == 0 {
			continue
		}
		if j, ok := chosen[r.lease]; !ok || all[j].event.Err == nil && r.event.Err != nil {
			chosen[r.lease] = i
		}
	}
	for i, r := range all {
		if r.lease == nil || r.lease.over || r.lease.stopping {
			continue
		}
		if j, several := chosen[r.lease]; r.event.Key != "" && (!several || i == j) {
			e := r.event
			e.Deadline = r.lease.deadline(r.lease.now.rest)
			if e.Err != nil && !r.quiet {
				c.events.write(slog.LevelWarn, "renewal failed; trying again", "key", r.lease.local.key, "left", e.Left, "cause", e.Err)
			}
			c.events.renewed(e)
		}
		c.reportRisk(r.lease)
	}
}

// reportRisk tells the hooks where the redundancy of a lease has changed. The caller holds mu.
func (c *Client) reportRisk(t *term) {
	risk := t.atRisk || slices.ContainsFunc(t.now.rest, func(place *Lease) bool { return place.term.atRisk })
	if risk != t.riskTold {
		t.riskTold = risk
		c.events.atRisk(AtRiskEvent{Key: t.givenKey(), Owner: t.now.owner, Token: t.now.token, AtRisk: risk})
	}
}

// settle applies the outcome of a renewal of t that was started at start. A term
// that has ended meanwhile stays as it is: nothing is renewed after it was lost.
// The caller holds mu.
func (c *Client) settle(t *term, r driver.Renewal, start time.Time) (followUp, round) {
	t.renewing = false
	if t.idle != nil {
		close(t.idle)
		t.idle = nil
	}
	now := time.Now()
	left, late := t.left(now), time.Duration(0)
	if !t.due.IsZero() {
		late, t.due = max(clock.Elapsed(t.due, now), 0), time.Time{}
	}
	failed := t.failed != nil
	if r.Err != nil && !errors.Is(r.Err, ErrLost) {
		t.failed = r.Err
	}
	switch {
	case t.over, t.stopping:
		return followUp{}, round{}
	case left <= 0:
		return t.expire(now), round{}
	case errors.Is(r.Err, ErrLost):
		return t.end(t.gone(r.Err), now), round{}
	case r.Err == nil:
		t.failed, t.waiters = nil, r.Waiters
		if !t.checking {
			t.alerts = 0
		}
		t.lengthen(r.TrustedUntil, now)
		t.start, t.given = start, clock.Until(t.keptUntil, start)
		t.plan()
	default:
		if !r.TrustedUntil.IsZero() { // by answers that came late
			t.lengthen(r.TrustedUntil, now)
		}
		pause := min(max(t.span()/10, 10*time.Millisecond), time.Second)
		c.reschedule(t, t.renewAt(now.Add(pause)))
	}
	ended := t.round(r, failed)
	ended.event.Left, ended.event.Late = left, late
	return followUp{}, ended
}
