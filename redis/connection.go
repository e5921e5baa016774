package redis

import (
	"cmp"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/session"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis/internal/format"
	"github.com/holdfast-go/holdfast/redis/internal/link"
)

// connection is one checked connection to a node, with the findings of the gate. Package session decides what
// is sent over it.
type connection struct {
	*link.Link
	report
	n      *node
	votes  int64        // with stay: Engine.Now from which the node votes
	early  bool         // subscribed before it carries requests
	hears  atomic.Bool  // the subscription is confirmed
	looked atomic.Int64 // Engine.Now when this client last looked at the connection

	above [wire.Counters]atomic.Bool // counters of the server that a token has shown to be above the floor
}

// newConnection returns a connection that the gate has checked. It sends nothing before Start.
func newConnection(n *node, c *resp.Conn, rep report) *connection {
	s := &connection{n: n, report: rep}
	f := n.d.opts.format()
	s.Link = link.New(link.Config{
		Conn: c, Now: n.engine.Now, Sole: len(n.d.nodes) == 1, Shared: len(n.d.nodes) > 1,
		Encode: f.Encoder(rep.proof).Encode, Loads: f.LoadCommands, SessionError: format.SessionError,
	}, s)
	if s.stay != nil {
		s.votes = n.engine.Now() + int64(s.stay.Left)
	}
	s.looked.Store(cmp.Or(rep.located, n.engine.Now()))
	return s
}

// takeSnapshot returns the state of the connection, for session.Watch.
func (s *connection) takeSnapshot() session.Snapshot {
	now := s.n.engine.Now()
	sight := session.Snapshot{Now: now, Silent: s.SilentFor(now)}
	if sight.Silent > 0 {
		s.EachPending(func(r *engine.Request) {
			if r.Kind == quorum.AskRenew && (sight.Renewal == 0 || r.TTL < sight.Renewal) {
				sight.Renewal = r.TTL
			}
		})
	}
	return sight
}

// isReplacedBy reports whether the check of another connection to the same address has found another process.
func (s *connection) isReplacedBy(later report) bool {
	return s.process != "" && later.process != "" && later.process != s.process
}

// Answer implements link.Sink. If reading v panics, e fails, and so do all pending requests, because the link
// ends.
func (s *connection) Answer(e link.Entry, v resp.Value) {
	n := s.n
	read := false
	defer func() {
		if !read {
			n.failEntry(e, engine.Failure{Err: errUnreadableAnswer})
		}
	}()
	if n.d.set.takeRedirection(n, e, v) {
		read = true
		return
	}
	if format.SessionError(v) != nil { // before anything else counts, the gate checks the server again
		read = true
		n.failEntry(e, engine.Failure{Err: v.Err()})
		return
	}
	n.noteRefusal(e.Req.Kind, v)
	if c := n.d.channels; c != nil && n.noWakeUpCause() == nil { // otherwise waiters poll
		c.SubscribeAfterDenial(e.Req, v, format.Subscriber{Link: s.Link, Refused: n.setSubscribeError, Wake: n.askClaimAgain})
	}
	read = true
	n.d.set.noteAnswered(e, e.Req)
	format.Deliver(e.Req, v, s.checkToken)
}

// Fail implements link.Sink.
func (s *connection) Fail(e link.Entry, f engine.Failure) { s.n.failEntry(e, f) }

// Push implements link.Sink.
func (s *connection) Push(v resp.Value) { s.n.deliverPush(v, s) }

// Broken implements link.Sink.
func (s *connection) Broken(err error) { s.n.takeVote(s, err) }

// CanBeSpared implements link.Sink.
func (s *connection) CanBeSpared() bool { return s.n.d.set.canSpare(s.n) }

// gateFor returns the session.Gate for a request about lock; nil: about any lock.
func (s *connection) gateFor(lock *engine.Lock) session.Gate {
	g := session.Gate{
		Stays: s.stay != nil,
		Slept: s.n.place.Replaced() && session.StoodStill(s.looked.Load(), s.n.engine.Now()),
		Above: lock != nil && lock.Counter >= 0 && s.above[lock.Counter].Load(),
	}
	g.Floor, g.Unknown = s.n.d.set.leastToken(s)
	return g
}

// prepareRequest completes r for the connection. It returns an error if r must not be sent.
func (s *connection) prepareRequest(r *engine.Request) error {
	if s.clock != 0 && r.Kind.MayStartCounter() {
		r.Clock = s.clock + (s.n.engine.Now()-s.read)/int64(time.Microsecond)
	}
	return s.gateFor(r.Lock).Prepare(&r.Ask)
}

// checkToken returns an error if a token that the node has granted for lock must not be used. In a cluster the
// floor rises, and each slot has a counter of its own.
func (s *connection) checkToken(lock *engine.Lock, token int64) error {
	err := s.gateFor(lock).CheckGrant(token)
	if lock.Counter >= 0 && s.above[lock.Counter].Load() != (err == nil) {
		s.above[lock.Counter].Store(err == nil)
	}
	return err
}

var errUnreadableAnswer = errors.New("its answer could not be read")

// isRedirection reports whether an error reply is a redirection, or a temporary state of the cluster.
func isRedirection(err error) bool {
	said, ok := errors.AsType[resp.Error](err)
	return ok && slices.Contains([]string{"MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"}, format.ErrorCode([]byte(said)))
}
