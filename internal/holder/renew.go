package holder

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
	"github.com/holdfast-go/holdfast/internal/pace"
)

// maxBatch bounds the grants in one call of Renew.
const maxBatch = 512

// planRenewalLocked sets the time at which the watchdog checks t next: RenewEvery after the last grant or
// renewal, and at the end of t. A grant that began with little trust is renewed soon. So is a grant that may
// have only a bare majority of the nodes, but not at once: many locks are released before that and need no
// renewal.
func (t *term) planRenewalLocked() {
	every, room := t.user.renewEvery(t.grant.TTL), t.grantedFor-t.user.Margin
	wait := min(every, room*3/4)
	if bare := t.renewedAt.Equal(t.taken) && t.keeper.limits.Nodes > 2; bare || room < (t.grant.TTL-t.user.Margin)/2 {
		wait = min(wait, room/32)
	}
	t.keeper.rescheduleLocked(t, t.renewAtLocked(t.renewedAt.Add(wait)))
}

// usableTrustLocked returns the longest time that t can last without a renewal.
func (t *term) usableTrustLocked() time.Duration {
	return max(min(t.grant.TTL, t.grantedFor)-t.user.Margin, 0)
}

// maxEarlyLocked returns the time by which the renewal of t may come early.
func (t *term) maxEarlyLocked() time.Duration {
	return min(t.usableTrustLocked(), 3*t.user.renewEvery(t.grant.TTL)) / 64
}

// renewAtLocked returns want, or the end of t if no renewal is due before it.
func (t *term) renewAtLocked(want time.Time) time.Time {
	if t.user.NoRenew || want.After(t.endsAt) {
		return t.endsAt
	}
	return want
}

// watchLeases is the watchdog of all leases. It renews them in batches, and ends leases that were not renewed
// in time. It never waits for the service.
func (k *Keeper) watchLeases() {
	timer := time.NewTimer(lookEvery)
	defer timer.Stop()
	idle := false
	for {
		due, lost := k.collectDue(time.Now())
		k.carryOut(lost...)
		for _, group := range due {
			k.tasks.Go(func() { k.renewAll(group) })
		}
		var tick <-chan time.Time
		wait, some := k.planSleep(idle)
		if some || !idle {
			timer.Reset(wait)
			tick = timer.C
		}
		idle = !some
		select {
		case <-tick:
		case <-k.watch.nudge:
			idle = false
		case <-k.alive.Done():
			return
		}
	}
}

// renewalGroup is the key of terms that are renewed together: the trust that is left, and the trust at the
// start, rounded to powers of two.
type renewalGroup struct{ left, span int }

// collectDue removes the terms that are due for renewal from the schedule, and ends the expired ones. Renewals
// may come a small part of their interval early, so that many leases are renewed together and the watchdog
// wakes seldom. Leases with similar remaining trust form a group, so that no renewal waits for a lease with a
// longer TTL, or gets less time because of a lease that is nearly over.
func (k *Keeper) collectDue(now time.Time) (due map[renewalGroup][]*term, lost []followUp) {
	k.mu.Lock()
	defer k.mu.Unlock()
	due = make(map[renewalGroup][]*term)
	if k.watch.beginCheckLocked(now) {
		var late []*term
		for _, t := range k.watch.due { // a copy, because expireLocked changes the schedule
			if t.timeLeftLocked(now) <= 0 {
				late = append(late, t)
			}
		}
		for _, t := range late {
			if t.timeLeftLocked(now) <= 0 { // at the end of a writer's place, the gate keeps its Margin
				lost = append(lost, t.expireLocked(now))
			}
		}
	}
	for len(k.watch.due) > 0 {
		t := k.watch.due[0]
		switch {
		case t.nextLook.After(now.Add(t.maxEarlyLocked())):
			return due, lost
		case t.timeLeftLocked(now) <= 0:
			lost = append(lost, t.expireLocked(now))
			continue
		case t.nextLook.Equal(t.endsAt):
			return due, lost // the end is near, and there is nothing to do before it
		}
		if !t.renewing && t.renewAtLocked(now) != t.endsAt {
			group := renewalGroup{bits.Len64(uint64(t.timeLeftLocked(now))), bits.Len64(uint64(t.usableTrustLocked()))}
			due[group] = append(due[group], t)
			t.renewing, t.dueAt = true, t.nextLook
		}
		t.nextLook = t.endsAt
		heap.Fix(&k.watch.due, 0)
	}
	return due, lost
}

// planSleep sets the time until which the watchdog sleeps, as watchdog.planSleepLocked does.
func (k *Keeper) planSleep(idle bool) (wait time.Duration, some bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.watch.planSleepLocked(time.Now(), idle)
}

// isStarved reports whether this process recently got too little processor time. A lease that begins with a
// second of trust, as after a hand-over, could then end before its first renewal is answered. So the keeper
// asks the driver to confirm such a lease first, which takes a round trip and gives it the whole TTL.
func (k *Keeper) isStarved(now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.watch.isStarvedLocked(now)
}

// rescheduleLocked sets the time at which the watchdog checks t next, unless t has ended.
func (k *Keeper) rescheduleLocked(t *term, next time.Time) {
	if !t.ended {
		k.watch.scheduleLocked(t, next)
	}
}

// minTrustLocked returns the shortest trust that remains at now among the terms in due.
func minTrustLocked(due []*term, now time.Time) time.Duration {
	left := due[0].timeLeftLocked(now)
	for _, t := range due[1:] {
		left = min(left, t.timeLeftLocked(now))
	}
	return left
}

// renewAll renews terms with similar remaining trust, batch after batch: ten thousand at once would wait for
// one another until all time is used up. A batch without an answer delays the next, but only so long that all
// batches are sent within a quarter of the remaining trust.
func (k *Keeper) renewAll(due []*term) {
	k.mu.Lock()
	left := minTrustLocked(due, time.Now())
	k.mu.Unlock()
	patience := left / 4 / time.Duration(1+len(due)/maxBatch)
	late := time.NewTimer(patience)
	defer late.Stop()
	for b := range slices.Chunk(due, maxBatch) {
		done := make(chan struct{})
		k.tasks.Go(func() { defer close(done); k.renewBatch(b) })
		late.Reset(patience)
		select {
		case <-done:
		case <-late.C:
		}
	}
}

// renewBatch renews one batch of terms that collectDue has marked.
func (k *Keeper) renewBatch(due []*term) {
	grants := make([]driver.Grant, len(due))
	k.mu.Lock()
	start := time.Now()
	left := minTrustLocked(due, start)
	for i, t := range due {
		grants[i] = t.grant
	}
	k.mu.Unlock()
	// All terms get their outcome when the last one has its own, early enough to try again.
	ctx, cancel := context.WithTimeout(k.alive, left*3/4)
	defer cancel()
	out := k.drv.Renew(ctx, grants)
	all, rounds := make([]followUp, len(out)), make([]renewalRound, len(out))
	k.mu.Lock()
	for i, r := range out {
		all[i], rounds[i] = k.applyRenewalLocked(due[i], r, start)
	}
	k.reportRoundsLocked(rounds...)
	k.mu.Unlock()
	k.carryOut(all...)
}

// renewalRound is the outcome of one renewal, for the hooks and the log.
type renewalRound struct {
	lease *term   // lease of the holder: for a writer's place, the gate; nil: no lease
	event Renewed // without a key: no event
	quiet bool    // a failure is not logged
}

// renewalRoundLocked returns the round for the outcome r of a renewal of t. A writer's lease counts as renewed
// when all of its locks are: by the rounds of the gate or, after a failure, by the last place to recover.
func (t *term) renewalRoundLocked(r driver.Renewal, recovered bool) renewalRound {
	lease := cmp.Or(t.user.lead, t)
	if lease.user.isPart || lease.ended || lease.stopping {
		return renewalRound{}
	}
	t.atRisk = r.AtRisk
	fails := slices.ContainsFunc(lease.user.places, func(place *Hold) bool { return place.term.failed != nil })
	if r.Err == nil && (fails || lease.failed != nil || lease != t && !recovered) {
		return renewalRound{lease: lease}
	}
	err := r.Err
	if err != nil && lease != t {
		err = t.user.holds[0].WithKey(err)
	}
	return renewalRound{lease: lease, event: Renewed{
		Key: lease.givenKeyLocked(), Owner: lease.user.owner, Token: lease.user.token, Waiters: lease.waiters, Err: err,
	}}
}

// reportRoundsLocked sends the events and log lines of rounds that ended together, one for each lease. Of
// several rounds of a writer, a failed one counts. The caller holds mu, so that no event of a lease comes
// after its end.
func (k *Keeper) reportRoundsLocked(all ...renewalRound) {
	chosen := make(map[*term]int) // of writers
	for i, r := range all {
		if r.event.Key == "" || len(r.lease.user.places) == 0 {
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
			e.Deadline = r.lease.deadlineLocked(r.lease.user.places)
			switch {
			case e.Err == nil:
				r.lease.warned = false
			case !r.quiet: // an outage fails many renewals of each lease with the same cause: one warning is enough
				level := slog.LevelWarn
				if r.lease.warned {
					level = slog.LevelDebug
				}
				r.lease.warned = true
				k.events.Log(level, "renewal failed; trying again", "key", r.lease.lock.key, "left", e.Remaining, "cause", e.Err)
			}
			k.events.Renewed(e)
		}
		k.reportRiskLocked(r.lease)
	}
}

// reportRiskLocked sends an event if the redundancy of a lease has changed.
func (k *Keeper) reportRiskLocked(t *term) {
	risk := t.atRisk || slices.ContainsFunc(t.user.places, func(place *Hold) bool { return place.term.atRisk })
	if risk != t.riskReported {
		t.riskReported = risk
		k.events.AtRisk(AtRisk{Key: t.givenKeyLocked(), Owner: t.user.owner, Token: t.user.token, AtRisk: risk})
	}
}

// applyRenewalLocked applies the outcome of a renewal of t that began at start. A term that has ended
// meanwhile stays ended.
func (k *Keeper) applyRenewalLocked(t *term, r driver.Renewal, start time.Time) (followUp, renewalRound) {
	t.renewing = false
	if t.idle != nil {
		close(t.idle)
		t.idle = nil
	}
	now := time.Now()
	left, late := t.timeLeftLocked(now), time.Duration(0)
	if !t.dueAt.IsZero() {
		late, t.dueAt = max(pace.Elapsed(t.dueAt, now), 0), time.Time{}
	}
	failed := t.failed != nil
	if r.Err != nil && !errors.Is(r.Err, driver.ErrLost) {
		t.failed = r.Err
	}
	switch {
	case t.ended, t.stopping:
		return followUp{}, renewalRound{}
	case left <= 0:
		return t.expireLocked(now), renewalRound{}
	case errors.Is(r.Err, driver.ErrLost):
		return t.endLocked(t.goneErrorLocked(r.Err), now), renewalRound{}
	case r.Err == nil:
		t.failed, t.waiters = nil, r.Waiters
		if !t.checking {
			t.alerts = 0
		}
		t.extendTrustLocked(r.TrustedUntil, now)
		t.renewedAt, t.grantedFor = start, pace.Until(t.keptUntil, start)
		t.planRenewalLocked()
	default:
		if !r.TrustedUntil.IsZero() { // late answers have extended it
			t.extendTrustLocked(r.TrustedUntil, now)
		}
		pause := min(max(t.usableTrustLocked()/10, 10*time.Millisecond), time.Second)
		k.rescheduleLocked(t, t.renewAtLocked(now.Add(pause)))
	}
	ended := t.renewalRoundLocked(r, failed)
	ended.event.Remaining, ended.event.Lag = left, late
	return followUp{}, ended
}
