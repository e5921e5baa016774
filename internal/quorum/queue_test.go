package quorum

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

type waiter struct {
	stamp int64
	owner string
}

func queueEntries(q Queue) []waiter {
	var all []waiter
	for p := range q.Places {
		all = append(all, waiter{p.Stamp, p.Owner})
	}
	return all
}

// A sorted set of Redis orders by score, and then by the bytes of the members.
func TestQueueOrdersLikeSortedSet(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	owners := []string{"", "a", "a.1", "a.10", "a.2", "b", "\x00", "é", "Z"}
	for range 2000 {
		var q Queue
		var want []waiter
		for range 12 {
			w := waiter{stamp: rng.Int64N(4) - 1, owner: owners[rng.IntN(len(owners))]}
			at := slices.IndexFunc(want, func(x waiter) bool { return x.owner == w.owner })
			if rng.IntN(3) == 0 {
				q = q.Without(w.owner)
				if at >= 0 {
					want = slices.Delete(want, at, at+1)
				}
				continue
			}
			q = q.With(Place{Owner: w.owner, Stamp: w.stamp})
			if at >= 0 {
				want = slices.Delete(want, at, at+1)
			}
			want = append(want, w)
			slices.SortFunc(want, func(a, b waiter) int {
				return cmp.Or(cmp.Compare(a.stamp, b.stamp), cmp.Compare(a.owner, b.owner))
			})
		}
		if got := queueEntries(q); !slices.Equal(got, want) || q.Len() != len(want) {
			t.Fatalf("queue is %v, want %v", got, want)
		}
	}
}

func TestQueueOfEqualWaitersIsEqual(t *testing.T) {
	t.Parallel()
	var a, b Queue
	for i := range 20 {
		a = a.With(Place{Owner: fmt.Sprint(i), Stamp: int64(i % 5)})
		b = b.With(Place{Owner: fmt.Sprint(19 - i), Stamp: int64((19 - i) % 5)})
	}
	if a != b {
		t.Fatalf("wrong order of arrival: %v and %v", queueEntries(a), queueEntries(b))
	}
}

func TestEmptyQueueHasNoHead(t *testing.T) {
	t.Parallel()
	if head, ok := Queue("").With(Place{Owner: "a", Stamp: 1}).Without("a").Head(); ok {
		t.Fatalf("head of an empty queue is %q", head)
	}
}
