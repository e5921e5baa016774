package quorum

import "math/bits"

// MaxNodes is the largest number of nodes in a set.
const MaxNodes = 9

// Set is a set of nodes, by index.
type Set uint16

// All returns the set of the first n nodes.
func All(n int) Set { return 1<<n - 1 }

// Only returns the set with one node.
func Only(node int) Set { return 1 << node }

// Has reports whether node is in s.
func (s Set) Has(node int) bool { return s&Only(node) != 0 }

// Len returns the number of nodes in s.
func (s Set) Len() int { return bits.OnesCount16(uint16(s)) }

// Nodes yields each node in s, in order.
func (s Set) Nodes(yield func(int) bool) {
	for ; s != 0; s &= s - 1 {
		if !yield(bits.TrailingZeros16(uint16(s))) {
			return
		}
	}
}

// Majority returns the number of nodes that form a majority of n.
func Majority(n int) int { return n/2 + 1 }
