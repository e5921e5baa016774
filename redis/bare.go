package redis

import (
	"sync"
	"sync/atomic"
)

// bareMost is of how many names the log has a warning.
const bareMost = 1000

// bareLooks finds programs that lock the same names by other keys: redsync and its kin take the bare name for their key, and do
// not exclude a client with a prefix. Both have the lock then, as in the middle of a change from one to the other. Once a second
// each node is asked at most whether the key of a name that was taken since is there.
type bareLooks struct {
	name atomic.Pointer[string] // the first that was asked for since the last look; nil: none

	mu   sync.Mutex // guards told
	told map[string]bool
}

// note keeps name for the next look.
func (b *bareLooks) note(name string) {
	if b.name.Load() == nil {
		taken := name // or each call would allocate
		b.name.Store(&taken)
	}
}

// first says whether the log has no warning of name yet.
func (b *bareLooks) first(name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.told[name] || len(b.told) == bareMost {
		return false
	}
	if b.told == nil {
		b.told = make(map[string]bool)
	}
	b.told[name] = true
	return true
}
