package holdfast

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/holder"
)

// Hooks are functions that the client calls when something happens to its leases. Each may be nil. One
// goroutine calls them and writes the log, in the order of the events, at once or a few milliseconds later. A
// slow hook or a blocking Logger therefore delays other events, but no lease, no Acquire and no Release. When
// 16,384 events are pending, the client drops further events, and reports their number through Dropped and in
// the log. Because a hook may run late, Lost is for people and metrics: use Lease.Context to stop work.
//
// Key, in each event, is the key that was given to Acquire. For a slot or a reader's place, Lease.Key differs
// from it: the log and ForceRelease use Lease.Key.
//
// A hook may call any method of the client. Close and Shutdown wait up to a second for the hooks to receive
// all events, so they return even if a hook hangs or calls them. Later versions may add fields to the events.
type Hooks struct {
	Waiting      func(WaitingEvent)      // the lock is held, and the caller begins to wait
	Acquired     func(AcquiredEvent)     // a lease begins
	Failed       func(FailedEvent)       // an attempt to get a lease ended without one
	Renewed      func(RenewedEvent)      // the watchdog renewed a lease, or failed to
	AtRisk       func(AtRiskEvent)       // a lease has become at risk, or no longer is: see AtRiskEvent
	Lost         func(LostEvent)         // a lease ended before it was released
	Released     func(ReleasedEvent)     // a lease was released
	Node         func(NodeEvent)         // a node of the service changed its state
	SizeMismatch func(SizeMismatchEvent) // the holder of the key gave another number of slots or readers
	Dropped      func(DroppedEvent)      // events were dropped, because hooks were too slow
}

// WaitingEvent reports the start of a wait. The Context of this and other events has the values of the context
// that was given to Acquire, such as a trace's span, and is never cancelled.
type WaitingEvent struct {
	Context context.Context
	Key     string
	Lock    string     // key of the held lock, for Inspect: Key itself, or the key of a slot or a reader's place
	Held    *HeldError // the holder
}

// AcquiredEvent reports the start of a lease.
type AcquiredEvent struct {
	Context      context.Context
	Key          string
	Owner        string
	Token        Token
	Waited       time.Duration // since Acquire was called
	WaitReported bool          // a WaitingEvent reported the wait
	HandOver     bool          // another caller of this process passed the lock on, without the service
}

// FailedEvent reports that a call of Acquire, TryAcquire, Do or Adopt ended without a lease. Each call that
// has begun to ask or to wait sends one. A call that was rejected before sends none: with ErrInvalid,
// ErrUnsupported or ErrNested, or with ErrClosed because the client was already closed or shut down.
// AcquireAll sends one for each key that it waited for in vain, TryAcquireAll one for the key that its error
// names.
type FailedEvent struct {
	Context      context.Context
	Key          string
	Waited       time.Duration // since the call began
	WaitReported bool          // a WaitingEvent reported the start of the wait
	Err          error         // the cause, without the *Error that the call returns
}

// RenewedEvent reports the end of one round of renewal. A writer sends one for all its locks together: it is
// renewed when all of them are, and Err names a lock that was not.
type RenewedEvent struct {
	Key       string
	Owner     string
	Token     Token
	Deadline  time.Time     // the lease is valid until then
	Remaining time.Duration // the time that was left of the old lease when the round ended
	Lag       time.Duration // time by which the round ended after it was due; 0 if it was not late, or Extend started it
	Waiters   int           // number of other waiters, as far as it is known
	Err       error         // the round failed; it is repeated until the lease ends
}

// AtRiskEvent reports a change in the redundancy of a lease, once for each change. It comes with the renewal
// after the one that met the change. A driver whose leases can never lose a node, as with one node or two,
// sends none.
type AtRiskEvent struct {
	Key    string
	Owner  string
	Token  Token
	AtRisk bool // true: exactly as many nodes as needed have the lock; false: more have it again
}

// LostEvent reports the end of a lease that was not released.
type LostEvent struct {
	Context context.Context
	Key     string
	Owner   string
	Token   Token
	Held    time.Duration // since it was acquired
	Reason  error         // matches ErrLost and ErrExpired, ErrMaxHold or ErrGone
}

// ReleasedEvent reports the release of a lease.
type ReleasedEvent struct {
	Context context.Context
	Key     string
	Owner   string
	Token   Token
	Held    time.Duration // since it was acquired
	// Detached reports that the lock was left in place for another client to adopt.
	Detached bool
	// Err reports why the service did not confirm the release. The lock may then stay held until its TTL ends.
	Err error
}

// NodeEvent is the state of one node, or a change of it.
type NodeEvent = driver.NodeEvent

// NodeState tells whether a node votes, and if not, why.
type NodeState = driver.NodeState

// The states of a node.
const (
	NodeUp       = driver.NodeUp       // votes
	NodeDown     = driver.NodeDown     // cannot be reached or rejects the connection
	NodeStalled  = driver.NodeStalled  // connected, but does not answer in time
	NodePolling  = driver.NodePolling  // votes, but cannot wake waiters, so they poll
	NodeDegraded = driver.NodeDegraded // votes, but needs an operator
)

// SizeMismatchEvent reports that a caller found the key held by a holder that had given another number of slots or
// readers. All callers of a key should give the same number: otherwise more of them may hold the key than the
// smaller number allows. Each such attempt sends the event.
type SizeMismatchEvent struct {
	Key       string
	Requested string // what the attempt gave, such as "3 slots"
	Existing  string // what the holder gave, such as "4 slots" or "16 readers"
	Holder    Holder
}

// DroppedEvent reports that events were dropped at this point.
type DroppedEvent struct{ Count int }

const (
	maxEvents    = 1 << 14          // bound of the events that wait for slow hooks
	pollInterval = time.Millisecond // interval at which the goroutine looks for events
	maxIdlePolls = 16               // number of empty polls after which the goroutine ends
)

// eventQueue delivers events to the hooks and the log, in its own goroutine. Starting or waking a goroutine
// for each event would cost more than most hooks do. So the goroutine polls while there are events, and ends
// after some polls without one. The first event after that starts it again and is delivered at once.
type eventQueue struct {
	hooks  Hooks
	logger *slog.Logger
	hurry  chan struct{} // closed by drain, to end the pauses between polls

	mu        sync.Mutex // guards the fields below; locked after the mutex of the keeper
	queue     []queuedEvent
	delivered int           // number of events of queue that are delivered
	done      chan struct{} // closed when the goroutine ends; nil: no goroutine runs
}

// queuedEvent is one event, and the number of events that were dropped after it.
type queuedEvent struct {
	fn      func()
	dropped int
}

// enqueue appends an event. tell delivers it. enqueue does not block.
func (h *eventQueue) enqueue(tell func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.queue); n-h.delivered == maxEvents {
		h.queue[n-1].dropped++
		return
	}
	if h.delivered >= maxEvents {
		h.queue, h.delivered = slices.Delete(h.queue, 0, h.delivered), 0
	}
	h.queue = append(h.queue, queuedEvent{fn: tell})
	if h.done == nil {
		h.done = make(chan struct{})
		go h.deliverAll()
	}
}

// deliverAll delivers the queued events, until the queue has been empty for maxIdlePolls polls.
func (h *eventQueue) deliverAll() {
	pause := time.NewTimer(pollInterval)
	defer pause.Stop()
	for idle := 0; ; {
		next, more := h.dequeue(idle >= maxIdlePolls)
		switch {
		case next.fn != nil:
			h.deliverEvent(next)
			idle = 0
		case !more:
			return
		default:
			idle++
			pause.Reset(pollInterval)
			select {
			case <-pause.C:
			case <-h.hurry:
				idle = maxIdlePolls
			}
		}
	}
}

// dequeue removes the first event from the queue, if there is one. If the queue is empty and last is set, it
// ends the goroutine and returns false for more.
func (h *eventQueue) dequeue(last bool) (first queuedEvent, more bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.delivered < len(h.queue) {
		first, h.queue[h.delivered] = h.queue[h.delivered], queuedEvent{}
		h.delivered++
		return first, true
	}
	h.queue, h.delivered = h.queue[:0], 0
	if last {
		close(h.done)
		h.queue, h.done = nil, nil
	}
	return first, !last
}

// deliverEvent calls the hooks for one event, and reports the events that were dropped after it.
func (h *eventQueue) deliverEvent(n queuedEvent) {
	n.fn()
	if n.dropped == 0 {
		return
	}
	h.writeLog(time.Now(), slog.LevelWarn, "events dropped; a hook or the Logger is too slow", "count", n.dropped)
	if h.hooks.Dropped != nil {
		h.hooks.Dropped(DroppedEvent{Count: n.dropped})
	}
}

// drain waits until the hooks have received all events, or ctx ends. It is called once.
func (h *eventQueue) drain(ctx context.Context) {
	close(h.hurry)
	h.mu.Lock()
	done := h.done
	h.mu.Unlock()
	if done == nil {
		return
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// Log queues a line for the log, with the present time.
func (h *eventQueue) Log(level slog.Level, text string, args ...any) {
	now := time.Now()
	h.enqueue(func() { h.writeLog(now, level, text, args...) })
}

func (h *eventQueue) writeLog(at time.Time, level slog.Level, text string, args ...any) {
	ctx := context.Background()
	if !h.logger.Enabled(ctx, level) {
		return
	}
	r := slog.NewRecord(at, level, text, 0)
	r.Add(readablePairs(args)...)
	h.logger.Handler().Handle(ctx, r)
}

// readablePairs prepares the pairs of a log line for people who read them as JSON: it writes durations with
// their units, and leaves out nil values.
func readablePairs(args []any) (pairs []any) {
	for pair := range slices.Chunk(args, 2) {
		switch v := pair[1].(type) {
		case nil:
			continue
		case time.Duration:
			pair = []any{pair[0], v.Round(time.Millisecond).String()}
		}
		pairs = append(pairs, pair...)
	}
	return pairs
}

// AtRisk implements holder.Events.
func (h *eventQueue) AtRisk(e holder.AtRisk) {
	if e.AtRisk {
		h.Log(slog.LevelWarn, "lease at risk: the loss of one more node ends it", "key", e.Key, "token", e.Token)
	} else {
		h.Log(slog.LevelInfo, "lease no longer at risk", "key", e.Key, "token", e.Token)
	}
	callHook(h, h.hooks.AtRisk, AtRiskEvent(e))
}

// callHook enqueues a call of hook with e, if hook is set.
func callHook[E any](h *eventQueue, hook func(E), e E) {
	if hook != nil {
		h.enqueue(func() { hook(e) })
	}
}

// Waiting implements holder.Events.
func (h *eventQueue) Waiting(e holder.Waiting) { callHook(h, h.hooks.Waiting, WaitingEvent(e)) }

// Acquired implements holder.Events.
func (h *eventQueue) Acquired(e holder.Acquired) { callHook(h, h.hooks.Acquired, AcquiredEvent(e)) }

// Failed implements holder.Events.
func (h *eventQueue) Failed(e holder.Failed) { callHook(h, h.hooks.Failed, FailedEvent(e)) }

// Renewed implements holder.Events.
func (h *eventQueue) Renewed(e holder.Renewed) { callHook(h, h.hooks.Renewed, RenewedEvent(e)) }

// Lost implements holder.Events.
func (h *eventQueue) Lost(e holder.Lost) { callHook(h, h.hooks.Lost, LostEvent(e)) }

// Released implements holder.Events.
func (h *eventQueue) Released(e holder.Released) { callHook(h, h.hooks.Released, ReleasedEvent(e)) }

// ObstacleMet implements holder.Events.
func (h *eventQueue) ObstacleMet(of holder.Kind, key string, held *HeldError) {
	h.reportSizeMismatch(of.(kind), key, held)
}
