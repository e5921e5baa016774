package session

import (
	"maps"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/internal/quorum"
)

// maxOwedReleases bounds the releases that are kept for one unreachable node.
const maxOwedReleases = 10_000

// Debt is a release that its node may not have executed. L is a type that names a lock.
type Debt[L any] struct {
	Lock  L
	Ask   quorum.Ask
	Until int64 // the lock, and the owner's place in the queue, have expired by then
}

// Ledger keeps the releases that one node may not have executed, one for each owner id, until the node can be
// reached again. The zero value is empty.
type Ledger[L any] struct{ debts map[string]Debt[L] }

// Owe keeps the release ask at the time now. It replaces an earlier one of the same owner. A give-back becomes
// a final release: its owner id is never used again (trace C3), and a place in the queue would receive the
// lock for nobody.
func (l *Ledger[L]) Owe(lock L, ask *quorum.Ask, now int64) {
	d := Debt[L]{Lock: lock, Ask: *ask, Until: now + max(ask.TTL, ask.MinHold, quorum.QueueKeep*int64(time.Millisecond))}
	d.Ask.Kind, d.Ask.Stamp = quorum.AskRelease, 0
	if _, known := l.debts[ask.Owner]; known || len(l.debts) < maxOwedReleases {
		l.set(d)
	}
}

func (l *Ledger[L]) set(d Debt[L]) {
	if l.debts == nil {
		l.debts = make(map[string]Debt[L])
	}
	l.debts[d.Ask.Owner] = d
}

// Expire drops the releases of locks that have expired on the node.
func (l *Ledger[L]) Expire(now int64) {
	maps.DeleteFunc(l.debts, func(_ string, d Debt[L]) bool { return d.Until <= now })
}

// Take removes and returns all debts at the time now, in the order of the owner ids.
func (l *Ledger[L]) Take(now int64) []Debt[L] {
	l.Expire(now)
	all := make([]Debt[L], 0, len(l.debts))
	for _, owner := range slices.Sorted(maps.Keys(l.debts)) {
		all = append(all, l.debts[owner])
	}
	l.debts = nil
	return all
}

// Return keeps d again, which was taken and got no answer, unless the same owner owes a later release.
func (l *Ledger[L]) Return(d Debt[L]) {
	if _, later := l.debts[d.Ask.Owner]; !later {
		l.set(d)
	}
}
