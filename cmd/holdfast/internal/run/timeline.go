//go:build unix

package run

import (
	"fmt"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/boot"
)

// lastMoment returns when every process of the command must be dead, or 0.
func (s *session) lastMoment() boot.Instant {
	if s.leases == nil || s.plan.OnLost.Warn {
		return 0
	}
	return s.trusted.Add(-s.plan.Margin)
}

// guardKill returns when the guard kills the group: later than this process does by a part of the
// margin, since the guard only stands in for it. 0: never.
func (s *session) guardKill() boot.Instant {
	if s.lastMoment() == 0 {
		return 0
	}
	return s.lastMoment().Add(s.plan.Margin / 4)
}

// softEnd returns when the command is told to end if the lease was not renewed. The client reports
// that too, but the alarm also rings if the machine has slept.
func (s *session) softEnd() boot.Instant {
	return s.trusted.Add(-s.plan.Margin - s.plan.killAfter())
}

// mustEndInTime reports whether the command has to end before its lease does. Otherwise the lease is
// lost when the client reports it, and the client may still renew it in the last moment.
func (s *session) mustEndInTime() bool { return s.leases != nil && !s.plan.OnLost.Warn }

// nextLook returns when to look again if nothing happens; 0: never.
func (s *session) nextLook() boot.Instant {
	now := boot.Now()
	var at boot.Instant
	earliest := func(i boot.Instant) {
		if i != 0 && (at == 0 || i < at) {
			at = i
		}
	}
	switch {
	case s.exited: // no signal tells that the last of a group has ended
		earliest(now.Add(min(max(now.Sub(s.endedAt)/8, 5*time.Millisecond), 200*time.Millisecond)))
	case s.killing && s.outOfReach: // until it ends by itself, which may take hours
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

// isRunning reports whether a process of the command's group is left: it may outlive the command
// itself.
func (s *session) isRunning() bool { return !s.exited || s.job.Alive() }

// doDue does what is due.
func (s *session) doDue(now boot.Instant) {
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
			s.checkEachReach()
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
