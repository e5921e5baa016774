package main

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// row is one configuration of a module, with its expected result.
type row struct {
	name   string
	module string    // name without extension
	set    constants // constants of the module
	holds  string    // the invariants that must hold
	breaks string    // the invariant that must be violated; "": none, TLC explores everything
	long   bool      // skipped by -short
}

// constants are the constants of a module, in TLC's notation.
type constants map[string]string

// with returns a copy of c with some constants changed.
func (c constants) with(changed constants) constants {
	c = maps.Clone(c)
	maps.Copy(c, changed)
	return c
}

// folder returns the name of the row's folder.
func (r row) folder() string {
	return strings.Trim(regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(r.name), "-"), "-")
}

// config returns TLC's configuration for the row.
func (r row) config() string {
	var text strings.Builder
	text.WriteString("SPECIFICATION Spec\nCHECK_DEADLOCK FALSE\nCONSTANTS\n")
	for _, name := range slices.Sorted(maps.Keys(r.set)) {
		fmt.Fprintf(&text, "  %s = %s\n", name, r.set[name])
	}
	switch {
	case r.module == redlock || r.set["Waiters"]+r.set["Adopters"]+r.set["CutOff"] == "{}{}{}":
		text.WriteString("SYMMETRY Alike\n")
	case r.set["CutOff"] == "{}":
		text.WriteString("SYMMETRY Symmetry\n") // without symmetry: the ids differ
	}
	invariants := r.breaks
	if r.holds != "" {
		invariants = typeOK + " " + r.holds
	}
	fmt.Fprintf(&text, "INVARIANTS %s\n", invariants)
	return text.String()
}

const (
	typeOK    = "TypeOK" // holds in each row that explores everything
	holdfast  = "Holdfast"
	redlock   = "Redlock"
	readWrite = "ReadWrite"
	one       = "{n1}"
	three     = "{n1, n2, n3}"
	two       = "{a, b}"
	trio      = "{a, b, c}"
)

// withEvents adds events to a row, beside acquire and release.
func withEvents(what ...string) constants {
	var quoted []string
	for _, w := range what {
		quoted = append(quoted, fmt.Sprintf("%q", w))
	}
	return constants{"Does": "{" + strings.Join(quoted, ", ") + "}"}
}

// rowWithoutRule returns a row with one rule turned off, in the smallest possible world.
func rowWithoutRule(rule string, r row, breaks string, change constants) row {
	r.name, r.holds, r.breaks, r.long = "without: "+rule, "", breaks, false
	r.set = r.set.with(change).with(constants{"Off": fmt.Sprintf("{%q}", rule)})
	return r
}

// asSlow marks a row that takes more than some seconds.
func (r row) asSlow() row {
	r.long = true
	return r
}

// inWorld returns a second row for the same rule, in another world.
func (r row) inWorld(world string) row {
	r.name += ", " + world
	return r
}

func specRows() []row {
	base := constants{
		"Nodes": three, "Ids": two, "Waiters": "{}", "Adopters": "{}", "CutOff": "{}", "TTLs": "{3}", "Drift": "1", "Block": "1", "MaxToken": "3",
		"Does": "{}", "Forgets": "0", "LosesLock": "0", "LosesCounter": "0", "Others": "0", "Off": "{}",
	}
	sound := func(name, holds string, change constants) row {
		return row{name: name, module: holdfast, set: base.with(change), holds: holds}
	}
	all := "P1 P2 P3 P9 P10"
	single := sound("1 node, 3 attempts that renew", all, withEvents("time", "late", "renew").with(constants{"Nodes": one, "Ids": trio, "MaxToken": "4"}))
	again := sound("1 node, 3 attempts that ask again and renew", all, single.set.with(withEvents("time", "late", "again", "renew")))
	// Two quorums of three nodes that share one node are the hard case: in rows with time, each client reaches
	// two nodes.
	meet := constants{"CutOff": two, "TTLs": "{2}"}
	tick := meet.with(constants{"TTLs": "{1}", "Drift": "0"})
	attempts := sound("3 nodes, 2 attempts that meet in one", all, withEvents("time").with(tick))
	plain := sound("3 nodes, 2 attempts", all, withEvents("late"))
	crowd := sound("3 nodes, 3 attempts", "P1 P2 P3", constants{"Ids": trio})
	forgets := sound("3 nodes, 2 attempts that meet in one, a node forgets everything", all, meet.with(constants{"Forgets": "1"}))
	tokens := sound("3 nodes, 2 attempts, a node forgets the lock and votes: tokens", "P1 P2", constants{"LosesLock": "1", "Others": "1", "MaxToken": "4"})
	counters := sound("3 nodes, 2 attempts, a counter is lost: tokens", "P1 P2", constants{"LosesCounter": "1"})
	others := sound("3 nodes, 2 attempts, other locks are granted", "P1 P2 P3", constants{"Others": "1"})
	spreads := sound("3 nodes, 2 attempts, a holder commits at nodes that grant late", "P1 P2 P3", others.set.with(withEvents("late", "spread")))
	writes := sound("3 nodes, 2 attempts that write at any time, a node forgets the lock and votes", "P1 P2 P4",
		withEvents("write").with(constants{"LosesLock": "1"}))
	waiters := sound("1 node, 2 waiters and one that does not wait", all, constants{
		"Nodes": one, "Ids": trio, "Waiters": "{b, c}", "Does": `{"deaf", "give back"}`, "MaxToken": "4",
	})
	waiting := sound("3 nodes, 2 waiters that meet in one: order of arrival", all+" P6", withEvents("give back").with(meet).with(constants{"Waiters": two}))
	adopts := sound("3 nodes, a lease is adopted by one of two", "P1 P2 P3 Once", constants{"Ids": trio, "Adopters": "{b, c}", "MaxToken": "4"})
	adopted := sound("3 nodes, a lease is adopted, and its holder renews", "P1 P2 P10 Taken", withEvents("late", "renew").with(constants{
		"Adopters": "{b}", "MaxToken": "4",
	}))
	forces := sound("1 node, 3 attempts, an operator forces leases", "P1 P2 P3", constants{
		"Nodes": one, "Ids": trio, "Does": `{"late", "force"}`, "MaxToken": "4",
	})
	const renewedAndForced, itsPromises = "3 nodes, a lease that is renewed and forced", "P9 P10 Taken"
	forced := sound(renewedAndForced, itsPromises, withEvents("time", "renew", "force").with(constants{"Ids": "{a}"}))
	forcedLate := sound(renewedAndForced+", late requests", itsPromises, withEvents("late", "renew", "force").with(constants{"Ids": "{a}"}))
	forcedLong := sound(renewedAndForced+", late requests, time passes", itsPromises,
		forced.set.with(withEvents("time", "late", "renew", "force")).with(constants{"TTLs": "{2}", "Drift": "0"}))
	twoTTLs := sound("1 node, 2 attempts with two TTLs", all, constants{"Nodes": one, "TTLs": "{2, 4}", "Does": `{"time", "late", "again", "renew"}`})
	superseded := sound("3 nodes, 2 attempts, a node forgets the lock: the lease ends", "Ends", withEvents("renew").with(constants{"LosesLock": "1"}))
	failover := sound("1 node that fails over, 2 attempts that renew", all+" Ends", withEvents("time", "renew", "slow").with(constants{
		"Nodes": one, "TTLs": "{2}", "Forgets": "1", "MaxToken": "4",
	}))
	failoverForce := sound("1 node that fails over, a lease is forced and another adopted", "P1 P2 P10 Taken", withEvents("time", "renew", "force").with(constants{
		"Nodes": one, "Adopters": "{b}", "TTLs": "{2}", "Forgets": "1", "MaxToken": "4",
	}))
	failoverWait := sound("1 node that fails over, an attempt and a waiter", all, withEvents("time", "renew").with(constants{
		"Nodes": one, "Waiters": "{b}", "TTLs": "{2}", "Forgets": "1", "MaxToken": "4",
	}))

	gate := row{
		name: "2 readers and a writer", module: readWrite, holds: "Exclusion Order NoCircle",
		set: constants{"Readers": "{a, b}", "Writers": "{w}", "Places": "{p, q}", "MaxToken": "4", "Forces": "0", "Off": "{}"},
	}
	gateOf2 := gate
	gateOf2.name, gateOf2.set = "a reader and 2 writers", gate.set.with(constants{"Readers": "{a}", "Writers": "{v, w}"})
	gateForced := gate
	gateForced.name, gateForced.holds = "2 readers and a writer, an operator forces the gate: exclusion", "Exclusion"
	gateForced.set = gate.set.with(constants{"Forces": "1"})

	published := constants{"Nodes": three, "Clients": two, "TTL": "3", "Drift": "1", "Pauses": "FALSE", "Restarts": "0", "DelayedRestart": "FALSE"}
	redlocks := func(name string, change constants, holds, breaks string) row {
		return row{name: name, module: redlock, set: published.with(change), holds: holds, breaks: breaks}
	}
	return []row{
		again.asSlow(), attempts.asSlow(), plain, crowd.asSlow(), forgets, tokens.asSlow(), counters, others, spreads, writes, waiters, waiting.asSlow(),
		adopts, adopted.asSlow(), forces, forced, forcedLate, forcedLong,
		twoTTLs, superseded, failover, failoverForce, failoverWait,
		gate, gateOf2, gateForced,

		rowWithoutRule("majority", attempts, "P3", withEvents()),
		rowWithoutRule("drift", single, "P3", nil),
		rowWithoutRule("from sending", single, "P3", nil),
		rowWithoutRule("deadline", single, "P3", nil),
		rowWithoutRule("deadline", single, "P9", nil).inWorld("P9"),
		rowWithoutRule("release compares the owner", single, "P3", withEvents()),
		rowWithoutRule("quarantine", forgets, "P3", tick),
		rowWithoutRule("quarantine", failover, "P3", nil).inWorld("1 node that fails over"),
		rowWithoutRule("quarantine grants nothing", failoverWait, "P1", nil),
		rowWithoutRule("never shortens", twoTTLs, "P3", nil),
		rowWithoutRule("never shortens", twoTTLs, "P10", nil).inWorld("P10"),
		rowWithoutRule("commit", others, "P1", nil),
		rowWithoutRule("commit compares the owner", tokens, "P1", withEvents("late")).asSlow(),
		rowWithoutRule("commit compares the token", tokens, "P1", withEvents("late")).asSlow(),
		rowWithoutRule("clock", counters, "P1", nil),
		rowWithoutRule("clock", counters, "P2", nil).inWorld("P2"),
		rowWithoutRule("admission sets a floor", failover, "P1", nil),
		rowWithoutRule("least", failover, "P1", nil),
		rowWithoutRule("storage checks", attempts, "P4", withEvents("time", "write")),
		rowWithoutRule("q nodes kept it first", superseded, "Ends", nil),
		rowWithoutRule("no grant before a give-back is answered", waiters, "P3", withEvents("give back")),
		rowWithoutRule("wake-ups in their place", waiters, "P3", withEvents("give back")),
		rowWithoutRule("first in line", waiting, "P6", nil),
		rowWithoutRule("adopt compares the owner", adopts, "P3", nil),
		rowWithoutRule("adopt takes no free lock", adopts, "Once", nil),
		rowWithoutRule("force compares the owner", forces, "P3", withEvents("force")),
		rowWithoutRule("what was taken is not granted again", forcedLate, "Taken", nil).inWorld("force"),
		rowWithoutRule("what was taken is not granted again", adopted, "Taken", nil).inWorld("adoption"),
		rowWithoutRule("a note outlasts the lease", forcedLong, "Taken", nil),
		rowWithoutRule("what was taken is not set again", failoverForce, "Taken", constants{"Adopters": "{}"}).inWorld("force"),
		rowWithoutRule("what was taken is not set again", failoverForce, "Taken", withEvents("time", "renew")).inWorld("adoption"),

		{
			name: "known: two trust a lease that is adopted while its holder goes on", module: holdfast, breaks: "P3strict",
			set: base.with(constants{"Adopters": "{b}"}),
		},
		{
			name: "known: a lease is forced, and another server takes over that has not heard of it", module: holdfast, breaks: "Taken",
			set: failoverForce.set.with(withEvents("time", "renew", "force", "stale")).with(constants{"Adopters": "{}"}),
		},
		{
			name: "known: a node drops the lock before its time, and votes", module: holdfast, breaks: "P3",
			set: base.with(constants{"LosesLock": "1"}),
		},

		rowWithoutRule("the gate is looked at after the place", gate, "Order", nil),
		rowWithoutRule("the gate is kept until the place is granted", gate, "Order", nil),
		rowWithoutRule("a writer takes the gate", gate, "Order", nil),
		rowWithoutRule("a writer takes the gate", gateOf2, "NoCircle", nil).inWorld("2 writers"),
		rowWithoutRule("a writer has all places", gate, "Exclusion", nil),
		rowWithoutRule("a writer keeps the places", gateForced, "Exclusion", nil),
		rowWithoutRule("a writer that reads on keeps a place", gateOf2, "Exclusion", nil),
		{
			name: "known: an operator forces the gate, and its holder has not heard of it", module: readWrite, breaks: "Order",
			set: gateForced.set,
		},

		redlocks("Redlock, nothing fails", nil, "P3 P4", ""),
		redlocks("Redlock, a client is paused before it writes: one holder", constants{"Pauses": "TRUE"}, "P3", ""),
		redlocks("Redlock, a client is paused before it writes", constants{"Pauses": "TRUE"}, "", "P4"),
		redlocks("Redlock, a server restarts without its memory", constants{"Restarts": "1"}, "", "P3"),
		redlocks("Redlock, a server restarts one TTL later", constants{"Restarts": "1", "DelayedRestart": "TRUE"}, "P3 P4", ""),
	}
}
