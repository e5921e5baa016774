package member

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Why a node does not vote.
var (
	// ErrNoRun is of a node of several, or one that fails over.
	ErrNoRun = errors.New("its INFO has no run_id, by which a restart is noticed")
	// ErrClocks is why tokens cannot begin at the clock.
	ErrClocks = errors.New("its clock and this machine's differ by more than a minute: its tokens must not start there")
	// ErrFloor is returned for a marker that another program has changed.
	ErrFloor = errors.New("its marker was changed by another program: its floor= is no token")
	// ErrType is returned for a node on which something else stands in the place of the marker.
	ErrType = errors.New("its marker was changed by another program: the key is not a string")
	// ErrNoVote is why a client that only looks ignores a node that is not admitted: the node may have forgotten the lock.
	ErrNoVote = errors.New("in quarantine: does not vote yet; holdfast doctor shows for how long")
)

// QuarantineError says why a node that may have forgotten locks does not vote yet.
type QuarantineError struct{ Left time.Duration }

// Quarantine is the time that is left. Metrics tell such a node by this method from one that is down.
func (e *QuarantineError) Quarantine() time.Duration { return e.Left }

func (e *QuarantineError) Error() string {
	return fmt.Sprintf("quarantine: votes in %v (it is new, or has lost its data and may have forgotten locks that still stand); "+
		"wait, as holdfast run -w 2m and the clients of holdfast.Open do (redis.Open: with AllowDown or ?down=allow), or, "+
		"for a set that was never used, give ?quarantine=off at the end of the URL once",
		max(e.Left.Round(time.Second), time.Second))
}

// ConflictError says that the node belongs to another set, or to the same one opened with other rules.
type ConflictError struct {
	Version      bool // its marker is of another version of Holdfast
	Newer        bool // of a newer one than this program's
	Theirs, Ours string
}

func (e *ConflictError) Error() string {
	if e.Version {
		return fmt.Sprintf("its set is that of another version of Holdfast, %q, and this client has %q", e.Theirs, e.Ours)
	}
	return fmt.Sprintf("it belongs to a set opened with %q, and this client has %q", e.Theirs, e.Ours)
}

func (r Rules) conflict(o Observation) error {
	theirs, _, _ := strings.Cut(o.Marker, " run=")
	theirs, _, _ = strings.Cut(theirs, " seen=")
	e := &ConflictError{Version: !strings.Contains(o.Marker+" ", version+" "), Theirs: theirs, Ours: r.agreement()}
	_, number, _ := strings.Cut(theirs, " v=") // version 1 has none
	number, _, _ = strings.Cut(number, " ")
	n, _ := strconv.Atoi(number)
	ours, _ := strconv.Atoi(strings.TrimPrefix(version, " v="))
	e.Newer = n > ours
	return e
}
