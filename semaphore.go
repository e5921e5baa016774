package holdfast

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/holder"
)

// Semaphore is a lock that several callers hold at once. It is safe for concurrent use and holds no resources,
// so create one wherever it is needed.
//
// Each of its slots is a separate lock, and a lease is on one of them: Lease.Slot. The key of the lease,
// Lease.Key, is the semaphore's key with "#" and the slot; no caller should use that key as a lock, see
// AcquireAll. Tokens rise separately for each slot, so a storage has to compare them for each slot. Waiters get
// the first slot that becomes free, first come first served.
//
// All callers must give the same number of slots; Hooks.SizeMismatch reports a holder that gave another number.
// After the number was lowered, holders of the removed slots keep them until their leases end.
type Semaphore struct {
	client *Client
	key    string
	slots  slotKind
}

// Semaphore returns the semaphore of key with the given number of slots, from 1 to 64. For more, use a rate
// limiter or a queue. It sends no request and does not block. Wrong arguments make its methods return
// ErrInvalid.
func (c *Client) Semaphore(key string, slots int) *Semaphore {
	return &Semaphore{c, key, slotKind(slots)}
}

// Acquire acquires a slot, as Client.Acquire acquires a lock. opts may be nil; its Note has at most 48 bytes.
func (s *Semaphore) Acquire(ctx context.Context, opts *AcquireOptions) (*Lease, error) {
	return s.client.acquireKind(ctx, s.key, s.slots, opts, false)
}

// TryAcquire acquires a slot if one is free, as Client.TryAcquire acquires a lock.
func (s *Semaphore) TryAcquire(ctx context.Context, opts *AcquireOptions) (*Lease, error) {
	return s.client.acquireKind(ctx, s.key, s.slots, opts, true)
}

// Do acquires a slot, calls fn and releases the slot, as Client.Do does with a lock.
func (s *Semaphore) Do(ctx context.Context, opts *AcquireOptions, fn func(ctx context.Context, lease *Lease) error) error {
	return s.client.doKind(ctx, s.key, s.slots, opts, fn)
}

// maxSlots bounds the slots of a semaphore, because each waiting process is in the queue of each slot.
const maxSlots = 64

// A semaphore of n slots consists of n locks. Each slot has one holder at most, so n have n at most. A caller
// tries the slots one after the other, until it gets a free one or meets one that has waiters: as these wait
// for any slot, none is free. Then its process joins the queues of all slots and takes the first that it gets.
// The order is the same in all queues, so the process that came first gets a slot first.
//
// Inside a process all callers wait in one line; internal/holder describes it.

// slotKind is a semaphore. Its value is the number of slots.
type slotKind int

// Places implements holder.Kind.
func (k slotKind) Places() int { return int(k) }

// Formats of the notes on a slot, a reader's place and a gate. Callers that find the lock held see the note.
const (
	slotNote   = "slot %d of %d"
	readerNote = "reader of %d"
	writerNote = "writer of %d"
)

// NoteAt implements holder.Kind.
func (k slotKind) NoteAt(place int, note string) string {
	return withNote(fmt.Sprintf(slotNote, place, k), note)
}

// withNote puts the note of a kind before the caller's note.
func withNote(of, note string) string {
	if note != "" {
		of += ": " + note
	}
	return of
}

func (k slotKind) check(*AcquireOptions, Limits) error {
	if k < 1 || k > maxSlots {
		return invalidError("a semaphore of %d slots: give 1 to %d; for more holders at once use a rate limiter or a queue", k, maxSlots)
	}
	return nil
}

func (k slotKind) countGiven() string { return countText(int(k), "slot") }

func (k slotKind) obtain(c *Client, a *holder.Call) (*holder.Hold, error) {
	return c.obtainPlace(a, k, "slots")
}

// obtainPlace obtains any place of a.Key, used as k. word names a place in messages.
func (c *Client) obtainPlace(a *holder.Call, k kind, word string) (*holder.Hold, error) {
	if !a.NoWait && c.keeper.HasLine(a.Key, a.Kind) {
		return a.AwaitPlace(nil, nil)
	}
	s := &placeSearch{client: c, call: a, kind: k, word: word, met: make([]error, k.Places())}
	h, err := s.tryPlaces()
	if h != nil || a.NoWait || driverkit.ObstacleIn(err) == nil || errors.Is(err, a.Wait.Err()) {
		return h, err
	}
	return a.AwaitPlace(s.met, err)
}

// placeSearch asks for the places of a key, one after the other.
type placeSearch struct {
	client *Client
	call   *holder.Call
	kind   kind
	word   string  // the places, such as "slots"
	met    []error // the obstacle at each place; nil: none
}

// tryPlaces asks for one place after the other until it gets one, or meets an error that is no obstacle. A
// caller that waits for any place stops earlier: at a place that does not answer and, without MaxWaiters, at a
// place that has waiters. It then joins the line, which also finds a free place. Every other caller asks for
// each place, because a waiter that died keeps its queue position for a while.
func (s *placeSearch) tryPlaces() (h *holder.Hold, err error) {
	a, n := s.call, len(s.met)
	first := s.client.keeper.FirstPlace(a.Key, n)
	var last error
	for i := range n {
		number := (first + i) % n
		if h, err = s.tryPlace(a.Wait, number); err == nil {
			return h, nil
		}
		if s.met[number] = driverkit.ObstacleIn(err); s.met[number] == nil || a.Wait.Err() != nil {
			return nil, driverkit.WithObstacle(err, last)
		}
		last = s.met[number]
		switch held, _ := errors.AsType[*HeldError](err); {
		case held != nil && (held.Waiters == 0 || a.NoWait || a.MaxWaiters > 0):
			continue
		case held == nil && a.NoWait:
			return s.tryOthers(first, i+1, err)
		}
		break
	}
	return nil, s.noPlaceError(err)
}

// tryPlace asks for one place without waiting for its holder.
func (s *placeSearch) tryPlace(wait context.Context, number int) (*holder.Hold, error) {
	h, err := s.call.TryPlace(wait, number)
	s.client.events.reportSizeMismatch(s.kind, s.call.Key, err)
	return h, err
}

// placeStagger is the time that tryOthers waits for the answer about one place before it asks for the next.
const placeStagger = 20 * time.Millisecond

// tryOthers continues tryPlaces at the place first+begin, for a caller that does not wait for a holder. down
// is the error of the place before. As a place that is down may take a second to fail, tryOthers asks for the
// next one meanwhile.
func (s *placeSearch) tryOthers(first, begin int, down error) (*holder.Hold, error) {
	wait, cancel := context.WithCancel(s.call.Wait)
	defer cancel()
	n := len(s.met)
	holds, errs := make([]*holder.Hold, n), make([]error, n)
	var all sync.WaitGroup
	for i := begin; i < n && wait.Err() == nil; i++ {
		number := (first + i) % n
		answered := make(chan struct{})
		all.Go(func() {
			defer close(answered)
			if holds[number], errs[number] = s.tryPlace(wait, number); holds[number] != nil {
				cancel()
			}
		})
		late := time.NewTimer(placeStagger)
		select {
		case <-answered:
		case <-late.C:
		}
		late.Stop()
	}
	all.Wait()
	if got := s.client.keeper.KeepFirst(holds); got != nil {
		return got, nil
	}
	for number, err := range errs {
		if err == nil {
			continue
		}
		if s.met[number] = driverkit.ObstacleIn(err); s.met[number] == nil || s.call.Wait.Err() != nil {
			return nil, driverkit.WithObstacle(err, down)
		}
	}
	return nil, s.noPlaceError(down)
}

// noPlaceError returns the error for a caller that found no free place. last is the last error. If a place did
// not answer, last is its error, because that place may be free.
func (s *placeSearch) noPlaceError(last error) error {
	held := 0
	for _, obstacle := range s.met {
		if errors.Is(obstacle, ErrHeld) {
			held++
		}
	}
	switch {
	case errors.Is(last, ErrHeld):
		return fmt.Errorf("none of its %d %s is free; the last one is %w", len(s.met), s.word, last)
	case held == 0 || !s.call.NoWait:
		return last
	}
	return fmt.Errorf("%d of its %d %s are held, and the others cannot be asked for: %w", held, len(s.met), s.word, last)
}

// reportSizeMismatch sends a SizeMismatchEvent if obstacle names a holder of key that gave another number of slots or
// readers than k.
func (h *eventQueue) reportSizeMismatch(k kind, key string, obstacle error) {
	held, ok := errors.AsType[*HeldError](obstacle)
	if !ok {
		return
	}
	if gave, others := k.countGiven(), countInNote(held.Holder.Note); others != "" && others != gave {
		h.Log(slog.LevelWarn, "callers of the key differ in its slots or readers", "key", key, "gave", gave, "others", others, "holder", held.Holder.String())
		callHook(h, h.hooks.SizeMismatch, SizeMismatchEvent{Key: key, Requested: gave, Existing: others, Holder: held.Holder})
	}
}

// countInNote returns the number that NoteAt has written into note, such as "3 slots", or "".
func countInNote(note string) string {
	var slot, count int
	if n, _ := fmt.Sscanf(note, slotNote, &slot, &count); n == 2 {
		return countText(count, "slot")
	}
	for _, form := range []string{readerNote, writerNote} {
		if n, _ := fmt.Sscanf(note, form, &count); n == 1 {
			return countText(count, "reader")
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

// isReaderNote reports whether note belongs to a reader.
func isReaderNote(note string) bool {
	var count int
	n, _ := fmt.Sscanf(note, readerNote, &count)
	return n == 1
}
