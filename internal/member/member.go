// Package member decides whether a node may vote, from the view of one client. It is pure: no I/O, no clock, no
// goroutine. The gate of package redis passes it observations of a node and executes the verdict. The model
// checker (verify/model) does the same in every order of faults.
//
// A node may be one server, the master that Sentinels name, the master among replicas, or a shard of a Redis
// Cluster. In this package the last three are one case, a node that fails over (Rules.FailsOver). Package place
// of redis finds the current server of the node: its master.go asks the Sentinels and the replicas, and its
// shard.go asks a master of a Cluster for its id. The head of redis/gate.go lists all conditions of a vote.
//
// The package can only judge by the state that a node shows. It does not detect restored data that contain the
// marker of the current run, nor lost data on a node that is configured to be durable
// (docs/protocol.md, Who may vote).
//
// A node that has forgotten its grants must not vote before all those leases are over
// (the Redlock page, "Performance, crash recovery and fsync"). Neither its configuration
// nor a clock shows whether it has forgotten. The marker does: a key without expiry on
// the node itself.
//
// A run is one life of a server process: Redis gives each a run_id. The run of a node that
// fails over also ends when another server takes its place, and again when the first comes back.
//
//	                  not seen in it                        quarantine is over
//	nothing, or ──────────────────────────► first seen ──────────────────────► admitted
//	an earlier run                          in this run                        in this run
//	    │                                                                          ▲
//	    └────────── admitted in a run that was durable, and durable now ───────────┘
//
// The quarantine is over when one client has seen the marker for that long by its own monotonic clock. Clients
// that do not run that long can use only wall clocks. If client and node run on one machine, setting its clock
// changes both wall clocks, and no rule over stored times can distinguish this from time that has passed. So by
// wall clocks the quarantine takes two such periods in a row, and the marker also records the start of the second
// one: setting the clocks once invalidates only one of the periods.
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
// Each step is one compare-and-swap: it fails if the data are wiped between the observation
// and the step. A later wipe takes the marker with the data. NoQuarantine admits at once, and
// so does a single server. Each admission, except after a durable run, names the first token
// that the node may give from now on.
package member

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/quorum"
)

// Rules holds the settings of a node on which the clients of a set have to agree, and the options of this
// client.
type Rules struct {
	Nodes     int  // number of nodes that vote on one lock: 1 in a Redis Cluster
	FailsOver bool // another server may take the node's place
	MaxTTL    time.Duration
	DB        int

	NoQuarantine bool // this client admits nodes at once that may have forgotten locks
	ReadOnly     bool // this client admits no node
}

// Quarantine returns how long a node that may have forgotten leases of up to maxTTL does not vote. The extra
// two seconds allow for clocks of different rates.
func Quarantine(maxTTL time.Duration) time.Duration { return maxTTL + 2*time.Second }

// Guarded reports whether the marker guards the node's vote: if the node forgot a lock, another node, or a
// server in its place, could grant it again.
func (r Rules) Guarded() bool { return r.Nodes > 1 || r.FailsOver }

const (
	version   = " v=3"      // of the data on the nodes (docs/wire.md, Versions)
	failsOver = " failover" // in the marker of a node that fails over
)

// markerPrefix returns the beginning of the marker, on which all clients of a set agree. A single server has
// no quarantine, so its MaxTTL does not matter. The number of the database detects SWAPDB.
func (r Rules) markerPrefix() string {
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

// Observation holds the state of a node at one moment, as a client has read it, and the time.
type Observation struct {
	Marker  string // marker on the node; "": none
	Name    string // this client's name of the node
	Run     string // run of the server: see Run
	Shard   string // id of a shard of a cluster
	Durable Answer // the node writes to disk before it answers, and reads that back after a restart

	Mono         time.Duration // this client's monotonic clock
	Client, Node int64         // the wall clocks of both, in µs since 1970, read after the marker
}

// Answer is the answer to a yes-or-no question, if the client has asked.
type Answer uint8

// The answers. A client asks only after a verdict with AskDurable.
const (
	NotAsked Answer = iota
	Yes
	No
)

// AnswerOf converts ok to Yes or No.
func AnswerOf(ok bool) Answer {
	if ok {
		return Yes
	}
	return No
}

// State holds what one client remembers about one node. The zero value remembers nothing.
type State struct {
	Admitted []string      // runs in which the client saw the node admitted, in order; the slice is never changed in place
	Waiting  string        // marker of the quarantine that the client watches, while it does not change
	Since    time.Duration // first sight of that marker, by the client's monotonic clock
}

// Verdict is the next step of a client. Exactly one of the first four fields is set.
type Verdict struct {
	Votes      bool   // the node may vote
	AskDurable bool   // find out whether the node is durable, and call Decide again
	Write      string // the marker to write if the node still has the observed one; then observe again
	Err        error  // the node does not vote: *ConflictError, *QuarantineError, ErrClocks, ErrNoRun or ErrNoVote

	SkipsQuarantine bool // Write admits a node that may have forgotten locks, because of NoQuarantine
}

// Decide returns the next step for a node, from the client's state and its present observation.
func (r Rules) Decide(s State, o Observation) (State, Verdict) {
	switch {
	case r.Guarded() && o.Run == "":
		return s, Verdict{Err: ErrNoRun}
	case r.ReadOnly:
		return s, r.decideReadOnly(s, o)
	}
	rest, ours := strings.CutPrefix(o.Marker, r.markerPrefix())
	m, known := parseMarker(rest)
	switch {
	case o.Marker != "" && !(ours && known):
		return s, Verdict{Err: r.conflictError(o)}
	case o.Run == "" && o.Marker == "": // a server behind a proxy that hides its run; other clients may see the run
		return s, r.writeMarker(marker{})
	case o.Run == "":
		return s, Verdict{Votes: true}
	case SameRun(m.run, o.Run):
		return s.withAdmitted(o.Run), Verdict{Votes: true}
	case s.remembersShard(m, o):
		return s, r.admitNode(o)
	}
	// A client that uses another name for the node cannot distinguish the node's own marker from a copy. It
	// leaves the decision to clients that can, so that it does not delay them.
	remembers := m.run != "" && m.durable != "" && !s.knowsLaterRun(m.run, o.Run)
	if remembers && o.Durable == NotAsked {
		return s, Verdict{AskDurable: true}
	}
	remembers = remembers && o.Durable == Yes
	switch {
	case remembers && m.durable == escapeName(o.Name):
		m.run, m.seen = o.Run, ""
		return s, r.writeMarker(m)
	case r.NoQuarantine || !r.Guarded():
		v := r.admitNode(o)
		v.SkipsQuarantine = r.Guarded()
		return s, v
	case m.isUnseen(o.Run) || m.run != "" && !remembers:
		first := marker{seen: o.Run, first: o.wallClocks(), shard: o.Shard}
		if remembers {
			first.run, first.durable, first.floor = m.run, m.durable, m.floor
		}
		return s, r.writeMarker(first)
	}
	return r.nextStepInQuarantine(s, m, o)
}

// isUnseen reports whether no client has recorded when it first saw the node in this run.
func (m marker) isUnseen(run string) bool {
	return m.seen != run || m.first.client <= 0 || m.first.node <= 0
}

// nextStepInQuarantine returns the next step for a node that a client has seen in its present run, but that is
// not admitted yet.
func (r Rules) nextStepInQuarantine(s State, m marker, o Observation) (State, Verdict) {
	period := Quarantine(r.MaxTTL)
	s = s.noteMarker(r.markerPrefix(), m, o.Mono)
	watched, first, second := o.Mono-s.Since, o.elapsedSince(m.first), o.elapsedSince(m.second)
	again := m.second.client > 0 && m.second.node > 0
	switch {
	case watched >= period, again && second >= period:
		return s, r.admitNode(o)
	case !again && first >= period:
		m.second = o.wallClocks()
		return s, r.writeMarker(m)
	}
	left := 2*period - first
	if again {
		left = period - second
	}
	return s, Verdict{Err: &QuarantineError{Left: min(period-watched, left)}}
}

// admitNode admits a node that may have forgotten its grants, or gone back to older data. Its tokens start at
// the clock.
func (r Rules) admitNode(o Observation) Verdict {
	floor, ok := quorum.Seed(o.Node, o.Client)
	if !ok {
		return Verdict{Err: ErrClocks}
	}
	m := marker{run: o.Run, shard: o.Shard, floor: floor}
	if r.Nodes > 1 && !r.FailsOver { // a server that took over does not know the grants of its predecessor
		switch o.Durable {
		case NotAsked:
			return Verdict{AskDurable: true}
		case Yes:
			m.durable = escapeName(o.Name)
		}
	}
	return r.writeMarker(m)
}

func (r Rules) writeMarker(m marker) Verdict {
	return Verdict{Write: r.markerPrefix() + m.String()}
}

// decideReadOnly decides for a read-only client: it rejects a node of another set, or one that does not vote.
// It ignores MaxTTL.
func (r Rules) decideReadOnly(s State, o Observation) Verdict {
	size := "n=" + strconv.Itoa(r.Nodes) + version
	if o.Marker != "" && (!strings.HasPrefix(o.Marker+" ", size+" ") || r.FailsOver && !strings.HasPrefix(o.Marker, size+failsOver)) {
		return Verdict{Err: r.conflictError(o)}
	}
	_, run, _ := strings.Cut(o.Marker, " run=")
	m, _ := parseMarker("run=" + run)
	switch {
	case !r.Guarded() || r.NoQuarantine, SameRun(m.run, o.Run), s.remembersShard(m, o):
		return Verdict{Votes: true}
	case m.run == "" || m.durable != escapeName(o.Name) || o.Durable == No:
		return Verdict{Err: ErrNoVote}
	case o.Durable == NotAsked:
		return Verdict{AskDurable: true}
	}
	return Verdict{Votes: true}
}

// Run returns the run of a server with this run_id. For a node that fails over, the run includes the last
// promotion ("": none), because it ends when the server is demoted and copies the data of another.
func Run(id, promotion string) string {
	if id == "" || promotion == "" {
		return id
	}
	return id + "/" + promotion
}

// SameRun reports whether a server that is now in the run now was admitted in the same run.
func SameRun(admitted, now string) bool {
	return admitted == now || strings.HasPrefix(admitted, now+"/") // a server drops its promotion when it has had no replica for an hour
}

// wallClocks holds the wall clocks of a client and a node at one moment, in µs since 1970.
type wallClocks struct{ client, node int64 }

// wallClocks returns the wall clocks at the moment of the observation.
func (o Observation) wallClocks() wallClocks { return wallClocks{o.Client, o.Node} }

// elapsedSince returns the time since then, by the clock that shows less.
func (o Observation) elapsedSince(then wallClocks) time.Duration {
	return time.Duration(min(o.Client-then.client, o.Node-then.node)) * time.Microsecond
}

// withAdmitted returns s with a record that the node was seen admitted in run.
func (s State) withAdmitted(run string) State {
	next := State{Admitted: s.Admitted}
	if !slices.Contains(s.Admitted, run) {
		next.Admitted = append(slices.Clip(s.Admitted), run)
	}
	return next
}

// noteMarker returns s with the time since when the client has seen m unchanged: since then nothing was wiped,
// and no client was admitted. The start of the second period does not count: if a clock was wrong when the node was first seen,
// that delays the node, but does not exclude it for good.
func (s State) noteMarker(agreement string, m marker, mono time.Duration) State {
	m.second = wallClocks{}
	if text := agreement + m.String(); s.Waiting != text {
		s.Waiting, s.Since = text, mono
	}
	return s
}

// knowsLaterRun reports whether this client has seen the node admitted in the present run, or in a run after
// the one in its marker. In that case an older state of its data was restored.
func (s State) knowsLaterRun(remembered, now string) bool {
	i := slices.Index(s.Admitted, remembered)
	return slices.Contains(s.Admitted, now) || i >= 0 && i < len(s.Admitted)-1
}

// remembersShard reports whether a shard of a cluster has forgotten nothing, though its marker does not show
// that. That holds if this client has let it vote since its last promotion, or if it was never promoted and
// its marker is missing or came from another shard with a moved slot. A marker of its own belongs to a run
// that ended.
func (s State) remembersShard(m marker, o Observation) bool {
	seen := func(run string) bool { return SameRun(run, o.Run) }
	return o.Shard != "" && (slices.ContainsFunc(s.Admitted, seen) || !strings.Contains(o.Run, "/") && m.shard != o.Shard)
}
