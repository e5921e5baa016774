//go:build linux

package main

import (
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
)

var (
	increments = flag.Int("increments", 80, "how often TestLockedCounterKeepsEveryIncrement increments; the full count is 2000")
	waiters    = flag.Int("waiters", 20, "how many runs wait in TestRunsFinishInOrderOfArrival; the full count is 200")
)

// incrementScript reads and writes without waiting: without the lock, increments would be lost. A run whose lease is
// lost kills it at any point, so the counter is replaced as a whole, and the note of an increment comes last.
const incrementScript = `set -e; n=$(cat counter); n=$((n+1)); echo $n >new.$$; mv new.$$ counter; echo $n $HOLDFAST_LOCK_TOKEN >>increments`

// Eight shells increment a number in a file under one lock over five servers. Meanwhile one server is killed
// for good, and another returns with an empty memory and sits out its quarantine. On a busy machine leases may be
// lost; then their increments are made again.
func TestLockedCounterKeepsEveryIncrement(t *testing.T) {
	t.Parallel()
	b := newBench(t, 5)
	b.backend = strings.Replace(b.backend, "?quarantine=off", "?maxttl=6s", 1)
	b.write("counter", "0\n")
	eventually(t.Fatalf, "servers just started may vote", func() bool {
		return b.start("run", "-n", "--ttl", "6s", "counter", "--", "true").code() == 0
	})
	began := time.Now()
	var done, lost atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for done.Add(1) <= int64(*increments) {
				run := b.start("run", "--ttl", "6s", "-w", "60s", "counter", "--", "sh", "-c", incrementScript)
				switch code := exitcode.Code(run.code()); code {
				case exitcode.OK:
				case exitcode.Lost:
					t.Logf("a lease was lost:\n%s", run.log.String())
					lost.Add(1)
					done.Add(-1)
				default:
					t.Errorf("exit code %d; output:\n%s", code, run.log.String())
				}
			}
		})
	}
	all.Go(func() { b.fail(&done) })
	all.Wait()

	t.Logf("%d increments by 8 processes at a time in %v, %d leases lost", *increments, time.Since(began).Round(time.Millisecond), lost.Load())
	var noted int
	var last, lastToken int64
	for line := range strings.Lines(b.file("increments")) {
		var n, token int64
		if _, err := fmt.Sscan(line, &n, &token); err != nil || n <= last || token <= lastToken {
			t.Errorf("%q behind number %d, token %d (%v)", line, last, lastToken, err)
		}
		noted, last, lastToken = noted+1, n, token
	}
	if noted < *increments {
		t.Errorf("%d increments are recorded, want %d", noted, *increments)
	}
	// An increment whose lease was lost before its note is counted, but not recorded.
	got, err := strconv.ParseInt(strings.TrimSpace(b.file("counter")), 10, 64)
	if err != nil || got < last || got > int64(noted)+lost.Load() {
		t.Errorf("counter = %d with %d recorded increments and %d lost leases (%v)", got, noted, lost.Load(), err)
	}
}

// fail kills one server after a third of the increments, and wipes another after two thirds.
func (b *bench) fail(done *atomic.Int64) {
	reached := func(share int) func() bool {
		return func() bool { return done.Load() >= int64(*increments*share/3) }
	}
	eventuallyWithin(b.t.Errorf, 10*time.Minute, "a third is done", reached(1))
	b.servers[0].Kill()
	eventuallyWithin(b.t.Errorf, 10*time.Minute, "two thirds are done", reached(2))
	if err := b.servers[3].Wipe(b.t.Context()); err != nil {
		b.t.Error(err)
	}
}

// Many small runs wait, and the lock must go to them in order of arrival. A run may be passed over only if it
// does not answer within the time of a hand-over, as on a busy machine.
func TestRunsFinishInOrderOfArrival(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{1, 3, 5} {
		t.Run(fmt.Sprintf("%d nodes", nodes), func(t *testing.T) { runsFinishInOrder(t, nodes) })
	}
}

func runsFinishInOrder(t *testing.T, nodes int) {
	b := newBench(t, nodes)
	holder := b.start("run", "queue", "--", "sh", "-c", "echo held >held; until [ -e go ]; do sleep 0.05; done")
	eventually(t.Fatalf, "the lock is held", func() bool { return b.file("held") != "" })
	runs := make([]*job, *waiters)
	for i := range runs {
		runs[i] = b.start("run", "-v", "--log-format", "json", "-w", "60s", "queue", "--", "sh", "-c", fmt.Sprintf("echo %d $(date +%%s%%N) >>order", i))
		eventually(t.Fatalf, fmt.Sprintf("run %d waits", i), func() bool { return queueLength(b.servers[nodes-1], "queue") > int64(i) })
	}
	var peaks []int // some runs collect garbage late on a busy machine
	for _, r := range runs {
		peaks = append(peaks, peakMemory(t, r.Process.Pid))
	}
	slices.Sort(peaks)
	usual, largest := peaks[len(peaks)/2], peaks[len(peaks)-1]
	b.write("go", "go\n")
	began := time.Now()
	for i, r := range runs {
		if code := r.code(); code != 0 {
			t.Errorf("run %d: exit code %d; output:\n%s", i, code, r.log.String())
		}
	}
	holder.code()
	t.Logf("%d runs in %v, half of them up to %d kB, the largest %d kB", len(runs), time.Since(began).Round(time.Millisecond), usual, largest)
	if usual > 24_000 { // most of it is the client libraries of all backends
		t.Errorf("a waiting run takes %d kB, want below 24 MB", usual)
	}
	waiting := make([]int, len(runs))
	for i := range waiting {
		waiting[i] = i
	}
	before := began.UnixNano()
	for line := range strings.Lines(b.file("order")) {
		var run int
		var at int64
		if _, err := fmt.Sscan(line, &run, &at); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if !slices.Contains(waiting, run) {
			t.Fatalf("run %d got the lock twice; order:\n%s", run, b.file("order"))
		}
		if first := waiting[0]; run != first && at-before < quorum.MaxHandOver {
			t.Fatalf("run %d was overtaken by run %d, %v after the one before; order:\n%s\noutput:\n%s",
				first, run, time.Duration(at-before), b.file("order"), runs[first].log.String())
		}
		waiting = slices.DeleteFunc(waiting, func(i int) bool { return i == run })
		before = at
	}
	if len(waiting) > 0 {
		t.Errorf("runs %v never got the lock", waiting)
	}
}

// queueLength returns the number of waiters that one server has in the lock's queue.
func queueLength(s *redisproc.Server, lock string) int64 {
	reply, err := s.Do("ZCOUNT", "holdfast:queue:{lock:"+lock+"}", "(0", "+inf")
	n, ok := reply.(int64)
	if err != nil || !ok {
		return 0
	}
	return n
}

// peakMemory returns the highest resident memory of a process, in kB.
func peakMemory(t *testing.T, pid int) int {
	t.Helper()
	status, err := readFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(status) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kB, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				t.Fatal(err)
			}
			return kB
		}
	}
	t.Fatal("no VmHWM")
	return 0
}
