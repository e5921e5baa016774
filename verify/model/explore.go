package model

import (
	"hash/maphash"
	"math"
)

// key stands for a state. Two states that differ share one with a probability
// that can be neglected: 128 bits, a few million states.
type key [2]uint64

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

func keyOf(b []byte) key {
	return key{maphash.Bytes(seeds[0], b), maphash.Bytes(seeds[1], b)}
}

// system is what explore explores: states S, joined by moves M.
type system[S, M any] interface {
	initial() S
	// moves appends to buf every move that is possible in s.
	moves(s *S, buf []M) []M
	// apply makes a move. broken names the property that the move breaks, if any.
	apply(s *S, m M) (next S, broken string)
	// encode appends to buf the bytes that make s the state it is. States that
	// differ only in the names of things may have the same bytes.
	encode(s *S, buf []byte) []byte
	// done says that nobody wants anything any more.
	done(s *S) bool
	// slow says that m is a timer running out, and no message.
	slow(m M) bool
}

// result is what explore found.
type result[M any] struct {
	states, edges int
	whole         bool // every reachable state was seen
	broken        string
	trace         []M // the shortest way to the broken property, or to where nobody can finish
	stuck         int // states from which nobody reaches a state that is done
	timers        int // from the worst state so many timers have to run out before all are done
}

// edge joins two states by their numbers.
type edge struct {
	from, to int32
	slow     bool
}

// exploration is what explore has seen so far. A state is known by its number, in the order in which states were found.
type exploration[S, M any] struct {
	sys     system[S, M]
	live    bool // edges and done are kept
	seen    map[key]int32
	parents []int32 // by state: the one from which it was found
	by      []M     // by state: the move from there
	done    []bool  // by state
	edges   []edge
	made    int // moves

	level   []*S    // the states at hand, all at the same distance from the first
	numbers []int32 // theirs

	spare []*S // states that were explored, to be used again
	moves []M  // of one state, likewise
	buf   []byte
}

// explore visits every state that can be reached, nearest first, and stops at
// the first broken property or after limit states. With live it also computes
// backwards from where each state can get to.
func explore[S, M any](sys system[S, M], limit int, live bool) (r result[M]) {
	x := &exploration[S, M]{sys: sys, live: live, seen: make(map[key]int32)}
	first := sys.initial()
	var none M
	x.visit(&first, 0, none)
	x.level, x.numbers = append(x.level, &first), append(x.numbers, 0)
	for len(x.level) > 0 && r.broken == "" && len(x.parents) <= limit {
		r.broken, r.trace = x.deeper()
	}
	r.states, r.edges = len(x.parents), x.made
	r.whole = r.broken == "" && len(x.parents) <= limit
	if live && r.whole {
		var n int32
		r.timers, r.stuck, n = finish(x.edges, x.done)
		r.trace = x.way(n)
	}
	return r
}

// deeper makes every move from the states at hand. The states that it finds are at hand then, unless a move breaks a property:
// trace is the way to that.
func (x *exploration[S, M]) deeper() (broken string, trace []M) {
	var next []*S
	var numbers []int32
	s := x.space()
	for i, from := range x.level {
		x.moves = x.sys.moves(from, x.moves[:0])
		for _, m := range x.moves {
			*s, broken = x.sys.apply(from, m)
			x.made++
			if broken != "" {
				return broken, append(x.way(x.numbers[i]), m)
			}
			n, fresh := x.visit(s, x.numbers[i], m)
			if x.live {
				x.edges = append(x.edges, edge{x.numbers[i], n, x.sys.slow(m)})
			}
			if fresh {
				next, numbers = append(next, s), append(numbers, n)
				s = x.space()
			}
		}
		x.spare = append(x.spare, from)
	}
	x.spare = append(x.spare, s)
	x.level, x.numbers = next, numbers
	return "", nil
}

// visit returns the number of a state, and whether it was found just now, by m from parent.
func (x *exploration[S, M]) visit(s *S, parent int32, m M) (n int32, fresh bool) {
	x.buf = x.sys.encode(s, x.buf[:0])
	k := keyOf(x.buf)
	if n, ok := x.seen[k]; ok {
		return n, false
	}
	n = int32(len(x.parents))
	x.seen[k] = n
	x.parents, x.by = append(x.parents, parent), append(x.by, m)
	if x.live {
		x.done = append(x.done, x.sys.done(s))
	}
	return n, true
}

// way returns the moves from the first state to n.
func (x *exploration[S, M]) way(n int32) (trace []M) {
	for ; n > 0; n = x.parents[n] {
		trace = append([]M{x.by[n]}, trace...)
	}
	return trace
}

// space returns room for a state.
func (x *exploration[S, M]) space() *S {
	last := len(x.spare) - 1
	if last < 0 {
		return new(S)
	}
	s := x.spare[last]
	x.spare = x.spare[:last]
	return s
}

// finish computes, backwards from the states that are done, how many timers have
// to run out at least on the way from each state to one of them. It returns the
// largest such number, from how many states there is no way, and the nearest of
// these or else of the worst.
func finish(edges []edge, done []bool) (worst, stuck int, example int32) {
	start := make([]int32, len(done)+1) // of the edges into each state
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
