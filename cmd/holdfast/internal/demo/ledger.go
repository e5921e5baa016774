package demo

import (
	"fmt"
	"sync"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
)

// key is the lock that guards the ledger.
const key = "ledger"

// entry is one line of the ledger.
type entry struct {
	number int
	client string
	own    int // number of the client's earlier entries
	token  holdfast.Token
}

// ledger is a storage with a write in two steps: read the last number, append the next. Without the lock, two
// writers between these steps would use one number twice. It compares tokens, as every storage under a lock
// should.
type ledger struct {
	guard fence.Guard

	mu      sync.Mutex // guards entries
	entries []entry
}

// read returns the last number, for a holder that will append the next.
func (l *ledger) read(lease *holdfast.Lease) (int, error) {
	if err := l.guard.Claim(key, lease.Token(), lease.Owner()); err != nil {
		return 0, err
	}
	return l.len(), nil
}

func (l *ledger) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.entries) == 0 {
		return 0
	}
	return l.entries[len(l.entries)-1].number
}

func (l *ledger) append(lease *holdfast.Lease, e entry) error {
	return l.guard.Do(key, lease.Token(), lease.Owner(), func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		e.token = lease.Token()
		l.entries = append(l.entries, e)
		return nil
	})
}

// audit holds the counts of the ledger check.
type audit struct {
	entries, lost, doubled, unordered int
}

// check compares the ledger with the writes that each client believes it made.
func (l *ledger) check(written map[string]int) audit {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := audit{entries: len(l.entries)}
	seen := make(map[string]bool)
	for i, e := range l.entries {
		id := fmt.Sprint(e.client, e.own)
		if seen[id] || i > 0 && e.number <= l.entries[i-1].number {
			a.doubled++
		}
		seen[id] = true
		if i > 0 && e.token < l.entries[i-1].token {
			a.unordered++
		}
	}
	for client, n := range written {
		for own := range n {
			if !seen[fmt.Sprint(client, own)] {
				a.lost++
			}
		}
	}
	return a
}
