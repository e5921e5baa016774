package redlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/redlock/internal/format"
	"github.com/holdfast-go/holdfast/redlock/internal/server"
)

// A node votes while all of this holds:
//
//	it is a single master                strange, below
//	it evicts nothing                    evicts, below, unless AllowEviction
//	it is on the list once               arrive, below; of a shard of a Cluster: identify
//	it gives this client the rights      prepare, in abilities.go
//	its clients agree on the set         conflict, below
//	its marker names its present run     admit and judge, below
//	its marker is the one that was read  each script compares it, member.lua; not on one server alone, nor in a Cluster
//
// A run is one life of a server process: Redis gives each a run_id. Of a node that
// fails over it also ends when another server takes its place, and again when the first comes back.
//
// A node that has forgotten what it granted must not vote before all those leases
// are over (the Redlock page, "Performance, crash recovery and fsync"). Neither its
// configuration nor a clock says whether it has forgotten. The marker does: a key
// without an end that the node itself keeps.
//
//	                  not seen in it                        quarantine is over
//	nothing, or ──────────────────────────► first seen ──────────────────────► admitted
//	an earlier run                          in this run                        in this run
//	    │                                                                          ▲
//	    └────────── admitted in a run that was durable, and durable now ───────────┘
//
// The quarantine is over when one client has seen the marker for so long by its own monotonic clock. Clients that live
// shorter have wall clocks alone, and one that is set may be that of the first sight and of the node, both on one machine. No
// rule over times that were stored can tell that from time that has passed. So by wall clocks it takes two such periods in a
// row, and the sight that begins the second one stands in the marker too: clocks that are set once spoil one of them.
//
// Each step is one compare-and-swap: it fails if the data are wiped between the
// look and the step. Data that are wiped later take the marker with them. NoQuarantine
// goes to admitted at once, and so does one server alone. Each admission but that by
// a durable run names the first token that the node may give from now on.

// restartMargin is added to MaxTTL, because clocks do not run equally fast.
const restartMargin = 2 * time.Second

// admitTries is how often the marker may change during one check.
const admitTries = 8

// gate decides which nodes may vote. A TCP connection dies with its server
// process, so one check of each new connection covers every reply that comes
// over it, except for changes of the data while the server goes on.
type gate struct {
	opts   *Options
	dialer server.Dialer
	n      int // number of nodes
	start  time.Time

	mu       sync.Mutex          // guards what follows
	present  map[string]string   // by address: the run of the server that it is connected to
	watches  map[string]watch    // by address
	admitted map[string][]string // by address: the runs that were seen admitted, in that order
}

func newGate(opts *Options, n int) *gate {
	return &gate{
		opts: opts, n: n, start: time.Now(),
		dialer:  server.Dialer{Dial: opts.Dial, TLS: opts.TLS, ClientName: opts.ClientName, DB: opts.DB},
		present: make(map[string]string), watches: make(map[string]watch), admitted: make(map[string][]string),
	}
}

// report is what a check found, apart from reasons that keep the node from voting.
type report struct {
	server.Wakes                  // how waiters hear of a free lock
	member       format.Member    // by which the node is known again
	ordered      bool             // wake-ups come in their place among the replies
	server       string           // the address that was dialled
	run          string           // of the server; of a node that fails over also names its last promotion
	since        string           // its last promotion, of a node that fails over
	floor        int64            // the least token that it may give
	stay         *quarantineError // it votes not yet, but keeps what it still has
	skipped      bool             // this client let it vote without a quarantine
	warns        map[string]error // by what they are about
}

func (r *report) warn(about string, err error) {
	if r.warns == nil {
		r.warns = make(map[string]error)
	}
	r.warns[about] = err
}

// check looks whether the server at the other end may vote.
func (g *gate) check(ctx context.Context, n *node, addr string, l *resp.Conn) (rep report, err error) {
	rep.server = addr
	hello, err := g.login(ctx, n, rep.server, l)
	if err != nil {
		return rep, err
	}
	before := time.Now()
	cmds := [][]string{{"INFO"}, {"TIME"}}
	values, err := l.Do(cmds...)
	if err != nil {
		return rep, err
	}
	rtt := time.Since(before)
	info := server.ParseInfo(string(values[0].Text))
	if err := g.fit(hello, info, n.moves(), &rep); err != nil {
		return rep, err // it says more than the missing run_id would
	}
	if err := server.FirstError(cmds, values); err != nil {
		return rep, err
	}
	node, err := server.ParseTime(values[1])
	if err != nil {
		return rep, err
	}
	if err := server.Skew(node, before, rtt); err != nil {
		rep.warn("clock", err)
	}
	run := strings.Clone(info["run_id"]) // which would keep all of INFO otherwise
	if g.marks(n) && run == "" {
		return rep, errNoRun
	}
	if g.opts.Cluster {
		err = n.identify(l)
	} else {
		err = g.arrive(n.addr, run)
	}
	if err != nil {
		return rep, err
	}
	if n.moves() {
		rep.since = server.Promotion(info)
		run = reign(run, rep.since)
	}
	rep.run = run
	if g.opts.ReadOnly {
		return rep, g.look(l, n, run)
	}
	marker, err := g.admit(l, n, run, &rep) // first: a client of a node in quarantine comes again each second
	if stay, ok := errors.AsType[*quarantineError](err); ok && g.n == 1 {
		rep.stay, err = stay, nil
	}
	if err != nil && !server.LacksRight(err.Error()) {
		return rep, err
	}
	if err := g.tryRights(n, l, &rep.Wakes); err != nil {
		return rep, err // it names each right that is missing
	}
	if err != nil {
		return rep, err
	}
	if g.opts.format().OwnCounters() {
		if rep.floor, err = leastOf(marker, run, node, before.UnixMicro()); err != nil {
			return rep, err
		}
	}
	if g.marks(n) && !g.opts.Cluster { // where the marker is in another hash slot than the lock
		rep.member = format.Member{Set: g.opts.setKey(), Marker: marker}
	}
	rep.ordered = server.Ordered(hello, info)
	defect, err := rep.Subscribe(l, hello, n.engine.Client())
	if defect != nil {
		rep.warn("wake", defect)
	}
	return rep, err
}

// tryRights loads the scripts and tries the rights they need.
func (g *gate) tryRights(n *node, l *resp.Conn, w *server.Wakes) error {
	return w.Try(l, g.opts.format(), g.opts.probeKeys(n.engine.Client()+n.tag()), n.engine.Client())
}

// strange refuses a server that is no single master. info may say whose replica it
// is.
func (o *Options) strange(mode, role string, info map[string]string) error {
	cluster := mode == "cluster" || info["cluster_enabled"] == "1"
	switch {
	case cluster && !o.Cluster:
		return server.Unfit("begin the URL with redis+cluster:// (Options.Cluster; rediss+cluster:// for TLS), or give independent servers",
			"it is part of a Redis Cluster")
	case o.Cluster && !cluster && mode != "":
		return server.Unfit("give its address as redis:// (rediss:// for TLS), or without Options.Cluster", "it is no part of a Redis Cluster")
	case mode == "sentinel":
		return server.Unfit("give the address of a Redis server, or redis+sentinel://host:26379/NAME with the name of the master that it watches", "it is a Sentinel")
	case role == "replica" || role == "slave":
		of := ""
		if info["master_host"] != "" {
			of = " of " + info["master_host"] + ":" + info["master_port"]
		}
		return server.Unfit("give the address of a master that replicates nothing", "%w%s", server.ErrReplica, of)
	}
	return nil
}

// fit refuses servers that would lose locks, and warns of servers that may.
func (g *gate) fit(hello, info map[string]string, moves bool, rep *report) error {
	if err := g.opts.placed(hello, info, moves, rep); err != nil {
		return err
	}
	err := server.Evicts(info)
	if err != nil && g.opts.AllowEviction {
		rep.warn("eviction", err)
		err = nil
	}
	return err
}

// placed refuses a server that is no single master, and warns of one that has replicas or
// was one. Of a node that fails over both are expected.
func (o *Options) placed(hello, info map[string]string, moves bool, rep *report) error {
	mode := cmp.Or(info["redis_mode"], info["server_mode"], hello["mode"]) // Valkey has the second
	if err := o.strange(mode, cmp.Or(info["role"], hello["role"]), info); moves && errors.Is(err, server.ErrReplica) {
		return errDemoted
	} else if err != nil {
		return err
	}
	if moves {
		if info["min_slaves_good_slaves"] == "" && !(o.Cluster && info["connected_slaves"] == "0") {
			rep.warn("min-replicas", errIsolable)
		}
		return nil
	}
	if n := info["connected_slaves"]; n != "" && n != "0" {
		rep.warn("replicas", server.Advise(fmt.Errorf("it has %s connected replicas: if one takes over, locks are lost", n), "nodes need none"))
	}
	if old := info["master_replid2"]; strings.Trim(old, "0") != "" {
		rep.warn("promoted", errors.New("it was a replica before, or a restart has read back a snapshot that it saved while it had replicas: "+
			"locks that were granted last may be lost"))
	}
	return nil
}

// errNoRun is why a server cannot be one of several nodes.
var errNoRun = server.Unfit("give Redis or Valkey themselves, not a proxy, or use this server alone", "its INFO has no run_id, by which a restart is noticed")

// arrive notes that addr is connected to a server, and refuses a second vote of it.
func (g *gate) arrive(addr, run string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for other, r := range g.present {
		if r == run && other != addr && run != "" {
			return server.Unfit("list every server once", "it is the same server as %s, which would vote twice", other)
		}
	}
	g.present[addr] = run
	return nil
}

// leave notes that addr is connected no longer.
func (g *gate) leave(addr string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.present, addr)
}

// admit returns the marker with which the server may vote. One that was promoted has
// data that another server wrote, and so is not durable.
func (g *gate) admit(l *resp.Conn, n *node, run string, rep *report) (string, error) {
	key := g.markerKey(n)
	look := [][]string{{"GET", key}, {"TIME"}} // in this order: the marker is no younger than the time
	onDisk := sync.OnceValue(func() bool { return rep.warns["promoted"] == nil && g.durable(l) })
	for range admitTries {
		values, err := server.Ask(l, look...)
		if err != nil {
			return "", err
		}
		text, _ := values[0].Decode().(string)
		node, err := server.ParseTime(values[1])
		if err != nil {
			return "", err
		}
		s := sight{
			addr: n.addr, run: run, moves: n.moves(), shard: n.id, durable: onDisk,
			mono: time.Since(g.start), client: time.Now().UnixMicro(), node: node,
		}
		next, err := g.judge(text, s)
		switch {
		case err != nil:
			return next, err
		case next == text:
			g.enter(n.addr, run)
			return text, nil
		}
		skips := g.skips(text, next, s)
		done, err := g.swap(l, key, text, next)
		if err != nil {
			return "", err
		}
		rep.skipped = rep.skipped || done && skips
	}
	return "", errMarker
}

// skips says whether next lets a node vote that may have forgotten what it granted, because quarantine=off says so.
func (g *gate) skips(text, next string, s sight) bool {
	m, _ := parseMarker(strings.TrimPrefix(text, g.charter(s.moves)))
	remembers := s.shard != "" && g.remembers(m, s) || floorOf(next) == floorOf(text)
	return g.opts.NoQuarantine && (g.n > 1 || s.moves) && !remembers
}

// errSkipped is in the log whenever a client skips a quarantine.
var errSkipped = server.Advise(errors.New("quarantine=off (NoQuarantine) has let it vote at once, though it may have forgotten locks that still stand: "+
	"two may hold one, unless nobody has used it before"), "leave quarantine=off out once the set has had its first lock")

// marks says whether the node keeps a marker of its run: another node, or another server
// in its place, could vote against what it forgot.
func (g *gate) marks(n *node) bool { return g.n > 1 || n.moves() }

// charter is what all clients of a set agree on: the beginning of its marker. One
// server alone has no quarantine, and so no MaxTTL that would matter. moves is for a node
// that fails over. The number of the database is there for SWAPDB.
func (g *gate) charter(moves bool) string {
	text := "n=" + strconv.Itoa(g.n)
	if moves {
		text += failsOver
	}
	if g.n > 1 || moves {
		text += " maxttl=" + format.Decimal(g.opts.MaxTTL.Milliseconds())
	}
	if g.opts.CounterLife != counterLife {
		text += " counterlife=" + format.Millis(int64(g.opts.CounterLife))
	}
	if (g.n > 1 || moves) && g.opts.DB != 0 {
		text += " db=" + strconv.Itoa(g.opts.DB)
	}
	return text
}

// sight is one look at a node.
type sight struct {
	addr, run    string
	moves        bool          // it is a node that fails over
	shard        string        // of a cluster: its id
	durable      func() bool   // it writes to disk before it answers, and reads that back
	mono         time.Duration // this client's monotonic clock
	client, node int64         // the clocks of both, in µs since 1970
}

// watch is how long this client knows a node that is not admitted.
type watch struct {
	marker string // without its second sight. It has not changed since: nothing was wiped, and no client was admitted
	since  time.Duration
}

// judge says what the marker of a node should be if it is text now. Where that is
// the same, the node may vote, or the error says why it may not.
func (g *gate) judge(text string, s sight) (next string, err error) {
	charter := g.charter(s.moves)
	rest, ours := strings.CutPrefix(text, charter)
	m, known := parseMarker(rest)
	switch {
	case text != "" && !(ours && known):
		return "", g.conflict(text, charter)
	case s.run == "": // one server behind a proxy that hides its run; others may see it
		return cmp.Or(text, charter), nil
	case m.in(s.run):
		return text, nil
	case s.shard != "" && g.remembers(m, s):
		return g.admission(s)
	}
	// A client that knows the node by another name cannot tell the node's own marker from a copy. It leaves that to those
	// who can, and so does not put all of them off.
	remembers := m.run != "" && m.durable != "" && !g.outdated(m, s) && s.durable()
	switch {
	case remembers && m.durable == label(s.addr):
		m.run, m.seen = s.run, ""
		return charter + m.String(), nil
	case g.opts.NoQuarantine, g.n == 1 && !s.moves:
		return g.admission(s)
	case m.seen != s.run || m.client <= 0 || m.node <= 0 || m.run != "" && !remembers:
		first := marker{seen: s.run, client: s.client, node: s.node, shard: s.shard}
		if remembers {
			first.run, first.durable, first.floor = m.run, m.durable, m.floor
		}
		return charter + first.String(), nil
	}
	period := g.opts.MaxTTL + restartMargin
	watched, first, second := g.watched(charter, m, s), s.since(m.client, m.node), s.since(m.client2, m.node2)
	again := m.client2 > 0 && m.node2 > 0
	switch {
	case watched >= period, again && second >= period:
		return g.admission(s)
	case !again && first >= period:
		m.client2, m.node2 = s.client, s.node
		return charter + m.String(), nil
	}
	wait := 2*period - first
	if again {
		wait = period - second
	}
	return text, &quarantineError{out: max(watched, first), wait: min(period-watched, wait)}
}

// since is how long ago two clocks had these readings, by the one that says less.
func (s sight) since(client, node int64) time.Duration {
	return time.Duration(min(s.client-client, s.node-node)) * time.Microsecond
}

// admission is the marker of a node that may have forgotten what it granted, or gone back to
// older data. Its tokens begin at the clock.
func (g *gate) admission(s sight) (string, error) {
	floor, ok := quorum.Seed(s.node, s.client)
	if !ok {
		return "", errClocks
	}
	m := marker{run: s.run, shard: s.shard, floor: floor}
	if g.n > 1 && !s.moves && s.durable() { // what another server granted, one that took over does not know
		m.durable = label(s.addr)
	}
	return g.charter(s.moves) + m.String(), nil
}

// leastOf is the first token that a server may give over a connection. A server that names no run may have been restarted
// before any connection, and may have come back with older counters: its tokens begin at the clock each time.
func leastOf(marker, run string, node, client int64) (int64, error) {
	floor := floorOf(marker)
	if run != "" {
		return floor, nil
	}
	start, ok := quorum.Seed(node, client)
	if !ok {
		return 0, errClocks
	}
	return max(floor, start), nil
}

// errClocks is why tokens cannot begin at the clock.
var errClocks = server.Advise(errors.New("its clock and this machine's differ by more than a minute: its tokens must not start there"), "synchronise both")

func (g *gate) conflict(text, charter string) error {
	if strings.Contains(text, " v=") {
		return server.Unfit("once no client of that version is left, DEL "+g.opts.setKey()+" on every node (docs/wire.md, Versions)",
			"its set is that of another version of Holdfast")
	}
	theirs, _, _ := strings.Cut(text, " run=")
	theirs, _, _ = strings.Cut(theirs, " seen=")
	return server.Unfit(fmt.Sprintf("give all clients the same nodes, MaxTTL and CounterLife, which is %d where nothing is named, and Sentinels where failover is "+
		"(if the set was changed on purpose: DEL %s on every node once no old client is left)", counterLife.Milliseconds(), g.opts.setKey()),
		"it belongs to a set opened with %q, and this client has %q", theirs, charter)
}

// watched is for how long, by this client's own monotonic clock, the node has been
// seen with the same first sight. So a clock that was wrong at the first sight delays
// the node, and does not exclude it for good.
func (g *gate) watched(charter string, m marker, s sight) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	m.client2, m.node2 = 0, 0
	text := charter + m.String()
	if g.watches[s.addr].marker != text {
		g.watches[s.addr] = watch{marker: text, since: s.mono}
	}
	return s.mono - g.watches[s.addr].since
}

// outdated says whether this client has seen the node admitted in the present run,
// or in a run after the one that the node remembers: then its data were put back to
// an earlier state.
func (g *gate) outdated(m marker, s sight) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	runs := g.admitted[s.addr]
	i := slices.Index(runs, m.run)
	return slices.Contains(runs, s.run) || i >= 0 && i < len(runs)-1
}

// enter notes that a node was seen admitted.
func (g *gate) enter(addr, run string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.watches, addr)
	if runs := g.admitted[addr]; !slices.Contains(runs, run) {
		g.admitted[addr] = append(runs, run)
	}
}

// look refuses a node of another set, or one that does not vote, for a client that
// only looks. It ignores MaxTTL and admits no node.
func (g *gate) look(l *resp.Conn, n *node, run string) error {
	values, err := server.Ask(l, []string{"GET", g.markerKey(n)})
	if err != nil {
		return err
	}
	text, _ := values[0].Decode().(string)
	size, _, _ := strings.Cut(text, " ")
	if text != "" && (size != "n="+strconv.Itoa(g.n) || n.moves() && !strings.HasPrefix(text, size+failsOver)) {
		return g.conflict(text, g.charter(n.moves()))
	}
	if !g.marks(n) || g.opts.NoQuarantine {
		return nil
	}
	_, admitted, _ := strings.Cut(text, " run=")
	m, _ := parseMarker("run=" + admitted)
	if g.opts.Cluster && g.remembers(m, sight{addr: n.addr, run: run, shard: n.id}) {
		return nil
	}
	if m.in(run) || m.run != "" && m.durable == label(n.addr) && g.durable(l) {
		return nil
	}
	return errNoVote
}

// errNoVote is why a client that only looks ignores a node that is not admitted:
// the node may have forgotten the lock.
var errNoVote = errors.New("in quarantine: does not vote yet")

var errMarker = errors.New("other clients keep changing its marker")

// quarantineError says why a node that may have forgotten locks does not vote yet.
type quarantineError struct{ out, wait time.Duration }

// Quarantine is how long it lasts yet. Metrics tell such a node by this method from one that is down.
func (e *quarantineError) Quarantine() time.Duration { return e.wait }

func (e *quarantineError) Error() string {
	return fmt.Sprintf("quarantine: votes in %v, as it may have forgotten locks that still stand (first seen %v ago, new or without its data); "+
		"for a set that nobody has used before, quarantine=off (NoQuarantine) skips this",
		max(e.wait.Round(time.Second), time.Second), max(e.out.Round(time.Second), 0))
}
