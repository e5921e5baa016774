package holdfast

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// term is one grant of the service, from its start until it is released or lost.
// Its holders in this process follow one another and share its deadline.
// Client.mu guards it.
type term struct {
	client  *Client
	slot    *slot
	grant   driver.Grant
	taken   time.Time     // when it was granted
	granted time.Time     // until when the service keeps it, with both clock readings
	trusted time.Time     // the same, or the end of MaxHold
	given   time.Duration // for how long it was granted when that was last done
	passed  int           // hand-overs so far
	now     holder
	atRisk  bool // the last renewal said so
	over    bool

	next     time.Time // when the watchdog looks at it again
	at       int       // place in the schedule
	renewing bool
	idle     chan struct{} // closed when renewing ends; nil: nobody waits for that
}

// holder is who has the term now.
type holder struct {
	opts  AcquireOptions
	token Token
	id    string
	since time.Time
	holds []*Lease // not released yet; more than one when nested
}

// Lease is one hold of a lock. It is safe for concurrent use.
type Lease struct {
	term   *term
	token  Token
	id     string
	ctx    context.Context
	cancel context.CancelCauseFunc
	outer  *Lease // the lease that the acquiring context came from, of any key

	done bool  // released or lost; guarded by Client.mu
	err  error // why, if its holder did not release it
}

type leaseKey struct{}

// begin gives t to a new holder. The caller holds mu.
func (t *term) begin(ctx context.Context, o AcquireOptions) *Lease {
	id := t.grant.Owner
	if t.passed > 0 {
		id += "+" + strconv.Itoa(t.passed)
	}
	t.now = holder{opts: o, token: Token(t.grant.Token + int64(t.passed)), id: id, since: time.Now()}
	t.trust(t.granted)
	t.plan(t.taken)
	return t.hold(ctx)
}

// hold adds a hold to the present holder. The caller holds mu.
func (t *term) hold(ctx context.Context) *Lease {
	l := &Lease{term: t, token: t.now.token, id: t.now.id}
	l.outer, _ = ctx.Value(leaseKey{}).(*Lease)
	l.ctx, l.cancel = context.WithCancelCause(context.WithValue(context.WithoutCancel(ctx), leaseKey{}, l))
	t.now.holds = append(t.now.holds, l)
	return l
}

// nest looks whether ctx comes from a live lease of key. It returns another
// hold of it, or ErrReentrant, or neither if there is none. opts may be nil.
func (c *Client) nest(ctx context.Context, key string, opts *AcquireOptions) (*Lease, error) {
	l, _ := ctx.Value(leaseKey{}).(*Lease)
	if l == nil {
		return nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for ; l != nil; l = l.outer {
		if t := l.term; t.client != c || t.slot.key != key || l.live() != nil {
			continue
		}
		if opts == nil || !opts.Reentrant {
			return nil, ErrReentrant
		}
		if !opts.agrees(l.term.now.opts) {
			return nil, invalid("a nested hold shares its lease: leave out TTL, NoRenew, MaxHold and MinHold, or give those of the lease")
		}
		return l.term.hold(ctx), nil
	}
	return nil, nil
}

// agrees says whether a lease with the options of outer does what o asks for.
func (o *AcquireOptions) agrees(outer AcquireOptions) bool {
	return (o.TTL == 0 || o.TTL == outer.TTL) && (o.MaxHold == 0 || o.MaxHold == outer.MaxHold) &&
		(o.MinHold == 0 || o.MinHold == outer.MinHold) && (!o.NoRenew || outer.NoRenew)
}

// Key is the key that the lease is on.
func (l *Lease) Key() string { return l.term.slot.key }

// ID names the holder: no two leases have the same, but nested holds do. It is
// what a storage takes for "the same holder" beside the token.
func (l *Lease) ID() string { return l.id }

// Token is the lease's fencing token, greater than that of every earlier lease
// on the key. Pass it to whatever is written under the lock.
func (l *Lease) Token() Token { return l.token }

// Context carries the values of the context that acquired the lease. It ends when
// the lease is released and, with a cause that matches ErrLost, when it is lost or
// Close releases it, where the cause matches ErrClosed as well. The end of the
// acquiring context does not touch it.
func (l *Lease) Context() context.Context { return l.ctx }

// Deadline is until when the lease can be trusted, as things stand: renewal
// moves it. A lease that was handed over by another client may begin with less
// than its TTL, a second or a part of it, and its first renewal is then sent
// within 50 ms: what bounds work is Context, not this. It has a monotonic clock
// reading.
func (l *Lease) Deadline() time.Time {
	c := l.term.client
	c.mu.Lock()
	defer c.mu.Unlock()
	return l.term.trusted
}

// trust says until when the service keeps t. The holder may have it for no longer
// than MaxHold. The caller holds mu.
func (t *term) trust(until time.Time) {
	t.granted, t.trusted = until, until
	if most := t.now.opts.MaxHold; most > 0 && untilBy(t.now.since.Add(most), until) < 0 {
		t.trusted = t.now.since.Add(most)
	}
}

// left is the trust left at now.
func (t *term) left(now time.Time) time.Duration { return untilBy(t.trusted, now) }

// untilBy is the time from now to end, by the worse of both clocks: the monotonic one
// stands still while the machine sleeps.
func untilBy(end, now time.Time) time.Duration {
	return min(end.Sub(now), end.Round(0).Sub(now.Round(0)))
}

// live returns why l can no longer be used, or nil. The caller holds mu.
func (l *Lease) live() error {
	switch {
	case l.err != nil:
		return l.err
	case l.done:
		if errors.Is(context.Cause(l.ctx), ErrDetached) {
			return fmt.Errorf("%w: it was detached", ErrLost)
		}
		return fmt.Errorf("%w: it was released", ErrLost)
	case l.term.left(time.Now()) <= 0:
		return errExpired
	}
	return nil
}

// ended returns why l has ended, if its holder did not release it, or nil.
func (l *Lease) ended() error {
	c := l.term.client
	c.mu.Lock()
	defer c.mu.Unlock()
	return l.err
}

var (
	errExpired = fmt.Errorf("%w: it was not renewed in time", ErrLost)
	errTaken   = fmt.Errorf("%w: %w and has released it", ErrLost, ErrClosed)
)

// Check asks the service whether the lease still stands. It blocks for one
// answer. nil means that a quorum has just confirmed it, ErrLost that it has ended
// or that a quorum of nodes does not have it, ErrUnavailable that nobody can tell.
// Check changes nothing: what ends the lease, or restores it on nodes that forgot
// it, is its next renewal. Until then Context and Deadline still hold, but whoever
// can stop should.
func (l *Lease) Check(ctx context.Context) error {
	return wrap("check", l.Key(), l.check(ctx))
}

func (l *Lease) check(ctx context.Context) error {
	c := l.term.client
	c.mu.Lock()
	err := l.live()
	c.mu.Unlock()
	if err != nil {
		return err
	}
	in, ok := c.drv.(driver.Inspector)
	if !ok {
		return ErrUnsupported
	}
	st, err := in.Inspect(ctx, l.Key())
	if err != nil {
		return err
	}
	if st.Held && st.Owner == l.term.grant.Owner {
		c.mu.Lock()
		defer c.mu.Unlock()
		return l.live()
	}
	against := 0
	for _, n := range st.Nodes {
		if n.Err == nil && n.Owner != l.term.grant.Owner {
			against++
		}
	}
	if against <= len(st.Nodes)-(len(st.Nodes)/2+1) {
		return &UnavailableError{Need: len(st.Nodes)/2 + 1, Nodes: doubts(st)}
	}
	return fmt.Errorf("%w: a quorum of nodes does not have it", ErrLost)
}

// doubts names the nodes that did not confirm a lease.
func doubts(st driver.Status) []driver.NodeError {
	var out []driver.NodeError
	for _, n := range st.Nodes {
		if n.Err != nil {
			out = append(out, driver.NodeError{Node: n.Node, Err: n.Err})
		}
	}
	return out
}

// Extend renews the lease now, and sets the TTL that later renewals use; MaxHold
// stays its bound. It blocks for one round of renewal. On ErrUnavailable the lease stands as it was,
// for as long as Deadline says. Errors: ErrLost, ErrUnavailable, ErrInvalid, or
// ctx.Err() with ErrUnavailable.
func (l *Lease) Extend(ctx context.Context, ttl time.Duration) error {
	return wrap("extend", l.Key(), l.extend(ctx, ttl))
}

func (l *Lease) extend(ctx context.Context, ttl time.Duration) error {
	t := l.term
	c := t.client
	if err := c.checkTTL(ttl, ttl); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if err := l.live(); err != nil {
			return err
		}
		if !t.renewing {
			break
		}
		if err := t.await(ctx); err != nil {
			return err
		}
	}
	now := time.Now()
	grant := t.startRenewal()
	grant.TTL = ttl
	// A shorter TTL may be in force before its answer is here.
	if bound := now.Add(ttl - ttl/50 - 3*time.Millisecond); ttl < t.grant.TTL && bound.Before(t.granted) {
		t.trust(bound)
	}
	c.reschedule(t, t.trusted)
	c.mu.Unlock()
	r := c.drv.Renew(ctx, []driver.Grant{grant})[0]
	c.mu.Lock()
	if r.Err == nil && !t.over { // of one that is over, finish reads the grant
		t.grant.TTL = ttl
	}
	told := c.settle(t, r, now)
	c.mu.Unlock()
	c.tell(told)
	c.mu.Lock()
	if r.Err != nil {
		return r.Err
	}
	return l.live()
}

// await blocks until the renewal under way has ended. The caller holds mu, which
// is given up meanwhile.
func (t *term) await(ctx context.Context) error {
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

// Release gives the lease up. Nested holds are released one by one, the lock
// with the last. It may be called again, and with a context that has ended: ctx
// only shortens the wait for the service's answer, for two seconds at most. The
// lease's own context will do. After Close, which has released
// it, Release does nothing. Errors: ErrLost if the lease was lost before,
// ErrUnavailable if the service did not confirm (the lock then lapses by itself),
// ctx.Err().
func (l *Lease) Release(ctx context.Context) error {
	return wrap("release", l.Key(), l.release(ctx))
}

func (l *Lease) release(ctx context.Context) error {
	t := l.term
	c := t.client
	c.mu.Lock()
	if l.done {
		defer c.mu.Unlock()
		if errors.Is(l.err, ErrClosed) {
			return nil
		}
		return l.err
	}
	now := time.Now()
	if t.left(now) <= 0 {
		c.mu.Unlock()
		c.lose(loss{t, t.expiry()}) // the watchdog has not come round yet
		return l.err
	}
	if len(t.now.holds) > 1 {
		l.done = true
		t.now.holds = slices.DeleteFunc(t.now.holds, func(h *Lease) bool { return h == l })
		c.mu.Unlock()
		l.cancel(nil)
		return nil
	}
	keep := t.keep(now)
	ended := ReleasedEvent{Key: t.slot.key, ID: l.id, Token: l.token, Held: now.Sub(t.now.since)}
	if keep == 0 {
		if w := t.successor(now); w != nil {
			l.done = true
			next := t.handOver(w)
			c.mu.Unlock()
			l.cancel(nil)
			c.events.released(ended)
			c.events.acquired(AcquiredEvent{
				Key: t.slot.key, ID: next.id, Token: next.token, Waited: now.Sub(w.since), HandOver: true,
			})
			return nil
		}
	}
	end := t.end(nil)
	c.mu.Unlock()
	if own, _ := ctx.Value(leaseKey{}).(*Lease); own != nil && own.term == t && ctx.Err() == nil {
		ctx = context.WithoutCancel(ctx) // the release ends the lease's own context, and not the wait for its answer
	}
	end.tell(c)
	return c.finish(ctx, t, keep, end)
}

// keep is how much longer the lock stays after a release at now, and no less than
// the shortest TTL: one that is over before its answer comes passes for a loss. The
// caller holds mu.
func (t *term) keep(now time.Time) time.Duration {
	rest := t.now.since.Add(t.now.opts.MinHold).Sub(now)
	if rest <= 0 {
		return 0
	}
	return max(rest, leastTTL, t.client.limits.MinTTL)
}

// ending is what is left to do, without mu, for a term that ended.
type ending struct {
	ours   bool // the caller ended it; false: it had ended before
	leases []*Lease
	cause  error // nil: released
	event  ReleasedEvent
}

// end takes t out of use. The caller holds mu.
func (t *term) end(cause error) ending {
	if t.over {
		return ending{}
	}
	c := t.client
	t.over = true
	c.terms.remove(t)
	t.slot.term = nil
	t.slot.inquire() // until the release is answered: who has the lock next is not known before
	e := ending{
		ours: true, leases: t.now.holds, cause: cause,
		event: ReleasedEvent{Key: t.slot.key, ID: t.now.id, Token: t.now.token, Held: time.Since(t.now.since)},
	}
	for _, l := range t.now.holds {
		l.done = true
		if errors.Is(cause, ErrLost) {
			l.err = cause
		}
	}
	t.now.holds = nil
	return e
}

// lost says whether neither the holder nor Close ended it.
func (e ending) lost() bool { return errors.Is(e.cause, ErrLost) && !errors.Is(e.cause, ErrClosed) }

// cancel ends the contexts of the leases.
func (e ending) cancel() {
	for _, l := range e.leases {
		l.cancel(e.cause)
	}
}

// tell ends the contexts of the leases and tells of a loss.
func (e ending) tell(c *Client) {
	e.cancel()
	if e.ours && e.lost() {
		c.events.write(slog.LevelError, "lease lost", "key", e.event.Key, "token", int64(e.event.Token), "held", e.event.Held, "reason", e.cause)
		c.events.lost(LostEvent{
			Key: e.event.Key, ID: e.event.ID, Token: e.event.Token, Held: e.event.Held, Reason: e.cause,
		})
	}
}

// finish sends the release of a term that has ended and lets the next waiter of
// this process ask the service.
func (c *Client) finish(ctx context.Context, t *term, keep time.Duration, e ending) error {
	ctx, cancel := context.WithTimeout(ctx, closeTime)
	defer cancel()
	err := c.drv.Release(ctx, t.grant, keep)
	c.mu.Lock()
	c.lead(t.slot)
	c.mu.Unlock()
	if e.lost() {
		return err
	}
	if err != nil {
		c.events.write(slog.LevelWarn, "release not confirmed; the lock lapses by itself", "key", e.event.Key, "cause", err)
	}
	e.event.Err = err
	c.events.released(e.event)
	return err
}

// loss is a term that was lost, and why.
type loss struct {
	term  *term
	cause error
}

// lose ends terms that were lost: first the contexts of all of them, which no
// hook may hold up, then whatever may still stand on the nodes.
func (c *Client) lose(all ...loss) {
	ends := make([]ending, len(all))
	c.mu.Lock()
	for i, l := range all {
		ends[i] = l.term.end(l.cause)
	}
	c.mu.Unlock()
	for _, e := range ends {
		e.cancel()
	}
	for i, e := range ends {
		if e.ours {
			e.tell(c)
			c.clear(all[i].term, e)
		}
	}
}

// clear releases a term that was lost, as a late renewal may have set it again.
// What cannot be released lapses by itself. Close waits for it, as the slot is taken.
func (c *Client) clear(t *term, e ending) { go c.finish(c.alive, t, 0, e) }
