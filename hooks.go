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

// Hooks are called when something happens to the client's leases. Each may be
// nil. One goroutine calls them and writes the log, one event after the other in
// the order in which they happened, at once or a few milliseconds later: a slow hook,
// or a Logger that blocks, delays other events, but no lease, no Acquire and no Release. When 16,384 events
// wait, the client drops the events that follow, and reports how many through Dropped
// and the log. So a hook may be called after the fact: Lost is for people and
// metrics. Use Lease.Context to stop work.
//
// Key, in each event, is the key that was given to Acquire. For a slot or a reader's place, Lease.Key differs from
// that; the log names it, as ForceRelease does.
//
// A hook may call any method of the client. Close and Shutdown wait until the hooks
// have been called for all events, but for no longer than a second: so they do not
// hang when a hook hangs, or when a hook calls them. Later versions may add fields
// to the events.
type Hooks struct {
	Waiting  func(WaitingEvent)  // the lock is held, and a wait begins
	Acquired func(AcquiredEvent) // a lease begins
	Failed   func(FailedEvent)   // an attempt to get a lease ended without one
	Renewed  func(RenewedEvent)  // the watchdog renewed a lease, or failed to
	AtRisk   func(AtRiskEvent)   // a lease can spare no further node, or can again
	Lost     func(LostEvent)     // a lease ended before it was released
	Released func(ReleasedEvent) // a lease was released
	Node     func(NodeEvent)     // a node of the service changed its state
	Differs  func(DiffersEvent)  // another holder of the key gave another number of slots or readers
	Dropped  func(DroppedEvent)  // events were dropped, because those before them took too long
}

// WaitingEvent is the start of a wait. The Context of this and other events carries the
// values of the context that was given to Acquire, such as a trace's span, and is never cancelled.
type WaitingEvent struct {
	Context context.Context
	Key     string
	Lock    string     // the key of the held lock, for Inspect: Key, or the key of a slot or a place
	Held    *HeldError // who holds it
}

// AcquiredEvent is the start of a lease.
type AcquiredEvent struct {
	Context  context.Context
	Key      string
	Owner    string
	Token    Token
	Waited   time.Duration // since Acquire was called
	Told     bool          // a WaitingEvent told of the wait
	HandOver bool          // passed on inside the process, without the service
}

// FailedEvent is the end of a call of Acquire, TryAcquire, Do or Adopt that returns no
// lease: once for each call that has begun to ask or to wait. There is none for a call
// that was refused before: with ErrInvalid, ErrUnsupported, ErrNested, or ErrClosed by a
// client that was closed or shut down already. AcquireAll has one for each key that it has waited
// for in vain, TryAcquireAll one for the key that its error names.
type FailedEvent struct {
	Context context.Context
	Key     string
	Waited  time.Duration // since the call
	Told    bool          // a WaitingEvent told of the wait, and no AcquiredEvent of its end
	Err     error         // what the call returns is an *Error around it
}

// RenewedEvent is the end of one round of renewal. A writer has one for the locks that it holds together: it is renewed
// when all of them are, and Err names one that was not.
type RenewedEvent struct {
	Key      string
	Owner    string
	Token    Token
	Deadline time.Time     // the lease is trusted until then
	Left     time.Duration // what was left of the old trust when the round ended
	Late     time.Duration // from when the round was due to its end; 0: Extend ordered it, or it ended before
	Waiters  int           // how many others wait, as far as is known
	Err      error         // the round failed, and another is tried while trust lasts
}

// AtRiskEvent reports that the redundancy of a lease has changed, once for each change. It
// comes with the renewal after the one that has shown it. A driver whose lease can
// never spare a node, as with one node or two, sends none.
type AtRiskEvent struct {
	Key    string
	Owner  string
	Token  Token
	AtRisk bool // as many nodes as are needed have the lock, and no more; false: more of them do again
}

// LostEvent is the end of a lease that was not released.
type LostEvent struct {
	Context context.Context
	Key     string
	Owner   string
	Token   Token
	Held    time.Duration // since it was acquired
	Reason  error         // matches ErrLost and ErrExpired, ErrMaxHold or ErrGone
}

// ReleasedEvent is the end of a lease.
type ReleasedEvent struct {
	Context context.Context
	Key     string
	Owner   string
	Token   Token
	Held    time.Duration // since it was acquired
	// Detached reports that the lock was left for another client to adopt.
	Detached bool
	// Err is the reason why the service did not confirm the release: the lock may stay held
	// until its TTL is over.
	Err error
}

// NodeEvent is the state of one node, or a change to it.
type NodeEvent = driver.NodeEvent

// NodeState is the ability of a node to vote.
type NodeState = driver.NodeState

// The states of a node.
const (
	NodeUp       = driver.NodeUp       // votes
	NodeDown     = driver.NodeDown     // cannot be reached or refuses the connection
	NodeStalled  = driver.NodeStalled  // connected, but does not answer in time
	NodePolling  = driver.NodePolling  // votes, but cannot wake waiters: they poll
	NodeDegraded = driver.NodeDegraded // votes, but an operator should change something
)

// DiffersEvent reports a holder that was given another number of slots or readers than the caller who found the key held.
// All callers of a key should give the same: more may hold it than the smaller number allows. It comes with each such attempt.
type DiffersEvent struct {
	Key    string
	Gave   string // what the attempt gave, such as "3 slots"
	Others string // what the holder gave, such as "4 slots" or "16 readers"
	Holder Holder
}

// DroppedEvent reports that events were dropped at this place in their order.
type DroppedEvent struct{ Count int }

const (
	maxEvents    = 1 << 14          // that wait for slow hooks
	pollInterval = time.Millisecond // of the goroutine that looks for events
	maxIdlePolls = 16               // polls without an event that end the goroutine
)

// eventQueue delivers events to the hooks and the log, from a goroutine of its own. To start or
// to wake a goroutine for each event would cost more than most hooks do. So the goroutine polls
// while there are events, and ends after some polls without one. The first event after that is
// delivered at once.
type eventQueue struct {
	hooks  Hooks
	logger *slog.Logger
	hurry  chan struct{} // closed by drain: ends the pauses between polls

	mu    sync.Mutex // guards what follows; locked after the mutex of the keeper
	queue []queuedEvent
	told  int           // of queue: events delivered so far
	done  chan struct{} // closed when the queue is empty and the goroutine ends; nil: there is none
}

// queuedEvent is one event, and how many were dropped after it.
type queuedEvent struct {
	fn      func()
	dropped int
}

// enqueue calls tell after everything that was put before. It does not block.
func (h *eventQueue) enqueue(tell func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.queue); n-h.told == maxEvents {
		h.queue[n-1].dropped++
		return
	}
	if h.told >= maxEvents {
		h.queue, h.told = slices.Delete(h.queue, 0, h.told), 0
	}
	h.queue = append(h.queue, queuedEvent{fn: tell})
	if h.done == nil {
		h.done = make(chan struct{})
		go h.deliverAll()
	}
}

// deliverAll calls what is in the queue, until that has been empty for long.
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

// dequeue takes the first event out of the queue, if there is one. Where there is none, last
// ends the goroutine: more is false.
func (h *eventQueue) dequeue(last bool) (first queuedEvent, more bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.told < len(h.queue) {
		first, h.queue[h.told] = h.queue[h.told], queuedEvent{}
		h.told++
		return first, true
	}
	h.queue, h.told = h.queue[:0], 0
	if last {
		close(h.done)
		h.queue, h.done = nil, nil
	}
	return first, !last
}

// deliverEvent calls the hooks for one event, and for the events dropped after it.
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

// drain waits until the hooks have been called for everything, or ctx ends. It is called
// once.
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

// Log puts a line into the log, with the time of now.
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

// readablePairs returns the pairs of a log line as people read them in JSON too: durations with their units, and no value that
// is nil.
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

// Met implements holder.Events.
func (h *eventQueue) Met(of holder.Kind, key string, held *HeldError) {
	h.reportDiffering(of.(kind), key, held)
}
