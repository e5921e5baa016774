package engine

import (
	"context"
	"maps"
	"math/rand/v2"
	"sync"
	"time"
)

// Other libraries find a shared lock only while it is free, and among our own
// clients it passes from one to the next without ever being free. So now and then a
// release hands it to no client, and the client that sent it holds back for a
// moment. Waiting clients of ours soon ask by themselves, as they do behind any
// holder of such a lock, and in their order.
//
// The longer a grant was held, the likelier its release frees the lock: the chance
// depends on the time of use, so that the clients need not know of one another. A
// client that has lately met another library on the lock frees it more often. To
// the protocol all that is a release while no waiter listens.
const (
	chanceSeldom = 200 * time.Millisecond // of use
	chanceOften  = 20 * time.Millisecond  // where others have been met
	chanceLeast  = 20 * time.Millisecond  // how long its client holds back
	chanceMost   = 60 * time.Millisecond
	metKept      = 10 * time.Second
	chancesKept  = 1024
)

// chances is what this client leaves to others.
type chances struct {
	mu    sync.Mutex        // guards what follows; claim.mu may be held, nothing is locked under it
	locks map[string]chance // by name
	sweep int               // with so many locks, those that are over are removed
}

type chance struct {
	until time.Time // the client holds back
	met   time.Time // another than a client of this protocol held the lock
}

// change changes what is known of a lock.
func (s *chances) change(name string, fn func(*chance)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.locks) >= max(s.sweep, chancesKept) {
		now := time.Now()
		maps.DeleteFunc(s.locks, func(_ string, c chance) bool { return now.After(c.until) && now.Sub(c.met) > metKept })
		s.sweep = 2 * len(s.locks) // otherwise each change would look through all of them, where none is over
	}
	if s.locks == nil {
		s.locks = make(map[string]chance)
	}
	c := s.locks[name]
	fn(&c)
	s.locks[name] = c
}

// meet notes that another library holds the lock.
func (s *chances) meet(name string) {
	s.change(name, func(c *chance) { c.met = time.Now() })
}

// leave says whether the release of a grant that was held for so long gives others a
// chance, and begins it.
func (s *chances) leave(name string, held time.Duration) (leaves bool) {
	s.change(name, func(c *chance) {
		now, every := time.Now(), chanceSeldom
		if now.Sub(c.met) < metKept {
			every = chanceOften
		}
		if leaves = rand.N(every) < held; leaves {
			c.until = now.Add(chanceLeast + rand.N(chanceMost-chanceLeast))
		}
	})
	return leaves
}

// await blocks while others have their chance. Of a wait that is to end soon it takes no
// more than half.
func (s *chances) await(ctx context.Context, name string) {
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
