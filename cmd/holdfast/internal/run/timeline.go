//go:build unix

package run

import (
	"fmt"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/boot"
)

// lastMoment returns the time by which every process of the command must be dead; 0: none.
func (s *session) lastMoment() boot.Instant {
	if s.leases == nil || s.plan.OnLost.Warn {
		return 0
	}
	return s.trusted.Add(-s.plan.Margin)
}

// guardKillTime returns the time when the guard kills the group: later than this process by a part of the margin,
// because the guard only stands in for it. 0: never.
func (s *session) guardKillTime() boot.Instant {
	if s.lastMoment() == 0 {
		return 0
	}
	return s.lastMoment().Add(s.plan.Margin / 4)
}

// softEnd returns the time when the command gets its first signal if the lease is not renewed. The client
// reports that too, but this alarm also rings after the machine has slept.
func (s *session) softEnd() boot.Instant {
	return s.trusted.Add(-s.plan.Margin - s.plan.killAfter())
}

// mustEndInTime reports whether the command must end before its lease does. Otherwise the lease counts as lost
// once the client reports it, and the client may still renew it in the last moment.
func (s *session) mustEndInTime() bool { return s.leases != nil && !s.plan.OnLost.Warn }

// nextCheck returns the time of the next check if nothing happens; 0: never.
func (s *session) nextCheck() boot.Instant {
	now := boot.Now()
	var at boot.Instant
	earliest := func(i boot.Instant) {
		if i != 0 && (at == 0 || i < at) {
			at = i
		}
	}
	switch {
	case s.exited: // no signal reports the end of a group's last process
		earliest(now.Add(min(max(now.Sub(s.endedAt)/8, 5*time.Millisecond), 200*time.Millisecond)))
	case s.killing && s.warnedUnsignalable: // poll rarely: it may take hours to end by itself
		earliest(now.Add(200 * time.Millisecond))
	case s.killing:
		earliest(now.Add(10 * time.Millisecond))
	}
	if !s.killing {
		earliest(s.killAt)
		earliest(s.lastMoment())
	}
	if s.why == "" {
		if s.mustEndInTime() {
			earliest(s.softEnd())
		}
		if s.plan.MaxRuntime > 0 {
			earliest(s.started.Add(s.plan.MaxRuntime))
		}
	}
	return at
}

// isRunning reports whether a process of the command's group is alive: it may outlive the command itself.
func (s *session) isRunning() bool { return !s.exited || s.job.Alive() }

// takeDueSteps takes the steps of the time line that are due.
func (s *session) takeDueSteps(now boot.Instant) {
	if s.why == "" && s.mustEndInTime() && now >= s.softEnd() {
		s.stopForLoss()
	}
	if s.why == "" && s.plan.MaxRuntime > 0 && now >= s.started.Add(s.plan.MaxRuntime) && s.isRunning() {
		s.log.Warn(fmt.Sprintf("stopping the command: --max-runtime %v is over", s.plan.MaxRuntime))
		s.stopCommand(Timeout, fmt.Errorf("the command was stopped after --max-runtime %v", s.plan.MaxRuntime), Term)
	}
	s.reportMembers(now)
	last := s.lastMoment()
	due := s.killAt
	if due == 0 || last != 0 && last < due {
		due = last
	}
	if due != 0 && now >= due && s.isRunning() {
		s.job.Signal(syscall.SIGKILL) // before anything that takes time
		if !s.killing {
			s.log.Debug("killing the group", "late", now.Sub(due))
			s.warnIfAnyNotPermitted()
		}
		s.killing = true
	}
	if s.killing {
		s.job.Signal(syscall.SIGKILL)
		if s.why == Lost {
			s.job.Kill()
		}
	}
}
