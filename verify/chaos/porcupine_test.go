//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// scriptEvents parses "TIME KIND TRY [TOKEN [DEADLINE]]" or, for a storage, "TIME KIND TRY NUMBER [VALUE]"
// into events, separated by semicolons.
func scriptEvents(store, lines string) (events []event) {
	for line := range strings.SplitSeq(lines, ";") {
		e := event{Key: "w0/h0", Client: "c.0"}
		var what, value, prev string
		fmt.Sscan(line, &e.T, &what, &e.Try, &value, &prev)
		switch e.Kind = kind(what); e.Kind {
		case got, lost:
			fmt.Sscan(value, &e.Token)
			e.ID, e.Until = e.Try, 1000
			fmt.Sscan(prev, &e.Until)
		case reading, seen, barred, writing, acked, refused, unknown:
			e.Store, e.Op, e.Prev = store, e.Try+"."+value, prev
		}
		events = append(events, e)
	}
	return events
}

// holders have tokens 7, 8 and 9, and no trust.
const holders = "1 asked a; 2 got a 7 0; 2 asked b; 3 got b 8 0; 3 asked c; 4 got c 9 0"

// begunEvents adds a read by the first holder.
const begunEvents = holders + "; 5 reading a 1; 6 seen a 1"

// forkEvents adds a lost update.
const forkEvents = begunEvents + "; 5 reading b 1; 6 seen b 1; 7 writing a 1; 8 acked a 1; 9 writing b 1; 10 acked b 1"

func TestPorcupineRejectsForbiddenHistories(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, promise, store string
		legal                bool
		lines                string
	}{
		{"tokens in order", asTokens, "", true, holders},
		{"a token twice", asTokens, "", false, "1 asked a; 2 got a 7; 3 asked b; 4 got b 7"},
		{"a token twice, asked for at once", asTokens, "", false, "1 asked a; 1 asked b; 4 got a 7; 5 got b 7"},
		{"a lower token, asked for later", asTokens, "", false, "1 asked a; 2 got a 7; 3 asked b; 4 got b 6"},
		{"a lower token, asked for at once", asTokens, "", true, "1 asked a; 1 asked b; 4 got a 7; 5 got b 6"},
		{"a lower token than that of the last but one", asTokens, "", false, "1 asked a; 2 asked b; 3 got a 9; 4 got b 4; 5 asked c; 6 got c 5"},
		{"an attempt without an answer has no token", asTokens, "", true, "1 asked a; 2 asked b; 3 got b 8; 4 asked c; 5 got c 9"},

		{"one after the other", asLock, "", true, "1 asked a; 2 got a 7; 2 asked b; 5 leaving a; 6 got b 8; 7 leaving b"},
		{"granted before the release was confirmed", asLock, "", true, "1 asked a; 2 got a 7; 2 asked b; 5 leaving a; 6 got b 8; 7 released a; 8 leaving b"},
		{"two at once", asLock, "", false, "1 asked a; 2 got a 7; 2 asked b; 5 got b 8; 6 leaving a; 7 leaving b"},
		{"three, the first of which goes last", asLock, "", false, "1 asked a; 2 got a 7; 2 asked b; 3 leaving b; 5 asked c; 6 got c 8; 7 leaving c; 8 leaving a"},
		{"the first never leaves, and its lease ends", asLock, "", true, "1 asked a; 2 got a 7 10; 2 asked b; 11 got b 8; 12 leaving b"},
		{"the first never leaves, and its lease stands", asLock, "", false, "1 asked a; 2 got a 7 10; 2 asked b; 9 got b 8; 12 leaving b"},
		{"the first hears of its loss", asLock, "", true, "1 asked a; 2 got a 7; 2 asked b; 5 lost a; 6 got b 8; 7 leaving a; 8 leaving b"},
		{"the lower token holds the lock later", asLock, "", true, "1 asked a; 1 asked b; 4 got a 7; 5 leaving a; 6 got b 6; 7 leaving b"},

		{
			"one line of writes", asRegister, byRedis, true,
			begunEvents + "; 7 writing a 1; 8 acked a 1; 9 reading b 1; 10 seen b 1 a.1; 11 writing b 1 a.1; 12 acked b 1 a.1",
		},
		{"an update is lost", asRegister, byRedis, false, forkEvents},
		{"an update is lost, of a storage without tokens", asRegister, byNobody, false, forkEvents},
		{
			"the older holder is refused", asRegister, byRedis, true,
			begunEvents + "; 7 reading b 1; 8 seen b 1; 9 writing a 1; 10 refused a 1; 11 writing b 1; 12 acked b 1",
		},
		{"the older holder is not refused", asRegister, byRedis, false, begunEvents + "; 7 reading b 1; 8 seen b 1; 9 writing a 1; 10 acked a 1"},
		{"… and the newer one's claim may come later", asRegister, byRedis, true, begunEvents + "; 7 reading b 1; 9 writing a 1; 10 acked a 1; 11 seen b 1 a.1"},
		{"refused without a newer holder", asRegister, byRedis, false, begunEvents + "; 9 writing a 1; 10 refused a 1"},
		{"refused by a claim that has no answer", asRegister, byRedis, true, begunEvents + "; 7 reading b 1; 9 writing a 1; 10 refused a 1"},
		{"refused by a claim that is sent later", asRegister, byRedis, false, begunEvents + "; 9 writing a 1; 10 refused a 1; 11 reading b 1"},
		{"refused where the lease decides, and no token", asRegister, byRow, true, begunEvents + "; 9 writing a 1; 10 refused a 1"},
		{"barred though it is the newest", asRegister, byRedis, false, holders + "; 5 reading a 1; 6 barred a 1"},
		{"a write without an answer is seen later", asRegister, byRedis, true, begunEvents + "; 7 writing a 1; 8 unknown a 1; 9 reading b 1; 10 seen b 1 a.1"},
		{"a write without an answer never comes", asRegister, byRedis, true, begunEvents +
			"; 7 writing a 1; 9 reading b 1; 10 seen b 1; 11 writing b 1; 12 acked b 1"},
		{
			"a value is seen, and then the one before it", asRegister, byRedis, false,
			begunEvents + "; 7 writing a 1; 8 unknown a 1; 9 reading b 1; 10 seen b 1 a.1; 11 reading c 1; 12 seen c 1",
		},
		{"a value that nobody wrote", asRegister, byRedis, false, holders + "; 5 reading a 1; 6 seen a 1 x.1"},
		{
			"a read between a newer claim and its read", asRegister, bySQL, true,
			holders + "; 5 reading a 1; 6 reading b 1; 7 seen b 1; 8 writing b 1; 9 acked b 1; 10 seen a 1 b.1",
		},
		{
			"… which one step does not allow", asRegister, byRedis, false,
			holders + "; 5 reading a 1; 6 reading b 1; 7 seen b 1; 8 writing b 1; 9 acked b 1; 10 seen a 1 b.1",
		},
		{
			"barred behind a claim that is barred itself", asRegister, bySQL, true,
			begunEvents + "; 6 reading a 2; 7 reading b 1; 9 barred a 2; 10 reading c 1; 11 seen c 1; 12 barred b 1",
		},
		{
			"… which one step does not allow", asRegister, byRedis, false,
			begunEvents + "; 6 reading a 2; 7 reading b 1; 9 barred a 2; 10 reading c 1; 11 seen c 1; 12 barred b 1",
		},
		{"barred with nobody else there", asRegister, bySQL, false, holders + "; 5 reading a 1; 6 barred a 1"},
	} {
		i := slices.IndexFunc(newHistory("").lockTrials(true), func(t trial) bool { return t.promise == row.promise && t.store == row.store })
		judge := newHistory("").lockTrials(true)[i]
		ops := judge.of(sortByLock(scriptEvents(row.store, row.lines))["w0/h0"])
		if len(ops) == 0 {
			t.Errorf("%s: no operations", row.name)
		}
		if got := porcupine.CheckOperations(judge.model, ops); got != row.legal {
			t.Errorf("%s: legal: %v, want %v", row.name, got, row.legal)
		}
	}
}

// The final value includes a confirmed write and excludes a rejected one. A write without an answer may be
// either.
func TestFinalValueIsChecked(t *testing.T) {
	t.Parallel()
	for answer, values := range map[string]map[string]bool{
		"acked": {"a.1": true, "": false}, "unknown": {"a.1": true, "": true, "x": false}, "refused": {"a.1": false, "": true},
	} {
		for final, want := range values {
			l := sortByLock(scriptEvents(byRow, begunEvents+"; 7 writing a 1; 8 "+answer+" a 1"))["w0/h0"]
			l.finals[byRow] = final
			if got := porcupine.CheckOperations(registerModel, l.accessOperations(byRow)); got != want {
				t.Errorf("%s, and at the end %q: legal: %v, want %v", answer, final, got, want)
			}
		}
	}
}

// judgeEvents has Porcupine judge a window of one lock. It returns the report, the findings and the folder.
func judgeEvents(t *testing.T, events []event, left time.Duration) (*Report, []Finding, string) {
	dir := t.TempDir()
	j := &judge{dir: filepath.Join(dir, "history"), report: &Report{Peer: "other", Porcupine: map[string]*Judged{}}}
	s := &span{Window: Window{Class: "calm"}}
	found, err := j.judgeLinear(s, true, time.Now().Add(left), events, sortByLock(events), []pastFault{{Do: "pause-client", Victim: "c", Start: 3, End: 9}})
	if err != nil {
		t.Fatal(err)
	}
	return j.report, found, dir
}

func TestPorcupineFindingHasPicture(t *testing.T) {
	t.Parallel()
	events := scriptEvents("", "1 asked a; 2 got a 7; 3 asked b; 5 got b 8; 6 leaving a; 7 leaving b; 8 asked late; 9 got late 9")
	r, found, dir := judgeEvents(t, events, time.Minute)
	if len(found) != 1 || found[0].Promise != asLock {
		t.Errorf("found %v, want one of %q", found, asLock)
	}
	if got := r.countsFor("holdfast").String(); got != "6 operations in 2 histories, 1 illegal" {
		t.Errorf("report says %q", got)
	}
	text, err := os.ReadFile(filepath.Join(dir, "porcupine-holdfast-lock.html"))
	if err != nil {
		t.Fatal(err)
	}
	for word, want := range map[string]bool{"acquire by b: got": true, "pause-client": true, "acquire by late": false} { // it comes after the violation
		if strings.Contains(string(text), word) != want {
			t.Errorf("the picture has %s: %v, want %v", word, !want, want)
		}
	}
}

// Violations of the control are counted and drawn.
func TestControlViolationsAreCountedAndDrawn(t *testing.T) {
	t.Parallel()
	events := scriptEvents(byNobody, forkEvents)
	r, found, _ := judgeEvents(t, events, time.Minute)
	if len(found) > 0 || r.countsFor("control").Illegal != 1 || r.countsFor("holdfast").Illegal != 0 || len(r.Pictures) != 1 {
		t.Errorf("found %v, control %v, Holdfast %v, pictures %v", found, r.countsFor("control"), r.countsFor("holdfast"), r.Pictures)
	}
	for i := range events {
		events[i].Key, events[i].Until, events[i].Token = "w0/r0", 1000, 0
	}
	r, found, _ = judgeEvents(t, events, time.Minute)
	if len(found) > 0 || r.countsFor("other").Illegal != 2 || len(r.Porcupine) != 1 || len(r.Pictures) != 2 {
		t.Errorf("found %v, report %v, pictures %v", found, r.Porcupine, r.Pictures)
	}
}

// So many writes without an answer have too many possible orders.
func TestUndecidedHistoryIsUnknown(t *testing.T) {
	t.Parallel()
	var lines strings.Builder
	lines.WriteString(begunEvents + "; 7 writing a 1; 8 acked a 1")
	for i := range 40 {
		fmt.Fprintf(&lines, "; 1 asked c%d; 4 got c%d %d 0; 9 reading c%d 1", i, i, 100+i, i)
	}
	events := scriptEvents(byRedis, lines.String()+"; 20 reading c39 2; 21 seen c39 2 x.1")
	r, found, _ := judgeEvents(t, events, 0)
	if got := r.countsFor("holdfast"); got.Unknown == 0 || got.Illegal != 0 || len(found) > 0 {
		t.Errorf("%v, found %v, want some unknown", got, found)
	}
	if got := r.countsFor("holdfast").String(); strings.Contains(got, "ok") || !strings.Contains(got, "unknown") {
		t.Errorf("report says %q", got)
	}
}
