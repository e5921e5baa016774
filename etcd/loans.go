package etcd

import (
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// maxSpares bounds the number of spare leases.
const maxSpares = 64

// loan is an etcd lease. This package calls it so because a holder has a lease too.
type loan struct {
	id   clientv3.LeaseID
	ttl  time.Duration
	sent time.Time // time of the request that granted or last renewed it
}

// isFresh reports whether the lease is new enough for another lock.
func (l loan) isFresh() bool { return time.Since(l.sent) < l.ttl/3 }

// loans are the leases of this client, of which spare ones serve the next locks: this saves the cluster log
// entries for a grant and a revocation. A lease has one key at a time. It becomes spare once its key is
// certainly deleted and no request can create the key again, so a late request ends and revives nothing.
type loans struct {
	mu    sync.Mutex                // guards the fields below
	used  map[clientv3.LeaseID]loan // leases with a key whose creation has been answered
	full  int                       // size of used from which old entries are removed: their holders lost the locks
	spare []loan
}

// take removes and returns a fresh spare lease with that TTL, if there is one.
func (l *loans) take(ttl time.Duration) (loan, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spare = slices.DeleteFunc(l.spare, func(s loan) bool { return !s.isFresh() }) // stale leases expire
	for i, s := range l.spare {
		if s.ttl == time.Duration(wholeSeconds(ttl))*time.Second {
			l.spare = slices.Delete(l.spare, i, i+1)
			return s, true
		}
	}
	return loan{}, false
}

// markUsed records that the lease has a key, and that no request can create the key again after a deletion.
func (l *loans) markUsed(s loan) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.used) >= l.full {
		for id, s := range l.used {
			if !s.isFresh() {
				delete(l.used, id)
			}
		}
		l.full = 2*len(l.used) + maxSpares
	}
	if l.used == nil {
		l.used = make(map[clientv3.LeaseID]loan)
	}
	l.used[s.id] = s
}

// forget makes sure that the lease never becomes spare.
func (l *loans) forget(id clientv3.LeaseID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.used, id)
}

// giveBack makes a lease spare whose key was deleted, and reports whether it did.
func (l *loans) giveBack(id clientv3.LeaseID) bool {
	l.mu.Lock()
	s, ok := l.used[id]
	delete(l.used, id)
	l.mu.Unlock()
	return ok && l.save(s)
}

// save makes the lease spare, unless it is too old or there are enough. It reports whether it did.
func (l *loans) save(s loan) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !s.isFresh() || len(l.spare) >= maxSpares {
		return false
	}
	l.spare = append(l.spare, s)
	return true
}

// drain removes and returns all spare leases.
func (l *loans) drain() []loan {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.spare
	l.spare = nil
	return all
}
