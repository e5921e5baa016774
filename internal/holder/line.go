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

// Place names one of the locks that belong to a key. The zero value is no place.
type Place struct {
	Of     string // the key
	Number int
}

// Key returns the key of the place's own lock.
func (p Place) Key() string { return p.Of + "#" + strconv.Itoa(p.Number) }

// FirstPlace returns the first of n places that a caller tries. After a release, one caller tries the released
// place: a caller that acquires and releases in turn finds it free, however many others are held. Other
// callers begin at a random place, so that they seldom meet.
func (k *Keeper) FirstPlace(key string, n int) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	if p := k.lastPlace; p.Of == key && p.Number < n {
		k.lastPlace = Place{}
		return p.Number
	}
	return rand.IntN(n)
}

// TryPlace asks for one place of a.Key without waiting for its holder. wait ends the request.
func (a *Call) TryPlace(wait context.Context, number int) (*Hold, error) {
	try := *a
	try.NoWait, try.Wait = true, wait
	try.Place = Place{Of: a.Key, Number: number}
	try.Key, try.Note = try.Place.Key(), a.Kind.NoteAt(number, a.Note)
	return try.Acquire()
}

// lineKey identifies a line by the key and its use.
type lineKey struct {
	key  string
	kind Kind
}

// requestSpec holds the options that affect the request to the service.
type requestSpec struct {
	ttl               time.Duration
	renews, adoptable bool
	note              string
}

func (o *Options) requestSpec() requestSpec {
	return requestSpec{ttl: o.TTL, renews: o.RenewsSoon(), adoptable: o.Adoptable, note: o.Note}
}

// line holds the callers of this process that wait for any place of one key, first come first served.
// Keeper.mu guards it.
//
// For each place, one call of the line acquires as any caller would, first in the process and then at the
// service. The first caller of the line gets the first grant. So a process keeps its queue positions at the
// service while its callers ask for the same, and a waiting caller costs no goroutine and no request.
//
// The calls ask with the options of the first caller. When a caller with another request becomes the first,
// the requests in progress are cancelled and sent again for that caller, so that the service shows its Holder
// and grants its TTL. The process then queues again, like waiters of a lock that follow one another.
type line struct {
	keeper     *Keeper
	key        lineKey
	queue      list.List    // of *Call, in order of arrival
	uninformed bool         // some callers have not been told whether a place may be free
	places     []placeState // by number
	last       error        // last error of its calls; nil: none
	held       *driver.HeldError
	heldKey    string // key of the place that held belongs to
	wait       context.Context
	stop       context.CancelFunc // ends wait, when no caller waits
}

// placeState is the state of one place, as far as a line knows it.
type placeState struct {
	answered bool                    // the service, or a holder of this process, has denied it
	rejected bool                    // the service rejected the request, and waiting does not change that
	request  requestSpec             // last request that was sent
	cancel   context.CancelCauseFunc // ends the last request; nil: there was none
}

// errOtherRequest cancels a request for a place because the first caller of the line has other options.
var errOtherRequest = errors.New("the first in the line for a slot has other options")

// HasLine reports whether calls of this process wait for any place of key with this kind.
func (k *Keeper) HasLine(key string, kind Kind) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lines[lineKey{key, kind}] != nil
}

// AwaitPlace waits for any place of a.Key. met holds the obstacle that the call met at each place (nil: none),
// and last is its last error.
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

// enterLine appends a to its line, which it creates if there is none.
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
	if crowd == nil || !a.waitReported {
		q.uninformed = true
	}
	return q, e, nil
}

// leaveLine removes a call whose context ended from its line. If it got a lease at the same time, leaveLine
// releases it.
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

// newLineLocked creates a line with a call for each place. met and last are the arguments of AwaitPlace. The
// caller adds a waiter, or calls updateLocked, before it unlocks the mutex.
func (k *Keeper) newLineLocked(key lineKey, met []error, last error) *line {
	q := &line{keeper: k, key: key, last: last, places: make([]placeState, key.kind.Places())}
	for number, obstacle := range met { // a place that did not answer a moment ago may be free
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

// obstacleLocked returns the last known holder, preferably of another process; nil: none.
func (q *line) obstacleLocked() error {
	if q.held == nil {
		return nil
	}
	return q.held
}

// knownHolderLocked returns a holder of a place, with the number of waiters in other processes. It returns nil
// if no place is known to be held, and until each place has an answer, because one of them may be free.
func (q *line) knownHolderLocked() *driver.HeldError {
	if slices.ContainsFunc(q.places, func(s placeState) bool { return !s.answered }) {
		return nil
	}
	return q.held
}

// noteObstacleLocked stores the obstacle that a call met at a place, and reports it to the callers that know
// of none.
func (q *line) noteObstacleLocked(number int, obstacle error) {
	q.last, q.places[number].answered, q.places[number].rejected = obstacle, true, false
	if held, ok := errors.AsType[*driver.HeldError](obstacle); ok && (q.held == nil || !held.SameClient) {
		q.held, q.heldKey = held, Place{q.key.key, number}.Key()
	}
	if !q.uninformed {
		return
	}
	var crowd error
	if held := q.knownHolderLocked(); held != nil {
		crowd = held
	}
	q.uninformed = crowd == nil
	reportToQueueLocked(&q.queue, crowd, 0, func(a *Call) { a.reportWaitingLocked(q.heldKey, q.obstacleLocked()) })
	q.updateLocked()
}

// updateLocked ends a line without callers. Otherwise it cancels the requests that do not match its first
// caller.
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

// copyFirstOptionsLocked copies the options of the first caller to a, a call of the line. It returns false if
// no caller waits.
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

// popFirstLocked removes and returns the first caller of the line; nil: no caller waits.
func (q *line) popFirstLocked() *Call {
	first := q.queue.Front()
	if first == nil {
		return nil
	}
	defer q.updateLocked()
	return q.queue.Remove(first).(*Call)
}

// servePlace acquires one place, again and again, while callers wait in the line.
func (q *line) servePlace(p Place) {
	k := q.keeper
	for q.wait.Err() == nil {
		a := &Call{
			Context: context.Background(), Wait: q.wait, Key: p.Key(), Kind: q.key.kind, Place: p, Admitted: true,
			keeper: k, line: q, isPart: true, waitReported: true,
		}
		if _, err := a.Acquire(); err != nil && !errors.Is(err, errOtherRequest) && q.noteFailure(p.Number, err) {
			select {
			case <-time.After(rejectedPause):
			case <-q.wait.Done():
			}
		}
	}
}

// rejectedPause is the pause before a line asks again for a place whose request the service rejected.
const rejectedPause = time.Second

// noteFailure ends a call for a place that failed with err. If err is no obstacle, the first caller of the
// line fails with err. If the service rejects the request for good, for example because
// of a wrong password, the callers wait for the other places, and fail once all are rejected. noteFailure
// returns true if the request was rejected and other places are left.
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
	q.places[number].rejected = true
	if slices.ContainsFunc(q.places, func(s placeState) bool { return !s.rejected }) {
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

// receiverLocked returns the caller that gets the grant of a: a itself or, if a acquires for a line, the first
// caller of the line. It returns nil if no caller waits any more, or the first caller has another request.
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
