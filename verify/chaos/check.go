//go:build linux

package main

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/internal/quorum"
)

// attempt is one call for a lock and its outcome.
type attempt struct {
	try, client, key, id string
	asked, got           int64 // got: 0 if not granted
	token                int64
	until                int64 // latest end of trust
	left                 int64 // end of the holder's work; 0: not recorded
	lost                 int64 // time of the reported loss; 0: none
	closed               int64 // time when its client began to close; 0: it did not
	why                  string
	gaveUp               int64  // time of the reported failure
	released             int64  // time of the confirmed release; 0: none
	first                int64  // end of trust at the grant
	ttl, least           int64  // requested TTL and MinHold
	wait                 int64  // longest wait of the call; 0: until its window ends
	lined                int64  // start of its process's line for a slot; 0: it asked for no slot
	alone                bool   // it asked for a read-write lock as the writer
	from                 string // owner of the lease to adopt; empty: it asked for the lock
	forced               int64  // start of a force-release by an operator; 0: none
	taken                int64  // time of that force-release, or start of an adoption; 0: neither
}

// takeAttempt is an attempt to take a lock from its holder, by an operator or by an adopter.
type takeAttempt struct {
	grant       string
	token       int64    // as the operator saw it; 0: unknown
	begun, done int64    // done: 0 if not known to have succeeded
	by          *attempt // nil: an operator
	stale       string   // owner of a released lease whose token the operator uses; empty: none
}

// isFrom reports whether the lock was taken from a. A claim that has not noticed its grant asks again, and may
// be granted the lock again under the same owner, with another block of tokens, which it never renews.
func (t *takeAttempt) isFrom(a *attempt) bool {
	return a.grantName() == t.grant && (t.token == 0 || a.token < t.token+quorum.Block)
}

// trustedInterval returns the interval in which the holder trusted the lease: from the grant up to its
// release, its loss or its deadline. A holder from whom the lock is taken cannot know that before its next
// renewal.
func (a *attempt) trustedInterval() interval {
	end := a.until
	for _, t := range []int64{a.left, a.lost, a.closed, a.taken} {
		if t != 0 {
			end = min(end, t)
		}
	}
	return interval{a.got, end, a}
}

// grantName returns the name of the grant by the nodes that served the attempt.
func (a *attempt) grantName() string {
	return cmp.Or(grantOf(a.id), a.try)
}

func grantOf(owner string) string {
	grant, _, _ := strings.Cut(owner, "+")
	return grant
}

// isSound reports whether the holder had the lock until its release. The proof is a recorded renewal, which a
// slow hook may record late, or the service's confirmation of the release, which it gives only for a held
// lease.
func (a *attempt) isSound() bool { return a.left != 0 && (a.left <= a.until || a.released != 0) }

// workedInterval returns the interval in which the holder worked, with or without trust.
func (a *attempt) workedInterval() interval {
	if a.left != 0 {
		return interval{a.got, a.left, a}
	}
	return a.trustedInterval()
}

type interval struct {
	start, end int64
	of         *attempt
}

// access is one write to a storage, or one read of it.
type access struct {
	op, prev string // op: the written value, or the purpose of the read; prev: the read value
	result   kind   // acked, refused, unknown; seen, barred; writing, reading: no recorded answer
	by       *attempt
	called   int64 // time before the request
	answered int64 // time of the answer; 0: none
}

// lockHistory holds all events of one lock.
type lockHistory struct {
	key      string
	most     int                  // maximal holders at once: 1, or slots of a semaphore, or readers
	sides    bool                 // a read-write lock
	attempts []*attempt           // in the order of their start
	writes   map[string][]*access // by storage
	reads    map[string][]*access // by storage
	finals   map[string]string    // by storage: final values, if read
	stops    []suspension
	takings  map[string]*takeAttempt // by attempt
}

func newHistory(key string) *lockHistory {
	return &lockHistory{
		key: key, most: 1, writes: make(map[string][]*access), reads: make(map[string][]*access), finals: make(map[string]string),
		takings: make(map[string]*takeAttempt),
	}
}

// suspension is a time in which a whole client was suspended.
type suspension struct {
	client     string // name without the number of its process
	start, end int64
}

// runningSince returns the time since which the client of a has been running at t: 0 if it was never suspended,
// and t if it is suspended.
func (l *lockHistory) runningSince(a *attempt, t int64) (since int64) {
	for _, s := range l.stops {
		if strings.HasPrefix(a.client, s.client+".") && s.start < t {
			since = max(since, min(s.end, t))
		}
	}
	return since
}

// sortState holds the state of sortByLock.
type sortState struct {
	locks         map[string]*lockHistory // by key
	tries, ids    map[string]*attempt     // by try, and by key and owner
	reads, writes map[string]*access      // by storage and op
	closings      map[string][]int64      // by client
}

// sortByLock sorts events by lock.
func sortByLock(events []event) map[string]*lockHistory {
	slices.SortStableFunc(events, func(a, b event) int { return cmp.Compare(a.T, b.T) })
	s := sortState{
		locks: make(map[string]*lockHistory), tries: make(map[string]*attempt), ids: make(map[string]*attempt),
		reads: make(map[string]*access), writes: make(map[string]*access), closings: make(map[string][]int64),
	}
	for i := range events {
		s.add(&events[i])
	}
	for _, a := range s.tries {
		for _, t := range s.closings[a.client] {
			if a.asked < t && (a.closed == 0 || t < a.closed) {
				a.closed = t
			}
		}
	}
	for key, place := range s.locks {
		name, _, _ := strings.Cut(key, "#")
		if l := s.locks[name]; l != nil && l.sides {
			for try, t := range place.takings {
				of := *t
				of.token = 0 // the place's token, which does not belong to its reader
				l.takings[try] = &of
			}
		}
	}
	for _, l := range s.locks {
		l.takeAway()
		if l.most > 1 {
			l.noteEarliestRequests()
		}
	}
	return s.locks
}

// add adds an event to the histories.
func (s *sortState) add(e *event) {
	switch e.Kind {
	case crowded, blamed, strange, observed:
		return
	case closing:
		s.closings[e.Client] = append(s.closings[e.Client], e.T)
		return
	}
	l := s.locks[e.Key]
	if l == nil {
		l = newHistory(e.Key)
		s.locks[e.Key] = l
	}
	switch e.Kind {
	case asked:
		s.noteAttempt(l, e)
	case got:
		s.noteGrant(l, e)
	case reading, seen, barred, writing, acked, refused, unknown:
		s.noteAccess(l, e)
	case forcing:
		l.takings[e.Try] = &takeAttempt{grant: grantOf(e.ID), token: e.Token, begun: e.T, stale: e.From}
	case forced:
		if e.Err == "" {
			l.takings[e.Try].done = e.T
		}
	default:
		s.noteOutcome(e)
	}
}

// noteAttempt records an attempt.
func (s *sortState) noteAttempt(l *lockHistory, e *event) {
	a := &attempt{try: e.Try, client: e.Client, key: e.Key, asked: e.T, from: e.From, ttl: e.TTL, least: e.Least, wait: e.Wait, alone: e.Side == writer}
	l.most, l.sides = max(l.most, e.Slots), l.sides || e.Side != ""
	s.tries[e.Try] = a
	if e.From != "" {
		l.takings[e.Try] = &takeAttempt{grant: grantOf(e.From), begun: e.T, by: a}
	}
	l.attempts = append(l.attempts, a)
}

// noteGrant records that an attempt was granted the lock, or the slot with the history l.
func (s *sortState) noteGrant(l *lockHistory, e *event) {
	a := s.tries[e.Try]
	a.got, a.token, a.id, a.first = e.T, e.Token, e.ID, e.Until
	a.until = max(a.until, e.Until)
	if e.Key != a.key { // a slot
		l.attempts = append(l.attempts, a)
	}
	if t := l.takings[e.Try]; t != nil {
		t.done = e.T
	}
	s.ids[leaseName(e)] = a
}

// leaseName returns the name of the lease in e. A reader's lease has the key of a place.
func leaseName(e *event) string {
	name, _, _ := strings.Cut(e.Key, "#")
	return name + " " + e.ID
}

// noteOutcome records the outcome of an attempt or of its lease.
func (s *sortState) noteOutcome(e *event) {
	a, owner := s.tries[e.Try], s.ids[leaseName(e)]
	switch e.Kind {
	case failed:
		a.gaveUp, a.why = e.T, e.Err
	case renewed:
		if owner != nil {
			owner.until = e.Until
		}
	case lost:
		if owner != nil && owner.lost == 0 {
			owner.lost, owner.why = e.T, e.Err
		}
	case leaving:
		a.left = e.T
	case released:
		if e.Err == "" {
			a.released = e.T
		}
	}
}

// noteAccess records a request to a storage, or its answer.
func (s *sortState) noteAccess(l *lockHistory, e *event) {
	name := e.Store + " " + e.Op
	switch e.Kind {
	case reading:
		r := &access{op: e.Op, result: reading, by: s.tries[e.Try], called: e.T}
		s.reads[name] = r
		l.reads[e.Store] = append(l.reads[e.Store], r)
	case seen, barred:
		r := s.reads[name]
		r.result, r.prev, r.answered = e.Kind, e.Prev, e.T
	case writing:
		w := &access{op: e.Op, prev: e.Prev, result: writing, by: s.tries[e.Try], called: e.T}
		s.writes[name] = w
		l.writes[e.Store] = append(l.writes[e.Store], w)
	case acked, refused, unknown:
		w := s.writes[name]
		w.result, w.answered = e.Kind, e.T
	}
}

// noteEarliestRequests records for each attempt the earliest time at which a request of its process may have served it:
// callers of one process share one line for a semaphore.
func (l *lockHistory) noteEarliestRequests() {
	type line struct{ since, until int64 }
	lines := make(map[string]line) // by client
	for _, a := range l.attempts {
		in := lines[a.client]
		if in.since == 0 || in.until < a.asked {
			in.since = a.asked
		}
		end := cmp.Or(a.got, a.gaveUp, math.MaxInt64)
		lines[a.client], a.lined = line{in.since, max(in.until, end)}, in.since
	}
}

// findOverdueCalls finds calls that lasted longer than their wait plus more, and calls that have not ended. It
// leaves out calls for which excused reports a fault.
func (l *lockHistory) findOverdueCalls(more int64, excused func(client string, from, to int64) bool) (out []finding) {
	for _, a := range l.attempts {
		switch end := cmp.Or(a.got, a.gaveUp); {
		case a.wait == 0 || end != 0 && end <= a.asked+a.wait+more || excused(a.client, a.asked, cmp.Or(end, math.MaxInt64)):
		case end == 0:
			out = append(out, finding{l.key, fmt.Sprintf("%s asked at %d, was to wait for %.3f s, and has not ended", a.try, a.asked, float64(a.wait)/1e9)})
		default:
			out = append(out, finding{l.key, fmt.Sprintf("%s asked at %d, was to wait for %.3f s, and ended after %.3f s",
				a.try, a.asked, float64(a.wait)/1e9, float64(end-a.asked)/1e9)})
		}
	}
	return out
}

// findUnservedCalls finds calls that waited in vain.
func (l *lockHistory) findUnservedCalls() (out []finding) {
	for _, a := range l.attempts {
		if a.wait != 0 && a.gaveUp != 0 {
			out = append(out, finding{l.key, fmt.Sprintf("%s, which asked at %d, after %.3f s: %s", a.try, a.asked, float64(a.gaveUp-a.asked)/1e9, a.why)})
		}
	}
	return out
}

// takeAway records from which holder the lock was taken, and when. A reader is known by its place. A writer is
// the writer at that time, because its places have separate owners, and the loss of any place is the loss of
// the lock.
func (l *lockHistory) takeAway() {
	earlier := func(at *int64, t int64) {
		if *at == 0 || t < *at {
			*at = t
		}
	}
	for _, t := range l.takings {
		for _, a := range l.attempts {
			if !t.isFrom(a) && (!a.alone || t.begun < a.got || a.until < t.begun) {
				continue
			}
			if earlier(&a.taken, t.begun); t.by == nil {
				earlier(&a.forced, t.begun)
			}
		}
	}
}

// findRevivals finds leases that were adopted after their release.
func (l *lockHistory) findRevivals() (out []finding) {
	for _, by := range l.grantedAttempts() {
		for _, a := range l.attempts {
			if by.from != "" && a.id == by.from && a.released != 0 && a.released < by.asked {
				out = append(out, finding{l.key, fmt.Sprintf("%s (token %d) was released at %d, and adopted by %s (token %d) at %d",
					a.try, a.token, a.released, by.try, by.token, by.got)})
			}
		}
	}
	return out
}

// findForcesByOldToken finds locks that were taken away by the token of a released lease.
func (l *lockHistory) findForcesByOldToken() (out []finding) {
	for _, try := range slices.Sorted(maps.Keys(l.takings)) {
		for _, a := range l.grantedAttempts() {
			if t := l.takings[try]; t.stale != "" && a.id == t.stale && a.released != 0 && t.done != 0 {
				out = append(out, finding{l.key, fmt.Sprintf("%s (token %d) was released at %d, and its token took the lock from another at %d",
					a.try, a.token, a.released, t.done)})
			}
		}
	}
	return out
}

// findReturns finds leases that were renewed after they had been taken away.
func (l *lockHistory) findReturns() (out []finding) {
	for _, try := range slices.Sorted(maps.Keys(l.takings)) {
		t := l.takings[try]
		for _, a := range l.grantedAttempts() {
			if t.done != 0 && t.isFrom(a) && a.until > t.done+a.ttl {
				out = append(out, finding{l.key, fmt.Sprintf("%s (token %d) was taken away by %s at %d, and trusted until %d, more than its TTL of %.3f s after that",
					a.try, a.token, try, t.done, a.until, float64(a.ttl)/1e9)})
			}
		}
	}
	return out
}

// findShortMinHolds finds locks that were not kept for the requested MinHold, though nobody took them away
// before the release. With several nodes that decide together it also skips locks that another client began to
// adopt after the release: some nodes may not have had the release yet, and the failed adoption frees the lock
// there.
func (l *lockHistory) findShortMinHolds(several bool) (out []finding) {
	granted := l.grantedAttempts()
	slices.SortFunc(granted, func(a, b *attempt) int { return cmp.Compare(a.got, b.got) })
	for _, a := range granted {
		if a.least == 0 || a.released == 0 || a.lost != 0 || a.forced != 0 {
			continue
		}
		taken := a.taken != 0 && (several || a.taken < a.released)
		kept := a.first - a.ttl + a.least // the grant came no earlier than a TTL before the end of trust
		for _, b := range granted {
			if a.got < b.got && b.got < kept && (!taken || b.got < a.taken) {
				out = append(out, finding{l.key, fmt.Sprintf("%s (token %d) was to be kept until %d at least, and %s (token %d) had it at %d",
					a.try, a.token, kept, b.try, b.token, b.got)})
				break
			}
		}
	}
	return out
}

func (l *lockHistory) grantedAttempts() []*attempt {
	return slices.DeleteFunc(slices.Clone(l.attempts), func(a *attempt) bool { return a.got == 0 })
}

// finding is one violation.
type finding struct {
	Key  string `json:"key"`
	What string `json:"what"`
}

// findLosses finds leases that were lost although their client was not closed. Excused losses are only
// counted.
func (l *lockHistory) findLosses(excused func(a *attempt) bool) (out []finding, others int) {
	for _, a := range l.grantedAttempts() {
		if a.lost != 0 && (a.left == 0 || a.lost < a.left) && (a.closed == 0 || a.lost < a.closed) {
			if excused(a) {
				others++
				continue
			}
			out = append(out, finding{l.key, fmt.Sprintf("%s (token %d), granted at %d, at %d: %s", a.try, a.token, a.got, a.lost, a.why)})
		}
	}
	return out, others
}

// grantsWithin finds grants between two times.
func (l *lockHistory) grantsWithin(from, to int64) (out []finding) {
	for _, a := range l.grantedAttempts() {
		if from < a.got && a.got < to {
			out = append(out, finding{l.key, fmt.Sprintf("%s (token %d) at %d, between %d and %d", a.try, a.token, a.got, from, to)})
		}
	}
	return out
}

// findUnservedCrowds finds crowds with unserved callers, and crowds without a report.
func findUnservedCrowds(events []event, crowds []pastFault) (out []finding) {
	answers := make(map[string]int) // by client
	for _, e := range events {
		if e.Kind != crowded {
			continue
		}
		client, _, _ := strings.Cut(e.Client, ".")
		if answers[client]++; e.Served < e.Callers {
			out = append(out, finding{e.Key, fmt.Sprintf("%d of %d callers of %s, %d of them with a confirmed release; the first error: %s",
				e.Served, e.Callers, e.Client, e.Freed, e.Err)})
		}
	}
	for _, h := range crowds {
		if answers[h.Victim]--; answers[h.Victim] < 0 {
			out = append(out, finding{"crowd", fmt.Sprintf("that of %s has no answers", h.Victim)})
		}
	}
	return out
}

// findWrongBlame finds nodes that a client with a crowd reported as not up, though nothing but its crowd was
// wrong.
func findWrongBlame(events []event, crowds []pastFault) (out []finding) {
	for _, e := range events {
		client, _, _ := strings.Cut(e.Client, ".")
		came := func(h pastFault) bool { return h.Victim == client && h.Start < e.T }
		if e.Kind == blamed && slices.ContainsFunc(crowds, came) {
			out = append(out, finding{e.Key, e.Client + ": " + e.Err})
		}
	}
	return out
}

// findForeignLocks finds locks of other prefixes that clients saw.
func findForeignLocks(events []event) (out []finding) {
	for _, e := range events {
		if e.Kind == strange {
			out = append(out, finding{e.Key, e.Client + ": " + e.Err})
		}
	}
	return out
}

// findEarlyErrors finds callers whose wait ended early with an error.
func (l *lockHistory) findEarlyErrors(end int64, excused func(client string, from, to int64) bool) (out []finding) {
	for _, a := range l.attempts {
		waited := a.wait != 0 && a.gaveUp >= a.asked+a.wait
		if a.got == 0 && a.gaveUp != 0 && a.gaveUp < end && a.closed == 0 && a.from == "" && !waited && !excused(a.client, a.asked, a.gaveUp) {
			out = append(out, finding{l.key, fmt.Sprintf("%s, which asked at %d, at %d: %s", a.try, a.asked, a.gaveUp, a.why)})
		}
	}
	return out
}

// findDuplicateTokens finds tokens that two grants share.
func (l *lockHistory) findDuplicateTokens() (out []finding) {
	seen := make(map[int64]*attempt)
	for _, a := range l.grantedAttempts() {
		if a.token == 0 {
			continue
		}
		if b := seen[a.token]; b != nil {
			out = append(out, finding{l.key, fmt.Sprintf("token %d of %s and of %s", a.token, b.try, a.try)})
		}
		seen[a.token] = a
	}
	return out
}

// findDisorder finds grants with a smaller token than a grant that was complete before they were requested.
// That is the promise without a clock. A hand-over inside a process is part of its grant, as the nodes see it.
func (l *lockHistory) findDisorder() (out []finding) {
	granted, begun := l.grantedAttempts(), l.grantsBegun()
	slices.SortStableFunc(granted, func(a, b *attempt) int { return cmp.Compare(begun[a.grantName()], begun[b.grantName()]) })
	byGot := slices.Clone(granted)
	slices.SortFunc(byGot, func(a, b *attempt) int { return cmp.Compare(a.got, b.got) })
	var highest *attempt
	next := 0
	for _, a := range granted {
		for ; next < len(byGot) && byGot[next].got < begun[a.grantName()]; next++ {
			if highest == nil || byGot[next].token > highest.token {
				highest = byGot[next]
			}
		}
		if highest != nil && a.token != 0 && a.token <= highest.token {
			out = append(out, finding{l.key, fmt.Sprintf("%s was asked for after %s was granted, and its token %d is not above %d",
				a.try, highest.try, a.token, highest.token)})
		}
	}
	return out
}

// grantsBegun returns the time of the first request for each grant.
func (l *lockHistory) grantsBegun() map[string]int64 {
	begun := make(map[string]int64)
	for _, a := range l.grantedAttempts() {
		since := cmp.Or(a.lined, a.asked)
		if at, ok := begun[a.grantName()]; !ok || since < at {
			begun[a.grantName()] = since
		}
	}
	return begun
}

// countInversions counts holders whose token is smaller than an earlier holder's. Concurrent requests have no
// promised order.
func (l *lockHistory) countInversions() (n int) {
	granted := l.grantedAttempts()
	slices.SortFunc(granted, func(a, b *attempt) int { return cmp.Compare(a.got, b.got) })
	highest := int64(math.MinInt64)
	for _, a := range granted {
		if a.token < highest {
			n++
		}
		highest = max(highest, a.token)
	}
	return n
}

// visitIntervals calls visit with each interval in the order of their starts, and with the intervals that are
// open at that time.
func (l *lockHistory) visitIntervals(of func(*attempt) interval, visit func(on []interval, i interval)) {
	var all, on []interval
	for _, a := range l.grantedAttempts() {
		if i := of(a); i.end > i.start {
			all = append(all, i)
		}
	}
	slices.SortFunc(all, func(a, b interval) int { return cmp.Compare(a.start, b.start) })
	for _, i := range all {
		on = slices.DeleteFunc(on, func(o interval) bool { return o.end <= i.start })
		visit(on, i)
		on = append(on, i)
	}
}

// holderCount returns the number of holders for which a counts: all of them for a writer.
func (l *lockHistory) holderCount(a *attempt) int {
	if a.alone {
		return l.most
	}
	return 1
}

// findOverlaps finds intervals that begin while the maximum number of others is open.
func (l *lockHistory) findOverlaps(of func(*attempt) interval) (out []finding) {
	l.visitIntervals(of, func(on []interval, i interval) {
		holders := l.holderCount(i.of)
		for _, o := range on {
			holders += l.holderCount(o.of)
		}
		if holders <= l.most {
			return
		}
		longest := slices.MaxFunc(on, func(a, b interval) int { return cmp.Compare(a.end, b.end) })
		out = append(out, finding{l.key, fmt.Sprintf("%s (token %d) until %d and %s (token %d) from %d: %.3f ms",
			longest.of.try, longest.of.token, longest.end, i.of.try, i.of.token, i.start,
			float64(min(longest.end, i.end)-i.start)/1e6)})
	})
	return out
}

// maxHolders returns the highest number of holders that trusted the lock at once.
func (l *lockHistory) maxHolders() (most int) {
	l.visitIntervals((*attempt).trustedInterval, func(on []interval, _ interval) { most = max(most, len(on)+1) })
	return most
}

// lostUpdates finds writes that a storage has confirmed and that are not in the chain of writes to its final
// value. Each write names the one that it read; a write without an answer may be in the chain or not.
func (l *lockHistory) lostUpdates(store, final string) (out []finding) {
	writes := make(map[string]*access)
	for _, w := range l.writes[store] {
		writes[w.op] = w
	}
	line := make(map[string]bool)
	for op := final; op != ""; {
		w := writes[op]
		if w == nil || line[op] {
			return append(out, finding{l.key, fmt.Sprintf("%s: value %q was never written, or twice", store, op)})
		}
		if w.result == refused {
			out = append(out, finding{l.key, fmt.Sprintf("%s: %s was refused, and stands", store, op)})
		}
		line[op] = true
		op = w.prev
	}
	for _, op := range slices.Sorted(maps.Keys(writes)) {
		if writes[op].result == acked && !line[op] {
			out = append(out, finding{l.key, fmt.Sprintf("%s: %s is lost", store, op)})
		}
	}
	return out
}

// countResults returns the number of reads or writes with that result.
func countResults(all []*access, result kind) (n int) {
	for _, a := range all {
		if a.result == result {
			n++
		}
	}
	return n
}

// nextGrant returns the time from t to the next grant. If the holder was sound, the time counts from its
// release, and from the request of a running client. ok is false if no later grant exists.
func (l *lockHistory) nextGrant(t int64) (free int64, ok bool) {
	granted := l.grantedAttempts()
	slices.SortFunc(granted, func(a, b *attempt) int { return cmp.Compare(a.got, b.got) })
	for _, a := range granted {
		switch {
		case a.got >= t:
			return a.got - max(t, l.wantedSince(a.got)), true
		case a.left > t && a.isSound():
			t = a.left
		}
	}
	return 0, false
}

// longestFree returns the longest time for which no client trusted the lock although a running client had asked
// for it.
func (l *lockHistory) longestFree() (longest int64) {
	attempts := slices.Clone(l.attempts)
	end := func(a *attempt) int64 { return cmp.Or(a.got, a.gaveUp) }
	slices.SortStableFunc(attempts, func(a, b *attempt) int { return cmp.Compare(end(a), end(b)) })
	var free int64 // time since which nobody trusts the lock
	for _, a := range attempts {
		switch {
		case a.got != 0:
			longest = max(longest, a.got-max(free, l.wantedSince(a.got)))
			free = max(free, a.trustedInterval().end)
		case a.gaveUp != 0:
			longest = max(longest, a.gaveUp-max(free, a.asked, l.runningSince(a, a.gaveUp)))
		}
	}
	return longest
}

// wantedSince returns the time since which, at t, a running client has been asking for the lock.
func (l *lockHistory) wantedSince(t int64) int64 {
	since := t
	for _, a := range l.attempts {
		if (a.got == 0 || a.got >= t) && (a.gaveUp == 0 || a.gaveUp >= t) {
			since = min(since, max(a.asked, l.runningSince(a, t)))
		}
	}
	return since
}

// waitedInVain reports whether a client waited in vain for longer than bound after t, without a break, while
// nobody had the lock.
func (l *lockHistory) waitedInVain(t, bound int64) bool {
	granted := l.grantedAttempts()
	slices.SortFunc(granted, func(a, b *attempt) int { return cmp.Compare(a.got, b.got) })
	return slices.ContainsFunc(l.attempts, func(a *attempt) bool {
		if a.got != 0 {
			return false
		}
		free := max(a.asked, t, l.runningSince(a, a.gaveUp)) // time since which nobody has it
		for _, g := range granted {
			if g.got >= a.gaveUp || g.got-free > bound {
				break
			}
			free = max(free, g.trustedInterval().end)
			if g.isSound() {
				free = max(free, g.left)
			}
		}
		return a.gaveUp-free > bound
	})
}
