package holder

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Keeper manages all waits and leases of one client. It is safe for concurrent use.
type Keeper struct {
	drv    driver.Driver
	limits driver.Limits
	self   driver.Holder // shown to clients that find a lock held
	events Events

	alive context.Context // ends with Stop
	stop  context.CancelFunc
	tasks sync.WaitGroup // the watchdog, its goroutines, and the calls

	mu        sync.Mutex // guards the fields below, and every lock, line, term and Hold
	locks     map[string]*lock
	lines     map[lineKey]*line
	lastPlace Place // the place that was released last, which the next caller tries first; zero: none
	watch     watchdog
	ending    bool          // true: no new leases and waits
	vacant    chan struct{} // closed once ending is set and this process holds no lock
	closing   bool          // ReleaseAll has begun, so alerts change nothing any more
}

// New returns a keeper over drv, and starts its watchdog. Other clients see self as the holder of its locks.
// Stop and Wait end the keeper.
func New(drv driver.Driver, self driver.Holder, events Events) *Keeper {
	k := &Keeper{
		drv: drv, limits: drv.Limits(), self: self, events: events,
		locks: make(map[string]*lock), lines: make(map[lineKey]*line), vacant: make(chan struct{}),
		watch: watchdog{nudge: make(chan struct{}, 1)},
	}
	k.alive, k.stop = context.WithCancel(context.Background())
	k.tasks.Go(k.watchLeases)
	return k
}

// selfWithNote returns the holder that other clients see for a lease with note.
func (k *Keeper) selfWithNote(note string) driver.Holder {
	h := k.self
	h.Note = note
	return h
}

// getLockLocked returns the lock of key, which it creates if there is none.
func (k *Keeper) getLockLocked(key string) *lock {
	s := k.locks[key]
	if s == nil {
		s = &lock{key: key}
		k.locks[key] = s
	}
	return s
}

// forgetIfIdleLocked deletes a lock that no call uses.
func (k *Keeper) forgetIfIdleLocked(s *lock) {
	if s.isTakenLocked() || s.queue.Len() > 0 {
		return
	}
	delete(k.locks, s.key)
	if k.ending && len(k.locks) == 0 {
		close(k.vacant)
	}
}

// askNextLocked lets the next waiter, if there is one, ask the service.
func (k *Keeper) askNextLocked(s *lock) {
	s.passInquiryLocked()
	k.forgetIfIdleLocked(s)
}

// WaiterCount returns the number of calls of this process that wait for key, behind its holder or behind the
// call that asks the service.
func (k *Keeper) WaiterCount(key string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s := k.locks[key]; s != nil {
		return s.queue.Len()
	}
	return 0
}

// StopAcquiring rejects new leases, and ends all waits and inquiries with ErrClosed. Leases that are held are
// still renewed.
func (k *Keeper) StopAcquiring() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ending {
		return
	}
	k.ending = true
	for _, q := range k.lines {
		q.dismissLocked(driver.ErrClosed)
	}
	for _, s := range k.locks {
		s.dismissLocked(driver.ErrClosed)
		s.cancelInquiryLocked(driver.ErrClosed)
	}
	if len(k.locks) == 0 {
		close(k.vacant)
	}
}

// Vacant returns a channel that is closed once no lock is held, requested or being released, after
// StopAcquiring.
func (k *Keeper) Vacant() <-chan struct{} { return k.vacant }

// HeldCount returns the number of leases that callers hold. Several locks of one lease count once.
func (k *Keeper) HeldCount() (n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, t := range k.heldTermsLocked() {
		if !t.user.isPart {
			n++
		}
	}
	return n
}

// heldTermsLocked returns all terms.
func (k *Keeper) heldTermsLocked() (held []*term) {
	for _, s := range k.locks {
		if s.term != nil {
			held = append(held, s.term)
		}
	}
	return held
}

// ReleaseAll ends all leases with an error that matches ErrLost and ErrClosed, and releases them, some hundred
// at a time. It blocks until the service has answered the releases, or ctx ends.
func (k *Keeper) ReleaseAll(ctx context.Context) {
	k.mu.Lock()
	k.closing = true
	held := k.heldTermsLocked()
	k.mu.Unlock()
	var all sync.WaitGroup
	gate := make(chan struct{}, 256)
	for _, t := range held {
		gate <- struct{}{}
		all.Go(func() {
			defer func() { <-gate }()
			k.mu.Lock()
			end := t.endLocked(errReleasedByClose, time.Now())
			k.mu.Unlock()
			end.sendEvents(k)
			k.releaseOnService(ctx, end)
		})
	}
	all.Wait()
}

// Stop ends the watchdog, and every request that has no waiting caller.
func (k *Keeper) Stop() { k.stop() }

// Wait blocks until the watchdog and all calls have ended. Stop and StopAcquiring end them.
func (k *Keeper) Wait() { k.tasks.Wait() }

// Run prepares a, whose lease gets the values of ctx, and calls take for it. It sends a Failed event on an
// error, unless a is silent. Wait waits for Run.
func (k *Keeper) Run(ctx context.Context, a *Call, take func() (*Hold, error)) (*Hold, error) {
	k.mu.Lock()
	if k.ending {
		k.mu.Unlock()
		return nil, driver.ErrClosed
	}
	k.tasks.Add(1)
	k.mu.Unlock()
	defer k.tasks.Done()
	a.keeper, a.Context, a.since = k, Values{ctx}, time.Now()
	h, err := take()
	if err != nil && !a.Silent {
		k.events.Failed(Failed{Context: a.Context, Key: a.Key, Waited: time.Since(a.since), WaitReported: a.waitReported, Err: err})
	}
	return h, err
}

// Values keeps a context's values and drops its cancellation and deadline. Unlike context.WithoutCancel it
// finds values without an allocation; tracing hooks look some up many times for each event.
type Values struct{ context.Context }

// Deadline returns no deadline.
func (Values) Deadline() (end time.Time, ok bool) { return end, false }

// Done returns nil: the context never ends.
func (Values) Done() <-chan struct{} { return nil }

// Err returns nil.
func (Values) Err() error { return nil }

// Events receives the events of a keeper's leases and waits, in order. Its methods store an event for later
// and return at once, because the keeper calls some of them with its mutex held.
type Events interface {
	Waiting(Waiting)
	Acquired(Acquired)
	Failed(Failed)
	Renewed(Renewed)
	AtRisk(AtRisk)
	Lost(Lost)
	Released(Released)
	// ObstacleMet reports the holder of a lock that belongs to key, for a call that uses key as kind.
	ObstacleMet(kind Kind, key string, held *driver.HeldError)
	Log(level slog.Level, text string, args ...any)
}

// Waiting reports that a wait begins.
type Waiting struct {
	Context context.Context
	Key     string
	Lock    string // key of the held lock: Key itself, or the key of a place
	Held    *driver.HeldError
}

// Acquired reports that a lease begins.
type Acquired struct {
	Context      context.Context
	Key          string
	Owner        string
	Token        int64
	Waited       time.Duration // since the call began
	WaitReported bool          // a Waiting event reported the wait
	HandOver     bool          // another caller of this process passed the lock on, without the service
}

// Failed reports that a call ended without a lease.
type Failed struct {
	Context      context.Context
	Key          string
	Waited       time.Duration // since the call began
	WaitReported bool          // a Waiting event reported the start of the wait
	Err          error
}

// Renewed reports the end of one round of renewal.
type Renewed struct {
	Key       string
	Owner     string
	Token     int64
	Deadline  time.Time     // the lease is valid until then
	Remaining time.Duration // time that was left of the old lease when the round ended
	Lag       time.Duration // time by which the round ended after it was due; 0 if it was not late, or Extend started it
	Waiters   int           // number of other waiters, as far as it is known
	Err       error
}

// AtRisk reports a change in the redundancy of a lease.
type AtRisk struct {
	Key    string
	Owner  string
	Token  int64
	AtRisk bool // exactly as many nodes as needed have the lock
}

// Lost reports the end of a lease that was not released.
type Lost struct {
	Context context.Context
	Key     string
	Owner   string
	Token   int64
	Held    time.Duration // since it was acquired
	Reason  error
}

// Released reports the release of a lease.
type Released struct {
	Context  context.Context
	Key      string
	Owner    string
	Token    int64
	Held     time.Duration // since it was acquired
	Detached bool          // the lock was left for another client to adopt
	Err      error         // error of the release at the service; nil: it was confirmed
}
