package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
)

// Counted, not timed: both sides go on until the slower one has had its share of turns,
// and how many the other had meanwhile is what counts.
func TestNobodyStarvesOnABareKey(t *testing.T) {
	if testing.Short() {
		t.Skip("-short leaves out half a minute of competition")
	}
	t.Parallel()
	l := Load{Workers: 4, Work: 5 * time.Millisecond, Rest: 2 * time.Millisecond, Enough: 100, Time: time.Minute}
	for _, c := range []struct {
		nodes       int
		ours, other Side
	}{
		{1, OneClient, Redsync},
		{1, OneClient, Redislock},
		{1, OneClient, SetNX},
		{1, ManyClients, Redsync},
		{1, ManyClients, Redislock},
		{1, ManyClients, SetNX},
		{3, ManyClients, Redsync},
	} {
		t.Run(fmt.Sprintf("%s and %s on %d", c.ours.Name, c.other.Name, c.nodes), func(t *testing.T) {
			t.Parallel()
			var addrs []string
			for _, s := range redistest.StartN(t, c.nodes) {
				addrs = append(addrs, s.Addr())
			}
			got, err := Compete(t.Context(), addrs, "shared", l, c.ours, c.other)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d and %d locks", got[0].Locks, got[1].Locks)
			for i, side := range []Side{c.ours, c.other} {
				if all := got[0].Locks + got[1].Locks; got[i].Locks*20 < all {
					t.Errorf("%s had %d of %d locks", side.Name, got[i].Locks, all)
				}
			}
		})
	}
}

// Pod by pod, in both directions: each stage ends only when every worker has had its turns.
func TestARollingReplacementLeavesNobodyBehind(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	l := Load{Workers: 4, Work: 2 * time.Millisecond, Rest: 2 * time.Millisecond}
	stages, err := Migrate(ctx, []string{redistest.Start(t, nil).Addr()}, "shared", l, 3, Redsync, ManyClients)
	if err != nil {
		t.Fatalf("after %+v: %v", stages, err)
	}
	if last := stages[len(stages)-1]; len(stages) != 9 || stages[4].Ours != 4 || last.Theirs != 4 {
		t.Errorf("stages %+v", stages)
	}
}
