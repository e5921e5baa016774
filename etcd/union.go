package etcd

import (
	"errors"
	"slices"
	"sync"
)

// errForeign reports a member that belongs to another cluster than most members.
var errForeign = errors.New("it belongs to another cluster than most of the members that are named, so that their locks would not exclude one another; " +
	"name members of one cluster")

// clusterIDs holds the cluster id of each member. Most of the named members must belong to one cluster: otherwise
// two clients could each reach a different cluster and both get a lock. That needs no more members than the
// cluster itself needs.
type clusterIDs struct {
	mu  sync.Mutex // guards the fields below
	ids []uint64   // last cluster id of each member; 0: unknown
}

// checkAnswer stores the cluster id of a member's answer, 0 if it has none, and returns an error if that cluster is
// not the one of most members. It does not judge by the id of another answer that came meanwhile: an address may
// lead to two clusters.
func (u *clusterIDs) checkAnswer(place int, id uint64) error {
	if id == 0 {
		return u.foreignError(place)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ids[place] = id
	return u.idErrorLocked(id)
}

// foreignError returns an error if the member's cluster is not the one of most members.
func (u *clusterIDs) foreignError(place int) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.idErrorLocked(u.ids[place])
}

// idErrorLocked is foreignError for a cluster id. The caller holds the mutex.
func (u *clusterIDs) idErrorLocked(id uint64) error {
	if id == 0 || u.isMajority(id) || !u.isDecided() && u.count(0) > 0 {
		return nil
	}
	return errForeign
}

// isKnown reports whether most members are known to belong to one cluster.
func (u *clusterIDs) isKnown() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.isDecided()
}

func (u *clusterIDs) isDecided() bool {
	return slices.ContainsFunc(u.ids, func(id uint64) bool { return id != 0 && u.isMajority(id) })
}

func (u *clusterIDs) isMajority(id uint64) bool { return u.count(id) > len(u.ids)/2 }

func (u *clusterIDs) count(id uint64) (n int) {
	for _, other := range u.ids {
		if other == id {
			n++
		}
	}
	return n
}

// isMixed reports whether some members belong to different clusters.
func (u *clusterIDs) isMixed() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	ids := slices.DeleteFunc(slices.Clone(u.ids), func(id uint64) bool { return id == 0 })
	return len(ids) > 0 && u.count(ids[0]) < len(ids)
}
