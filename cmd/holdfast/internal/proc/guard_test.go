//go:build unix

package proc

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/boot"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
)

// guardedGroup is a group with its guard, in this process.
type guardedGroup struct {
	command *exec.Cmd
	orders  *io.PipeWriter
	code    chan int
	did     []Killing // read it after code
}

func newGuarded(t *testing.T) *guardedGroup {
	t.Helper()
	g := &guardedGroup{command: exec.Command("sh", "-c", "sleep 300 & sleep 300"), code: make(chan int, 1)}
	g.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := g.command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Kill(-g.command.Process.Pid, syscall.SIGKILL); g.command.Wait() })
	in, orders := io.Pipe()
	g.orders = orders
	t.Cleanup(func() { orders.Close() })
	t.Cleanup(func() { signal.Reset() })
	go func() {
		g.code <- RunGuard(in, io.Discard, func(did Killing) error {
			if isGroupAlive(g.command.Process.Pid) {
				t.Error("the lease was released while the process group lives")
			}
			g.did = append(g.did, did)
			return nil
		})
	}()
	return g
}

func (g *guardedGroup) tell(t *testing.T, o order) {
	t.Helper()
	if err := json.NewEncoder(g.orders).Encode(o); err != nil {
		t.Fatal(err)
	}
}

// killed checks the outcome of a guard that has killed its group.
func (g *guardedGroup) killed(t *testing.T, why, lease string) {
	t.Helper()
	code := <-g.code
	if code != GuardKilled || len(g.did) != 1 || g.did[0].Why != why || g.did[0].Group != g.command.Process.Pid ||
		string(g.did[0].Lease) != lease || g.did[0].Error != "" {
		t.Errorf("exit code %d, %+v", code, g.did)
	}
}

// The subtests run one after another in this process, because RunGuard handles its signals.
func TestGuard(t *testing.T) {
	t.Run("KillsAtTheMomentItWasToldLast", func(t *testing.T) {
		g := newGuarded(t)
		pid := g.command.Process.Pid
		at := boot.Now().Add(1050 * time.Millisecond)
		g.tell(t, order{Group: pid, KillAt: boot.Now().Add(time.Second), Lease: json.RawMessage(`"the lease"`)})
		g.tell(t, order{Group: pid, KillAt: at})
		g.command.Wait()
		if now := boot.Now(); now < at {
			t.Errorf("killed %v early", at.Sub(now))
		}
		g.killed(t, "the lease is about to end and was not renewed", `"the lease"`)
	})
	t.Run("KillsAtTheEndOfThePipe", func(t *testing.T) {
		g := newGuarded(t)
		g.tell(t, order{Group: g.command.Process.Pid, KillAt: boot.Now().Add(time.Hour)})
		g.orders.Close()
		g.command.Wait()
		g.killed(t, "holdfast is gone", "")
	})
	t.Run("LeavesAGroupAloneThatItIsDismissedFrom", func(t *testing.T) {
		g := newGuarded(t)
		g.tell(t, order{Group: g.command.Process.Pid, KillAt: boot.Now().Add(time.Hour)})
		g.tell(t, order{Done: true})
		if code := <-g.code; code != 0 || len(g.did) > 0 || !isGroupAlive(g.command.Process.Pid) {
			t.Errorf("exit code %d, %+v", code, g.did)
		}
	})
	t.Run("WaitsForHoldfastWhereTheGroupIsGone", func(t *testing.T) {
		g := newGuarded(t)
		syscall.Kill(-g.command.Process.Pid, syscall.SIGKILL)
		g.command.Wait()
		fixture.New(t).Eventually("the group is gone", func() bool { return !isGroupAlive(g.command.Process.Pid) })
		g.tell(t, order{Group: g.command.Process.Pid, KillAt: boot.Now(), Lease: json.RawMessage(`1`)})
		g.tell(t, order{Done: true})
		if code := <-g.code; code != 0 || len(g.did) > 0 {
			t.Errorf("exit code %d, %+v", code, g.did)
		}
	})
	t.Run("KillsNothingBeforeItKnowsAGroup", func(t *testing.T) {
		g := newGuarded(t)
		g.orders.CloseWithError(io.ErrUnexpectedEOF)
		if code := <-g.code; code != 0 || !isGroupAlive(g.command.Process.Pid) {
			t.Errorf("exit code %d, %+v", code, g.did)
		}
	})
}

// The search omits the guard and the heir that it starts.
func TestDescendantsAreFoundAtAnyDepth(t *testing.T) {
	t.Parallel()
	all := []Process{
		{PID: 1},
		{PID: 10, parent: 1},
		{PID: 11, parent: 10},
		{PID: 12, parent: 11},
		{PID: 20, parent: 1},
		{PID: 13, parent: 10},
		{PID: 14, parent: 13},
	}
	j := &Job{guard: &guardLink{pid: 13}}
	var got []int
	for _, p := range descendants(10, all, j.isForeign) {
		got = append(got, p.PID)
	}
	if !slices.Equal(got, []int{11, 12}) {
		t.Errorf("descendants of 10: %v, want 11 and 12", got)
	}
}

// An order is sent while the pipe has room, even if the machine is busy, and fails at once if the pipe is full.
func TestOrderDoesNotWaitForGuard(t *testing.T) {
	t.Parallel()
	in, orders, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	g := &guardLink{orders: orders, answer: in}
	defer orders.Close()
	told := 0
	for ; err == nil && told < 1<<16; told++ {
		err = g.sendOrder(order{Group: 1, KillAt: boot.Now()})
	}
	if !errors.Is(err, unix.EAGAIN) || told < 100 {
		t.Errorf("order %d to a guard that does not read: %v, want EAGAIN after hundreds", told, err)
	}
}

// The guard would end at half of an order, and then kill the command.
func TestTooLongOrderReturnsError(t *testing.T) {
	t.Parallel()
	in, orders, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer orders.Close()
	g := &guardLink{orders: orders, answer: in}
	lease, err := json.Marshal(strings.Repeat("x", 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	if err := g.sendOrder(order{Group: 1, Lease: lease}); err == nil || !strings.Contains(err.Error(), "fewer locks") {
		t.Errorf("an order of 1 MiB: %v, want an error", err)
	}
}
