package main

// memoryDriver is the tests of package memory, over nodes in this process.
func memoryDriver(tests ...string) suite {
	return suite{tier: "conformance", module: ".", pkg: "./memory", tests: only(tests...), time: inProcessTime, stalls: true}
}

// reclaims: when a holder gets a node back that others had since (C8).
var reclaims = []mutant{
	{
		name: "superseded-node-is-gone-for-good", rule: "C8: a holder gets back a node that others had since", file: holdGo,
		was: "\ta.Reclaim = c.Ripe\n", is: "\ta.Reclaim = 0\n",
		killers: []suite{
			unit("TestASupersededNodeIsReclaimedOnceAQuorumHasKeptTheLockSince"), memoryDriver("TestALeaseOutlivesOutagesOfOneNodeAfterTheOther"),
			model("a holder, a waiter, one node forgets after the other"),
		},
	},
	{
		name: "loss-is-told-to-nobody", rule: "a round that nobody awaits does not end a lease", file: holdGo,
		was: "if c.Unreported && !c.possible(c.all()&^c.Away) {", is: "if !c.possible(c.all() &^ c.Away) {",
		killers: []suite{unit("TestALossIsToldToWhoRenewsAndNothingIsReleasedBefore")},
	},
	{
		name: "detached-lease-goes-on", rule: "a lease that was detached lapses by itself", file: "internal/quorum/engine/claim.go",
		was: "if c.gone && c.state.Phase == quorum.Held", is: "if false && c.state.Phase == quorum.Held",
		killers: []suite{engine("TestNothingIsRenewedOrTakenBackForADetachedLease")},
	},
	{
		name: "reclaims-without-a-quorum", rule: "C8: a node is reclaimed once a quorum has kept the lock", file: holdGo,
		was: "if c.Token == 0 || !c.possible(c.Kept) {", is: "if c.Token == 0 {",
		killers: []suite{unit("TestASupersededNodeIsReclaimedOnceAQuorumHasKeptTheLockSince"), model("a holder is superseded, and a node forgets")},
	},
	{
		name: "reclaims-on-what-was-kept-before", rule: "C8: what was kept before the node was found free may have been another's since", file: holdGo,
		was: "\ta.Reclaim = c.Ripe\n", is: "\tc.Ripe |= c.Free\n\tc.Free = 0\n\ta.Reclaim = c.Ripe\n",
		killers: []suite{unit("TestWhatWasKeptBeforeTheNodeWasFoundFreeAllowsNoReclaim"), model("a holder reclaims, and a node forgets")},
	},
	{
		name: "reclaims-by-an-older-answer", rule: "C8: a node that others had since it was found free is found free anew", file: holdGo,
		was: "case c.Ripe&n == 0 || c.Base[e.Node] != e.Token:\n\t\tc.Ripe &^= n\n\t\tc.Free |= n\n", is: "case c.Ripe&n == 0:\n\t\tc.Ripe &^= n\n\t\tc.Free |= n\n\t\tfallthrough\n\tdefault:\n",
		killers: []suite{unit("TestANodeThatOthersHadSinceIsFoundFreeAnew")},
	},
	{
		name: "reclaims-whatever-the-counter-is", rule: "C8: a reclaim that comes late finds that others had the node", file: nodeGo,
		was: "l.Fence != fence || fence == 0", is: "l.Fence == 0 || fence == 0",
		killers: []suite{unit("TestReclaimTakesAFreeLockOfWhichNobodyHasHadAnySince"), model("a holder reclaims, and a node forgets")},
	},
	{
		name: "lua-reclaims-whatever-the-counter-is", rule: "C8: as before, in the script", file: scripts + "reclaim.lua",
		was: "redis.call('GET', fence) ~= ARGV[3]", is: "not redis.call('GET', fence)",
		killers: []suite{differential()},
	},
	{
		name: "taken-node-is-left-alone", rule: "a rival's partial grant is soon given back", file: holdGo,
		was: "if c.Free|c.Taken == 0 || c.Again == againMost {", is: "if c.Free == 0 || c.Again == againMost {",
		killers: []suite{unit("TestATakenNodeIsAskedAgainAFewTimes")},
	},
	{
		name: "half-a-round-is-a-risk", rule: "a lease is at risk by what a finished round has shown", file: holdGo,
		was: "if more || c.Renewing&^c.overdue(at) == 0 {", is: "if true {",
		killers: []suite{unit("TestARoundThatIsNotOverSaysNothingOfTheRisk")},
	},
	{
		name: "risk-is-told-each-time", rule: "that a lease is at risk is told once for each change", file: "renew.go",
		was: "if r.AtRisk != t.atRisk {", is: "if r.AtRisk {",
		killers: []suite{client("TestALeaseThatCanSpareNoNodeIsToldOfOnceForEachChange")},
	},
}

// adoptions: who continues a lease (C9).
var adoptions = []mutant{
	{
		name: "adopts-from-anybody", rule: "C9: a lease is adopted from whoever is named", file: nodeGo,
		was: `if l.Owner == "" || l.Owner != from && l.Owner != owner {`, is: `if l.Owner == "" {`,
		killers: []suite{unit("TestAdoptComparesWhoseTheLockIs"), model("2 adopters, a connection breaks"), conformance("OneGrantIsAdoptedOnce")},
	},
	{
		name: "adopts-what-is-free", rule: "C9: what was released or has lapsed is nobody's", file: nodeGo,
		was: `if l.Owner == "" || l.Owner != from && l.Owner != owner {`, is: `if l.Owner != "" && l.Owner != from && l.Owner != owner {`,
		killers: []suite{unit("TestAdoptComparesWhoseTheLockIs"), model("2 adopters, a connection breaks"), conformance("AdoptOfAReleasedGrantIsLost")},
	},
	{
		name: "lua-adopts-from-anybody", rule: "C9: as before, in the script", file: scripts + "adopt.lua",
		was: "if holder ~= from and holder ~= owner then", is: "if not holder then",
		killers: []suite{differential(), servers("TestOfTwoAdoptersOneHasTheLease")},
	},
	{
		name: "adopter-gives-up-at-once", rule: "a node that did not answer an adoption is asked again", file: seekGo,
		was: "if c.Adopts && c.possible(c.all()&^(c.Denied|c.Fatal)) {", is: "if c.Adopts && c.N == 0 {",
		killers: []suite{unit("TestAnAdopterAsksAgainWhereNoAnswerCame")},
	},
	{
		name: "adopted-lease-keeps-its-tokens", rule: "an adopted lease has later tokens", file: nodeGo,
		was: "if l.Owner == owner && l.Fence != 0 {\n\t\tl.FenceUntil", is: "if l.Fence != 0 {\n\t\tl.FenceUntil",
		killers: []suite{unit("TestAdoptComparesWhoseTheLockIs"), conformance("AdoptContinuesAGrant")},
	},
	{
		name: "id-alone-takes-a-lock", rule: "what only an id stands for is never taken anew", file: nodeGo,
		was: `case l.Owner != "", token == 0:`, is: `case l.Owner != "":`,
		killers: []suite{unit("TestARenewalWithoutATokenTakesNothing")},
	},
	{
		name: "lua-id-alone-takes-a-lock", rule: "as before, in the script", file: scripts + "renew.lua",
		was: "if holder or top == '' then", is: "top = top == '' and '32' or top\nif holder then",
		killers: []suite{differential()},
	},
	{
		name: "command-asks-for-no-token", rule: "holdfast renew and release compare owner and token", file: "cmd/holdfast/internal/cli/leasecmd.go",
		was: "if !t.among(st) {", is: "if !st.Held || st.Owner != t.Owner {",
		killers: []suite{shell("leases")},
	},
}
