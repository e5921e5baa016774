package main

const clockGo = "internal/clock/clock.go"

// clocks: the worse of two counts, everywhere.
var clocks = []mutant{
	{
		name: "suspend-is-hidden", rule: "a suspend counts for everybody as soon as anybody has noticed it", file: clockGo,
		was: "\t\tif c.last.CompareAndSwap(last, next) {\n\t\t\treturn mono + next.sum\n\t\t}",
		is: "\t\thalf := &step{mono: mono, lead: lead, sum: last.sum}\n\t\tif c.last.CompareAndSwap(last, half) {\n" +
			"\t\t\tc.last.CompareAndSwap(half, next)\n\t\t\treturn mono + next.sum\n\t\t}",
		killers: []suite{timed("TestASuspendIsHiddenFromNobody")},
	},
	{
		name: "old-reading-counts", rule: "a reading from before a step takes nothing back", file: clockGo,
		was: "|| mono < last.mono {", is: "{",
		killers: []suite{timed("TestTheClockAddsUpForwardSteps")},
	},
	{
		name: "suspend-does-not-count", rule: "time counts by the larger of two clocks", file: clockGo,
		was: "sum: last.sum + max(ahead, 0)}", is: "sum: last.sum}",
		killers: []suite{timed("TestTheClockAddsUpForwardSteps")},
	},
	{
		name: "count-ignores-the-monotonic-clock", rule: "time counts by the larger of two clocks", file: clockGo,
		was: "mono := int64(t.Sub(c.base))", is: "mono := int64(t.Round(0).Sub(c.base.Round(0)))",
		killers: []suite{timed("TestTheClockCountsByBothReadings")},
	},
	{
		name: "lease-ignores-the-wall-clock", rule: "a lease ends by the worse of two clocks", file: clockGo,
		was: "max(to.Sub(from), to.Round(0).Sub(from.Round(0)))", is: "to.Sub(from)",
		killers: []suite{timed("TestTimeIsMeasuredByTheWorseOfTwoClocks"), client("TestTrustEndsByTheWorseOfTwoClocks")},
	},
	{
		name: "lease-ignores-the-monotonic-clock", rule: "a lease ends by the worse of two clocks", file: clockGo,
		was: "max(to.Sub(from), to.Round(0).Sub(from.Round(0)))", is: "to.Round(0).Sub(from.Round(0))",
		killers: []suite{timed("TestTimeIsMeasuredByTheWorseOfTwoClocks"), client("TestTrustEndsByTheWorseOfTwoClocks")},
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
		name: "close-waits-for-nobody", rule: "Close waits for those who ask and release before it closes the driver", file: "shutdown.go",
		was:     "\tselect {\n\tcase <-c.vacant: // every caller has finished asking and releasing\n\tcase <-ctx.Done():\n\t}\n",
		is:      "",
		killers: []suite{client("TestCloseUnderLoadLeavesNothing")},
	},
	{
		name: "close-tells-of-no-failure", rule: "Close waits for the calls that it ends", file: "acquire.go",
		was: "\tdefer c.tasks.Done()\n", is: "\tc.tasks.Done()\n",
		killers: []suite{client("TestCloseReturnsWhenItHasToldWhomItSentAway")},
	},
	{
		name: "close-cancels-nobody", rule: "Shutdown and Close end what is asked", file: "shutdown.go",
		was: "s.asking.cancel != nil {", is: "s.asking.cancel != nil && s.term != nil {",
		killers: []suite{client("TestShutdownLetsHoldersFinish")},
	},
	{
		name: "grant-beside-close-is-kept", rule: "a grant that comes beside Close is released", file: "acquire.go",
		was: "\tending := c.ending\n", is: "\tending := false\n",
		killers: []suite{client("TestCloseUnderLoadLeavesNothing")},
	},
	{
		name: "gives-up-before-its-release", rule: "who gives up returns when the release is on its way", file: engineGo,
		was: "\t\tc.flush()\n\t\te.remove(c)\n", is: "\t\te.remove(c)\n",
		killers: []suite{engine("TestAClaimThatWasGivenUpIsForgotten")},
	},
	{
		name: "shutdown-waits-for-nobody", rule: "Shutdown lets the holders finish", file: "shutdown.go",
		was: "\tselect {\n\tcase <-c.vacant:\n", is: "\tselect {\n\tdefault:\n\tcase <-c.vacant:\n",
		killers: []suite{client("TestShutdownLetsHoldersFinish")},
	},
	{
		name: "do-hides-close", rule: "Do says so when Close took its lease", file: "acquire.go",
		was: "\t\tend := lease.ended()\n", is: "\t\tvar end error\n",
		killers: []suite{client("TestDoReportsTheEndThatCloseBrought")},
	},
	{
		name: "check-ends-the-lease", rule: "Check changes nothing", file: "lease.go",
		was:     "if err := ch.Check(ctx, grant); err != nil {\n",
		is:      "if err := ch.Check(ctx, grant); err != nil {\n\t\tc.lose(loss{l.term, errExpired})\n",
		killers: []suite{client("TestCheckChangesNothing")},
	},
	{
		name: "nested-options-are-ignored", rule: "a nested hold with other options is refused", file: "acquire.go",
		was: "\t\tif !opts.agrees(", is: "\t\tif opts.TTL < 0 && !opts.agrees(",
		killers: []suite{client("TestNestingWithOtherOptionsIsRefused")},
	},
	{
		name: "max-hold-of-the-one-before", rule: "MaxHold ends with its holder", file: "lease.go",
		was: "\tt.trust(t.granted)\n", is: "\tif t.passed == 0 {\n\t\tt.trust(t.granted)\n\t}\n",
		killers: []suite{client("TestMaxHoldEndsWithItsHolder")},
	},
	{
		name: "extend-ignores-max-hold", rule: "MaxHold bounds what is extended", file: "renew.go",
		was: "\t\tt.trust(r.TrustedUntil)\n\t\tt.given", is: "\t\tt.granted, t.trusted = r.TrustedUntil, r.TrustedUntil\n\t\tt.given",
		killers: []suite{client("TestMaxHoldBoundsWhatIsExtendedAndWhatIsNotRenewed")},
	},
	{
		name: "wrong-token-is-a-loss", rule: "a wrong token is no loss of the caller's", file: "inspect.go",
		was: "err = strangerError(token)", is: "err = ErrLost",
		killers: []suite{client("TestForceReleaseNeverHitsANewerHolder")},
	},
	{
		name: "hooks-are-called-in-place", rule: "a hook, and the Logger, hold up nobody", file: "hooks.go",
		was:     "func (h *herald) put(tell func()) {\n",
		is:      "func (h *herald) put(tell func()) {\n\tif tell != nil {\n\t\ttell()\n\t\treturn\n\t}\n",
		killers: []suite{client("TestAHookHoldsUpNoOtherLoss", "TestAHookHoldsUpNoRenewal", "TestAHookHoldsUpNoAcquireAndNoRelease")},
	},
	{
		name: "events-are-dropped-in-silence", rule: "what is dropped is counted and said", file: "hooks.go",
		was: "\t\th.queue[n-1].dropped++\n", is: "",
		killers: []suite{client("TestDroppedEventsAreCountedAndSaid")},
	},
	{
		name: "close-waits-for-hooks-for-ever", rule: "a hook that hangs does not hang Close", file: "hooks.go",
		was: "\tcase <-done:\n\tcase <-ctx.Done():\n", is: "\tcase <-done:\n",
		killers: []suite{client("TestAHookThatHangsDoesNotHangClose")},
	},
	{
		name: "force-takes-room", rule: "a full server lets a lock be taken away", file: scripts + "force.lua",
		was:     "redis.call('ZREM', queue, holder)\nblock(fence, '', ARGV[3])\n",
		is:      "block(fence, '', ARGV[3])\nredis.call('ZREM', queue, holder)\n",
		killers: []suite{servers("TestAFullServerFreesLocks")},
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

// obstacles: what is said to stand in the way.
var obstacles = []mutant{
	{
		name: "who-waits-is-said-to-hold", rule: "held is said of a holder, not of who waits", file: "local.go",
		was: "\t\treturn s.asking.obstacle\n", is: "\t\treturn &HeldError{Holder: holder}\n",
		killers: []suite{client("TestBehindALocalWaiterTheHolderIsNamed", "TestBehindALocalWaiterAnOutageIsNamed")},
	},
	{
		name: "obstacle-is-not-passed-on", rule: "who waits behind another hears what stands in his way", file: "local.go",
		was: "\tq.tell(obstacle)\n", is: "",
		killers: []suite{client("TestBehindALocalWaiterAnOutageIsNamed")},
	},
	{
		name: "an-end-is-an-outage", rule: "while no obstacle is known, the end of a context is nothing else", file: "acquire.go",
		was: "\tif !ended || obstacle == nil || obstacleIn(err) != nil {", is: "\tif obstacle == nil {\n\t\tobstacle = errTooShort\n\t}\n\tif !ended || obstacleIn(err) != nil {",
		killers: []suite{client("TestAContextThatEndsBeforeAnyAnswerIsNoOutage")},
	},
	{
		name: "wait-is-told-twice", rule: "a wait is told once", file: "local.go",
		was: "; ok && !a.told {", is: "; ok {",
		killers: []suite{client("TestBehindALocalWaiterTheHolderIsNamed")},
	},
}

// memory is the tests of the driver over nodes in the process.
func memory(tests ...string) suite {
	return suite{tier: "conformance", module: ".", pkg: "./memory", tests: only(tests...), time: inProcessTime, stalls: true}
}
