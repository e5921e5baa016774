package quorum

import (
	"time"

	"github.com/holdfast-go/holdfast/internal/pace"
)

const ms = int64(time.Millisecond)

// Times of the nodes, in milliseconds.
const (
	// QueueKeep bounds how long a node keeps a place whose client does not ask again: three times the longest rest of a
	// waiter, so that a wait loses no place by one request that is late or lost.
	QueueKeep = 30 * 1000
)

// How many places one request looks at to hand the lock over, so that dead places keep nobody waiting.
const (
	lineMax   = 100 // the first
	recentMax = 10  // and, where none of these hears, the last to ask
)

// Times of a claim, in nanoseconds like every time in a Claim.
const (
	// HandOverMost is the longest HandOver.
	HandOverMost = 1000 * ms

	fallbackMost = 1000 * ms // longest rest of a queued waiter, where no more than crowd wait
	crowd        = 100
	crowdMost    = 10 * fallbackMost // longest rest where more do
	pollLeast    = 20 * ms           // first rest of a waiter without a place in the queue
	pollMost     = 1000 * ms
	patientLeast = 10 * ms // how long partial grants of a hand-over are kept together
	strangeLeast = 20 * ms // rest of a waiter behind a holder whose release wakes nobody
	strangeMost  = 90 * ms // fallback adds some more
)

// Drift returns the drift of clocks over ttl, as pace.Drift does.
func Drift(ttl int64) int64 { return int64(pace.Drift(time.Duration(ttl))) }

// HandOver is how long a lock that was handed over stands before its new holder
// renews or confirms it, by the TTL of the holder that released it.
func HandOver(ttl int64) int64 { return min(ttl, HandOverMost) }

// Noted is how long a node that is not the only one, or that another may replace, knows from whom a lock was taken by
// force or adoption. Another node may have prolonged it just before it executed that, for up to maxTTL. Between
// the first and the last node of a quorum at most maxTTL passes where a lease is adopted, as what the adopter was granted
// first must count still, and a second where it is forced. One more second, because clocks do not run equally fast.
func Noted(maxTTL int64) int64 { return 2 * (maxTTL + 1000*ms) }

// RequestTimeout returns how long one request counts as under way.
func RequestTimeout(ttl int64) int64 { return int64(pace.RequestTime(time.Duration(ttl), pace.Voters)) }

// Millis is ns in milliseconds, rounded up: a node keeps a lock no shorter than its holder
// trusts it.
func Millis(ns int64) int64 { return (ns + 999_999) / 1_000_000 }
