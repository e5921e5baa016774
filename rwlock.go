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
func (c *Client) RWLock(key string, readers int) *RWLock { return &RWLock{c, key, readers} }

// AcquireRead takes the key as one of its readers, as Client.Acquire takes a lock. opts may be nil.
func (l *RWLock) AcquireRead(ctx context.Context, opts *AcquireOptions) (*Lease, error) {
	return l.client.acquireKind(ctx, l.key, readerKind(l.readers), opts, false)
}

// TryAcquireRead takes the key as one of its readers if that is possible now, as Client.TryAcquire takes a lock.
func (l *RWLock) TryAcquireRead(ctx context.Context, opts *AcquireOptions) (*Lease, error) {
	return l.client.acquireKind(ctx, l.key, readerKind(l.readers), opts, true)
}

// DoRead calls fn as one of the readers, as Client.Do does with a lock.
func (l *RWLock) DoRead(ctx context.Context, opts *AcquireOptions, fn func(ctx context.Context, lease *Lease) error) error {
	return l.client.doKind(ctx, l.key, readerKind(l.readers), opts, fn)
}

// AcquireWrite takes the key as its writer, as Client.Acquire takes a lock. opts may be nil.
func (l *RWLock) AcquireWrite(ctx context.Context, opts *AcquireOptions) (*Lease, error) {
	return l.client.acquireKind(ctx, l.key, writerKind(l.readers), opts, false)
}

// TryAcquireWrite takes the key as its writer if nobody has it, as Client.TryAcquire takes a lock.
func (l *RWLock) TryAcquireWrite(ctx context.Context, opts *AcquireOptions) (*Lease, error) {
	return l.client.acquireKind(ctx, l.key, writerKind(l.readers), opts, true)
}

// DoWrite calls fn as the writer, as Client.Do does with a lock.
func (l *RWLock) DoWrite(ctx context.Context, opts *AcquireOptions, fn func(ctx context.Context, lease *Lease) error) error {
	return l.client.doKind(ctx, l.key, writerKind(l.readers), opts, fn)
}

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

// readerKind and writerKind take a read and write lock with places for so many readers.
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

func (k readerKind) gave() string { return countText(int(k), "reader") }

func (k writerKind) gave() string { return readerKind(k).gave() }

func (k readerKind) check(o *AcquireOptions, limits Limits) error {
	return cmp.Or(checkSide(int(k), o), checkReaders(limits))
}

func (k writerKind) check(o *AcquireOptions, limits Limits) error {
	err := checkSide(int(k), o)
	if err == nil && o.NoRenew {
		err = invalidError("NoRenew for a writer: its first lease would end while readers are waited for; leave it out, and bound the lease by MaxHold")
	}
	return cmp.Or(err, checkReaders(limits))
}

// checkSide rejects numbers of readers that cannot be, and options that neither readers nor writers can have.
func checkSide(readers int, o *AcquireOptions) error {
	switch {
	case readers < 2 || readers > maxSlots:
		return invalidError("a read and write lock of %d readers: give 2 to %d", readers, maxSlots)
	case o.Adoptable:
		return invalidError("Adoptable: a reader or a writer has leases on several locks, and Adopt takes over one; leave it out")
	}
	return nil
}

// checkReaders rejects read and write locks if the driver cannot keep them.
func checkReaders(limits Limits) error {
	if limits.NoReaders != "" {
		return unsupportedError("a read and write lock: %s", limits.NoReaders)
	}
	return nil
}

func (k readerKind) obtain(c *Client, a *holder.Call) (*holder.Hold, error) {
	return c.obtainSide(a, k)
}

func (k writerKind) obtain(c *Client, a *holder.Call) (*holder.Hold, error) {
	return c.obtainSide(a, k)
}

func isReader(k holder.Kind) bool { _, ok := k.(readerKind); return ok }

// isSide reports whether k is a reader or a writer.
func isSide(k holder.Kind) bool { _, ok := k.(writerKind); return ok || isReader(k) }

// errUpgrade rejects a call for a key used as wanted under a lease of its context with the kind its.
func errUpgrade(its, wanted holder.Kind) error {
	switch {
	case !isSide(its) || !isSide(wanted):
		return invalidError("the context comes from a lease on the key of another kind; take the key as a lock everywhere, or as a read and write lock")
	case isReader(its):
		return invalidError("the context comes from a reader's lease on the key, for which the writer would wait; release that first, or begin as a writer")
	}
	return invalidError("the context comes from a writer's lease on the key, with which it may read as well; use that, or release it first")
}

// sideCall is the call of a reader or a writer.
type sideCall struct {
	*holder.Call
	client *Client
	kind   kind
}

// obtainSide makes a reader or a writer of a, which asks for a.Key.
func (c *Client) obtainSide(a *holder.Call, k kind) (*holder.Hold, error) {
	s := &sideCall{Call: a, client: c, kind: k}
	for {
		h, err := s.passGate()
		if !errors.Is(err, errMidway) {
			return h, err
		}
		a.Admitted = true // a caller that has begun to wait stays
	}
}

// gateWait bounds how long a caller that does not wait for a holder waits for a reader that has the gate to come in.
const gateWait = 250 * time.Millisecond

// acquireGate takes the gate.
func (s *sideCall) acquireGate() (*holder.Hold, error) {
	g := s.Part(s.Wait, s.Key)
	g.Note = s.kind.NoteAt(0, s.Note)
	if isReader(s.kind) {
		g.NoRenew, g.Margin = false, 0
	}
	gate, err := g.Obtain()
	if held, ok := errors.AsType[*HeldError](err); ok && s.NoWait {
		s.client.events.reportDiffering(s.kind, s.Key, held)
		if isReaderNote(held.Holder.Note) {
			wait, cancel := context.WithTimeout(s.Wait, gateWait)
			defer cancel()
			g.Wait, g.NoWait = wait, false
			gate, err = g.Obtain()
			err = s.client.explainEnd(s.Wait, g, err)
		}
	}
	return gate, err
}

// passGate goes through the gate once. It returns errMidway if that, or a place, was lost meanwhile.
func (s *sideCall) passGate() (*holder.Hold, error) {
	gate, err := s.acquireGate()
	if err != nil {
		return nil, err
	}
	wait, cancel := context.WithCancelCause(s.Wait)
	defer cancel(nil)
	defer context.AfterFunc(gate.Context(), func() { cancel(errMidway) })()
	h, all := gate, []*holder.Hold{gate}
	if isReader(s.kind) {
		h, err = s.acquirePlace(wait)
		all = append(all, h)
	} else {
		var places []*holder.Hold
		places, err = s.acquireAllPlaces(wait, cancel)
		all = append(all, places...)
	}
	if err == nil && s.Admit(h, all) {
		return h, nil
	}
	if err == nil || errors.Is(context.Cause(wait), errMidway) {
		err = errMidway
	}
	holder.ReleaseUnused(s.Wait, all)
	return nil, err
}

// acquirePlace gets a place for a reader.
func (s *sideCall) acquirePlace(wait context.Context) (*holder.Hold, error) {
	p := s.Part(wait, s.Key)
	p.Admitted = true
	return s.client.obtainPlace(p, s.kind, "places for readers")
}

// acquireAllPlaces gets all places for a writer. It asks for all at once, and waits for all at once: no holder of a place
// waits for another one. cancel ends wait, also when a place is lost. After an error some may be held.
func (s *sideCall) acquireAllPlaces(wait context.Context, cancel context.CancelCauseFunc) ([]*holder.Hold, error) {
	places, errs := make([]*holder.Hold, s.kind.Places()), make([]error, s.kind.Places())
	var parts []*holder.Call
	for number := range places {
		place := holder.Place{Of: s.Key, Number: number}
		p := s.Part(wait, place.Key())
		p.Place, p.Note, p.Admitted = place, s.kind.NoteAt(number, s.Note), true
		parts = append(parts, p)
	}
	var first error
	var failed sync.Once
	var all sync.WaitGroup
	unlink := make([]func() bool, len(places))
	for i, p := range parts {
		all.Go(func() {
			if places[i], errs[i] = p.Obtain(); errs[i] != nil {
				failed.Do(func() { first = errs[i]; cancel(nil) })
				return
			}
			unlink[i] = context.AfterFunc(places[i].Context(), func() { cancel(errMidway) })
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
	for _, err := range errs { // the end of the wait may have met one first that had no answer
		if last := driverkit.ObstacleIn(err); last != nil {
			return places, driverkit.WithObstacle(first, last)
		}
	}
	return places, first
}

// Downgrade makes a reader of a writer, and nobody else writes in between. It returns the reader's lease, which has one of the
// places that the writer has had, and the writer's token, and ends l as Release does: its context, too, so that work that
// goes on takes the context of the new lease. It blocks as Release does; a release that fails is reported to Hooks. Other readers may
// come in from then on, or when the writer's MinHold is over. MaxHold goes on to count from when the writer began. People who look
// at the place see the note of the writer.
//
// Errors: ErrLost where l has ended; ErrInvalid where it is no writer's, or another hold of it is nested. Then l stays as it is.
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
