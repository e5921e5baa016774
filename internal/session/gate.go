package session

import (
	"cmp"
	"errors"

	"github.com/holdfast-go/holdfast/internal/quorum"
)

// The reasons not to send a request, or not to use a grant.
var (
	// ErrOlder is returned for a commit of a token that was chosen before the node came back, perhaps with older data: another
	// client may have it since (trace C11).
	ErrOlder = errors.New("it has come back since it granted the lock")
	// ErrLow is returned for a grant whose token may have been given before.
	ErrLow = errors.New("its token may have been given before it came back, or before the slot was found there")
	// ErrStays is returned for a request that a node in quarantine does not get.
	ErrStays = errors.New("in quarantine: it only keeps the locks that it has")
)

// Gate holds what a client knows of a connection when it sends a request over it, or reads an answer.
type Gate struct {
	Floor   int64 // the first token that a grant may have
	Unknown error // why the floor is not known; nil if it is
	Above   bool  // a token of the same counter has shown over this connection that the counter is above the floor
	Stays   bool  // the node is in quarantine: it keeps what it has, and grants nothing
	Slept   bool  // this client stood still: see StoodStill
}

// Prepare completes ask for this connection, or returns why it is not sent: its answer could not be used. A node that was asked
// for a lock nevertheless would grant it, and keep it from all others for a TTL with each try.
func (g Gate) Prepare(ask *quorum.Ask) error {
	switch {
	case g.Stays && ask.Kind.Frees():
		ask.HandOver = 0 // a hand-over is a grant
	case g.Stays && ask.Kind == quorum.AskRenew:
		ask.Restore = ask.Restore || ask.Token != 0 // nothing was granted since, so a lock that is free is still its holder's
	case g.Stays:
		return ErrStays
	}
	if g.Slept && !ask.Kind.Frees() {
		return ErrSlept
	}
	switch ask.Kind {
	case quorum.AskAcquire, quorum.AskAdopt:
		ask.Least = g.least()
		return g.Unknown
	case quorum.AskCommit:
		if g.Unknown != nil || ask.Token < g.Floor {
			return cmp.Or(g.Unknown, ErrOlder)
		}
	case quorum.AskRelease, quorum.AskGiveBack:
		ask.Least = g.least()
	}
	return nil
}

// least returns the least token that a request names: none if the counter is known to be above the floor.
func (g Gate) least() int64 {
	if g.Above {
		return 0
	}
	return g.Floor
}

// CheckGrant returns why the token of a grant must not be used; nil if it may be. Without an error its counter is above the floor
// from then on, and with one it is not.
func (g Gate) CheckGrant(token int64) error {
	if g.Unknown == nil && token < g.Floor {
		return ErrLow
	}
	return g.Unknown
}

// Wake returns w without a token that must not be used. The waiter then asks the node.
func (g Gate) Wake(w quorum.Wake) quorum.Wake {
	if g.CheckGrant(w.Base) != nil {
		w.Base, w.Left = 0, 0
	}
	return w
}
