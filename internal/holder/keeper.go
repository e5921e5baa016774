package holder

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Keeper has all waits and leases of one client. It is safe for concurrent use.
type Keeper struct {
	drv    driver.Driver
	limits driver.Limits
	self   driver.Holder // shown to clients that find a lock held
	events Events

	alive context.Context // ends with Stop
	stop  context.CancelFunc
	tasks sync.WaitGroup // the watchdog, what it started, and the calls

	mu        sync.Mutex // guards what follows, and every lock, line, term and Hold
	locks     map[string]*lock
	lines     map[lineKey]*line
	lastPlace Place // released last, which the next caller tries first; zero: none
	watch     watchdog
	ending    bool          // no new leases and waits
	vacant    chan struct{} // closed once the keeper is ending and no lock is left in this process
	closing   bool          // ReleaseAll has begun: alerts change nothing any more
}

// New returns a keeper over drv, which shows self as its holder, and starts its watchdog. Stop and Wait end it.
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

// selfWithNote returns the client as the holder of a lease with note.
func (k *Keeper) selfWithNote(note string) driver.Holder {
	h := k.self
	h.Note = note
	return h
}

// lockForLocked returns the lock of key.
func (k *Keeper) lockForLocked(key string) *lock {
	s := k.locks[key]
	if s == nil {
		s = &lock{key: key}
		k.locks[key] = s
	}
	return s
}

// forgetIfIdleLocked removes a lock that no call uses.
func (k *Keeper) forgetIfIdleLocked(s *lock) {
	if s.isTakenLocked() || s.queue.Len() > 0 {
		return
	}
	delete(k.locks, s.key)
	if k.ending && len(k.locks) == 0 {
		close(k.vacant)
	}
}

// askNextLocked lets the next waiter ask the service, if there is one.
func (k *Keeper) askNextLocked(s *lock) {
	s.passInquiryLocked()
	k.forgetIfIdleLocked(s)
}

// WaiterCount returns the number of calls that wait for key in this process, behind its holder or behind the call that asks.
func (k *Keeper) WaiterCount(key string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s := k.locks[key]; s != nil {
		return s.queue.Len()
	}
	return 0
}

// StopAcquiring rejects new leases, and ends all waits and inquiries, with ErrClosed. What is held is still renewed.
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

// Vacant returns a channel that is closed once no lock is held, asked for or released, after StopAcquiring.
func (k *Keeper) Vacant() <-chan struct{} { return k.vacant }

// HeldCount returns the number of leases that callers hold: several locks that serve one lease count once.
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

// ReleaseAll ends all leases with an error that matches ErrLost and ErrClosed, and releases them, some hundred at a time. It blocks
// until the service has answered these releases, or ctx ends.
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

// Stop ends the watchdog, and every request that no caller waits for.
func (k *Keeper) Stop() { k.stop() }

// Wait blocks until the watchdog has ended, and all calls. Stop and StopAcquiring end them.
func (k *Keeper) Wait() { k.tasks.Wait() }

// Run calls take for a, which it prepares: the lease has the values of ctx. A failure is an event, unless a is silent. Wait waits for
// it.
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
		k.events.Failed(Failed{Context: a.Context, Key: a.Key, Waited: time.Since(a.since), Told: a.told, Err: err})
	}
	return h, err
}

// Values keeps a context's values and drops its cancellation and deadline. Unlike context.WithoutCancel it finds them
// without an allocation; hooks that trace look some up many times for each event.
type Values struct{ context.Context }

// Deadline returns no deadline.
func (Values) Deadline() (end time.Time, ok bool) { return end, false }

// Done returns nil: the context never ends.
func (Values) Done() <-chan struct{} { return nil }

// Err returns nil.
func (Values) Err() error { return nil }

// Events receives what happens to the leases and waits of a keeper, in the order in which it happens. Its methods store an
// event for later and return at once: the keeper calls some of them with its mutex.
type Events interface {
	Waiting(Waiting)
	Acquired(Acquired)
	Failed(Failed)
	Renewed(Renewed)
	AtRisk(AtRisk)
	Lost(Lost)
	Released(Released)
	// Met reports who holds a part of key that a call wants, which uses the key as kind.
	Met(kind Kind, key string, held *driver.HeldError)
	Log(level slog.Level, text string, args ...any)
}

// Waiting is the start of a wait.
type Waiting struct {
	Context context.Context
	Key     string
	Lock    string // the key of the held lock: Key, or the key of a place
	Held    *driver.HeldError
}

// Acquired is the start of a lease.
type Acquired struct {
	Context  context.Context
	Key      string
	Owner    string
	Token    int64
	Waited   time.Duration // since the call
	Told     bool          // a Waiting told of the wait
	HandOver bool          // passed on inside the process, without the service
}

// Failed is the end of a call without a lease.
type Failed struct {
	Context context.Context
	Key     string
	Waited  time.Duration // since the call
	Told    bool          // a Waiting told of the wait, and no Acquired of its end
	Err     error
}

// Renewed is the end of one round of renewal.
type Renewed struct {
	Key      string
	Owner    string
	Token    int64
	Deadline time.Time     // the lease is trusted until then
	Left     time.Duration // the old trust that was left when the round ended
	Late     time.Duration // from when the round was due to its end; 0: Extend ordered it, or it ended before
	Waiters  int           // how many others wait, as far as is known
	Err      error
}

// AtRisk is a change of the redundancy of a lease.
type AtRisk struct {
	Key    string
	Owner  string
	Token  int64
	AtRisk bool // as many nodes as are needed have the lock, and no more
}

// Lost is the end of a lease that was not released.
type Lost struct {
	Context context.Context
	Key     string
	Owner   string
	Token   int64
	Held    time.Duration // since it was acquired
	Reason  error
}

// Released is the end of a lease.
type Released struct {
	Context  context.Context
	Key      string
	Owner    string
	Token    int64
	Held     time.Duration // since it was acquired
	Detached bool          // the lock was left for another client to adopt
	Err      error         // of the release on the service; nil: it was confirmed
}
