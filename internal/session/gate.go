package session

import (
	"cmp"
	"errors"

	"github.com/holdfast-go/holdfast/internal/quorum"
)

// Reasons to send no request, or to ignore a grant.
var (
	// ErrOlder is returned for the commit of a token that was chosen before the node came back, perhaps with
	// older data: another client may have the token since (trace C11).
	ErrOlder = errors.New("it has come back since it granted the lock")
	// ErrLow is returned for a grant whose token may have been granted before.
	ErrLow = errors.New("its token may have been given before it came back, or before the slot was found there")
	// ErrStays is returned instead of a request to a node in quarantine.
	ErrStays = errors.New("in quarantine: it only keeps the locks that it has")
)

// Gate holds what a client knows about a connection when it sends a request or reads an answer.
type Gate struct {
	Floor   int64 // lowest token that a grant may have
	Unknown error // reason why the floor is unknown; nil if it is known
	Above   bool  // a token over this connection has shown that its counter is above the floor
	Stays   bool  // the node is in quarantine: it keeps its locks, and grants none
	Slept   bool  // this client stood still: see StoodStill
}

// Prepare completes ask for this connection. It returns an error if the request must not be sent, because its
// answer could not be used: the node would grant the lock nevertheless, and keep it from all others for a TTL
// with each attempt.
func (g Gate) Prepare(ask *quorum.Ask) error {
	switch {
	case g.Stays && ask.Kind.Frees():
		ask.HandOver = 0 // a hand-over is a grant
	case g.Stays && ask.Kind == quorum.AskRenew:
		ask.Restore = ask.Restore || ask.Token != 0 // no lock was granted since, so a free lock still belongs to its holder
	case g.Stays:
		return ErrStays
	}
	if g.Slept && !ask.Kind.Frees() {
		return ErrSlept
	}
	switch ask.Kind {
	case quorum.AskAcquire, quorum.AskAdopt:
		ask.Least = g.leastToken()
		return g.Unknown
	case quorum.AskCommit:
		if g.Unknown != nil || ask.Token < g.Floor {
			return cmp.Or(g.Unknown, ErrOlder)
		}
	case quorum.AskRelease, quorum.AskGiveBack:
		ask.Least = g.leastToken()
	}
	return nil
}

// leastToken returns the lowest token that a request asks for: 0 if the counter is known to be above the floor.
func (g Gate) leastToken() int64 {
	if g.Above {
		return 0
	}
	return g.Floor
}

// CheckGrant returns an error if the token of a grant must not be used. nil also means that the counter of the
// token is above the floor.
func (g Gate) CheckGrant(token int64) error {
	if g.Unknown == nil && token < g.Floor {
		return ErrLow
	}
	return g.Unknown
}

// Wake returns w, without its token if that must not be used. The waiter then asks the node.
func (g Gate) Wake(w quorum.Wake) quorum.Wake {
	if g.CheckGrant(w.Base) != nil {
		w.Base, w.Left = 0, 0
	}
	return w
}
