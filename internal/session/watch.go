package session

import (
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/quorum"
)

// Standstill bounds the time between two checks by a client of its connection to a node that another server may
// replace. A suspended machine stops client and server, and the node may have a successor when they continue.
const Standstill = 5 * time.Second

// The reasons to leave a connection.
var (
	ErrServed = errors.New("its quarantine is over")
	ErrSlept  = errors.New("this process stood still, and another server may be the master by now")
	ErrSilent = errors.New("no answer for too long")
)

// StoodStill reports whether so much time passed since looked, the client's last check, that another server may
// have taken over and finished its quarantine.
func StoodStill(looked, now int64) bool { return now-looked > int64(Standstill) }

// ShouldSkip reports whether a request fails at once, because the node has been silent for so long that it counts
// as stalled, and the caller can do without it: it does not wait, or the other nodes suffice. Releases are
// never skipped.
func ShouldSkip(kind quorum.AskKind, silent int64, spare func() bool) bool {
	return !kind.Frees() && isStalled(silent) && spare()
}

func isStalled(silent int64) bool { return silent > int64(pace.OverdueTime()) }

// Watch decides when a client leaves a connection.
type Watch struct {
	Votes    int64 // end of the node's quarantine; 0: it is in none
	Replaced bool  // another server may replace the node
	Looked   int64 // time of the client's last look
	Stalled  bool  // at the last look the node was silent for too long
	// Doubted reports that a renewal over this connection is late, so that another connection should be opened
	// and replace it. The node may be busy, and reject new connections meanwhile, so the client stays until the
	// next one is open. It never reports that for a node that another server may replace.
	Doubted bool
}

// Snapshot holds the state of a connection when a client looks at it.
type Snapshot struct {
	Now     int64
	Silent  int64 // time without any answer while requests are in progress
	Renewal int64 // shortest TTL of a renewal in progress; 0: none
}

// maxSilence returns how long the node may be silent before the client turns to another connection. It leaves
// a waiting renewal time for another attempt: this connection may be dead, behind a firewall that has forgotten
// it.
func (s Snapshot) maxSilence() int64 {
	if s.Renewal == 0 {
		return int64(pace.SilenceTime())
	}
	return int64(min(pace.SilenceTime(), pace.RequestTime(time.Duration(s.Renewal), pace.Alone)))
}

// Check returns the reason why the client leaves the connection; nil: it stays. It leaves or doubts a silent
// node at the second look that finds the node silent: after the first, a client that was stopped reads the
// answers that have arrived.
func (w *Watch) Check(s Snapshot) error {
	switch {
	case w.Votes != 0 && s.Now >= w.Votes:
		return ErrServed
	case w.Replaced && StoodStill(w.Looked, s.Now):
		return ErrSlept
	}
	before := w.Stalled
	w.Looked, w.Stalled = s.Now, isStalled(s.Silent)
	late := before && w.Stalled && s.Silent > s.maxSilence()
	w.Doubted = late && !w.Replaced
	if late && (w.Replaced || s.Silent > int64(pace.SilenceTime())) {
		return ErrSilent
	}
	return nil
}

// Redial spaces the attempts to connect to a node: each pause is twice the one before.
type Redial struct {
	Min, Max int64 // shortest and longest pause
	pause    int64
}

// Next returns the pause before the next attempt. Half of it is random.
func (r *Redial) Next(rand uint32) int64 {
	half := r.pause / 2
	r.pause = min(max(2*r.pause, r.Min), r.Max)
	return half + int64(rand)%(half+1)
}

// Ended records how long a connection lasted. A connection that breaks at once does not reset the pauses.
func (r *Redial) Ended(lasted int64) {
	if lasted > r.Max {
		r.pause = 0
	}
}
