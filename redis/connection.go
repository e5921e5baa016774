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
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis/internal/format"
	"github.com/holdfast-go/holdfast/redis/internal/link"
)

// session is a node over one checked connection: what the gate has found, and the link. It ends with the connection.
type session struct {
	*link.Link
	report
	n     *node
	votes int64        // with stay: Engine.Now from which the node votes
	early bool         // it is subscribed before it carries requests
	hears atomic.Bool  // the subscription is confirmed
	awake atomic.Int64 // Engine.Now when this client last looked after the connection

	above [wire.Counters]atomic.Bool // counters of the server that are above the floor, as a token has shown: requests need not say it
}

// newSession takes over a connection that the gate has checked. Nothing is sent before Start.
func newSession(n *node, c *resp.Conn, rep report) *session {
	s := &session{n: n, report: rep}
	f := n.d.opts.format()
	s.Link = link.New(link.Config{
		Conn: c, Now: n.engine.Now, Sole: len(n.d.nodes) == 1, Shared: len(n.d.nodes) > 1,
		Encode: f.Encoder(rep.proof).Encode, Loads: f.Loads, Ends: format.Ends,
	}, s)
	if s.stay != nil {
		s.votes = n.engine.Now() + int64(s.stay.Left)
	}
	s.awake.Store(cmp.Or(rep.located, n.engine.Now()))
	return s
}

// hasSlept reports whether this client stood still for so long that the server may have a successor by now, whose quarantine is
// over: both may have stood still, on a machine that was suspended.
func (s *session) hasSlept() bool {
	return s.n.place.Replaced() && s.n.engine.Now()-s.awake.Load() > int64(pingEvery)
}

// Answer implements link.Sink. Where reading v panics, e fails like all that are under way: the link ends.
func (s *session) Answer(e link.Entry, v resp.Value) {
	n := s.n
	read := false
	defer func() {
		if !read {
			n.fail(e, engine.Failure{Err: errFault})
		}
	}()
	if n.d.set.redirected(n, e, v) {
		read = true
		return
	}
	if format.Ends(v) != nil { // the gate looks again before anything else counts
		read = true
		n.fail(e, engine.Failure{Err: v.Err()})
		return
	}
	n.note(e.Req.Kind, v)
	if c := n.d.channels; c != nil && n.muted() == nil { // else waiters poll
		c.Denied(e.Req, v, format.Ears{Link: s.Link, Refused: n.deafen, Wake: n.ask})
	}
	read = true
	n.d.set.over(e, e.Req)
	format.Deliver(e.Req, v, s.usable)
}

// Fail implements link.Sink.
func (s *session) Fail(e link.Entry, f engine.Failure) { s.n.fail(e, f) }

// Push implements link.Sink.
func (s *session) Push(v resp.Value) { s.n.woken(v, s) }

// Broken implements link.Sink.
func (s *session) Broken(err error) { s.n.broken(s, err) }

// Spare implements link.Sink.
func (s *session) Spare() bool { return s.n.d.set.spare(s.n) }

// vain is why r is not sent, though the node is there: its answer could not be used. A client that asked for a
// lock nevertheless would be granted it, and with each try keep it from all others for another TTL.
func (s *session) vain(r *engine.Request) (err error) {
	if !r.Kind.Frees() && s.hasSlept() { // watch hangs up
		return errSlept
	}
	least, err := s.least()
	switch r.Kind {
	case quorum.AskAcquire, quorum.AskAdopt:
		if s.clock != 0 {
			r.Clock = s.clock + (s.n.engine.Now()-s.read)/int64(time.Microsecond)
		}
		r.Least = s.said(r.Lock, least)
		return err
	case quorum.AskCommit:
		if err != nil || r.Token < max(least, s.floor) {
			return cmp.Or(err, errOlder)
		}
	case quorum.AskRelease, quorum.AskGiveBack:
		r.Least = s.said(r.Lock, least)
	case quorum.AskRenew:
		r.Anew = r.Anew || s.stay != nil && r.Token != 0 // it grants nothing yet: a lock that is free is still its holder's
	}
	return nil
}

// least is the first token that a grant over the connection may have.
func (s *session) least() (int64, error) { return s.n.d.set.least(s) }

// said is what a request about lock says of least: nothing where the counter has shown to be above it. In a cluster
// least rises, and each slot has its own counter.
func (s *session) said(lock *engine.Lock, least int64) int64 {
	if lock.Counter >= 0 && s.above[lock.Counter].Load() {
		return 0
	}
	return least
}

// usable is why a token of lock that the node has given may not be used.
func (s *session) usable(lock *engine.Lock, token int64) error {
	least, err := s.least()
	if err == nil && token < least {
		err = errLow
	}
	if lock.Counter >= 0 && s.above[lock.Counter].Load() != (err == nil) {
		s.above[lock.Counter].Store(err == nil)
	}
	return err
}

var errFault = errors.New("its answer could not be read")

// isRedirection says whether an error reply is about where a key is, or whether the
// cluster works, and passes.
func isRedirection(err error) bool {
	said, ok := errors.AsType[resp.Error](err)
	return ok && slices.Contains([]string{"MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"}, format.Code([]byte(said)))
}

// settled says whether what is owed and was sent has been carried out.
func settled(reply any) bool {
	err, ok := reply.(resp.Error)
	return !ok || !isRedirection(err)
}
