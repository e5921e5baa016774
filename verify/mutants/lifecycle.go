package main

const clockGo = "internal/engine/clock.go"

// clocks: the worse of two counts, everywhere.
var clocks = []mutant{
	{
		name: "suspend-is-hidden", rule: "a suspend counts for everybody as soon as anybody has noticed it", file: clockGo,
		was: "\t\tif c.last.CompareAndSwap(last, next) {\n\t\t\treturn mono + next.sum\n\t\t}",
		is: "\t\thalf := &step{mono: mono, lead: lead, sum: last.sum}\n\t\tif c.last.CompareAndSwap(last, half) {\n" +
			"\t\t\tc.last.CompareAndSwap(half, next)\n\t\t\treturn mono + next.sum\n\t\t}",
		killers: []suite{engine("TestASuspendIsHiddenFromNobody")},
	},
	{
		name: "old-reading-counts", rule: "a reading from before a step takes nothing back", file: clockGo,
		was: "|| mono < last.mono {", is: "{",
		killers: []suite{engine("TestTheClockAddsUpForwardSteps")},
	},
	{
		name: "suspend-does-not-count", rule: "time counts by the larger of two clocks", file: clockGo,
		was: "sum: last.sum + max(ahead, 0)}", is: "sum: last.sum}",
		killers: []suite{engine("TestTheClockAddsUpForwardSteps")},
	},
	{
		name: "lease-ignores-the-wall-clock", rule: "a lease ends by the worse of two clocks", file: "lease.go",
		was: "min(t.trusted.Sub(now), t.trusted.Round(0).Sub(now.Round(0)))", is: "t.trusted.Sub(now)",
		killers: []suite{client("TestTrustEndsByTheWorseOfTwoClocks")},
	},
	{
		name: "lease-ignores-the-monotonic-clock", rule: "a lease ends by the worse of two clocks", file: "lease.go",
		was: "min(t.trusted.Sub(now), t.trusted.Round(0).Sub(now.Round(0)))", is: "t.trusted.Round(0).Sub(now.Round(0))",
		killers: []suite{client("TestTrustEndsByTheWorseOfTwoClocks")},
	},
	{
		name: "time-left-of-the-best-node", rule: "a lock stands for as long as a quorum keeps it", file: "internal/engine/status.go",
		was: "left[u.Need-1]", is: "left[0]",
		killers: []suite{engine("TestTheTimeLeftIsThatOfTheLastNodeOfAQuorum")},
	},
}

// lifecycle: how a client begins and ends.
var lifecycle = []mutant{
	{
		name: "driver-may-be-a-typed-nil", rule: "New refuses what a failed Open returned", file: "client.go",
		was: "!v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()", is: "!v.IsValid()",
		killers: []suite{client("TestBadArgumentsAreRefusedAndChangeNothing")},
	},
	{
		name: "memory-takes-any-ttl", rule: "what works in memory works over servers with their defaults", file: "memory/memory.go",
		was: "MaxTTL: maxTTL, ", is: "",
		killers: []suite{memory("TestMemoryTakesNoLongerTTLThanServersDo")},
	},
	{
		name: "memory-tells-no-node-events", rule: "each change of a node is told", file: "memory/node.go",
		was: "\tif changed {", is: "\tif changed && s == running {",
		killers: []suite{memory("TestEachChangeOfANodeIsTold")},
	},
	{
		name: "create-collides", rule: "many programs may create the fence's table at once", file: "fence/internal/sqlguard/sqlguard.go",
		was: "err != nil && ctx.Err() == nil {", is: "err != nil && ctx.Err() != nil {",
		killers: []suite{{tier: "fence", module: "fence/sqlfence/sqltest", pkg: ".", tests: only("TestCreateMayBeCalledByManyAtOnce"), time: serverTime}},
	},
}

// memory is the tests of the driver over nodes in the process.
func memory(tests ...string) suite {
	return suite{tier: "conformance", module: ".", pkg: "./memory", tests: only(tests...), time: inProcessTime, stalls: true}
}
