package session

import (
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/quorum"
)

// Standstill bounds the time for which a client may not look at a connection to a node that another server may replace. A machine
// that is suspended stops both, and the node may have a successor when they go on.
const Standstill = 5 * time.Second

// The reasons to leave a connection.
var (
	ErrServed = errors.New("its quarantine is over")
	ErrSlept  = errors.New("this process stood still, and another server may be the master by now")
	ErrSilent = errors.New("no answer for too long")
)

// StoodStill reports whether a client that looked last at looked has stood still for so long that the server may have a successor,
// whose quarantine is over.
func StoodStill(looked, now int64) bool { return now-looked > int64(Standstill) }

// Skips reports whether a request is failed at once, as the node has been silent for so long that it counts as stalled, and the
// caller can spare it: because it does not wait, or because the other nodes suffice. No release is skipped.
func Skips(kind quorum.AskKind, silent int64, spare func() bool) bool {
	return !kind.Frees() && isStalled(silent) && spare()
}

func isStalled(silent int64) bool { return silent > int64(pace.Overdue()) }

// Watch decides when a client leaves a connection.
type Watch struct {
	Votes    int64 // when the node's quarantine ends; 0: it is in none
	Replaced bool  // another server may take the node's place
	Looked   int64 // when the client looked last
	Stalled  bool  // the node was silent for too long at the last look
}

// Sight holds what a client sees when it looks at a connection.
type Sight struct {
	Now     int64
	Silent  int64 // the time without any answer while requests were under way
	Renewal int64 // the shortest TTL of a renewal under way; 0: none is
}

// patience returns how long the node may be silent. A lease that waits for its renewal has time for another attempt over the next
// connection then: this one may be dead, behind a firewall that has forgotten it.
func (s Sight) patience() int64 {
	if s.Renewal == 0 {
		return int64(pace.Silence())
	}
	return int64(min(pace.Silence(), pace.RequestTime(time.Duration(s.Renewal), pace.Alone)))
}

// Look returns why the client leaves the connection; nil: it stays. A node is left for its silence at the second look that finds
// it silent: after the first, a client that has not run for a while reads the answers that are there.
func (w *Watch) Look(s Sight) error {
	switch {
	case w.Votes != 0 && s.Now >= w.Votes:
		return ErrServed
	case w.Replaced && StoodStill(w.Looked, s.Now):
		return ErrSlept
	}
	before := w.Stalled
	w.Looked, w.Stalled = s.Now, isStalled(s.Silent)
	if before && w.Stalled && s.Silent > s.patience() {
		return ErrSilent
	}
	return nil
}

// Redial spaces the attempts to connect to a node: each pause is twice the one before.
type Redial struct {
	Min, Max int64 // the first pause, and the longest
	pause    int64
}

// Next returns the pause before the next attempt, of which half is random.
func (r *Redial) Next(rand uint32) int64 {
	half := r.pause / 2
	r.pause = min(max(2*r.pause, r.Min), r.Max)
	return half + int64(rand)%(half+1)
}

// Ended notes that a connection ended that had lasted for so long. One that breaks as soon as it is made does not count.
func (r *Redial) Ended(lasted int64) {
	if lasted > r.Max {
		r.pause = 0
	}
}
