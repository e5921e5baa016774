package engine

import (
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/quorum"
)

// View is what one node knows about a lock.
type View struct {
	Owner   string
	Left    time.Duration // negative: never lapses
	Fence   int64         // highest token promised; 0: none
	Waiters int
	Err     error
}

// Status makes one picture of a lock from what each node knows. The lock is
// held by whoever a quorum names.
func (e *Engine) Status(key string, views []View) (driver.Status, error) {
	st := driver.Status{Key: key}
	votes := make(map[string][]time.Duration)
	u := &driver.UnavailableError{Need: quorum.Majority(len(e.nodes))}
	for i, v := range views {
		name := e.nodes[i].Name()
		token := base(v)
		st.Nodes = append(st.Nodes, driver.NodeStatus{
			Node: name, Owner: v.Owner, Token: token, Remaining: v.Left, Waiters: v.Waiters, Err: v.Err,
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
		slices.SortFunc(left, func(a, b time.Duration) int { return compareLeft(b, a) })
		st.Held, st.Owner, st.Since, st.Remaining = true, owner, Since(owner), left[u.Need-1]
	}
	for _, v := range views {
		if st.Held && v.Owner == st.Owner {
			st.Token = max(st.Token, base(v))
		}
	}
	return st, nil
}

// base is the first token of the block that ends at the node's counter.
func base(v View) int64 {
	if v.Fence == 0 || v.Owner == "" {
		return 0
	}
	return v.Fence - quorum.Block + 1
}

// compareLeft orders remaining times; negative, for ever, is the longest.
func compareLeft(a, b time.Duration) int {
	switch {
	case a < 0 && b < 0:
		return 0
	case a < 0:
		return 1
	case b < 0:
		return -1
	}
	return int(a - b)
}
