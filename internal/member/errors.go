package member

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The reasons why a node does not vote.
var (
	// ErrNoRun is returned for a node without a run_id that is one of several, or that fails over.
	ErrNoRun = errors.New("its INFO has no run_id, so a restart would go unnoticed")
	// ErrClocks is returned when the node's tokens cannot start at the clock.
	ErrClocks = errors.New("its clock and this machine's differ by more than a minute: its tokens must not start there")
	// ErrFloor is returned for a marker whose floor another program has changed.
	ErrFloor = errors.New("its marker was changed by another program: its floor= is no token")
	// ErrType is returned for a node whose marker key is not a string.
	ErrType = errors.New("its marker was changed by another program: the key is not a string")
	// ErrNoVote is returned to a read-only client that ignores a node without admission: the node may have forgotten the
	// lock.
	ErrNoVote = errors.New("in quarantine: does not vote yet; holdfast doctor shows for how long")
)

// QuarantineError is returned for a node that may have forgotten locks and does not vote yet.
type QuarantineError struct{ Left time.Duration }

// Quarantine returns the remaining time. Metrics use the method to distinguish such a node from one that is
// down.
func (e *QuarantineError) Quarantine() time.Duration { return e.Left }

func (e *QuarantineError) Error() string {
	return fmt.Sprintf("quarantine: votes in %v (it is new, or has lost its data and may have forgotten locks that still stand); "+
		"wait, as holdfast run -w 2m and the clients of holdfast.Open do (redis.Open: with AllowDown or ?down=allow), or, "+
		"for a set that was never used, give ?quarantine=off at the end of the URL once",
		max(e.Left.Round(time.Second), time.Second))
}

// ConflictError is returned for a node that belongs to another set, or to the same set opened with other
// rules.
type ConflictError struct {
	Version      bool // another version of Holdfast wrote its marker
	Newer        bool // a newer version than this program's
	Theirs, Ours string
}

func (e *ConflictError) Error() string {
	if e.Version {
		return fmt.Sprintf("its marker is from another version of Holdfast, %q, and this client has %q", e.Theirs, e.Ours)
	}
	return fmt.Sprintf("it belongs to a set opened with %q, and this client has %q", e.Theirs, e.Ours)
}

func (r Rules) conflictError(o Observation) error {
	theirs, _, _ := strings.Cut(o.Marker, " run=")
	theirs, _, _ = strings.Cut(theirs, " seen=")
	e := &ConflictError{Version: !strings.Contains(o.Marker+" ", version+" "), Theirs: theirs, Ours: r.markerPrefix()}
	_, number, _ := strings.Cut(theirs, " v=") // version 1 has none
	number, _, _ = strings.Cut(number, " ")
	n, _ := strconv.Atoi(number)
	ours, _ := strconv.Atoi(strings.TrimPrefix(version, " v="))
	e.Newer = n > ours
	return e
}
