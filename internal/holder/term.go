package holder

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// term is one grant of the service, from its start until it is released or lost.
// Its users in this process follow one another and share its deadline.
// Keeper.mu guards it.
type term struct {
	keeper     *Keeper
	lock       *lock
	grant      driver.Grant
	asked      time.Duration // the TTL that was asked for; grant.TTL may be more
	taken      time.Time     // when it was granted
	keptUntil  time.Time     // until when the service keeps it, with both clock readings
	trusted    time.Time     // the same, or the end of MaxHold
	endsAt     time.Time     // Margin before trusted; when that has been reached: trusted
	renewedAt  time.Time     // when it was granted, or the last renewal was sent
	grantedFor time.Duration // for how long it was granted then
	handOvers  int           // hand-overs so far
	user       user
	waiters    int   // how many wait in other processes, by the last renewal
	failed     error // the last renewal, without an ErrLost; nil: it did not fail

	atRisk      bool // by the last renewal
	riskTold    bool // the events have that the lease is at risk
	renewing    bool // a renewal is under way
	stopping    bool // Margin is reached: the contexts have ended, and the lock is kept until endsAt
	ended       bool
	checking    bool   // a goroutine asks whether the alerts are true
	alerts      int    // that ForceRelease took it away, and that no answer has refuted
	alertReason string // the last of them

	nextLook time.Time     // when the watchdog looks at it again
	dueAt    time.Time     // when the renewal that is under way was due; zero: none was
	index    int           // in the schedule
	idle     chan struct{} // closed when renewing ends; nil: no goroutine waits for that
}

// user is the present holder of a term in this process.
type user struct {
	Options
	ctx         context.Context // with the values of the caller's context
	kind        Kind
	place       Place
	token       int64
	owner       string
	since       time.Time
	countedFrom time.Time // start of MaxHold and MinHold
	isPart      bool      // has a part of a lease, and sends no events
	places      []*Hold   // of a joint lease, beside the lock of the term
	lead        *term     // the term with the joint lease that has this one too; nil: it is no part of one
	holds       []*Hold   // not released yet; more than one when nested
}

// beginLocked gives t to a at now.
func (t *term) beginLocked(a *Call, now time.Time) *Hold {
	owner, token := t.grant.Of(t.handOvers)
	t.riskTold = false
	t.user = user{
		Options: a.Options, ctx: a.Context, kind: a.Kind, place: a.Place, token: token, owner: owner, since: now, countedFrom: now, isPart: a.isPart,
	}
	t.setTrustLocked(t.keptUntil)
	t.planRenewalLocked()
	return t.addHoldLocked(a.Context, a.Outer)
}

// addHoldLocked adds a hold with the values of ctx, which has no end, to the present user.
func (t *term) addHoldLocked(ctx context.Context, outer *Hold) *Hold {
	h := &Hold{term: t, token: t.user.token, owner: t.user.owner, place: t.user.place, places: t.user.places, outer: outer}
	h.ctx, h.cancel = context.WithCancelCause(context.WithValue(ctx, holdKey{}, h))
	t.user.holds = append(t.user.holds, h)
	return h
}

// givenKeyLocked returns the key that the caller gave for the present user.
func (t *term) givenKeyLocked() string { return t.user.place.givenKey(t.lock.key) }

// timeLeftLocked returns for how long the user of t may still work at now.
func (t *term) timeLeftLocked(now time.Time) time.Duration { return pace.Until(t.endsAt, now) }

// deadlineLocked returns until when t and places can be trusted unless renewals move that.
func (t *term) deadlineLocked(places []*Hold) time.Time {
	first := t.trusted
	for _, place := range places {
		if d := place.term.trusted; d.Before(first) {
			first = d
		}
	}
	return first
}

// setTrustLocked sets the time until which the service keeps t. The user may have it for no longer
// than MaxHold.
func (t *term) setTrustLocked(until time.Time) {
	t.keptUntil, t.trusted = until, until
	if longest := t.user.MaxHold; longest > 0 && pace.Until(t.user.countedFrom.Add(longest), until) < 0 {
		t.trusted = t.user.countedFrom.Add(longest)
	}
	t.endsAt = t.trusted.Add(-t.user.Margin)
}

// extendTrustLocked trusts the service until then, unless it keeps t for longer already: no renewal
// shortens that.
func (t *term) extendTrustLocked(until, now time.Time) {
	if pace.Until(until, now) > pace.Until(t.keptUntil, now) {
		t.setTrustLocked(until)
	}
}

// recountLocked sets the bounds of the present user, which count from then on, for a lease that has all of its locks.
func (t *term) recountLocked(maxHold, minHold time.Duration, from time.Time) {
	t.user.MaxHold, t.user.MinHold, t.user.countedFrom = maxHold, minHold, from
	t.setTrustLocked(t.keptUntil)
	t.keeper.rescheduleLocked(t, t.renewAtLocked(t.nextLook))
}
