package quorum

import (
	"time"

	"github.com/holdfast-go/holdfast/internal/pace"
)

const ms = int64(time.Millisecond)

// Times of the nodes, in milliseconds.
const (
	// QueueKeep is the lifetime of a place in a queue whose client does not ask again: three times the longest rest of
	// a waiter, so that one late or lost request does not cost the place.
	QueueKeep = 30 * 1000
)

// The bounds of the places that one request tries when it hands the lock over, so that dead waiters block
// nobody.
const (
	maxCandidates = 100 // from the head of the queue
	maxRecent     = 10  // of the ids that asked last
)

// Times of a claim, in nanoseconds like every time in a Claim.
const (
	// MaxHandOver is the longest HandOverTime.
	MaxHandOver = 1000 * ms

	maxQueuedRest  = 1000 * ms // longest rest of a queued waiter behind at most crowd others
	crowdSize      = 100
	maxCrowdRest   = 10 * maxQueuedRest // longest rest behind more than crowd others
	minPollRest    = 20 * ms            // first rest of a waiter without a place in the queue
	maxPollRest    = 1000 * ms
	minPartialWait = 10 * ms // shortest time that partial grants of a hand-over are kept
	minForeignRest = 20 * ms // rest of a waiter behind a holder whose release wakes nobody
	maxForeignRest = 90 * ms // queuedPause adds some more
)

// Drift returns the drift of clocks over ttl, as pace.Drift does.
func Drift(ttl int64) int64 { return int64(pace.Drift(time.Duration(ttl))) }

// HandOverTime returns how long a handed-over lock stays held before its new holder has to renew or confirm it.
// ttl is the TTL of the holder that released it.
func HandOverTime(ttl int64) int64 { return min(ttl, MaxHandOver) }

// NoteTime returns how long a node keeps a note about the owner of a forced or adopted lock, unless the node is
// the only one and no other can replace it. Another node may have prolonged the lock, for up to maxTTL, just
// before it executed the same request. Between the first and the last node of a quorum, an adoption takes at
// most maxTTL, because the adopter's first grant must still count, and a force takes a second. One more second
// allows for clocks of different rates.
func NoteTime(maxTTL int64) int64 { return 2 * (maxTTL + 1000*ms) }

// RequestTimeout returns how long a client waits for the answer to a request.
func RequestTimeout(ttl int64) int64 { return int64(pace.RequestTime(time.Duration(ttl), pace.Voters)) }

// Millis converts ns to milliseconds, rounded up: a node keeps a lock no shorter than its holder trusts it.
func Millis(ns int64) int64 { return (ns + 999_999) / 1_000_000 }
