// Package observe turns the hooks of a client into measurements by classes of keys. Packages prometheus and
// otel pass them on to their libraries.
package observe

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
)

// Other is the class of all keys beyond the maximum number of classes.
const Other = "other"

const maxClasses = 1000

// WaitBuckets are the upper bounds of a histogram of waits, in seconds.
var WaitBuckets = []float64{.001, .005, .01, .05, .1, .5, 1, 5}

// HoldBuckets are the upper bounds of a histogram of the times that locks are held, in seconds.
var HoldBuckets = []float64{.001, .01, .1, .5, 1, 5, 10, 30, 60, 300, 1800, 3600}

// RenewalBuckets are the upper bounds of histograms of the delay of renewals, and of the trust left at their
// end, in seconds.
var RenewalBuckets = []float64{.001, .01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}

// States are all states of a node.
var States = []string{
	string(holdfast.NodeUp), string(holdfast.NodeDown), string(holdfast.NodeStalled), string(holdfast.NodePolling),
	string(holdfast.NodeDegraded), quarantine,
}

const quarantine = "quarantine"

// Class returns the text of key before the first "/", ":" or digit, or Other if that is empty.
func Class(key string) string {
	if end := strings.IndexAny(key, "/:0123456789"); end >= 0 {
		key = key[:end]
	}
	return cmp.Or(key, Other)
}

// Resource takes the measurements of one class. One goroutine at a time calls it, with a context that has the
// values of the caller's.
type Resource interface {
	Acquired(ctx context.Context, waited time.Duration)
	Failed(ctx context.Context, waited time.Duration, reason string)
	Ended(ctx context.Context, held time.Duration)
	Lost(ctx context.Context, reason string)
	Unconfirmed(ctx context.Context)
	Renewed(late, left time.Duration, result string)
}

// Counts holds the current numbers of a class.
type Counts struct{ Waiters, Held, AtRisk int }

// classState is one class of keys.
type classState struct {
	Resource
	name string
	Counts
}

// lease is a held lease.
type lease struct {
	of     *classState
	atRisk bool
}

// Options configure a Tracker. The zero value works.
type Options struct {
	Class      func(key string) string    // nil: Class
	MaxClasses int                        // maximum number; 0: 1,000
	Dropped    func(count int)            // called with the number of events that the client has dropped
	New        func(name string) Resource // called once for each class
}

// Tracker records metrics from the events of clients. It is safe for concurrent use.
type Tracker struct {
	opts Options

	mu      sync.Mutex // guards the fields below; no hook is called while it is held
	classes map[string]*classState
	leases  map[string]lease // by owner
	nodes   map[string]Node
	clients []*holdfast.Client
}

// New returns a Tracker.
func New(o Options) *Tracker {
	if o.Class == nil {
		o.Class = Class
	}
	if o.MaxClasses <= 0 {
		o.MaxClasses = maxClasses
	}
	return &Tracker{opts: o, classes: make(map[string]*classState), leases: make(map[string]lease), nodes: make(map[string]Node)}
}

// Watch makes Nodes include the nodes of client.
func (t *Tracker) Watch(client *holdfast.Client) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.clients = append(t.clients, client)
}

// Node is the last known state of a node.
type Node struct {
	State     string
	RoundTrip time.Duration // 0: unknown
}

// Nodes returns each known node.
func (t *Tracker) Nodes() map[string]Node {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make(map[string]Node, len(t.nodes))
	maps.Copy(all, t.nodes)
	for _, c := range t.clients {
		for _, e := range c.Nodes() {
			all[e.Node] = Node{State(e), e.RoundTrip}
		}
	}
	return all
}

// Each calls yield with each class.
func (t *Tracker) Each(yield func(name string, n Counts)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.classes {
		yield(c.name, c.Counts)
	}
}

// ClassOf returns the class of key: Other for a new class beyond the maximum.
func (t *Tracker) ClassOf(key string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.classOf(key).name
}

// classOf returns the class of key. The caller holds mu.
func (t *Tracker) classOf(key string) *classState {
	name := t.opts.Class(key)
	if c := t.classes[name]; c != nil {
		return c
	}
	if len(t.classes) >= t.opts.MaxClasses-1 { // one is reserved for Other
		name = Other
	}
	name = strings.ToValidUTF8(name, "�")
	c := t.classes[name]
	if c == nil {
		c = &classState{Resource: t.opts.New(name), name: name}
		t.classes[name] = c
	}
	return c
}

// withClass calls fn with the class of key and with mu held.
func (t *Tracker) withClass(key string, fn func(*classState)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fn(t.classOf(key))
}

// Hooks returns hooks that measure, and then call the caller's hooks.
func (t *Tracker) Hooks(caller holdfast.Hooks) holdfast.Hooks {
	return holdfast.Hooks{
		Waiting: callBoth(func(e holdfast.WaitingEvent) {
			t.withClass(e.Key, func(c *classState) { c.Waiters++ })
		}, caller.Waiting),
		Acquired: callBoth(func(e holdfast.AcquiredEvent) {
			t.withClass(e.Key, func(c *classState) {
				c.endWait(e.WaitReported)
				t.noteHold(c, e.Owner, false)
				c.Acquired(e.Context, e.Waited)
			})
		}, caller.Acquired),
		Failed: callBoth(func(e holdfast.FailedEvent) {
			t.withClass(e.Key, func(c *classState) {
				c.endWait(e.WaitReported)
				c.Failed(e.Context, e.Waited, FailureReason(e.Err))
			})
		}, caller.Failed),
		Renewed: callBoth(func(e holdfast.RenewedEvent) {
			t.withClass(e.Key, func(c *classState) {
				result := "ok"
				if e.Err != nil {
					result = "failed"
				}
				t.noteHold(c, e.Owner, t.leases[e.Owner].atRisk)
				c.Renewed(e.Lag, e.Remaining, result)
			})
		}, caller.Renewed),
		AtRisk: callBoth(func(e holdfast.AtRiskEvent) {
			t.withClass(e.Key, func(c *classState) { t.noteHold(c, e.Owner, e.AtRisk) })
		}, caller.AtRisk),
		Lost: callBoth(func(e holdfast.LostEvent) {
			t.withClass(e.Key, func(c *classState) {
				t.forgetHold(e.Owner)
				c.Ended(e.Context, e.Held)
				c.Lost(e.Context, LossReason(e.Reason))
			})
		}, caller.Lost),
		Released: callBoth(func(e holdfast.ReleasedEvent) {
			t.withClass(e.Key, func(c *classState) {
				t.forgetHold(e.Owner)
				c.Ended(e.Context, e.Held)
				if e.Err != nil {
					c.Unconfirmed(e.Context)
				}
			})
		}, caller.Released),
		Node: callBoth(func(e holdfast.NodeEvent) {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.nodes[e.Node] = Node{State(e), e.RoundTrip}
		}, caller.Node),
		SizeMismatch: caller.SizeMismatch,
		Dropped: callBoth(func(e holdfast.DroppedEvent) {
			t.restartCounts()
			t.opts.Dropped(e.Count)
		}, caller.Dropped),
	}
}

// endWait ends a wait that a Waiting event reported. After restartCounts there may be none.
func (c *classState) endWait(told bool) {
	if told {
		c.Waiters = max(c.Waiters-1, 0)
	}
}

// noteHold records that owner holds a lock of c. The caller holds mu.
func (t *Tracker) noteHold(c *classState, owner string, atRisk bool) {
	old, known := t.leases[owner]
	if known && old.atRisk == atRisk {
		return
	}
	t.forgetHold(owner)
	t.leases[owner] = lease{c, atRisk}
	c.Held++
	if atRisk {
		c.AtRisk++
	}
}

// forgetHold records that owner holds no lock any more. The caller holds mu.
func (t *Tracker) forgetHold(owner string) {
	l, known := t.leases[owner]
	if !known {
		return
	}
	delete(t.leases, owner)
	l.of.Held--
	if l.atRisk {
		l.of.AtRisk--
	}
}

// restartCounts resets the counts after events were dropped, because the ends of some waits and leases will
// never be reported. Leases are counted again at their next renewal.
func (t *Tracker) restartCounts() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.leases)
	for _, c := range t.classes {
		c.Counts = Counts{}
	}
}

// callBoth calls first and, if it is set, second.
func callBoth[E any](first, second func(E)) func(E) {
	if second == nil {
		return first
	}
	return func(e E) {
		first(e)
		second(e)
	}
}

// reason is the label for errors that match err.
type reason struct {
	err  error
	word string
}

var failures = []reason{
	{holdfast.ErrClosed, "closed"},
	{context.Canceled, "canceled"},
	{holdfast.ErrUnavailable, "unavailable"},
	{holdfast.ErrHeld, "held"},
	{context.DeadlineExceeded, "timeout"},
	{holdfast.ErrLost, "lost"},
}

var losses = []reason{
	{holdfast.ErrExpired, "expired"},
	{holdfast.ErrMaxHold, "max_hold"},
	{holdfast.ErrGone, "gone"},
}

// FailureReason returns the label for the reason why a call got no lease.
func FailureReason(err error) string { return reasonWord(failures, err) }

// LossReason returns the label for the reason why a lease was lost.
func LossReason(err error) string { return reasonWord(losses, err) }

func reasonWord(all []reason, err error) string {
	i := slices.IndexFunc(all, func(r reason) bool { return errors.Is(err, r.err) })
	if i < 0 {
		return Other
	}
	return all[i].word
}

// State returns the state of a node: the event's state, or "quarantine".
func State(e holdfast.NodeEvent) string {
	if _, ok := errors.AsType[interface {
		error
		Quarantine() time.Duration
	}](e.Err); ok && e.State == holdfast.NodeDown {
		return quarantine
	}
	return string(e.State)
}
