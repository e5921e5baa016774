//go:build unix

package run

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/boot"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
)

// lossReason returns the reason why the lease is lost: the client's reason or, if the client has not noticed
// yet, an expiry by the clock that continues while the machine sleeps.
func (s *session) lossReason() error {
	cause := context.Cause(s.leases.Context())
	if cause != nil {
		return cause
	}
	text := "it was not renewed in time" // the same text as the client's
	if left := s.plan.Options().Margin; left > 0 {
		text += fmt.Sprintf(" (the holder stops %v before the end)", left)
	}
	if s.failing != nil {
		return fmt.Errorf("%w: %s; the last renewal failed: %w", holdfast.ErrLost, text, s.failing)
	}
	return fmt.Errorf("%w: %s; no renewal failed, so an answer is late, or this machine was suspended", holdfast.ErrLost, text)
}

// stopForLoss stops the command because of its lease, as --on-lost requires.
func (s *session) stopForLoss() {
	s.lost = nil
	if s.gone {
		return
	}
	s.gone = true
	cause := s.lossReason()
	policy := s.plan.OnLost
	switch {
	case policy.Warn:
		s.log.Error("the lease is lost, and the command goes on, because of --on-lost=warn: " + cause.Error())
	case s.why != "": // it is being stopped already; lastMoment bounds that
		s.why, s.cause = Lost, cause
	default:
		s.log.Error("stopping the command: " + cause.Error())
		s.stopCommand(Lost, fmt.Errorf("the lease was lost and the command stopped: %w", cause), policy)
	}
}

func (s *session) stopCommand(why Outcome, cause error, how Policy) {
	s.why, s.cause = why, cause
	s.killAt = boot.Now()
	if how.Kill {
		return
	}
	s.killAt = s.killAt.Add(s.plan.KillAfter)
	s.forwardSignal(how.Signal)
	s.job.Signal(unix.SIGCONT) // a suspended command would not handle the signal
	s.warnIfAnyNotPermitted()
}

// noteRenewed records a renewal by the client and moves the deadlines of the session.
func (s *session) noteRenewed(e holdfast.RenewedEvent) {
	if s.gone { // a lost lease stays lost
		return
	}
	until := boot.At(s.leases.Deadline())
	switch failed := s.failing; {
	case e.Err != nil:
		s.trusted, s.failing = min(s.trusted, until), e.Err
		if s.failed == nil {
			s.failed = make(map[string]bool)
		}
		s.failed[e.Key] = true
		s.reportFailure(failed == nil)
	default:
		s.trusted = until
		if s.job != nil {
			s.warnWhileLeaseIsHeld(boot.Now())
		}
		s.log.Debug("renewed", "until", s.leases.Deadline())
		if delete(s.failed, e.Key); len(s.failed) > 0 {
			break
		}
		if s.failing = nil; failed != nil {
			s.log.Info("the lease is renewed again")
		}
	}
	if last := s.lastMoment(); last != 0 {
		if err := s.job.Protect(s.guardKillTime()); err != nil {
			s.log.Debug("the guard does not listen: " + err.Error())
		}
	}
}

// reportFailure logs a failed renewal, once until one succeeds: several may fail within a second.
func (s *session) reportFailure(first bool) {
	end, what := s.softEnd(), "the command is stopped"
	if !s.mustEndInTime() {
		end, what = s.trusted, "the lease ends"
	}
	level := slog.LevelDebug
	if first {
		level = slog.LevelWarn
	}
	left := max(end.Sub(boot.Now()), 0).Round(time.Millisecond)
	s.log.Log(context.Background(), level, fmt.Sprintf("renewal failed; trying again, %s in %v: %v", what, left, s.failing))
}

// guardEnded records that the guard has ended, and whether it has killed the command.
func (s *session) guardEnded(killed bool) {
	switch {
	case killed:
		if s.killing = true; s.why == Lost {
			return // the command was being stopped anyway
		}
		s.gone, s.why = true, Lost
		s.cause = fmt.Errorf("the lease was lost and the guard has killed the command: %w", s.lossReason())
	case !s.exited:
		s.log.Error("the guard has ended; the command goes on without it")
	}
}

func (s *session) result() Result {
	res := Result{Err: s.cause, Asked: s.asked > 0}
	st := &res.Status
	st.Outcome, st.Started, st.StartedAt = s.why, true, s.startedAt
	switch {
	case !s.warnedUnsignalable:
	case s.why == Lost:
		res.Err = fmt.Errorf("the lease was lost, and what this user may not signal of the command went on to its own end: %w", s.lossReason())
	case s.why == Timeout:
		res.Err = fmt.Errorf("--max-runtime %v was over, and what this user may not signal of the command went on to its own end", s.plan.MaxRuntime)
	}
	switch {
	case s.why == Lost:
		st.ExitCode = s.plan.Lost
	case s.why == Timeout:
		st.ExitCode = exitcode.Timeout
	default:
		st.Outcome = Ran
	}
	if s.status.Signaled() {
		st.ChildSignal = signalName(s.status.Signal())
		if s.why == "" {
			st.ExitCode = exitcode.Signal(s.status.Signal())
		}
		return res
	}
	code := s.status.ExitStatus()
	st.ChildExit = &code
	if s.why == "" {
		st.ExitCode = exitcode.Code(code)
	}
	return res
}
