package model

import (
	"time"

	"github.com/holdfast-go/holdfast/internal/member"
)

// memberRows returns the rows about nodes that may have forgotten their grants. A reaches nodes 1 and 2 and
// has the lock there, B is new and reaches 2 and 3. Faults hit node 2. A stage of time is a quarantine.
func memberRows() []row {
	three := member.Rules{Nodes: 3, MaxTTL: time.Duration(ttl)}
	of := func(change func(*setup)) setup {
		s := setup{
			nodes: 3, clients: 2, holds: 2, renews: 1, calm: true, alone: true, frozen: true, fences: []int64{level, level, level},
			cut: [3]uint8{third, first}, admits: &admissionRules{rules: three, hits: second}, faults: faults{stage: 1},
		}
		change(&s)
		return s
	}
	but := func(s setup, change func(*setup)) setup {
		a := *s.admits
		s.admits = &a
		change(&s)
		return s
	}
	without := func(s setup, m mutant) setup {
		s.mutant = m
		return s
	}
	const (
		both = "two hold the lock"
		same = "two grants share a token"
	)
	forgot := []move{{wipe, 0, 1, 0}}

	wiped := of(func(s *setup) { s.calm, s.faults.wipe = false, 1 })
	snapshot := of(func(s *setup) { s.faults.older = 1 })
	durable := of(func(s *setup) { s.admits.durable, s.faults.again = 0b111, 1 })
	replaced := of(func(s *setup) {
		s.admits.durable, s.admits.seen, s.renews, s.faults = 0b111, true, 0, faults{again: 1, older: 1}
	})
	others := of(func(s *setup) { s.admits.durable, s.faults.files = 0b111, 1 })
	replica := of(func(s *setup) { s.faults.copied = 1 })
	flushed := of(func(s *setup) { s.faults.flush, s.faults.broken = 1, 1 })
	inQuarantine := of(func(s *setup) { s.holds, s.admits.fresh, s.faults.flush = 0, second, 1 })
	// Clocks jump after node 2 has forgotten.
	clocks := func(f faults) setup {
		return of(func(s *setup) { s.prelude, s.faults = forgot, f; s.faults.wipe, s.faults.stage = 1, 1 })
	}
	nodesClock := clocks(faults{nodeClock: 2})
	clientsClock := clocks(faults{localClock: 2})
	bothClocks := clocks(faults{bothClocks: 1})
	brief := but(bothClocks, func(s *setup) { s.admits.brief, s.faults.stage = 0b11, 2 })
	otherSet := but(clocks(faults{}), func(s *setup) {
		s.admits.others, s.admits.half, s.faults.stage = &member.Rules{Nodes: 3, MaxTTL: 4 * time.Second}, true, 2
	})
	hidden := of(func(s *setup) { s.holds, s.admits.hidden, s.faults.older = 0, true, 1 })
	fails := of(func(s *setup) {
		s.nodes, s.holds, s.cut, s.admits.hits, s.admits.rules, s.faults.over = 1, 1, [3]uint8{}, first, three, 2
		s.admits.rules.Nodes, s.admits.rules.FailsOver = 1, true
	})
	// One server, which has no quarantine. Tokens.
	server := of(func(s *setup) {
		s.nodes, s.holds, s.cut, s.admits.hits, s.admits.rules.Nodes, s.faults = 1, 0, [3]uint8{}, first, 1, faults{older: 2}
		s.calm, s.alone, s.orders, s.frozen, s.fences = false, false, true, false, []int64{level}
	})
	unnamed := but(server, func(s *setup) { s.admits.hidden = true })
	return []row{
		{name: "a node restarts without its data", world: wiped, large: true},
		{name: "- it votes when its quarantine is over", world: but(wiped, func(s *setup) { s.admits.shows = true }), want: nodeVotes},
		{name: "- it votes before (quarantine=off)", world: but(wiped, func(s *setup) { s.admits.rules.NoQuarantine = true }), want: both, large: true},
		{name: "a node restarts with a snapshot and its marker", world: snapshot, large: true},
		{name: "- whatever run the marker names", world: without(snapshot, mutant{anyRun: true}), want: both},
		{name: "- and counts as durable", world: without(snapshot, mutant{durable: true}), want: both},
		{
			name: "- not promised: the same within one run", want: both,
			world: but(snapshot, func(s *setup) { s.faults.older, s.faults.restored = 0, 1 }),
		},
		{name: "a durable node restarts with its data", world: durable, large: true},
		{name: "- it votes at once", world: but(durable, func(s *setup) { s.admits.shows, s.faults.stage = true, 0 }), want: nodeVotes},
		{name: "a durable node restarts with a copy that all saw replaced", world: replaced},
		{name: "- and clients do not remember its runs", world: without(replaced, mutant{forgets: true}), want: both},
		{name: "- not promised: some have not seen it replaced", world: but(replaced, func(s *setup) { s.admits.seen = false }), want: both},
		{name: "a durable node restarts with the files of another", world: others, large: true},
		{name: "- whatever node the marker names", world: without(others, mutant{anyName: true}), want: both},
		{name: "REPLICAOF: a node gets another's data and marker", world: replica, large: true},
		{name: "- REPLICAOF: requests do not name the marker", world: without(replica, mutant{noProof: true}), want: both},
		{name: "- REPLICAOF: the marker may name any run", world: without(replica, mutant{anyRun: true}), want: both},
		{name: "FLUSHALL: data are wiped over open connections", world: flushed, large: true},
		{name: "- FLUSHALL: requests do not name the marker", world: without(flushed, mutant{noProof: true}), want: both},
		{name: "FLUSHALL in a quarantine", world: inQuarantine, large: true},
		{name: "- the marker is written without a comparison", world: without(inQuarantine, mutant{blindly: true}), want: both, large: true},
		{name: "- a client counts on from the marker before", world: without(inQuarantine, mutant{oldWatch: true}), want: both, large: true},
		{name: "a node forgets, and its clock is set ahead twice", world: nodesClock, large: true},
		{name: "- the node's clock decides alone", world: without(nodesClock, mutant{nodesClock: true}), want: both, large: true},
		{
			name: "- not promised: a node's clock is set ahead while it keeps a lock", want: both,
			world: but(nodesClock, func(s *setup) { s.prelude, s.admits.anyTime = nil, true }),
		},
		{name: "a node forgets, and a client's clock is set ahead twice", world: clientsClock},
		{name: "- the client's wall clock decides alone", world: without(clientsClock, mutant{ownClock: true}), want: both, large: true},
		{name: "- the client counts by its wall clock", world: without(clientsClock, mutant{wallClock: true}), want: both, large: true},
		{name: "a node forgets, and the clock of both is set ahead", world: bothClocks},
		{name: "- one period by wall clocks is enough", world: without(bothClocks, mutant{onePeriod: true}), want: both},
		{
			name: "- not promised: the clock of both is set ahead in both periods", want: both, large: true,
			world: but(bothClocks, func(s *setup) { s.faults.bothClocks = 2 }),
		},
		{name: "… and clients live for a second", world: brief, large: true},
		{name: "- one period is enough for them", world: without(brief, mutant{onePeriod: true}), want: both, large: true},
		{name: "- they let it vote", world: but(brief, func(s *setup) { s.admits.shows, s.faults.bothClocks = true, 0 }), want: nodeVotes},
		{name: "a client has another MaxTTL", world: otherSet},
		{name: "- it need not agree", world: without(otherSet, mutant{anySet: true}), want: both},
		{name: "nodes of three hide their run", world: hidden},
		{name: "- and vote", world: but(hidden, func(s *setup) { s.holds, s.mutant.hiddenRun = 2, true }), want: both},
		{name: "one server comes back with older data, clients look: tokens", world: server, large: true},
		{name: "- C11: its marker has no floor", world: without(server, mutant{lowTokens: true}), want: same},
		{name: "… and hides its run: tokens", world: unnamed},
		{name: "- C11: its connections have no floor", world: without(unnamed, mutant{lowTokens: true}), want: same},
		{name: "two servers take over from each other", world: fails, large: true},
		{name: "- the one that takes over has no quarantine", world: but(fails, func(s *setup) { s.admits.rules.NoQuarantine = true }), want: both},
		{name: "- the run does not name the promotion", world: without(fails, mutant{noPromotion: true}), want: both},
		{name: "- a node grants in its quarantine", world: without(fails, mutant{staysAndVotes: true}), want: both},
	}
}
