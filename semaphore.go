package holdfast

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"

	"github.com/holdfast-go/holdfast/internal/obstacle"
)

// mostSlots bounds a semaphore, as each process that waits stands in the queue of each slot.
const mostSlots = 64

// A semaphore of n slots is n locks. What is safe about it is each lock by itself: a slot has one
// holder, so n have n at most. A caller tries the slots one after the other, until one of them is free, or
// has waiters: they wait for any slot, so none is free. Then its process stands in the
// queues of all slots, and takes the first that comes: who came first is first in each of them.
//
// Inside a process, callers that ask for the same wait in one line. For each slot one attempt of the line
// competes as any caller would, in the process and then at the service, and the first in the line gets
// what it is granted. So a process keeps its places at the service until nobody waits in it any more.

// share is a slot of a semaphore, or a place of a read and write lock. The zero value stands for a lock.
type share struct {
	of   string // the key of the semaphore
	slot int
}

// key is that of the lock which the slot is.
func (s share) key() string { return s.of + "#" + strconv.Itoa(s.slot) }

// What people see who find a slot, a reader's place or a gate held.
const (
	slotNote   = "slot %d of %d"
	readerNote = "reader of %d"
	writerNote = "writer of %d"
)

// noted is the note of a lock that a caller with o has as slot, in front of its own.
func (o *AcquireOptions) noted(slot int) (text string) {
	switch {
	case o.Slots > 0:
		text = fmt.Sprintf(slotNote, slot, o.Slots)
	case o.Shared:
		text = fmt.Sprintf(readerNote, o.Readers)
	default:
		text = fmt.Sprintf(writerNote, o.Readers)
	}
	if o.Note != "" {
		text += ": " + o.Note
	}
	return text
}

// places is how many locks beside the key's own belong to what o asks for; 0: none.
func (o *AcquireOptions) places() int { return max(o.Slots, o.Readers) }

// Slot is the slot of a semaphore that the lease is on, or its place among the readers, from 0 on; no other
// holder has it at the same time. It is 0 for a lock and for a writer, and where Adopt has taken the lease over: then
// Key alone names the slot.
func (l *Lease) Slot() int { return l.share.slot }

// wish is what callers ask for that wait in one line.
type wish struct {
	key  string
	opts AcquireOptions // those that bear on the request to the service
}

// line is the callers of this process who wait for a slot of one semaphore with one wish. Client.mu guards it.
type line struct {
	client  *Client
	wish    wish
	waiting list.List // of *attempt, first come first
	last    error     // what its attempts were told last; nil: nothing yet
	at      string    // the key of the slot that this is about
	wait    context.Context
	stop    context.CancelFunc // ends wait, when nobody waits any more
}

// anySlot gets a slot of the semaphore a.key.
func (a *attempt) anySlot() (*Lease, error) {
	w := wish{a.key, AcquireOptions{
		TTL: a.opts.TTL, Slots: a.opts.Slots, Readers: a.opts.Readers, Shared: a.opts.Shared,
		NoRenew: a.opts.NoRenew, Margin: a.opts.Margin, Adoptable: a.opts.Adoptable, Note: a.opts.Note,
	}}
	c := a.client
	c.mu.Lock()
	crowd := c.lines[w] != nil
	c.mu.Unlock()
	var at string
	var last error
	if a.once || !crowd {
		var l *Lease
		if l, at, last = a.trySlots(); l != nil || a.once || obstacle.In(last) == nil || errors.Is(last, a.wait.Err()) {
			return l, last
		}
	}
	return a.standInLine(w, at, last)
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

// trySlots asks for one slot after the other, until it gets one, has an error that does not say that the slot is held, or
// has to wait behind others. at is the key of the last one. A caller that does not wait asks for each slot all the same: a
// waiter that has died keeps its place for a while.
func (a *attempt) trySlots() (l *Lease, at string, err error) {
	n := a.opts.places()
	first := a.client.firstSlot(a.key, n)
	var last error
	for i := range n {
		try := *a
		try.once = true
		try.share = share{of: a.key, slot: (first + i) % n}
		at = try.share.key()
		try.key, try.opts.Note = at, a.opts.noted(try.share.slot)
		if l, err = try.compete(); err == nil {
			return l, at, nil
		}
		if !errors.Is(err, ErrHeld) {
			return nil, at, obstacle.With(err, last)
		}
		last = err
		a.compare(err)
		if held, ok := errors.AsType[*HeldError](err); ok && held.Waiters > 0 && !a.once {
			break
		}
	}
	what := "slots"
	if a.opts.Shared {
		what = "places for readers"
	}
	return nil, at, fmt.Errorf("none of its %d %s is free; the last one is %w", n, what, err)
}

// compare says where another holder has another number of slots or readers.
func (a *attempt) compare(obstacle error) {
	held, ok := errors.AsType[*HeldError](obstacle)
	if !ok {
		return
	}
	others := numbered(held.Holder.Note)
	gave := number(a.opts.Slots, "slot")
	if a.opts.Readers > 0 {
		gave = number(a.opts.Readers, "reader")
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

// standInLine waits for a slot. last is what stood in the way of that at; nil: it is not known.
func (a *attempt) standInLine(w wish, at string, last error) (*Lease, error) {
	c := a.client
	c.mu.Lock()
	if c.ending {
		c.mu.Unlock()
		return nil, ErrClosed
	}
	q := c.lines[w]
	if q == nil {
		q = c.newLine(w)
	}
	if q.last == nil {
		q.last, q.at = last, at
	}
	last = q.last
	others := q.waiting.Len()
	if held, ok := errors.AsType[*HeldError](last); ok {
		others += held.Waiters
	}
	if err := a.crowded(last, others); err != nil {
		q.tidy()
		c.mu.Unlock()
		return nil, err
	}
	a.turn = make(chan turn, 1)
	place := q.waiting.PushBack(a)
	a.announce(q.at, last)
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
		q.tidy()
	}
	return nil, obstacle.With(a.wait.Err(), cmp.Or(q.last, last))
}

// newLine makes a line, with an attempt for each slot. The caller holds mu, and has somebody wait in it
// before it unlocks that.
func (c *Client) newLine(w wish) *line {
	q := &line{client: c, wish: w}
	q.wait, q.stop = context.WithCancel(context.Background())
	c.lines[w] = q
	for slot := range w.opts.places() {
		c.tasks.Go(func() { q.ask(share{of: w.key, slot: slot}) })
	}
	return q
}

// tidy ends a line in which nobody waits. The caller holds mu.
func (q *line) tidy() {
	if q.waiting.Len() == 0 && q.wait.Err() == nil {
		q.stop()
		delete(q.client.lines, q.wish)
	}
}

// next takes the first out of the line; nil: nobody waits any more. The caller holds mu.
func (q *line) next() *attempt {
	first := q.waiting.Front()
	if first == nil {
		return nil
	}
	defer q.tidy()
	return q.waiting.Remove(first).(*attempt)
}

// ask competes for one slot, time and again, for as long as anybody waits in the line. An error that is not about that goes to
// the first who waits, as each caller alone would have it.
func (q *line) ask(of share) {
	c := q.client
	for q.wait.Err() == nil {
		a := &attempt{
			client: c, ctx: context.Background(), wait: q.wait, line: q, share: of, key: of.key(), opts: q.wish.opts, joined: true, told: true, inner: true,
		}
		a.opts.Note = q.wish.opts.noted(of.slot)
		if _, err := a.compete(); err != nil {
			c.mu.Lock()
			if w := q.next(); w != nil {
				w.turn <- turn{err: err}
			}
			c.mu.Unlock()
		}
	}
}

// dismiss sends all away. The caller holds mu.
func (q *line) dismiss() {
	for w := q.next(); w != nil; w = q.next() {
		w.turn <- turn{err: ErrClosed}
	}
}

// taker is who gets what a is granted: a itself or, where it asks for a line, the first in that; nil:
// nobody waits any more. The caller holds mu.
func (a *attempt) taker() *attempt {
	if a.line == nil {
		return a
	}
	w := a.line.next()
	if w != nil {
		w.share, w.opts.Note = a.share, a.opts.Note
	}
	return w
}
