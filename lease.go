package holdfast

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/clock"
)

// term is one grant of the service, from its start until it is released or lost.
// Its holders in this process follow one another and share its deadline.
// Client.mu guards it.
type term struct {
	client     *Client
	lock       *localLock
	grant      driver.Grant
	asked      time.Duration // the TTL that was asked for; grant.TTL may be more
	taken      time.Time     // when it was granted
	keptUntil  time.Time     // until when the service keeps it, with both clock readings
	trusted    time.Time     // the same, or the end of MaxHold
	endsAt     time.Time     // Margin before trusted; when that has been reached: trusted
	renewedAt  time.Time     // when it was granted, or the last renewal was sent
	grantedFor time.Duration // for how long it was granted then
	handOvers  int           // hand-overs so far
	holder     holder
	waiters    int   // how many wait in other processes, as the last renewal said
	failed     error // the last renewal, without an ErrLost; nil: it did not fail

	atRisk      bool // the last renewal said so
	riskTold    bool // the hooks were told that the lease is at risk
	renewing    bool // a renewal is under way
	stopping    bool // Margin is reached: the contexts have ended, and the lock is kept until ends
	ended       bool
	checking    bool   // a goroutine asks whether the alerts are true
	alerts      int    // that ForceRelease took it away, and that no answer has refuted
	alertReason string // the last of them

	nextLook time.Time     // when the watchdog looks at it again
	dueAt    time.Time     // when the renewal that is under way was due; zero: none was
	index    int           // place in the schedule
	idle     chan struct{} // closed when renewing ends; nil: no goroutine waits for that
}

// holder is the present user of a term in this process.
type holder struct {
	ctx         context.Context // with the values of the context of Acquire
	opts        options
	token       Token
	owner       string
	since       time.Time
	countedFrom time.Time // start of MaxHold and MinHold
	slot        slotRef
	isPart      bool     // has a part of a lease, and sends no events
	places      []*Lease // of a writer: on the places of the readers
	gate        *term    // the gate of the writer that has this place; nil: it is no writer's place
	holds       []*Lease // not released yet; more than one when nested
}

// Lease is one hold of a lock. It is safe for concurrent use.
type Lease struct {
	term   *term
	token  Token
	owner  string
	slot   slotRef
	places []*Lease // of a writer, on the places of the readers; guarded by Client.mu
	ctx    context.Context
	cancel context.CancelCauseFunc
	outer  *Lease // the lease that the acquiring context came from, of any key; of Leases the one before; guarded by Client.mu
	joint  bool   // one of Leases; guarded by Client.mu

	ended bool  // released or lost; guarded by Client.mu
	loss  error // why, if its holder did not release it
}

type leaseKey struct{}

// leaseFromContext returns the lease that ctx comes from, or nil.
func leaseFromContext(ctx context.Context) *Lease {
	l, _ := ctx.Value(leaseKey{}).(*Lease)
	return l
}

// begin gives t to a at now. The caller holds mu.
func (t *term) begin(a *attempt, now time.Time) *Lease {
	owner, token := t.grant.Of(t.handOvers)
	t.riskTold = false
	t.holder = holder{ctx: a.ctx, opts: a.opts, token: Token(token), owner: owner, since: now, countedFrom: now, slot: a.slot, isPart: a.isPart}
	t.setTrust(t.keptUntil)
	t.planRenewal()
	return t.addHold(a.ctx, a.outer)
}

// addHold adds a hold with the values of ctx, which has no end, to the present holder. The caller holds mu.
func (t *term) addHold(ctx context.Context, outer *Lease) *Lease {
	l := &Lease{term: t, token: t.holder.token, owner: t.holder.owner, slot: t.holder.slot, places: t.holder.places, outer: outer}
	l.ctx, l.cancel = context.WithCancelCause(context.WithValue(ctx, leaseKey{}, l))
	t.holder.holds = append(t.holder.holds, l)
	return l
}

// forEachPart calls fn for l and, where that is a writer's, for its places at the same time. It returns the first error in
// this order.
func (l *Lease) forEachPart(fn func(*Lease) error) error {
	l.term.client.mu.Lock()
	rest := l.places
	l.term.client.mu.Unlock()
	if len(rest) == 0 {
		return fn(l)
	}
	parts := append([]*Lease{l}, rest...)
	errs := make([]error, len(parts))
	forEach(parts, func(i int, part *Lease) {
		if errs[i] = fn(part); errs[i] != nil && i > 0 {
			errs[i] = part.withKey(errs[i])
		}
	})
	return cmp.Or(errs...)
}

// withKey is cause with the key of l.
func (l *Lease) withKey(cause error) error { return fmt.Errorf("%q: %w", l.Key(), cause) }

// Key is the key that the lease is on.
func (l *Lease) Key() string { return l.term.lock.key }

// Owner names the holder: no two leases have the same, but nested holds do. A
// storage compares it, in addition to the token, to know the same holder again.
func (l *Lease) Owner() string { return l.owner }

// Token returns the lease's fencing token, greater than the token of every earlier lease
// on the key. Pass it to whatever is written under the lock. A reader's token is greater than the token of every
// writer before it, and a writer's is greater than the token of every reader and writer before it; readers that hold
// the key together have tokens in any order. It is not the token of a reader's place, which Inspect shows and
// ForceRelease takes.
func (l *Lease) Token() Token { return l.token }

// String returns the key and the token, for logs: printing the fields would race with the client.
func (l *Lease) String() string { return fmt.Sprintf("lease on %q, token %d", l.Key(), l.Token()) }

// Context carries the values of the context that acquired the lease. It ends when
// the lease is released and, with a cause that matches ErrLost, when it is lost or
// Close releases it, where the cause matches ErrClosed as well. With a Margin it ends
// that much before Deadline. The end of the acquiring context does not end it.
func (l *Lease) Context() context.Context { return l.ctx }

// Deadline returns the time until which the lease can be trusted unless a renewal moves it. A
// writer's is the earliest deadline of its locks. A lease that
// was handed over by another client may begin with less than its TTL, a second or a
// part of it, and its first renewal is then sent within 50 ms. So bound work by
// Context, not by this. It has a monotonic clock reading.
func (l *Lease) Deadline() time.Time {
	c := l.term.client
	c.mu.Lock()
	defer c.mu.Unlock()
	return l.term.deadline(l.places)
}

// deadline returns until when t and rest can be trusted, as things stand. The caller holds mu.
func (t *term) deadline(rest []*Lease) time.Time {
	first := t.trusted
	for _, place := range rest {
		if d := place.term.trusted; d.Before(first) {
			first = d
		}
	}
	return first
}

// givenKey returns the key that was given to Acquire for the present holder. The caller holds mu.
func (t *term) givenKey() string { return t.holder.slot.givenKey(t.lock.key) }

// setTrust sets the time until which the service keeps t. The holder may have it for no longer
// than MaxHold. The caller holds mu.
func (t *term) setTrust(until time.Time) {
	t.keptUntil, t.trusted = until, until
	if most := t.holder.opts.MaxHold; most > 0 && clock.Until(t.holder.countedFrom.Add(most), until) < 0 {
		t.trusted = t.holder.countedFrom.Add(most)
	}
	t.endsAt = t.trusted.Add(-t.holder.opts.Margin)
}

// extendTrust trusts the service until then, unless it keeps t for longer already: no renewal
// shortens that. The caller holds mu.
func (t *term) extendTrust(until, now time.Time) {
	if clock.Until(until, now) > clock.Until(t.keptUntil, now) {
		t.setTrust(until)
	}
}

// Check asks the service whether the lease still stands. It blocks for one answer.
// nil means that a quorum has just confirmed it, ErrLost that it has ended or that
// a quorum of nodes does not have it, ErrUnavailable that too few nodes answered.
// Check changes nothing: the next renewal ends the lease or, at a node that has just failed
// over, restores it. Until then Context and Deadline still hold, but a holder that can stop
// should stop.
func (l *Lease) Check(ctx context.Context) error {
	return wrap("check", l.Key(), l.forEachPart(func(part *Lease) error { return part.check(ctx) }))
}

func (l *Lease) check(ctx context.Context) (err error) {
	c := l.term.client
	c.mu.Lock()
	err, grant := l.checkLive(), l.term.grant
	c.mu.Unlock()
	if err != nil {
		return err
	}
	ch, ok := c.drv.(driver.Checker)
	if !ok {
		return unsupported("it cannot ask its service whether a lease still stands")
	}
	if err := ch.Check(ctx, grant); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return l.checkLive()
}

// Extend renews the lease now, and sets the TTL that later renewals use; MaxHold
// stays its bound, and Margin and RenewEvery stay as they are. It blocks for one round
// of renewal. On ErrUnavailable the lease stands as it was, for as long as Deadline says.
//
// Extend never shortens a lease: with a shorter TTL the lease stands until the Deadline that
// it has, and the shorter TTL counts from the renewals that go beyond that. A request can
// reach the service late, after a longer one, and must not end what that has promised.
//
// Errors: ErrLost, ErrUnavailable, ctx.Err() with ErrUnavailable; ErrInvalid for a TTL
// that is out of bounds or leaves no time for Margin and RenewEvery; ErrUnsupported
// where the driver cannot change a TTL.
func (l *Lease) Extend(ctx context.Context, ttl time.Duration) error {
	return wrap("extend", l.Key(), l.forEachPart(func(part *Lease) error { return part.extend(ctx, ttl) }))
}

func (l *Lease) extend(ctx context.Context, ttl time.Duration) (err error) {
	c := l.term.client
	if err := c.checkTTL(ttl, ttl); err != nil {
		return err
	}
	start, grant, err := l.startExtension(ctx, ttl)
	if err != nil {
		return err
	}
	r := c.drv.Renew(ctx, []driver.Grant{grant})[0]
	told, err := l.endExtension(start, grant.TTL, r)
	c.carryOut(told)
	return err
}

// startExtension waits for a renewal that is under way, and returns what to renew.
func (l *Lease) startExtension(ctx context.Context, ttl time.Duration) (start time.Time, grant driver.Grant, err error) {
	t := l.term
	c := t.client
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if err := l.checkLive(); err != nil {
			return start, grant, err
		}
		if err := t.checkTTLChange(ttl); err != nil {
			return start, grant, err
		}
		if !t.renewing {
			break
		}
		if err := t.awaitRenewal(ctx); err != nil {
			return start, grant, err
		}
	}
	t.renewing = true
	start, grant = time.Now(), t.grant
	if c.limits.ChangeTTL {
		grant.TTL = ttl
	}
	c.reschedule(t, t.endsAt)
	return start, grant, nil
}

// endExtension applies the outcome r of an extension that was started at start.
func (l *Lease) endExtension(start time.Time, ttl time.Duration, r driver.Renewal) (followUp, error) {
	t := l.term
	c := t.client
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.Err == nil && !t.ended && ttl != t.grant.TTL { // releaseOne reads the grant of a term that has ended
		t.grant.TTL, t.asked = ttl, ttl
	}
	told, round := c.applyRenewal(t, r, start)
	round.quiet = true // the caller gets the error
	c.reportRounds(round)
	if err := cmp.Or(l.loss, l.checkLive()); err != nil {
		return told, err
	}
	if err := r.Err; err == nil || errors.Is(err, ErrUnavailable) || errors.Is(err, ErrLost) || errors.Is(err, ErrClosed) || errors.Is(err, ErrUnsupported) {
		return told, err
	}
	return told, &UnavailableError{Err: r.Err}
}

// checkTTLChange rejects a TTL that the lease cannot have. The caller holds mu.
func (t *term) checkTTLChange(ttl time.Duration) error {
	if !t.client.limits.ChangeTTL && ttl != t.asked && ttl != t.grant.TTL {
		return unsupported("it cannot change the TTL of a lease, which is %v", t.grant.TTL)
	}
	return t.holder.opts.checkRenewal(ttl, t.client.limits)
}

// awaitRenewal blocks until the renewal under way has ended. The caller holds mu, which
// awaitRenewal unlocks meanwhile.
func (t *term) awaitRenewal(ctx context.Context) error {
	if t.idle == nil {
		t.idle = make(chan struct{})
	}
	idle := t.idle
	t.client.mu.Unlock()
	defer t.client.mu.Lock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w: a renewal is under way", ctx.Err(), ErrUnavailable)
	}
}
