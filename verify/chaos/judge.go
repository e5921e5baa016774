//go:build linux

package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// judge checks the history of each window against the promises, soon after its end.
type judge struct {
	site     site
	stores   *openStores
	nemesis  *nemesis
	schedule *Schedule
	still    *standstill
	dir      string // folder of the histories
	keep     bool   // keep all histories
	report   *Report
	timeline *timeline
}

// The promises, by the names in the report.
const (
	uniqueTokens = "tokens are unique"
	tokenOrder   = "tokens rise"
	fencedWrites = "a fenced storage loses no update"
	exclusion    = "holders who trust their lease exclude one another"
	noGhosts     = "no lock outlives its holder by more than its TTL"
	recovery     = "the lock is free again within its bound"
	leasesLive   = "a lease lives while a majority of the nodes answers"
	unfitMute    = "a node that cannot show what it is does not vote"
	staysDead    = "a lease that was released is not adopted"
	spares       = "the token of a lease that was released takes no lock away"
	staysTaken   = "a lease that was taken away is not renewed"
	kept         = "a lock is kept for as long as its holder asked for"
	turnsNone    = "who waits is not turned away"
	keptApart    = "locks below one prefix have nothing to do with those below another"
	allServed    = "everybody is served who waits for a free lock"
	noBlame      = "a node that is well is not blamed"
	inTime       = "a call ends with what it asked for, or when it was to wait no longer"
	getsThrough  = "everybody gets through when the faults are over"
)

// verdict is the judgement of one window.
type verdict struct {
	*judge
	span   *span
	rules  class        // the promises of its class
	sums   *ClassReport // sums over all windows of the class
	faults []pastFault
	events []event
	locks  map[string]*lockHistory
	found  []Finding
	slow   []Finding // recoveries beyond their bound, which the report lists separately
}

// judgeWindow judges one window. It drops the history unless it shows a violation.
func (j *judge) judgeWindow(ctx context.Context, s *span) error {
	events, err := readHistory(j.dir, s.index)
	if err != nil {
		return err
	}
	faults := j.nemesis.faultsOf(s.index)
	v := &verdict{judge: j, span: s, rules: j.classFor(s.Class, faults), faults: faults, events: events, locks: sortByLock(events)}
	v.countWindow()
	for _, l := range v.locks {
		l.stops = stopsOf(faults)
		if err := v.judgeLock(ctx, l); err != nil {
			return err
		}
	}
	if err := v.judgeWhole(ctx); err != nil {
		return err
	}
	if j.report.Mix != nil {
		for i, f := range v.found {
			if older := j.nemesis.fleet.olderIn(f.What); len(older) > 0 {
				v.found[i].What += fmt.Sprintf(" (of the older build: %s)", strings.Join(older, ", "))
			}
		}
	}
	j.timeline.add(s, v.locks, faults, v.found)
	j.report.Findings = append(j.report.Findings, v.found...)
	j.report.Slow = append(j.report.Slow, v.slow...)
	if len(v.found) > 0 || len(v.slow) > 0 || j.keep {
		return nil
	}
	return dropHistory(j.dir, s.index)
}

// add adds a broken promise for each finding.
func (v *verdict) add(promise string, list []finding) {
	for _, f := range list {
		v.found = append(v.found, Finding{v.span.Class, promise, f})
	}
}

// countWindow adds the window and its faults to the sums of its class.
func (v *verdict) countWindow() {
	c := v.report.Classes[v.span.Class]
	if c == nil {
		c = &ClassReport{
			Shared: v.rules.shared, LostUpdates: map[string]int{}, Written: map[string]int{}, Refused: map[string]int{},
			Bound: int64(v.schedule.TTL) + int64(time.Second) + int64(v.rules.extra),
		}
		if !v.rules.lives {
			c.Mortal = "a majority may be away, or a holder"
		}
		v.report.Classes[v.span.Class] = c
	}
	c.Windows++
	c.Faults += len(v.faults)
	for _, f := range v.faults {
		v.report.Faults[f.Do]++
	}
	v.sums = c
}

// judgeLock judges a lock. A lock of another library is only counted.
func (v *verdict) judgeLock(ctx context.Context, l *lockHistory) error {
	sums, peer := &v.sums.Holdfast, strings.Contains(l.key, "/r")
	if peer {
		sums = &v.sums.Peer
	}
	overlaps, task := l.findOverlaps((*attempt).trustedInterval), v.report.taskFor(l.key)
	if err := v.addToSums(ctx, l, len(overlaps), task, sums); err != nil || peer {
		return err
	}
	if v.rules.shared == "" {
		v.add(exclusion, overlaps)
	}
	v.judgeCalls(l)
	if l.most > 1 && !l.sides { // the slots have the rest
		return nil
	}
	if v.report.Mix != nil {
		v.report.Mix.count(l, v.nemesis.fleet.buildOf)
	}
	v.judgeTokens(l, task)
	v.judgeLeases(l, task)
	return v.judgeFenced(ctx, l)
}

// addToSums adds the figures of a lock to the sums. If task is not nil, it gets the counts of calls.
func (v *verdict) addToSums(ctx context.Context, l *lockHistory, overlaps int, task *TaskReport, sums *Tally) error {
	lost, err := v.lostUpdates(ctx, l, byNobody)
	if err != nil {
		return err
	}
	t := Tally{Overlaps: overlaps, Worked: len(l.findOverlaps((*attempt).workedInterval)), Acked: countResults(l.writes[byNobody], acked), LostUpdates: len(lost)}
	if task != nil {
		task.count(l)
		task.Overlaps += overlaps
	} else {
		t.Granted = len(l.grantedAttempts())
		t.Failed = len(l.attempts) - t.Granted
	}
	sums.add(t)
	return nil
}

// judgeCalls judges how the calls for a lock have ended.
func (v *verdict) judgeCalls(l *lockHistory) {
	near := slices.Concat(v.faults, v.nemesis.faultsOf(v.span.index+1)) // a client may die there before it records its last calls
	v.add(inTime, l.findOverdueCalls(int64(v.schedule.TTL)+int64(time.Second), v.faultExcuse(near)))
	if v.span.Class == after && !v.still.fallsWithin(v.span.start, v.span.end) {
		v.add(getsThrough, l.findUnservedCalls())
	}
	if v.rules.patient {
		v.add(turnsNone, l.findEarlyErrors(v.span.end-int64(tail), v.faultExcuse(v.faults)))
	}
}

// judgeTokens judges the tokens of a lock. task is nil if the main table has the counts.
func (v *verdict) judgeTokens(l *lockHistory, task *TaskReport) {
	duplicates, disorder := l.findDuplicateTokens(), l.findDisorder()
	v.sums.Duplicates += len(duplicates)
	v.sums.Disorder += len(disorder)
	v.sums.Inversions += l.countInversions()
	if task != nil {
		task.Duplicates += len(duplicates)
		task.Disorder += len(disorder)
	}
	v.add(uniqueTokens, duplicates)
	v.add(tokenOrder, disorder)
}

// judgeLeases judges how the leases of a lock began and ended. task is nil if the main table has the counts.
func (v *verdict) judgeLeases(l *lockHistory, task *TaskReport) {
	v.add(staysDead, l.findRevivals())
	v.add(spares, l.findForcesByOldToken())
	v.add(staysTaken, l.findReturns())
	v.add(kept, l.findShortMinHolds(v.schedule.Backend == "redis"))
	if bound := v.sums.Bound; v.rules.duty == apart && l.waitedInVain(v.span.start, bound) {
		v.add(keptApart, []finding{{l.key, fmt.Sprintf("nobody of this prefix had it, and somebody waited for more than %v", time.Duration(bound))}})
	}
	lapsed, excused := l.findLosses(func(a *attempt) bool {
		ttl := time.Duration(v.schedule.TTL)
		switched := func(n *node) bool { return n.wasUnfit(a.lost, ttl) }
		return v.rules.tooShort(a.ttl) || v.still.fallsWithin(a.lost-int64(ttl), a.lost) || slices.ContainsFunc(v.site.nodes(), switched)
	})
	v.sums.Lost += len(lapsed) + excused
	if task != nil {
		task.Lost += len(lapsed) + excused
	}
	if v.rules.lives {
		v.add(leasesLive, lapsed)
		v.report.Excused += excused
	}
	if v.rules.unfit {
		from, to := v.unfitInterval(v.faults)
		v.add(unfitMute, l.grantsWithin(from, to))
	}
}

// judgeFenced judges the storages that compare tokens.
func (v *verdict) judgeFenced(ctx context.Context, l *lockHistory) error {
	for _, name := range fencedStores {
		lost, err := v.lostUpdates(ctx, l, name)
		if err != nil {
			return err
		}
		v.sums.LostUpdates[name] += len(lost)
		v.sums.Written[name] += countResults(l.writes[name], acked)
		v.sums.Refused[name] += countResults(l.writes[name], refused) + countResults(l.reads[name], barred)
		v.add(fencedWrites, lost)
	}
	return nil
}

// judgeWhole checks the rules about several locks, after all locks.
func (v *verdict) judgeWhole(ctx context.Context) error {
	v.add(keptApart, findForeignLocks(v.events))
	broken, err := v.judgeLinear(v.span, v.rules.shared == "", time.Now().Add(patience), v.events, v.locks, v.faults)
	if err != nil {
		return err
	}
	v.found = append(v.found, broken...)
	crowds := slices.DeleteFunc(slices.Clone(v.faults), func(h pastFault) bool { return h.Do != "crowd" })
	if !v.still.fallsWithin(v.span.start, v.span.end) { // otherwise the machine was too slow, not the client
		v.add(allServed, findUnservedCrowds(v.events, crowds))
		v.add(noBlame, findWrongBlame(v.events, crowds))
	}
	ghosts, err := v.findStaleLocks(ctx, v.span)
	if err != nil {
		return err
	}
	v.sums.Ghosts += len(ghosts)
	v.add(noGhosts, ghosts)
	for n := range v.schedule.Keys {
		if l := v.locks[v.span.key("h", n)]; l != nil {
			v.sums.Free = max(v.sums.Free, l.longestFree())
		}
	}
	times, slow := v.recoveryTimes(v.span, v.rules, v.locks, v.faults, v.sums.Bound)
	v.sums.Recovery = append(v.sums.Recovery, times...)
	slices.Sort(v.sums.Recovery)
	for _, f := range slow {
		v.slow = append(v.slow, Finding{v.span.Class, recovery, f})
	}
	return nil
}

// classFor returns the promises of a class, without the promises that the running servers cannot keep after a
// suspension.
func (j *judge) classFor(name string, faults []pastFault) class {
	cl := j.schedule.backend().classes[name]
	site, ok := j.site.(interface{ suspendedLeader() (shared string) })
	stopped := func(h pastFault) bool { return h.Do == "pause-node" }
	if !ok || cl.shared != "" || !slices.ContainsFunc(faults, stopped) {
		return cl
	}
	cl.shared = site.suspendedLeader()
	cl.lives = cl.lives && cl.shared == ""
	return cl
}

// unfitInterval returns the time in which too few nodes may vote: from the time when all faults have begun and
// earlier locks have expired until the end of the first fault. There is none if no node had a fault.
func (j *judge) unfitInterval(faults []pastFault) (from, to int64) {
	to = math.MaxInt64
	for _, f := range faults {
		if f.Do != "pause-client" {
			from, to = max(from, f.Start), min(to, f.End)
		}
	}
	if from == 0 {
		return 0, 0
	}
	return from + int64(j.schedule.TTL) + int64(500*time.Millisecond), to
}

// faultExcuse returns a function that reports whether a client had a fault between two times, or the machine
// was suspended.
func (j *judge) faultExcuse(faults []pastFault) func(client string, from, to int64) bool {
	return func(client string, from, to int64) bool {
		name, _, _ := strings.Cut(client, ".")
		struck := func(h pastFault) bool { return h.Victim == name && h.Start < to && h.End > from }
		return slices.ContainsFunc(faults, struck) || j.still.fallsWithin(from, to)
	}
}

// stopsOf returns the faults that suspended a client.
func stopsOf(faults []pastFault) (out []suspension) {
	for _, f := range faults {
		if f.Do == "pause-client" {
			out = append(out, suspension{f.Victim, f.Start, f.End})
		}
	}
	return out
}

func (j *judge) lostUpdates(ctx context.Context, l *lockHistory, store string) ([]finding, error) {
	if len(l.writes[store]) == 0 {
		return nil, nil
	}
	var final string
	err := retryUntilDone(ctx, func() (err error) {
		final, err = j.stores.finalValue(ctx, store, l.key)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("final value of %s in %s: %w", l.key, store, err)
	}
	l.finals[store] = final
	return l.lostUpdates(store, final), nil
}

// findStaleLocks finds locks of a window that ended more than a TTL ago.
func (j *judge) findStaleLocks(ctx context.Context, s *span) (out []finding, _ error) {
	found, err := j.site.findStaleLocks(ctx, s, time.Duration(j.schedule.TTL))
	for _, g := range found {
		out = append(out, finding{s.key("h", 0), g})
	}
	return out, err
}

// recoveryTimes returns the times from each fault to the next grant of each lock, without the times that the
// window is too short for.
func (j *judge) recoveryTimes(s *span, cl class, locks map[string]*lockHistory, faults []pastFault, bound int64) (times []int64, slow []finding) {
	for _, f := range faults {
		from := f.Start
		switch cl.from {
		case fromEnd:
			from = f.End
		case fromQuarantine:
			from = f.End + int64(j.schedule.MaxTTL) + int64(quarantineMargin)
		}
		for n := range j.schedule.Keys {
			l := locks[s.key("h", n)]
			if l == nil {
				continue
			}
			switch free, ok := l.nextGrant(from); {
			case ok:
				times = append(times, free)
				if free > bound {
					slow = append(slow, finding{l.key, fmt.Sprintf("%v after %s on %s", time.Duration(free), f.Do, f.Victim)})
				}
			case l.waitedInVain(from, bound):
				slow = append(slow, finding{l.key, fmt.Sprintf("not within %v after %s on %s", time.Duration(bound), f.Do, f.Victim)})
			}
		}
	}
	return times, slow
}
