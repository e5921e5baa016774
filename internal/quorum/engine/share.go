package engine

import (
	"context"
	"maps"
	"math/rand/v2"
	"sync"
	"time"
)

// Others find a shared lock only while it is free, and among our own clients it passes
// from hand to hand without ever being so. So now and then a release hands it to nobody,
// and the client that sent it holds back for a moment. Those of our clients who wait ask
// soon by themselves, as they do behind any holder of such a lock, and in their order.
//
// The longer a grant was held, the likelier it falls free: there is one chance for so
// much use, however many clients share in it, and none needs to know of the others. A
// client that has lately met others on the lock leaves it to them more often. To the
// protocol all that is a release while nobody waits who listens.
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
	sweep int               // locks are looked through for those that are over when there are so many
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
		s.sweep = 2 * len(s.locks) // or each change would look through all of them, where none is over
	}
	if s.locks == nil {
		s.locks = make(map[string]chance)
	}
	c := s.locks[name]
	fn(&c)
	s.locks[name] = c
}

// meet notes that somebody else holds the lock.
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
