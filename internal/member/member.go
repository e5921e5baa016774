// Package member decides whether a node may vote, as one client sees it. It is pure: no I/O, no clock, no goroutine. The gate of
// package redis gives it what it observes of a node and carries out the verdict; the model checker (verify/model) does the same
// in every order of faults.
//
// A node may be one server, the master that Sentinels name, the master among replicas, or a shard of a Redis Cluster. Here the last
// three are one case, a node that fails over (Rules.FailsOver). Which server the node is now, package place of redis finds out:
// its master.go asks the Sentinels and the replicas, its shard.go a master of a Cluster who it is. The head of redis/gate.go lists all that a vote needs.
//
// What it does not promise: it sees what a node shows. Data that are put back together with the marker of the present run pass, and so do
// data that a durable node has lost all the same (docs/protocol.md, Who may vote).
//
// A node that has forgotten what it granted must not vote before all those leases
// are over (the Redlock page, "Performance, crash recovery and fsync"). Neither its
// configuration nor a clock says whether it has forgotten. The marker does: a key
// without an end that the node itself keeps.
//
// A run is one life of a server process: Redis gives each a run_id. Of a node that
// fails over it also ends when another server takes its place, and again when the first comes back.
//
//	                  not seen in it                        quarantine is over
//	nothing, or ──────────────────────────► first seen ──────────────────────► admitted
//	an earlier run                          in this run                        in this run
//	    │                                                                          ▲
//	    └────────── admitted in a run that was durable, and durable now ───────────┘
//
// The quarantine is over when one client has seen the marker for so long by its own monotonic clock. Clients that live
// shorter have wall clocks alone, and one that is set may be both the client's and the node's, as they run on one machine. No
// rule over times that were stored can tell that from time that has passed. So by wall clocks it takes two such periods in a
// row, and the time at which the second one begins stands in the marker too: clocks that are set once spoil one of them.
//
// Which node votes in a new run:
//
//	                                   at once                                 else it sits out a quarantine, and takes
//	one server alone                   always
//	one of several servers             if it was durable, and still is         nothing
//	a master that replicas stand by    never                                   renewals and releases, as the only node
//	a shard of a Redis Cluster         if this client has seen it admitted     renewals and releases
//	                                   since its last start or promotion; or
//	                                   if it was not promoted since its start,
//	                                   and its marker is missing or another shard's
//
// Each step is one compare-and-swap: it fails if the data are wiped between the
// observation and the step. Data that are wiped later take the marker with them. NoQuarantine
// goes to admitted at once, and so does one server alone. Each admission but that by
// a durable run names the first token that the node may give from now on.
package member

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/quorum"
)

// Rules are what the clients of a set have to agree on about a node, and what this client has chosen for itself.
type Rules struct {
	Nodes     int  // that vote on one lock: 1 in a Redis Cluster
	FailsOver bool // another server may take the node's place
	MaxTTL    time.Duration
	DB        int

	NoQuarantine bool // this client lets nodes vote at once that may have forgotten
	ReadOnly     bool // this client only looks: it admits no node
}

// Quarantine is how long a node does not vote that may have forgotten leases of up to maxTTL. Two
// seconds more, because clocks do not run equally fast.
func Quarantine(maxTTL time.Duration) time.Duration { return maxTTL + 2*time.Second }

// Guarded says whether the marker guards the node's vote: another node, or another server in its
// place, could vote against what it forgot.
func (r Rules) Guarded() bool { return r.Nodes > 1 || r.FailsOver }

const (
	version   = " v=3"      // of what stands on the nodes (docs/wire.md, Versions)
	failsOver = " failover" // stands in the marker of a node that fails over
)

// agreement is what all clients of a set agree on: the beginning of its marker. One
// server alone has no quarantine, and so no MaxTTL that would matter. The number of the database is there for SWAPDB.
func (r Rules) agreement() string {
	text := "n=" + strconv.Itoa(r.Nodes) + version
	if r.FailsOver {
		text += failsOver
	}
	if r.Guarded() {
		text += " maxttl=" + strconv.FormatInt(r.MaxTTL.Milliseconds(), 10)
	}
	if r.Guarded() && r.DB != 0 {
		text += " db=" + strconv.Itoa(r.DB)
	}
	return text
}

// Observation is what a client has learned of a node at one moment.
type Observation struct {
	Marker  string // that the node keeps; "": none
	Name    string // by which this client knows the node
	Run     string // of the server: see Run
	Shard   string // of a shard of a cluster: its id
	Durable Answer // whether it writes to disk before it answers, and reads that back

	Mono         time.Duration // this client's monotonic clock
	Client, Node int64         // the wall clocks of both, in µs since 1970, read after the marker
}

// Answer is what a client knows about a question.
type Answer uint8

// The answers. A client asks only if the verdict says so.
const (
	NotAsked Answer = iota
	Yes
	No
)

// Known is the answer that ok stands for.
func Known(ok bool) Answer {
	if ok {
		return Yes
	}
	return No
}

// State is what one client remembers of one node. The zero value remembers nothing.
type State struct {
	Admitted []string      // the runs in which the client saw the node admitted, in that order; never changed in place
	Waiting  string        // the marker of the quarantine that the client sees, as long as it has not changed
	Since    time.Duration // when it first saw that one, by its monotonic clock
}

// Verdict is what a client does next. One of the first four is set.
type Verdict struct {
	Votes      bool   // the node may vote
	AskDurable bool   // find out whether the node is durable, and decide again
	Write      string // the marker to write if the node still has the one observed; then observe again
	Err        error  // the node does not vote: *ConflictError, *QuarantineError, ErrClocks, ErrNoRun or ErrNoVote

	Skips bool // Write lets a node vote that may have forgotten what it granted, because NoQuarantine says so
}

// Decide decides about a node by what the client remembers of it and observes now.
func (r Rules) Decide(s State, o Observation) (State, Verdict) {
	switch {
	case r.Guarded() && o.Run == "":
		return s, Verdict{Err: ErrNoRun}
	case r.ReadOnly:
		return s, r.look(s, o)
	}
	rest, ours := strings.CutPrefix(o.Marker, r.agreement())
	m, known := parse(rest)
	switch {
	case o.Marker != "" && !(ours && known):
		return s, Verdict{Err: r.conflict(o)}
	case o.Run == "" && o.Marker == "": // one server behind a proxy that hides its run; others may see it
		return s, r.write(marker{})
	case o.Run == "":
		return s, Verdict{Votes: true}
	case SameRun(m.run, o.Run):
		return s.admitted(o.Run), Verdict{Votes: true}
	case s.remembersShard(m, o):
		return s, r.admit(o)
	}
	// A client that knows the node by another name cannot tell the node's own marker from a copy. It leaves that to those
	// who can, and so does not put all of them off.
	remembers := m.run != "" && m.durable != "" && !s.outdates(m.run, o.Run)
	if remembers && o.Durable == NotAsked {
		return s, Verdict{AskDurable: true}
	}
	remembers = remembers && o.Durable == Yes
	switch {
	case remembers && m.durable == label(o.Name):
		m.run, m.seen = o.Run, ""
		return s, r.write(m)
	case r.NoQuarantine || !r.Guarded():
		v := r.admit(o)
		v.Skips = r.Guarded()
		return s, v
	case m.unseen(o.Run) || m.run != "" && !remembers:
		first := marker{seen: o.Run, first: o.clocks(), shard: o.Shard}
		if remembers {
			first.run, first.durable, first.floor = m.run, m.durable, m.floor
		}
		return s, r.write(first)
	}
	return r.wait(s, m, o)
}

// unseen says that no client has noted when it first saw the node in this run.
func (m marker) unseen(run string) bool {
	return m.seen != run || m.first.client <= 0 || m.first.node <= 0
}

// wait decides about a node that was first seen in its present run, but not admitted yet.
func (r Rules) wait(s State, m marker, o Observation) (State, Verdict) {
	period := Quarantine(r.MaxTTL)
	s = s.waits(r.agreement(), m, o.Mono)
	watched, first, second := o.Mono-s.Since, o.since(m.first), o.since(m.second)
	again := m.second.client > 0 && m.second.node > 0
	switch {
	case watched >= period, again && second >= period:
		return s, r.admit(o)
	case !again && first >= period:
		m.second = o.clocks()
		return s, r.write(m)
	}
	left := 2*period - first
	if again {
		left = period - second
	}
	return s, Verdict{Err: &QuarantineError{Left: min(period-watched, left)}}
}

// admit lets a node vote that may have forgotten what it granted, or gone back to
// older data. Its tokens begin at the clock.
func (r Rules) admit(o Observation) Verdict {
	floor, ok := quorum.Seed(o.Node, o.Client)
	if !ok {
		return Verdict{Err: ErrClocks}
	}
	m := marker{run: o.Run, shard: o.Shard, floor: floor}
	if r.Nodes > 1 && !r.FailsOver { // what another server granted, one that took over does not know
		switch o.Durable {
		case NotAsked:
			return Verdict{AskDurable: true}
		case Yes:
			m.durable = label(o.Name)
		}
	}
	return r.write(m)
}

func (r Rules) write(m marker) Verdict {
	return Verdict{Write: r.agreement() + m.String()}
}

// look decides for a client that only looks: it refuses a node of another set, or one that does not vote. It ignores MaxTTL.
func (r Rules) look(s State, o Observation) Verdict {
	size := "n=" + strconv.Itoa(r.Nodes) + version
	if o.Marker != "" && (!strings.HasPrefix(o.Marker+" ", size+" ") || r.FailsOver && !strings.HasPrefix(o.Marker, size+failsOver)) {
		return Verdict{Err: r.conflict(o)}
	}
	_, run, _ := strings.Cut(o.Marker, " run=")
	m, _ := parse("run=" + run)
	switch {
	case !r.Guarded() || r.NoQuarantine, SameRun(m.run, o.Run), s.remembersShard(m, o):
		return Verdict{Votes: true}
	case m.run == "" || m.durable != label(o.Name) || o.Durable == No:
		return Verdict{Err: ErrNoVote}
	case o.Durable == NotAsked:
		return Verdict{AskDurable: true}
	}
	return Verdict{Votes: true}
}

// Run is the run of a server with this run_id. Of a node that fails over it names the last promotion as well ("": none), because it ends
// when the server is demoted, and gets the data of another.
func Run(id, promotion string) string {
	if id == "" || promotion == "" {
		return id
	}
	return id + "/" + promotion
}

// SameRun says whether a server in the run now was admitted in this run.
func SameRun(admitted, now string) bool {
	return admitted == now || strings.HasPrefix(admitted, now+"/") // a server forgets its promotion once it has had no replica for an hour
}

// clocks are the wall clocks of a client and a node at one moment, in µs since 1970.
type clocks struct{ client, node int64 }

func (o Observation) clocks() clocks { return clocks{o.Client, o.Node} }

// since is how long ago the clocks showed then, by the one that says less.
func (o Observation) since(then clocks) time.Duration {
	return time.Duration(min(o.Client-then.client, o.Node-then.node)) * time.Microsecond
}

// admitted notes that the node was seen admitted.
func (s State) admitted(run string) State {
	next := State{Admitted: s.Admitted}
	if !slices.Contains(s.Admitted, run) {
		next.Admitted = append(slices.Clip(s.Admitted), run)
	}
	return next
}

// waits notes since when the client has seen m unchanged: nothing was wiped since, and no client was admitted. Where the second period
// begins does not count: a clock that was wrong when the node was first seen delays the node, and does not exclude it for good.
func (s State) waits(agreement string, m marker, mono time.Duration) State {
	m.second = clocks{}
	if text := agreement + m.String(); s.Waiting != text {
		s.Waiting, s.Since = text, mono
	}
	return s
}

// outdates says whether this client has seen the node admitted in the present run,
// or in a run after the one that the node remembers: then its data were put back to
// an earlier state.
func (s State) outdates(remembered, now string) bool {
	i := slices.Index(s.Admitted, remembered)
	return slices.Contains(s.Admitted, now) || i >= 0 && i < len(s.Admitted)-1
}

// remembersShard says whether a shard of a cluster has forgotten nothing, though its marker does not say so:
// this client has let it vote since its last promotion, or it was never promoted, and the
// marker is missing or another's, as slots that move bring it. A marker of its own is that of a run that ended.
func (s State) remembersShard(m marker, o Observation) bool {
	seen := func(run string) bool { return SameRun(run, o.Run) }
	return o.Shard != "" && (slices.ContainsFunc(s.Admitted, seen) || !strings.Contains(o.Run, "/") && m.shard != o.Shard)
}
