//go:build unix

package run

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/boot"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
)

// lose stops the command because of its lease, as --on-lost says.
func (s *session) lose(cause error) {
	if s.gone {
		return
	}
	s.gone = true
	policy := s.plan.OnLost
	switch {
	case policy.Warn:
		s.goesOn = cause
		s.log.Error("the lease is lost, and the command goes on, as --on-lost=warn says: " + cause.Error())
	case s.why != "": // being stopped already; the last moment bounds it
		s.why, s.cause = Lost, cause
	default:
		s.log.Error("stopping the command: " + cause.Error())
		s.stop(Lost, fmt.Errorf("the lease was lost and the command stopped: %w", cause), policy)
	}
}

func (s *session) stop(why Outcome, cause error, how Policy) {
	s.why, s.cause = why, cause
	s.killAt = boot.Now()
	if how.Kill {
		return
	}
	s.killAt = s.killAt.Add(s.plan.KillAfter)
	s.pass(how.Signal)
	s.job.Signal(unix.SIGCONT) // one that is stopped would not see it
}

func (s *session) renewed(r renewal) {
	switch {
	case errors.Is(r.err, holdfast.ErrLost):
		s.keeper.renewals = nil
		s.lose(r.err)
		return
	case r.err != nil:
		s.trusted = min(s.trusted, r.trusted)
		end, what := s.softEnd(), "the command is stopped"
		if !s.bound() {
			end, what = s.trusted, "the lease ends"
		}
		if left := end.Sub(boot.Now()); s.why == "" && left > 0 {
			level := slog.LevelWarn
			if s.failing { // several follow within a second
				level = slog.LevelDebug
			}
			s.log.Log(context.Background(), level, fmt.Sprintf("renewal failed; trying again, %s in %v: %v", what, left.Round(time.Millisecond), r.err))
		}
		s.failing = true
	case s.why == Lost: // nothing brings the command back
		return
	default:
		s.log.Debug("renewed", "until", s.lease.Deadline())
		s.trusted, s.failing = r.trusted, false
	}
	if last := s.lastMoment(); last != 0 {
		if err := s.job.Protect(last); err != nil {
			s.log.Debug("the guard does not listen: " + err.Error())
		}
	}
}

// unguarded notes that the guard has ended, and whether it has killed the command.
func (s *session) unguarded(killed bool) {
	switch {
	case killed:
		s.killing, s.gone, s.why = true, true, Lost
		s.cause = errors.New("the guard has killed the command: the lease was about to end, and holdfast had not renewed it in time")
	case !s.exited:
		s.log.Error("the guard has ended; the command goes on without it")
	}
}

func (s *session) result() Result {
	res := Result{Err: s.cause}
	st := &res.Status
	st.Outcome, st.Started = s.why, true
	switch {
	case s.why == Lost:
		st.ExitCode = s.plan.Lost
	case s.why == Timeout:
		st.ExitCode = exitcode.Timeout
	case s.goesOn != nil:
		st.Outcome, st.Error = RanLost, s.goesOn.Error()
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
