package main

// waits: what ends a wait, and what is said of it.
var waits = []mutant{
	{
		name: "outage-at-the-start-ends-a-wait", rule: "who may wait, waits out an outage at the start too", file: seekGo,
		was: "if !c.possible(c.all() &^ c.Fatal) {", is: "if !c.possible(c.all() &^ (c.Fatal | c.Failed)) {",
		killers: []suite{unit("TestAWaiterOutlastsWhatTimeMends"), engine("TestAnEndedWaitSaysWhatStoodInTheWayLast")},
	},
	{
		name: "outage-is-polled-through", rule: "nodes that come back are asked at once", file: seekGo,
		was: "a.Subscribe = !c.Queueing", is: "a.Subscribe = answered && !c.Queueing",
		killers: []suite{unit("TestAnOutageAtTheStartEndsWithTheNews")},
	},
	{
		name: "old-failures-count", rule: "what an earlier round heard says nothing of this one", file: seekGo,
		was: "\tc.Failed &^= s\n\tc.send(s)", is: "\tc.send(s)",
		killers: []suite{unit("TestOldFailuresSayNothingOfTheNextRound")},
	},
	{
		name: "healthy-nodes-are-blamed", rule: "who had no time to answer is not to blame", file: "internal/quorum/engine/claim.go",
		was: "now >= by-timeout+min(timeout, overdue)", is: "now >= 0 && by > 0 && timeout > 0 && overdue > 0",
		killers: []suite{engine("TestUnavailableNamesThoseToBlameAndNoOthers")},
	},
	{
		name: "obstacle-is-told-once", rule: "what stands in the way is told as it changes", file: "internal/quorum/engine/obstacle.go",
		was: "c.obstacle == before {", is: "before != quorum.None {",
		killers: []suite{engine("TestObstaclesAreToldAsTheyChange")},
	},
	{
		name: "passing-refusals-end-a-wait", rule: "what passes by itself is waited out", file: "redlock/advice.go",
		was: "return slices.Contains([]string{\"ERR\",", is: "return !slices.Contains([]string{\"LOADING\",",
		killers: []suite{servers("TestAWaitOutlastsWhatPassesByItself", "TestOnlyWhatSomebodyMustMendIsFatal")},
	},
	{
		name: "credentials-are-waited-for", rule: "what time does not mend ends a wait", file: redisNodeGo,
		was: "Unsent: true, Fatal: lasting(err)", is: "Unsent: true, Fatal: lasting(nil)",
		killers: []suite{servers("TestAWaitEndsWhereCredentialsAreRefused")},
	},
	{
		name: "replica-keeps-its-connection", rule: "a node that says it is a replica is dialled anew", file: readGo,
		was: "\tif gone != nil {\n", is: "\tif gone == errForgot {\n",
		killers: []suite{servers("TestAReplicaIsDialledAnew")},
	},
	{
		name: "hung-node-is-always-skipped", rule: "a node that hangs is skipped where the others are a quorum", file: writeGo,
		was: " && (e.req.NoWait || l.n.spare()):", is: ":",
		killers: []suite{servers("TestAHungNodeIsSkippedOnlyWhereItCanBeSpared")},
	},
	{
		name: "broken-links-are-made-anew-at-once", rule: "only a connection that has worked ends the pauses", file: redisNodeGo,
		was: "if time.Since(begin) > probeMost {", is: "if !begin.IsZero() {",
		killers: []suite{servers("TestAConnectionThatBreaksSoonIsNotMadeAnewAtOnce")},
	},
	{
		name: "lua-console-is-a-listener", rule: "only who listens to the channel itself keeps a waiter alive", file: scripts + "pass.lua",
		was: "return reply.err ~= nil or reply[2] > 0", is: "return reply.err ~= nil or reply[2] >= 0",
		killers: []suite{servers("TestWhoLooksAtAllChannelsKeepsNoDeadWaiterAlive")},
	},
}
