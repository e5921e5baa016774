package holdfast

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/obstacle"
)

// Semaphore is a key that several hold at once. It is safe for concurrent use, and holds no resources: make one
// wherever it is needed.
//
// Each of its slots is a lock of its own, and a lease is on one of them: Lease.Slot. The lease's key, Lease.Key, is
// the semaphore's with "#" and the slot; no caller should take that as a lock, see AcquireAll. Tokens rise for
// each slot by itself, so that a storage compares them for each slot. Waiters get the first slot that is free, first
// come first served.
//
// All callers give the same number of slots; Hooks.Differs is told of a holder that gave another one. With fewer slots
// than before, the holders of the slots beyond go on until they end.
type Semaphore struct {
	client *Client
	key    string
	kind   kind
}

// Semaphore returns the semaphore of key with so many slots, from 1 to 64: for more, use a rate limiter or a queue.
// It asks no server and does not block; wrong arguments are ErrInvalid of the calls that follow.
func (c *Client) Semaphore(key string, slots int) *Semaphore {
	if slots == 0 {
		slots = zeroPlaces
	}
	return &Semaphore{c, key, kind{slots: slots}}
}

// Acquire takes a slot, as Client.Acquire takes a lock. opts may be nil; its Note has 48 bytes at most.
func (s *Semaphore) Acquire(ctx context.Context, opts *AcquireOptions) (*Lease, error) {
	return s.client.acquireKind(ctx, s.key, s.kind, opts)
}

// TryAcquire takes a slot if one is free, as Client.TryAcquire takes a lock.
func (s *Semaphore) TryAcquire(ctx context.Context, opts *AcquireOptions) (*Lease, error) {
	return s.client.tryAcquireKind(ctx, s.key, s.kind, opts)
}

// Do takes a slot, calls fn and releases, as Client.Do does with a lock.
func (s *Semaphore) Do(ctx context.Context, opts *AcquireOptions, fn func(ctx context.Context, lease *Lease) error) error {
	return s.client.doKind(ctx, s.key, s.kind, opts, fn)
}

// maxSlots bounds a semaphore, as each waiting process has a place in the queue of each slot.
const maxSlots = 64

// A semaphore of n slots is n locks. What is safe about it is each lock by itself: a slot has one
// holder, so n have n at most. A caller tries the slots one after the other, until one of them is free, or
// has waiters: they wait for any slot, so none is free. Then its process stands in the
// queues of all slots, and takes the first that comes: who came first is first in each of them.
//
// Inside a process, all callers wait in one slotQueue. For each slot one attempt of the queue acquires as any caller
// would, in the process and then at the service, and the first caller gets what it is granted. So a process keeps its
// places at the service for as long as its callers ask for the same, and a caller that waits costs no goroutine and
// no request of its own. Where the next caller asks for something else, such as another Note, the
// process queues again, as the waiters of a lock do one after the other.

// slotRef names a slot of a semaphore, or a place of a read and write lock. The zero value stands for a lock.
type slotRef struct {
	semaphore string // the key of the semaphore
	number    int
}

// lockKey returns the lock key of the slot.
func (s slotRef) lockKey() string { return s.semaphore + "#" + strconv.Itoa(s.number) }

// givenKey returns the key that was given to Acquire for a lease on the lock key with slot s.
func (s slotRef) givenKey(key string) string { return cmp.Or(s.semaphore, key) }

// The notes of a slot, a reader's place and a gate, for people who find them held.
const (
	slotNote   = "slot %d of %d"
	readerNote = "reader of %d"
	writerNote = "writer of %d"
)

// noteFor is the note of a lock that a caller with o has as slot, in front of its own.
func (o *options) noteFor(slot int) (text string) {
	switch {
	case o.slots > 0:
		text = fmt.Sprintf(slotNote, slot, o.slots)
	case o.shared:
		text = fmt.Sprintf(readerNote, o.readers)
	default:
		text = fmt.Sprintf(writerNote, o.readers)
	}
	if o.Note != "" {
		text += ": " + o.Note
	}
	return text
}

// Slot is the slot of a semaphore that the lease is on, or its place among the readers, from 0 on; no other
// holder has it at the same time. It is 0 for a lock and for a writer, and where Adopt has taken the lease over: then
// Key alone names the slot.
func (l *Lease) Slot() int { return l.slot.number }

// slotQueueKey names a slotQueue: its callers ask for one key with the same number of slots or readers.
type slotQueueKey struct {
	key            string
	slots, readers int
}

// requestSpec is the part of the options on which the request to the service depends.
type requestSpec struct {
	ttl               time.Duration
	renews, adoptable bool
	note              string
}

func (o *options) requestSpec() requestSpec {
	return requestSpec{ttl: o.TTL, renews: o.renewsSoon(), adoptable: o.Adoptable, note: o.Note}
}

// slotQueue holds the callers of this process who wait for a slot of one semaphore. Client.mu guards it.
//
// Its attempts ask with the options of the first caller, who gets the first slot that comes. When a caller with
// another request becomes the first, the requests under way are cancelled and sent again for that caller: what the service
// shows of a holder, and the TTL that it grants, are the holder's own.
type slotQueue struct {
	client  *Client
	key     slotQueueKey
	waiting list.List   // of *attempt, first come first
	untold  bool        // some callers do not know whether a slot may be free
	slots   []slotState // by slot
	last    error       // the last error of its attempts; nil: none
	held    *HeldError  // the last known holder, of another process if there is one; nil: none
	heldKey string      // the key of the slot that held has
	wait    context.Context
	stop    context.CancelFunc // ends wait, when nobody waits
}

// slotState is one slot as a slotQueue knows it.
type slotState struct {
	answered bool                    // the service, or a holder of this process, has stood in the way
	refused  bool                    // and time does not remove that
	asks     requestSpec             // the last request
	cancel   context.CancelCauseFunc // ends the last request; nil: there was none
}

// errOtherWish ends a request for a slot: the first caller in the queue has other options.
var errOtherWish = errors.New("the first in the line for a slot has other options")

// acquireSlot gets a slot of the semaphore a.key.
func (a *attempt) acquireSlot() (*Lease, error) {
	c, key := a.client, slotQueueKey{a.key, a.opts.slots, a.opts.readers}
	c.mu.Lock()
	crowd := c.slotQueues[key] != nil
	c.mu.Unlock()
	var seen []error
	var last error
	if a.noWait || !crowd {
		var l *Lease
		if l, seen, last = a.trySlots(); l != nil || a.noWait || obstacle.In(last) == nil || errors.Is(last, a.wait.Err()) {
			return l, last
		}
	}
	return a.waitForSlot(key, seen, last)
}

// firstSlot is the slot that a caller tries first. It is the one that this process has released last, for one caller: who takes
// and releases a slot in turn finds that free, however many others are held. Otherwise chance picks it, so that callers seldom meet.
func (c *Client) firstSlot(key string, n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.lastSlot; s.semaphore == key && s.number < n {
		c.lastSlot = slotRef{}
		return s.number
	}
	return rand.IntN(n)
}

// trySlots asks for one slot after the other until it gets one, or meets an error that is no obstacle. A caller that waits
// for any slot stops before that, at a slot that cannot be asked for and, without MaxWaiters, at one that has waiters: it
// finds a free one from within the queue. All others ask for each slot, as a waiter that has died keeps its place for a
// while. seen has the obstacles that were met, by slot.
func (a *attempt) trySlots() (l *Lease, seen []error, err error) {
	n := a.opts.places()
	first := a.client.firstSlot(a.key, n)
	seen = make([]error, n)
	var last error
	for i := range n {
		slot := (first + i) % n
		if l, err = a.trySlot(a.wait, slot); err == nil {
			return l, nil, nil
		}
		if seen[slot] = obstacle.In(err); seen[slot] == nil || a.wait.Err() != nil {
			return nil, nil, obstacle.With(err, last)
		}
		last = seen[slot]
		switch held, _ := errors.AsType[*HeldError](err); {
		case held != nil && (held.Waiters == 0 || a.noWait || a.opts.MaxWaiters > 0):
			continue
		case held == nil && a.noWait:
			return a.tryOtherSlots(first, i+1, seen, err)
		}
		break
	}
	return nil, seen, a.noSlotError(seen, err)
}

// trySlot asks for slot, without waiting for it.
func (a *attempt) trySlot(wait context.Context, slot int) (*Lease, error) {
	try := *a
	try.noWait, try.wait = true, wait
	try.slot = slotRef{semaphore: a.key, number: slot}
	try.key, try.opts.Note = try.slot.lockKey(), a.opts.noteFor(slot)
	l, err := try.obtain()
	a.reportDiffering(err)
	return l, err
}

// stagger is the time that tryOtherSlots waits for the answer about one slot before it asks for the next.
const stagger = 20 * time.Millisecond

// tryOtherSlots goes on as trySlots from the slot first+begin on, for a caller that does not wait, after down, the error of a
// slot that could not be asked for. Each such slot may take a second to fail: the next is asked for meanwhile.
func (a *attempt) tryOtherSlots(first, begin int, seen []error, down error) (*Lease, []error, error) {
	wait, cancel := context.WithCancel(a.wait)
	defer cancel()
	n := len(seen)
	leases, errs := make([]*Lease, n), make([]error, n)
	var all sync.WaitGroup
	for i := begin; i < n && wait.Err() == nil; i++ {
		slot := (first + i) % n
		answered := make(chan struct{})
		all.Go(func() {
			defer close(answered)
			if leases[slot], errs[slot] = a.trySlot(wait, slot); leases[slot] != nil {
				cancel()
			}
		})
		late := time.NewTimer(stagger)
		select {
		case <-answered:
		case <-late.C:
		}
		late.Stop()
	}
	all.Wait()
	var got *Lease
	a.client.mu.Lock()
	for _, l := range leases {
		if got == nil {
			got = l
		} else {
			a.client.returnLease(l)
		}
	}
	a.client.mu.Unlock()
	if got != nil {
		return got, nil, nil
	}
	for slot, err := range errs {
		if err == nil {
			continue
		}
		if seen[slot] = obstacle.In(err); seen[slot] == nil || a.wait.Err() != nil {
			return nil, nil, obstacle.With(err, down)
		}
	}
	return nil, seen, a.noSlotError(seen, down)
}

// noSlotError returns the error of a caller that has found no slot free. last is the last error, or the
// error of a slot that could not be asked for: then it is unknown whether one is free.
func (a *attempt) noSlotError(seen []error, last error) error {
	what := "slots"
	if a.opts.shared {
		what = "places for readers"
	}
	held := 0
	for _, obstacle := range seen {
		if errors.Is(obstacle, ErrHeld) {
			held++
		}
	}
	switch {
	case errors.Is(last, ErrHeld):
		return fmt.Errorf("none of its %d %s is free; the last one is %w", len(seen), what, last)
	case held == 0 || !a.noWait:
		return last
	}
	return fmt.Errorf("%d of its %d %s are held, and the others cannot be asked for: %w", held, len(seen), what, last)
}

// reportDiffering sends a DiffersEvent if the holder gave another number of slots or readers.
func (a *attempt) reportDiffering(obstacle error) {
	held, ok := errors.AsType[*HeldError](obstacle)
	if !ok {
		return
	}
	others := countInNote(held.Holder.Note)
	gave := countText(a.opts.slots, "slot")
	if a.opts.readers > 0 {
		gave = countText(a.opts.readers, "reader")
	}
	if others != "" && others != gave {
		a.client.events.differs(DiffersEvent{Key: a.key, Gave: gave, Others: others, Holder: held.Holder})
	}
}

// countInNote is the number that noted has put into note, and of what, such as "3 slots"; "": it has no such number.
func countInNote(note string) string {
	var slot, most int
	if n, _ := fmt.Sscanf(note, slotNote, &slot, &most); n == 2 {
		return countText(most, "slot")
	}
	for _, form := range []string{readerNote, writerNote} {
		if n, _ := fmt.Sscanf(note, form, &most); n == 1 {
			return countText(most, "reader")
		}
	}
	return ""
}

func countText(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprint(n, " ", what)
}

// isReaderNote reports whether note is the note of a reader.
func isReaderNote(note string) bool {
	var most int
	n, _ := fmt.Sscanf(note, readerNote, &most)
	return n == 1
}

// waitForSlot waits for a slot. seen has what trySlots has met at each slot, and last is its error.
func (a *attempt) waitForSlot(key slotQueueKey, seen []error, last error) (*Lease, error) {
	c := a.client
	c.mu.Lock()
	if c.ending {
		c.mu.Unlock()
		return nil, ErrClosed
	}
	q := c.slotQueues[key]
	if q == nil {
		q = c.newSlotQueue(key, seen, last)
	}
	last = cmp.Or(q.last, last)
	crowd := q.knownHolder()
	if crowd != nil {
		if err := a.checkMaxWaiters(crowd, crowd.Waiters+q.waiting.Len()); err != nil {
			q.update()
			c.mu.Unlock()
			return nil, err
		}
	}
	a.turn = make(chan turn, 1)
	place := q.waiting.PushBack(a)
	a.reportWaiting(q.heldKey, q.held)
	if crowd == nil || !a.waitTold {
		q.untold = true
	}
	c.mu.Unlock()
	select {
	case t := <-a.turn:
		return t.lease, t.err
	case <-a.wait.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case t := <-a.turn:
		c.returnLease(t.lease)
	default:
		q.waiting.Remove(place)
		q.update()
	}
	return nil, obstacle.With(a.wait.Err(), cmp.Or(q.last, last))
}

// newSlotQueue makes a slotQueue, with an attempt for each slot. seen and last are as for waitForSlot. The caller holds mu,
// and adds a waiter, or calls update, before it unlocks mu.
func (c *Client) newSlotQueue(key slotQueueKey, seen []error, last error) *slotQueue {
	q := &slotQueue{client: c, key: key, last: last, slots: make([]slotState, max(key.slots, key.readers))}
	for slot, obstacle := range seen { // one that could not be asked for a moment ago may be free
		if held, ok := errors.AsType[*HeldError](obstacle); ok {
			q.slots[slot].answered = true
			if q.held == nil || held.Waiters > q.held.Waiters {
				q.held, q.heldKey = held, slotRef{key.key, slot}.lockKey()
			}
		}
	}
	q.wait, q.stop = context.WithCancel(context.Background())
	c.slotQueues[key] = q
	for slot := range q.slots {
		c.tasks.Go(func() { q.serveSlot(slotRef{semaphore: key.key, number: slot}) })
	}
	return q
}

// knownHolder returns a holder of a slot, with the number of waiters in other processes, once there is an answer about
// each slot: before that, one of them may be free. It returns nil if no slot is known to be held. The caller holds mu.
func (q *slotQueue) knownHolder() *HeldError {
	if slices.ContainsFunc(q.slots, func(s slotState) bool { return !s.answered }) {
		return nil
	}
	return q.held
}

// noteObstacle stores the obstacle that an attempt has met at slot, and reports it to the callers that know of none. The caller
// holds mu.
func (q *slotQueue) noteObstacle(slot int, obstacle error) {
	q.last, q.slots[slot].answered, q.slots[slot].refused = obstacle, true, false
	if held, ok := errors.AsType[*HeldError](obstacle); ok && (q.held == nil || !held.Here) {
		q.held, q.heldKey = held, slotRef{q.key.key, slot}.lockKey()
	}
	if !q.untold {
		return
	}
	crowd := q.knownHolder()
	q.untold = crowd == nil
	ahead := 0
	for e := q.waiting.Front(); e != nil; {
		w, place := e.Value.(*attempt), e
		e = e.Next()
		if crowd != nil {
			if err := w.checkMaxWaiters(crowd, crowd.Waiters+ahead); err != nil {
				q.waiting.Remove(place)
				w.turn <- turn{err: err}
				continue
			}
		}
		w.reportWaiting(q.heldKey, q.held)
		ahead++
	}
	q.update()
}

// update ends a queue without waiters, and otherwise cancels the requests that were not sent for its first caller.
// The caller holds mu.
func (q *slotQueue) update() {
	first := q.waiting.Front()
	if first == nil {
		if q.wait.Err() == nil {
			q.stop()
			delete(q.client.slotQueues, q.key)
		}
		return
	}
	wanted := first.Value.(*attempt).opts.requestSpec()
	for _, s := range q.slots {
		if s.cancel != nil && s.asks != wanted {
			s.cancel(errOtherWish)
		}
	}
}

// copyFirstOptions gives a, an attempt of the queue, the options of the first caller, and returns false if nobody waits. The
// caller holds mu.
func (q *slotQueue) copyFirstOptions(a *attempt) bool {
	first := q.waiting.Front()
	if first == nil {
		return false
	}
	a.opts = first.Value.(*attempt).opts
	a.request = a.opts.requestSpec()
	a.opts.Note = a.opts.noteFor(a.slot.number)
	return true
}

// popFirst removes the first caller from the queue; nil: nobody waits. The caller holds mu.
func (q *slotQueue) popFirst() *attempt {
	first := q.waiting.Front()
	if first == nil {
		return nil
	}
	defer q.update()
	return q.waiting.Remove(first).(*attempt)
}

// serveSlot acquires one slot, again and again, for as long as anybody waits in the queue.
func (q *slotQueue) serveSlot(of slotRef) {
	c := q.client
	for q.wait.Err() == nil {
		a := &attempt{client: c, ctx: context.Background(), wait: q.wait, slotQueue: q, slot: of, key: of.lockKey(), admitted: true, waitTold: true, isPart: true}
		if _, err := a.obtain(); err != nil && !errors.Is(err, errOtherWish) && q.noteFailure(of.number, err) {
			select {
			case <-time.After(refusedPause):
			case <-q.wait.Done():
			}
		}
	}
}

// refusedPause is the time for which a queue does not ask for a slot that the service has refused.
const refusedPause = time.Second

// noteFailure ends an attempt for slot that has failed with err. An error that is no obstacle goes to the first in the line, as
// each caller alone would have it. Where the service refuses a slot for good, such as with a wrong password, those in the
// line wait for the other slots, and fail once all are refused. fail returns true where the slot was refused and others
// are left.
func (q *slotQueue) noteFailure(slot int, err error) (pause bool) {
	c := q.client
	c.mu.Lock()
	defer c.mu.Unlock()
	if q.wait.Err() != nil {
		return false
	}
	down := obstacle.In(err)
	if down == nil {
		if w := q.popFirst(); w != nil {
			w.turn <- turn{err: err}
		}
		return false
	}
	q.noteObstacle(slot, down)
	q.slots[slot].refused = true
	if slices.ContainsFunc(q.slots, func(s slotState) bool { return !s.refused }) {
		return true
	}
	q.dismissWaiters(err)
	return false
}

// dismissWaiters sends all away with err. The caller holds mu.
func (q *slotQueue) dismissWaiters(err error) {
	for w := q.popFirst(); w != nil; w = q.popFirst() {
		w.turn <- turn{err: err}
	}
}

// receiver returns the caller that gets what a is granted: a itself or, where it asks for a line, the first in that; nil:
// nobody waits any more, or the first has another wish. The caller holds mu.
func (a *attempt) receiver() *attempt {
	if a.slotQueue == nil {
		return a
	}
	first := a.slotQueue.waiting.Front()
	if first == nil || first.Value.(*attempt).opts.requestSpec() != a.request {
		return nil
	}
	w := a.slotQueue.popFirst()
	w.slot, w.opts.Note = a.slot, a.opts.Note
	return w
}
