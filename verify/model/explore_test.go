package model

import (
	"slices"
	"testing"
)

// stairWorld is a number: a step moves it up or down, and a slow jump crosses a gap. From above 7 there is no way
// back.
type stairWorld struct{ forbidden int }

func (stairWorld) initialWorld() int { return 0 }

func (stairWorld) appendMoves(s *int, out []int) []int {
	switch {
	case *s == 3:
		return append(out, -1, 3)
	case *s == 5:
		return append(out, -3, 1, 4)
	case *s < 7:
		return append(out, 1)
	}
	return out
}

func (x stairWorld) applyMove(s *int, m int) (int, string) {
	if *s+m == x.forbidden {
		return *s + m, "forbidden"
	}
	return *s + m, ""
}

func (stairWorld) encodeWorld(s *int, b []byte) []byte { return append(b, byte(*s)) }
func (stairWorld) isDone(s *int) bool                  { return *s == 7 }
func (stairWorld) isSlow(m int) bool                   { return m == 3 || m == -3 }

func TestExploreFindsShortestPath(t *testing.T) {
	t.Parallel()
	r := explore[int, int](stairWorld{forbidden: 7}, 100, false)
	if want := []int{1, 1, 1, 3, 1}; r.broken != "forbidden" || !slices.Equal(r.trace, want) {
		t.Errorf("%q by %v, want forbidden by %v", r.broken, r.trace, want)
	}
}

func TestExploreCountsDeadEnds(t *testing.T) {
	t.Parallel()
	// From 0 to 3 only the jump to 6 continues. No step leads to 5 or 9.
	r := explore[int, int](stairWorld{forbidden: -1}, 100, true)
	if r.states != 6 || !r.whole || r.stuck != 0 || r.timers != 1 {
		t.Errorf("%+v", r)
	}
}

func TestFinishUsesFewestTimers(t *testing.T) {
	t.Parallel()
	// 0 -slow-> 1 -slow-> 3, 0 -> 2 -slow-> 3, 1 -> 4, and 4 leads nowhere.
	edges := []edge{{0, 1, true}, {1, 3, true}, {0, 2, false}, {2, 3, true}, {1, 4, false}}
	_, stuck, example := countTimers(edges, []bool{3: true, 4: false})
	if stuck != 1 || example != 4 {
		t.Errorf("%d dead ends, for example %d", stuck, example)
	}
	worst, stuck, _ := countTimers(edges[:4], []bool{3: true})
	if worst != 1 || stuck != 0 {
		t.Errorf("worst %d, %d stuck", worst, stuck)
	}
}
