package holdfast

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/obstacle"
)

// RWLock is a key that either several readers or one writer hold. It is safe for concurrent use, and holds no
// resources: make one wherever it is needed.
//
// Readers and writers come in by order of arrival, so that readers who come after a waiting writer wait for it. A
// reader's lease is on one of the places, Lease.Slot, and has the key of that place, as with a Semaphore. A writer's
// lease is on the key itself, and with it the writer holds every place: it ends as soon as one of them is lost. Tokens
// are of the order that all readers and writers have together. A reader that dies keeps a writer waiting for its TTL.
//
// All callers of the key give the same number of readers, and none takes it as a lock or a semaphore; Hooks.Differs is
// told of a holder that gave another number. A call that does not wait waits for a reader that is just coming in, for a
// quarter of a second at most. With a context from a lease on the key a reader cannot become a writer, nor a writer
// a reader, except by Lease.Downgrade.
//
// Of AcquireOptions, Adoptable is ErrInvalid, and so is NoRenew for a writer. A Note has 48 bytes at most.
type RWLock struct {
	client  *Client
	key     string
	readers int
}

// RWLock returns the read and write lock of key with places for so many readers, from 2 to 64. It asks no server and
// does not block; wrong arguments are ErrInvalid of the calls that follow.
func (c *Client) RWLock(key string, readers int) *RWLock {
	if readers == 0 {
		readers = zeroPlaces
	}
	return &RWLock{c, key, readers}
}

// AcquireRead takes the key as one of its readers, as Client.Acquire takes a lock. opts may be nil.
func (l *RWLock) AcquireRead(ctx context.Context, opts *AcquireOptions) (*Lease, error) {
	return l.client.acquireKind(ctx, l.key, l.reader(), opts)
}

// TryAcquireRead takes the key as one of its readers if that is possible now, as Client.TryAcquire takes a lock.
func (l *RWLock) TryAcquireRead(ctx context.Context, opts *AcquireOptions) (*Lease, error) {
	return l.client.tryAcquireKind(ctx, l.key, l.reader(), opts)
}

// DoRead calls fn as one of the readers, as Client.Do does with a lock.
func (l *RWLock) DoRead(ctx context.Context, opts *AcquireOptions, fn func(ctx context.Context, lease *Lease) error) error {
	return l.client.doKind(ctx, l.key, l.reader(), opts, fn)
}

// AcquireWrite takes the key as its writer, as Client.Acquire takes a lock. opts may be nil.
func (l *RWLock) AcquireWrite(ctx context.Context, opts *AcquireOptions) (*Lease, error) {
	return l.client.acquireKind(ctx, l.key, l.writer(), opts)
}

// TryAcquireWrite takes the key as its writer if nobody has it, as Client.TryAcquire takes a lock.
func (l *RWLock) TryAcquireWrite(ctx context.Context, opts *AcquireOptions) (*Lease, error) {
	return l.client.tryAcquireKind(ctx, l.key, l.writer(), opts)
}

// DoWrite calls fn as the writer, as Client.Do does with a lock.
func (l *RWLock) DoWrite(ctx context.Context, opts *AcquireOptions, fn func(ctx context.Context, lease *Lease) error) error {
	return l.client.doKind(ctx, l.key, l.writer(), opts, fn)
}

func (l *RWLock) reader() kind { return kind{readers: l.readers, shared: true} }
func (l *RWLock) writer() kind { return kind{readers: l.readers} }

// A read and write lock is a gate, the lock on the key itself, and a place for each reader, the locks that a
// semaphore of the key would have. Everyone passes the gate, in order of arrival:
//
//	reader   takes the gate, any one place, and releases the gate; it works with the place
//	writer   takes the gate and all places, and works with all of them
//
// Each place excludes by itself: a reader has one, a writer all. A writer that waits for readers has
// the gate meanwhile, so later callers wait behind it. Behind the writer each reader has the gate
// only until it has a place, so they come in one after the other and wait for nobody's work.
//
// No circle of waits can close within a key: a caller waits for places only with the gate, and for the gate without any place.
// One that has lost the gate stops to wait for places. So a call under a lease on the key is refused,
// unless it asks, with Reentrant, for what it has.
//
// Readers and writers have the tokens of the gate. Let g < h be two grants of it, and one of their holders a writer. The trust in g ends
// before h is granted, and a caller is admitted only while it trusts the gate: so g's has all its places before
// h is granted, or is not admitted. If h's is the writer, it has each of those places later,
// when the trust in them has ended. If g's is the writer, it works only while it trusts the gate. So work with a
// lower token, where one of two is a writer, has ended before work with the higher one begins; a storage refuses
// what comes late all the same. A gate that is lost midway admits nobody: its holder gives back what it has
// and asks for the gate again.

// errUpgrade rejects a call with the options wanted under a lease of its context with the options its.
func errUpgrade(its, wanted *options) error {
	switch {
	case its.readers == 0 || wanted.readers == 0:
		return invalid("the context comes from a lease on the key of another kind; take the key as a lock everywhere, or as a read and write lock")
	case its.shared:
		return invalid("the context comes from a reader's lease on the key, for which the writer would wait; release that first, or begin as a writer")
	}
	return invalid("the context comes from a writer's lease on the key, with which it may read as well; use that, or release it first")
}

// acquireSide makes a reader or a writer of a, which asks for a.key.
func (a *attempt) acquireSide() (*Lease, error) {
	for {
		l, err := a.passGate()
		if !errors.Is(err, errMidway) {
			return l, err
		}
		a.admitted = true // a caller that has begun to wait stays
	}
}

// partFor returns an attempt at the lock on key, as a part of a. MinHold and MaxHold count for the whole, once it is held.
func (a *attempt) partFor(wait context.Context, key string) *attempt {
	p := *a
	p.parent, p.isPart, p.silent = a, true, true
	p.key, p.wait, p.opts.Note = key, wait, a.opts.noteFor(0)
	p.opts.MaxHold, p.opts.MinHold = 0, 0
	return &p
}

// gateWait bounds how long a caller that does not wait for a holder waits for a reader that has the gate to come in.
const gateWait = 250 * time.Millisecond

// acquireGate takes the gate.
func (a *attempt) acquireGate() (*Lease, error) {
	g := a.partFor(a.wait, a.key)
	if a.opts.shared {
		g.opts.NoRenew, g.opts.Margin = false, 0
	}
	gate, err := g.obtain()
	if held, ok := errors.AsType[*HeldError](err); ok && a.noWait {
		a.reportDiffering(held)
		if isReaderNote(held.Holder.Note) {
			wait, cancel := context.WithTimeout(a.wait, gateWait)
			defer cancel()
			g.wait, g.noWait = wait, false
			gate, err = g.obtain()
			err = g.explainEnd(a.wait, err)
		}
	}
	return gate, err
}

// passGate goes through the gate once. It returns errMidway where that, or a place, was lost meanwhile.
func (a *attempt) passGate() (*Lease, error) {
	gate, err := a.acquireGate()
	if err != nil {
		return nil, err
	}
	wait, cancel := context.WithCancelCause(a.wait)
	defer cancel(nil)
	defer context.AfterFunc(gate.ctx, func() { cancel(errMidway) })()
	l, all := gate, []*Lease{gate}
	if a.opts.shared {
		l, err = a.acquirePlace(wait)
		all = append(all, l)
	} else {
		var places []*Lease
		places, err = a.acquireAllPlaces(wait, cancel)
		all = append(all, places...)
	}
	if err == nil && a.admit(l, all) {
		return l, nil
	}
	if err == nil || errors.Is(context.Cause(wait), errMidway) {
		err = errMidway
	}
	a.client.releaseUnused(a.wait, all)
	return nil, err
}

// acquirePlace gets a place for a reader.
func (a *attempt) acquirePlace(wait context.Context) (*Lease, error) {
	p := a.partFor(wait, a.key)
	p.opts.Note, p.admitted = a.opts.Note, true
	return p.acquireSlot()
}

// acquireAllPlaces gets all places for a writer. It asks for all at once, and waits for all at once: no holder of a place
// waits for another one. cancel ends wait, also where a place is lost. After an error some may be held.
func (a *attempt) acquireAllPlaces(wait context.Context, cancel context.CancelCauseFunc) ([]*Lease, error) {
	places, errs := make([]*Lease, a.opts.readers), make([]error, a.opts.readers)
	var parts []*attempt
	for slot := range places {
		place := slotRef{semaphore: a.key, number: slot}
		p := a.partFor(wait, place.lockKey())
		p.slot, p.admitted = place, true
		parts = append(parts, p)
	}
	var first error
	var failed sync.Once
	var all sync.WaitGroup
	unlink := make([]func() bool, len(places))
	for i, p := range parts {
		all.Go(func() {
			if places[i], errs[i] = p.obtain(); errs[i] != nil {
				failed.Do(func() { first = errs[i]; cancel(nil) })
				return
			}
			unlink[i] = context.AfterFunc(places[i].ctx, func() { cancel(errMidway) })
		})
	}
	all.Wait()
	for i := range places {
		if unlink[i] != nil {
			unlink[i]()
		}
	}
	if first == nil || obstacle.In(first) != nil {
		return places, first
	}
	for _, err := range errs { // the end of the wait may have met one first that had no answer yet
		if last := obstacle.In(err); last != nil {
			return places, obstacle.With(first, last)
		}
	}
	return places, first
}

// admit makes l, on a place or the gate, the lease of a reader or writer that has got all, the gate first; or it returns
// false where any of them is lost.
func (a *attempt) admit(l *Lease, all []*Lease) bool {
	c, gate := a.client, all[0]
	c.mu.Lock()
	for _, part := range all {
		if part.checkLive() != nil {
			c.mu.Unlock()
			return false
		}
	}
	now, t := time.Now(), l.term
	h := &t.holder
	h.isPart, h.since, h.countedFrom, h.token, l.token = false, now, now, gate.token, gate.token
	h.opts.MaxHold, h.opts.MinHold = a.opts.MaxHold, a.opts.MinHold
	var passed followUp
	if l == gate {
		l.places, h.places = all[1:], all[1:]
		for _, place := range l.places {
			place.term.holder.gate = t
		}
	} else {
		passed = gate.endHold(now)
	}
	t.setTrust(t.keptUntil)
	c.reschedule(t, t.renewAt(t.nextLook))
	c.events.acquired(AcquiredEvent{Context: a.ctx, Key: a.key, Owner: l.owner, Token: l.token, Waited: now.Sub(a.since), Told: a.waitTold})
	c.mu.Unlock()
	c.carryOut(passed)
	return true
}

// Downgrade makes a reader of a writer, and nobody else writes in between. It returns the reader's lease, which has one of the
// places that the writer has had, and the writer's token, and ends l as Release does: its context, too, so that work that
// goes on takes the context of the new lease. It blocks as Release does; a release that fails is reported to Hooks. Other readers may
// come in from then on, or when the writer's MinHold is over. MaxHold goes on to count from when the writer began. People who look
// at the place see the note of the writer.
//
// Errors: ErrLost where l has ended; ErrInvalid where it is no writer's, or another hold of it is nested. Then l stays as it is.
func (l *Lease) Downgrade(ctx context.Context) (*Lease, error) {
	reader, ended, err := l.downgrade(time.Now())
	if err != nil {
		return nil, wrap("downgrade", l.Key(), err)
	}
	c := l.term.client
	ctx, cancel := c.releaseContext(ctx, l.term)
	defer cancel()
	ended.sendEvents(c)
	c.releaseOnService(ctx, ended) // one that is not freed lapses by itself
	return reader, nil
}

// downgrade gives the reader its place, and takes all else from the writer, for the caller to release.
func (l *Lease) downgrade(now time.Time) (reader *Lease, ended followUp, err error) {
	c, t := l.term.client, l.term
	c.mu.Lock()
	defer c.mu.Unlock()
	switch err := l.checkLive(); {
	case err != nil:
		return nil, ended, err
	case len(l.places) == 0:
		return nil, ended, invalid("only a writer's lease becomes a reader's, and this is none")
	case len(t.holder.holds) > 1:
		return nil, ended, invalid("the lease is held %d times; release the nested holds first", len(t.holder.holds))
	}
	reader = l.places[0]
	h := &reader.term.holder
	h.isPart, h.gate, h.since, h.countedFrom, h.token, reader.token = false, nil, now, t.holder.countedFrom, t.holder.token, t.holder.token
	h.opts.shared, h.opts.MaxHold = true, t.holder.opts.MaxHold
	reader.term.setTrust(reader.term.keptUntil)
	c.reschedule(reader.term, reader.term.renewAt(reader.term.nextLook))
	l.places, t.holder.places = nil, t.holder.places[1:] // what is asked of l from now on is not about the reader
	c.events.acquired(AcquiredEvent{Context: h.ctx, Key: t.givenKey(), Owner: reader.owner, Token: reader.token})
	return reader, l.endHold(now), nil
}
