package model

import (
	"hash/maphash"
	"math"
)

// key identifies a state. With 128 bits and a few million states, a collision is negligible.
type key [2]uint64

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

func keyOf(b []byte) key {
	return key{maphash.Bytes(seeds[0], b), maphash.Bytes(seeds[1], b)}
}

// system is a graph to explore: states S and moves M between them.
type system[S, M any] interface {
	initialWorld() S
	// appendMoves appends every possible move in s to buf.
	appendMoves(s *S, buf []M) []M
	// applyMove makes a move. broken names the property that the move breaks, if any.
	applyMove(s *S, m M) (next S, broken string)
	// encodeWorld appends the bytes that identify s. States that differ only in names may have the same bytes.
	encodeWorld(s *S, buf []byte) []byte
	// isDone reports whether all clients have finished.
	isDone(s *S) bool
	// isSlow reports whether m is a timer that runs out, not a message.
	isSlow(m M) bool
}

// result is the result of explore.
type result[M any] struct {
	states, edges int
	whole         bool // every reachable state was visited
	broken        string
	trace         []M // shortest path to the broken property, or to a dead end
	stuck         int // number of states without a path to a done state
	timers        int // timers that must run out from the worst state to a done state
}

// edge is a move between two states, by their numbers.
type edge struct {
	from, to int32
	slow     bool
}

// exploration is the progress of explore. States are numbered in the order of discovery.
type exploration[S, M any] struct {
	sys     system[S, M]
	live    bool // keep edges and done
	seen    map[key]int32
	parents []int32 // by state: the state from which it was found
	by      []M     // by state: the move that led to it
	done    []bool  // by state
	edges   []edge
	made    int // number of moves

	level   []*S    // states at one distance from the first
	numbers []int32 // numbers of the states in level

	spare []*S // explored states, for reuse
	moves []M  // moves of one state, for reuse
	buf   []byte
}

// explore visits every reachable state, nearest first, and stops at the first broken property or after limit
// states. With live it also computes, backwards, which end each state can reach.
func explore[S, M any](sys system[S, M], limit int, live bool) (r result[M]) {
	x := &exploration[S, M]{sys: sys, live: live, seen: make(map[key]int32)}
	first := sys.initialWorld()
	var none M
	x.visitState(&first, 0, none)
	x.level, x.numbers = append(x.level, &first), append(x.numbers, 0)
	for len(x.level) > 0 && r.broken == "" && len(x.parents) <= limit {
		r.broken, r.trace = x.exploreLevel()
	}
	r.states, r.edges = len(x.parents), x.made
	r.whole = r.broken == "" && len(x.parents) <= limit
	if live && r.whole {
		var n int32
		r.timers, r.stuck, n = countTimers(x.edges, x.done)
		r.trace = x.pathTo(n)
	}
	return r
}

// exploreLevel makes every move from the states in level and replaces level by the new states. If a move
// breaks a property, trace is the path to it.
func (x *exploration[S, M]) exploreLevel() (broken string, trace []M) {
	var next []*S
	var numbers []int32
	s := x.spareState()
	for i, from := range x.level {
		x.moves = x.sys.appendMoves(from, x.moves[:0])
		for _, m := range x.moves {
			*s, broken = x.sys.applyMove(from, m)
			x.made++
			if broken != "" {
				return broken, append(x.pathTo(x.numbers[i]), m)
			}
			n, fresh := x.visitState(s, x.numbers[i], m)
			if x.live {
				x.edges = append(x.edges, edge{x.numbers[i], n, x.sys.isSlow(m)})
			}
			if fresh {
				next, numbers = append(next, s), append(numbers, n)
				s = x.spareState()
			}
		}
		x.spare = append(x.spare, from)
	}
	x.spare = append(x.spare, s)
	x.level, x.numbers = next, numbers
	return "", nil
}

// visitState returns the number of a state, and whether m from parent has just discovered it.
func (x *exploration[S, M]) visitState(s *S, parent int32, m M) (n int32, fresh bool) {
	x.buf = x.sys.encodeWorld(s, x.buf[:0])
	k := keyOf(x.buf)
	if n, ok := x.seen[k]; ok {
		return n, false
	}
	n = int32(len(x.parents))
	x.seen[k] = n
	x.parents, x.by = append(x.parents, parent), append(x.by, m)
	if x.live {
		x.done = append(x.done, x.sys.isDone(s))
	}
	return n, true
}

// pathTo returns the moves from the first state to n.
func (x *exploration[S, M]) pathTo(n int32) (trace []M) {
	for ; n > 0; n = x.parents[n] {
		trace = append([]M{x.by[n]}, trace...)
	}
	return trace
}

// spareState returns memory for a state.
func (x *exploration[S, M]) spareState() *S {
	last := len(x.spare) - 1
	if last < 0 {
		return new(S)
	}
	s := x.spare[last]
	x.spare = x.spare[:last]
	return s
}

// countTimers computes, backwards from the done states, how many timers must run out at least on the way from
// each state to one of them. It returns the largest number, the number of states without a way, and the
// nearest of these, or else the worst state.
func countTimers(edges []edge, done []bool) (worst, stuck int, example int32) {
	start := make([]int32, len(done)+1) // index of the edges into each state
	for _, e := range edges {
		start[e.to+1]++
	}
	for i := range done {
		start[i+1] += start[i]
	}
	into, at := make([]edge, len(edges)), append([]int32(nil), start...)
	for _, e := range edges {
		into[at[e.to]] = e
		at[e.to]++
	}
	need := make([]int32, len(done))
	var now, later []int32
	for i := range need {
		need[i] = math.MaxInt32
		if done[i] {
			need[i], now = 0, append(now, int32(i))
		}
	}
	for cost := int32(0); len(now) > 0; cost++ {
		later = later[:0:0]
		for len(now) > 0 {
			n := now[len(now)-1]
			now = now[:len(now)-1]
			if need[n] != cost {
				continue
			}
			for _, e := range into[start[n]:start[n+1]] {
				switch {
				case !e.slow && need[e.from] > cost:
					need[e.from], now = cost, append(now, e.from)
				case e.slow && need[e.from] > cost+1:
					need[e.from], later = cost+1, append(later, e.from)
				}
			}
		}
		now = later
	}
	example = -1
	for i, c := range need {
		switch {
		case c == math.MaxInt32:
			if stuck++; stuck == 1 {
				example = int32(i)
			}
		case stuck == 0 && int(c) > worst:
			worst, example = int(c), int32(i)
		}
	}
	return worst, stuck, max(example, 0)
}
