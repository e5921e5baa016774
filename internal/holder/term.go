package holder

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// term is one grant of the service, from its start until it is released or lost. Its users in this process
// follow one another and share its deadline. Keeper.mu guards it.
type term struct {
	keeper     *Keeper
	lock       *lock
	grant      driver.Grant
	asked      time.Duration // requested TTL; grant.TTL may be longer
	taken      time.Time     // time of the grant
	keptUntil  time.Time     // time until which the service keeps it, with both clock readings
	trusted    time.Time     // keptUntil, or the end of MaxHold if that is earlier
	endsAt     time.Time     // Margin before trusted; from then on: trusted
	renewedAt  time.Time     // time of the grant, or when the last renewal was sent
	grantedFor time.Duration // trust that the grant or the last renewal gave
	handOvers  int           // number of hand-overs so far
	user       holderInProcess
	waiters    int   // waiters in other processes, according to the last renewal
	failed     error // error of the last renewal, except ErrLost; nil: it did not fail

	atRisk       bool // according to the last renewal
	riskReported bool // an event has reported that the lease is at risk
	renewing     bool // a renewal is in progress
	stopping     bool // Margin is reached: the contexts have ended, and the lock is kept until endsAt
	ended        bool
	warned       bool   // a warning has reported the failed renewals since the last good one
	checking     bool   // a goroutine asks whether the alerts are true
	alerts       int    // number of alerts that no answer has disproved
	alertReason  string // reason of the last alert

	nextLook time.Time     // time at which the watchdog checks it next
	dueAt    time.Time     // time at which the renewal in progress was due; zero: not by the clock
	index    int           // position in the schedule
	idle     chan struct{} // closed when renewing ends; nil: no goroutine waits for that
}

// holderInProcess is the present holder of a term in this process.
type holderInProcess struct {
	Options
	ctx         context.Context // with the values of the caller's context
	kind        Kind
	place       Place
	token       int64
	owner       string
	since       time.Time
	countedFrom time.Time // start of MaxHold and MinHold
	isPart      bool      // holds a part of a lease, and sends no events
	places      []*Hold   // of a joint lease, in addition to the lock of the term
	lead        *term     // the term of the joint lease that this one belongs to; nil: none
	holds       []*Hold   // holds that are not released yet; more than one when nested
}

// beginLocked gives t to a at now.
func (t *term) beginLocked(a *Call, now time.Time) *Hold {
	owner, token := t.grant.NthHolder(t.handOvers)
	t.riskReported = false
	t.user = holderInProcess{
		Options: a.Options, ctx: a.Context, kind: a.Kind, place: a.Place, token: token, owner: owner, since: now, countedFrom: now, isPart: a.isPart,
	}
	t.setTrustLocked(t.keptUntil)
	t.planRenewalLocked()
	return t.addHoldLocked(a.Context, a.Outer)
}

// addHoldLocked adds a hold to the present user. ctx has the values of the caller's context, and no end.
func (t *term) addHoldLocked(ctx context.Context, outer *Hold) *Hold {
	h := &Hold{term: t, token: t.user.token, owner: t.user.owner, place: t.user.place, places: t.user.places, outer: outer}
	h.ctx, h.cancel = context.WithCancelCause(context.WithValue(ctx, holdKey{}, h))
	t.user.holds = append(t.user.holds, h)
	return h
}

// givenKeyLocked returns the key that the caller of the present user gave.
func (t *term) givenKeyLocked() string { return t.user.place.givenKey(t.lock.key) }

// timeLeftLocked returns the time that the user of t may still work at now.
func (t *term) timeLeftLocked(now time.Time) time.Duration { return pace.Until(t.endsAt, now) }

// deadlineLocked returns the time at which t and places end unless renewals move it.
func (t *term) deadlineLocked(places []*Hold) time.Time {
	first := t.trusted
	for _, place := range places {
		if d := place.term.trusted; d.Before(first) {
			first = d
		}
	}
	return first
}

// setTrustLocked sets the time until which the service keeps t. MaxHold may end the lease earlier.
func (t *term) setTrustLocked(until time.Time) {
	t.keptUntil, t.trusted = until, until
	if longest := t.user.MaxHold; longest > 0 && pace.Until(t.user.countedFrom.Add(longest), until) < 0 {
		t.trusted = t.user.countedFrom.Add(longest)
	}
	t.endsAt = t.trusted.Add(-t.user.Margin)
}

// extendTrustLocked extends the trust in t to until. A renewal never shortens it.
func (t *term) extendTrustLocked(until, now time.Time) {
	if pace.Until(until, now) > pace.Until(t.keptUntil, now) {
		t.setTrustLocked(until)
	}
}

// restartLimitsLocked sets MaxHold and MinHold of the present user, and counts them from the given time, for a lease
// that has all of its locks.
func (t *term) restartLimitsLocked(maxHold, minHold time.Duration, from time.Time) {
	t.user.MaxHold, t.user.MinHold, t.user.countedFrom = maxHold, minHold, from
	t.setTrustLocked(t.keptUntil)
	t.keeper.rescheduleLocked(t, t.renewAtLocked(t.nextLook))
}
