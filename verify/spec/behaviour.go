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

// A run of the simulation becomes a sequence of records, which TraceHoldfast.tla reads from the module
// Recorded.

const (
	traceHoldfast = "TraceHoldfast"
	attempts      = 6 // maximal number of acquiring ids in a followed run
	adopters      = 2 // maximal number of adopting ids in a followed run
)

// ticksOf returns the ticks of the specification, of a millisecond each, for a lock with that TTL. The slowest
// client and the fastest node of the simulation are off by 1/201, so a client trusts a lease of ttl for at
// most ttl*0.99495 - 2.01 ms, and a node keeps it for at least ttl*0.99505. The result is between the two, so
// Drift can be 0.
func ticksOf(ttl int64) int64 { return ttl*995/1000/ms - 1 }

const ms = int64(time.Millisecond)

// recordedRun is a run in the terms of the specification.
type recordedRun struct {
	seed  uint64
	place int // index among the runs for TLC
	class sim.Class
	set   group
	ttl   int64   // ns
	ttls  []int64 // TTLs of renewals, in ticks
	steps []string
}

// group is a set of runs that TLC reads with one configuration.
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

// translate converts the record of a run.
func translate(seed uint64, class sim.Class, r *sim.Record) recordedRun {
	t := translation{record: r, ids: make(map[string]int), at: make(map[int]int)}
	t.steps = t.followedSteps()
	t.numberOwners()
	for i, s := range t.steps {
		if d := s.At/ms - t.now; d > 0 {
			t.writeStep("time", field{"d", d})
			t.now += d
		}
		t.at[i] = len(t.out) + 1
		t.translateStep(s)
	}
	t.markHeard()
	return recordedRun{seed: seed, class: class, ttl: r.TTL, ttls: slices.Sorted(maps.Keys(t.renewalTTLs())), steps: t.out}
}

// translation is the state of translate.
type translation struct {
	record *sim.Record
	steps  []sim.Step     // steps to follow
	ids    map[string]int // ids of owners
	at     map[int]int    // index of each step in the output
	least  int64          // base of relative tokens
	now    int64          // current time, in ticks
	out    []string
}

// followedSteps returns the steps up to the limit of ids.
func (t *translation) followedSteps() []sim.Step {
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

// numberOwners numbers the owners by stamp, with adopters last. Tokens are counted from the first floor.
func (t *translation) numberOwners() {
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

// renewalTTLs returns the TTLs of renewals.
func (t *translation) renewalTTLs() map[int64]bool {
	found := map[int64]bool{ticksOf(t.record.TTL): true}
	for _, s := range t.steps {
		if s.Kind == sim.Renews {
			found[ticksOf(s.TTL)] = true
		}
	}
	return found
}

// field is a field of a record. Its value is a number, or a text in TLA+ notation.
type field struct {
	name  string
	value any
}

func (t *translation) writeStep(kind string, fields ...field) {
	var text strings.Builder
	fmt.Fprintf(&text, "[kind |-> %q", kind)
	for _, f := range fields {
		fmt.Fprintf(&text, ", %s |-> %v", f.name, f.value)
	}
	text.WriteString("]")
	t.out = append(t.out, text.String())
}

func (t *translation) idField(owner string) field { return field{"id", t.ids[owner]} }

func (t *translation) relativeToken(token int64) int64 {
	if token == 0 {
		return 0
	}
	return token - t.least
}

// ownerSet returns a set of owners.
func (t *translation) ownerSet(owners []string) string {
	var ids []string
	for _, owner := range owners {
		ids = append(ids, strconv.Itoa(t.ids[owner]))
	}
	return "{" + strings.Join(ids, ", ") + "}"
}

// trustField returns the time for which the client still trusts the lease.
func (t *translation) trustField(s sim.Step) field {
	if s.Trust == 0 {
		return field{"trust", 0}
	}
	return field{"trust", (s.At+s.Trust)/ms - s.At/ms}
}

// nodeField returns the node, which the specification counts from 1.
func nodeField(s sim.Step) field { return field{"n", s.Node + 1} }

func tlaBool(b bool) string { return strings.ToUpper(strconv.FormatBool(b)) }

func (t *translation) translateStep(s sim.Step) {
	id, token := t.idField(s.Owner), field{"T", t.relativeToken(s.Token)}
	age := field{"age", s.At/ms - s.Sent/ms}
	switch s.Kind {
	case sim.Begins:
		from := id.value
		if s.From != "" {
			from = t.ids[s.From]
		}
		t.writeStep("begins", id, field{"from", from})
	case sim.Executes:
		t.writeExecution(s, requestName(&s.Ask), answerNames[s.Says], t.relativeToken(s.Ask.Token))
	case sim.Forces:
		t.writeExecution(s, "force", "freed", 0)
	case sim.Hears:
		t.writeStep("hears", id, nodeField(s), field{"of", t.at[s.Of]}, age, field{"current", tlaBool(s.Current)}, t.trustField(s))
	case sim.Wakes:
		t.writeStep("wakes", id, nodeField(s), field{"of", t.at[s.Of]}, age, field{"lasts", ticksOf(t.record.Steps[s.Of].Lasts)})
	case sim.Chooses:
		t.writeStep("chooses", id, token)
	case sim.Wins:
		t.writeStep("wins", id, token, t.trustField(s))
	case sim.Spreads:
		t.writeStep("spreads", id, token)
	case sim.Renews:
		t.writeStep("renews", id, field{"ttl", ticksOf(s.TTL)})
	case sim.SetsAgain:
		t.writeStep("sets again", id)
	case sim.Renewed:
		t.writeStep("renewed", id, t.trustField(s))
	case sim.Uses:
		t.writeStep("uses", id)
	case sim.GivesBack:
		t.writeStep("gives back", id, nodeField(s))
	case sim.Ends:
		t.writeStep("ends", id)
	case sim.Lapses:
		t.writeStep("lapses", nodeField(s))
	case sim.Unnotes:
		t.writeStep("unnotes", nodeField(s), id)
	case sim.Vacates:
		t.writeStep("vacates", nodeField(s), id)
	case sim.Forgets:
		t.writeStep("forgets", nodeField(s), field{"F", t.relativeToken(s.Lock.Fence)})
	case sim.Admits:
		t.writeStep("admits", nodeField(s), field{"floor", t.relativeToken(s.Floor)})
	case sim.Loses:
		t.writeStep("loses", nodeField(s))
	}
}

// writeExecution writes the TLA+ step in which a node executes a request.
func (t *translation) writeExecution(s sim.Step, request, reply string, token int64) {
	owner := "0"
	if s.Lock.Owner != "" {
		owner = strconv.Itoa(t.ids[s.Lock.Owner])
	}
	var queue []string
	for p := range s.Lock.Queue.Places {
		queue = append(queue, p.Owner)
	}
	t.writeStep("executes", nodeField(s), field{"ask", strconv.Quote(request)}, t.idField(s.Owner), field{"T", token}, field{"ttl", ticksOf(s.Ask.TTL)},
		field{"stamped", tlaBool(s.Ask.Stamp != 0)}, field{"deaf", t.ownerSet(s.Deaf)}, field{"lasts", ticksOf(s.Lasts)}, field{"says", strconv.Quote(reply)},
		field{"owner", owner}, field{"tok", t.relativeToken(s.Lock.Token)}, field{"F", t.relativeToken(s.Lock.Fence)}, field{"queue", t.ownerSet(queue)},
		field{"keeps", (s.At+s.Keeps)/ms - s.At/ms}, field{"heard", "FALSE"})
}

// requestName returns the request in the terms of the specification.
func requestName(ask *quorum.Ask) string {
	switch {
	case ask.Restore:
		return "anew"
	case ask.Kind == quorum.AskGiveBack:
		return "give back"
	}
	return ask.Kind.String()
}

var answerNames = map[quorum.Kind]string{
	quorum.Granted: "granted", quorum.Denied: "denied", quorum.Accepted: "accepted", quorum.Refused: "refused", quorum.Kept: "kept",
	quorum.NotMine: "not mine", quorum.Freed: "freed", quorum.Failed: "failed",
}

// markHeard marks the steps whose answer or wake-up arrives later.
func (t *translation) markHeard() {
	for _, s := range t.steps {
		if s.Kind == sim.Hears || s.Kind == sim.Wakes {
			at := t.at[s.Of] - 1
			t.out[at] = strings.TrimSuffix(t.out[at], "FALSE]") + "TRUE]"
		}
	}
}

// tracedClasses returns the classes of faults that the specification covers. It lacks clock jumps and nodes
// with older data, which the simulation has.
func tracedClasses() []sim.Class {
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

// recordRun returns the run of a seed.
func recordRun(seed uint64, rules sim.Rules) recordedRun {
	classes := tracedClasses()
	class := classes[seed%uint64(len(classes))]
	turn := seed / uint64(len(classes))
	g := group{nodes: 3, adopts: turn%5 == 4}
	if turn%5 == 3 && !class.Has(sim.Wipe) { // in the specification a single server forgets only by a failover
		g.nodes = 1
	}
	var r sim.Record
	sim.Run(sim.Config{Seed: seed, Class: class, Rules: rules, Nodes: g.nodes, Adopt: g.adopts, Storm: turn%2 == 0, Record: &r})
	out := translate(seed, class, &r)
	out.set = g
	return out
}

// recordedModule returns the module with the runs, for TLC.
func recordedModule(runs []recordedRun) []byte {
	var text bytes.Buffer
	text.WriteString("---- MODULE Recorded ----\nEXTENDS Integers\n")
	var names []string
	for i, r := range runs {
		name := fmt.Sprint("Run", i+1)
		names = append(names, name)
		fmt.Fprintf(&text, "%s == [ttl |-> %d, note |-> %d, sound |-> %s, steps |-> <<\n%s\n>>]\n", name, ticksOf(r.ttl),
			ticksOf(quorum.NoteTime(r.ttl)), tlaBool(!r.class.Has(sim.Forget)), strings.Join(r.steps, ",\n"))
	}
	fmt.Fprintf(&text, "Runs == <<%s>>\n====\n", strings.Join(names, ", "))
	return text.Bytes()
}

// tlcConfig returns TLC's configuration for these runs.
func tlcConfig(g group, runs []recordedRun, promised bool) []byte {
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

// rejectedRun is a run that is no behaviour of the specification.
type rejectedRun struct {
	run  recordedRun
	step int // the first step that TLC could not take
}

func (r rejectedRun) String() string {
	return fmt.Sprintf("seed %d (%s, %d nodes): step %d of %d: %s", r.run.seed, r.run.class.Name, r.run.set.nodes, r.step, len(r.run.steps), r.run.steps[r.step-1])
}

// followRuns makes TLC follow the runs of the seeds, and prints the number of steps. A rejected run is an
// error.
func (s settings) followRuns(ctx context.Context, checker, folder string, out io.Writer) error {
	groups := make(map[group][]recordedRun)
	for seed := range s.runs {
		r := recordRun(seed+1, sim.Rules{})
		groups[r.set] = append(groups[r.set], r)
	}
	var wrong []error
	for g, runs := range groups {
		refused, took, err := s.checkRuns(ctx, checker, filepath.Join(folder, g.String()), runs, true)
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

// checkRuns makes TLC follow the runs of one group and returns the rejected ones. With promised, for runs of
// the unchanged code, the promises must hold in each state.
func (s settings) checkRuns(ctx context.Context, checker, folder string, runs []recordedRun, promised bool) ([]rejectedRun, time.Duration, error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, 0, err
	}
	files := map[string][]byte{"Recorded.tla": recordedModule(runs), "row.cfg": tlcConfig(runs[0].set, runs, promised)}
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
	if err := s.runTLC(ctx, checker, folder, row{module: traceHoldfast, long: len(runs) > 50}); err != nil {
		return nil, 0, err
	}
	text, err := os.ReadFile(reportPath(folder))
	if err != nil {
		return nil, 0, err
	}
	switch got := parseReport(string(text)); {
	case got.err != nil:
		return nil, 0, fmt.Errorf("%w:\n%s", got.err, lastLines(text))
	case got.broken != "":
		return nil, 0, fmt.Errorf("%s breaks in a run:\n%s", got.broken, strings.Join(got.trace, "\n"))
	default:
		return rejectedRuns(runs, text), got.took, nil
	}
}

// progress matches the line that TLC prints for each step of a run.
var progress = regexp.MustCompile(`(?m)^<<(\d+), (\d+)>>$`)

// rejectedRuns returns the runs of which TLC did not take every step.
func rejectedRuns(runs []recordedRun, text []byte) []rejectedRun {
	taken := make([]int, len(runs))
	for _, m := range progress.FindAllSubmatch(text, -1) {
		run, _ := strconv.Atoi(string(m[1]))
		step, _ := strconv.Atoi(string(m[2]))
		taken[run-1] = max(taken[run-1], step)
	}
	var refused []rejectedRun
	for i, r := range runs {
		if taken[i] < len(r.steps) {
			refused = append(refused, rejectedRun{r, taken[i] + 1})
		}
	}
	return refused
}
