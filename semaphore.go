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

// Semaphore returns the semaphore of key with so many slots, from 1 to 64: for more, limit the rate or take a queue.
// It asks no server and does not block; wrong arguments are ErrInvalid of the calls that follow.
func (c *Client) Semaphore(key string, slots int) *Semaphore {
	if slots == 0 {
		slots = -1 // no kind, and so rejected
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

// maxSlots bounds a semaphore, as each process that waits stands in the queue of each slot.
const maxSlots = 64

// A semaphore of n slots is n locks. What is safe about it is each lock by itself: a slot has one
// holder, so n have n at most. A caller tries the slots one after the other, until one of them is free, or
// has waiters: they wait for any slot, so none is free. Then its process stands in the
// queues of all slots, and takes the first that comes: who came first is first in each of them.
//
// Inside a process, all callers wait in one line. For each slot one attempt of the line competes as any caller
// would, in the process and then at the service, and the first in the line gets what it is granted. So a process
// keeps its places at the service for as long as those in the line ask for the same, and a caller that waits costs
// no goroutine and no request of its own. Where the next caller asks for something else, such as another Note, the
// process queues again, as the waiters of a lock do one after the other.

// share is a slot of a semaphore, or a place of a read and write lock. The zero value stands for a lock.
type share struct {
	of   string // the key of the semaphore
	slot int
}

// key returns the lock key of the slot.
func (s share) key() string { return s.of + "#" + strconv.Itoa(s.slot) }

// givenKey returns the key that was given to Acquire for a lease on the lock key with share s.
func (s share) givenKey(key string) string { return cmp.Or(s.of, key) }

// What people see who find a slot, a reader's place or a gate held.
const (
	slotNote   = "slot %d of %d"
	readerNote = "reader of %d"
	writerNote = "writer of %d"
)

// noted is the note of a lock that a caller with o has as slot, in front of its own.
func (o *options) noted(slot int) (text string) {
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
func (l *Lease) Slot() int { return l.share.slot }

// lineKey names a line: its callers ask for one key with the same number of slots or readers.
type lineKey struct {
	key            string
	slots, readers int
}

// wish is the part of the options on which the request to the service depends.
type wish struct {
	ttl               time.Duration
	renews, adoptable bool
	note              string
}

func (o *options) wish() wish {
	return wish{ttl: o.TTL, renews: o.renewsSoon(), adoptable: o.Adoptable, note: o.Note}
}

// line holds the callers of this process who wait for a slot of one semaphore. Client.mu guards it.
//
// Its attempts ask with the options of the first caller, who gets the first slot that comes. When another caller with
// another wish becomes the first, the requests under way are cancelled and sent again for that caller: what the service
// shows of a holder, and the TTL that it grants, are the holder's own.
type line struct {
	client  *Client
	key     lineKey
	waiting list.List  // of *attempt, first come first
	fresh   bool       // some in it have not been told yet whether a slot may be had
	spots   []spot     // by slot
	last    error      // what its attempts were told last; nil: nothing yet
	held    *HeldError // the last holder that they were told of, of another process if there is one; nil: none
	at      string     // the key of the slot that it holds
	wait    context.Context
	stop    context.CancelFunc // ends wait, when nobody waits any more
}

// spot is one slot as a line sees it.
type spot struct {
	answered bool                    // the service, or a holder of this process, has stood in the way
	refused  bool                    // time does not remove that
	asks     wish                    // for which the last request was sent
	cancel   context.CancelCauseFunc // ends that request; nil: there was none
}

// errOtherWish ends a request for a slot: the first in the line has other options.
var errOtherWish = errors.New("the first in the line for a slot has other options")

// anySlot gets a slot of the semaphore a.key.
func (a *attempt) anySlot() (*Lease, error) {
	c, key := a.client, lineKey{a.key, a.opts.slots, a.opts.readers}
	c.mu.Lock()
	crowd := c.lines[key] != nil
	c.mu.Unlock()
	var seen []error
	var last error
	if a.once || !crowd {
		var l *Lease
		if l, seen, last = a.trySlots(); l != nil || a.once || obstacle.In(last) == nil || errors.Is(last, a.wait.Err()) {
			return l, last
		}
	}
	return a.standInLine(key, seen, last)
}

// firstSlot is the slot that a caller tries first. It is the one that this process has released last, for one caller: who takes
// and releases a slot in turn finds that free, however many others are held. Otherwise chance picks it, so that callers seldom meet.
func (c *Client) firstSlot(key string, n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.vacated; s.of == key && s.slot < n {
		c.vacated = share{}
		return s.slot
	}
	return rand.IntN(n)
}

// trySlots asks for one slot after the other until it gets one, or meets an error that is no obstacle. A caller that waits
// for any slot stops before that, at a slot that cannot be asked for and, without MaxWaiters, at one that has waiters: it
// finds a free one from within the line. All others ask for each slot, as a waiter that has died keeps its place for a
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
		case held != nil && (held.Waiters == 0 || a.once || a.opts.MaxWaiters > 0):
			continue
		case held == nil && a.once:
			return a.tryRest(first, i+1, seen, err)
		}
		break
	}
	return nil, seen, a.noneFree(seen, err)
}

// trySlot asks for slot, without waiting for it.
func (a *attempt) trySlot(wait context.Context, slot int) (*Lease, error) {
	try := *a
	try.once, try.wait = true, wait
	try.share = share{of: a.key, slot: slot}
	try.key, try.opts.Note = try.share.key(), a.opts.noted(slot)
	l, err := try.compete()
	a.compare(err)
	return l, err
}

// stagger is how long tryRest waits for the answer about one slot before it asks for the next.
const stagger = 20 * time.Millisecond

// tryRest is trySlots from the slot first+begin on, for a caller that does not wait, after down, the answer that an
// earlier slot could not be asked for. Each that cannot may take a second to say so: the next is asked for meanwhile.
func (a *attempt) tryRest(first, begin int, seen []error, down error) (*Lease, []error, error) {
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
			a.client.giveBack(l)
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
	return nil, seen, a.noneFree(seen, down)
}

// noneFree returns the error of a caller that has found no slot free. last is the last error, or, where a slot could not
// be asked for, that of such a slot: then nobody knows whether one is free.
func (a *attempt) noneFree(seen []error, last error) error {
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
	case held == 0 || !a.once:
		return last
	}
	return fmt.Errorf("%d of its %d %s are held, and the others cannot be asked for: %w", held, len(seen), what, last)
}

// compare says where another holder has another number of slots or readers.
func (a *attempt) compare(obstacle error) {
	held, ok := errors.AsType[*HeldError](obstacle)
	if !ok {
		return
	}
	others := numbered(held.Holder.Note)
	gave := number(a.opts.slots, "slot")
	if a.opts.readers > 0 {
		gave = number(a.opts.readers, "reader")
	}
	if others != "" && others != gave {
		a.client.events.differs(DiffersEvent{Key: a.key, Gave: gave, Others: others, Holder: held.Holder})
	}
}

// numbered is the number that noted has put into note, and of what, such as "3 slots"; "": it has no such number.
func numbered(note string) string {
	var slot, most int
	if n, _ := fmt.Sscanf(note, slotNote, &slot, &most); n == 2 {
		return number(most, "slot")
	}
	for _, form := range []string{readerNote, writerNote} {
		if n, _ := fmt.Sscanf(note, form, &most); n == 1 {
			return number(most, "reader")
		}
	}
	return ""
}

func number(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprint(n, " ", what)
}

// reads says whether note is that of a reader.
func reads(note string) bool {
	var most int
	n, _ := fmt.Sscanf(note, readerNote, &most)
	return n == 1
}

// standInLine waits for a slot. seen has what trySlots has met at each slot, and last is its error.
func (a *attempt) standInLine(key lineKey, seen []error, last error) (*Lease, error) {
	c := a.client
	c.mu.Lock()
	if c.ending {
		c.mu.Unlock()
		return nil, ErrClosed
	}
	q := c.lines[key]
	if q == nil {
		q = c.newLine(key, seen, last)
	}
	last = cmp.Or(q.last, last)
	crowd := q.crowd()
	if crowd != nil {
		if err := a.crowded(crowd, crowd.Waiters+q.waiting.Len()); err != nil {
			q.settle()
			c.mu.Unlock()
			return nil, err
		}
	}
	a.turn = make(chan turn, 1)
	place := q.waiting.PushBack(a)
	a.announce(q.at, q.held)
	if crowd == nil || !a.told {
		q.fresh = true
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
		c.giveBack(t.lease)
	default:
		q.waiting.Remove(place)
		q.settle()
	}
	return nil, obstacle.With(a.wait.Err(), cmp.Or(q.last, last))
}

// newLine makes a line, with an attempt for each slot. seen and last are as of standInLine. The caller holds mu, and has
// somebody wait in it, or calls settle, before it unlocks that.
func (c *Client) newLine(key lineKey, seen []error, last error) *line {
	q := &line{client: c, key: key, last: last, spots: make([]spot, max(key.slots, key.readers))}
	for slot, obstacle := range seen { // one that could not be asked for a moment ago may be free
		if held, ok := errors.AsType[*HeldError](obstacle); ok {
			q.spots[slot].answered = true
			if q.held == nil || held.Waiters > q.held.Waiters {
				q.held, q.at = held, share{key.key, slot}.key()
			}
		}
	}
	q.wait, q.stop = context.WithCancel(context.Background())
	c.lines[key] = q
	for slot := range q.spots {
		c.tasks.Go(func() { q.ask(share{of: key.key, slot: slot}) })
	}
	return q
}

// crowd returns a holder of a slot, with the number of those who wait in other processes, once there is an answer about
// each slot: before that, one of them may be free. It returns nil if no slot is known to be held. The caller holds mu.
func (q *line) crowd() *HeldError {
	if slices.ContainsFunc(q.spots, func(s spot) bool { return !s.answered }) {
		return nil
	}
	return q.held
}

// meet notes the obstacle that an attempt has met at slot, and tells those in the line that know of none yet. The caller
// holds mu.
func (q *line) meet(slot int, obstacle error) {
	q.last, q.spots[slot].answered, q.spots[slot].refused = obstacle, true, false
	if held, ok := errors.AsType[*HeldError](obstacle); ok && (q.held == nil || !held.Here) {
		q.held, q.at = held, share{q.key.key, slot}.key()
	}
	if !q.fresh {
		return
	}
	crowd := q.crowd()
	q.fresh = crowd == nil
	ahead := 0
	for e := q.waiting.Front(); e != nil; {
		w, place := e.Value.(*attempt), e
		e = e.Next()
		if crowd != nil {
			if err := w.crowded(crowd, crowd.Waiters+ahead); err != nil {
				q.waiting.Remove(place)
				w.turn <- turn{err: err}
				continue
			}
		}
		w.announce(q.at, q.held)
		ahead++
	}
	q.settle()
}

// settle ends a line in which nobody waits, and otherwise cancels the requests that were not sent for the first in it.
// The caller holds mu.
func (q *line) settle() {
	first := q.waiting.Front()
	if first == nil {
		if q.wait.Err() == nil {
			q.stop()
			delete(q.client.lines, q.key)
		}
		return
	}
	wanted := first.Value.(*attempt).opts.wish()
	for _, s := range q.spots {
		if s.cancel != nil && s.asks != wanted {
			s.cancel(errOtherWish)
		}
	}
}

// dress gives a, an attempt of the line, the options of the first who waits, and returns false where nobody does. The
// caller holds mu.
func (q *line) dress(a *attempt) bool {
	first := q.waiting.Front()
	if first == nil {
		return false
	}
	a.opts = first.Value.(*attempt).opts
	a.asks = a.opts.wish()
	a.opts.Note = a.opts.noted(a.share.slot)
	return true
}

// next takes the first out of the line; nil: nobody waits any more. The caller holds mu.
func (q *line) next() *attempt {
	first := q.waiting.Front()
	if first == nil {
		return nil
	}
	defer q.settle()
	return q.waiting.Remove(first).(*attempt)
}

// ask competes for one slot, time and again, for as long as anybody waits in the line.
func (q *line) ask(of share) {
	c := q.client
	for q.wait.Err() == nil {
		a := &attempt{client: c, ctx: context.Background(), wait: q.wait, line: q, share: of, key: of.key(), joined: true, told: true, inner: true}
		if _, err := a.compete(); err != nil && !errors.Is(err, errOtherWish) && q.fail(of.slot, err) {
			select {
			case <-time.After(refusedPause):
			case <-q.wait.Done():
			}
		}
	}
}

// refusedPause is how long a line does not ask for a slot after the service has refused it.
const refusedPause = time.Second

// fail ends an attempt for slot that has failed with err. An error that is no obstacle goes to the first in the line, as
// each caller alone would have it. Where the service refuses a slot for good, such as with a wrong password, those in the
// line wait for the other slots, and fail once all are refused. fail returns true where the slot was refused and others
// are left.
func (q *line) fail(slot int, err error) (pause bool) {
	c := q.client
	c.mu.Lock()
	defer c.mu.Unlock()
	if q.wait.Err() != nil {
		return false
	}
	down := obstacle.In(err)
	if down == nil {
		if w := q.next(); w != nil {
			w.turn <- turn{err: err}
		}
		return false
	}
	q.meet(slot, down)
	q.spots[slot].refused = true
	if slices.ContainsFunc(q.spots, func(s spot) bool { return !s.refused }) {
		return true
	}
	q.dismiss(err)
	return false
}

// dismiss sends all away with err. The caller holds mu.
func (q *line) dismiss(err error) {
	for w := q.next(); w != nil; w = q.next() {
		w.turn <- turn{err: err}
	}
}

// taker returns the caller that gets what a is granted: a itself or, where it asks for a line, the first in that; nil:
// nobody waits any more, or the first has another wish. The caller holds mu.
func (a *attempt) taker() *attempt {
	if a.line == nil {
		return a
	}
	first := a.line.waiting.Front()
	if first == nil || first.Value.(*attempt).opts.wish() != a.asks {
		return nil
	}
	w := a.line.next()
	w.share, w.opts.Note = a.share, a.opts.Note
	return w
}
