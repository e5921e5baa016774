package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/member"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/session"
	"github.com/holdfast-go/holdfast/redis/internal/format"
	"github.com/holdfast-go/holdfast/redis/internal/link"
	"github.com/holdfast-go/holdfast/redis/internal/place"
	"github.com/holdfast-go/holdfast/redis/internal/server"
)

var (
	errNotOpen  = errors.New("not connected yet")
	errHungUp   = errors.New("hung up")
	errMoved    = errors.New("another server is the master now")
	errReplaced = errors.New("another process of the server has its address now")
)

// node is one server of the set. It sends requests over the present connection. Its supervisor (supervisor.go)
// opens the connections, and its ledger (ledger.go) keeps the releases that the server may not have executed.
type node struct {
	d      *core
	engine *engine.Engine
	index  int
	addr   string

	net   *place.Net
	place place.Place // finds its present server

	ctx    context.Context // ends with the driver, or when a cluster has taken its slots away
	stop   context.CancelFunc
	opened chan struct{} // of a cluster: closed after the first attempt to connect
	lane   engine.Lane   // of a shard: for the locks in its hash slots

	link      atomic.Pointer[connection] // connected and checked; nil: down
	listening atomic.Bool                // wake-ups are wanted
	stalled   atomic.Bool                // connected, but does not answer
	trip      atomic.Int64               // smoothed round trip of link; 0: not measured yet

	ill atomic.Pointer[error] // reason why it grants nothing at present, from its last answer

	mu      sync.Mutex // guards the fields below
	err     error      // reason why it is down, or was down last
	mute    error      // reason why it cannot wake waiters
	deaf    error      // reason why this client cannot subscribe
	defect  error      // fault for an operator to repair, although the node votes
	ordered bool       // its wake-ups arrive in their place among the replies
	warned  map[string]bool
	news    []error // defects that are not logged yet
	server  string  // address of its present or last server
	moved   bool    // a change of server is not logged yet
	ledger  session.Ledger[engine.Lock]
}

// credentialsAside returns a function that calls fn, a hook of the program, and returns at the latest when its
// context ends. It returns nil for nil.
func credentialsAside(fn func(context.Context, string) (user, password string, err error)) func(context.Context, string) (string, string, error) {
	if fn == nil {
		return nil
	}
	type pair struct{ user, password string }
	return func(ctx context.Context, addr string) (string, string, error) {
		got, err := driverkit.CallUserFunc(ctx, func() (got pair, err error) {
			got.user, got.password, err = fn(ctx, addr)
			return got, err
		}, func(pair) {})
		return got.user, got.password, err
	}
}

func newNode(d *core, index int, cfg Node) *node {
	o := &d.opts
	credentials := credentialsAside(o.Credentials)
	if credentials == nil {
		user, password := cfg.Username, cfg.Password
		if user == "" && password == "" {
			user, password = o.Username, o.Password
		}
		credentials = func(context.Context, string) (string, string, error) { return user, password, nil }
	}
	n := &node{
		d: d, index: index, addr: cfg.Addr, ctx: d.ctx, err: errNotOpen, warned: make(map[string]bool),
		net: &place.Net{
			Dialer:  server.Dialer{Dial: o.Dial, TLS: o.TLS, Fresh: o.freshTLS, ClientName: o.ClientName, DB: o.DB},
			Timeout: o.Timeout, Credentials: credentials,
		},
	}
	switch fixed := (place.Fixed{Net: n.net, Addr: cfg.Addr}); {
	case o.Cluster:
		n.place = &place.Shard{Fixed: fixed}
	case cfg.Failover != nil:
		n.place = cfg.Failover.makePlace(n.net)
	default:
		n.place = &fixed
	}
	return n
}

// Name implements engine.Node.
func (n *node) Name() string { return n.addr }

// Send implements engine.Node.
func (n *node) Send(r *engine.Request) { n.sendEntry(link.Entry{Req: r, At: r.Sent}) }

// sendEntry sends e over the present connection, or fails it.
func (n *node) sendEntry(e link.Entry) {
	l := n.link.Load()
	if l == nil {
		err := n.downCause()
		n.failEntry(e, engine.Failure{Err: err, Unsent: true, Fatal: server.IsPermanent(err) && !n.d.admitted.Load()})
		return
	}
	switch err := l.prepareRequest(e.Req); {
	case err == nil:
		l.Send(e)
	case errors.Is(err, session.ErrStays):
		n.failEntry(e, engine.Failure{Err: n.downCause(), Unsent: true}) // the error contains the remaining quarantine
	default:
		n.failEntry(e, engine.Failure{Err: err, Unsent: true})
	}
}

// failEntry fails an entry that the node has not answered and never will.
func (n *node) failEntry(e link.Entry, f engine.Failure) {
	f.Err = n.d.set.blameNode(n, f.Err)
	if e.Call != nil {
		e.Call.End(f.Err)
		return
	}
	n.d.set.noteAnswered(e, nil)
	if e.Frees() {
		n.d.set.nodeForRelease(e.Req.Lock, n).oweRelease(e.Req)
	}
	f.Unsent = f.Unsent && !e.Repeated()
	e.Req.Fail(f)
}

// runCommands sends commands that are not lock requests, and returns the answers.
func (n *node) runCommands(ctx context.Context, cmds ...[]string) ([]any, error) {
	l := n.link.Load()
	switch {
	case n.d.ctx.Err() != nil:
		return nil, driver.ErrClosed
	case l == nil || l.stay != nil:
		return nil, n.downCause()
	}
	return l.Do(ctx, cmds...)
}

// downCause returns the reason why the node is down, or was down last.
func (n *node) downCause() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.err
}

// currentEvent returns the current state of the node.
func (n *node) currentEvent() driver.NodeEvent {
	n.mu.Lock()
	defer n.mu.Unlock()
	e, ill, l := driver.NodeEvent{Node: n.addr, State: driver.NodeUp, RoundTrip: time.Duration(n.trip.Load())}, n.ill.Load(), n.link.Load()
	switch {
	case l == nil || l.stay != nil:
		e.State, e.Err, e.RoundTrip = driver.NodeDown, n.err, 0
	case n.stalled.Load():
		e.State, e.Err = driver.NodeStalled, link.ErrStalled
	case n.mute != nil || n.deaf != nil:
		e.State, e.Err = driver.NodePolling, cmp.Or(n.mute, n.deaf)
	case ill != nil:
		e.State, e.Err = driver.NodeDegraded, *ill
	case n.defect != nil:
		e.State, e.Err = driver.NodeDegraded, n.defect
	}
	return e
}

// noteRefusal records whether an answer shows that the node stores nothing, for example because its memory is
// full. The defect stays until the node grants a lock again, or its connection ends.
func (n *node) noteRefusal(asked quorum.AskKind, v resp.Value) {
	switch {
	case v.IsError() && slices.Contains([]string{"OOM", "MISCONF", "NOREPLICAS"}, format.ErrorCode(v.Text)):
		err := server.AddAdvice(v.Err(), false)
		n.ill.Store(&err)
	case asked == quorum.AskAcquire && v.Kind == ':' && n.ill.Load() != nil:
		n.ill.Store(nil)
	}
}

// stableCause returns the text of err without the parts that change from one attempt to the next: the port of
// a connection, and the remaining quarantine.
func stableCause(err error) string {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Op + " " + op.Err.Error()
	}
	if _, ok := errors.AsType[*member.QuarantineError](err); ok {
		return "quarantine"
	}
	return fmt.Sprint(err)
}

// awaitAnswers waits for the answers to all that was sent, for at most a second. It also waits for a node that
// seems silent: on a busy machine every node does, and a release that is not sent keeps its lock held for a
// TTL.
func (n *node) awaitAnswers() {
	l := n.link.Load()
	if l == nil {
		return
	}
	ctx, cancel := context.WithTimeout(n.d.ctx, pace.AskTime())
	defer cancel()
	l.Do(ctx, []string{"PING"})
}

// pauseFor blocks for d, or until ctx ends.
func pauseFor(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
