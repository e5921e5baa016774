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

// terminal is the controlling terminal. Only its foreground group may read from it and gets Ctrl-C, so the
// command's group must be in the foreground while it runs. nil: there is none.
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

// startsInForeground reports whether the command gets the terminal at its start: if holdfast is in the
// foreground and stdin is the terminal. If holdfast writes to a pipe, a pager behind it may read from the
// terminal, and the command gets the terminal on request.
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

// lendTo gives the terminal to the group if the command starts in the foreground.
func (t *terminal) lendTo(group int) {
	if t.startsInForeground() {
		t.setForeground(group)
	}
}

func (t *terminal) setForeground(group int) {
	t.lent = true
	unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, group) // fails if the group or the terminal is gone
}

// takeBack puts our own group in the foreground again, even if another group has taken its place.
func (t *terminal) takeBack() {
	if t != nil && t.lent {
		t.lent = false
		unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, t.home)
	}
}

// Interactive reports whether this process has a terminal, and so a shell that can continue a suspended
// process.
func (j *Job) Interactive() bool { return j.terminal != nil }

// HadTerminal reports whether Ctrl-C reached the command's group.
func (j *Job) HadTerminal() bool { return j.terminal != nil && j.terminal.lent }

// Lend gives the terminal to a group that was stopped because it wants to use it, and continues the group. It
// returns false if this process may not give the terminal.
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

// Suspend suspends this process after the command was suspended, as the waiting shell expects, and returns once
// it is continued. SIGCONT is notified on resumed. With whole, it also suspends the other processes of our
// group, a pipeline. The command is not continued yet: see Resume.
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
	// Not SIGTSTP: once notified, Go does not restore its default action. Not SIGSTOP: unlike it, the kernel
	// discards SIGTTIN if nothing could continue us.
	unix.Kill(who, unix.SIGTTIN)
	// The thread stops a moment later, so only SIGCONT, or the passing of time, shows that the stop is over.
	select {
	case <-resumed:
	case <-time.After(pace.StopTime()):
	}
}

// Resume continues the command, with the terminal if we have it.
func (j *Job) Resume() {
	if t := j.terminal; t != nil && t.foregroundGroup() == t.home {
		t.setForeground(j.pid)
	}
	j.Signal(syscall.SIGCONT)
}

// isGone reports whether err is kill's answer for a group without members.
func isGone(err error) bool { return errors.Is(err, unix.ESRCH) }
