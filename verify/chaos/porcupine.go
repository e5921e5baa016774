//go:build linux

package main

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// The checks in check.go are our own; Porcupine is an independent checker. It searches for an order of all
// calls in which each call takes effect at one moment between its start and its answer, and in which a model
// allows every answer. A call without an answer may take effect at any later time, or never.

// The models, named by the promise that is broken if there is no such order.
const (
	asTokens   = "porcupine: tokens rise"
	asLock     = "porcupine: one holder at a time, one for each slot, or a writer alone"
	asRegister = "porcupine: a register that loses no update"
)

// call is a client's request. Its answer is a kind: got, released, seen, barred, acked, refused, or unknown.
type call struct {
	what  string // acquire, release, claim, read, "claim, read", write
	by    *attempt
	token int64  // token of the grant, or for the storage; 0: none
	share int    // acquire, release: share of the simultaneous holders
	below int64  // acquire: the next lower granted token
	value string // value that was read, or is written
	prev  string // write: the value that its caller read before
}

const (
	claims = "claim"
	looks  = "read"
	both   = claims + ", " + looks // in one step
)

// tokenModel is a lock that gives each holder a higher token than all before. The order of its grants is
// unique, so each grant names the one before it. Otherwise Porcupine would try all rising orders, including
// those with gaps.
var tokenModel = porcupine.Model{
	Init: func() any { return int64(0) },
	Step: func(state, in, _ any) (bool, any) {
		c := in.(call)
		return state == c.below && c.token > c.below, c.token
	},
	DescribeOperation: describeOperation,
}

// lockModel is a lock with that many simultaneous holders: one, the slots of a semaphore, or readers; a writer
// counts for all. The end of a lease counts as a release. No release begins before its acquire was answered,
// so a count of holders is enough.
func lockModel(most int) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return 0 },
		Step: func(state, in, _ any) (bool, any) {
			holders := state.(int)
			if in.(call).what == "acquire" {
				return holders+in.(call).share <= most, holders + in.(call).share
			}
			return holders >= in.(call).share, holders - in.(call).share
		},
		DescribeOperation: describeOperation,
	}
}

// register is a value that is written under tokens.
type register struct {
	highest int64 // highest accepted token
	value   string
}

// registerModel accepts a claim or a write exactly if its token is no lower than the highest accepted one, and
// a write only if it replaces the value that its caller read. A storage without tokens accepts all, with token
// 0.
var registerModel = porcupine.Model{
	Init: func() any { return register{} },
	Step: func(state, in, out any) (bool, any) {
		s, c, answer := state.(register), in.(call), out.(kind)
		if answer == barred || answer == refused { // postgres.FenceTx rejects without a token
			return c.token == 0 || c.token < s.highest, s
		}
		ok := answer == unknown
		switch current := c.prev == s.value; {
		case c.what != looks && c.token < s.highest:
			return ok, s
		case c.what == "write" && !current:
			return ok, s
		case c.what == "write":
			return true, register{c.token, c.value}
		case c.what != claims && !ok && c.value != s.value:
			return false, s
		case c.what != looks:
			s.highest = c.token
		}
		return true, s
	},
	DescribeOperation: describeOperation,
}

func describeOperation(in, out any) string {
	c, answer := in.(call), out.(kind)
	text := c.what
	if c.token != 0 {
		text += fmt.Sprintf(" (token %d)", c.token)
	}
	switch {
	case c.what == "write": // its value names the writer
		return fmt.Sprintf("%s %q over %q: %s", text, c.value, c.prev, answer)
	case answer == seen && c.what != claims:
		return fmt.Sprintf("%s by %s: %q", text, c.by.try, c.value)
	}
	return fmt.Sprintf("%s by %s: %s", text, c.by.try, answer)
}

// noAnswer is the time of a missing answer.
const noAnswer = math.MaxInt64

func newOperation(c call, called int64, answer kind, answered int64) porcupine.Operation {
	if answered < called {
		answered = noAnswer
	}
	return porcupine.Operation{Input: c, Call: called, Output: answer, Return: answered, Metadata: c.by.try}
}

// grantOperations returns the calls that were granted a token. A hand-over inside a process is part of its
// grant (findDisorder). An acquire without an answer has no token.
func (l *lockHistory) grantOperations() (out []porcupine.Operation) {
	granted := slices.DeleteFunc(l.grantedAttempts(), func(a *attempt) bool { return a.token == 0 })
	slices.SortFunc(granted, func(a, b *attempt) int { return cmp.Compare(a.token, b.token) })
	begun, below := l.grantsBegun(), int64(0)
	for i, a := range granted {
		if i > 0 && granted[i-1].token < a.token {
			below = granted[i-1].token
		}
		out = append(out, newOperation(call{what: "acquire", by: a, token: a.token, below: below}, begun[a.grantName()], got, a.got))
	}
	return out
}

// holdingOperations returns the calls that were granted, and the ends of their trust.
func (l *lockHistory) holdingOperations() (out []porcupine.Operation) {
	for _, a := range l.grantedAttempts() {
		if i := a.trustedInterval(); i.end > i.start {
			answer := released
			if a.released < i.end {
				answer = unknown
			}
			out = append(out, newOperation(call{what: "acquire", by: a, share: l.holderCount(a)}, a.asked, got, a.got),
				newOperation(call{what: "release", by: a, share: l.holderCount(a)}, i.end, answer, a.released))
		}
	}
	return out
}

// accessOperations returns the reads and writes of a storage, and a read at the end.
func (l *lockHistory) accessOperations(store string) (out []porcupine.Operation) {
	token := func(a *access) int64 {
		if store == byRedis || store == bySQL {
			return a.by.token
		}
		return 0
	}
	reads := []string{looks}
	switch store {
	case byRedis:
		reads = []string{both}
	case bySQL: // two transactions
		reads = []string{claims, looks}
	}
	add := func(c call, a *access) {
		answer := a.result
		if answer == reading || answer == writing {
			answer = unknown
		}
		if answer == unknown {
			a.answered = 0
		}
		out = append(out, newOperation(c, a.called, answer, a.answered))
	}
	last := int64(0)
	for _, r := range l.reads[store] {
		last = max(last, r.called, r.answered)
		for _, what := range reads {
			if what != looks || r.result == seen {
				add(call{what: what, by: r.by, token: token(r), value: r.prev}, r)
			}
		}
		if store == bySQL && r.result == barred { // the claim may be stored, with a higher one before its check
			out = append(out, newOperation(call{what: claims, by: r.by, token: token(r)}, r.called, unknown, r.answered))
		}
	}
	for _, w := range l.writes[store] {
		last = max(last, w.called, w.answered)
		add(call{what: "write", by: w.by, token: token(w), value: w.op, prev: w.prev}, w)
	}
	if final, ok := l.finals[store]; ok {
		out = append(out, newOperation(call{what: looks, by: &attempt{try: "the end"}, value: final}, last+1, seen, last+1))
	}
	return out
}

// trial is a history and the model that judges it.
type trial struct {
	promise string
	store   string // storage of a register
	model   porcupine.Model
	of      func(*lockHistory) []porcupine.Operation
}

// lockTrials returns the trials of a lock. Its registers are separate, because the one without a fence is the
// control. A semaphore has neither tokens nor registers, but its slots have.
func (l *lockHistory) lockTrials(exclusive bool) (all []trial) {
	if exclusive {
		all = append(all, trial{asLock, "", lockModel(l.most), (*lockHistory).holdingOperations})
	}
	if l.most > 1 && !l.sides {
		return all
	}
	all = append(all, trial{asTokens, "", tokenModel, (*lockHistory).grantOperations})
	for _, store := range append(slices.Clone(fencedStores), byNobody) {
		all = append(all, trial{asRegister, store, registerModel, func(l *lockHistory) []porcupine.Operation { return l.accessOperations(store) }})
	}
	return all
}

// Judged counts Porcupine's verdicts.
type Judged struct {
	Operations int `json:"operations"`
	Histories  int `json:"histories"`
	Illegal    int `json:"illegal"`
	Unknown    int `json:"unknown"` // not decided in time
}

// patience bounds the time for all histories of a window. One takes milliseconds.
const patience = 20 * time.Second

// judgeLinear has Porcupine judge the locks of a window until the deadline. It returns the broken promises,
// and draws the first violation of each kind.
func (j *judge) judgeLinear(
	s *span, exclusive bool, deadline time.Time, events []event, locks map[string]*lockHistory, faults []pastFault,
) (found []Finding, errs error) {
	for _, key := range slices.Sorted(maps.Keys(locks)) {
		l, peer := locks[key], strings.Contains(key, "/r")
		for _, t := range l.lockTrials(exclusive) {
			ops := t.of(l)
			if len(ops) == 0 {
				continue
			}
			who := "holdfast"
			switch {
			case peer:
				who = j.report.Peer
			case t.store == byNobody:
				who = "control"
			}
			sum := j.report.countsFor(who)
			sum.Histories++
			if t.promise != asLock || peer || l.most > 1 {
				sum.Operations += len(ops)
			} else {
				sum.Operations += len(ops) / 2 // the other half is counted with the tokens
			}
			switch porcupine.CheckOperationsTimeout(t.model, ops, max(time.Until(deadline), time.Millisecond)) {
			case porcupine.Unknown:
				sum.Unknown++
			case porcupine.Illegal:
				sum.Illegal++
				name := t.pictureFile(who)
				if !slices.Contains(j.report.Pictures, name) {
					j.report.Pictures = append(j.report.Pictures, name)
					if err := t.drawPicture(filepath.Join(filepath.Dir(j.dir), name), l, events, faults); err != nil {
						errs = fmt.Errorf("%s: %w", name, err)
					}
				}
				if who == "holdfast" {
					found = append(found, Finding{s.Class, t.promise, finding{key, fmt.Sprintf("no order of %d calls explains their answers %s", len(ops), t.store)}})
				}
			}
		}
	}
	return found, errs
}

// pictureFile returns the file for the first violation of this kind.
func (t trial) pictureFile(who string) string {
	what := map[string]string{asTokens: "tokens", asLock: "lock", asRegister: "register"}[t.promise]
	return "porcupine-" + strings.ToLower(who) + "-" + what + ".html"
}

// drawPicture draws the shortest beginning of a lock's history that the model does not allow.
func (t trial) drawPicture(path string, l *lockHistory, events []event, faults []pastFault) error {
	whole := func(key string) string { key, _, _ = strings.Cut(key, "#"); return key } // a slot is asked for by the name of its semaphore
	mine := slices.DeleteFunc(slices.Clone(events), func(e event) bool { return whole(e.Key) != whole(l.key) && e.Kind != closing })
	begin := func(n int) []porcupine.Operation {
		if part := sortByLock(mine[:n])[l.key]; part != nil {
			return t.of(part)
		}
		return nil
	}
	n := sort.Search(len(mine), func(n int) bool {
		return porcupine.CheckOperationsTimeout(t.model, begin(n), time.Second) == porcupine.Illegal
	})
	ops := begin(n)
	if n == len(mine) { // the violation is in the final value
		ops = t.of(l)
	}
	placeInRows(ops)
	_, info := porcupine.CheckOperationsVerbose(t.model, ops, patience)
	var notes []porcupine.Annotation
	for _, f := range faults {
		notes = append(notes, porcupine.Annotation{Tag: f.Victim, Start: f.Start, End: f.End, Description: f.Do})
	}
	info.AddAnnotations(notes)
	return porcupine.VisualizePath(t.model, info, path)
}

// placeInRows assigns each operation to a row of the picture without overlaps.
func placeInRows(ops []porcupine.Operation) {
	slices.SortFunc(ops, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	var free []int64 // by row: time since which it is free
	for i := range ops {
		row := slices.IndexFunc(free, func(t int64) bool { return t < ops[i].Call })
		if row < 0 {
			row, free = len(free), append(free, 0)
		}
		ops[i].ClientId, free[row] = row, ops[i].Return
	}
}

// countsFor returns the counts for Holdfast, for the control, or for the other library.
func (r *Report) countsFor(who string) *Judged {
	if r.Porcupine[who] == nil {
		r.Porcupine[who] = new(Judged)
	}
	return r.Porcupine[who]
}

func (j *Judged) String() string {
	text := fmt.Sprintf("%d operations in %d histories", j.Operations, j.Histories)
	if j.Illegal == 0 && j.Unknown == 0 {
		return text + ", ok"
	}
	if j.Illegal > 0 {
		text += fmt.Sprintf(", %d illegal", j.Illegal)
	}
	if j.Unknown > 0 {
		text += fmt.Sprintf(", %d unknown (not decided in %v)", j.Unknown, patience)
	}
	return text
}
