package etcd

import (
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// spares bounds the leases that a client keeps for its next locks.
const spares = 64

// loan is a lease of etcd, which this package calls so because a holder has a lease too.
type loan struct {
	id   clientv3.LeaseID
	ttl  time.Duration
	sent time.Time // when its last renewal was, or it was asked for
}

// isFresh reports whether a lock can begin with the lease as it is.
func (l loan) isFresh() bool { return time.Since(l.sent) < l.ttl/3 }

// loans are leases of this client that the next lock can have: the cluster then writes no entry of its log to grant one, and none
// to revoke one. A lease has one key at a time. It comes back when its key was deleted for certain and no request can create that
// again, so that a late one ends and revives nothing.
type loans struct {
	mu    sync.Mutex                // guards what follows
	used  map[clientv3.LeaseID]loan // they have a key, and all requests to create it were answered
	full  int                       // with so many, old ones are removed from used: of holders that lost their locks
	spare []loan
}

// take is a spare lease for that TTL, if there is one.
func (l *loans) take(ttl time.Duration) (loan, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spare = slices.DeleteFunc(l.spare, func(s loan) bool { return !s.isFresh() }) // these lapse
	for i, s := range l.spare {
		if s.ttl == time.Duration(wholeSeconds(ttl))*time.Second {
			l.spare = slices.Delete(l.spare, i, i+1)
			return s, true
		}
	}
	return loan{}, false
}

// markUsed notes that the lease has a key that can be deleted for certain.
func (l *loans) markUsed(s loan) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.used) >= l.full {
		for id, s := range l.used {
			if !s.isFresh() {
				delete(l.used, id)
			}
		}
		l.full = 2*len(l.used) + spares
	}
	if l.used == nil {
		l.used = make(map[clientv3.LeaseID]loan)
	}
	l.used[s.id] = s
}

// forget has the lease never be spare.
func (l *loans) forget(id clientv3.LeaseID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.used, id)
}

// giveBack returns a lease whose key was deleted, and says whether it is spare now.
func (l *loans) giveBack(id clientv3.LeaseID) bool {
	l.mu.Lock()
	s, ok := l.used[id]
	delete(l.used, id)
	l.mu.Unlock()
	return ok && l.save(s)
}

// save makes the lease spare, unless it is too old or there are enough.
func (l *loans) save(s loan) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !s.isFresh() || len(l.spare) >= spares {
		return false
	}
	l.spare = append(l.spare, s)
	return true
}

// drain is all that are spare.
func (l *loans) drain() []loan {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.spare
	l.spare = nil
	return all
}
