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

// Heir is the name under which this program runs for a guard that has killed a group, to
// tell of it and to release the lease: the guard has neither a log nor a client of a backend.
const Heir = "heir-of-run"

// Killing has the work of a guard that is done, and the rest.
type Killing struct {
	Group int             `json:"group"`
	Why   string          `json:"why"`
	Error string          `json:"error,omitempty"` // of the killing: the group may live
	Lease json.RawMessage `json:"lease,omitempty"` // to release; nil: there is none, or the group may live
}

// Guard is the name under which this program runs as a guard: a process that kills
// the group at the time that it got last, or when the pipe to it is closed without
// a dismissal. So the group ends in time even if the process that runs it is
// killed, is stopped or hangs.
const Guard = "guard-of-run"

const (
	killPause = 5 * time.Millisecond
)

// GuardKilled is the exit status of a guard that has killed the group.
const GuardKilled = 3

// order is one message to the guard.
type order struct {
	Group  int             `json:"group"`
	KillAt boot.Instant    `json:"kill_at"`
	Lease  json.RawMessage `json:"lease,omitempty"` // to release when the group has been killed; nil: as before
	Done   bool            `json:"done,omitempty"`
}

// guardLink is the parent's side.
type guardLink struct {
	pid    int
	orders *os.File
	answer *os.File
}

// startGuard starts the guard in a session of its own: neither the terminal nor
// a signal to our group may reach it.
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
	p, err := os.StartProcess(self.Path, []string{self.Name, Guard, self.Log}, &os.ProcAttr{
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

// raisePriority gives the processes that this thread starts precedence on an
// overloaded machine, where a guard is needed most; only root and CAP_SYS_NICE
// may. The caller is locked to its thread.
func raisePriority() (back func()) {
	was, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil || unix.Setpriority(unix.PRIO_PROCESS, 0, -10) != nil {
		return func() {}
	}
	return func() { unix.Setpriority(unix.PRIO_PROCESS, 0, toNiceness(was)) }
}

// waitReady blocks until the guard stands.
func (g *guardLink) waitReady() error {
	if err := g.answer.SetReadDeadline(time.Now().Add(pace.GuardTime())); err != nil {
		return err
	}
	_, err := io.ReadFull(g.answer, make([]byte, 1))
	return err
}

// sendOrder does not wait for a guard that does not read: its pipe has room for hundreds of
// orders. A deadline would do the same, but on a busy machine it can pass before the write.
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

// RunGuard is the guard's side: orders come from in, and a byte on ready says
// that it stands. It returns when it was dismissed or the group is gone. When it has
// killed the group, nothing runs under the lease any more, and it calls bequeath.
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

// Bequeath starts an heir, whose log has this format, and waits for its end. It is what a
// guard calls.
func Bequeath(did Killing, format string) error {
	text, err := json.Marshal(did)
	if err != nil {
		return err
	}
	out, in, err := os.Pipe() // not through the arguments, which others can read
	if err != nil {
		return err
	}
	defer out.Close()
	defer in.Close()
	self := Myself(os.Args[0])
	heir, err := os.StartProcess(self.Path, []string{self.Name, Heir, format}, &os.ProcAttr{Files: []*os.File{out, os.Stderr, os.Stderr}, Env: os.Environ()})
	if err != nil {
		return err
	}
	_, err = in.Write(text) // a pipe has room for it, as it had for the order
	in.Close()
	_, failed := heir.Wait() // it has told what went wrong
	return errors.Join(err, failed)
}

// readOrders closes orders at the end of in.
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

// awaitKill returns the order whose group is to be killed, and why; or none with a group.
func awaitKill(orders <-chan order, alarm *boot.Alarm) (last order, why string) {
	for {
		switch {
		case last.KillAt == 0 || boot.Now() < last.KillAt:
		case !isGroupAlive(last.Group): // holdfast has seen to it, and is about to say so
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

// killGroup kills until no process is left: a process may start while the signal is
// being sent.
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
