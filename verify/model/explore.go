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

// explore visits every state that can be reached, nearest first, and stops at
// the first broken property or after limit states. With live it also computes
// backwards from where each state can get to.
func explore[S, M any](sys system[S, M], limit int, live bool) result[M] {
	var (
		r       result[M]
		seen    = make(map[key]int32)
		parents []int32
		by      []M
		edges   []edge
		done    []bool
		level   []*S
		numbers []int32
		buf     []byte
		moves   []M
		spare   []*S // states that were explored, to be used again
	)
	visit := func(s *S, parent int32, m M) (n int32, fresh bool) {
		buf = sys.encode(s, buf[:0])
		k := keyOf(buf)
		if n, ok := seen[k]; ok {
			return n, false
		}
		n = int32(len(parents))
		seen[k] = n
		parents, by = append(parents, parent), append(by, m)
		if live {
			done = append(done, sys.done(s))
		}
		return n, true
	}
	way := func(n int32) (trace []M) {
		for ; n > 0; n = parents[n] {
			trace = append([]M{by[n]}, trace...)
		}
		return trace
	}
	first := sys.initial()
	var none M
	s := new(S)
	visit(&first, 0, none)
	level, numbers = append(level, &first), append(numbers, 0)
	for len(level) > 0 {
		var next []*S
		var nextNumbers []int32
		for i := range level {
			moves = sys.moves(level[i], moves[:0])
			for _, m := range moves {
				var broken string
				*s, broken = sys.apply(level[i], m)
				r.edges++
				if broken != "" {
					r.states, r.broken, r.trace = len(parents), broken, append(way(numbers[i]), m)
					return r
				}
				n, fresh := visit(s, numbers[i], m)
				if live {
					edges = append(edges, edge{numbers[i], n, sys.slow(m)})
				}
				if fresh {
					next, nextNumbers = append(next, s), append(nextNumbers, n)
					if last := len(spare) - 1; last >= 0 {
						s, spare = spare[last], spare[:last]
					} else {
						s = new(S)
					}
				}
			}
			spare = append(spare, level[i])
		}
		if len(parents) > limit {
			r.states = len(parents)
			return r
		}
		level, numbers = next, nextNumbers
	}
	r.states, r.whole = len(parents), true
	if live {
		worst, stuck, n := finish(edges, done)
		r.timers, r.stuck = worst, stuck
		r.trace = way(n)
	}
	return r
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
