package engine

import (
	"context"
	"maps"
	"math/rand/v2"
	"sync"
	"time"
)

// Other libraries can acquire a shared lock only while it is free, and clients of Holdfast hand it over
// without freeing it. So now and then a release hands it to no client, and the releasing client waits for a
// moment before it asks again. Waiting clients of Holdfast soon ask by themselves, in their order, as they do
// behind any holder of a shared lock.
//
// The longer a grant was held, the more likely its release frees the lock. The chance depends on the time of
// use, so that clients need not know of one another. A client that has recently met another library on the
// lock frees it more often. For the protocol, each of these is a release while no waiter listens.
const (
	yieldEvery          = 200 * time.Millisecond // of use
	yieldEveryContended = 20 * time.Millisecond  // of use, after another library was met
	minHoldBack         = 20 * time.Millisecond  // pause of this client after it has yielded
	maxHoldBack         = 60 * time.Millisecond
	foreignMemory       = 10 * time.Second // how long a meeting with another library counts
	minSweep            = 1024             // number of locks from which old entries are removed
)

// yieldTable records for each shared lock when this client yields it to other programs.
type yieldTable struct {
	mu    sync.Mutex            // guards the fields below; claim.mu may be held, and no mutex is locked under it
	locks map[string]yieldState // by name
	sweep int                   // number of locks at which expired entries are removed
}

type yieldState struct {
	until      time.Time // the client holds back until then
	metForeign time.Time // when another library last held the lock
}

// update changes the state of a lock.
func (s *yieldTable) update(name string, fn func(*yieldState)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.locks) >= max(s.sweep, minSweep) {
		now := time.Now()
		maps.DeleteFunc(s.locks, func(_ string, c yieldState) bool { return now.After(c.until) && now.Sub(c.metForeign) > foreignMemory })
		s.sweep = 2 * len(s.locks) // doubled, so that later changes need not scan all entries again if none has expired
	}
	if s.locks == nil {
		s.locks = make(map[string]yieldState)
	}
	c := s.locks[name]
	fn(&c)
	s.locks[name] = c
}

// noteForeignHolder records that another library holds the lock.
func (s *yieldTable) noteForeignHolder(name string) {
	s.update(name, func(c *yieldState) { c.metForeign = time.Now() })
}

// yieldSometimes reports whether the release of a grant that was held for that long has to free the lock for
// other programs. If so, it starts the pause of this client.
func (s *yieldTable) yieldSometimes(name string, held time.Duration) (leaves bool) {
	s.update(name, func(c *yieldState) {
		now, every := time.Now(), yieldEvery
		if now.Sub(c.metForeign) < foreignMemory {
			every = yieldEveryContended
		}
		if leaves = rand.N(every) < held; leaves {
			c.until = now.Add(minHoldBack + rand.N(maxHoldBack-minHoldBack))
		}
	})
	return leaves
}

// awaitYield blocks while this client has to pause, but at most for half of the time until the end of ctx.
func (s *yieldTable) awaitYield(ctx context.Context, name string) {
	s.mu.Lock()
	left := time.Until(s.locks[name].until)
	s.mu.Unlock()
	if end, ok := ctx.Deadline(); ok {
		left = min(left, time.Until(end)/2)
	}
	if left <= 0 {
		return
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
