package model

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

type shardRow struct {
	name  string
	world shards
	want  string
	live  bool
	large bool // left out under the race detector and with -short
}

func shardRows() []shardRow {
	const (
		both  = "two hold the lock"
		lower = "a later grant has a lower token"
	)
	// The new set has a counter of the name, or none.
	rollout := shards{views: []view{knowsOld, knowsBoth, knowsBoth, knowsNew}, rounds: 2, alone: true, orders: true, counter: [2]int16{5, 0}}
	stale := rollout
	stale.counter[newSet] = 2
	back := shards{views: []view{knowsBoth, knowsBack, knowsBoth}, rounds: 2, alone: true, orders: true}
	short := shards{views: []view{knowsOld, knowsBoth, knowsNew}, rounds: 2, alone: true, orders: true, counter: [2]int16{5, 2}}
	quick := shards{views: []view{knowsOld, knowsBoth, knowsBoth, knowsNew}, rounds: 1, alone: true, orders: true, counter: [2]int16{5, 2}}
	fault := func(s shards, f shardFaults) shards { s.faults = f; return s }
	without := func(s shards, m shardMutant) shards { s.mutant = m; return s }
	forgets := fault(short, shardFaults{lock: 1, counter: 1})
	forgets.alone = false
	unordered := fault(short, shardFaults{crash: 1, cut: 1})
	unordered.orders = false
	return []shardRow{
		{name: "old -> both -> new", world: rollout, live: true, large: true},
		{name: "old -> both -> new, the new set has a counter", world: stale, live: true, large: true},
		{name: "… and a client dies", world: fault(quick, shardFaults{crash: 1}), live: true},
		{name: "a client is cut off from a set", world: fault(short, shardFaults{cut: 1}), live: true},
		{name: "a client dies, another is cut off from a set: one holder", world: unordered, live: true},
		{name: "a set forgets the lock, a set its counter: tokens", world: forgets},
		{name: "- S1: a client skips the step of both lists", world: without(short, shardMutant{skip: true}), want: both},
		{name: "- S2: clients with both lists take the new set alone", world: without(short, shardMutant{newAlone: true}), want: both},
		{name: "- S2: … the old set alone", world: without(short, shardMutant{oldAlone: true}), want: both},
		{name: "- S3: a change back begins before this one is over", world: without(back, shardMutant{}), live: true, want: stuckForEver, large: true},
		{name: "- S4: one half is enough to trust", world: without(fault(short, shardFaults{cut: 1}), shardMutant{either: true}), want: both},
		{name: "- S5: the token is that of the first set", world: without(short, shardMutant{firstToken: true}), want: lower},
		{name: "- S5: the higher token is taken, and not promised by the other", world: without(short, shardMutant{unraised: true}), want: lower},
		{name: "- S5: … by the new set alone", world: without(rollout, shardMutant{raiseNew: true}), want: lower},
		{name: "- S6: two clients die, each between its two sets", world: fault(quick, shardFaults{crash: 2}), want: lower},
		{name: "- S6: the new set is taken first, and a client dies", world: without(fault(quick, shardFaults{crash: 1}), shardMutant{newFirst: true}), want: lower},
		{name: "- S6: no wait until counters are forgotten", world: without(short, shardMutant{hasty: true}), want: lower},
	}
}

// TestModelOfSharding explores how a name moves from one set to another.
func TestModelOfSharding(t *testing.T) {
	t.Parallel()
	var table strings.Builder
	fmt.Fprintf(&table, "%-64s %9s %9s %7s  %s\n", "row", "states", "steps", "time", "result")
	for _, r := range shardRows() {
		t.Run(r.name, func(t *testing.T) {
			if r.large && (raced || testing.Short()) {
				t.Skip("too large for the race detector and for -short; make model runs it")
			}
			start := time.Now()
			got := explore[shardWorld, shardMove](&r.world, enough, r.live)
			broken := got.broken
			switch {
			case broken != "":
			case !got.whole:
				broken = "not finished"
			case got.stuck > 0:
				broken = stuckForEver
			}
			says := "holds"
			if broken != "" {
				says = fmt.Sprintf("%s, after %d steps", broken, len(got.trace))
			}
			fmt.Fprintf(&table, "%-64s %9d %9d %7s  %s\n", r.name, got.states, got.edges, time.Since(start).Round(10*time.Millisecond), says)
			if broken != r.want {
				t.Errorf("got %q, want %q", broken, r.want)
			}
			if broken != "" {
				t.Logf("%s\n%s", broken, r.world.tell(got.trace))
			}
		})
	}
	t.Log("\n" + table.String())
}
