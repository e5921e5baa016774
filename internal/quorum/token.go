package quorum

import "slices"

// A fencing token is the number of a grant. A later grant of the lock has a higher token, so a storage can
// reject a holder whose token is lower than one it has seen. Each node counts tokens with counters that its
// locks share, and each grant gets the next Block of them. The first is the token of the grant and is stored
// in the lock; the others are for hand-overs inside the client's process. Nodes of a set may grant different
// tokens. The claim then takes the base that a quorum shares, or else the highest, and commits it to the nodes
// with a lower one. docs/protocol.md proves the order.

// Block is the number of fencing tokens of one grant. The node's counter is the last token of the last block:
// the highest that it has promised.
const Block = 32

// MaxToken is the highest token. Above it the numbers of Lua lose digits, and two grants could get the same
// token. A value with a higher number is no lock of this protocol.
const MaxToken = 1<<53 - 1

// LastOfBlock returns the last token of the block that begins at base: the counter after its grant.
func LastOfBlock(base int64) int64 { return base + Block - 1 }

// FirstOfBlock returns the first token of the block that ends at counter.
func FirstOfBlock(counter int64) int64 { return counter - Block + 1 }

// CertainToken returns the lowest first token of a holder, named by a quorum, that is certain to be above
// every token of earlier grants. firsts are the first tokens that some of the nodes gave this holder, and
// nodes is the number of nodes of the set. Each earlier token was committed at q nodes, which then gave later
// ones. So of N - q + 1 nodes of this holder at least one gave a later token; a node that missed the commit
// may have given a lower one, which the earlier holder had on another node. If the q nodes that share the
// holder's token are among them, the result is that token.
func CertainToken(firsts []int64, nodes int) int64 {
	return slices.Sorted(slices.Values(firsts))[nodes-Majority(nodes)]
}

// The allowed differences between a client's clock and a node's, in microseconds. Within TrustedClockSkew a
// new counter starts at the client's clock, within MaxClockSkew at the node's.
const (
	TrustedClockSkew = 1_000_000
	MaxClockSkew     = 60_000_000
)

// noClock is the client's clock in a request without one, which starts no counter.
const noClock = 0

// Seed returns the first token of a new counter. The first block ends at the client's clock or, if that clock
// differs by more than a second, at the node's clock now. Both are above every older token while clocks agree.
// ok is false if the counter must not start: a jump of the clock may have made the counter new, and would then
// set its start too (trace C5 in doc.go).
func Seed(now, clock int64) (start int64, ok bool) {
	switch off := max(now-clock, clock-now); {
	case off > MaxClockSkew:
		return 0, false
	case off > TrustedClockSkew:
		return FirstOfBlock(now), true
	}
	return FirstOfBlock(clock), true
}
