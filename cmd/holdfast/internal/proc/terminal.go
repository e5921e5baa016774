//go:build unix

package proc

import (
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/internal/pace"
)

// terminal is the controlling terminal. Only its foreground group may read from
// it and gets Ctrl-C, so that group must be the command's while it runs. nil:
// there is none.
type terminal struct {
	fd   int
	home int // our own group
	lent bool
}

func openTerminal() *terminal {
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	return &terminal{fd: fd, home: unix.Getpgrp()}
}

func (t *terminal) foregroundGroup() int {
	group, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return group
}

// startsInForeground reports whether the command gets the terminal at its start: if holdfast has it,
// and stdin is it. With a pager or a filter behind holdfast on a pipe, that program may read from the
// terminal; the command gets it on request.
func (t *terminal) startsInForeground() bool {
	if t == nil || t.foregroundGroup() != t.home {
		return false
	}
	if _, err := unix.IoctlGetInt(0, unix.TIOCGPGRP); err != nil {
		return false
	}
	out, err := os.Stdout.Stat()
	return err != nil || out.Mode()&os.ModeNamedPipe == 0
}

// lendTo gives the terminal to the group if it is wanted there.
func (t *terminal) lendTo(group int) {
	if t.startsInForeground() {
		t.setForeground(group)
	}
}

func (t *terminal) setForeground(group int) {
	t.lent = true
	unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, group) // fails when the group is gone, or the terminal
}

// takeBack makes our own group the foreground again, even if another group has
// become it.
func (t *terminal) takeBack() {
	if t != nil && t.lent {
		t.lent = false
		unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, t.home)
	}
}

// Interactive reports whether this process has a terminal, and so a shell that can continue a stopped
// process.
func (j *Job) Interactive() bool { return j.terminal != nil }

// HadTerminal reports whether Ctrl-C reached the command's group.
func (j *Job) HadTerminal() bool { return j.terminal != nil && j.terminal.lent }

// Lend gives the terminal to a group that was stopped because it wants to use
// it, and lets it go on. It reports false when the terminal is not ours to give.
func (j *Job) Lend(s syscall.Signal) bool {
	t := j.terminal
	if t == nil || s != syscall.SIGTTIN && s != syscall.SIGTTOU {
		return false
	}
	if now := t.foregroundGroup(); now != t.home && now != j.pid {
		return false
	}
	t.setForeground(j.pid)
	j.Signal(syscall.SIGCONT)
	return true
}

// Suspend stops this process after the command was stopped, as the shell that
// waits for us expects, and returns when it was continued. resumed is where
// SIGCONT is notified; whole says that the others of our own group, a pipeline,
// stop with us. The command is not continued yet: see Resume.
func (j *Job) Suspend(resumed <-chan os.Signal, whole bool) {
	j.Signal(syscall.SIGSTOP) // also processes that ignored SIGTSTP
	j.terminal.takeBack()
	for len(resumed) > 0 {
		<-resumed
	}
	who := os.Getpid()
	if whole {
		who = 0
	}
	// Not SIGTSTP: once notified, Go does not give back its default action. Nor
	// SIGSTOP: this one the kernel discards where nobody could continue us.
	unix.Kill(who, unix.SIGTTIN)
	// The stop reaches this thread a moment later, so what says that it is over
	// is SIGCONT, or time.
	select {
	case <-resumed:
	case <-time.After(pace.StopTime()):
	}
}

// Resume lets the command go on, with the terminal if we have it.
func (j *Job) Resume() {
	if t := j.terminal; t != nil && t.foregroundGroup() == t.home {
		t.setForeground(j.pid)
	}
	j.Signal(syscall.SIGCONT)
}

// isGone recognises what kill says of a group without members.
func isGone(err error) bool { return errors.Is(err, unix.ESRCH) }
