package redis

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/member"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis/internal/format"
	"github.com/holdfast-go/holdfast/redis/internal/server"
)

// A node votes while all of these conditions hold:
//
//	it is the master of its place        Place.Login and Role, package place
//	it evicts nothing                    checkFitness, below, unless AllowEviction
//	it is on the list once               noteArrival, below; a shard of a Cluster is known by its id
//	it permits all commands of locks     tryPermissions, below
//	its scripts are atomic               checkSteps, below, once for each run of a server
//	it reports its run                   package member; not for a single server
//	its clock and this client's agree    member.Floor, to a minute, if tokens begin at the clock
//	its clients agree on the set         package member
//	its marker names its present run     package member
//	its marker has not changed           each script compares it, member.lua; not for a single server, nor in a Cluster

const (
	admitTries    = 8           // how often the marker may change during one check
	staleLocation = time.Second // duration from which a check asks again for the master
)

// gate checks each new connection, and carries out the decisions of package member: whether the node may vote.
// While the connection is open, the node asks the server for INFO each second, for recheckServer, and each
// script compares the marker of a set. docs/protocol.md, "When a server is looked at again", lists what may
// change in between.
type gate struct {
	opts  *Options
	n     int // number of nodes
	start time.Time

	mu      sync.Mutex              // guards the fields below
	present map[string]string       // by address: the run of the connected server
	states  map[string]member.State // by address
	stepped map[string]string       // by address: the run of the server whose scripts were found to be atomic
}

func newGate(opts *Options, n int) *gate {
	if opts.Cluster {
		n = 1 // each shard votes alone
	}
	return &gate{
		opts: opts, n: n, start: time.Now(),
		present: make(map[string]string), states: make(map[string]member.State), stepped: make(map[string]string),
	}
}

// report holds the findings of a check, without the error that keeps the node from voting.
type report struct {
	server.WakeFaults                         // how waiters are woken
	proof             format.Proof            // identifies the node in each request
	ordered           bool                    // wake-ups arrive in their place among the replies
	server            string                  // the dialed address
	located           int64                   // Engine.Now when the place was asked for that address
	hello             map[string]string       // reply to HELLO
	process           string                  // run_id of the server
	run               string                  // the same; for a node that fails over, with its last promotion
	since             string                  // last promotion, of a node that fails over
	floor             int64                   // lowest token that the server may grant
	clock, read       int64                   // the server's clock at Engine.Now read, at which its tokens begin; 0: they begin at the client's clock
	stay              *member.QuarantineError // set if it does not vote yet, but keeps the locks that it has
	skipped           bool                    // this client let it vote without a quarantine
	warns             map[string]error        // by subject
	defects           map[string]error        // by subject; these may appear and disappear while the connection is open; never nil
}

func (r *report) addWarning(about string, err error) {
	if r.warns == nil {
		r.warns = make(map[string]error)
	}
	r.warns[about] = err
}

// dialNode opens a connection to a node and checks the node over it. Each answer restarts the timeout: on an
// overloaded machine all answers come late, and with one timeout for all, no attempt might ever succeed.
func (g *gate) dialNode(ctx context.Context, n *node) (*resp.Conn, report, error) {
	opening, cancel := context.WithTimeout(ctx, g.opts.Timeout)
	defer cancel()
	located := n.engine.Now()
	addr, err := n.place.Locate(opening)
	if err != nil {
		return nil, report{}, err
	}
	l, err := n.net.Connect(opening, addr)
	if err != nil {
		return nil, report{}, n.place.At(addr, n.adviseError(addr, err, g.opts.TLS != nil))
	}
	ctx, answered, cancel := server.WithPatience(ctx, g.opts.Timeout)
	defer cancel()
	unblock := context.AfterFunc(ctx, func() { l.SetDeadline(time.Unix(1, 0)) })
	l.Answered = answered
	rep, err := g.checkServer(ctx, n, addr, l)
	l.Answered = nil
	// A master that was suspended during the check may have a successor whose quarantine is over. A single
	// Sentinel may have been suspended with it and still name it.
	if err == nil && n.place.Replaced() && n.engine.Now()-located > int64(staleLocation) {
		located = n.engine.Now()
		var now string
		if now, err = n.place.Locate(ctx); err == nil && now != addr {
			err = errMoved
		}
	}
	if !unblock() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_, secure := l.Conn.(*tls.Conn) // Dial may have encrypted it
		l.Close()
		if n.link.Load() == nil {
			g.noteLeave(n.addr)
		}
		if ctx.Err() != nil {
			err = server.LateError(ctx, err)
		}
		return nil, rep, n.place.At(addr, n.adviseError(addr, err, secure))
	}
	rep.located = located
	return l, rep, nil
}

// checkServer checks whether the server at the other end may vote. A panic about one of its answers ends only
// this connection.
func (g *gate) checkServer(ctx context.Context, n *node, addr string, l *resp.Conn) (rep report, err error) {
	err = resp.CatchPanic(func() (err error) {
		rep, err = g.examineServer(ctx, n, addr, l)
		return err
	})
	return rep, err
}

func (g *gate) examineServer(ctx context.Context, n *node, addr string, l *resp.Conn) (rep report, err error) {
	rep.server = addr
	says, err := g.identifyServer(ctx, n, l, &rep)
	if err != nil {
		return rep, err
	}
	marker, err := g.admitNode(l, n, rep.run, &rep) // first, because a client of a node in quarantine comes again each second
	if g.opts.ReadOnly {
		return rep, err
	}
	if stay, ok := errors.AsType[*member.QuarantineError](err); ok && g.n == 1 {
		rep.stay, err = stay, nil
	}
	if err != nil && !server.LacksPermission(err.Error()) {
		return rep, err
	}
	if err := g.tryPermissions(n, l, &rep.WakeFaults); err != nil {
		return rep, err // the error names each missing permission
	}
	if err != nil {
		return rep, err
	}
	if err := g.checkSteps(ctx, n, l, &rep); err != nil {
		return rep, err
	}
	if g.opts.format().OwnCounters() {
		if rep.floor, err = member.Floor(marker, rep.run, says.clock, g.seedClock(n, says.clock, says.asked.UnixMicro())); err != nil {
			return rep, g.explainRefusal(fmt.Errorf("%s: %w", g.markerKey(n), err))
		}
		if own := says.clock; own == g.seedClock(n, own, says.asked.UnixMicro()) {
			rep.clock, rep.read = own, says.read
		}
	}
	if g.rulesFor(n).Guarded() && n.place.Shard() == "" { // if the marker is in another hash slot than the lock
		rep.proof = format.Proof{Set: g.opts.setKey(), Marker: marker}
	}
	rep.ordered = server.KeepsMessageOrder(says.hello, says.info)
	defect, err := rep.Subscribe(l, says.hello, n.engine.Client())
	if defect != nil {
		rep.addWarning("wake", defect)
	}
	return rep, err
}

// serverReplies holds the answers of a server about itself.
type serverReplies struct {
	hello, info map[string]string
	asked       time.Time // when it was asked, by this client's clock
	clock       int64     // the server's clock then, in µs since 1970
	read        int64     // Engine.Now when the answer was known
}

// identifyServer logs in, and rejects a server that is not the node, or would lose locks. It records the run
// of the server.
func (g *gate) identifyServer(ctx context.Context, n *node, l *resp.Conn, rep *report) (s serverReplies, err error) {
	if s.hello, err = n.place.Login(ctx, rep.server, l); err != nil {
		return s, err
	}
	s.asked = time.Now()
	cmds := [][]string{{"INFO"}, {"TIME"}}
	values, err := l.Do(cmds...)
	if err != nil {
		return s, err
	}
	rtt := time.Since(s.asked)
	s.info = server.ParseInfo(string(values[0].Text))
	if rep.defects, err = g.checkFitness(n, s.hello, s.info); err != nil {
		return s, err // the error is clearer than one about the missing run_id
	}
	if err := server.FirstError(cmds, values); err != nil {
		return s, err
	}
	s.read = n.engine.Now()
	if s.clock, err = server.ParseTime(values[1]); err != nil {
		return s, err
	}
	if err := server.CheckClockSkew(s.clock, s.asked, rtt); err != nil {
		rep.addWarning("clock", err)
	}
	if err := n.place.Identify(l); err != nil {
		return s, err
	}
	rep.process = strings.Clone(s.info["run_id"]) // a substring would keep all of INFO in memory
	rep.hello, rep.run = s.hello, rep.process
	if n.place.Shard() == "" {
		note := g.noteArrival
		if n.link.Load() != nil {
			note = g.checkArrival
		}
		if err := note(n.addr, rep.process); err != nil {
			return s, err
		}
	}
	if n.place.Replaced() {
		rep.since = server.PromotionID(s.info)
		rep.run = member.Run(rep.run, rep.since)
	}
	return s, nil
}

// tryPermissions loads the scripts and tries the permissions that they need.
func (g *gate) tryPermissions(n *node, l *resp.Conn, w *server.WakeFaults) error {
	return w.Try(l, g.opts.format(), g.opts.probeKeys(n.engine.Client()+n.place.Tag()), n.engine.Client())
}

// checkSteps checks, once for each run of a server, that scripts are atomic there. It needs a second
// connection. If that fails, the next check of the server repeats it.
func (g *gate) checkSteps(ctx context.Context, n *node, l *resp.Conn, rep *report) error {
	g.mu.Lock()
	run, known := g.stepped[rep.server]
	g.mu.Unlock()
	if known && run == rep.process {
		return nil
	}
	second, answered, cancel := server.WithPatience(ctx, g.opts.Timeout/2)
	defer cancel()
	restart := l.Answered // no request is sent over l meanwhile
	var unfit error
	n.net.Visit(second, rep.server, func(other *resp.Conn) (err error) {
		other.Answered = func() { restart(); answered() }
		other.Answered()
		if _, err := n.place.Login(second, rep.server, other); err != nil {
			return err
		}
		unfit = errUnreadableAnswer // if reading an answer panics, or l breaks, later answers cannot be matched to requests
		known, unfit = server.CheckSteps(l, other, g.opts.probeKeys(n.engine.Client()+"."+rand.Text()+n.place.Tag()))
		return nil
	})
	restart()
	if known && unfit == nil {
		g.mu.Lock()
		g.stepped[rep.server] = rep.process
		g.mu.Unlock()
	}
	return unfit
}

// checkFitness rejects servers that would lose locks, and returns the defects of servers that may lose some.
func (g *gate) checkFitness(n *node, hello, info map[string]string) (defects map[string]error, err error) {
	if defects, err = n.place.Role(hello, info); err != nil {
		return nil, err
	}
	defects = maps.Clone(defects)
	if defects == nil {
		defects = make(map[string]error)
	}
	if err := server.CheckEviction(info); err != nil {
		if !g.opts.AllowEviction {
			return nil, err
		}
		defects["eviction"] = err
	}
	return defects, nil
}

// recheckServer compares a later answer to INFO with the checks. It returns the defects of the server of s, or
// the error that ends its vote over s. Both are nil if the answer has no information, as from a busy server.
func (g *gate) recheckServer(s *connection, answer any) (defects map[string]error, err error) {
	text, ok := answer.(string)
	if !ok {
		if err, refused := answer.(resp.Error); refused && server.LacksPermission(string(err)) {
			return nil, server.AddAdvice(err, false)
		}
		return nil, nil
	}
	info := server.ParseInfo(text)
	switch since := server.PromotionID(info); {
	case info["run_id"] != s.process:
		return nil, errOtherProcess
	case s.n.place.Replaced() && since != "" && since != s.since:
		return nil, errMoved
	}
	return g.checkFitness(s.n, s.hello, info)
}

// errOtherProcess ends a connection whose other end has switched to another server process.
var errOtherProcess = errors.New("another process of the server answers over the same connection, as behind a proxy: it may have forgotten locks")

// errNoRun rejects a server without a run_id as one of several nodes.
var errNoRun = server.UnfitError("give Redis or Valkey themselves, not a proxy, or use this server alone", "%w", member.ErrNoRun)

// noteArrival records that addr is connected to a server, and rejects a second vote of the same server.
func (g *gate) noteArrival(addr, run string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.findTwinLocked(addr, run); err != nil {
		return err
	}
	g.present[addr] = run
	return nil
}

// checkArrival rejects a second vote of the same server for a new connection while addr still has an open one.
func (g *gate) checkArrival(addr, run string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.findTwinLocked(addr, run)
}

// findTwinLocked returns an error if another address leads to the same run of a server. The caller holds mu.
func (g *gate) findTwinLocked(addr, run string) error {
	for other, r := range g.present {
		if r == run && other != addr && run != "" {
			return server.UnfitError("list every server once", "it is the same server as %s, which would vote twice", other)
		}
	}
	return nil
}

// noteLeave records that addr is not connected any more.
func (g *gate) noteLeave(addr string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.present, addr)
}

// rulesFor returns the rules of this client for n.
func (g *gate) rulesFor(n *node) member.Rules {
	return member.Rules{
		Nodes: g.n, FailsOver: n.place.Replaced(), MaxTTL: g.opts.MaxTTL, DB: g.opts.DB,
		NoQuarantine: g.opts.NoQuarantine, ReadOnly: g.opts.ReadOnly,
	}
}

// markerKey returns the key of n's marker.
func (g *gate) markerKey(n *node) string { return n.place.MarkerKey(g.opts.format(), g.opts.Prefix) }

// observeNode reads the marker of n and the clocks.
func (g *gate) observeNode(l *resp.Conn, n *node, run string) (o member.Observation, err error) {
	values, err := server.Ask(l, []string{"GET", g.markerKey(n)}, []string{"TIME"}) // in this order, so that the marker is not newer than the time
	if refused, ok := errors.AsType[resp.Error](err); ok && format.ErrorCode([]byte(refused)) == "WRONGTYPE" {
		return o, g.explainRefusal(fmt.Errorf("%s: %w", g.markerKey(n), member.ErrType))
	}
	if err != nil {
		return o, err
	}
	o = member.Observation{Name: n.addr, Run: run, Shard: n.place.Shard(), Mono: time.Since(g.start), Client: time.Now().UnixMicro()}
	o.Marker, _ = values[0].Decode().(string)
	o.Node, err = server.ParseTime(values[1])
	o.Client = g.seedClock(n, o.Node, o.Client)
	return o, err
}

// seedClock returns the clock, besides the node's, at which tokens begin: the client's clock, which all nodes
// of a set have in common. For a single server that no other replaces it is the server's own, so that tokens
// rise even if the clocks of clients differ. If the clocks differ by a minute, one of them is wrong, and
// package member detects that.
func (g *gate) seedClock(n *node, own, client int64) int64 {
	if g.rulesFor(n).Guarded() || max(own-client, client-own) > quorum.MaxClockSkew {
		return client
	}
	return own
}

// judgeNode decides whether a node may vote, and stores what this client learned about the node. It calls
// durable only if the answer matters.
func (g *gate) judgeNode(r member.Rules, o member.Observation, durable func() bool) member.Verdict {
	decide := func() (v member.Verdict) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.states[o.Name], v = r.Decide(g.states[o.Name], o)
		return v
	}
	v := decide()
	if v.AskDurable {
		o.Durable = member.AnswerOf(durable())
		v = decide()
	}
	return v
}

// admitNode returns the marker of a server that may vote or is in quarantine. A promoted server has the data
// of another server, so it does not count as durable.
func (g *gate) admitNode(l *resp.Conn, n *node, run string, rep *report) (marker string, err error) {
	durable := sync.OnceValue(func() bool { return rep.defects["promoted"] == nil && g.isDurable(l) })
	for range admitTries {
		o, err := g.observeNode(l, n, run)
		if err != nil {
			return "", err
		}
		v := g.judgeNode(g.rulesFor(n), o, durable)
		if v.Votes || v.Err != nil {
			return o.Marker, g.explainRefusal(v.Err)
		}
		done, err := g.swapMarker(l, n, o.Marker, v.Write)
		if err != nil {
			return "", err
		}
		rep.skipped = rep.skipped || done && v.SkipsQuarantine
	}
	return "", errMarker
}

// swapMarker replaces the marker if it is still old, and reports whether it did.
func (g *gate) swapMarker(l *resp.Conn, n *node, old, next string) (done bool, err error) {
	key := g.markerKey(n)
	values, err := server.Ask(l, []string{"SCRIPT", "LOAD", wire.Admit.Text}, []string{"EVALSHA", wire.Admit.SHA, "1", key, old, next})
	if err != nil {
		return false, fmt.Errorf("its marker %s cannot be written: %w", key, err)
	}
	number, _ := values[1].Int()
	return number == 1, nil
}

// isDurable reports whether the server writes everything to disk before it answers, and reads it back when it
// starts.
func (g *gate) isDurable(l *resp.Conn) bool {
	if kept, err := server.SyncsToDisk(l); err != nil || !kept {
		return false
	}
	read, err := server.ReplaysScripts(l, g.opts.probeKeys("doctor"))
	return read && err == nil
}

// explainRefusal adds the fix to the error that keeps a node from voting.
func (g *gate) explainRefusal(err error) error {
	switch conflict, ok := errors.AsType[*member.ConflictError](err); {
	case ok && conflict.Newer:
		return server.UnfitError("update this program: https://github.com/holdfast-go/holdfast/blob/main/docs/operations.md#versions", "%w", err)
	case ok && conflict.Version:
		return server.UnfitError("once no client of that version is left, DEL "+g.opts.setKey()+" on every node: https://github.com/holdfast-go/holdfast/blob/main/docs/operations.md#versions", "%w", err)
	case ok:
		mend := fmt.Sprintf("give all clients the same nodes and maxttl, and Sentinels where failover is "+
			"(if the set was changed on purpose: DEL %s on every node once no old client is left)", g.opts.setKey())
		return server.UnfitError(mend, "%w", err)
	case errors.Is(err, member.ErrFloor), errors.Is(err, member.ErrType):
		return server.UnfitError("DEL that key on this node, which is admitted again as if it were new", "%w", err)
	case errors.Is(err, member.ErrClocks):
		return errClocks
	case errors.Is(err, member.ErrNoRun):
		return errNoRun
	}
	return err
}

// errSkipped is logged each time a client skips a quarantine.
var errSkipped = server.Advise(errors.New("quarantine=off has let it vote at once, though it may have forgotten locks that still stand: "+
	"two may hold one, unless nobody has used it before"), "leave quarantine=off out once the set has had its first lock")

// errClocks rejects clocks that disagree, because tokens cannot begin at them.
var errClocks = server.Advise(member.ErrClocks, "synchronise both")

var errMarker = errors.New("other clients keep changing its marker")
