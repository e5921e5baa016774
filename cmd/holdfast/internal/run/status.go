package run

import (
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exitcode"
)

// Outcome is the way in which a run ended.
type Outcome string

// The outcomes.
const (
	Running     Outcome = "running"      // holdfast has not ended, or was killed
	Ran         Outcome = "ran"          // the command ended by itself, under its lease
	RanUnlocked Outcome = "ran-unlocked" // it ended by itself and never had a lease: --if-unavailable=run
	RanLost     Outcome = "ran-lost"     // it ended by itself, after its lease was lost: --on-lost=warn
	Busy        Outcome = "busy"         // another process holds the lock
	Lost        Outcome = "lost"         // the lease was lost, the command stopped
	Unavailable Outcome = "unavailable"  // the backend could not be reached
	Signal      Outcome = "signal"       // a signal ended the wait
	Timeout     Outcome = "timeout"      // --max-runtime
	Failed      Outcome = "failed"       // anything else
)

// Begun is written in place of a Status until the run has ended.
type Begun struct {
	Outcome Outcome   `json:"outcome"` // Running
	Name    string    `json:"name"`
	PID     int       `json:"pid"` // process id of holdfast
	BeganAt time.Time `json:"began_at"`

	// The fields below are set once the command has started.
	StartedAt time.Time `json:"started_at,omitzero"`
	Leases
}

// Leases are the leases of a run. A single lease is not listed by name.
type Leases struct {
	Token holdfast.Token `json:"token,omitempty"`
	Owner string         `json:"owner,omitempty"`
	Locks []Lease        `json:"locks,omitempty"` // set for several locks
}

// Lease is one of several leases.
type Lease struct {
	Name  string         `json:"name"`
	Token holdfast.Token `json:"token"`
	Owner string         `json:"owner"`
}

// NewLeases describes leases.
func NewLeases(held Held) (l Leases) {
	all := held.All()
	if len(all) == 1 {
		return Leases{Token: all[0].Token(), Owner: all[0].Owner()}
	}
	for _, lease := range all {
		l.Locks = append(l.Locks, Lease{Name: lease.Key(), Token: lease.Token(), Owner: lease.Owner()})
	}
	return l
}

// Status describes the end of a run. An exit code can come from holdfast or from the command; Status shows
// which.
type Status struct {
	Outcome     Outcome       `json:"outcome"`
	ExitCode    exitcode.Code `json:"exit_code"`
	ChildExit   *int          `json:"child_exit,omitempty"`   // the command's own code
	ChildSignal string        `json:"child_signal,omitempty"` // or the signal that killed it
	Name        string        `json:"name"`
	Leases
	Held      bool             `json:"held"`    // there was a lease, and it was not lost
	Started   bool             `json:"started"` // the command was started
	WaitedMS  int64            `json:"waited_ms"`
	HeldMS    int64            `json:"held_ms"`
	Holder    *holdfast.Holder `json:"holder,omitempty"` // holder of a lock that was busy
	Error     string           `json:"error,omitempty"`
	BeganAt   time.Time        `json:"began_at"`            // start of holdfast
	StartedAt time.Time        `json:"started_at,omitzero"` // start of the command
	EndedAt   time.Time        `json:"ended_at"`
}
