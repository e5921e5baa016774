package holdfast

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/holder"
)

// RWLock is a lock that either several readers or one writer hold. It is safe for concurrent use and holds no
// resources, so create one wherever it is needed.
//
// Readers and writers enter in the order of arrival: readers that arrive after a waiting writer wait for it.
// Each reader holds one of the places (Lease.Slot), and its lease has the key of that place, as with a
// Semaphore. A writer's lease is on the key itself, and the writer holds all places: its lease ends as soon as
// one of them is lost. Tokens rise in one order over all readers and writers. If a reader dies, a writer waits
// until the reader's TTL ends.
//
// All callers of the key must give the same number of readers, and none may use the key as a lock or a
// semaphore; Hooks.SizeMismatch reports a holder that gave another number. A Try call that finds a reader just
// entering waits for that, for a quarter of a second at most. With a context from a lease on the key, a reader
// cannot become a writer, and a writer becomes a reader only by Lease.Downgrade.
//
// Readers and writers cannot set Adoptable, and writers cannot set NoRenew: ErrInvalid. A Note has at most 48
// bytes.
type RWLock struct {
	client  *Client
	key     string
	readers int
}

// RWLock returns the read and write lock of key for up to readers readers at once, from 2 to 64. It sends no
// request and does not block. Wrong arguments make its methods return ErrInvalid.
func (c *Client) RWLock(key string, readers int) *RWLock { return &RWLock{c, key, readers} }

// AcquireRead acquires the key as one of its readers, as Client.Acquire acquires a lock. opts may be nil.
func (l *RWLock) AcquireRead(ctx context.Context, opts *AcquireOptions) (*Lease, error) {
	return l.client.acquireKind(ctx, l.key, readerKind(l.readers), opts, false)
}

// TryAcquireRead acquires the key as one of its readers if that is possible now, as Client.TryAcquire acquires
// a lock.
func (l *RWLock) TryAcquireRead(ctx context.Context, opts *AcquireOptions) (*Lease, error) {
	return l.client.acquireKind(ctx, l.key, readerKind(l.readers), opts, true)
}

// DoRead calls fn while it holds the key as one of its readers, as Client.Do does with a lock.
func (l *RWLock) DoRead(ctx context.Context, opts *AcquireOptions, fn func(ctx context.Context, lease *Lease) error) error {
	return l.client.doKind(ctx, l.key, readerKind(l.readers), opts, fn)
}

// AcquireWrite acquires the key as its writer, as Client.Acquire acquires a lock. opts may be nil.
func (l *RWLock) AcquireWrite(ctx context.Context, opts *AcquireOptions) (*Lease, error) {
	return l.client.acquireKind(ctx, l.key, writerKind(l.readers), opts, false)
}

// TryAcquireWrite acquires the key as its writer if nobody holds it, as Client.TryAcquire acquires a lock.
func (l *RWLock) TryAcquireWrite(ctx context.Context, opts *AcquireOptions) (*Lease, error) {
	return l.client.acquireKind(ctx, l.key, writerKind(l.readers), opts, true)
}

// DoWrite calls fn while it holds the key as its writer, as Client.Do does with a lock.
func (l *RWLock) DoWrite(ctx context.Context, opts *AcquireOptions, fn func(ctx context.Context, lease *Lease) error) error {
	return l.client.doKind(ctx, l.key, writerKind(l.readers), opts, fn)
}

// A read and write lock consists of a gate, which is the lock on the key itself, and one place for each
// reader, which are the locks that a semaphore of the key would have. Every caller passes the gate, in order
// of arrival:
//
//	reader   acquires the gate and then any place, and releases the gate; it works while it holds the place
//	writer   acquires the gate and then all places, and works while it holds all of them
//
// Each place has one holder: a reader holds one, a writer all. A writer that waits for readers holds the gate
// meanwhile, so later callers queue behind it. When the writer has left, each reader holds the gate only until
// it has a place. So readers enter one after the other, and none waits for the work of another.
//
// Callers of one key cannot deadlock: a caller waits for places only while it holds the gate, and for the gate
// only while it holds no place. A caller that loses the gate stops waiting for places. For the same reason, a
// call under a lease on the key is rejected, unless it sets Reentrant and asks for what it already holds.
//
// Readers and writers use the tokens of the gate. Let g < h be two grants of the gate, where the holder of one
// of them is a writer. The trust in g ends before h is granted, and a caller is admitted only while it trusts
// its gate: so the holder of g has all its places before h is granted, or is not admitted. If the holder of h
// is the writer, it gets each of those places later, after the trust in them has ended. If the holder of g is
// the writer, it works only while it trusts the gate. So work with the lower token has ended before work with
// the higher one begins, and a storage rejects late writes all the same. A caller that loses the gate before
// it has its places is not admitted: it releases them and asks for the gate again.

// readerKind and writerKind are the two sides of a read and write lock. Their value is the number of places
// for readers.
type (
	readerKind int
	writerKind int
)

// Places implements holder.Kind.
func (k readerKind) Places() int { return int(k) }

// Places implements holder.Kind.
func (k writerKind) Places() int { return int(k) }

// NoteAt implements holder.Kind.
func (k readerKind) NoteAt(_ int, note string) string {
	return withNote(fmt.Sprintf(readerNote, k), note)
}

// NoteAt implements holder.Kind.
func (k writerKind) NoteAt(_ int, note string) string {
	return withNote(fmt.Sprintf(writerNote, k), note)
}

func (k readerKind) countGiven() string { return countText(int(k), "reader") }

func (k writerKind) countGiven() string { return readerKind(k).countGiven() }

func (k readerKind) check(o *AcquireOptions, limits Limits) error {
	return cmp.Or(checkReadersOptions(int(k), o), checkReaders(limits))
}

func (k writerKind) check(o *AcquireOptions, limits Limits) error {
	err := checkReadersOptions(int(k), o)
	if err == nil && o.NoRenew {
		err = invalidError("NoRenew for a writer: its first lease would end while readers are waited for; leave it out, and bound the lease by MaxHold")
	}
	return cmp.Or(err, checkReaders(limits))
}

// checkReadersOptions rejects impossible numbers of readers, and options that neither readers nor writers support.
func checkReadersOptions(readers int, o *AcquireOptions) error {
	switch {
	case readers < 2 || readers > maxSlots:
		return invalidError("a read and write lock of %d readers: give 2 to %d", readers, maxSlots)
	case o.Adoptable:
		return invalidError("Adoptable: a reader or a writer has leases on several locks, and Adopt takes over one; leave it out")
	}
	return nil
}

// checkReaders returns an error if the driver does not support read and write locks.
func checkReaders(limits Limits) error {
	if limits.NoRWLock != "" {
		return unsupportedError("a read and write lock: %s", limits.NoRWLock)
	}
	return nil
}

func (k readerKind) obtain(c *Client, a *holder.Call) (*holder.Hold, error) {
	return c.obtainReaderOrWriter(a, k)
}

func (k writerKind) obtain(c *Client, a *holder.Call) (*holder.Hold, error) {
	return c.obtainReaderOrWriter(a, k)
}

func isReader(k holder.Kind) bool { _, ok := k.(readerKind); return ok }

// isReaderOrWriter reports whether k is a reader or a writer.
func isReaderOrWriter(k holder.Kind) bool { _, ok := k.(writerKind); return ok || isReader(k) }

// upgradeError returns the error for a call that uses a key as wanted, under a lease on the same key of the kind
// its.
func upgradeError(its, wanted holder.Kind) error {
	switch {
	case !isReaderOrWriter(its) || !isReaderOrWriter(wanted):
		return invalidError("the context comes from a lease on the key of another kind; take the key as a lock everywhere, or as a read and write lock")
	case isReader(its):
		return invalidError("the context comes from a reader's lease on the key, for which the writer would wait; release that first, or begin as a writer")
	}
	return invalidError("the context comes from a writer's lease on the key, with which it may read as well; use that, or release it first")
}

// gateCall is the call of a reader or of a writer.
type gateCall struct {
	*holder.Call
	client *Client
	kind   kind
}

// obtainReaderOrWriter obtains a lease on a.Key as a reader or a writer, according to k.
func (c *Client) obtainReaderOrWriter(a *holder.Call, k kind) (*holder.Hold, error) {
	s := &gateCall{Call: a, client: c, kind: k}
	for {
		h, err := s.passGate()
		if !errors.Is(err, errGateLostMidway) {
			return h, err
		}
		a.Admitted = true // MaxWaiters does not reject a caller that already waits
	}
}

// gateWait bounds the time that a Try call waits for a reader at the gate.
const gateWait = 250 * time.Millisecond

// acquireGate acquires the gate.
func (s *gateCall) acquireGate() (*holder.Hold, error) {
	g := s.NewPart(s.Wait, s.Key)
	g.Note = s.kind.NoteAt(0, s.Note)
	if isReader(s.kind) {
		g.NoRenew, g.Margin = false, 0
	}
	gate, err := g.Acquire()
	if held, ok := errors.AsType[*HeldError](err); ok && s.NoWait {
		s.client.events.reportSizeMismatch(s.kind, s.Key, held)
		if isReaderNote(held.Holder.Note) {
			wait, cancel := context.WithTimeout(s.Wait, gateWait)
			defer cancel()
			g.Wait, g.NoWait = wait, false
			gate, err = g.Acquire()
			err = s.client.explainEnd(s.Wait, g, err)
		}
	}
	return gate, err
}

// passGate passes the gate once. It returns errMidway if it lost the gate or a place before it held all its
// places.
func (s *gateCall) passGate() (*holder.Hold, error) {
	gate, err := s.acquireGate()
	if err != nil {
		return nil, err
	}
	wait, cancel := context.WithCancelCause(s.Wait)
	defer cancel(nil)
	defer context.AfterFunc(gate.Context(), func() { cancel(errGateLostMidway) })()
	h, all := gate, []*holder.Hold{gate}
	if isReader(s.kind) {
		h, err = s.acquirePlace(wait)
		all = append(all, h)
	} else {
		var places []*holder.Hold
		places, err = s.acquireAllPlaces(wait, cancel)
		all = append(all, places...)
	}
	if err == nil && s.JoinParts(h, all) {
		return h, nil
	}
	if err == nil || errors.Is(context.Cause(wait), errGateLostMidway) {
		err = errGateLostMidway
	}
	holder.ReleaseUnused(s.Wait, all)
	return nil, err
}

// acquirePlace acquires a place for a reader.
func (s *gateCall) acquirePlace(wait context.Context) (*holder.Hold, error) {
	p := s.NewPart(wait, s.Key)
	p.Admitted = true
	return s.client.obtainPlace(p, s.kind, "places for readers")
}

// acquireAllPlaces acquires all places for a writer. It asks for all of them at once and then waits for all of
// them at once: no holder of a place waits for another place. cancel ends wait, also when a place is lost.
// After an error the returned holds still have to be released.
func (s *gateCall) acquireAllPlaces(wait context.Context, cancel context.CancelCauseFunc) ([]*holder.Hold, error) {
	places, errs := make([]*holder.Hold, s.kind.Places()), make([]error, s.kind.Places())
	var parts []*holder.Call
	for number := range places {
		place := holder.Place{Of: s.Key, Number: number}
		p := s.NewPart(wait, place.Key())
		p.Place, p.Note, p.Admitted = place, s.kind.NoteAt(number, s.Note), true
		parts = append(parts, p)
	}
	var first error
	var failed sync.Once
	var all sync.WaitGroup
	unlink := make([]func() bool, len(places))
	for i, p := range parts {
		all.Go(func() {
			if places[i], errs[i] = p.Acquire(); errs[i] != nil {
				failed.Do(func() { first = errs[i]; cancel(nil) })
				return
			}
			unlink[i] = context.AfterFunc(places[i].Context(), func() { cancel(errGateLostMidway) })
		})
	}
	all.Wait()
	for i := range places {
		if unlink[i] != nil {
			unlink[i]()
		}
	}
	if first == nil || driverkit.ObstacleIn(first) != nil {
		return places, first
	}
	for _, err := range errs { // the wait may have ended first at a place without an answer
		if last := driverkit.ObstacleIn(err); last != nil {
			return places, driverkit.WithObstacle(first, last)
		}
	}
	return places, first
}

// Downgrade turns a writer into a reader, without letting another writer in between. It returns the reader's
// lease, which keeps one of the writer's places and the writer's token. It ends l as Release does, and with it
// the context of l: work that continues uses the context of the new lease. It blocks as Release does. A failed
// release is reported to Hooks. Other readers may enter from then on, or when the writer's MinHold ends.
// MaxHold counts from when the writer began. Inspect shows the writer's note for the place.
//
// Errors: ErrLost if l has ended; ErrInvalid if l is no writer's lease, or has nested holds. After an error l
// is unchanged.
func (l *Lease) Downgrade(ctx context.Context) (*Lease, error) {
	h, err := l.hold.KeepPlace(ctx, func(places, holds int) (holder.Kind, error) {
		switch {
		case places == 0:
			return nil, invalidError("only a writer's lease becomes a reader's, and this is none")
		case holds > 1:
			return nil, invalidError("the lease is held %d times; release the nested holds first", holds)
		}
		return readerKind(places), nil
	})
	return l.client.newLease(h, wrapError("downgrade", l.Key(), err))
}
