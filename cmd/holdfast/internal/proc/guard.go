//go:build unix

package proc

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/boot"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// HeirName is the name under which this program runs after a guard has killed a group: it logs the kill and
// releases the lease, because the guard has neither a log nor a client of a backend.
const HeirName = "heir-of-run"

// Killing reports the work of a guard, and the work that remains.
type Killing struct {
	Group int             `json:"group"`
	Why   string          `json:"why"`
	Error string          `json:"error,omitempty"` // error of the kill: the group may be alive
	Lease json.RawMessage `json:"lease,omitempty"` // lease to release; nil: none, or the group may be alive
}

// GuardName is the name under which this program runs as a guard: a process that kills the group at the time in
// its last order, or when the pipe to it closes without a dismissal. So the group ends in time even if
// holdfast is killed, is suspended or hangs.
const GuardName = "guard-of-run"

const (
	killPause = 5 * time.Millisecond
)

// GuardKilled is the exit code of a guard that has killed the group.
const GuardKilled = 3

// order is one message to the guard.
type order struct {
	Group  int             `json:"group"`
	KillAt boot.Instant    `json:"kill_at"`
	Lease  json.RawMessage `json:"lease,omitempty"` // lease to release after a kill; nil: unchanged
	Done   bool            `json:"done,omitempty"`
}

// guardLink is holdfast's side of the pipes to the guard.
type guardLink struct {
	pid    int
	orders *os.File
	answer *os.File
}

// startGuard starts the guard in a session of its own, so that neither the terminal nor a signal to our group
// reaches it.
func startGuard(self Self) (*guardLink, error) {
	in, orders, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	answer, out, err := os.Pipe()
	if err != nil {
		orders.Close()
		return nil, err
	}
	defer out.Close()
	defer raisePriority()()
	p, err := os.StartProcess(self.Path, []string{self.Name, GuardName, self.Log}, &os.ProcAttr{
		Files: []*os.File{in, out, os.Stderr}, Env: os.Environ(), Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		orders.Close()
		answer.Close()
		return nil, err
	}
	g := &guardLink{pid: p.Pid, orders: orders, answer: answer}
	return g, p.Release()
}

// raisePriority raises the priority of processes that this thread starts, because a guard is needed most on an
// overloaded machine. Only root and CAP_SYS_NICE may. The caller is locked to its thread. back undoes it.
func raisePriority() (back func()) {
	was, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil || unix.Setpriority(unix.PRIO_PROCESS, 0, -10) != nil {
		return func() {}
	}
	return func() { unix.Setpriority(unix.PRIO_PROCESS, 0, toNiceness(was)) }
}

// waitReady blocks until the guard is ready.
func (g *guardLink) waitReady() error {
	if err := g.answer.SetReadDeadline(time.Now().Add(pace.GuardTime())); err != nil {
		return err
	}
	_, err := io.ReadFull(g.answer, make([]byte, 1))
	return err
}

// sendOrder sends an order without waiting for the guard to read it: the pipe has room for hundreds. A
// deadline would do the same, but on a busy machine it can pass before the write.
func (g *guardLink) sendOrder(o order) error {
	line, err := json.Marshal(o)
	if err != nil {
		return err
	}
	raw, err := g.orders.SyscallConn()
	if err != nil {
		return err
	}
	line = append(line, '\n')
	var failed error
	err = raw.Write(func(fd uintptr) (done bool) {
		var n int
		if n, failed = unix.Write(int(fd), line); failed == nil && n < len(line) {
			failed = fmt.Errorf("the guard takes %d of the %d bytes of an order: take fewer locks, or locks with shorter names", n, len(line))
		}
		return true
	})
	return errors.Join(err, failed)
}

func (g *guardLink) close() {
	g.orders.Close()
	g.answer.Close()
}

// RunGuard is the guard's side. It reads orders from in, and writes a byte to ready once it is ready. It
// returns when it is dismissed or the group is gone. After it has killed the group, so that nothing runs under
// the lease any more, it calls bequeath.
func RunGuard(in io.Reader, ready io.Writer, bequeath func(Killing) error) int {
	applyName()
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGTSTP, syscall.SIGPIPE)
	alarm, err := boot.NewAlarm()
	if err != nil {
		fmt.Fprintln(os.Stderr, "holdfast: guard:", err)
		return 1
	}
	defer alarm.Close()
	orders := make(chan order)
	go readOrders(in, orders)
	if _, err := ready.Write([]byte{1}); err != nil {
		return 1
	}
	last, why := awaitKill(orders, alarm)
	if last.Group == 0 {
		return 0
	}
	did, code := Killing{Group: last.Group, Why: why, Lease: last.Lease}, GuardKilled
	if err := killGroup(last.Group); err != nil {
		did.Error, did.Lease, code = err.Error(), nil, 1
	}
	if err := bequeath(did); err != nil {
		fmt.Fprintf(os.Stderr, "holdfast: guard: %s; killed process group %d; %v\n", why, did.Group, err)
	}
	return code
}

// RunHeir starts an heir, whose log has this format, and waits for its end. A guard calls it.
func RunHeir(did Killing, format string) error {
	text, err := json.Marshal(did)
	if err != nil {
		return err
	}
	out, in, err := os.Pipe() // not as an argument, which others can read
	if err != nil {
		return err
	}
	defer out.Close()
	defer in.Close()
	self := Myself(os.Args[0])
	heir, err := os.StartProcess(self.Path, []string{self.Name, HeirName, format}, &os.ProcAttr{Files: []*os.File{out, os.Stderr, os.Stderr}, Env: os.Environ()})
	if err != nil {
		return err
	}
	_, err = in.Write(text) // the pipe has room for it, as for the order
	in.Close()
	_, failed := heir.Wait() // the heir has logged what went wrong
	return errors.Join(err, failed)
}

// readOrders reads orders until the end of in, and then closes orders.
func readOrders(in io.Reader, orders chan<- order) {
	defer close(orders)
	for d := json.NewDecoder(in); ; {
		var o order
		if d.Decode(&o) != nil {
			return
		}
		orders <- o
	}
}

// awaitKill waits until a group must be killed, and returns its order and the reason. If there is nothing to
// kill, the order has no group.
func awaitKill(orders <-chan order, alarm *boot.Alarm) (last order, why string) {
	for {
		switch {
		case last.KillAt == 0 || boot.Now() < last.KillAt:
		case !isGroupAlive(last.Group): // holdfast has ended it and is about to dismiss the guard
			last.KillAt = 0
		default:
			return last, "the lease is about to end and was not renewed"
		}
		select {
		case o, ok := <-orders:
			switch {
			case !ok:
				return last, "holdfast is gone"
			case o.Done:
				return order{}, ""
			}
			if o.Lease == nil {
				o.Lease = last.Lease
			}
			last = o
			alarm.Set(o.KillAt)
		case <-alarm.C:
		}
	}
}

// killGroup sends KILL until no process is left: a process may start while the signal is sent.
func killGroup(group int) error {
	for end := time.Now().Add(pace.KillTime()); ; time.Sleep(killPause) {
		err := unix.Kill(-group, unix.SIGKILL)
		switch {
		case errors.Is(err, unix.ESRCH) || err == nil && !isGroupAlive(group):
			return nil
		case time.Now().After(end):
			return errors.Join(err, errors.New("it is still there"))
		}
	}
}
