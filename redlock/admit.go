package redlock

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// A node that has forgotten what it granted must not vote before all of that is
// over (the Redlock page, "Performance, crash recovery and fsync"). Whether it has
// forgotten is not asked of its configuration or of a clock: it is what the node
// itself remembers, in the marker of its set, a key without an end.
//
//	                  not of this run                       quarantine is over
//	nothing, or ──────────────────────────► first seen ──────────────────────► admitted
//	an earlier run                          in this run                        in this run
//	    │                                                                          ▲
//	    └────────── admitted in a run that was durable, and durable now ───────────┘
//
// Each step is one compare-and-swap, so that data that is wiped between a look and
// the step stops it. What is wiped later takes the marker with it.

// restartMargin is added to MaxTTL, for clocks that do not run equally fast.
const restartMargin = 2 * time.Second

// admitTries is how often the marker may change under our eyes in one check.
const admitTries = 8

var errMarker = errors.New("other clients keep changing its marker")

// marker is what a node remembers of its admission, apart from what its clients
// agree on.
type marker struct {
	run string // of the server, in which the node was admitted; "": in none
	// durable says that it wrote to disk before it answered in that run, and how the
	// client called it that found that out: replication and copied files bring the
	// marker to other nodes as well.
	durable string

	seen   string // the run in which it was first seen, but not admitted yet
	client int64  // when that was by that client's clock, in µs since 1970
	node   int64  // and by the node's
}

func (m marker) String() string {
	switch {
	case m.run == "":
		return fmt.Sprintf(" seen=%s client=%d node=%d", m.seen, m.client, m.node)
	case m.durable != "":
		return " run=" + m.run + " durable=" + m.durable
	}
	return " run=" + m.run
}

// parseMarker reads what String has written. ok is false for what it does not know:
// that is of another database, or of another version of the protocol.
func parseMarker(text string) (m marker, ok bool) {
	for field := range strings.FieldsSeq(text) {
		name, value, _ := strings.Cut(field, "=")
		switch name {
		case "run":
			m.run = value
		case "durable":
			m.durable = value
		case "seen":
			m.seen = value
		case "client":
			m.client, _ = strconv.ParseInt(value, 10, 64)
		case "node":
			m.node, _ = strconv.ParseInt(value, 10, 64)
		default:
			return m, false
		}
	}
	return m, true
}

// charter is what all clients of a set agree on: the beginning of its marker. One
// node alone has no quarantine, and so no MaxTTL that would matter. The number of
// the database is there for SWAPDB.
func (g *gate) charter() string {
	if g.n == 1 {
		return "n=1"
	}
	text := fmt.Sprintf("n=%d maxttl=%d", g.n, g.opts.MaxTTL.Milliseconds())
	if g.opts.DB != 0 {
		text += " db=" + strconv.Itoa(g.opts.DB)
	}
	return text
}

// sight is one look at a node.
type sight struct {
	addr, run    string
	durable      func() bool   // it writes to disk before it answers
	mono         time.Duration // this client's monotonic clock
	client, node int64         // the clocks of both, in µs since 1970
}

// watch is how long this client knows a node that is not admitted.
type watch struct {
	marker string // it has not changed since: nothing was wiped, nor anybody let in
	since  time.Duration
}

// judge says what the marker of a node should be that has been found to be text.
// Where that is the same, the node may vote, or the error says why it may not.
func (g *gate) judge(text string, s sight) (next string, err error) {
	rest, ours := strings.CutPrefix(text, g.charter())
	m, known := parseMarker(rest)
	switch {
	case text != "" && !(ours && known):
		return "", g.conflict(text)
	case g.n == 1:
		return g.charter(), nil
	case m.run == s.run:
		return text, nil
	case g.opts.NoQuarantine, m.run != "" && m.durable == label(s.addr) && !g.outdated(m, s) && s.durable():
		return g.admission(s), nil
	case m.seen != s.run || m.client <= 0 || m.node <= 0:
		return g.charter() + marker{seen: s.run, client: s.client, node: s.node}.String(), nil
	}
	out := max(g.watched(text, s), time.Duration(min(s.client-m.client, s.node-m.node))*time.Microsecond)
	if wait := g.opts.MaxTTL + restartMargin - out; wait > 0 {
		return text, &quarantineError{out: out, wait: wait}
	}
	return g.admission(s), nil
}

func (g *gate) admission(s sight) string {
	m := marker{run: s.run}
	if s.durable() {
		m.durable = label(s.addr)
	}
	return g.charter() + m.String()
}

// label is addr as a marker has it, without spaces.
func label(addr string) string { return url.PathEscape(addr) }

func (g *gate) conflict(text string) error {
	theirs, _, _ := strings.Cut(text, " run=")
	theirs, _, _ = strings.Cut(theirs, " seen=")
	return fmt.Errorf("%w: it belongs to a set opened with %q, and this client has %q; give all clients the same nodes and MaxTTL (if the set was changed on purpose: DEL %s on every node once no old client is left)",
		ErrConfig, theirs, g.charter(), g.opts.setKey())
}

// watched is for how long, by this client's own monotonic clock, the node has been
// seen with the same marker. A clock that was wrong at the first sight thus delays
// the node, and does not keep it out for good.
func (g *gate) watched(text string, s sight) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.watches[s.addr].marker != text {
		g.watches[s.addr] = watch{marker: text, since: s.mono}
	}
	return s.mono - g.watches[s.addr].since
}

// outdated says whether this client has seen the node admitted in the present run, or
// in one after that which it remembers: what it keeps was put back to an earlier state.
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

// admit returns the marker with which the server may vote. One that was promoted has
// data that another server wrote, and so is not durable.
func (g *gate) admit(l *line, addr, run string, promoted bool) (string, error) {
	key := g.opts.setKey()
	look := [][]string{{"GET", key}, {"TIME"}} // in this order: the marker is no younger than the time
	onDisk := sync.OnceValue(func() bool { return !promoted && durable(l) })
	for range admitTries {
		values, err := l.do(look...)
		if err == nil {
			err = firstError(look, values)
		}
		if err != nil {
			return "", err
		}
		text, _ := values[0].Decode().(string)
		node, err := parseTime(values[1])
		if err != nil {
			return "", err
		}
		next, err := g.judge(text, sight{
			addr: addr, run: run, durable: onDisk,
			mono: time.Since(g.start), client: time.Now().UnixMicro(), node: node,
		})
		switch {
		case err != nil:
			return "", err
		case next == text:
			g.enter(addr, run)
			return text, nil
		}
		if err := g.swap(l, key, text, next); err != nil {
			return "", err
		}
	}
	return "", errMarker
}

// swap replaces the marker, if it is still old.
func (g *gate) swap(l *line, key, old, next string) error {
	cmds := [][]string{{"SCRIPT", "LOAD", wire.Admit.Text}, {"EVALSHA", wire.Admit.SHA, "1", key, old, next}}
	values, err := l.do(cmds...)
	if err == nil {
		err = firstError(cmds, values)
	}
	if err != nil {
		return fmt.Errorf("its marker %s cannot be written: %w", key, err)
	}
	return nil
}

// errNoVote is what a client that only looks says of a node that is not admitted: it may
// have forgotten the lock, so that it is no witness.
var errNoVote = errors.New("in quarantine: does not vote yet")

// look refuses a node of another set, or one that does not vote, for a client that only
// looks. MaxTTL does not matter to it, and it admits nobody.
func (g *gate) look(l *line, addr, run string) error {
	cmds := [][]string{{"GET", g.opts.setKey()}}
	values, err := l.do(cmds...)
	if err == nil {
		err = firstError(cmds, values)
	}
	if err != nil {
		return err
	}
	text, _ := values[0].Decode().(string)
	if n, _, _ := strings.Cut(text, " "); n != "" && n != "n="+strconv.Itoa(g.n) {
		return g.conflict(text)
	}
	if g.n == 1 || g.opts.NoQuarantine {
		return nil
	}
	_, admitted, _ := strings.Cut(text, " run=")
	m, _ := parseMarker("run=" + admitted)
	if m.run == run || m.run != "" && m.durable == label(addr) && durable(l) {
		return nil
	}
	return errNoVote
}

// durable says whether the server writes everything to disk before it answers.
func durable(l *line) bool {
	values, err := l.do([]string{"CONFIG", "GET", "appendonly"}, []string{"CONFIG", "GET", "appendfsync"})
	if err != nil {
		return false
	}
	return setting(values[0]) == "yes" && setting(values[1]) == "always"
}

// setting is the value in a reply to CONFIG GET.
func setting(v resp.Value) string {
	if list, _ := v.Decode().([]any); len(list) == 2 {
		s, _ := list[1].(string)
		return s
	}
	return ""
}

// parseTime reads the reply to TIME, in µs since 1970.
func parseTime(v resp.Value) (int64, error) {
	list, _ := v.Decode().([]any)
	if len(list) != 2 {
		return 0, unexpected(errors.New("not a time"))
	}
	sec, _ := list[0].(string)
	micro, _ := list[1].(string)
	s, err1 := strconv.ParseInt(sec, 10, 64)
	us, err2 := strconv.ParseInt(micro, 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return 0, unexpected(err)
	}
	return s*1_000_000 + us, nil
}

// quarantineError says why a node that may have forgotten locks does not vote yet.
type quarantineError struct{ out, wait time.Duration }

func (e *quarantineError) Error() string {
	return fmt.Sprintf("quarantine: votes in %v, as it may have forgotten locks that still stand (first seen %v ago, new or without its data); for a set that nobody has used before, quarantine=off (NoQuarantine) skips this",
		max(e.wait.Round(time.Second), time.Second), max(e.out.Round(time.Second), 0))
}
