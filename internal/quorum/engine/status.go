package engine

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/quorum"
)

// View is the state of a lock on one node.
type View struct {
	Owner   string
	Left    time.Duration // time until expiry; negative: never
	Token   int64         // the owner's first token; 0: none
	Waiters int
	Err     error // the reason why the node gave no answer
	Defect  error // fault of the lock's other keys, if the rest is known
}

// Status combines the views of all nodes into one status. The holder is the owner that a quorum names.
func (e *Engine) Status(key string, views []View) (driver.Status, error) {
	st := driver.Status{Key: key}
	votes := make(map[string][]time.Duration)
	u := &driver.UnavailableError{Need: quorum.Majority(len(e.nodes))}
	for i, v := range views {
		name := e.nodes[i].Name()
		st.Nodes = append(st.Nodes, driver.NodeView{
			Node: name, Owner: v.Owner, Token: v.Token, Remaining: v.Left, Waiters: v.Waiters, Err: cmp.Or(v.Err, v.Defect),
		})
		if v.Err != nil {
			u.Nodes = append(u.Nodes, driver.NodeError{Node: name, Err: v.Err})
			continue
		}
		st.Waiters = max(st.Waiters, v.Waiters)
		if v.Owner != "" {
			votes[v.Owner] = append(votes[v.Owner], v.Left)
		}
	}
	if len(views)-len(u.Nodes) < u.Need {
		return st, u
	}
	for owner, left := range votes {
		if len(left) < u.Need {
			continue
		}
		slices.SortFunc(left, func(a, b time.Duration) int { return cmp.Compare(uint64(b), uint64(a)) }) // a negative value, which means no expiry, comes first
		st.Held, st.Owner, st.Since, st.Remaining, st.Kept = true, owner, quorum.Since(owner), left[u.Need-1], quorum.IsMinHoldID(owner)
	}
	if st.Held {
		st.Token = e.holderToken(views, st.Owner)
	}
	return st, nil
}

// Check returns nil if a quorum names the owner of g, ErrLost if so many nodes deny it that no quorum can, and
// otherwise an UnavailableError.
func (e *Engine) Check(g driver.Grant, views []View) error {
	u := &driver.UnavailableError{Need: quorum.Majority(len(e.nodes))}
	against := 0
	for i, v := range views {
		switch {
		case v.Err != nil:
			u.Nodes = append(u.Nodes, driver.NodeError{Node: e.nodes[i].Name(), Err: v.Err})
		case v.Owner != g.Owner:
			against++
		}
	}
	switch {
	case len(e.nodes)-len(u.Nodes)-against >= u.Need:
		return nil
	case against > len(e.nodes)-u.Need:
		return fmt.Errorf("%w: a quorum of nodes does not have it", driver.ErrLost)
	}
	return u
}

// holderToken returns the first token of the grant of owner.
func (e *Engine) holderToken(views []View, owner string) int64 {
	var firsts []int64
	for _, v := range views {
		if v.Owner == owner && v.Err == nil {
			firsts = append(firsts, v.Token)
		}
	}
	return quorum.CertainToken(firsts, len(e.nodes))
}

// TokenBelongs reports whether token belongs to the grant of the holder in st: to the block of st.Token, or to
// a later block that a node gave this holder after the commit. views are the views that st was made from.
// Token 0 belongs to a lock without a token: of another library, released and kept for its MinHold, or with a
// lost token. It returns an UnavailableError if a node's block contains the token, but too few nodes answer to
// name the holder of that block.
func (e *Engine) TokenBelongs(st driver.Status, views []View, token int64) (bool, error) {
	if token == 0 {
		return st.Held && (st.Token == 0 || IsTokenless(st.Owner)), nil
	}
	known := false
	u := &driver.UnavailableError{Need: quorum.Majority(len(e.nodes))}
	for i, v := range views {
		switch {
		case v.Err != nil:
			u.Nodes = append(u.Nodes, driver.NodeError{Node: e.nodes[i].Name(), Err: v.Err})
		case IsTokenless(v.Owner) || !driverkit.InBlock(v.Token, token): // the counter under such a lock belongs to an older grant
		case st.Held && v.Owner == st.Owner && v.Token >= st.Token:
			return true, nil
		default:
			known = true
		}
	}
	if known && len(u.Nodes) > 0 {
		return false, u
	}
	return false, nil
}

// ForceResult returns the result of a force-release on all nodes. done are the nodes that removed the lock,
// errs the errors of the others. The force counts once the old holder can no longer have a quorum.
func (e *Engine) ForceResult(done quorum.Set, errs []error) (bool, error) {
	u := &driver.UnavailableError{Need: quorum.Majority(len(e.nodes))}
	for i, err := range errs {
		if err != nil {
			u.Nodes = append(u.Nodes, driver.NodeError{Node: e.nodes[i].Name(), Err: err})
		}
	}
	enough := len(e.nodes) - u.Need + 1
	switch {
	case done.Len() >= enough:
		return true, nil
	case done.Len()+len(u.Nodes) >= enough:
		return false, u
	}
	return false, nil
}

// IsTokenless reports whether a lock with that owner has no token: it belongs to another library, or was
// released and is kept for its MinHold.
func IsTokenless(owner string) bool { return quorum.ClientOf(owner) == "" || quorum.IsMinHoldID(owner) }
