package holder

import (
	"context"
	"slices"
	"time"
)

// A joint lease is one lease on several locks: on its lead, which is the lock of the key itself, and on places
// of the key. Only the lead sends events. The lease ends as soon as one of its locks is lost, and then its
// other locks are released.

// JoinParts turns h into the lease of a, which has acquired all of its parts. If h is the first part, the others
// become its places. If h is another part, the first is released. The lease has the token of the first part,
// and MaxHold and MinHold count from now. JoinParts returns false, and changes nothing, if a part is lost.
func (a *Call) JoinParts(h *Hold, parts []*Hold) bool {
	passed, ok := a.admitParts(h, parts, time.Now())
	a.keeper.carryOut(passed)
	return ok
}

func (a *Call) admitParts(h *Hold, parts []*Hold, now time.Time) (passed followUp, ok bool) {
	k, lead := a.keeper, parts[0]
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, part := range parts {
		if part.checkLiveLocked() != nil {
			return passed, false
		}
	}
	t := h.term
	t.user.isPart, t.user.since, t.user.token, h.token = false, now, lead.token, lead.token
	if h == lead {
		h.places, t.user.places = parts[1:], parts[1:]
		for _, place := range h.places {
			place.term.user.lead = t
		}
	} else {
		passed = lead.endHoldLocked(now)
	}
	t.restartLimitsLocked(a.MaxHold, a.MinHold, now)
	k.events.Acquired(Acquired{Context: a.Context, Key: a.Key, Owner: h.owner, Token: h.token, Waited: now.Sub(a.since), WaitReported: a.waitReported})
	return passed, true
}

// KeepPlace ends the joint lease h and returns a lease on the first of its places, with its token. MaxHold
// counts from when h began. choose gets the numbers of places and holds of h and returns the kind of the new
// lease; if it fails, nothing changes. KeepPlace blocks until the service has answered the release of the
// other locks, or ctx ends.
func (h *Hold) KeepPlace(ctx context.Context, choose func(places, holds int) (Kind, error)) (*Hold, error) {
	kept, ended, err := h.keepPlace(choose, time.Now())
	if err != nil {
		return nil, err
	}
	k := h.term.keeper
	ctx, cancel := k.releaseContext(ctx, h.term)
	defer cancel()
	ended.sendEvents(k)
	k.releaseOnService(ctx, ended) // a lock whose release fails expires with its TTL
	return kept, nil
}

func (h *Hold) keepPlace(choose func(places, holds int) (Kind, error), now time.Time) (kept *Hold, ended followUp, err error) {
	k, t := h.term.keeper, h.term
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := h.checkLiveLocked(); err != nil {
		return nil, ended, err
	}
	kind, err := choose(len(h.places), len(t.user.holds))
	if err != nil {
		return nil, ended, err
	}
	kept = h.places[0]
	u := &kept.term.user
	u.isPart, u.lead, u.kind, u.since, u.token, kept.token = false, nil, kind, now, t.user.token, t.user.token
	kept.term.restartLimitsLocked(t.user.MaxHold, u.MinHold, t.user.countedFrom)
	h.places, t.user.places = nil, t.user.places[1:] // from now on h covers only the other locks
	k.events.Acquired(Acquired{Context: u.ctx, Key: t.givenKeyLocked(), Owner: kept.owner, Token: kept.token})
	return kept, h.endHoldLocked(now), nil
}

// ChainHolds chains holds in their order: outer comes before the first, and each before the next. MaxHold and
// MinHold of the fresh ones count from now. It returns the last, or nil if one of them is lost.
func (k *Keeper) ChainHolds(outer *Hold, holds, fresh []*Hold, maxHold, minHold time.Duration) *Hold {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, h := range holds {
		if h.checkLiveLocked() != nil {
			return nil
		}
	}
	now := time.Now()
	for _, h := range fresh {
		h.term.restartLimitsLocked(maxHold, minHold, now)
	}
	last := outer
	for _, h := range holds {
		h.outer, h.together = last, true
		last = h
	}
	return last
}

// NewContext returns a context with the values of ctx that comes from h and from each hold before it in the
// chain.
func (h *Hold) NewContext(ctx context.Context) context.Context {
	return context.WithValue(Values{ctx}, holdKey{}, h)
}

// LaterHold returns the innermost live hold that outer comes from, whose key sorts at or after key, and whose
// holder another call may wait for while it holds key: a hold that was acquired together with others, or one
// of nested. It returns nil if there is none.
func (k *Keeper) LaterHold(key string, outer *Hold, nested []*Hold) *Hold {
	k.mu.Lock()
	defer k.mu.Unlock()
	for h := outer; h != nil; h = h.outer {
		if h.term.keeper != k || key > h.Key() || h.checkLiveLocked() != nil {
			continue
		}
		if h.together || slices.ContainsFunc(nested, func(n *Hold) bool { return n.term == h.term }) {
			return h
		}
	}
	return nil
}
