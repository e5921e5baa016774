package redis

import (
	"sync"
	"sync/atomic"
)

// maxBareNames bounds the number of names that the log is warned of.
const maxBareNames = 1000

// bareKeySearch finds programs that lock the same names with other keys. Libraries such as redsync use the bare
// name as the key, and do not exclude a client with a prefix: both may then hold the lock, for example while
// programs change from one library to the other. At most once a second, the search asks each node for the bare
// key of one name that this client has used since.
type bareKeySearch struct {
	name atomic.Pointer[string] // first name that was asked for since the last look; nil: none

	mu   sync.Mutex // guards the names that were logged
	told map[string]bool
}

// noteName stores name for the next search.
func (b *bareKeySearch) noteName(name string) {
	if b.name.Load() == nil {
		taken := name // otherwise each call would allocate
		b.name.Store(&taken)
	}
}

// isNew reports whether name has not been logged yet, and counts it as logged.
func (b *bareKeySearch) isNew(name string) bool {
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
