//go:build unix

package run

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/boot"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/proc"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// session is a running command with its leases.
type session struct {
	plan    *Plan
	runner  *Runner
	log     *slog.Logger
	client  *holdfast.Client
	leases  Held // nil: the command runs without a lock
	signals chan os.Signal
	resumed chan os.Signal // SIGCONT

	job      *proc.Job
	alarm    *boot.Alarm
	renewals chan holdfast.RenewedEvent
	lost     <-chan struct{} // closed when a lease is lost; nil: not watched

	started    boot.Instant
	trusted    boot.Instant // D of the time line; 0 without a lease
	why        Outcome      // why the command is being stopped; "": it is not
	cause      error
	killAt     boot.Instant // time of KILL for a command that is being stopped
	killing    bool
	asked      int             // number of forwarded INT and TERM
	suspending bool            // a SIGTSTP was forwarded
	failing    error           // error of the last failed renewal; nil: each lease's last renewal succeeded
	gone       bool            // a lease is lost
	failed     map[string]bool // by lock: its last renewal failed

	startedAt time.Time

	warnedUnsignalable bool         // reported: this user may not signal a process of the command
	permissionsChecked boot.Instant // time of the last check of each process for that; 0: never

	exited   bool
	status   unix.WaitStatus // status of the command
	endedAt  boot.Instant
	lingered bool // reported: other processes of the group continue
}

// run starts the command, waits for its end, and releases the leases.
func (s *session) run() Result {
	begun := time.Now()
	res := s.runCommand()
	if s.leases != nil {
		s.finish(&res.Status)
		res.Status.HeldMS = time.Since(begun).Milliseconds()
	}
	return res
}

func (s *session) runCommand() Result {
	if err := s.startCommand(); err != nil {
		outcome := Failed
		if errors.Is(err, holdfast.ErrLost) {
			outcome, s.gone = Lost, true
		}
		return Result{Err: err, Status: Status{Outcome: outcome, ExitCode: exitcode.Of(err)}}
	}
	s.handleEvents()
	s.alarm.Close()
	s.reportEscaped()
	lent := s.job.HadTerminal()
	s.job.Close()
	res := s.result()
	if lent && s.status.Signaled() && s.status.Signal() == syscall.SIGINT {
		res.Raise = syscall.SIGINT
	}
	return res
}

func (s *session) startCommand() error {
	if s.leases != nil {
		s.trusted, s.lost = boot.At(s.leases.Deadline()), s.leases.Context().Done()
		if s.mustEndInTime() && (boot.Now() >= s.softEnd() || s.leases.Context().Err() != nil) { // this process may have been suspended while it waited
			return fmt.Errorf("the command was not started: %w", s.lossReason())
		}
	}
	var err error
	if s.alarm, err = boot.NewAlarm(); err != nil {
		return startFailure(err)
	}
	notifyUnignored(s.signals, otherSignals) // not later: SIGTSTP would suspend this process instead of a command that has just begun
	s.resumed = make(chan os.Signal, 4)
	signal.Notify(s.resumed, unix.SIGCONT)
	c := proc.Command{Path: s.plan.Path, Args: s.plan.Args, Env: s.plan.environment(s.leases), Self: s.runner.Self}
	if s.plan.Guard && s.leases != nil {
		c.Guard, c.Lease = true, s.runner.Orphan(s.leases)
	}
	s.job, err = proc.Start(c, s.guardKillTime())
	if err != nil {
		s.alarm.Close()
		return startFailure(err)
	}
	s.started = boot.Now()
	s.startedAt = time.Now().UTC()
	s.runner.Started(s.leases)
	if s.leases != nil {
		s.log.Debug("running", "pid", s.job.PID(), "until", s.leases.Deadline())
	}
	return nil
}

// startFailure adds the exit code for a command that could not be executed. Any other failure to start it is a bug
// of holdfast.
func startFailure(err error) error {
	if _, ok := errors.AsType[*proc.ExecError](err); !ok {
		return exitcode.With(exitcode.Bug, fmt.Errorf("the command was not started: %w", err))
	}
	switch {
	case errors.Is(err, unix.ENOENT):
		return exitcode.With(exitcode.NotFound, fmt.Errorf("%w: the program, or the interpreter its first line names, is not there", err))
	case errors.Is(err, unix.ENOEXEC):
		return exitcode.With(exitcode.NotExecutable, fmt.Errorf("%w: a script needs a first line such as #!/bin/sh", err))
	}
	return exitcode.With(exitcode.NotExecutable, err)
}

func (s *session) handleEvents() {
	for !s.isOver() {
		s.alarm.Set(s.nextCheck())
		select {
		case e, ok := <-s.job.Events:
			s.handleEvent(e, ok)
		case sig := <-s.signals:
			s.handleSignal(sig.(syscall.Signal))
		case <-s.resumed:
			s.resumeCommand()
		case e := <-s.renewals:
			s.noteRenewed(e)
		case <-s.lost:
			s.stopForLoss()
		case <-s.alarm.C:
		}
		s.takeDueSteps(boot.Now())
	}
}

// isOver reports whether all processes that must end have ended.
func (s *session) isOver() bool {
	switch {
	case !s.exited:
		return false
	case s.job.Alive():
		return false
	case s.why == Lost: // also processes that have left the group
		return !s.job.Kill() || boot.Now() > s.endedAt.Add(pace.StrayTime())
	}
	return true
}

func (s *session) handleEvent(e proc.Event, open bool) {
	switch {
	case !open: // no process is left
		s.job.Events = nil
	case e.Kind == proc.Exited:
		s.exited, s.status, s.endedAt = true, e.Status, boot.Now()
	case e.Kind == proc.Stopped:
		s.commandStopped(e.Status.StopSignal())
	case e.Kind == proc.GuardGone:
		s.job.Unguarded()
		s.guardEnded(e.Status.ExitStatus() == proc.GuardKilled)
	}
}

// reportMembers logs, once, the processes of the group that continue after the command. Killed processes, and
// processes that the command told to end, get a moment to end.
func (s *session) reportMembers(now boot.Instant) {
	patience := pace.LingerTime()
	if s.killing {
		patience = pace.StrayTime()
	}
	if !s.exited || s.lingered || now < s.endedAt.Add(patience) || !s.job.Alive() {
		return
	}
	s.lingered = true
	text := "the command has ended, but others of its process group go on; "
	if s.leases != nil && !s.gone {
		text += "the lock is kept until they end"
	} else {
		text += "holdfast waits until they end"
	}
	if members := s.job.Members(); len(members) > 0 {
		text += fmt.Sprint(": ", members)
	}
	s.log.Warn(text)
}

// reportEscaped warns of processes that continue without the lock, also with -q.
func (s *session) reportEscaped() {
	if escaped := s.job.Escaped(); len(escaped) > 0 && s.leases != nil {
		s.log.Error(fmt.Sprint("the lock is released while processes go on that left the command's group: ", escaped))
	}
}
