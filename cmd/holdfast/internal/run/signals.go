//go:build unix

package run

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/boot"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/proc"
)

// endSignals end a wait for the lock; once the command runs, they are forwarded to it.
var endSignals = []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT}

// otherSignals are forwarded to the command as well.
var otherSignals = []os.Signal{unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH, unix.SIGTSTP}

// Passed lists the forwarded signals that do not ask the command to end.
var Passed = append([]os.Signal{unix.SIGHUP}, otherSignals[:3]...)

var signalNames = map[unix.Signal]string{
	unix.SIGHUP: "SIGHUP", unix.SIGINT: "SIGINT", unix.SIGQUIT: "SIGQUIT", unix.SIGABRT: "SIGABRT",
	unix.SIGKILL: "SIGKILL", unix.SIGUSR1: "SIGUSR1", unix.SIGUSR2: "SIGUSR2", unix.SIGPIPE: "SIGPIPE",
	unix.SIGALRM: "SIGALRM", unix.SIGTERM: "SIGTERM", unix.SIGCONT: "SIGCONT", unix.SIGSTOP: "SIGSTOP",
	unix.SIGTSTP: "SIGTSTP", unix.SIGWINCH: "SIGWINCH", unix.SIGSEGV: "SIGSEGV", unix.SIGBUS: "SIGBUS",
	unix.SIGILL: "SIGILL", unix.SIGFPE: "SIGFPE", unix.SIGTRAP: "SIGTRAP",
}

// notifyUnignored sends to c the signals that our caller does not ignore: nohup and shells in the background
// rely on ignored signals.
func notifyUnignored(c chan<- os.Signal, signals []os.Signal) {
	for _, s := range signals {
		if !signal.Ignored(s) {
			signal.Notify(c, s)
		}
	}
}

// forwardSignal forwards a signal as --signal-scope requires.
func (s *session) forwardSignal(sig syscall.Signal) {
	if s.plan.OnlyChild && !s.exited {
		s.warnIfNotPermitted(s.job.SignalCommand(sig))
		return
	}
	s.warnIfNotPermitted(s.job.Signal(sig))
}

// warnIfNotPermitted warns of processes of the command that this user may not signal: once, and also with -q,
// because nothing stops them when the lease ends. err is the result of a signal to the command.
func (s *session) warnIfNotPermitted(err error) {
	if errors.Is(err, unix.EPERM) && s.job.Alive() { // otherwise err is about a zombie
		s.warnUnsignalable(s.job.Unsignalable())
	}
}

// warnIfAnyNotPermitted checks each process of the group, because a signal to the group succeeds if this user may
// signal one of them.
func (s *session) warnIfAnyNotPermitted() {
	if s.warnedUnsignalable {
		return
	}
	if out := s.job.Unsignalable(); len(out) > 0 {
		s.warnUnsignalable(out)
	}
}

// permissionCheckEvery is the interval between searches for processes of the command that this user may not
// signal. A search takes a millisecond for a hundred processes on the machine.
const permissionCheckEvery = 10 * time.Second

// warnWhileLeaseIsHeld warns of processes that this user may not signal, while there is time to react. A signal
// to the group shows nothing if the command is a script of this user that runs sudo.
func (s *session) warnWhileLeaseIsHeld(now boot.Instant) {
	s.warnIfNotPermitted(s.job.Signal(0))
	if s.permissionsChecked == 0 || now.Sub(s.permissionsChecked) >= permissionCheckEvery {
		s.permissionsChecked = now
		s.warnIfAnyNotPermitted()
	}
}

// warnUnsignalable warns once that this user may not signal some processes of the command. out is empty if /proc
// does not show them.
func (s *session) warnUnsignalable(out []proc.Process) {
	if s.warnedUnsignalable {
		return
	}
	s.warnedUnsignalable = true
	text := "the command"
	if len(out) > 0 {
		text += fmt.Sprint(", by ", out, ",")
	}
	text += " runs as another user, whose processes this user may not signal: nothing stops it"
	if s.leases != nil {
		text += " when the lease is lost"
	}
	s.log.Error(text + "; start holdfast as that user: sudo holdfast run …, not holdfast run … sudo")
}

func (s *session) handleSignal(sig syscall.Signal) {
	switch sig {
	case unix.SIGTSTP:
		s.suspending = true
	case unix.SIGINT, unix.SIGTERM:
		if s.asked++; s.asked > 1 {
			s.log.Warn("killing the command: " + signalName(sig) + " came again")
			s.killAt = boot.Now()
			return
		}
	}
	s.log.Debug("passing on " + signalName(sig))
	s.forwardSignal(sig)
	switch sig {
	case unix.SIGTERM:
		s.job.Signal(unix.SIGCONT)
	case unix.SIGHUP:
		s.runner.Reloaded()
	}
}

// commandStopped handles a suspended command: this process suspends itself too if a shell can continue it, and
// otherwise keeps renewing the lease.
func (s *session) commandStopped(sig syscall.Signal) {
	if s.job.Lend(sig) || !s.job.Interactive() && !s.suspending {
		return
	}
	whole := !s.suspending // the terminal suspended the command alone, but means the whole pipeline
	s.suspending = false
	s.job.Suspend(s.resumed, whole)
	s.resumeCommand()
}

// resumeCommand continues the command if there is still time for it.
func (s *session) resumeCommand() {
	s.takeDueSteps(boot.Now())
	if s.why == "" && !s.killing {
		s.job.Resume()
	}
}
