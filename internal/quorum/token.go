package quorum

import "slices"

// A fencing token is a number that goes with a grant. A later grant of the lock has higher
// tokens, so that a storage can refuse a holder whose token is lower than one it has seen.
// Each node counts tokens, by counters that its locks share, and each grant takes the next
// Block of them: the first is the token of the grant and stands in the lock, the others are for
// hand-overs inside the client's process. Nodes of a set may differ; the claim then takes the
// base that a quorum shares, else the highest, and commits it to the nodes below it.
// docs/protocol.md proves the order.

// Block is the number of fencing tokens of one grant. The node's counter is the last of them,
// the highest token that the node has promised.
const Block = 32

// MaxToken is the highest token: above it the numbers of Lua lose digits, and two grants would have the same one. A value
// of a lock with a higher number is no lock of this protocol.
const MaxToken = 1<<53 - 1

// Top is the last token of the block that begins at base: the counter once it is granted.
func Top(base int64) int64 { return base + Block - 1 }

// Base is the first token of the block that ends at counter.
func Base(counter int64) int64 { return counter - Block + 1 }

// Certain is the lowest of the first tokens that some nodes, of so many, have given a holder which a quorum names, and that is
// above every token of earlier grants. Each of those was committed at q nodes, which then give later ones. So of N - q + 1 nodes
// of this holder one at least has a later one; a node that has not heard of its commit may have a lower one, which the last
// holder had elsewhere. Where the q nodes that share the holder's token are among them, it is that.
func Certain(firsts []int64, nodes int) int64 {
	return slices.Sorted(slices.Values(firsts))[nodes-Majority(nodes)]
}

// How far a client's clock may be from the node's, in microseconds. Within ClockTrust a new
// counter starts at the client's clock, within ClockMost at the node's.
const (
	ClockTrust = 1_000_000
	ClockMost  = 60_000_000
)

// noClock is for where no client's clock is at hand: it starts no counter.
const noClock = 0

// Seed is the first token of a counter that is new. Its first block ends at the client's
// clock or, where that is wrong by more than a second, at the node's, now. Either is above
// every older token while clocks agree. ok is false where the counter must not start: that
// it is new may be the work of a clock that jumped, and what it would start at as well
// (trace C5 in doc.go).
func Seed(now, clock int64) (start int64, ok bool) {
	switch off := max(now-clock, clock-now); {
	case off > ClockMost:
		return 0, false
	case off > ClockTrust:
		return Base(now), true
	}
	return Base(clock), true
}
