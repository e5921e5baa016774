//go:build unix

package run

import (
	"fmt"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/boot"
)

// lastMoment is when every process of the command must be dead, or 0.
func (s *session) lastMoment() boot.Instant {
	if s.leases == nil || s.plan.OnLost.Warn {
		return 0
	}
	return s.trusted.Add(-s.plan.Margin)
}

// guardKill is when the guard kills the group: a part of the margin later than this
// process does, which a guard only stands in for. 0: never.
func (s *session) guardKill() boot.Instant {
	if s.lastMoment() == 0 {
		return 0
	}
	return s.lastMoment().Add(s.plan.Margin / 4)
}

// softEnd is when the command is told to end if the lease was not renewed: the client
// says so as well, but the alarm also rings where the machine has slept.
func (s *session) softEnd() boot.Instant {
	return s.trusted.Add(-s.plan.Margin - s.plan.killAfter())
}

// bound says that the command has to end before its lease does. Where it need not,
// the lease is lost when the client says so, who may yet renew it in the last moment.
func (s *session) bound() bool { return s.leases != nil && !s.plan.OnLost.Warn }

// next is when to look again if nothing happens; 0: never.
func (s *session) next() boot.Instant {
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
		if s.bound() {
			earliest(s.softEnd())
		}
		if s.plan.MaxRuntime > 0 {
			earliest(s.started.Add(s.plan.MaxRuntime))
		}
	}
	return at
}

// running says whether a process of the command's group is left: it may outlive the command itself.
func (s *session) running() bool { return !s.exited || s.job.Alive() }

// advance does what is due.
func (s *session) advance(now boot.Instant) {
	if s.why == "" && s.bound() && now >= s.softEnd() {
		s.lose()
	}
	if s.why == "" && s.plan.MaxRuntime > 0 && now >= s.started.Add(s.plan.MaxRuntime) && s.running() {
		s.log.Warn(fmt.Sprintf("stopping the command: --max-runtime %v is over", s.plan.MaxRuntime))
		s.stop(Timeout, fmt.Errorf("the command was stopped after --max-runtime %v", s.plan.MaxRuntime), Term)
	}
	s.reportMembers(now)
	last := s.lastMoment()
	due := s.killAt
	if due == 0 || last != 0 && last < due {
		due = last
	}
	if due != 0 && now >= due && s.running() {
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
