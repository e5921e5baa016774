//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/quorum"
)

// buildHistory returns a history with these attempts.
func buildHistory(attempts ...*attempt) *lockHistory {
	for i, a := range attempts {
		a.try = "t" + strconv.Itoa(i)
	}
	l := newHistory("k")
	l.attempts = attempts
	return l
}

func TestCheckersFindPlantedViolations(t *testing.T) {
	t.Parallel()
	trusted := func(l *lockHistory) []finding { return l.findOverlaps((*attempt).trustedInterval) }
	worked := func(l *lockHistory) []finding { return l.findOverlaps((*attempt).workedInterval) }
	nobody := func(string, int64, int64) bool { return false }
	var still standstill
	still.noteGap(120, 121, 2)
	still.noteGap(105, 108, 2)
	losses := func(l *lockHistory) []finding {
		found, _ := l.findLosses(func(a *attempt) bool { return still.fallsWithin(a.lost-5, a.lost) })
		return found
	}
	for _, row := range []struct {
		name  string
		check func(*lockHistory) []finding
		want  int
		lock  *lockHistory
	}{
		{"two grants with one token", (*lockHistory).findDuplicateTokens, 1, buildHistory(
			&attempt{asked: 1, got: 2, token: 5}, &attempt{asked: 3, got: 4, token: 5})},
		{"no token is not a duplicate", (*lockHistory).findDuplicateTokens, 0, buildHistory(
			&attempt{asked: 1, got: 2}, &attempt{asked: 3, got: 4})},
		{"a grant that was never made has no token", (*lockHistory).findDuplicateTokens, 0, buildHistory(
			&attempt{asked: 1, token: 5}, &attempt{asked: 3, got: 4, token: 5})},
		{"smaller token, asked for after the grant", (*lockHistory).findDisorder, 1, buildHistory(
			&attempt{asked: 1, got: 2, token: 5}, &attempt{asked: 3, got: 4, token: 4})},
		{"smaller token, asked for before the grant", (*lockHistory).findDisorder, 0, buildHistory(
			&attempt{asked: 1, got: 3, token: 5}, &attempt{asked: 2, got: 4, token: 4})},
		{"the grant before the last has the higher token", (*lockHistory).findDisorder, 1, buildHistory(
			&attempt{asked: 1, got: 2, token: 9}, &attempt{asked: 1, got: 5, token: 4}, &attempt{asked: 6, got: 7, token: 5})},
		{"handed over inside a process, after another was granted by mistake", (*lockHistory).findDisorder, 0, buildHistory(
			&attempt{asked: 1, got: 2, token: 4, id: "a.1"}, &attempt{asked: 1, got: 3, token: 9, id: "b.1"}, &attempt{asked: 4, got: 5, token: 5, id: "a.1+1"})},
		{"… and handed over of a later grant", (*lockHistory).findDisorder, 1, buildHistory(
			&attempt{asked: 1, got: 2, token: 4, id: "a.1"}, &attempt{asked: 1, got: 3, token: 9, id: "b.1"}, &attempt{asked: 4, got: 5, token: 5, id: "a.2+1"})},
		{"the second trusts before the first is through", trusted, 1, buildHistory(
			&attempt{got: 1, until: 10, left: 5}, &attempt{got: 4, until: 14})},
		{"the first is through", trusted, 0, buildHistory(
			&attempt{got: 1, until: 10, left: 4}, &attempt{got: 4, until: 14})},
		{"the first no longer trusts, but works", trusted, 0, buildHistory(
			&attempt{got: 1, until: 3, left: 9}, &attempt{got: 4, until: 14, left: 6})},
		{"the first no longer trusts, but works: the control", worked, 1, buildHistory(
			&attempt{got: 1, until: 3, left: 9}, &attempt{got: 4, until: 14, left: 6})},
		{"the first was told that it lost its lease", trusted, 0, buildHistory(
			&attempt{got: 1, until: 10, lost: 3, left: 9}, &attempt{got: 4, until: 14})},
		{"the first was told so too late", trusted, 1, buildHistory(
			&attempt{got: 1, until: 10, lost: 5, left: 9}, &attempt{got: 4, until: 14})},
		{"the first one's client was closed", trusted, 0, buildHistory(
			&attempt{got: 1, until: 10, closed: 3, left: 9}, &attempt{got: 4, until: 14})},
		{"a lease is lost", losses, 1, buildHistory(
			&attempt{got: 1, until: 10, lost: 3, left: 9}, &attempt{got: 4, until: 14})},
		{"a lease ends by its release, or as its client is closed", losses, 0, buildHistory(
			&attempt{got: 1, until: 10, lost: 9, left: 9}, &attempt{got: 11, until: 14, lost: 13, closed: 12})},
		{"a lease is lost as the machine stands still", losses, 0, buildHistory(
			&attempt{got: 101, until: 110, lost: 109})},
		{"a lease is lost long after that, and after a moment", losses, 1, buildHistory(
			&attempt{got: 121, until: 130, lost: 129})},
		{"turned away while its client was ended, and from a lease that it was to adopt", func(l *lockHistory) []finding {
			return l.findEarlyErrors(9, func(client string, from, to int64) bool { return client == "a.1" && from == 1 && to == 5 })
		}, 1, buildHistory(
			&attempt{client: "a.1", asked: 1, gaveUp: 5}, &attempt{client: "b.1", asked: 1, gaveUp: 5, from: "x"}, &attempt{client: "b.1", asked: 2, gaveUp: 6})},
		{"turned away, and when the time was over", func(l *lockHistory) []finding { return l.findEarlyErrors(9, nobody) }, 1, buildHistory(
			&attempt{asked: 1, gaveUp: 2}, &attempt{asked: 1, gaveUp: 9}, &attempt{asked: 1, gaveUp: 2, closed: 2}, &attempt{asked: 1, got: 2})},
		{"a grant by nodes that are unfit", func(l *lockHistory) []finding { return l.grantsWithin(5, 9) }, 1, buildHistory(
			&attempt{got: 1, until: 10, left: 4}, &attempt{got: 6, until: 10, left: 7}, &attempt{got: 10, until: 14})},
		{"a long one reaches over a short one", trusted, 2, buildHistory(
			&attempt{got: 1, until: 20}, &attempt{got: 4, until: 5}, &attempt{got: 10, until: 12})},
	} {
		if got := row.check(row.lock); len(got) != row.want {
			t.Errorf("%s: found %v, want %d", row.name, got, row.want)
		}
	}
}

func TestJudgeFindsLostUpdates(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name   string
		final  string
		want   int
		writes []*access
	}{
		{"a line", "c", 0, []*access{{op: "a", result: acked}, {op: "b", prev: "a", result: acked}, {op: "c", prev: "b", result: acked}}},
		{"a fork", "c", 1, []*access{{op: "a", result: acked}, {op: "b", prev: "a", result: acked}, {op: "c", prev: "a", result: acked}}},
		{"the last is gone", "a", 1, []*access{{op: "a", result: acked}, {op: "b", prev: "a", result: acked}}},
		{"all is gone", "", 2, []*access{{op: "a", result: acked}, {op: "b", prev: "a", result: acked}}},
		{"unanswered, and in the line", "c", 0, []*access{{op: "a", result: acked}, {op: "b", prev: "a", result: unknown}, {op: "c", prev: "b", result: acked}}},
		{"unanswered, and not in the line", "c", 0, []*access{{op: "a", result: acked}, {op: "b", prev: "a", result: writing}, {op: "c", prev: "a", result: acked}}},
		{"refused, as it should be", "a", 0, []*access{{op: "a", result: acked}, {op: "b", result: refused}}},
		{"refused, and stands", "b", 1, []*access{{op: "b", result: refused}}},
		{"never written", "x", 1, []*access{{op: "a", result: acked}}},
	} {
		l := buildHistory()
		l.writes[byRedis] = row.writes
		if got := l.lostUpdates(byRedis, row.final); len(got) != row.want {
			t.Errorf("%s: found %v, want %d", row.name, got, row.want)
		}
	}
}

// TestEventsBecomeIntervals goes from events to intervals.
func TestEventsBecomeIntervals(t *testing.T) {
	t.Parallel()
	base := []event{
		{T: 1, Kind: asked, Key: "k", Try: "a"},
		{T: 2, Kind: got, Key: "k", Try: "a", ID: "x", Token: 7, Until: 10},
	}
	for _, row := range []struct {
		name string
		more []event
		end  int64
	}{
		{"until its deadline", nil, 10},
		{"until its renewed deadline", []event{{T: 5, Kind: renewed, Key: "k", ID: "x", Until: 15}}, 15},
		{"until its shortened deadline", []event{{T: 5, Kind: renewed, Key: "k", ID: "x", Until: 8}}, 8},
		{"until its loss", []event{{T: 6, Kind: lost, Key: "k", ID: "x"}}, 6},
		{"until its loss, though news of a renewal come later", []event{
			{T: 6, Kind: lost, Key: "k", ID: "x"}, {T: 7, Kind: renewed, Key: "k", ID: "x", Until: 15},
		}, 6},
		{"until its client is closed", []event{{T: 6, Kind: closing, Key: "other"}}, 6},
		{"until its deadline, though another client is closed", []event{{T: 6, Kind: closing, Client: "c", Key: "k"}}, 10},
		{"until its deadline, though its client was closed before it asked", []event{{T: 0, Kind: closing, Key: "k"}}, 10},
		{"until its release", []event{{T: 4, Kind: leaving, Key: "k", Try: "a"}}, 4},
		{"until its deadline, though it went on", []event{{T: 20, Kind: leaving, Key: "k", Try: "a"}}, 10},
	} {
		l := sortByLock(append(append([]event{}, base...), row.more...))["k"]
		if got := l.attempts[0].trustedInterval(); got.start != 2 || got.end != row.end {
			t.Errorf("%s: %d to %d, want 2 to %d", row.name, got.start, got.end, row.end)
		}
	}
}

func TestRecoveryCountsFromFreeLock(t *testing.T) {
	t.Parallel()
	well := &attempt{asked: 1, got: 2, until: 20, left: 10}
	stopped := &attempt{asked: 1, got: 2, until: 20, left: 40}
	killed := &attempt{asked: 1, got: 2, until: 20}
	next := func() *attempt { return &attempt{asked: 3, got: 25} }
	for _, row := range []struct {
		name string
		lock *lockHistory
		free int64
	}{
		{"the holder was well", buildHistory(well, next()), 15},
		{"its renewals are not recorded, but it was", buildHistory(&attempt{asked: 1, got: 2, until: 4, left: 10, released: 11}, next()), 15},
		{"the holder was stopped", buildHistory(stopped, next()), 20},
		{"the holder was killed", buildHistory(killed, next()), 20},
	} {
		if free, ok := row.lock.nextGrant(5); free != row.free || !ok {
			t.Errorf("%s: %d, %v, want %d", row.name, free, ok, row.free)
		}
	}
	late := &attempt{asked: 22, got: 25}
	if free, ok := buildHistory(well, late).nextGrant(5); free != 3 || !ok {
		t.Errorf("no request for a while: %d, %v, want 3", free, ok)
	}
	if free, ok := buildHistory(well, &attempt{asked: 12, gaveUp: 21}, &attempt{asked: 14, gaveUp: 30}, late).nextGrant(5); free != 11 || !ok {
		t.Errorf("another client had asked before and still did: %d, %v, want 11", free, ok)
	}
	if free, ok := buildHistory(killed).nextGrant(5); ok {
		t.Errorf("nobody came: %d", free)
	}
	asleep := buildHistory(well, &attempt{client: "c.1", asked: 3, got: 25})
	for end, want := range map[int64]int64{8: 15, 22: 3, 30: 0} { // the lock was released at 10
		asleep.stops = []suspension{{"c", 4, end}}
		if free, ok := asleep.nextGrant(5); free != want || !ok {
			t.Errorf("the only waiter was suspended until %d: %d, %v, want %d", end, free, ok, want)
		}
	}
	asleep.stops = []suspension{{"c", 4, 22}}
	asleep.attempts = append(asleep.attempts, &attempt{client: "c2.1", asked: 14, gaveUp: 26})
	if free, ok := asleep.nextGrant(5); free != 11 || !ok {
		t.Errorf("another waiter was not suspended: %d, %v, want 11", free, ok)
	}
	renewed := &attempt{asked: 1, got: 2, until: 4, left: 20, released: 21}
	for gaveUp, want := range map[int64]bool{29: false, 31: true} {
		if got := buildHistory(renewed, &attempt{asked: 3, gaveUp: gaveUp}).waitedInVain(5, 10); got != want {
			t.Errorf("gave up at %d after a release at 20: waited %v", gaveUp, got)
		}
	}
	for gaveUp, want := range map[int64]bool{29: false, 31: true} {
		if got := buildHistory(killed, &attempt{asked: 3, gaveUp: gaveUp}).waitedInVain(5, 10); got != want {
			t.Errorf("gave up at %d after the lease ended at 20: waited %v", gaveUp, got)
		}
	}
}

func TestWaitForFreeLockExcludesEarlierHolders(t *testing.T) {
	t.Parallel()
	first, next := &attempt{asked: 0, got: 1, until: 99, left: 9, released: 9}, &attempt{asked: 2, got: 10, until: 99, left: 19, released: 19}
	later := &attempt{asked: 2, got: 40, until: 99, left: 49, released: 49}
	for bound, want := range map[int64]bool{4: true, 5: false} {
		if got := buildHistory(first, next, &attempt{asked: 3, gaveUp: 24}).waitedInVain(0, bound); got != want {
			t.Errorf("waited from 3 to 24 while the lock was free for 5 in total, bound %d: %v", bound, got)
		}
	}
	for bound, want := range map[int64]bool{20: true, 21: false} {
		if got := buildHistory(first, next, later, &attempt{asked: 3, gaveUp: 50}).waitedInVain(0, bound); got != want {
			t.Errorf("the lock was free for 21 in between, bound %d: %v", bound, got)
		}
	}
}

func TestLockSeenUnderOtherPrefixIsReported(t *testing.T) {
	t.Parallel()
	events := []event{
		{T: 1, Kind: asked, Key: "k", Try: "a"}, {T: 2, Kind: strange, Key: "k", Err: "List shows another"}, {T: 3, Kind: failed, Key: "k", Try: "a"},
	}
	if got := findForeignLocks(events); len(got) != 1 {
		t.Errorf("found %v, want 1", got)
	}
	for bound, want := range map[int64]bool{1: true, 2: false} {
		if got := sortByLock(events)["k"].waitedInVain(0, bound); got != want {
			t.Errorf("waited for 2, bound %d: %v", bound, got)
		}
	}
}

func TestForceAndAdoptionEndLease(t *testing.T) {
	t.Parallel()
	base := []event{
		{T: 1, Kind: asked, Key: "k", Try: "a", TTL: 10, Least: 8},
		{T: 2, Kind: got, Key: "k", Try: "a", ID: "x", Token: 7, Until: 11},
	}
	release := event{T: 4, Kind: released, Key: "k", Try: "a"}
	adopt := []event{
		{T: 5, Kind: asked, Key: "k", Try: "b", From: "x"}, {T: 6, Kind: got, Key: "k", Try: "b", ID: "y", Token: 8, Until: 16},
	}
	next := []event{{T: 5, Kind: asked, Key: "k", Try: "c"}, {T: 6, Kind: got, Key: "k", Try: "c", ID: "z", Token: 9, Until: 16}}
	force := func(from, err string) []event {
		return []event{{T: 3, Kind: forcing, Key: "k", Try: "f", ID: "x", From: from}, {T: 5, Kind: forced, Key: "k", Try: "f", ID: "x", Err: err}}
	}
	// The operator has taken the owner's first block of tokens, and the owner has the second block.
	late := []event{
		{T: 18, Kind: forcing, Key: "k", Try: "g", ID: "w", Token: 7},
		{T: 19, Kind: forced, Key: "k", Try: "g", ID: "w"},
		{T: 20, Kind: asked, Key: "k", Try: "e", TTL: 10},
		{T: 23, Kind: got, Key: "k", Try: "e", ID: "w", Token: 7 + quorum.Block, Until: 31},
	}
	renewal := func(until int64) []event { return []event{{T: 7, Kind: renewed, Key: "k", ID: "x", Until: until}} }
	trusted := func(l *lockHistory) []finding { return l.findOverlaps((*attempt).trustedInterval) }
	findShortMinHolds := func(l *lockHistory) []finding { return l.findShortMinHolds(true) }
	cutShortOnOne := func(l *lockHistory) []finding { return l.findShortMinHolds(false) }
	failedAdoption := []event{
		{T: 5, Kind: asked, Key: "k", Try: "d", From: "x"},
		{T: 6, Kind: failed, Key: "k", Try: "d"},
		{T: 6, Kind: asked, Key: "k", Try: "c"},
		{T: 7, Kind: got, Key: "k", Try: "c", ID: "z", Token: 9, Until: 16},
	}
	for _, row := range []struct {
		name  string
		check func(*lockHistory) []finding
		want  int
		more  [][]event
	}{
		{"adopted after its release", (*lockHistory).findRevivals, 1, [][]event{{release}, adopt}},
		{"adopted, and not released", (*lockHistory).findRevivals, 0, [][]event{adopt}},
		{"adopted, the release having failed", (*lockHistory).findRevivals, 0, [][]event{{{T: 4, Kind: released, Key: "k", Try: "a", Err: "?"}}, adopt}},
		{"renewed after it was adopted", (*lockHistory).findReturns, 1, [][]event{adopt, renewal(17)}},
		{"renewed before it was adopted", (*lockHistory).findReturns, 0, [][]event{adopt, renewal(16)}},
		{"renewed after it was forced", (*lockHistory).findReturns, 1, [][]event{force("", ""), renewal(16)}},
		{"renewed after force failed", (*lockHistory).findReturns, 0, [][]event{force("", "?"), renewal(16)}},
		{"granted anew after it was forced", (*lockHistory).findReturns, 0, [][]event{late}},
		{"granted anew after it was forced, and trusted beside another", trusted, 1, [][]event{late, {
			{T: 22, Kind: asked, Key: "k", Try: "c"}, {T: 24, Kind: got, Key: "k", Try: "c", ID: "z", Token: 90, Until: 34},
		}}},
		{"trusted after it was forced", trusted, 0, [][]event{force("", ""), next}},
		{"trusted after it was released by force, by two others", trusted, 1, [][]event{force("", ""), next, adopt}},
		{"forced by the token of a released lease", (*lockHistory).findForcesByOldToken, 1, [][]event{{{T: 2, Kind: released, Key: "k", Try: "a"}}, force("x", "")}},
		{"not forced by it", (*lockHistory).findForcesByOldToken, 0, [][]event{{{T: 2, Kind: released, Key: "k", Try: "a"}}, force("x", "?")}},
		{"kept too briefly", findShortMinHolds, 1, [][]event{{release}, next}},
		{"kept too briefly, as it was forced", findShortMinHolds, 0, [][]event{{release}, next, force("", "")}},
		{"kept too briefly, as it was adopted", findShortMinHolds, 0, [][]event{adopt, next, {{T: 8, Kind: released, Key: "k", Try: "a"}}}},
		{"kept too briefly, and adopted later", findShortMinHolds, 1, [][]event{{release}, next, {
			{T: 7, Kind: asked, Key: "k", Try: "d", From: "x"},
		}}},
		{"kept too briefly, as its adoption after the release failed", findShortMinHolds, 0, [][]event{{release}, failedAdoption}},
		{"kept too briefly on one server, though its adoption failed", cutShortOnOne, 1, [][]event{{release}, failedAdoption}},
		{"kept for long enough", findShortMinHolds, 0, [][]event{{release}, {
			{T: 5, Kind: asked, Key: "k", Try: "d"}, {T: 9, Kind: got, Key: "k", Try: "d", ID: "z", Token: 9, Until: 19},
		}}},
	} {
		events := slices.Clone(base)
		for _, more := range row.more {
			events = append(events, more...)
		}
		if got := row.check(sortByLock(events)["k"]); len(got) != row.want {
			t.Errorf("%s: found %v, want %d", row.name, got, row.want)
		}
	}
}

// The places of a read-write lock have separate names, which an operator uses.
func TestForceEndsReaderAndWriter(t *testing.T) {
	t.Parallel()
	for first, second := range map[string]string{reader: writer, writer: reader} {
		events := []event{
			{T: 1, Kind: asked, Key: "hr0", Try: "a", TTL: 10, Slots: 4, Side: first},
			{T: 2, Kind: got, Key: "hr0", Try: "a", ID: "x", Token: 7, Until: 11},
			{T: 1, Kind: asked, Key: "hr0", Try: "b", TTL: 10, Slots: 4, Side: second},
			{T: 6, Kind: got, Key: "hr0", Try: "b", ID: "y", Token: 8, Until: 16},
		}
		trusted := func(events []event) int {
			return len(sortByLock(events)["hr0"].findOverlaps((*attempt).trustedInterval))
		}
		if n := trusted(slices.Clone(events)); n != 1 {
			t.Errorf("%s, then %s: %d overlaps, want 1", first, second, n)
		}
		place := map[string]string{reader: "x", writer: "of a place"}[first]
		taken := event{T: 3, Kind: forcing, Key: "hr0#1", Try: "f", ID: place}
		if n := trusted(append(slices.Clone(events), taken)); n != 0 {
			t.Errorf("%s, then %s: %d overlaps although an operator forced a place", first, second, n)
		}
		taken.T = 13
		if n := trusted(append(slices.Clone(events), taken)); n != 1 {
			t.Errorf("%s, then %s: %d overlaps with a place forced later, want 1", first, second, n)
		}
	}
}

func TestUnservedWaitersAreReported(t *testing.T) {
	t.Parallel()
	came := []pastFault{{Do: "crowd", Victim: "c", Start: 5}}
	for _, row := range []struct {
		name       string
		events     []event
		left, odds int
	}{
		{"all are served", []event{{T: 9, Kind: crowded, Client: "c.0", Callers: 3, Served: 3}}, 0, 0},
		{"one is not", []event{{T: 9, Kind: crowded, Client: "c.0", Callers: 3, Served: 2}}, 1, 0},
		{"none ever says so", []event{{T: 9, Kind: crowded, Client: "d.0", Callers: 3, Served: 3}}, 1, 0},
		{"a node is blamed", []event{{T: 6, Kind: blamed, Client: "c.0"}, {T: 9, Kind: crowded, Client: "c.0"}}, 0, 1},
		{"a node is blamed before, and by another", []event{
			{T: 4, Kind: blamed, Client: "c.0"}, {T: 6, Kind: blamed, Client: "d.0"}, {T: 9, Kind: crowded, Client: "c.0"},
		}, 0, 0},
	} {
		if got := findUnservedCrowds(row.events, came); len(got) != row.left {
			t.Errorf("%s: left %v, want %d", row.name, got, row.left)
		}
		if got := findWrongBlame(row.events, came); len(got) != row.odds {
			t.Errorf("%s: suspicions %v, want %d", row.name, got, row.odds)
		}
	}
}

func TestScheduleIsValid(t *testing.T) {
	t.Parallel()
	s, err := loadSchedule("redis", "")
	if err != nil {
		t.Fatal(err)
	}
	spans := s.planSpans(100, 1)
	if got := spanAt(spans, 99); got != nil {
		t.Errorf("before the start: %v", got)
	}
	if got := spanAt(spans, 100); got == nil || got.index != 0 {
		t.Errorf("at the start: %v", got)
	}
	if last := spans[len(spans)-1]; last.Class != after || last.start != spans[len(spans)-2].end || len(last.Faults) > 0 {
		t.Errorf("the last window: %+v", last)
	}
	if got := spanAt(spans, spans[len(spans)-1].end); got != nil {
		t.Errorf("after the end: %v", got)
	}
	for i := range spans {
		if n := windowOf(spans[i].key("h", 3)); n != i {
			t.Errorf("key of window %d is %d", i, n)
		}
	}
	if got := fmt.Sprint(s.nodesOfKind(durable), s.nodesOfKind(volatile), s.nodesOfKind("")); got != "[0 1 2] [3 4] [0 1 2 3 4]" {
		t.Errorf("durable, volatile and all nodes: %s", got)
	}
}

func TestScheduleHasAllClassesOfBackend(t *testing.T) {
	t.Parallel()
	for name, b := range backends {
		s, err := loadSchedule(name, "")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		covered := map[string]bool{after: true} // part of every schedule
		for _, w := range s.Windows {
			covered[w.Class] = true
		}
		for class := range b.classes {
			if !covered[class] {
				t.Errorf("%s: class %s is not in the schedule", name, class)
			}
		}
	}
}

func TestClassesCanBeChosen(t *testing.T) {
	t.Parallel()
	s, err := loadSchedule("redis", "")
	if err != nil {
		t.Fatal(err)
	}
	if !s.hasFault("pause-client") || s.hasFault("nothing") {
		t.Error("the schedule does not list its faults")
	}
	if err := s.keepClasses([]string{"node-full", "calm"}); err != nil || len(s.Windows) != 2 || s.hasFault("pause-client") {
		t.Errorf("%v, left %+v", err, s.Windows)
	}
	if err := s.keepClasses([]string{"node-wipe"}); err == nil {
		t.Error("a class without windows was accepted")
	}
}

func TestInfoIsRewritten(t *testing.T) {
	t.Parallel()
	info := "redis_version:7\r\nredis_mode:standalone\r\nrun_id:abc\r\ncluster_enabled:0\r\n"
	for _, row := range []struct {
		edit func(string) string
		want string
	}{
		{withoutRunID, "redis_version:7\r\nredis_mode:standalone\r\ncluster_enabled:0\r\n"},
		{asCluster, "redis_version:7\r\nserver_mode:cluster\r\nrun_id:abc\r\ncluster_enabled:1\r\n"},
		{asValkey, "server_version:7\r\nserver_mode:standalone\r\nrun_id:abc\r\ncluster_enabled:0\r\n"},
	} {
		if got := row.edit(info); got != row.want {
			t.Errorf("%q, want %q", got, row.want)
		}
	}
}

// A lock without a deadline counts as trusted until its holder learns of the loss; the lock of a killed
// process counts until its last observation.
func TestTrustEndsWithLastObservation(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rec := &recorder{dir: dir, client: "c", files: make(map[int]*os.File)}
	looks := make(chan bool)
	rec.record(event{Kind: asked, Key: "w0/r0", Try: "a"})
	h := newBelief(rec, "w0/r0", func() bool { return <-looks }, func(context.Context) error { return nil })
	rec.record(event{Kind: got, Key: "w0/r0", Try: "a", ID: h.id, Until: h.until})
	trusted := func() *attempt {
		events, err := readHistory(dir, 0)
		if err != nil {
			t.Fatal(err)
		}
		return sortByLock(events)["w0/r0"].attempts[0]
	}
	looks <- true
	looks <- true // the first observation is recorded
	one := trusted()
	if one.until <= h.until || one.until > monotonicNow() || one.lost != 0 {
		t.Errorf("trusted until %d and lost at %d, want a time after %d", one.until, one.lost, h.until)
	}
	looks <- false
	h.release(t.Context()) // release waits
	two := trusted()
	if two.until < one.until || two.lost < two.until || two.trustedInterval().end != two.until {
		t.Errorf("trusted until %d and lost at %d, want both after %d", two.until, two.lost, one.until)
	}
}

// lister is a driver that lists other locks at each call.
type lister struct {
	driver.Driver
	looks [][]string
}

func (l *lister) List(_ context.Context, _ string, yield func(driver.Status) bool) error {
	for _, key := range l.looks[0] {
		yield(driver.Status{Key: key, Held: key != "free"})
	}
	l.looks = l.looks[1:]
	return nil
}

// Only a lock that a second listing still finds is stale.
func TestLockFreedAfterOutageIsNotStale(t *testing.T) {
	t.Parallel()
	for want, looks := range map[string][][]string{
		"[]": {{"free"}}, "[b]": {{"a", "b"}, {"b", "free"}},
	} {
		got, err := heldLocks(t.Context(), &lister{looks: looks}, "", -grace)
		if err != nil || fmt.Sprint(got) != want {
			t.Errorf("found %v, %v, want %s", got, err, want)
		}
	}
}

// A newer etcd keeps all promises, and so does an old one while no member is suspended.
func TestSuspendedOldEtcdPromisesLess(t *testing.T) {
	t.Parallel()
	s, err := loadSchedule("etcd", "")
	if err != nil {
		t.Fatal(err)
	}
	stopped, killed := []pastFault{{Do: "kill-node"}, {Do: "pause-node"}}, []pastFault{{Do: "kill-node"}}
	for version, less := range map[string]bool{"3.4.23": true, "3.4.31": false, "3.5.12": true, "3.5.13": false, "3.6.0": false, "4.0.1": false} {
		j := &judge{site: &etcdSite{version: version}, schedule: s}
		if cl := j.classFor("leader-pause", stopped); (cl.shared != "") != less || cl.lives == less {
			t.Errorf("etcd %s: %+v", version, cl)
		}
		if cl := j.classFor("leader-pause", killed); cl.shared != "" || !cl.lives {
			t.Errorf("etcd %s, never suspended: %+v", version, cl)
		}
	}
}

func TestHistoriesOfEarlierRunsAreDropped(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rec := &recorder{dir: dir, client: "c", files: make(map[int]*os.File)}
	rec.record(event{Kind: asked, Key: "w7/h0", Try: "a"})
	if events, err := readHistory(dir, 7); err != nil || len(events) != 1 {
		t.Fatalf("%v, %v", events, err)
	}
	if err := dropHistories(dir); err != nil {
		t.Fatal(err)
	}
	if events, err := readHistory(dir, 7); err != nil || len(events) != 0 {
		t.Errorf("left: %v, %v", events, err)
	}
}

func TestInvalidScheduleIsRejected(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"unknown field": `{"node": 5}`,
		"no backend": `{"backend": "paper", "nodes": 5, "clients": 8, "workers": 3, "keys": 6, "long": 2, "ttl": "2s", "max_ttl": "3s",
			"windows": [{"class": "calm", "length": "2s"}]}`,
		"two leaders": `{"backend": "etcd", "nodes": 3, "clients": 8, "workers": 3, "keys": 6, "long": 2, "ttl": "5s", "max_ttl": "5s",
			"windows": [{"class": "leader-kill", "length": "2s", "faults": [{"do": "kill-node", "at": "1s", "nodes": 2, "of": "leader"}]}]}`,
		"a fault of another backend": `{"backend": "etcd", "nodes": 3, "clients": 8, "workers": 3, "keys": 6, "long": 2, "ttl": "5s", "max_ttl": "5s",
			"windows": [{"class": "calm", "length": "2s", "faults": [{"do": "flushall", "at": "1s", "nodes": 1}]}]}`,
		"no windows": `{"nodes": 5, "clients": 8, "workers": 3, "keys": 6, "long": 2, "ttl": "2s", "max_ttl": "3s"}`,
		"no such fault": `{"nodes": 5, "clients": 8, "workers": 3, "keys": 6, "long": 2, "ttl": "2s", "max_ttl": "3s",
			"windows": [{"class": "calm", "length": "2s", "faults": [{"do": "nothing", "at": "1s"}]}]}`,
		"fault too long": `{"nodes": 5, "clients": 8, "workers": 3, "keys": 6, "long": 2, "ttl": "2s", "max_ttl": "3s",
			"windows": [{"class": "calm", "length": "2s", "faults": [{"do": "cut", "at": "2s", "nodes": 1}]}]}`,
		"nodes of no kind": `{"nodes": 5, "clients": 8, "workers": 3, "keys": 6, "long": 2, "ttl": "2s", "max_ttl": "3s",
			"windows": [{"class": "calm", "length": "2s", "faults": [{"do": "cut", "at": "1s", "nodes": 1, "of": "old"}]}]}`,
		"more durable nodes than there are": `{"nodes": 5, "durable": 1, "clients": 8, "workers": 3, "keys": 6, "long": 2, "ttl": "2s", "max_ttl": "3s",
			"windows": [{"class": "calm", "length": "2s", "faults": [{"do": "cut", "at": "1s", "nodes": 2, "of": "durable"}]}]}`,
		"the last victim too late": `{"nodes": 5, "clients": 8, "workers": 3, "keys": 6, "long": 2, "ttl": "2s", "max_ttl": "3s",
			"windows": [{"class": "calm", "length": "2s", "faults": [{"do": "cut", "at": "1s", "nodes": 3, "each": "600ms"}]}]}`,
	} {
		path := filepath.Join(t.TempDir(), "schedule.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := loadSchedule("redis", path); err == nil {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

func TestScheduleFitsFewerNodes(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		whole, err := loadSchedule("redis", "")
		if err != nil {
			t.Fatal(err)
		}
		s, err := loadSchedule("redis", "")
		if err != nil {
			t.Fatal(err)
		}
		s.onNodes(n)
		if s.Nodes != n || n == 3 && (s.check() != nil || len(s.Windows) != len(whole.Windows)) {
			t.Errorf("%d nodes: %d, %d windows: %v", n, s.Nodes, len(s.Windows), s.check())
		}
		at := make(map[string]Window)
		for _, w := range whole.Windows {
			at[w.Class] = w
		}
		for _, w := range s.Windows {
			for _, f := range w.Faults {
				if f.Nodes > 1 && f.Each > f.For && f.Each < f.For+s.TTL {
					t.Errorf("%s affects the next node %v after the last one is back, less than a TTL", w.Class, f.Each-f.For)
				}
			}
		}
		for _, w := range s.Windows {
			before := 0
			for _, f := range at[w.Class].Faults {
				before = max(before, f.Nodes)
			}
			now := 0
			for _, f := range w.Faults {
				now = max(now, f.Nodes)
			}
			if now > n || (now > n/2) != (before > whole.Nodes/2) {
				t.Errorf("%s affects %d of %d nodes, and %d of %d before", w.Class, now, n, before, whole.Nodes)
			}
		}
	}
}

func TestNodesAreUnfitOnlyDuringTheirFault(t *testing.T) {
	t.Parallel()
	j := &judge{schedule: &Schedule{TTL: Duration(time.Second)}}
	client := pastFault{Do: "pause-client", Start: 1e9, End: 2e9}
	if from, to := j.unfitInterval([]pastFault{client}); from < to {
		t.Errorf("without a fault of a node: from %d to %d", from, to)
	}
	nodes := []pastFault{client, {Do: "hide-run-id", Start: 3e9, End: 9e9}, {Do: "hide-run-id", Start: 4e9, End: 8e9}}
	if from, to := j.unfitInterval(nodes); from != 5.5e9 || to != 8e9 {
		t.Errorf("from %d to %d", from, to)
	}
}

// A lease may be lost if its renewal falls due with less time left than an election takes.
func TestLeaseLongerThanElectionMustSurvive(t *testing.T) {
	t.Parallel()
	elects, bears := class{extra: 3 * time.Second}, class{}
	for ttl, short := range map[time.Duration]bool{3 * time.Second: true, 5 * time.Second: false} {
		if got := elects.tooShort(int64(ttl)); got != short {
			t.Errorf("a lease of %v is too short for an election of 3 s: %v, want %v", ttl, got, short)
		}
		if bears.tooShort(int64(ttl)) {
			t.Errorf("a lease of %v counts as too short without an election", ttl)
		}
	}
}

// A reader's place has its own tokens, below the tokens of the name.
func TestForceOfSlotEndsItsReadersTrust(t *testing.T) {
	t.Parallel()
	const name, place = "w0/hr0", "w0/hr0#2"
	locks := sortByLock([]event{
		{T: 1, Kind: asked, Client: "a.0", Key: name, Try: "a", Slots: 4, Side: reader},
		{T: 2, Kind: got, Client: "a.0", Key: name, Try: "a", ID: "reader", Token: 9000, Until: 100},
		{T: 3, Kind: asked, Client: "b.0", Key: name, Try: "b", Slots: 4, Side: writer},
		{T: 5, Kind: forcing, Client: "operator.0", Key: place, Try: "force", ID: "reader", Token: 7},
		{T: 6, Kind: forced, Client: "operator.0", Key: place, Try: "force", ID: "reader", Token: 7},
		{T: 7, Kind: got, Client: "b.0", Key: name, Try: "b", ID: "writer", Token: 9100, Until: 100},
	})
	if found := locks[name].findOverlaps((*attempt).trustedInterval); len(found) > 0 {
		t.Errorf("the reader still trusts its lease: %v", found)
	}
}

func TestLongestTimeWithoutHolder(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		want int64
		lock *lockHistory
	}{
		{"from the end of trust to the next grant", 5, buildHistory(
			&attempt{asked: 1, got: 2, until: 10}, &attempt{asked: 3, got: 15, until: 20})},
		{"from when somebody asks", 2, buildHistory(
			&attempt{asked: 1, got: 2, until: 10}, &attempt{asked: 13, got: 15, until: 20})},
		{"until the last gives up", 7, buildHistory(
			&attempt{asked: 1, got: 2, until: 10, left: 8}, &attempt{asked: 3, gaveUp: 15})},
		{"not while somebody trusts it", 1, buildHistory(
			&attempt{asked: 1, got: 2, until: 10}, &attempt{asked: 3, gaveUp: 9})},
	} {
		if got := row.lock.longestFree(); got != row.want {
			t.Errorf("%s: %d, want %d", row.name, got, row.want)
		}
	}
}
