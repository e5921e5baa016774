package main

const (
	claimGo     = "internal/quorum/claim.go"
	seekGo      = "internal/quorum/seek.go"
	holdGo      = "internal/quorum/hold.go"
	nodeGo      = "internal/quorum/node.go"
	timesGo     = "internal/quorum/times.go"
	tokenGo     = "internal/quorum/token.go"
	queueGo     = "internal/quorum/queue.go"
	setGo       = "internal/quorum/set.go"
	engineGo    = "internal/quorum/engine/engine.go"
	scripts     = "internal/wire/scripts/"
	fenceGo     = "fence/fence.go"
	runEndsGo   = "cmd/holdfast/internal/run/ends.go"
	sessionGo   = "cmd/holdfast/internal/run/session.go"
	runFreesGo  = "cmd/holdfast/internal/run/release.go"
	reportGo    = "cmd/holdfast/internal/report/report.go"
	inheritGo   = "cmd/holdfast/internal/report/report_unix.go"
	urlGo       = "redlock/url.go"
	gateGo      = "redlock/gate.go"
	pipelineGo  = "redlock/pipeline.go"
	writeGo     = "redlock/pipeline_write.go"
	readGo      = "redlock/pipeline_read.go"
	redisNodeGo = "redlock/node.go"
	inspectGo   = "redlock/inspect.go"
	statusGo    = "internal/quorum/engine/status.go"
	inProcess   = "./fence"
)

// all is the bugs, by the part of the protocol that they break.
var all = concat(votes, trust, ids, tokens, twins, lua, waiting, keeping, handOvers, leases, reclaims, adoptions, onServers, voting, looks, storages, commands, clocks, lifecycle, obstacles, waits, limits)

func concat(themes ...[]mutant) []mutant {
	var out []mutant
	for _, theme := range themes {
		out = append(out, theme...)
	}
	return out
}

// votes: who has a quorum.
var votes = []mutant{
	{
		name: "half-is-a-quorum", rule: "a quorum is N/2+1 nodes, not N/2", file: setGo,
		was: "return n/2 + 1 }", is: "return max(n/2, 1) }",
		killers: []suite{unit("TestDifferentBasesCommitTheHighest", "TestBusyNeedsAQuorumOfAnswers"), conformance("WithoutAMajorityTheNodesAreNamed"), sim(500), model("3 nodes, 2 attempts")},
	},
	{
		name: "half-of-an-even-number", rule: "of four nodes three are a quorum, not two", file: setGo,
		was: "return n/2 + 1 }", is: "return (n + 1) / 2 }",
		killers: []suite{sim(500)},
	},
	{
		name: "silent-nodes-count-as-free", rule: "no answer is no vote", file: seekGo,
		was: "c.Failed |= s\n\tc.Denied &^= s", is: "c.Failed |= s\n\tc.Granted |= s\n\tc.Denied &^= s",
		killers: []suite{unit("TestSilenceUntilTheDeadlineIsUnavailable")},
	},
}

// trust: until when a lease can be relied on.
var trust = []mutant{
	{
		name: "no-drift", rule: "clocks may run at different rates", file: timesGo,
		was: "return ttl/100 + 2*ms }", is: "return 0 }",
		killers: []suite{unit("TestDriftIsAHundredthAndTwoMilliseconds"), sim(1000)},
	},
	{
		name: "one-deadline-for-a-round", rule: "each request has its own time to be answered", file: claimGo,
		was: "c.AskBy[n] = at + RequestTimeout(c.TTL)", is: "if c.AskBy[n] == 0 {\n\t\t\tc.AskBy[n] = at + RequestTimeout(c.TTL)\n\t\t}",
		killers: []suite{unit("TestEachRequestHasItsOwnDeadline")},
	},
	{
		name: "trust-from-the-answer", rule: "validity counts from the send, not from the answer", file: seekGo,
		was:     "c.Until[e.Node] = max(c.Until[e.Node], e.Sent+e.TTL-Drift(e.TTL))",
		is:      "c.Until[e.Node] = max(c.Until[e.Node], e.At+e.TTL-Drift(e.TTL))",
		killers: []suite{unit("TestValidityCountsFromTheQuorumthLatestSend")},
	},
	{
		name: "renewed-trust-from-the-answer", rule: "a renewal counts from its send as well", file: holdGo,
		was: "e.Sent+ttl-Drift(ttl))", is: "e.At+ttl-Drift(ttl))",
		killers: []suite{unit("TestSlowRenewalDoesNotExtendTrust"), client("TestSlowRenewalDoesNotExtendTrust")},
	},
	{
		name: "trust-from-the-best-node", rule: "validity is that of the q-th node, not of the best", file: claimGo,
		was: "return best[c.Quorum()-1]", is: "return best[0]",
		killers: []suite{unit("TestValidityCountsFromTheQuorumthLatestSend"), sim(1000)},
	},
	{
		name: "no-look-at-the-time-after-the-wait", rule: "validity is tested after the last answer", file: seekGo,
		was: "trust > e.At {", is: "trust > 0 {",
		killers: []suite{unit("TestValidityIsTestedAfterTheLastReply", "TestTooLateAQuorumMakesAWaiterBeginAnew")},
	},
	{
		name: "validity-before-the-last-answer", rule: "validity is tested after the last answer, not at its send", file: seekGo,
		was: "trust > e.At {", is: "trust > e.Sent {",
		killers: []suite{unit("TestValidityIsTestedAfterTheLastReply", "TestTooLateAQuorumMakesAWaiterBeginAnew")},
	},
	{
		name: "late-renewal-revives", rule: "a renewal after the end of trust is a loss all the same", file: holdGo,
		was: "if c.Trust != 0 && e.At >= c.Trust && e.Kind != Release {", is: "if c.Trust != 0 && e.At >= c.Trust && e.Kind == Tick {",
		killers: []suite{unit("TestRenewalAfterTheEndOfTrustIsALoss")},
	},
	{
		name: "shorter-ttl-counts-from-its-answer", rule: "nodes may have a shorter TTL before they say so", file: holdGo,
		was: "c.Until[n] = min(c.Until[n], until)\n\t}\n\tc.Trust = min(c.Trust, until)", is: "_, _ = n, until\n\t}",
		killers: []suite{unit("TestShorterTTLShortensTrustAtOnce")},
	},
	{
		name: "old-answer-for-a-longer-ttl", rule: "what was asked before the TTL changed says nothing of the new one", file: holdGo,
		was: "if e.Sent >= c.Changed {", is: "if true {",
		killers: []suite{unit("TestAnswersOfBeforeAChangeOfTTLDoNotExtendTrust")},
	},
}

// ids: what belongs to which id, and when an id ends.
var ids = []mutant{
	{
		name: "epochs-are-ignored", rule: "a grant stops counting when its give-back is sent", file: claimGo,
		was: "(e.ID != c.ID || e.Epoch != c.Epoch[e.Node])", is: "e.ID != c.ID",
		killers: []suite{unit("TestGrantsOfBeforeAGiveBackDoNotCount")},
	},
	{
		name: "answers-to-dead-ids-count", rule: "an answer to an id that was released is void", file: claimGo,
		was: "(e.ID != c.ID || e.Epoch != c.Epoch[e.Node])", is: "e.Epoch != c.Epoch[e.Node]",
		killers: []suite{unit("TestAnswersToADeadIDAreVoid")},
	},
	{
		name: "id-survives-an-unanswered-give-back", rule: "C3: the give-back may still be executed: the id is dead", file: seekGo,
		was:     "if e.Of == AskGiveBack {\n",
		is:      "if e.Of == AskGiveBack {\n\t\t\tc.Owed &^= n\n\t\t\treturn\n\t\t}\n\t\tif e.Of == AskGiveBack && c.N == 0 {\n",
		killers: []suite{unit("TestUnansweredGiveBackEndsTheID"), model("a connection breaks behind a give-back")},
	},
	{
		name: "id-survives-an-overtaken-give-back", rule: "C3: an answer that overtakes the give-back's came over another connection", file: seekGo,
		was: "if c.Owed&n != 0 {\n\t\t\t// It overtook", is: "if c.N == 0 {\n\t\t\t// It overtook",
		killers: []suite{unit("TestGrantThatOvertakesAGiveBackEndsTheID"), model("a connection breaks behind a give-back")},
	},
	{
		name: "owed-node-counts-as-redundancy", rule: "C3: a node with a give-back out is relied on by nobody", file: holdGo,
		was: "if c.Owed&n != 0 {\n\t\treturn\n\t}\n\tc.Granted |= n", is: "c.Granted |= n",
		killers: []suite{unit("TestANodeThatOwesAGiveBackIsNoRedundancy")},
	},
	{
		name: "committed-id-goes-on", rule: "an id whose commit failed ends", file: seekGo,
		was: "if c.Token != 0 || !c.Queueing && c.Granted != 0 {", is: "if !c.Queueing && c.Granted != 0 {",
		killers: []suite{unit("TestACommittedRoundThatFailsEndsTheID")},
	},
}

// tokens: which token a grant has, on the client's side.
var tokens = []mutant{
	{
		name: "lowest-base-wins", rule: "the token is the highest base; a lower one no quorum can stand behind", file: seekGo,
		was: "top = max(top, base)", is: "if top = min(top, base); top == 0 {\n\t\t\ttop = base\n\t\t}",
		killers: []suite{unit("TestDifferentBasesCommitTheHighest")},
	},
	{
		name: "higher-base-agrees", rule: "a node that promised more does not stand behind the token", file: seekGo,
		was: "case c.Base[node] == c.Token:", is: "case c.Base[node] >= c.Token:",
		killers: []suite{unit("TestTokenIsFixedOnceAQuorumGranted")},
	},
	{
		name: "commit-is-not-awaited", rule: "an unanswered commit does not count", file: seekGo,
		was: "a.Commit |= n\n\t\tc.Pending |= n", is: "a.Commit |= n\n\t\tc.Agreed |= n\n\t\tc.Pending |= n",
		killers: []suite{unit("TestDifferentBasesCommitTheHighest"), model("a node forgets the lock, an acquire comes twice: tokens")},
	},
}

// twins: what a node does, in Go.
var twins = []mutant{
	{
		name: "commit-without-owner", rule: "commit needs the lock, or two grants share a token", file: nodeGo,
		was: "if l.Owner != owner || l.Fence > Top(token) {", is: "if l.Fence > Top(token) {",
		killers: []suite{unit("TestCommitNeedsTheOwner"), differential(), model("a node forgets the lock, an acquire comes twice: tokens")},
	},
	{
		name: "commit-below-the-counter", rule: "commit needs F <= T+B-1, or two grants share a token", file: nodeGo,
		was: "if l.Owner != owner || l.Fence > Top(token) {", is: "if l.Owner != owner {",
		killers: []suite{unit("TestCommitNeverLowersTheCounter"), differential(), model("a node forgets the lock, an acquire comes twice: tokens")},
	},
	{
		name: "release-without-compare", rule: "nobody releases another's lock", file: nodeGo,
		was: "if l.Owner != owner && (l.Owner != \"\" || stamp != 0) {", is: "if l.Owner == \"\" && stamp != 0 {",
		killers: []suite{unit("TestReleaseByAnotherOnlyWithdraws"), differential(), model("1 node, 3 attempts")},
	},
	{
		name: "renewal-after-a-newer-grant", rule: "a lock is not taken again where a newer grant has been (F > T)", file: nodeGo,
		was: "case l.Fence > Top(token):\n\t\treturn l, RenewSuperseded", is: "case l.Fence < 0:\n\t\treturn l, RenewSuperseded",
		killers: []suite{unit("TestRenewCases"), differential()},
	},
	{
		name: "late-renewal-seeds-its-token", rule: "C2: a renewal seeds a lost counter from the clock", file: nodeGo,
		was: "l.promise(Top(max(token, start)), now, ttl)", is: "l.promise(Top(max(token, start-start)), now, ttl)",
		killers: []suite{unit("TestRenewCases"), differential(), model("a counter is lost before a late renewal: tokens")},
	},
	{
		name: "counter-keeps-its-first-expiry", rule: "C1: every write of the counter prolongs its life", file: nodeGo,
		was:     "{ l.Fence, l.FenceUntil = top, now/1000+FenceKeep(ttl) }",
		is:      "{\n\tif l.Fence == 0 {\n\t\tl.FenceUntil = now/1000 + FenceKeep(ttl)\n\t}\n\tl.Fence = top\n}",
		killers: []suite{unit("TestEveryGrantKeepsTheCounterAlive"), differential()},
	},
	{
		name: "lost-counter-starts-at-zero", rule: "a new counter starts at the clock", file: nodeGo,
		was: "\tif l.Fence == 0 {\n\t\tif base, ok =", is: "\tif l.Fence < 0 {\n\t\tif base, ok =",
		killers: []suite{unit("TestNewCounterStartsAtTheClock"), differential()},
	},
	{
		name: "wild-clock-is-believed", rule: "a client's clock seeds a counter only within a second of the node's", file: tokenGo,
		was: "case off > ClockTrust:", is: "case now-clock > ClockTrust:",
		killers: []suite{unit("TestNewCounterStartsAtTheClock"), differential()},
	},
	{
		name: "counter-starts-at-any-time", rule: "C5: no counter starts where clocks differ by more than a minute", file: tokenGo,
		was: "case off > ClockMost:", is: "case clock == noClock:",
		killers: []suite{unit("TestNoCounterStartsWhereClocksDifferByMoreThanAMinute"), differential(), model("a clock jumps, and counters expire: tokens")},
	},
	{
		name: "denial-counts-up", rule: "F is not touched by a denial", file: nodeGo,
		was: "return l, AcquireReply{Holder: l.Owner, Left: l.Until", is: "l.Fence++\n\t\treturn l, AcquireReply{Holder: l.Owner, Left: l.Until",
		killers: []suite{unit("TestDenialDoesNotTouchTheCounter"), differential()},
	},
	{
		name: "give-back-keeps-the-node", rule: "C4: a give-back by the first in the queue leaves the lock free", file: nodeGo,
		was: "if head, _ := l.Queue.Head(); head != from {", is: "if head, _ := l.Queue.Head(); head != from+\"!\" {",
		killers: []suite{unit("TestGiveBackByTheHeadLeavesTheLockFree"), differential(), model("2 waiters, a node is down")},
	},
	{
		name: "deaf-waiter-is-handed-the-lock", rule: "a waiter whose client is gone is skipped", file: nodeGo,
		was: "if hears(head) {", is: "if hears(head) || true {",
		killers: []suite{unit("TestReleaseSkipsWaitersThatDoNotHear"), differential()},
	},
	{
		name: "force-without-compare", rule: "force hits the grant of its token and no newer one", file: nodeGo,
		was: "if l.Owner == \"\" || l.Fence == 0 || !InBlock(token, Base(l.Fence)) {", is: "if l.Owner == \"\" || l.Fence == 0 {",
		killers: []suite{unit("TestForceComparesTheToken"), client("TestForceReleaseNeverHitsANewerHolder"), conformance("ForceReleaseComparesTheToken"), differential()},
	},
	{
		name: "force-leaves-the-counter", rule: "a holder who was forced out can neither renew nor write", file: nodeGo,
		was: "l.block(now, noClock, ttl)\n\tl.Queue = l.Queue.Without(l.Owner)", is: "l.Queue = l.Queue.Without(l.Owner)",
		killers: []suite{unit("TestForcedHolderCannotRenew"), differential()},
	},
	{
		name: "queue-by-arrival", rule: "waiters are ordered by their stamp, or each node has another head", file: queueGo,
		was: "if at < 0 && (s > stamp || s == stamp && o > owner) {", is: "if at < 0 && s < 0 {",
		killers: []suite{unit("TestQueueOrdersLikeASortedSet"), differential()},
	},
}

// lua: what a node does, on a server.
var lua = []mutant{
	{
		name: "lua-commit-without-owner", rule: "commit needs the lock, or two grants share a token", file: scripts + "commit.lua",
		was: "if holding(KEYS[1]) ~= ARGV[1] then", is: "if not holding(KEYS[1]) then",
		killers: []suite{differential()},
	},
	{
		name: "lua-other-types-are-errors", rule: "a key of another type is held, and no node is unavailable for it", file: scripts + "holder.lua",
		was: "redis.pcall('GET', lock)", is: "redis.call('GET', lock)",
		killers: []suite{differential(), servers("TestAKeyOfAnotherTypeIsHeld")},
	},
	{
		name: "lua-empty-values-are-free", rule: "an empty value is held for everybody", file: scripts + "holder.lua",
		was: "return value == '' and '(empty)' or value", is: "return value",
		killers: []suite{differential(), servers("TestAnEmptyValueIsHeld")},
	},
	{
		name: "lua-commit-below-the-counter", rule: "commit needs F <= T+B-1, or two grants share a token", file: scripts + "commit.lua",
		was: "if top and tonumber(top) > tonumber(ARGV[2]) then", is: "if top and tonumber(top) < 0 then",
		killers: []suite{differential()},
	},
	{
		name: "lua-counters-compared-as-text", rule: "counters are compared as numbers", file: scripts + "commit.lua",
		was: "if top and tonumber(top) > tonumber(ARGV[2]) then", is: "if top and top > ARGV[2] then",
		killers: []suite{differential()},
	},
	{
		name: "lua-release-without-compare", rule: "nobody releases another's lock", file: scripts + "release.lua",
		was: "local mine = holder == owner", is: "local mine = holder",
		killers: []suite{differential()},
	},
	{
		name: "lua-release-forgets-the-waiters", rule: "a release serves who waits", file: scripts + "release.lua",
		was: "redis.call('ZCARD', queue) == 0 then", is: "redis.call('ZCARD', queue) <= 1 then",
		killers: []suite{differential()},
	},
	{
		name: "lua-renewal-without-compare", rule: "nobody renews another's lock", file: scripts + "renew.lua",
		was: "if holder == owner then", is: "if holder then",
		killers: []suite{differential()},
	},
	{
		name: "lua-renewal-after-a-newer-grant", rule: "a lock is not taken again where a newer grant has been (F > T)", file: scripts + "renew.lua",
		was: "if highest and tonumber(highest) > tonumber(top) then", is: "if highest and tonumber(highest) < 0 then",
		killers: []suite{differential()},
	},
	{
		name: "lua-late-renewal-seeds-its-token", rule: "C2: a renewal seeds a lost counter from the clock", file: scripts + "renew.lua",
		was: "if start + 31 > tonumber(top) then", is: "if start < 0 then",
		killers: []suite{differential()},
	},
	{
		name: "lua-counter-keeps-its-first-expiry", rule: "C1: every write of the counter prolongs its life", file: scripts + "block.lua",
		was: "    redis.call('PEXPIRE', fence, keep)\n", is: "",
		killers: []suite{differential()},
	},
	{
		name: "lua-renewal-leaves-the-counters-expiry", rule: "C1: a renewal prolongs the counter's life too", file: scripts + "renew.lua",
		was: "  redis.call('PEXPIRE', fence, keep)\n", is: "",
		killers: []suite{differential()},
	},
	{
		name: "lua-token-joined-as-text", rule: "numbers are never joined with .., which loses digits", file: scripts + "block.lua",
		was: "string.format('%.0f', start + 31)", is: "(start + 31) .. ''",
		killers: []suite{differential()},
	},
	{
		name: "lua-wild-clock-is-believed", rule: "a client's clock seeds a counter only within a second of the node's", file: scripts + "seed.lua",
		was: "if math.abs(ahead) > 1000000 then", is: "if ahead > 1000000 then",
		killers: []suite{differential()},
	},
	{
		name: "lua-counter-starts-at-any-time", rule: "C5: no counter starts where clocks differ by more than a minute", file: scripts + "seed.lua",
		was: "if math.abs(ahead) > 60000000 then", is: "if start == 0 then",
		killers: []suite{differential()},
	},
	{
		name: "lua-refusal-keeps-the-lock", rule: "C5: a counter that does not start leaves nothing behind", file: scripts + "acquire.lua",
		was: "    redis.call('DEL', lock)\n", is: "",
		killers: []suite{differential()},
	},
	{
		name: "lua-again-counts-up", rule: "asking again is harmless", file: scripts + "acquire.lua",
		was: "  return tonumber(top) - 31", is: "  return block(fence, clock, keep) - 31",
		killers: []suite{differential()},
	},
	{
		name: "lua-queue-by-arrival", rule: "waiters are ordered by their stamp, or each node has another head", file: scripts + "acquire.lua",
		was: "redis.call('ZADD', queue, 'NX', stamp, owner)", is: "redis.call('ZADD', queue, 'NX', redis.call('ZCARD', queue), owner)",
		killers: []suite{differential()},
	},
	{
		name: "lua-place-is-lost-by-asking", rule: "asking again keeps the place", file: scripts + "acquire.lua",
		was: "redis.call('ZADD', queue, 'NX', stamp, owner)", is: "redis.call('ZADD', queue, stamp, owner)",
		killers: []suite{differential()},
	},
	{
		name: "lua-deaf-waiter-is-handed-the-lock", rule: "a waiter whose client is gone is skipped", file: scripts + "pass.lua",
		was: "if heard > 0 and listened(channel) then", is: "if true then",
		killers: []suite{differential()},
	},
	{
		name: "lua-give-back-keeps-the-node", rule: "C4: a give-back by the first in the queue leaves the lock free", file: scripts + "pass.lua",
		was: "if head ~= from then", is: "if true then",
		killers: []suite{differential()},
	},
	{
		name: "lua-hand-over-without-tokens", rule: "a hand-over is a grant, with tokens of its own", file: scripts + "pass.lua",
		was: "local top = head and block(fence, '', keep)", is: "local top = redis.call('GET', fence)",
		killers: []suite{differential()},
	},
	{
		name: "lua-force-without-compare", rule: "force hits the grant of its token and no newer one", file: scripts + "force.lua",
		was: "if token > top or token < top - 31 then", is: "if token > top then",
		killers: []suite{differential()},
	},
	{
		name: "vector-promises-another-reply", rule: "what other languages are tested with is what servers do", file: "docs/vectors.json",
		was: `"args": ["a.1","1030","600000",""],
      "reply": 0`,
		is: `"args": ["a.1","1030","600000",""],
      "reply": 1`,
		killers: []suite{vectors()},
	},
}

// waiting: the queue, on the client's side.
var waiting = []mutant{
	{
		name: "partial-grants-are-held", rule: "nothing is held while waiting", file: seekGo,
		was: "\tc.giveBack(a)\n\tswitch {", is: "\tswitch {",
		killers: []suite{unit("TestPartialGrantsGoBackAndThePlaceIsKept"), model("2 waiters, a node is down")},
	},
	{
		name: "wake-up-asks-one-node", rule: "C4: a wake-up asks every node", file: seekGo,
		was: "others := c.all() &^ (c.Granted | c.Asked | n)", is: "others := Set(0)",
		killers: []suite{unit("TestAWakeUpAsksEveryNode"), model("2 waiters")},
	},
	{
		name: "wake-up-behind-a-request-is-ignored", rule: "a wake-up asks its node even while a request is out", file: seekGo,
		was: "c.ask(n|others, e.At, a)", is: "c.ask(n&^c.Asked|others, e.At, a)",
		killers: []suite{unit("TestAWakeUpAsksItsNodeWhileARequestIsOut")},
	},
	{
		name: "wake-up-does-not-ask-where-it-gave-back", rule: "C4: who left a node to nobody asks it at a wake-up", file: seekGo,
		was: "others &^= c.Queued &^ c.Back", is: "others &^= c.Queued",
		killers: []suite{unit("TestAHandOverAsksWhereTheLockWasGivenBack"), model("2 waiters")},
	},
	{
		name: "old-denials-count", rule: "denials from before a wake-up say nothing of after it", file: seekGo,
		was: "c.Back &^= s\n\tc.Denied &^= s", is: "c.Back &^= s",
		killers: []suite{unit("TestAHandOverOutlastsSlowNodes")},
	},
	{
		name: "hand-over-counts-from-its-arrival", rule: "a hand-over stands from the last request that was answered before it", file: seekGo,
		was: "e.Sent = c.Answered[e.Node]", is: "e.Sent = e.At",
		killers: []suite{unit("TestAWakeUpWithATokenIsAGrant"), sim(1000)},
	},
	{
		name: "hand-over-counts-behind-a-give-back", rule: "C7: what a node granted before a give-back is void", file: seekGo,
		was: "&& c.Owed&n == 0 && left", is: "&& left",
		killers: []suite{unit("TestAHandOverIsAskedAfterWhereItMayBeOver")},
	},
	{
		name: "hand-over-counts-to-its-end", rule: "a hand-over that is half over is confirmed first", file: seekGo,
		was: "left >= max(e.TTL/2, 8*c.Trip)", is: "left >= 8*c.Trip",
		killers: []suite{unit("TestAHandOverIsAskedAfterWhereItMayBeOver")},
	},
	{
		name: "hand-over-outlives-the-own-ttl", rule: "a request that is out may shorten what the last holder gave", file: seekGo,
		was: "e.TTL = min(e.TTL, HandOver(c.TTL))", is: "_ = c.TTL",
		killers: []suite{unit("TestAHandOverIsTrustedForNoMoreThanTheOwnTTL")},
	},
	{
		name: "hand-over-without-time-to-renew", rule: "where round trips are slow, a hand-over is confirmed first", file: seekGo,
		was: "left >= max(e.TTL/2, 8*c.Trip)", is: "left >= e.TTL/2",
		killers: []suite{unit("TestAHandOverIsAskedAfterWhereItMayBeOver")},
	},
	{
		name: "hand-over-with-nothing-left", rule: "a lease lasts until it can be renewed", file: seekGo,
		was: "trust-e.At < HandOver(c.TTL)/4 {", is: "trust < 0 {",
		killers: []suite{unit("TestAHandOverWithLittleLeftIsConfirmedFirst")},
	},
	{
		name: "token-outlives-its-grant", rule: "a node that grants anew has to agree anew", file: seekGo,
		was: "if c.Base[e.Node] != e.Token {", is: "if c.N == 0 {",
		killers: []suite{unit("TestANodeThatGrantsAnewHasToAgreeAnew")},
	},
	{
		name: "wake-up-for-a-dead-id-counts", rule: "a wake-up is for the id that it names", file: "internal/quorum/engine/claim.go",
		was: "quorum.Woken && a.woken != c.owner {", is: "quorum.Woken && a.woken == \"\" {",
		killers: []suite{engine("TestAWakeUpForAnIDThatIsGoneGrantsNothing")},
	},
	{
		name: "release-keeps-a-free-lock", rule: "a release passes on a lock that nobody holds", file: nodeGo,
		was: "if l.Owner != owner && (l.Owner != \"\" || stamp != 0) {", is: "if l.Owner != owner {",
		killers: []suite{unit("TestReleasePassesOnAFreeLock"), differential()},
	},
	{
		name: "lua-release-keeps-a-free-lock", rule: "a release passes on a lock that nobody holds", file: scripts + "release.lua",
		was: "if mine or not holder and stamp == '' then", is: "if mine then",
		killers: []suite{differential()},
	},
	{
		name: "lua-give-back-tells-a-token", rule: "only what all nodes are told to do needs no question", file: scripts + "release.lua",
		was: "ARGV[4], stamp == '')", is: "ARGV[4], true)",
		killers: []suite{differential()},
	},
	{
		name: "minority-waiter-stays", rule: "who is known to a minority withdraws", file: seekGo,
		was: "case c.Queueing && !c.possible(c.Queued|c.Asked):", is: "case c.Queueing && c.N == 0:",
		killers: []suite{unit("TestAWaiterKnownToAMinorityWithdraws")},
	},
	{
		name: "deaf-client-queues", rule: "nobody queues before its wake-ups are heard", file: seekGo,
		was: "c.Queueing = c.Stamp != 0 && c.possible(c.Heard)", is: "c.Queueing = c.Stamp != 0",
		killers: []suite{unit("TestNobodyQueuesBeforeItHears")},
	},
	{
		name: "new-subscription-does-not-ask", rule: "what was missed while deaf is asked for", file: seekGo,
		was: "c.ask(fresh&^c.Granted, e.At, a)", is: "_ = fresh",
		killers: []suite{unit("TestANewSubscriptionAsksWhatWasMissed")},
	},
	{
		name: "no-fallback", rule: "a lost wake-up is survived by the waiter's own timer", file: seekGo,
		was: "c.Rest = e.At + c.fallback(e.Rand)", is: "c.Rest = 0",
		killers: []suite{unit("TestLostWakeUpsAreSurvivedByTheFallback")},
	},
	{
		name: "give-up-leaves-a-request", rule: "a caller that gives up leaves nothing behind", file: engineGo,
		was: "\t\tc.begin(quorum.Event{Kind: quorum.Release}, nil)\n\t\tc.flush()\n\t\te.remove(c)", is: "\t\te.remove(c)",
		killers: []suite{conformance("CancelAtAnyPointLeavesNothing")},
	},
	{
		name: "fresh-id-is-unknown", rule: "a claim is found by the id that it goes by now", file: engineGo,
		was: "\t\te.claims[fresh] = c\n", is: "\t\t_ = c\n",
		killers: []suite{client("TestALeaseWonUnderAFreshIDIsRenewed")},
	},
}

// keeping: renewal and loss, in the protocol and in the client.
var keeping = []mutant{
	{
		name: "minority-renews", rule: "a renewal needs a quorum", file: holdGo,
		was: "case c.possible(done):\n\t\ta.Outcome, c.Unreported = good, false", is: "case done != 0:\n\t\ta.Outcome, c.Unreported = good, false",
		killers: []suite{unit("TestRenewalNeedsAQuorum")},
	},
	{
		name: "taken-away-is-not-lost", rule: "a majority of not mine is a loss", file: holdGo,
		was: "if c.Unreported && !c.possible(c.all()&^c.Away) {\n\t\t\tc.lose(e.At, a)\n\t\t\treturn\n\t\t}", is: "",
		killers: []suite{unit("TestAMajorityOfNotMineIsALoss"), client("TestLostByMajorityIsNoticedAtTheNextRenewal")},
	},
	{
		name: "lost-lease-is-not-released", rule: "a lost lease is released once everywhere", file: holdGo,
		was: "a.Release |= c.touched()\n", is: "if a.Outcome != Lost {\n\t\ta.Release |= c.touched()\n\t}\n",
		killers: []suite{unit("TestRenewalAfterTheEndOfTrustIsALoss")},
	},
	{
		name: "brief-lease-waits-for-its-third", rule: "what is trusted for little is renewed soon", file: "renew.go",
		was: "wait = room / 32", is: "_ = room",
		killers: []suite{client("TestALeaseThatWasHandedOverIsRenewedSoon")},
	},
	{
		name: "brief-lease-has-one-try", rule: "a renewal that fails is tried again while there is trust", file: "renew.go",
		was: "max(t.span()/10, 10*time.Millisecond)", is: "max(t.grant.TTL/10, 10*time.Millisecond)",
		killers: []suite{client("TestALeaseThatWasHandedOverOutlastsAStumble", "TestALeaseThatWasHandedOverOutlastsAnExtendInVain")},
	},
	{
		name: "batch-waits-for-its-slowest", rule: "no lease is held up by another", file: "renew.go",
		was: "context.WithTimeout(c.alive, left*3/4)", is: "context.WithTimeout(c.alive, left*3/4+time.Minute)",
		killers: []suite{client("TestALeaseThatWasHandedOverIsNotHeldUpByOthers")},
	},
	{
		name: "ending-lease-hurries-the-others", rule: "no lease is hurried by another", file: "renew.go",
		was: "alike{bits.Len64(uint64(t.left(now))), bits.Len64(uint64(t.span()))}", is: "alike{span: bits.Len64(uint64(t.span()))}",
		killers: []suite{client("TestALeaseThatIsNearlyOverHurriesNoOther")},
	},
	{
		name: "lease-in-trouble-holds-up-the-others", rule: "no lease is held up by another", file: "renew.go",
		was: "alike{bits.Len64(uint64(t.left(now))), bits.Len64(uint64(t.span()))}", is: "alike{left: bits.Len64(uint64(t.left(now)))}",
		killers: []suite{client("TestALeaseThatIsNearlyOverHoldsUpNoOther")},
	},
	{
		name: "brief-lease-for-who-does-not-renew", rule: "who does not renew has its whole TTL", file: "acquire.go",
		was: "Renews: a.opts.renewsSoon()", is: "Renews: true",
		killers: []suite{client("TestWhoeverDoesNotRenewHasItsTTLAtOnce")},
	},
	{
		name: "watchdog-revives", rule: "nothing is renewed after it was lost", file: "renew.go",
		was:     "\tcase left <= 0:",
		is:      "\tcase left <= -time.Hour:",
		killers: []suite{client("TestARenewalThatEndsTooLateIsALoss")},
	},
	{
		name: "watchdog-knows-no-bound", rule: "MaxHold bounds what the watchdog does", file: "lease.go",
		was: "most > 0 && clock.Until(", is: "most < 0 && clock.Until(",
		killers: []suite{client("TestMaxHoldStopsTheWatchdog"), conformance("MaxHoldStopsTheWatchdog")},
	},
	{
		name: "loss-is-kept-quiet", rule: "the lease's context ends when it is lost", file: "lost.go",
		was: "\t\tl.cancel(e.cause)\n", is: "\t\tif e.cause == nil {\n\t\t\tl.cancel(nil)\n\t\t}\n",
		killers: []suite{client("TestContextEndsByTheDeadlineWhenCutOff"), conformance("CutOffALeaseEndsByItsDeadline")},
	},
	{
		name: "shorter-ttl-waits-for-its-answer", rule: "a shorter TTL may be in force before its answer is here", file: "lease.go",
		was: "grant.TTL < t.grant.TTL && bound.Before(t.granted) {", is: "ttl < 0 && bound.Before(t.granted) {",
		killers: []suite{client("TestATinyTTLEndsBeforeItsAnswer")},
	},
}

// handOvers: from one waiter of a process to the next.
var handOvers = []mutant{
	{
		name: "local-holders-share-a-token", rule: "every holder of a grant has a token of its own", file: "driver/holder.go",
		was: "token += int64(i)", is: "token += 0",
		killers: []suite{client("TestLocalHandOverSpendsTheTokensOfItsBlock")},
	},
	{
		name: "local-holders-share-an-owner", rule: "every holder of a grant has an owner of its own", file: "driver/holder.go",
		was: "owner = g.Owner; i > 0 {", is: "owner = g.Owner; i < 0 {",
		killers: []suite{client("TestLocalHandOverSpendsTheTokensOfItsBlock")},
	},
	{
		name: "hand-over-beyond-the-block", rule: "a grant has 32 tokens", file: "local.go",
		was: "case t.passed+1 >= t.grant.Block:", is: "case t.passed > t.grant.Block:",
		killers: []suite{client("TestLocalHandOverSpendsTheTokensOfItsBlock")},
	},
	{
		name: "hand-over-for-ever", rule: "after its share of time a process lets others in", file: "local.go",
		was: "case now.Sub(t.taken) >= min(ttl/2, handOverMost):", is: "case now.Sub(t.taken) >= time.Hour:",
		killers: []suite{client("TestLocalHandOverEndsAfterItsShareOfTime")},
	},
	{
		name: "hand-over-on-half-gone-trust", rule: "a hand-over needs more than half of the validity", file: "local.go",
		was: "case left <= t.given/2, !w", is: "case left <= 0, !w",
		killers: []suite{client("TestNoHandOverOnTrustThatIsHalfGone")},
	},
	{
		name: "brief-lease-is-handed-to-who-does-not-renew", rule: "who does not renew has its whole TTL", file: "local.go",
		was: "left-w.opts.Margin <= (ttl-w.opts.Margin)/2", is: "left <= 0",
		killers: []suite{client("TestWhoeverDoesNotRenewHasItsTTLAtOnce")},
	},
	{
		name: "hand-over-to-another-ttl", rule: "a hand-over is for the same TTL only", file: "local.go",
		was: "case w.opts.TTL != t.asked:", is: "case w.opts.TTL < 0:",
		killers: []suite{client("TestNoHandOverToAnotherTTL")},
	},
	{
		name: "late-release-is-no-loss", rule: "a release after the deadline says that the lease was lost", file: "lost.go",
		was:     "!l.done && t.left(now) <= 0 {",
		is:      "!l.done && t.left(now) <= -time.Hour {",
		killers: []suite{client("TestReleaseAfterTheDeadlineIsALoss")},
	},
	{
		name: "hand-over-after-loss", rule: "nothing is handed over after a loss", file: "lost.go",
		was: "\t\tl.done = true\n\t}\n\tt.over", is: "\t\tl.done = cause == nil\n\t}\n\tt.over",
		killers: []suite{client("TestNothingIsHandedOverAfterALoss")},
	},
	{
		name: "hand-over-under-anothers-note", rule: "a lock is shown with its holder's note", file: "local.go",
		was: "case w.opts.Note != t.now.opts.Note:", is: "case false:",
		killers: []suite{client("TestALeaseIsNotHandedOverUnderAnothersNote")},
	},
	{
		name: "margin-frees-at-once", rule: "while work stops, the lock stays", file: "lost.go",
		was: "if t.stopping || clock.Until(t.trusted, now) <= 0 {", is: "if t.stopping || t.left(now) <= 0 {",
		killers: []suite{client("TestMarginLeavesTimeToStopBeforeTheLockPassesOn")},
	},
	{
		name: "margin-is-renewed", rule: "nothing is renewed after it was lost", file: "renew.go",
		was: "case t.over, t.stopping:", is: "case t.over:",
		killers: []suite{client("TestNothingIsRenewedAfterMarginIsReached")},
	},
	{
		name: "margin-hands-over", rule: "nothing is handed over after a loss", file: "local.go",
		was: "case t.stopping, t.keep(now) > 0:", is: "case t.keep(now) > 0:",
		killers: []suite{client("TestNothingIsHandedOverAfterMarginIsReached")},
	},
	{
		name: "turn-is-lost-with-its-waiter", rule: "a turn that came to a waiter who leaves is passed on", file: "local.go",
		was: "case t.err == nil:\n\t\t\tc.lead(s)", is: "case t.err == nil:",
		killers: []suite{client("TestATurnIsNotLostWithItsWaiter")},
	},
	{
		name: "lease-is-lost-with-its-waiter", rule: "a lease that was handed to a waiter who leaves is released", file: "local.go",
		was: "go t.lease.Release(c.alive)", is: "_ = t.lease",
		killers: []suite{client("TestATurnIsNotLostWithItsWaiter")},
	},
}

// looks: what people are shown, and what they take away.
var looks = []mutant{
	{
		name: "held-by-who-has-most-nodes", rule: "held is who has a quorum", file: statusGo,
		was: "if len(left) < u.Need {", is: "if len(left) < 1 {",
		killers: []suite{engine("TestALockIsHeldByWhomAQuorumNames"), servers("TestInspectTellsHowLongAQuorumKeepsTheLock")},
	},
	{
		name: "time-left-of-the-best-node", rule: "the time left is that of the last node of a quorum", file: statusGo,
		was: "left[u.Need-1]", is: "left[0]",
		killers: []suite{engine("TestTheTimeLeftIsThatOfTheLastNodeOfAQuorum"), servers("TestInspectTellsHowLongAQuorumKeepsTheLock")},
	},
	{
		name: "too-few-views-pass-for-free", rule: "whether a lock is free takes a quorum to say", file: statusGo,
		was: "if len(views)-len(u.Nodes) < u.Need {", is: "if len(views)-len(u.Nodes) < 1 {",
		killers: []suite{engine("TestStatusOfTooFewNodesSaysWhatEachKnows"), servers("TestInspectWithoutAMajoritySaysWhatTheOthersKnow", "TestForceReleaseWithoutAMajorityIsUnavailable")},
	},
	{
		name: "token-of-any-node", rule: "the token shown is the one that most nodes have", file: statusGo,
		was: "if best == 0 || n > shared[best] || n == shared[best] && t < best {", is: "if n > 0 && t > best {",
		killers: []suite{engine("TestTheTokenIsTheOneThatMostNodesOfTheHolderHave")},
	},
	{
		name: "force-counts-at-one-node", rule: "a force counts when the holder can have no quorum any more", file: statusGo,
		was: "case done.Len() >= enough:", is: "case done.Len() >= 1:",
		killers: []suite{engine("TestAForceCountsWhenTheHolderCanHaveNoQuorum")},
	},
	{
		name: "force-needs-every-node", rule: "a force counts when the holder can have no quorum any more", file: statusGo,
		was: "enough := len(e.nodes) - u.Need + 1", is: "enough := len(e.nodes)",
		killers: []suite{engine("TestAForceCountsWhenTheHolderCanHaveNoQuorum"), servers("TestForceReleaseCountsAtAMajority")},
	},
	{
		name: "nobody-is-introduced", rule: "who holds a lock is known to other clients by name", file: inspectGo,
		was: `l.tell("SET", wire.Client+`, is: `l.tell("GET", wire.Client+`,
		killers: []suite{servers("TestTheHoldersNameReachesOtherClients")},
	},
	{
		name: "one-silent-node-hides-the-holder", rule: "the first node that knows the holder says so", file: inspectGo,
		was: "replies, err := n.do(ctx, []string{\"GET\", wire.Client", is: "replies, err := d.nodes[0].do(ctx, []string{\"GET\", wire.Client",
		killers: []suite{servers("TestTheHoldersNameReachesOtherClients")},
	},
	{
		name: "inspect-does-not-name-the-holder", rule: "who holds a lock is known to other clients by name", file: inspectGo,
		was: "st.Holder = d.describe(ctx, st.Owner)", is: "_ = d.describe(ctx, st.Owner)",
		killers: []suite{servers("TestTheHoldersNameReachesOtherClients")},
	},
	{
		name: "strangers-are-waited-for-like-ours", rule: "what another library frees wakes nobody", file: seekGo,
		was: "if e.Strange {", is: "if e.Strange && e.Left == 0 {",
		killers: []suite{unit("TestAWaiterAsksOftenBehindAStranger"), engine("TestAWaiterAsksOftenWhereOthersTakeTheLockToo")},
	},
	{
		name: "shared-lock-is-never-free", rule: "a bare key falls free now and then, whoever of ours waits", file: "internal/quorum/engine/share.go",
		was: "if leaves = rand.N(every) < held; leaves {", is: "if leaves = rand.N(every) < 0; leaves {",
		killers: []suite{engine("TestASharedLockFallsFreeNowAndThen")},
	},
	{
		name: "no-holding-back-from-a-shared-lock", rule: "who leaves a lock to others does not take it back at once", file: "internal/quorum/engine/share.go",
		was: "c.until = now.Add(", is: "c.until = now.Add(-",
		killers: []suite{engine("TestTheClientThatLeavesALockHoldsBack")},
	},
	{
		name: "lua-to-nobody-is-to-somebody", rule: "with no time for a hand-over the lock falls free", file: scripts + "pass.lua",
		was: "handover ~= '0' and first(queue, from)", is: "first(queue, from)",
		killers: []suite{differential()},
	},
	{
		name: "memory-does-not-name-the-holder", rule: "who holds a lock is known to other clients by name", file: "memory/memory.go",
		was: "held.Holder = c.holder(held.Owner)", is: "_ = c.holder(held.Owner)",
		killers: []suite{conformance("TryOnAHeldKeyNamesTheHolder")},
	},
}

// servers of Redis: who may vote, and how requests travel.
var onServers = []mutant{
	{
		name: "no-gate", rule: "a server is checked before its replies count", file: "redlock/dial.go",
		was: "rep, err := g.check(ctx, n, l)", is: "rep, _ := g.check(ctx, n, l)",
		killers: []suite{servers("TestOpenRefusesAReplica")},
	},
	{
		name: "evicting-server-votes", rule: "a server that evicts loses locks", file: gateGo,
		was: "if p := info[\"maxmemory_policy\"]; p != \"\" && p != \"noeviction\" {", is: "if p := info[\"maxmemory_policy\"]; p == \"none\" {",
		killers: []suite{servers("TestOpenRefusesAServerThatEvicts")},
	},
	{
		name: "half-a-batch-again", rule: "requests keep their order, behind an unknown script too", file: readGo,
		was: "repeat := l.held && e.req != nil", is: "repeat := l.held && e.req != nil && noScript(v)",
		killers: []suite{servers("TestAnUnknownScriptKeepsItsPlaceInTheOrder")},
	},
	{
		name: "unknown-script-loses-its-place", rule: "what is sent again goes before what has waited", file: readGo,
		was: "slices.Concat([]entry{load}, l.again, l.queue)", is: "slices.Concat([]entry{load}, l.queue, l.again)",
		killers: []suite{servers("TestWhatIsSentAgainGoesBeforeItsRelease")},
	},
	{
		name: "queue-outlives-its-connection", rule: "what was queued before a break does not go out behind its release", file: pipelineGo,
		was:     "\t\tl.n.fail(e, engine.Failure{Err: errBroke, Unsent: true})\n",
		is:      "\t\tl.n.d.work.Go(func() {\n\t\t\tfor l.n.link.Load() == nil {\n\t\t\t\ttime.Sleep(time.Millisecond)\n\t\t\t}\n\t\t\tl.n.link.Load().send(e)\n\t\t})\n",
		killers: []suite{servers("TestABreakLetsNoRequestOvertakeItsRelease")},
	},
	{
		name: "release-is-a-request-like-others", rule: "a release is for a node that hangs too, and is never too late", file: pipelineGo,
		was:     "return e.req != nil && e.req.Kind.Frees()",
		is:      "return false && e.req.Kind.Frees()",
		killers: []suite{servers("TestAReleaseWaitsForANodeThatHangs")},
	},
	{
		name: "release-dies-with-its-connection", rule: "a release is sent again on the next connection", file: redisNodeGo,
		was: "if len(n.owed) < owedMost {", is: "if len(n.owed) < 0 {",
		killers: []suite{servers("TestAReleaseOutlivesItsConnection")},
	},
	{
		name: "counter-set-by-hand-is-believed", rule: "token 0 is no token", file: "redlock/scripts.go",
		was: "case asks && number <= 0:", is: "case asks && number < -1<<40:",
		killers: []suite{servers("TestACounterThatWasSetByHandIsAnError")},
	},
	{
		name: "sender-writes-calls", rule: "nobody who sends waits for a node that does not read", file: writeGo,
		was: "case e.call != nil || len(l.queue) > 1 || l", is: "case len(l.queue) > 1 || l",
		killers: []suite{servers("TestANodeThatDoesNotReadBlocksNobody")},
	},
	{
		name: "servers-wake-nobody", rule: "who is handed the lock is told", file: "redlock/wake.go",
		was: "\t\tn.engine.Wake(n.index, w)\n", is: "",
		killers: []suite{servers("TestNoWakeUpIsLost")},
	},
	{
		name: "deaf-after-a-break", rule: "what was missed while deaf is asked for", file: redisNodeGo,
		was: "\tn.engine.Hears(n.index, false)\n", is: "",
		killers: []suite{servers("TestANewSubscriptionAsksAtOnce")},
	},
}

// leases: what users hold.
var leases = []mutant{
	{
		name: "nested-release-frees", rule: "the lock is freed with the last of its holds", file: "lost.go",
		was: "if len(t.now.holds) > 1 {", is: "if len(t.now.holds) > 9 {",
		killers: []suite{client("TestNestingNeedsReentrant"), conformance("NestedHoldsAreFreedTogether")},
	},
	{
		name: "release-on-the-callers-context", rule: "a release does not need its caller's context", file: engineGo,
		was: "\twant, event := quorum.Released,", is: "\tif err := ctx.Err(); err != nil {\n\t\treturn err\n\t}\n\twant, event := quorum.Released,",
		killers: []suite{client("TestACancelledContextDoesNotKeepTheLock")},
	},
	{
		name: "close-leaves-leases", rule: "Close releases what is held", file: "shutdown.go",
		was: "\tc.releaseAll(ctx, held)\n", is: "\tc.releaseAll(ctx, held[:0])\n",
		killers: []suite{client("TestCloseReleasesAndEndsWaits"), conformance("CloseReleasesWhatIsHeld")},
	},
	{
		name: "do-hides-the-loss", rule: "Do says so when the lease was lost before fn returned", file: "acquire.go",
		was: "case !errors.Is(end, ErrLost):", is: "case errors.Is(end, ErrLost):",
		killers: []suite{client("TestDoJoinsTheLossToTheError")},
	},
	{
		name: "min-hold-below-the-drift", rule: "what is left of MinHold is no shorter than the shortest TTL", file: "lost.go",
		was: "return max(rest, leastTTL, t.client.limits.MinTTL)", is: "return rest",
		killers: []suite{client("TestReleaseRightBeforeTheEndOfMinHoldIsNoFailure")},
	},
	{
		name: "min-hold-is-ignored", rule: "MinHold outlasts the release", file: "lost.go",
		was:     "c.drv.Release(ctx, e.free.grant, e.keep)",
		is:      "c.drv.Release(ctx, e.free.grant, 0)",
		killers: []suite{client("TestMinHoldKeepsTheLockAfterRelease"), conformance("MinHoldOutlastsTheRelease")},
	},
}

// storages: the other side of the tokens.
var storages = []mutant{
	{
		name: "storage-takes-lower-tokens", rule: "a storage refuses a token below the highest", file: fenceGo,
		was: "(token > e.highest ||", is: "(token != e.highest ||",
		killers: []suite{storage(inProcess, "TestRule")},
	},
	{
		name: "storage-takes-a-strangers-token", rule: "an equal token of another lease is refused", file: fenceGo,
		was: "token == e.highest && owner == e.owner)", is: "token == e.highest)",
		killers: []suite{storage(inProcess, "TestRule")},
	},
	{
		name: "storage-refuses-its-own-holder", rule: "the same holder may write again", file: fenceGo,
		was: "(token > e.highest || token == e.highest && owner == e.owner)", is: "token > e.highest",
		killers: []suite{storage(inProcess, "TestRule")},
	},
	{
		name: "storage-forgets-a-failed-write", rule: "a token stays recorded when its write fails", file: fenceGo,
		was:     "\tif err := e.admit(key, token, owner); err != nil {\n\t\treturn err\n\t}\n\treturn write()\n}",
		is:      "\tbefore, by := e.highest, e.owner\n\tif err := e.admit(key, token, owner); err != nil {\n\t\treturn err\n\t}\n\terr := write()\n\tif err != nil {\n\t\te.highest, e.owner = before, by\n\t}\n\treturn err\n}",
		killers: []suite{storage(inProcess, "TestFailedWriteKeepsItsTokenRecorded")},
	},
	{
		name: "read-without-a-claim", rule: "a read that feeds a write claims its token", file: "fence/http.go",
		was: "if err = g.Claim(want, token, owner); err == nil {", is: "if err = g.Check(want, token, owner); err == nil {",
		killers: []suite{storage(inProcess, "TestHandlerReadClaimsItsToken")},
	},
	{
		name: "redis-storage-takes-lower-tokens", rule: "a storage refuses a token below the highest", file: "fence/redisfence/guard.lua",
		was: "local newer = #token > #highest or (#token == #highest and token > highest)", is: "local newer = token ~= highest",
		killers: []suite{storedInRedis("Rule")},
	},
	{
		name: "redis-storage-takes-a-strangers-token", rule: "an equal token of another lease is refused", file: "fence/redisfence/guard.lua",
		was: "token == highest and owner == seen[2]", is: "token == highest",
		killers: []suite{storedInRedis("Rule")},
	},
	{
		name: "redis-storage-loses-digits", rule: "tokens near 2^63 are compared exactly", file: "fence/redisfence/guard.lua",
		was: "local newer = #token > #highest or (#token == #highest and token > highest)", is: "local newer = tonumber(token) > tonumber(highest)",
		killers: []suite{storedInRedis("Rule")},
	},
	{
		name: "redis-storage-reads-without-a-claim", rule: "a read that feeds a write claims its token", file: "fence/redisfence/guard.lua",
		was: "if newer then redis.call(", is: "if newer and #ARGV > 0 then redis.call(",
		killers: []suite{storedInRedis("GetClaims", "ClaimShutsOutOlderWriters")},
	},
}

// commands: the command line.
var commands = []mutant{
	{
		name: "command-outlives-its-lease", rule: "what runs under a lost lease is stopped", file: runEndsGo,
		was: `s.stop(Lost, fmt.Errorf("the lease was lost and the command stopped: %w", cause), policy)`, is: `s.why, s.cause = Lost, cause`,
		killers: []suite{shell("lost")},
	},
	{
		name: "lock-ends-before-its-group", rule: "the lock is kept until the whole process group has ended", file: sessionGo,
		was: "\tcase s.job.Alive():\n\t\treturn false\n", is: "",
		killers: []suite{shell("group")},
	},
	{
		name: "url-drops-a-host", rule: "a URL is read with every host, or refused", file: urlGo,
		was: "list := strings.Split(text, \",\")", is: "list := strings.Split(text[strings.LastIndex(text, \"@\")+1:], \",\")",
		killers: []suite{servers("TestURLNeverDropsAHost")},
	},
	{
		name: "url-turns-tls-off", rule: "nothing turns encryption off that was asked for", file: urlGo,
		was: "case wanted && off:", is: "case off:\n\t\treturn nil\n\tcase wanted && off:",
		killers: []suite{servers("TestURLThatAsksForTLSIsNeverPlain")},
	},
	{
		name: "report-replaces-anything", rule: "a report replaces nothing but files", file: reportGo,
		was: "case info.Mode()&fs.ModeSymlink != 0:", is: "case info.Mode()&fs.ModeSymlink != 0:\n\t\treturn nil\n\tcase false:",
		killers: []suite{shell("reports")},
	},
	{
		name: "report-to-any-descriptor", rule: "a report goes to a descriptor that was passed on, and to no other", file: inheritGo,
		was: "if err != nil || flags&unix.FD_CLOEXEC != 0 {", is: "_ = flags\n\tif err != nil {",
		killers: []suite{shell("reports")},
	},
	{
		name: "lock-kept-for-nothing", rule: "--hold-at-least is for commands that were started", file: runFreesGo,
		was: "if err != nil || s.plan.HoldAtLeast == 0 {", is: "if err != nil || s.plan.HoldAtLeast >= 0 {",
		killers: []suite{shell("ends")},
	},
	{
		name: "loss-looks-like-success", rule: "a lease that was lost is not reported as held", file: runEndsGo,
		was: "case s.goesOn != nil:", is: "case false:",
		killers: []suite{shell("ends")},
	},
}
