//go:build linux

package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/anishathalye/porcupine"
)

// semaphoreEvents parses "TIME KIND CLIENT [SLOT TOKEN]" into events about a semaphore of three slots,
// separated by semicolons.
func semaphoreEvents(lines string) (events []event) {
	for line := range strings.SplitSeq(lines, ";") {
		e, what, slot := event{Key: "w0/hs0", Slots: slots, Until: 1000}, "", 0
		fmt.Sscan(line, &e.T, &what, &e.Try, &slot, &e.Token)
		e.Kind, e.ID = kind(what), e.Try
		if e.Client, _, _ = strings.Cut(e.Try, "/"); e.Kind != asked && e.Kind != failed {
			e.Key = slotKey(e.Key, slot)
		}
		events = append(events, e)
	}
	return events
}

// threeHolders holders have a slot each.
const threeHolders = "1 asked a/1; 1 asked b/1; 1 asked c/1; 1 asked d/1; 2 got a/1 0 7; 3 got b/1 1 4; 4 got c/1 2 4"

// The checks in check.go and Porcupine agree about the semaphore and about each slot.
func TestSemaphoreHasOneHolderPerSlot(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, lines string
		whole, slot int // overlaps of the semaphore, and of its first slot
		tokens      int // duplicate and disordered tokens of the first slot
	}{
		{"three holders of three slots", threeHolders, 0, 0, 0},
		{"a fourth, on a fourth slot", threeHolders + "; 5 got d/1 3 1", 1, 0, 0},
		{"a fourth, on a slot that is held", threeHolders + "; 5 got d/1 0 8", 1, 1, 0},
		{"a fourth, once one of the others is through", threeHolders + "; 5 leaving b/1 1; 6 got d/1 1 5", 0, 0, 0},
		{"two on one slot, and another is free", "1 asked a/1; 2 got a/1 0 7; 3 asked b/1; 4 got b/1 0 8", 0, 1, 0},
		{"one token twice", threeHolders + "; 5 leaving a/1 0; 6 got d/1 0 7", 0, 0, 1},
		{"a lower token, asked for later", "1 asked a/1; 2 got a/1 0 7; 3 leaving a/1 0; 4 asked b/1; 5 got b/1 0 6", 0, 0, 1},
		{"… by a line that was there before", "1 asked b/0; 1 asked a/1; 2 got a/1 0 7; 3 leaving a/1 0; 4 asked b/1; 5 got b/1 0 6", 0, 0, 0},
		{"… and had ended", "1 asked b/0; 1 failed b/0; 1 asked a/1; 2 got a/1 0 7; 3 leaving a/1 0; 4 asked b/1; 5 got b/1 0 6", 0, 0, 1},
	} {
		locks := sortByLock(semaphoreEvents(row.lines))
		whole, slot := locks["w0/hs0"], locks[slotKey("w0/hs0", 0)]
		if whole.most != slots || slot.most != 1 {
			t.Fatalf("%s: %d hold the semaphore, %d a slot", row.name, whole.most, slot.most)
		}
		for l, want := range map[*lockHistory]int{whole: row.whole, slot: row.slot} {
			if got := l.findOverlaps((*attempt).trustedInterval); len(got) != want {
				t.Errorf("%s: %s: overlaps %v, want %d", row.name, l.key, got, want)
			}
			if got := porcupine.CheckOperations(lockModel(l.most), l.holdingOperations()); got != (want == 0) {
				t.Errorf("%s: %s: legal: %v, want %v", row.name, l.key, got, want == 0)
			}
		}
		if got := append(slot.findDuplicateTokens(), slot.findDisorder()...); min(len(got), 1) != row.tokens {
			t.Errorf("%s: tokens: %v, want some: %d", row.name, got, row.tokens)
		}
	}
}

// The checks in check.go and Porcupine agree. Lines are "TIME KIND CLIENT SIDE [TOKEN]"; a reader's lease is
// renewed under the key of its place.
func TestWriterIsAloneWithOrderedToken(t *testing.T) {
	t.Parallel()
	const asks = "1 asked a/1 reader; 1 asked b/1 reader; 1 asked c/1 writer; 1 asked d/1 reader; 1 asked e/1 reader; 1 asked f/1 reader; "
	for _, row := range []struct {
		name, lines      string
		overlaps, tokens int
	}{
		{"four readers", asks + "2 got a/1 reader 1; 2 got b/1 reader 2; 2 got d/1 reader 4; 2 got e/1 reader 3", 0, 0},
		{"a fifth reader", asks + "2 got a/1 reader 1; 2 got b/1 reader 2; 2 got d/1 reader 4; 2 got e/1 reader 3; 3 got f/1 reader 5", 1, 0},
		{"a writer beside a reader", asks + "2 got a/1 reader 1; 3 got c/1 writer 2", 1, 0},
		{"a reader beside a writer", asks + "2 got c/1 writer 1; 3 got a/1 reader 2", 1, 0},
		{"a writer after the readers", asks + "2 got a/1 reader 1; 2 got b/1 reader 2; 3 leaving a/1 reader; 4 leaving b/1 reader; 5 got c/1 writer 3", 0, 0},
		{"a writer beside a reader that renewed", asks + "2 got a/1 reader 1; 900 renewed a/1 reader; 1500 got c/1 writer 2", 1, 0},
		{"a writer after the end of a lease", asks + "2 got a/1 reader 1; 1500 got c/1 writer 2", 0, 0},
		{"a reader's lower token, asked for later", "1 asked c/1 writer; 2 got c/1 writer 7; 3 leaving c/1 writer; 4 asked a/1 reader; 5 got a/1 reader 6", 0, 1},
		{"one token twice", asks + "2 got a/1 reader 1; 2 got b/1 reader 1", 0, 1},
	} {
		var events []event
		for line := range strings.SplitSeq(row.lines, ";") {
			e, what := event{Key: "w0/hr0", Slots: sideReaders}, ""
			fmt.Sscan(line, &e.T, &what, &e.Try, &e.Side, &e.Token)
			e.Kind, e.ID, e.Until = kind(what), e.Try, e.T+1000
			if e.Client, _, _ = strings.Cut(e.Try, "/"); e.Kind == renewed {
				e.Key, e.Try = slotKey(e.Key, 2), ""
			}
			events = append(events, e)
		}
		l := sortByLock(events)["w0/hr0"]
		if got := l.findOverlaps((*attempt).trustedInterval); len(got) != row.overlaps {
			t.Errorf("%s: overlaps %v, want %d", row.name, got, row.overlaps)
		}
		if got := append(l.findDuplicateTokens(), l.findDisorder()...); min(len(got), 1) != row.tokens {
			t.Errorf("%s: tokens: %v, want some: %d", row.name, got, row.tokens)
		}
		for _, trial := range l.lockTrials(true) {
			want := trial.promise == asLock && row.overlaps == 0 || trial.promise == asTokens && row.tokens == 0 || trial.promise == asRegister
			if got := porcupine.CheckOperations(trial.model, trial.of(l)); got != want {
				t.Errorf("%s: %s: legal: %v, want %v", row.name, trial.promise, got, want)
			}
		}
	}
}

func TestOverdueCallIsReported(t *testing.T) {
	t.Parallel()
	paused := func(client string, _, _ int64) bool { return client == "paused" }
	for _, row := range []struct {
		name              string
		overdue, unserved int // with more = 10
		a                 attempt
	}{
		{"granted in time", 0, 0, attempt{asked: 20, wait: 30, got: 50}},
		{"granted long after its wait", 1, 0, attempt{asked: 20, wait: 30, got: 61}},
		{"given up in time", 0, 1, attempt{asked: 20, wait: 30, gaveUp: 50}},
		{"given up long after its wait", 1, 1, attempt{asked: 20, wait: 30, gaveUp: 61}},
		{"it never ends", 1, 0, attempt{asked: 20, wait: 30}},
		{"… in a process that is stopped", 0, 0, attempt{client: "paused", asked: 20, wait: 30}},
		{"it waits for its window", 0, 0, attempt{asked: 20}},
	} {
		l := buildHistory(&row.a)
		if got := l.findOverdueCalls(10, paused); len(got) != row.overdue {
			t.Errorf("%s: overdue: %v, want %d", row.name, got, row.overdue)
		}
		if got := l.findUnservedCalls(); len(got) != row.unserved {
			t.Errorf("%s: unserved: %v, want %d", row.name, got, row.unserved)
		}
	}
}

// The workers are spread over all Holdfast clients.
func TestEachTaskHasWorkers(t *testing.T) {
	t.Parallel()
	for _, clients := range []int{4, 5, 8} {
		for task, want := range map[task]int{semaphoreTask{}: slotWorkers, multiLockTask{}: manyWorkers, readWriteTask{}: sideWorkers} {
			o := order{Schedule: Schedule{Clients: clients}}
			total := 0
			for o.Number = range clients {
				total += task.workers(&o)
			}
			if total != want {
				t.Errorf("%s: %d workers in %d clients", task.title(), total, clients)
			}
			if o.Peer = true; task.workers(&o) != 0 {
				t.Errorf("%s: another recipe does the same", task.title())
			}
		}
	}
	for key, want := range map[string]task{"w7/h3": lockTask{}, "w7/hs0": semaphoreTask{}, "w7/hs0#2": semaphoreTask{}, "w7/ha11": multiLockTask{}, "w7/r3": nil} {
		if got := taskOf(key); got != want {
			t.Errorf("%s is a lock of %T, want %T", key, got, want)
		}
	}
}

// Each lock of the call is counted separately, too.
func TestCallForSeveralLocksCountsOnce(t *testing.T) {
	t.Parallel()
	var r TaskReport
	for _, l := range sortByLock(append(semaphoreEvents(threeHolders), []event{
		{T: 1, Kind: asked, Key: "w0/ha1", Try: "a/2:0"},
		{T: 1, Kind: asked, Key: "w0/ha2", Try: "a/2:1"},
		{T: 9, Kind: got, Key: "w0/ha1", Try: "a/2:0", ID: "x", Until: 10},
		{T: 9, Kind: got, Key: "w0/ha2", Try: "a/2:1", ID: "y", Until: 10},
	}...)) {
		r.count(l)
	}
	if want := (TaskReport{Calls: 5, Granted: 4, Leases: 5, Most: 3, Longest: 8}); r != want {
		t.Errorf("counted %+v, want %+v", r, want)
	}
}
