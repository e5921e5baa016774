package main

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/redisproc/redistest"
)

// Counted, not timed: both sides go on until the slower one has had its share of turns,
// and how many the other had meanwhile is what counts.
func TestNobodyStarvesOnABareKey(t *testing.T) {
	t.Parallel()
	l := Load{Workers: 3, Work: 5 * time.Millisecond, Rest: 10 * time.Millisecond, Enough: 100, Time: time.Minute}
	for _, ours := range []Side{OneClient, ManyClients} {
		for _, other := range []Side{Redsync, Redislock, SetNX} {
			t.Run(ours.Name+" and "+other.Name, func(t *testing.T) {
				t.Parallel()
				addr := redistest.Start(t, nil).Addr()
				got, err := Compete(t.Context(), addr, "shared", l, ours, other)
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("%d and %d locks", got[0].Locks, got[1].Locks)
				for i, side := range []Side{ours, other} {
					if all := got[0].Locks + got[1].Locks; got[i].Locks*20 < all {
						t.Errorf("%s had %d of %d locks", side.Name, got[i].Locks, all)
					}
				}
			})
		}
	}
}
