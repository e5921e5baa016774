package holder

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
)

// Place names one of the locks that belong to a key. The zero value names none.
type Place struct {
	Of     string // the key
	Number int
}

// Key returns the key of the place's own lock.
func (p Place) Key() string { return p.Of + "#" + strconv.Itoa(p.Number) }

// FirstPlace returns the place that a caller tries first, of n. It is the one that this process has released last, for one
// caller: who takes and releases a place in turn finds that free, however many others are held. Otherwise chance picks it, so
// that callers seldom meet.
func (k *Keeper) FirstPlace(key string, n int) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	if p := k.lastPlace; p.Of == key && p.Number < n {
		k.lastPlace = Place{}
		return p.Number
	}
	return rand.IntN(n)
}

// TryPlace asks for one place of a.Key, without waiting for its holder. wait ends the request.
func (a *Call) TryPlace(wait context.Context, number int) (*Hold, error) {
	try := *a
	try.NoWait, try.Wait = true, wait
	try.Place = Place{Of: a.Key, Number: number}
	try.Key, try.Note = try.Place.Key(), a.Kind.NoteAt(number, a.Note)
	return try.Obtain()
}

// lineKey names a line: its callers use one key in the same way.
type lineKey struct {
	key  string
	kind Kind
}

// requestSpec is the part of the options on which the request to the service depends.
type requestSpec struct {
	ttl               time.Duration
	renews, adoptable bool
	note              string
}

func (o *Options) requestSpec() requestSpec {
	return requestSpec{ttl: o.TTL, renews: o.RenewsSoon(), adoptable: o.Adoptable, note: o.Note}
}

// line holds the callers of this process who wait for any place of one key, first come first served. Keeper.mu guards it.
//
// For each place one call of the line acquires as any caller would, in the process and then at the service, and the first
// caller gets the first grant. So a process keeps its positions at the service for as long as its callers ask for the same, and
// a caller that waits costs no goroutine and no request of its own.
//
// The calls ask with the options of the first caller. When a caller with another request becomes the first, the requests under
// way are cancelled and sent again for that caller: the holder that the service shows, and the TTL that it grants, are the
// caller's own. The process then queues again, as the waiters of a lock do one after the other.
type line struct {
	keeper  *Keeper
	key     lineKey
	queue   list.List    // of *Call, first come first
	untold  bool         // some callers do not know whether a place may be free
	places  []placeState // by number
	last    error        // the last error of its calls; nil: none
	held    *driver.HeldError
	heldKey string // the key of the place that held is about
	wait    context.Context
	stop    context.CancelFunc // ends wait, when nobody waits
}

// placeState is one place as a line knows it.
type placeState struct {
	answered bool                    // the service, or a holder of this process, has stood in the way
	refused  bool                    // and time does not remove that
	request  requestSpec             // the last one that was sent
	cancel   context.CancelCauseFunc // ends the last request; nil: there was none
}

// errOtherRequest ends a request for a place: the first caller of the line has other options.
var errOtherRequest = errors.New("the first in the line for a slot has other options")

// HasLine reports whether calls of this process wait for any place of key, which they use as kind.
func (k *Keeper) HasLine(key string, kind Kind) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lines[lineKey{key, kind}] != nil
}

// AwaitPlace waits for any place of a.Key. met has the obstacles that the call has met at each of them, nil: none, and last is its
// last error.
func (a *Call) AwaitPlace(met []error, last error) (*Hold, error) {
	q, e, err := a.enterLine(met, last)
	if err != nil {
		return nil, err
	}
	select {
	case t := <-a.turn:
		return t.hold, t.err
	case <-a.Wait.Done():
		return nil, a.leaveLine(q, e)
	}
}

// enterLine puts a at the end of its line, which it makes if there is none.
func (a *Call) enterLine(met []error, last error) (q *line, e entry, err error) {
	k := a.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ending {
		return nil, e, driver.ErrClosed
	}
	key := lineKey{a.Key, a.Kind}
	if q = k.lines[key]; q == nil {
		q = k.newLineLocked(key, met, last)
	}
	e.obstacle = cmp.Or(q.last, last)
	crowd := q.knownHolderLocked()
	if crowd != nil {
		if err := a.checkMaxWaitersLocked(crowd, crowd.Waiters+q.queue.Len()); err != nil {
			q.updateLocked()
			return nil, e, err
		}
	}
	a.turn = make(chan turn, 1)
	e.place = q.queue.PushBack(a)
	a.reportWaitingLocked(q.heldKey, q.obstacleLocked())
	if crowd == nil || !a.told {
		q.untold = true
	}
	return q, e, nil
}

// leaveLine takes a call whose context ended out of its line. A lease that came at the same time is released.
func (a *Call) leaveLine(q *line, e entry) error {
	a.keeper.mu.Lock()
	defer a.keeper.mu.Unlock()
	select {
	case t := <-a.turn:
		a.keeper.returnHoldLocked(t.hold)
	default:
		q.queue.Remove(e.place)
		q.updateLocked()
	}
	return driverkit.WithObstacle(a.Wait.Err(), cmp.Or(q.last, e.obstacle))
}

// newLineLocked makes a line, with a call for each place. met and last are as for AwaitPlace. The caller adds a waiter, or calls
// updateLocked, before it unlocks the mutex.
func (k *Keeper) newLineLocked(key lineKey, met []error, last error) *line {
	q := &line{keeper: k, key: key, last: last, places: make([]placeState, key.kind.Places())}
	for number, obstacle := range met { // one that could not be asked for a moment ago may be free
		if held, ok := errors.AsType[*driver.HeldError](obstacle); ok {
			q.places[number].answered = true
			if q.held == nil || held.Waiters > q.held.Waiters {
				q.held, q.heldKey = held, Place{key.key, number}.Key()
			}
		}
	}
	q.wait, q.stop = context.WithCancel(context.Background())
	k.lines[key] = q
	for number := range q.places {
		k.tasks.Go(func() { q.servePlace(Place{key.key, number}) })
	}
	return q
}

// obstacleLocked returns the last known holder, of another process if there is one; nil: none.
func (q *line) obstacleLocked() error {
	if q.held == nil {
		return nil
	}
	return q.held
}

// knownHolderLocked returns a holder of a place, with the number of waiters in other processes, once there is an answer about
// each place: before that, one of them may be free. It returns nil if no place is known to be held.
func (q *line) knownHolderLocked() *driver.HeldError {
	if slices.ContainsFunc(q.places, func(s placeState) bool { return !s.answered }) {
		return nil
	}
	return q.held
}

// noteObstacleLocked stores the obstacle that a call has met at a place, and reports it to the callers that know of none.
func (q *line) noteObstacleLocked(number int, obstacle error) {
	q.last, q.places[number].answered, q.places[number].refused = obstacle, true, false
	if held, ok := errors.AsType[*driver.HeldError](obstacle); ok && (q.held == nil || !held.Here) {
		q.held, q.heldKey = held, Place{q.key.key, number}.Key()
	}
	if !q.untold {
		return
	}
	var crowd error
	if held := q.knownHolderLocked(); held != nil {
		crowd = held
	}
	q.untold = crowd == nil
	reportToQueueLocked(&q.queue, crowd, 0, func(a *Call) { a.reportWaitingLocked(q.heldKey, q.obstacleLocked()) })
	q.updateLocked()
}

// updateLocked ends a line without callers, and otherwise cancels the requests that were not sent for its first caller.
func (q *line) updateLocked() {
	first := q.queue.Front()
	if first == nil {
		if q.wait.Err() == nil {
			q.stop()
			delete(q.keeper.lines, q.key)
		}
		return
	}
	wanted := first.Value.(*Call).requestSpec()
	for _, s := range q.places {
		if s.cancel != nil && s.request != wanted {
			s.cancel(errOtherRequest)
		}
	}
}

// copyFirstOptionsLocked gives a, a call of the line, the options of the first caller, and returns false if nobody waits.
func (q *line) copyFirstOptionsLocked(a *Call) bool {
	first := q.queue.Front()
	if first == nil {
		return false
	}
	a.Options = first.Value.(*Call).Options
	a.request = a.requestSpec()
	a.Note = q.key.kind.NoteAt(a.Place.Number, a.Note)
	return true
}

// popFirstLocked removes the first caller from the line; nil: nobody waits.
func (q *line) popFirstLocked() *Call {
	first := q.queue.Front()
	if first == nil {
		return nil
	}
	defer q.updateLocked()
	return q.queue.Remove(first).(*Call)
}

// servePlace acquires one place, again and again, for as long as anybody waits in the line.
func (q *line) servePlace(p Place) {
	k := q.keeper
	for q.wait.Err() == nil {
		a := &Call{
			Context: context.Background(), Wait: q.wait, Key: p.Key(), Kind: q.key.kind, Place: p, Admitted: true,
			keeper: k, line: q, isPart: true, told: true,
		}
		if _, err := a.Obtain(); err != nil && !errors.Is(err, errOtherRequest) && q.noteFailure(p.Number, err) {
			select {
			case <-time.After(refusedPause):
			case <-q.wait.Done():
			}
		}
	}
}

// refusedPause is the pause before a line asks again for a place that the service has refused.
const refusedPause = time.Second

// noteFailure ends a call for a place that has failed with err. An error that is no obstacle goes to the first caller of the
// line, as each caller alone would have it. If the service refuses a place for good, such as with a wrong password, the callers
// wait for the other places, and fail once all are refused. noteFailure returns true if the place was refused and others are
// left.
func (q *line) noteFailure(number int, err error) (pause bool) {
	q.keeper.mu.Lock()
	defer q.keeper.mu.Unlock()
	if q.wait.Err() != nil {
		return false
	}
	down := driverkit.ObstacleIn(err)
	if down == nil {
		if a := q.popFirstLocked(); a != nil {
			a.turn <- turn{err: err}
		}
		return false
	}
	q.noteObstacleLocked(number, down)
	q.places[number].refused = true
	if slices.ContainsFunc(q.places, func(s placeState) bool { return !s.refused }) {
		return true
	}
	q.dismissLocked(err)
	return false
}

// dismissLocked ends all waits with err.
func (q *line) dismissLocked(err error) {
	for a := q.popFirstLocked(); a != nil; a = q.popFirstLocked() {
		a.turn <- turn{err: err}
	}
}

// receiverLocked returns the caller that gets the grant of a: a itself or, if it asks for a line, the first caller in that; nil:
// nobody waits any more, or the first caller has another request.
func (a *Call) receiverLocked() *Call {
	if a.line == nil {
		return a
	}
	first := a.line.queue.Front()
	if first == nil || first.Value.(*Call).requestSpec() != a.request {
		return nil
	}
	w := a.line.popFirstLocked()
	w.Place, w.Note = a.Place, a.Note
	return w
}
