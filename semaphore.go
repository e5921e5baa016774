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
	slots  slotKind
}

// Semaphore returns the semaphore of key with so many slots, from 1 to 64: for more, use a rate limiter or a queue.
// It asks no server and does not block; wrong arguments are ErrInvalid of the calls that follow.
func (c *Client) Semaphore(key string, slots int) *Semaphore {
	return &Semaphore{c, key, slotKind(slots)}
}

// Acquire takes a slot, as Client.Acquire takes a lock. opts may be nil; its Note has 48 bytes at most.
func (s *Semaphore) Acquire(ctx context.Context, opts *AcquireOptions) (*Lease, error) {
	return s.client.acquireKind(ctx, s.key, s.slots, opts, false)
}

// TryAcquire takes a slot if one is free, as Client.TryAcquire takes a lock.
func (s *Semaphore) TryAcquire(ctx context.Context, opts *AcquireOptions) (*Lease, error) {
	return s.client.acquireKind(ctx, s.key, s.slots, opts, true)
}

// Do takes a slot, calls fn and releases, as Client.Do does with a lock.
func (s *Semaphore) Do(ctx context.Context, opts *AcquireOptions, fn func(ctx context.Context, lease *Lease) error) error {
	return s.client.doKind(ctx, s.key, s.slots, opts, fn)
}

// maxSlots bounds a semaphore, as each waiting process has a place in the queue of each slot.
const maxSlots = 64

// A semaphore of n slots is n locks. What is safe about it is each lock by itself: a slot has one
// holder, so n have n at most. A caller tries the slots one after the other, until one of them is free, or
// has waiters: they wait for any slot, so none is free. Then its process stands in the
// queues of all slots, and takes the first that comes: who came first is first in each of them.
//
// Inside a process, all callers wait in one line, as internal/holder describes it.

// slotKind takes one of so many slots of a semaphore.
type slotKind int

// Places implements holder.Kind.
func (k slotKind) Places() int { return int(k) }

// The notes of a slot, a reader's place and a gate, for people who find them held.
const (
	slotNote   = "slot %d of %d"
	readerNote = "reader of %d"
	writerNote = "writer of %d"
)

// NoteAt implements holder.Kind.
func (k slotKind) NoteAt(place int, note string) string {
	return withNote(fmt.Sprintf(slotNote, place, k), note)
}

// withNote returns the note of a kind in front of the caller's.
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

func (k slotKind) gave() string { return countText(int(k), "slot") }

func (k slotKind) obtain(c *Client, a *holder.Call) (*holder.Hold, error) {
	return c.obtainPlace(a, k, "slots")
}

// obtainPlace gets any place of a.Key, which is used as k. word names its places.
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
	word   string  // for the places, such as "slots"
	met    []error // the obstacles, by place; nil: none
}

// tryPlaces asks for one place after the other until it gets one, or meets an error that is no obstacle. A caller that waits
// for any place stops before that, at a place that cannot be asked for and, without MaxWaiters, at one that has waiters: it
// finds a free one from within the line. All others ask for each place, as a waiter that has died keeps its position for a
// while.
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

// tryPlace asks for a place, without waiting for it.
func (s *placeSearch) tryPlace(wait context.Context, number int) (*holder.Hold, error) {
	h, err := s.call.TryPlace(wait, number)
	s.client.events.reportDiffering(s.kind, s.call.Key, err)
	return h, err
}

// stagger is the time that tryOthers waits for the answer about one place before it asks for the next.
const stagger = 20 * time.Millisecond

// tryOthers goes on as tryPlaces from the place first+begin on, for a caller that does not wait, after down, the error of a
// place that could not be asked for. Each such place may take a second to fail: the next is asked for meanwhile.
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
		late := time.NewTimer(stagger)
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

// noPlaceError returns the error of a caller that has found no place free. last is the last error, or the
// error of a place that could not be asked for: then it is unknown whether one is free.
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

// reportDiffering sends a DiffersEvent if the obstacle is a holder of key that gave another number of slots or readers than k has.
func (h *eventQueue) reportDiffering(k kind, key string, obstacle error) {
	held, ok := errors.AsType[*HeldError](obstacle)
	if !ok {
		return
	}
	if gave, others := k.gave(), countInNote(held.Holder.Note); others != "" && others != gave {
		h.Log(slog.LevelWarn, "callers of the key differ in its slots or readers", "key", key, "gave", gave, "others", others, "holder", held.Holder.String())
		callHook(h, h.hooks.Differs, DiffersEvent{Key: key, Gave: gave, Others: others, Holder: held.Holder})
	}
}

// countInNote returns the number that NoteAt has put into note, such as "3 slots"; "": it has no such number.
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

// isReaderNote reports whether note is the note of a reader.
func isReaderNote(note string) bool {
	var count int
	n, _ := fmt.Sscanf(note, readerNote, &count)
	return n == 1
}
