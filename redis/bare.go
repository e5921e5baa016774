package redis

import (
	"sync"
	"sync/atomic"
)

// maxBareNames bounds the names of which the log gets a warning.
const maxBareNames = 1000

// bareLooks finds programs that lock the same names by other keys. Libraries such as redsync use the bare name as the key, and
// do not exclude a client with a prefix: both hold the lock then, as in the middle of a change from one library to the other.
// At most once a second each node is asked for the bare key of one name that was asked for since.
type bareLooks struct {
	name atomic.Pointer[string] // the first that was asked for since the last look; nil: none

	mu   sync.Mutex // guards told
	told map[string]bool
}

// noteName keeps name for the next look.
func (b *bareLooks) noteName(name string) {
	if b.name.Load() == nil {
		taken := name // or each call would allocate
		b.name.Store(&taken)
	}
}

// isNew reports whether the log still lacks a warning of name, and counts it as logged.
func (b *bareLooks) isNew(name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.told[name] || len(b.told) == maxBareNames {
		return false
	}
	if b.told == nil {
		b.told = make(map[string]bool)
	}
	b.told[name] = true
	return true
}
