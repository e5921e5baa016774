package holder

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// This file ends leases, and records the reason:
//
//	         what has happened                           who notices it                                error
//	clock    no renewal came in time, or NoRenew         collectDue, renew.go; expireLocked here       ErrExpired
//	MaxHold  its end was reached                         collectDue, renew.go; expireLocked here       ErrMaxHold
//	service  it says that another has the lock, or none  applyRenewalLocked, renew.go                  ErrGone
//	force    a client's ForceRelease took it away        CheckAlert, verifyAlerts, EndForced; renew.go  ErrGone
//	place    a writer has lost one of its places         endHoldsLocked here, which ends the lead      the place's
//	Close    the client released it                      ReleaseAll, keeper.go                         ErrClosed
//	Detach   it was left to another process              Detach, hold.go                               ErrDetached
//	Release  its holder released it                      endHoldLocked, release.go                     no error
//
// A missing answer ends nothing: the lease lasts until the clock ends it. Its error then also matches the
// error of its last renewal. A call on an expired lease does not wait for collectDue: see checkLiveLocked and
// Release.
//
// All of these errors except ErrDetached match ErrLost. So do the errors of a lease that is used after Detach
// or Release. In the first two cases, and when a writer loses a place, the contexts end by Margin before the
// deadline. The lock then stays, without renewals, until the deadline or until the holder releases it.

// The reasons why a lease ended.
var (
	ErrExpired  = errors.New("lease has expired")
	ErrMaxHold  = errors.New("lease has lasted for its MaxHold")
	ErrGone     = errors.New("lease is gone from the service")
	ErrDetached = errors.New("lease was detached")
)

// lossError is the reason of a loss. It matches ErrLost, kind, and the errors that failed matches.
type lossError struct {
	kind   error
	text   string
	failed error // error of the last renewal; nil: it did not fail
}

func (e *lossError) Error() string {
	text := driver.ErrLost.Error() + ": " + e.text
	if e.failed != nil {
		text += "; the last renewal failed: " + e.failed.Error()
	}
	return text
}

func (e *lossError) Is(target error) bool { return target == driver.ErrLost || target == e.kind }

func (e *lossError) Unwrap() error { return e.failed }

var (
	errGone            error = &lossError{kind: ErrGone, text: "the service no longer has it (a force-release, a deleted entry, or lost data)"}
	errReleasedByClose       = fmt.Errorf("%w: %w and has released it", driver.ErrLost, driver.ErrClosed)
)

// forcedError returns the loss of a lease that ForceRelease took away for the reason why.
func forcedError(why string) error {
	text := "it was taken away by force"
	if why != "" {
		text += ": " + why
	}
	return &lossError{kind: ErrGone, text: text}
}

// maxReason bounds the reason of a ForceRelease, in bytes.
const maxReason = 200

// OneLine returns untrusted text in a form that is safe as a part of a message.
func OneLine(text string) string {
	text = strings.ToValidUTF8(text[:min(len(text), maxReason)], "")
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) { // also characters that change the direction of writing
			return ' '
		}
		return r
	}, text)
}

// goneErrorLocked returns the reason for the end of t after the service reported the loss. answer may contain
// a reason of the service.
func (t *term) goneErrorLocked(answer error) error {
	if lost, ok := errors.AsType[*driver.LostError](answer); ok {
		return &lossError{kind: ErrGone, text: lost.Reason}
	}
	if t.alerts > 0 {
		return forcedError(t.alertReason)
	}
	return errGone
}

// CheckAlert checks with the service whether it still has the grant of owner, after a message that somebody
// took it away for the reason why.
func (k *Keeper) CheckAlert(owner, why string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, s := range k.locks {
		if t := s.term; t != nil && t.grant.Owner == owner && !k.closing {
			t.alertReason = OneLine(why)
			t.alerts++
			if !t.checking {
				t.checking = true
				k.tasks.Go(func() { k.verifyAlerts(t) })
			}
			return
		}
	}
}

// verifyAlerts ends t if the service no longer has it. If another alert arrives meanwhile, it asks again: each
// node sends one, and the first may arrive before the other nodes have acted.
func (k *Keeper) verifyAlerts(t *term) {
	for {
		k.mu.Lock()
		alerts, grant := t.alerts, t.grant
		k.mu.Unlock()
		ctx, cancel := context.WithTimeout(k.alive, pace.CheckTime())
		err := k.drv.(driver.Alerter).Check(ctx, grant)
		cancel()
		if end, done := t.endCheck(alerts, err); done {
			k.carryOut(end)
			return
		}
	}
}

// endCheck applies err, the answer to a check that began after the given number of alerts. It returns false if
// more alerts have arrived since.
func (t *term) endCheck(alerts int, err error) (end followUp, done bool) {
	t.keeper.mu.Lock()
	defer t.keeper.mu.Unlock()
	switch {
	case errors.Is(err, driver.ErrLost):
		end = t.endLocked(t.goneErrorLocked(err), time.Now())
	case t.alerts > alerts && !t.ended:
		return end, false
	case err == nil:
		t.alerts = 0
	}
	t.checking = false
	return end, true
}

// EndForced ends the lease on key if this keeper has it with this token: a ForceRelease took it away for the
// reason why.
func (k *Keeper) EndForced(key string, token int64, why string) {
	k.carryOut(k.endForced(key, token, why))
}

func (k *Keeper) endForced(key string, token int64, why string) followUp {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.locks[key]
	if s == nil || s.term == nil {
		return followUp{}
	}
	if first := s.term.grant.Token; token < first || token >= first+int64(max(s.term.grant.Block, 1)) {
		return followUp{}
	}
	return s.term.endLocked(forcedError(why), time.Now())
}

// expiryErrorLocked returns the error for the end of t by the clock.
func (t *term) expiryErrorLocked() error {
	o := &t.user.Options
	kind, text := ErrExpired, "it was not renewed in time"
	switch {
	case t.trusted.Before(t.keptUntil):
		kind, text = ErrMaxHold, fmt.Sprintf("its MaxHold, %v, is over", o.MaxHold)
	case o.NoRenew:
		text = "its TTL is over, and nothing has renewed it"
	}
	if o.Margin > 0 {
		text += fmt.Sprintf(" (the holder stops %v before the end)", o.Margin)
	}
	e := &lossError{kind: kind, text: text}
	switch expired := errors.Is(kind, ErrExpired); {
	case expired && t.failed != nil:
		e.failed = t.failed
	case expired && !o.NoRenew:
		e.text += "; no renewal failed, so an answer is late, this process was paused, or its clock was set forward"
	}
	return e
}

// expireLocked ends the lease at now, because its time is over. It ends the lock too, unless the rest of
// Margin is left for the work to stop.
func (t *term) expireLocked(now time.Time) followUp { return t.stopLocked(t.expiryErrorLocked(), now) }

// stopLocked ends the lease with cause, and the lock too, unless the rest of Margin is left for the work to
// stop.
func (t *term) stopLocked(cause error, now time.Time) followUp {
	if t.ended || t.stopping || t.user.Margin == 0 || pace.Until(t.trusted, now) <= 0 {
		return t.endLocked(cause, now)
	}
	e := t.endHoldsLocked(cause, now)
	e.holds = slices.Clone(e.holds) // the holder still has to release them
	t.stopping, t.endsAt = true, t.trusted
	t.keeper.rescheduleLocked(t, t.endsAt)
	return e
}

// endLocked ends t in this process. The caller releases it, or leaves it to another process. cause nil means
// that its holder released it.
func (t *term) endLocked(cause error, now time.Time) followUp {
	if t.ended {
		return followUp{}
	}
	t.ended = true
	e := t.endHoldsLocked(cause, now)
	e.release = t
	if cause == nil || errors.Is(cause, errReleasedByClose) {
		e.keep = t.keepAfterReleaseLocked(now)
	}
	for _, h := range t.user.holds {
		h.ended = true
	}
	e.others = append(e.others, t.releasePlacesLocked(now)...)
	t.user.holds = nil
	t.keeper.watch.due.removeLocked(t)
	t.lock.term = nil
	t.lock.startInquiryLocked() // until the release is answered, because the next holder is unknown before
	return e
}

// endHoldsLocked ends the holds of t's present user, unless they ended at Margin already.
func (t *term) endHoldsLocked(cause error, now time.Time) followUp {
	if t.stopping {
		return followUp{}
	}
	if errors.Is(cause, driver.ErrLost) {
		for _, h := range t.user.holds {
			h.loss = cause
		}
	}
	e := followUp{holds: t.user.holds, cause: cause}
	if !t.user.isPart {
		e.event = Released{Context: t.user.ctx, Key: t.givenKeyLocked(), Owner: t.user.owner, Token: t.user.token, Held: now.Sub(t.user.since)}
	}
	if lead := t.user.lead; lead != nil && !lead.stopping && errors.Is(cause, driver.ErrLost) {
		e.others = append(e.others, lead.stopLocked(t.user.holds[0].WithKey(cause), now))
	}
	return e
}

// releasePlacesLocked releases the places that end with the present user of t.
func (t *term) releasePlacesLocked(now time.Time) (all []followUp) {
	for _, place := range t.user.places {
		if !place.ended && !place.term.ended {
			all = append(all, place.endHoldLocked(now))
		}
	}
	return all
}

// keepAfterReleaseLocked returns how long the lock stays after a release at now. If it stays at all, it stays
// at least for the shortest TTL: a lock that ends before the answer arrives would look like a loss.
func (t *term) keepAfterReleaseLocked(now time.Time) time.Duration {
	rest := t.user.countedFrom.Add(t.user.MinHold).Sub(now)
	if rest <= 0 {
		return 0
	}
	return max(rest, MinTTL, t.keeper.limits.MinTTL)
}
