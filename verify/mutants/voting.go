package main

const (
	memberGo = scripts + "member.lua"
)

// voting: which servers may vote, and with what.
var voting = []mutant{
	{
		name: "no-quarantine", rule: "who may have forgotten does not vote before MaxTTL is over", file: gateGo,
		was: "restartMargin - out; wait > 0 {", is: "restartMargin - out; wait > 1<<62 {",
		killers: []suite{servers("TestANewNodeSitsOutItsQuarantineOnce", "TestARestartedNodeSitsOutItsQuarantine")},
	},
	{
		name: "durable-is-as-good-as-remembering", rule: "A1: what a node keeps is proved by its marker, not by its configuration", file: gateGo,
		was: "m.run != \"\" && m.durable == label(s.addr) && !g.outdated(m, s) && s.durable()", is: "s.durable()",
		killers: []suite{servers("TestWhoForgotSitsOutItsQuarantine", "TestADurableNodeThatWasReplacedSitsOutItsQuarantine")},
	},
	{
		name: "durable-for-once", rule: "what was answered in a run that was not durable may be lost", file: gateGo,
		was: "if s.durable() {", is: "{",
		killers: []suite{servers("TestADurableNodeThatRemembersVotesAtOnce")},
	},
	{
		name: "durable-data-of-another-node", rule: "replication and copied files bring the marker of a durable node to others", file: gateGo,
		was: "m.durable == label(s.addr)", is: "m.durable != \"\"",
		killers: []suite{servers("TestADurableNodeThatRemembersVotesAtOnce")},
	},
	{
		name: "old-data-vote", rule: "data of before the last run that was seen have forgotten it", file: gateGo,
		was: "!g.outdated(m, s) && s.durable()", is: "s.durable()",
		killers: []suite{servers("TestADurableNodeThatRemembersVotesAtOnce")},
	},
	{
		name: "one-clock-ends-a-quarantine", rule: "A3: a clock that is set does not make a node vote early", file: gateGo,
		was: "time.Duration(min(s.client-m.client, s.node-m.node))", is: "time.Duration(max(s.client-m.client, s.node-m.node))",
		killers: []suite{servers("TestANodesClockThatIsSetDoesNotEndItsQuarantine", "TestOneClientsWrongClockDoesNotEndAQuarantine")},
	},
	{
		name: "wrong-clock-keeps-a-node-out", rule: "a wrong clock at the first sight delays a node and does not keep it out", file: gateGo,
		was: "out := max(g.watched(text, s), ", is: "out := max(0*g.watched(text, s), ",
		killers: []suite{servers("TestAWrongClockAtTheFirstSightDelaysAndNoMore")},
	},
	{
		name: "watch-outlives-its-marker", rule: "a quarantine begins anew when data are lost again", file: gateGo,
		was: "if g.watches[s.addr].marker != text {", is: "if g.watches[s.addr].marker == \"\" {",
		killers: []suite{servers("TestAWatchEndsWithTheMarkerThatItWatched")},
	},
	{
		name: "other-charter-is-ours", rule: "clients of one set agree on its size and MaxTTL", file: gateGo,
		was: "case text != \"\" && !(ours && known):", is: "case text != \"\" && !(ours || known):",
		killers: []suite{servers("TestASetOpenedOtherwiseIsRefused")},
	},
	{
		name: "full-node-is-not-checked", rule: "A4: who cannot be admitted does not vote", file: gateGo,
		was: "if err := g.swap(l, key, text, next); err != nil {\n\t\t\treturn \"\", err", is: "if err := g.swap(l, key, text, next); err != nil {\n\t\t\treturn next, nil",
		killers: []suite{servers("TestAFullNodeIsCheckedOnceItHasRoom")},
	},
	{
		name: "lua-admission-without-compare", rule: "data that are wiped between a look and the step stop it", file: scripts + "admit.lua",
		was: "~= ARGV[1] then", is: "== false then",
		killers: []suite{servers("TestDataWipedBetweenALookAndItsStepDoNotVote")},
	},
	{
		name: "lua-anybodys-node-votes", rule: "each request shows that the node is the one that was admitted", file: memberGo,
		was: "if ARGV[#ARGV] ~= ''", is: "if ARGV[#ARGV] == '-'",
		killers: []suite{servers("TestDataWipedUnderAnOpenConnectionDoNotVote"), differential()},
	},
	{
		name: "nobody-looks-again", rule: "the gate looks again at a node that is not what was admitted", file: readGo,
		was: "\t\tl.hangUp(gone) // the gate looks again before anything else counts\n", is: "",
		killers: []suite{servers("TestAProxyThatSwitchesServersBringsNoOtherVote")},
	},
	{
		name: "run-does-not-matter", rule: "A2: a server whose restarts cannot be noticed does not vote among several", file: gateGo,
		was: "if g.n > 1 && run == \"\" {", is: "if g.n > 9 && run == \"\" {",
		killers: []suite{servers("TestAServerWithoutRunIDIsAloneOrNotAtAll")},
	},
	{
		name: "cluster-by-one-name", rule: "A5: a cluster node is known by every name of the field", file: gateGo,
		was: "case mode == \"cluster\" || info[\"cluster_enabled\"] == \"1\":", is: "case mode == \"cluster\":",
		killers: []suite{servers("TestAClusterNodeIsKnownByEachOfItsNames")},
	},
	{
		name: "wake-up-grants-out-of-order", rule: "A6: a wake-up grants only where it is known to keep its place", file: "redlock/wake.go",
		was: "if !n.inOrder() {", is: "if n == nil {",
		killers: []suite{servers("TestAWakeUpGrantsOnlyWhereItKeepsItsPlace")},
	},
	{
		name: "server-votes-twice", rule: "a server under two names has one vote", file: gateGo,
		was: "if r == run && other != addr && run != \"\" {", is: "if r == run && other == addr && run == \"-\" {",
		killers: []suite{servers("TestOpenRefusesOneServerUnderTwoNames")},
	},
	{
		name: "address-keeps-its-server", rule: "B7: addresses may swap their servers", file: gateGo,
		was: "delete(g.present, addr)", is: "delete(g.watches, addr)",
		killers: []suite{servers("TestAddressesMaySwapTheirServers")},
	},
	{
		name: "unfit-minority-fails-open", rule: "B8: Open fails only where no quorum is fit", file: "redlock/redlock.go",
		was: "case fit < u.Need:", is: "case fit < len(d.nodes):",
		killers: []suite{servers("TestOpenWarnsOfAnUnfitMinority")},
	},
	{
		name: "subscribed-connections-carry-everything", rule: "who cannot listen and ask over one connection polls", file: "redlock/abilities.go",
		was: "case values[1].IsError():\n\t\trep.mute =", is: "case values[1].IsError():\n\t\t_ =",
		killers: []suite{servers("TestAConnectionThatCannotBeSubscribedPolls")},
	},
	{
		name: "look-leaves-a-marker", rule: "who only looks writes nothing", file: gateGo,
		was: "if g.opts.ReadOnly {\n\t\treturn rep, g.look(l, n.addr, run)", is: "if g.opts.ReadOnly && g.look(l, n.addr, run) != nil {\n\t\treturn rep, nil",
		killers: []suite{servers("TestReadOnlyWritesNothing")},
	},
	{
		name: "prefixes-share-a-set", rule: "lock spaces with different prefixes know nothing of one another", file: "internal/wire/wire.go",
		was: "if lockPrefix == prefix {", is: "if lockPrefix != \"\" {",
		killers: []suite{servers("TestEachPrefixHasASetOfItsOwn")},
	},
	{
		name: "bare-keys-are-probed-anywhere", rule: "the rights for bare keys are tried where the documented ones reach", file: "redlock/keys.go",
		was: "if o.BareKeys {\n\t\tname = wire.Companion + name", is: "if o.DB > 99 {\n\t\tname = wire.Companion + name",
		killers: []suite{servers("TestBareKeysNeedNoRightsBeyondTheirOwn")},
	},
	{
		name: "full-node-is-well", rule: "a node that stores nothing is told of", file: redisNodeGo,
		was: "\t\tn.ill.Store(&err)\n", is: "\t\t_ = err\n",
		killers: []suite{servers("TestANodeThatIsFullIsAnEvent")},
	},
	{
		name: "cause-is-told-once", rule: "a node's new cause is a new event", file: redisNodeGo,
		was: "(e.State != told.State || cause(e.Err) != cause(told.Err))", is: "e.State != told.State",
		killers: []suite{servers("TestANewCauseIsANewEvent")},
	},
}
