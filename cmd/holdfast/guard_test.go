//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/proc"
)

// termIgnoringScript is a command of three processes that ignore all signals they can. So it is not enough to kill the
// process that holdfast started.
const termIgnoringScript = `trap "" TERM INT HUP; echo $$ >>$0; (trap "" TERM; echo $(exec sh -c 'echo $PPID') >>$0; exec sleep 300) &
(trap "" TERM; echo $(exec sh -c 'echo $PPID') >>$0; exec sleep 300) & while :; do sleep 300; done`

// shortLeaseFlags has a lease end two seconds after its last renewal, so that a hundred rounds end soon. The
// margin is long: on a busy machine the guard, and a process that it has killed, wait long for the processor. In
// all rounds but those of a cut-off node the guard gives the lock back, so nobody waits for the margin.
var shortLeaseFlags = []string{"--ttl", shortTTL.String(), "--renew", "300ms", "--margin", (shortTTL - 2*time.Second).String(), "--kill-after", "100ms"}

const shortTTL = 15 * time.Second

// The test kills or suspends holdfast. The command's whole group must be gone before another command starts.
func TestGuardKillsBeforeNextHolderStarts(t *testing.T) {
	t.Parallel()
	for _, blow := range []syscall.Signal{unix.SIGKILL, unix.SIGSTOP} {
		t.Run(unix.SignalName(blow), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 1)
			l := newLedger(t)
			inParallel(*rounds, 6, func(i int) {
				id := fmt.Sprint("round", i)
				victim, dead := b.startVictim("--splay=0", id)
				time.Sleep(time.Duration(i%7) * 50 * time.Millisecond) // a different time between two renewals
				struck := monotonicNow()
				unix.Kill(victim.Process.Pid, blow)
				began := b.nextHolder(id)
				l.note(i, struck, min(dead(), began), began)
				unix.Kill(victim.Process.Pid, unix.SIGCONT)
				victim.code()
			})
			l.check(*rounds)
		})
	}
}

// The test kills holdfast. Its guard releases the lock for the next waiter, which could not wait for the TTL.
func TestKilledRunFreesLockAtOnce(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d nodes", nodes), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, nodes)
			var waits []time.Duration
			for i := range *rounds {
				pids, id := fmt.Sprint("pids", i), fmt.Sprint("killed", i)
				holder := b.start("run", "--ttl", "60s", id, "--", "sh", "-c", termIgnoringScript, pids)
				b.pids(pids, 3, nil)
				next := b.start("run", "-w", "40s", id, "--", b.clock)
				eventually(t.Fatalf, "the next one waits", func() bool { return queueLength(b.servers[nodes-1], id) > 0 })
				struck := monotonicNow()
				unix.Kill(holder.Process.Pid, unix.SIGKILL)
				if code := next.code(); code != 0 {
					t.Fatalf("exit code %d; output:\n%s\noutput of the guard:\n%s", code, next.log.String(), holder.log.String())
				}
				began, err := strconv.ParseInt(strings.TrimSpace(next.out.String()), 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				waits = append(waits, time.Duration(began-struck))
				holder.code()
			}
			slices.Sort(waits)
			t.Logf("from SIGKILL to the next command: median %v, most %v", waits[len(waits)/2], waits[len(waits)-1])
		})
	}
}

// The test suspends all nodes at once. The command must be dead before the TTL is over, counted from before
// the last renewal was sent.
func TestCutOffCommandDiesBeforeLeaseEnds(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	inParallel(*rounds, 6, func(i int) {
		b := newBench(t, 3)
		holder, dead := b.startVictim("--log-format=json", "job")
		time.Sleep(time.Duration(i%7) * 50 * time.Millisecond) // a different time between two renewals
		for _, s := range b.servers {
			if err := s.Pause(); err != nil {
				t.Error(err)
			}
		}
		struck := monotonicNow()
		gone := dead()
		if code := holder.code(); code != 79 {
			t.Errorf("round %d: exit code %d, want 79; output:\n%s", i, code, holder.log.String())
		}
		l.note(i, struck, gone, endOfTTL(t, holder.log.String()))
	})
	l.check(*rounds)
}

// startVictim starts a family under the lock name. It returns the run, and a function that waits for the family's
// death. On a busy machine a short lease may be lost before the family is complete; then startVictim starts again.
func (b *bench) startVictim(flag, name string) (*job, func() int64) {
	b.t.Helper()
	for {
		args := slices.Concat([]string{"run", "-v", flag}, shortLeaseFlags, []string{name, "--", "sh", "-c", termIgnoringScript, name})
		run := b.start(args...)
		ended := make(chan struct{})
		go func() { defer close(ended); run.Wait() }()
		if pids := b.pids(name, 3, ended); pids != nil {
			run.ended = ended
			return run, awaitDeaths(b.t, pids)
		}
		b.t.Logf("%s ended before it began:\n%s", name, run.log.String())
		os.Remove(filepath.Join(b.dir, name))
	}
}

// endOfTTL returns the end of the TTL, counted from before the last successful renewal was sent. The log has
// the end of trust, which is earlier by the drift.
func endOfTTL(t *testing.T, log string) int64 {
	t.Helper()
	var until time.Time
	for line := range strings.Lines(log) {
		var said struct{ Until time.Time }
		if err := json.Unmarshal([]byte(line), &said); err != nil {
			t.Errorf("%v: %s", err, line)
		}
		if !said.Until.IsZero() {
			until = said.Until
		}
	}
	drift := shortTTL/100 + 2*time.Millisecond
	return monotonicNow() + int64(time.Until(until.Add(drift)))
}

// nextHolder waits for the lock and returns the time when its command started. That command fails if a process
// of the family is alive, even if this process has not been notified of the death.
func (b *bench) nextHolder(name string) int64 {
	next := b.start(slices.Concat([]string{"run", "-w", "60s", name, "--", b.clock}, strings.Fields(b.file(name)))...)
	if code := next.code(); code != 0 {
		b.t.Errorf("next holder: exit code %d\n%s", code, next.log.String())
	}
	began, err := strconv.ParseInt(strings.TrimSpace(next.out.String()), 10, 64)
	if err != nil {
		b.t.Error(err)
	}
	return began
}

// inParallel calls f with 0 to n-1, at most some calls at a time.
func inParallel(n, some int, f func(i int)) {
	var all sync.WaitGroup
	gate := make(chan struct{}, some)
	for i := range n {
		gate <- struct{}{}
		all.Go(func() { defer func() { <-gate }(); f(i) })
	}
	all.Wait()
}

// ledger records for each round when holdfast was stopped, when the group ended, and when the next holder could
// begin.
type ledger struct {
	t *testing.T

	mu   sync.Mutex // guards rows
	rows []row
}

type row struct {
	round                 int
	struck, gone, another int64
}

func newLedger(t *testing.T) *ledger { return &ledger{t: t} }

func (l *ledger) note(round int, struck, gone, another int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rows = append(l.rows, row{round, struck, gone, another})
}

// check checks that every group was gone first, and writes the rows to a file.
func (l *ledger) check(want int) {
	var text strings.Builder
	fmt.Fprintln(&text, "round  gone after  another could begin after  margin   (ms since holdfast was struck)")
	ms := func(ns int64) float64 { return float64(ns) / 1e6 }
	least, good := int64(1<<62), 0
	for _, r := range l.rows {
		margin := r.another - r.gone
		fmt.Fprintf(&text, "%5d  %10.1f  %25.1f  %6.1f\n", r.round, ms(r.gone-r.struck), ms(r.another-r.struck), ms(margin))
		least = min(least, margin)
		if margin >= 0 {
			good++
		} else {
			l.t.Errorf("round %d: the group outlived the lease by %.1f ms", r.round, -ms(margin))
		}
	}
	l.t.Logf("%d of %d: the group was gone first; least margin %.1f ms", good, want, ms(least))
	if len(l.rows) != want {
		l.t.Errorf("%d rounds, want %d", len(l.rows), want)
	}
	path := l.t.ArtifactDir() + "/ledger.txt"
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		l.t.Error(err)
	}
}

// The gate and the guard of a run must start before the packages of backends are initialised.
func TestHelperStartsBeforeBackendClients(t *testing.T) {
	t.Parallel()
	programs, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	for argument, want := range map[string]bool{"--version": true, proc.GuardName: false, proc.GateName: false} {
		cmd := exec.Command(filepath.Join(programs, "holdfast"), argument, "text")
		cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
		trace, _ := cmd.CombinedOutput() // an unopened gate fails
		for _, late := range []string{"go.etcd.io/etcd/client/v3", "google.golang.org/protobuf/reflect/protodesc", "net/http"} {
			if got := bytes.Contains(trace, []byte("init "+late+" ")); got != want {
				t.Errorf("with %s, %s is initialised: %v", argument, late, got)
			}
		}
	}
}
