package holdfast

import (
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Hooks are called when something happens to the client's leases. Each may be
// nil. They are called without any lock held, from the goroutine in which the
// thing happened, possibly several at once; they must return quickly, and not
// call Close, which waits for them. The events may grow.
type Hooks struct {
	Waiting  func(WaitingEvent)  // the lock is held, and a wait begins
	Acquired func(AcquiredEvent) // a lease begins
	Renewed  func(RenewedEvent)  // the watchdog renewed a lease, or failed to
	Lost     func(LostEvent)     // a lease ended before it was released
	Released func(ReleasedEvent) // a lease was released
	Node     func(NodeEvent)     // a node of the service changed its state
}

// WaitingEvent is the start of a wait.
type WaitingEvent struct {
	Key  string
	Held *HeldError // who holds the lock
}

// AcquiredEvent is the start of a lease.
type AcquiredEvent struct {
	Key      string
	ID       string
	Token    Token
	Waited   time.Duration // since Acquire was called
	HandOver bool          // passed on inside the process, without the service
}

// RenewedEvent is the end of one round of renewal.
type RenewedEvent struct {
	Key      string
	ID       string
	Token    Token
	Deadline time.Time     // the lease is trusted until then
	Left     time.Duration // what was left of the old trust when the round ended
	Waiters  int           // how many others wait, as far as is known
	Err      error         // the round failed, and another is tried while trust lasts
}

// LostEvent is the end of a lease that was not released.
type LostEvent struct {
	Key    string
	ID     string
	Token  Token
	Held   time.Duration // since it was acquired
	Reason error         // matches ErrLost
}

// ReleasedEvent is the end of a lease.
type ReleasedEvent struct {
	Key   string
	ID    string
	Token Token
	Held  time.Duration // since it was acquired
	// Detached says that the lock was left standing, for whoever adopts it.
	Detached bool
	// Err says that the service did not confirm the release: the lock may stand
	// until its TTL is over.
	Err error
}

// NodeEvent is a change of one node's state.
type NodeEvent = driver.NodeEvent

func (h *Hooks) waiting(e WaitingEvent) {
	if h.Waiting != nil {
		h.Waiting(e)
	}
}

func (h *Hooks) acquired(e AcquiredEvent) {
	if h.Acquired != nil {
		h.Acquired(e)
	}
}

func (h *Hooks) renewed(e RenewedEvent) {
	if h.Renewed != nil {
		h.Renewed(e)
	}
}

func (h *Hooks) lost(e LostEvent) {
	if h.Lost != nil {
		h.Lost(e)
	}
}

func (h *Hooks) released(e ReleasedEvent) {
	if h.Released != nil {
		h.Released(e)
	}
}

func (h *Hooks) node(e NodeEvent) {
	if h.Node != nil {
		h.Node(e)
	}
}
