package model

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// stateLimit is above the number of states of any row: a row that reaches it is unfinished.
const stateLimit = 3_000_000

// row is a world that is explored completely. Without a mutant no property may break; with one, want names the
// property that must break.
type row struct {
	name  string
	world setup
	want  string // the property that breaks; "" for none
	// live checks that all clients can finish from every state. timers bounds the number of timers that must
	// run out on the way.
	live   bool
	timers int
	large  bool // only make model runs it: over 100,000 states, or 20,000 with admission
}

// The properties that break in rows about waiting.
const (
	stuckForEver = "somebody can never finish"
	tooSlow      = "more timers must run out than allowed"
)

// Nodes that a client cannot reach, for setup.cut.
const (
	first  = 1 << iota // node 1
	second             // node 2
	third              // node 3
)

// Initial counters, one block apart.
const (
	level = startClock + 31
	above = level + 32
)

func changed(s setup, change func(*setup)) setup {
	change(&s)
	return s
}

func modelRows() []row {
	// Attempts that do not wait; tokens and exclusion.
	one := setup{nodes: 1, clients: 3, alone: true, orders: true}
	two := setup{nodes: 3, clients: 2, alone: true, orders: true}
	pairs := setup{nodes: 3, clients: 3, alone: true, orders: true, cut: [3]uint8{first, second, third}}
	loss := changed(two, func(s *setup) { s.alone, s.skew, s.faults.lock = false, 5, 1 })
	twice := setup{
		nodes: 3, clients: 2, orders: true, cut: [3]uint8{third, second}, fences: []int64{level, above, above},
		faults: faults{lock: 1, repeat: 1},
	}
	// A node that fails over.
	fails := setup{nodes: 1, clients: 3, renews: 1, alone: true, orders: true, gate: true, faults: faults{over: 2}}
	failsWaiting := changed(fails, func(s *setup) { s.clients, s.waiting, s.rests, s.cancel = 2, 0b11, 1, true })
	// A server that returns with older data. Of three nodes, both clients reach only this one.
	older := setup{nodes: 1, clients: 3, renews: 1, orders: true, faults: faults{older: 2}}
	olderWaiting := changed(older, func(s *setup) { s.clients, s.waiting, s.rests, s.cancel, s.faults.older = 2, 0b11, 1, true, 1 })
	moves := changed(older, func(s *setup) { s.slot = true })
	movesWaiting := changed(olderWaiting, func(s *setup) { s.slot = true })
	olderOfThree := setup{
		nodes: 3, clients: 2, alone: true, orders: true, gate: true, cut: [3]uint8{third, second}, fences: []int64{level, above, above}, faults: faults{older: 1},
	}
	// One node, whose counter is lost.
	handOver := setup{nodes: 1, clients: 2, waiting: 0b11, rests: 1, alone: true, orders: true, faults: faults{fence: 1}}
	forgets := setup{
		nodes: 3, clients: 2, waiting: 0b11, rests: 1, calm: true, orders: true, cut: [3]uint8{third, third},
		fences: []int64{level, above}, faults: faults{lock: 1},
	}
	paused := setup{nodes: 1, clients: 3, renews: 1, orders: true, faults: faults{fence: 1, lock: 1}}
	jumps := setup{nodes: 1, clients: 2, renews: 1, orders: true, faults: faults{jump: 4, fence: 2}}
	jumpTwo := setup{nodes: 3, clients: 2, orders: true, cut: [3]uint8{third, third}, faults: faults{jump: 4}}
	others := changed(two, func(s *setup) { s.faults.others = 2 })
	othersTwice := changed(twice, func(s *setup) { s.faults.others = 1 })
	// A holds nodes 1 and 2. C cannot reach 2; it was granted 3 and denied 1, and its give-back to 3 is on its
	// way. B, which is before C, cannot reach 1.
	back := setup{
		nodes: 3, clients: 3, waiting: 0b110, alone: true, orders: true, calm: true, holds: 2,
		cut: [3]uint8{0, first, second}, fragile: 0b100, faults: faults{broken: 1},
		prelude: []move{
			{begin, 2, 0, 0}, {execute, 2, 2, 0}, {answer, 2, 2, 0}, {execute, 2, 0, 0}, {answer, 2, 0, 0},
		},
	}

	// Waiters. Their counters stand still, because the queue does not need them.
	even := []int64{level, level, level}
	waiters := setup{nodes: 3, clients: 2, waiting: 0b11, rests: 255, calm: true, alone: true, frozen: true, fences: even}
	uneven := changed(waiters, func(s *setup) { s.fences = []int64{level, level, above} })
	down := changed(waiters, func(s *setup) { s.cut = [3]uint8{third, third, third} })
	hasty := changed(down, func(s *setup) { s.hasty = true })
	behind := changed(down, func(s *setup) { s.clients, s.holds, s.waiting = 3, 2, 0b110 })
	// B is queued on every node before C begins, and A may die.
	inLine := changed(waiters, func(s *setup) {
		s.clients, s.holds, s.waiting, s.fair, s.faults.crash = 3, 2, 0b110, true, 1
		s.cut = [3]uint8{third, third, third}
		s.prelude = []move{
			{begin, 1, 0, 0}, {execute, 1, 0, 0}, {answer, 1, 0, 0}, {execute, 1, 1, 0}, {answer, 1, 1, 0},
		}
	})
	three := changed(down, func(s *setup) { s.clients, s.waiting = 3, 0b111 })
	dies := changed(waiters, func(s *setup) { s.faults.crash = 1 })
	lost := changed(down, func(s *setup) { s.faults.wake = 2 })
	lapses := changed(down, func(s *setup) { s.faults.place = 2 })
	breaks := changed(behind, func(s *setup) { s.clients, s.waiting, s.fragile, s.faults.broken = 2, 0b10, 0b10, 1 })
	// A held nodes 1 and 2 and has released them. C cannot reach 3; it was queued on both, and both were
	// handed to it. It was granted 1 by its own request, and denied 2. The wake-ups are still on their way. B,
	// which is before C, cannot reach 2.
	overtaken := setup{
		nodes: 3, clients: 3, waiting: 0b110, rests: 1, calm: true, alone: true, frozen: true, fences: even, holds: 2, apart: true,
		cut: [3]uint8{third, second, third},
		prelude: []move{
			{begin, 2, 0, 0},
			{execute, 2, 0, 0},
			{answer, 2, 0, 0},
			{execute, 2, 1, 0},
			{answer, 2, 1, 0},
			{release, 0, 0, 0},
			{execute, 0, 0, 0},
			{rest, 2, 0, 0},
			{execute, 2, 0, 0},
			{answer, 2, 0, 0},
			{execute, 2, 1, 0},
			{execute, 0, 1, 0},
			{answer, 2, 1, 0},
		},
	}
	// A holds all nodes. B waits on all of them and then cannot reach two.
	minority := changed(waiters, func(s *setup) {
		s.clients, s.holds, s.waiting, s.faults.cut = 3, 3, 0b110, 2
		s.prelude = []move{
			{begin, 1, 0, 0},
			{execute, 1, 0, 0},
			{answer, 1, 0, 0},
			{execute, 1, 1, 0},
			{answer, 1, 1, 0},
			{execute, 1, 2, 0},
			{answer, 1, 2, 0},
			{cutOff, 1, 1, 0},
			{cutOff, 1, 2, 0},
		}
	})
	// A holds all nodes. B waits and takes any free lock.
	outages := setup{
		nodes: 3, clients: 2, waiting: 0b10, rests: 2, calm: true, alone: true, orders: true, holds: 3, renews: 255, keeps: true,
		fences: even, faults: faults{outage: 2},
	}
	// A holds nodes 1 and 2, and another client has had 3 since. B cannot reach 1.
	superseded := setup{
		nodes: 3, clients: 2, calm: true, orders: true, after: true, holds: 2, renews: 1, cut: [3]uint8{0, first},
		fences: []int64{level, level, above + 32}, faults: faults{lock: 1},
	}
	reclaims := changed(superseded, func(s *setup) { // a quorum has kept the lock already
		s.renews = 2
		s.prelude = []move{
			{renew, 0, 0, 0},
			{execute, 0, 0, 0},
			{answer, 0, 0, 0},
			{execute, 0, 1, 0},
			{answer, 0, 1, 0},
			{execute, 0, 2, 0},
			{answer, 0, 2, 0},
		}
	})
	// A has detached its lease. B and C adopt it.
	adopters := setup{nodes: 3, clients: 3, adopts: 0b110, rests: 1, calm: true, alone: true, orders: true, holds: 3, fences: even, faults: faults{broken: 1}}
	undetached := setup{
		nodes: 3, clients: 2, adopts: 0b10, keeps: true, rests: 1, calm: true, orders: true, after: true, holds: 3, renews: 1,
		cut: [3]uint8{0, first}, fences: even,
	}
	// A acquires the lock by a request that is delivered twice. B adopts the lease, which A has not detached.
	taken := setup{
		nodes: 1, clients: 2, adopts: 0b10, keeps: true, rests: 1, calm: true, orders: true, after: true, renews: 2, fences: even,
		faults: faults{repeat: 1},
	}
	takenOfThree := changed(taken, func(s *setup) { s.nodes, s.renews, s.cut, s.faults.repeat = 3, 1, [3]uint8{third, third}, 2 })
	// B adopts the lease from one server that returns with older data, and C wants the lock.
	adoptsOlder := setup{
		nodes: 1, clients: 3, adopts: 0b010, rests: 255, calm: true, orders: true, holds: 1, fences: []int64{level}, faults: faults{older: 2},
	}
	// B adopts the lease from three nodes with different counters, one of which executes its commit late. C
	// cannot reach node 3.
	adoptsUneven := setup{
		nodes: 3, clients: 3, adopts: 0b010, rests: 1, calm: true, alone: true, orders: true, holds: 3,
		fences: []int64{level, above, above + 32}, cut: [3]uint8{0, 0, third}, fragile: 0b010, faults: faults{broken: 1},
	}
	// A renews with one of two TTLs. Requests on a broken connection are executed at any later time. B wants
	// the lock.
	lates := setup{nodes: 1, clients: 2, renews: 2, alone: true, spans: true, fragile: 0b01, faults: faults{broken: 1, stage: 1}}
	latesOfThree := setup{
		nodes: 3, clients: 2, holds: 2, renews: 2, calm: true, alone: true, spans: true, fragile: 0b01, cut: [3]uint8{third, third}, fences: even,
		faults: faults{broken: 2, stage: 1},
	}
	lateAcquire := changed(lates, func(s *setup) { s.waiting, s.deaf, s.rests, s.starts, s.renews = 0b01, 0b01, 1, true, 1 })
	lateAdopt := changed(lates, func(s *setup) {
		s.clients, s.holds, s.adopts, s.rests, s.starts, s.renews, s.fragile, s.fences = 3, 1, 0b010, 2, true, 1, 0b010, []int64{level}
	})
	without := func(s setup, m mutant) setup {
		s.mutant = m
		return s
	}

	const (
		both      = "two hold the lock"
		same      = "two grants share a token"
		lower     = "a later grant has a lower token"
		later     = "a later waiter is served first"
		goes      = "a lease goes on after another was committed"
		twiceOver = "one lease is adopted twice"
	)
	return []row{
		{name: "1 node, 3 attempts", world: one},
		{name: "3 nodes, 2 attempts", world: two},
		{name: "3 nodes, 2 attempts, clocks differ", world: changed(two, func(s *setup) { s.skew = 5 })},
		{name: "3 nodes, 3 attempts, each pair meets in one node", world: pairs, large: true},
		{name: "a client dies", world: changed(two, func(s *setup) { s.faults.crash = 1 }), large: true},
		{name: "a node forgets the lock: tokens", world: loss, large: true},
		{name: "a node forgets the lock, an acquire comes twice: tokens", world: twice, large: true},
		{name: "- commit without the owner", world: without(twice, mutant{commitByAnyone: true}), want: same},
		{name: "- commit of a token below that of the node's grant", world: without(twice, mutant{commitAnyToken: true}), want: same},
		{name: "other locks are granted: tokens", world: others, large: true},
		{name: "other locks are granted, a node forgets the lock, an acquire comes twice: tokens", world: othersTwice, large: true},
		{name: "a node forgets everything: tokens", world: changed(two, func(s *setup) { s.alone, s.cut, s.faults.wipe = false, [3]uint8{third, second}, 1 })},
		{name: "a replica that lags takes over, holders renew in its quarantine", world: fails, large: true},
		{name: "- no quarantine", world: changed(fails, func(s *setup) { s.gate = false }), want: both},
		{name: "- C11: tokens go on where the replica was", world: without(fails, mutant{lowTokens: true}), want: same},
		{name: "a replica that lags takes over, and clients wait", world: failsWaiting, large: true},
		{name: "a server comes back with older data: tokens", world: older, large: true},
		{name: "- C11: … and its tokens go on", world: without(older, mutant{lowTokens: true}), want: same},
		{name: "a server comes back with older data, and clients wait: tokens", world: olderWaiting, large: true},
		{name: "a slot leaves a shard with older data, and no floor is known: tokens", world: moves, large: true},
		{name: "- C13: a client starts later", world: without(moves, mutant{lateLow: true}), want: same},
		{name: "a slot leaves such a shard, and clients wait: tokens", world: movesWaiting, large: true},
		{name: "- C13: a client finds the slot elsewhere", world: without(movesWaiting, mutant{foundLow: true}), want: same},
		{name: "a node of three comes back with older data", world: olderOfThree, large: true},
		{name: "a counter is lost before a hand-over", world: handOver},
		{name: "- C1: a hand-over does not seed it", world: without(handOver, mutant{handOverUnseeded: true}), want: lower},
		{name: "a node forgets the lock, and hands it over: tokens", world: forgets, large: true},
		{name: "a counter is lost before a late renewal: tokens", world: paused, large: true},
		{name: "a clock jumps, and counters are lost: tokens", world: jumps},
		{name: "- C5: a counter starts at any time", world: without(jumps, mutant{seedAnyTime: true}), want: lower},
		{name: "the clocks of two nodes of three jump: tokens", world: jumpTwo, large: true},
		{name: "a connection breaks behind a give-back", world: back, large: true},
		{name: "- C3: the id goes on", world: without(back, mutant{keepID: true}), want: both},
		{name: "- C3: a grant that overtakes the failure counts", world: without(back, mutant{ignoreOwed: true}), want: both, large: true},

		{name: "2 waiters", world: waiters, live: true},
		{name: "2 waiters, wake-ups come apart", world: changed(waiters, func(s *setup) { s.apart = true }), live: true},
		{name: "2 waiters that may give up", world: changed(waiters, func(s *setup) { s.cancel = true }), large: true},
		{name: "2 waiters, two rounds to commit", world: uneven, live: true, large: true},
		{name: "2 waiters, a node is down", world: hasty, live: true},
		{name: "a holder and 2 waiters, a node is down", world: behind, live: true},
		{name: "2 waiters in line, the holder may die, a node is down", world: inLine, live: true, timers: 3},
		{name: "- C6: a free lock goes to any client that asks", world: without(inLine, mutant{barge: true}), want: later},
		{name: "3 waiters, a node is down", world: three, live: true, large: true},
		{name: "a waiter or holder dies", world: dies, live: true, timers: 3, large: true},
		{name: "2 wake-ups are lost, a node is down", world: lost, live: true, timers: 1},
		{name: "2 places lapse, a node is down", world: lapses, live: true, timers: 1},
		{name: "- C16: who asks again does not get its place again", world: without(lapses, mutant{staysOut: true}), live: true, timers: 1, want: tooSlow},
		{name: "a waiter's connection breaks, a node is down", world: breaks, live: true, timers: 2},
		{name: "wake-ups come apart, after the answers", world: overtaken},
		{name: "- C7: … and grant", world: without(overtaken, mutant{anyOrder: true}), want: both},
		{name: "a waiter is cut off", world: minority, live: true, timers: 2, large: true},
		{name: "- partial grants are held", world: without(hasty, mutant{keepPartial: true}), live: true, want: stuckForEver},
		{name: "- waiters in order of arrival", world: without(hasty, mutant{byArrival: true}), live: true, want: tooSlow},
		{name: "- C4: a node is kept for its giver", world: without(hasty, mutant{keepForGiver: true}), live: true, want: tooSlow},
		{name: "- C4: a wake-up asks one node", world: without(waiters, mutant{askOne: true}), live: true, want: tooSlow},
		{name: "a holder, a waiter, one node forgets after the other", world: outages, live: true, large: true},
		{name: "- C8: a node that does not have it stays lost", world: without(outages, mutant{regainNever: true}), live: true, want: stuckForEver},
		{name: "a holder is superseded, and a node forgets", world: superseded},
		{name: "- C8: a free lock is set again without a quorum of kept", world: without(superseded, mutant{anewAtOnce: true}), want: goes},
		{name: "a holder takes a node back, and one that kept the lock forgets", world: reclaims, want: goes},
		{name: "2 adopters, a connection breaks", world: adopters},
		{name: "- C9: a lease is adopted whosever it is", world: without(adopters, mutant{adoptAny: true}), want: both},
		{name: "- C9: … or nobody's", world: without(adopters, mutant{adoptFree: true}), want: twiceOver},
		{name: "a lease is adopted whose holder goes on", world: undetached},
		{name: "a lease is adopted, and its holder's acquire comes twice", world: taken},
		{name: "- C15: it is granted again", world: without(taken, mutant{regrants: true}), want: goes},
		{name: "a lease is adopted, and its holder's acquire comes twice, of three nodes", world: takenOfThree, large: true},
		{name: "- C15: … of three nodes", world: without(takenOfThree, mutant{regrants: true}), want: goes, large: true},
		{name: "a lease is adopted from a server that comes back with older data", world: adoptsOlder, live: true, timers: 2},
		{name: "a lease is adopted, counters differ, and a commit comes late", world: adoptsUneven, large: true},
		{name: "two TTLs, and a renewal is executed late", world: lates, large: true},
		{name: "- C14: a renewal shortens what a later one has promised", world: without(lates, mutant{shortens: true}), want: both},
		{name: "- C14: … and its client goes by the shorter TTL at once", world: without(lates, mutant{shortens: true, follows: true}), want: both},
		{name: "two TTLs, three nodes, and renewals are executed late", world: latesOfThree, large: true},
		{name: "- C14: … of three nodes", world: without(latesOfThree, mutant{shortens: true}), want: both, large: true},
		{name: "two TTLs, and an acquire is executed late", world: lateAcquire, large: true},
		{name: "- C14: an acquire shortens what a renewal has promised", world: without(lateAcquire, mutant{shortens: true}), want: both, large: true},
		{name: "two TTLs, and an adoption is executed late", world: lateAdopt, large: true},
		{name: "- C14: an adoption shortens what a renewal has promised", world: without(lateAdopt, mutant{shortens: true}), want: both, large: true},
		{
			name: "- known to a minority, and stays", world: without(minority, mutant{stay: true}), large: true,
			live: true, timers: 2, want: tooSlow,
		},
	}
}

// TestModel explores every row. Run it with -v for the table and the traces.
func TestModel(t *testing.T) {
	rows := append(modelRows(), memberRows()...)
	lines := make([]string, len(rows))
	t.Cleanup(func() {
		t.Logf("\n%-58s %9s %9s %7s  %s\n%s", "row", "states", "steps", "time", "result", strings.Join(lines, ""))
	})
	for i, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			if os.Getenv("HOLDFAST_LONG") == "" && (r.large || i%4 != 0) {
				t.Skip("one in four of the smaller rows runs here, and make model runs all")
			}
			t.Parallel()
			start := time.Now()
			got := explore[world, move](&r.world, stateLimit, r.live)
			broken := r.checkResult(got)
			took := time.Since(start).Round(10 * time.Millisecond)
			says := "holds"
			switch {
			case broken != "":
				says = fmt.Sprintf("%s, after %d steps", broken, len(got.trace))
			case r.live:
				says = fmt.Sprintf("all can finish, timers needed: %d", got.timers)
			}
			lines[i] = fmt.Sprintf("%-58s %9d %9d %7s  %s\n", r.name, got.states, got.edges, took, says)
			if broken != r.want {
				t.Errorf("got %q, want %q", broken, r.want)
			}
			if broken != "" {
				t.Logf("%s\n%s", broken, r.world.writeTrace(got.trace))
			}
		})
	}
}

// checkResult returns the property that broke.
func (r *row) checkResult(got result[move]) string {
	switch {
	case got.broken != "":
		return got.broken
	case !got.whole:
		return "not finished"
	case got.stuck > 0:
		return stuckForEver
	case got.timers > r.timers:
		return tooSlow
	}
	return ""
}
