package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/verify/sim"
)

// A run of the simulation becomes a sequence of records, which TraceHoldfast.tla reads in the module Recorded.

const (
	traceHoldfast = "TraceHoldfast"
	attempts      = 6 // ids of a run that acquire; it is followed until one more begins
	adopters      = 2 // ids of a run that adopt, likewise
)

// ticks are those of the specification, a millisecond each, of a time for which a lock stands. The slowest client and the
// fastest node of the simulation are off by a 201st, so a client trusts a lease of ttl for ttl*0.99495 - 2.01 ms at most,
// and a node keeps it for ttl*0.99505 at least. This is between the two, and Drift is none.
func ticks(ttl int64) int64 { return ttl*995/1000/ms - 1 }

const ms = int64(time.Millisecond)

// recorded is a run in the words of the specification.
type recorded struct {
	seed  uint64
	place int // among those that TLC takes, for a test
	class sim.Class
	set   group
	ttl   int64   // ns
	ttls  []int64 // that renewals ask for, in ticks
	steps []string
}

// group are the runs that TLC reads with one configuration.
type group struct {
	nodes  int
	adopts bool
}

func (g group) String() string {
	if g.adopts {
		return fmt.Sprintf("%d nodes, adoption", g.nodes)
	}
	if g.nodes == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", g.nodes)
}

// translate writes down what the record has.
func translate(seed uint64, class sim.Class, r *sim.Record) recorded {
	t := translation{record: r, ids: make(map[string]int), at: make(map[int]int)}
	t.steps = t.followed()
	t.number()
	for i, s := range t.steps {
		if d := s.At/ms - t.now; d > 0 {
			t.write("time", field{"d", d})
			t.now += d
		}
		t.at[i] = len(t.out) + 1
		t.step(s)
	}
	t.hear()
	return recorded{seed: seed, class: class, ttl: r.TTL, ttls: slices.Sorted(maps.Keys(t.ttls())), steps: t.out}
}

// translation is the work on one record.
type translation struct {
	record *sim.Record
	steps  []sim.Step     // that are followed
	ids    map[string]int // of owners
	at     map[int]int    // the place of each step in out
	least  int64          // what tokens are counted from
	now    int64          // ticks
	out    []string
}

// followed are the steps until more ids begin than are followed.
func (t *translation) followed() []sim.Step {
	left := map[bool]int{false: attempts, true: adopters}
	for i, s := range t.record.Steps {
		if s.Kind == sim.Begins {
			if left[s.From != ""]--; left[s.From != ""] < 0 {
				return t.record.Steps[:i]
			}
		}
	}
	return t.record.Steps
}

// number gives each owner an id: in the order of the stamps, and those who adopt behind them. Tokens are counted from the first floor.
func (t *translation) number() {
	var begun []sim.Step
	for _, s := range t.steps {
		if s.Kind == sim.Begins {
			begun = append(begun, s)
		}
		if s.Kind == sim.Admits && t.least == 0 {
			t.least = s.Floor - 1000
		}
	}
	slices.SortStableFunc(begun, func(a, b sim.Step) int { return cmp.Or(cmp.Compare(a.Stamp, b.Stamp), cmp.Compare(a.Owner, b.Owner)) })
	acquires, adopts := 0, attempts
	for _, s := range begun {
		if s.From == "" {
			acquires++
			t.ids[s.Owner] = acquires
		} else {
			adopts++
			t.ids[s.Owner] = adopts
		}
	}
}

// ttls are those that a renewal asks for.
func (t *translation) ttls() map[int64]bool {
	found := map[int64]bool{ticks(t.record.TTL): true}
	for _, s := range t.steps {
		if s.Kind == sim.Renews {
			found[ticks(s.TTL)] = true
		}
	}
	return found
}

// field is one of a record. Its value is a number, or a text as TLA+ has it.
type field struct {
	name  string
	value any
}

func (t *translation) write(kind string, fields ...field) {
	var text strings.Builder
	fmt.Fprintf(&text, "[kind |-> %q", kind)
	for _, f := range fields {
		fmt.Fprintf(&text, ", %s |-> %v", f.name, f.value)
	}
	text.WriteString("]")
	t.out = append(t.out, text.String())
}

func (t *translation) id(owner string) field { return field{"id", t.ids[owner]} }

func (t *translation) token(token int64) int64 {
	if token == 0 {
		return 0
	}
	return token - t.least
}

// set is a set of owners.
func (t *translation) set(owners []string) string {
	var ids []string
	for _, owner := range owners {
		ids = append(ids, strconv.Itoa(t.ids[owner]))
	}
	return "{" + strings.Join(ids, ", ") + "}"
}

// trust is the time that the client goes on trusting the lease.
func (t *translation) trust(s sim.Step) field {
	if s.Trust == 0 {
		return field{"trust", 0}
	}
	return field{"trust", (s.At+s.Trust)/ms - s.At/ms}
}

// node is what happens at a node, whose number the specification counts from 1.
func node(s sim.Step) field { return field{"n", s.Node + 1} }

func upper(b bool) string { return strings.ToUpper(strconv.FormatBool(b)) }

func (t *translation) step(s sim.Step) {
	id, token := t.id(s.Owner), field{"T", t.token(s.Token)}
	age := field{"age", s.At/ms - s.Sent/ms}
	switch s.Kind {
	case sim.Begins:
		from := id.value
		if s.From != "" {
			from = t.ids[s.From]
		}
		t.write("begins", id, field{"from", from})
	case sim.Executes:
		t.executes(s, asked(&s.Ask), said[s.Says], t.token(s.Ask.Token))
	case sim.Forces:
		t.executes(s, "force", "freed", 0)
	case sim.Hears:
		t.write("hears", id, node(s), field{"of", t.at[s.Of]}, age, field{"current", upper(s.Current)}, t.trust(s))
	case sim.Wakes:
		t.write("wakes", id, node(s), field{"of", t.at[s.Of]}, age, field{"lasts", ticks(t.record.Steps[s.Of].Lasts)})
	case sim.Chooses:
		t.write("chooses", id, token)
	case sim.Wins:
		t.write("wins", id, token, t.trust(s))
	case sim.Spreads:
		t.write("spreads", id, token)
	case sim.Renews:
		t.write("renews", id, field{"ttl", ticks(s.TTL)})
	case sim.SetsAgain:
		t.write("sets again", id)
	case sim.Renewed:
		t.write("renewed", id, t.trust(s))
	case sim.Uses:
		t.write("uses", id)
	case sim.GivesBack:
		t.write("gives back", id, node(s))
	case sim.Ends:
		t.write("ends", id)
	case sim.Lapses:
		t.write("lapses", node(s))
	case sim.Unnotes:
		t.write("unnotes", node(s), id)
	case sim.Vacates:
		t.write("vacates", node(s), id)
	case sim.Forgets:
		t.write("forgets", node(s), field{"F", t.token(s.Lock.Fence)})
	case sim.Admits:
		t.write("admits", node(s), field{"floor", t.token(s.Floor)})
	case sim.Loses:
		t.write("loses", node(s))
	}
}

// executes writes what a node does with a request.
func (t *translation) executes(s sim.Step, ask, says string, token int64) {
	owner := "0"
	if s.Lock.Owner != "" {
		owner = strconv.Itoa(t.ids[s.Lock.Owner])
	}
	var queue []string
	for p := range s.Lock.Queue.Places {
		queue = append(queue, p.Owner)
	}
	t.write("executes", node(s), field{"ask", strconv.Quote(ask)}, t.id(s.Owner), field{"T", token}, field{"ttl", ticks(s.Ask.TTL)},
		field{"stamped", upper(s.Ask.Stamp != 0)}, field{"deaf", t.set(s.Deaf)}, field{"lasts", ticks(s.Lasts)}, field{"says", strconv.Quote(says)},
		field{"owner", owner}, field{"tok", t.token(s.Lock.Token)}, field{"F", t.token(s.Lock.Fence)}, field{"queue", t.set(queue)},
		field{"keeps", (s.At+s.Keeps)/ms - s.At/ms}, field{"heard", "FALSE"})
}

// asked is the request in the words of the specification.
func asked(ask *quorum.Ask) string {
	switch {
	case ask.Anew:
		return "anew"
	case ask.Kind == quorum.AskGiveBack:
		return "give back"
	}
	return ask.Kind.String()
}

var said = map[quorum.Kind]string{
	quorum.Granted: "granted", quorum.Denied: "denied", quorum.Accepted: "accepted", quorum.Refused: "refused", quorum.Kept: "kept",
	quorum.NotMine: "not mine", quorum.Freed: "freed", quorum.Failed: "failed",
}

// hear marks the steps whose answer or wake-up is heard later.
func (t *translation) hear() {
	for _, s := range t.steps {
		if s.Kind == sim.Hears || s.Kind == sim.Wakes {
			at := t.at[s.Of] - 1
			t.out[at] = strings.TrimSuffix(t.out[at], "FALSE]") + "TRUE]"
		}
	}
}

// traced are the classes of faults that the specification has. The simulation also sets clocks, and brings nodes back with older
// data and an older queue: these it has not.
func traced() []sim.Class {
	network := []sim.Fault{sim.Break, sim.Break, sim.Slow, sim.Cut, sim.Twice}
	clients := []sim.Fault{sim.Sleep, sim.Sleep, sim.Die}
	return []sim.Class{
		{Name: "calm"},
		{Name: "network", Faults: network},
		{Name: "clients", Faults: clients},
		{Name: "nodes", Faults: []sim.Fault{sim.Freeze, sim.Restart}},
		{Name: "forced", Faults: slices.Concat(network, clients, []sim.Fault{sim.Force, sim.Force})},
		{Name: "early", Faults: slices.Concat(network, clients, []sim.Fault{sim.Forget, sim.Forget})},
		{Name: "amnesia", Faults: []sim.Fault{sim.Wipe}},
		{Name: "everything", Faults: slices.Concat(network, clients, []sim.Fault{sim.Freeze, sim.Restart, sim.Wipe, sim.Force})},
	}
}

// record is the run of a seed.
func record(seed uint64, rules sim.Rules) recorded {
	classes := traced()
	class := classes[seed%uint64(len(classes))]
	turn := seed / uint64(len(classes))
	g := group{nodes: 3, adopts: turn%5 == 4}
	if turn%5 == 3 && !class.Has(sim.Wipe) { // one server that forgets is not in the specification, but for one that fails over
		g.nodes = 1
	}
	var r sim.Record
	sim.Run(sim.Config{Seed: seed, Class: class, Rules: rules, Nodes: g.nodes, Adopt: g.adopts, Storm: turn%2 == 0, Record: &r})
	out := translate(seed, class, &r)
	out.set = g
	return out
}

// module is what TLC reads of the runs.
func module(runs []recorded) []byte {
	var text bytes.Buffer
	text.WriteString("---- MODULE Recorded ----\nEXTENDS Integers\n")
	var names []string
	for i, r := range runs {
		name := fmt.Sprint("Run", i+1)
		names = append(names, name)
		fmt.Fprintf(&text, "%s == [ttl |-> %d, note |-> %d, sound |-> %s, steps |-> <<\n%s\n>>]\n", name, ticks(r.ttl),
			ticks(quorum.Noted(r.ttl)), upper(!r.class.Has(sim.Forget)), strings.Join(r.steps, ",\n"))
	}
	fmt.Fprintf(&text, "Runs == <<%s>>\n====\n", strings.Join(names, ", "))
	return text.Bytes()
}

// configuration is that of TLC for these runs.
func configuration(g group, runs []recorded, promised bool) []byte {
	ttls := make(map[int64]bool)
	for _, r := range runs {
		for _, ttl := range r.ttls {
			ttls[ttl] = true
		}
	}
	last := attempts
	if g.adopts {
		last += adopters
	}
	var all []int64
	for i := range last {
		all = append(all, int64(i+1))
	}
	set := func(values []int64) string {
		return "{" + strings.Trim(strings.ReplaceAll(fmt.Sprint(values), " ", ", "), "[]") + "}"
	}
	var text bytes.Buffer
	text.WriteString("SPECIFICATION TraceSpec\nCHECK_DEADLOCK FALSE\n")
	if promised {
		text.WriteString("INVARIANT Promised\n")
	}
	text.WriteString("CONSTANTS\n")
	for _, c := range [][2]string{
		{"Nodes", set(all[:g.nodes])},
		{"Ids", set(all)},
		{"Waiters", set(all)},
		{"Adopters", set(all[attempts:])},
		{"CutOff", "{}"},
		{"TTLs", set(slices.Sorted(maps.Keys(ttls)))},
		{"Drift", "0"},
		{"Block", strconv.Itoa(driverkit.Block)},
		{"MaxToken", "2000000000"},
		{"Does", `{"time", "renew", "again", "give back", "deaf", "force", "late", "spread"}`},
		{"Forgets", "1000000"},
		{"LosesLock", "0"},
		{"LosesCounter", "0"},
		{"Others", "0"},
		{"Off", "{}"},
	} {
		fmt.Fprintf(&text, "  %s = %s\n", c[0], c[1])
	}
	for _, name := range []string{"Free", "TTL", "R", "Note", "Clock", "Queues", "Stamp"} {
		fmt.Fprintf(&text, "  %s <- Of%s\n", name, name)
	}
	return text.Bytes()
}

// refusal is a run that is no behaviour of the specification.
type refusal struct {
	run  recorded
	step int // the first that TLC could not take
}

func (r refusal) String() string {
	return fmt.Sprintf("seed %d (%s, %d nodes): step %d of %d: %s", r.run.seed, r.run.class.Name, r.run.set.nodes, r.step, len(r.run.steps), r.run.steps[r.step-1])
}

// follow has TLC follow the runs of the seeds, and says how many steps it took. A run that it refuses is an error.
func (s settings) follow(ctx context.Context, checker, folder string, out io.Writer) error {
	groups := make(map[group][]recorded)
	for seed := range s.runs {
		r := record(seed+1, sim.Rules{})
		groups[r.set] = append(groups[r.set], r)
	}
	var wrong []error
	for g, runs := range groups {
		refused, took, err := s.take(ctx, checker, filepath.Join(folder, g.String()), runs, true)
		if err != nil {
			return fmt.Errorf("%v: %w", g, err)
		}
		steps := 0
		for _, r := range runs {
			steps += len(r.steps)
		}
		fmt.Fprintf(out, "%-20v %4d runs, %6d steps, %3d refused, %3.0f s\n", g, len(runs), steps, len(refused), took.Seconds())
		for _, r := range refused {
			wrong = append(wrong, errors.New(r.String()))
		}
	}
	return errors.Join(wrong...)
}

// take has TLC take the runs, which are of one group, and returns those that it refuses. Where they are those of the code as it is,
// the promises must hold in each state.
func (s settings) take(ctx context.Context, checker, folder string, runs []recorded, promised bool) ([]refusal, time.Duration, error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, 0, err
	}
	files := map[string][]byte{"Recorded.tla": module(runs), "row.cfg": configuration(runs[0].set, runs, promised)}
	for _, name := range []string{holdfast + ".tla", traceHoldfast + ".tla"} {
		text, err := os.ReadFile(filepath.Join(s.source, name))
		if err != nil {
			return nil, 0, err
		}
		files[name] = text
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o644); err != nil {
			return nil, 0, err
		}
	}
	if err := s.check(ctx, checker, folder, row{module: traceHoldfast, long: len(runs) > 50}); err != nil {
		return nil, 0, err
	}
	text, err := os.ReadFile(report(folder))
	if err != nil {
		return nil, 0, err
	}
	switch got := read(string(text)); {
	case got.err != nil:
		return nil, 0, fmt.Errorf("%w:\n%s", got.err, tail(text))
	case got.broken != "":
		return nil, 0, fmt.Errorf("%s breaks in a run:\n%s", got.broken, strings.Join(got.trace, "\n"))
	default:
		return refusals(runs, text), got.took, nil
	}
}

// progress is a line that TLC prints for each step of a run that it takes.
var progress = regexp.MustCompile(`(?m)^<<(\d+), (\d+)>>$`)

// refusals are the runs of which TLC has not taken every step.
func refusals(runs []recorded, text []byte) []refusal {
	taken := make([]int, len(runs))
	for _, m := range progress.FindAllSubmatch(text, -1) {
		run, _ := strconv.Atoi(string(m[1]))
		step, _ := strconv.Atoi(string(m[2]))
		taken[run-1] = max(taken[run-1], step)
	}
	var refused []refusal
	for i, r := range runs {
		if taken[i] < len(r.steps) {
			refused = append(refused, refusal{r, taken[i] + 1})
		}
	}
	return refused
}
