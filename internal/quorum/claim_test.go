package quorum

import (
	"testing"
	"time"
)

const (
	second = int64(time.Second)
	lease  = 10 * second
	stamp  = int64(42)
)

// claimTest passes events to one claim and records when each node was last asked.
type claimTest struct {
	t     *testing.T
	c     Claim
	now   int64
	last  Actions // of the last event
	asked [MaxNodes]struct {
		at, ttl int64
		id      uint32
		epoch   uint8
	}
}

// startClaim starts a claim over n nodes, subscribed to all of them. The claim waits if place is not 0.
func startClaim(t *testing.T, n int, place int64) *claimTest {
	t.Helper()
	return startSubscribed(t, n, place, All(n))
}

func startSubscribed(t *testing.T, n int, place int64, heard Set) *claimTest {
	t.Helper()
	p := &claimTest{t: t, now: second, c: Claim{N: int8(n), TTL: lease, Stamp: place}}
	p.step(Event{Kind: Start, Nodes: heard})
	p.check("start", p.last.Acquire == All(n))
	return p
}

// heldClaim returns a claim over n nodes that has won with token 100.
func heldClaim(t *testing.T, n int) *claimTest {
	t.Helper()
	p := startClaim(t, n, 0)
	for node := range n {
		p.grant(node, 100)
	}
	p.check("held", p.c.Phase == Held && p.c.Token == 100)
	return p
}

func (p *claimTest) step(e Event) {
	p.t.Helper()
	e.At = p.now
	p.last = p.c.Step(e)
	for n := range (p.last.Acquire | p.last.Renew).Nodes {
		a := &p.asked[n]
		a.at, a.ttl, a.id, a.epoch = p.now, p.c.TTL, p.c.ID, p.c.Epoch[n]
	}
	if alarm := p.c.Alarm(); e.Kind == Tick && alarm != 0 && alarm <= p.now {
		p.t.Fatalf("the claim requests ticks without end: %+v", p.c)
	}
	if p.last.FreshID && p.last.GiveBack|p.last.Commit != 0 {
		p.t.Fatalf("gives back on %b and commits on %b under the new id", p.last.GiveBack, p.last.Commit)
	}
	if w := p.last.Acquire & p.last.GiveBack; w != 0 {
		p.t.Fatalf("acquires and gives back at once on %b", w)
	}
}

// answer completes and delivers an answer to the last request to node.
func (p *claimTest) answer(e Event) {
	p.t.Helper()
	a := p.asked[e.Node]
	e.Sent, e.TTL, e.ID, e.Epoch = a.at, a.ttl, a.id, a.epoch
	if e.Kind == Freed || e.Of == AskRelease || e.Of == AskGiveBack {
		e.Epoch = p.c.Epoch[e.Node]
	}
	p.step(e)
}

func (p *claimTest) grant(node int, base int64) {
	p.t.Helper()
	p.answer(Event{Kind: Granted, Node: node, Token: base})
}

func (p *claimTest) deny(nodes ...int) {
	p.t.Helper()
	for _, n := range nodes {
		p.answer(Event{Kind: Denied, Node: n, Left: lease, Queued: p.c.Queueing && p.c.Subscribed.Has(n)})
	}
}

func (p *claimTest) fail(of AskKind, nodes ...int) {
	p.t.Helper()
	for _, n := range nodes {
		p.answer(Event{Kind: Failed, Of: of, Node: n})
	}
}

func (p *claimTest) answerAll(kind Kind, nodes ...int) {
	p.t.Helper()
	for _, n := range nodes {
		p.answer(Event{Kind: kind, Node: n})
	}
}

func (p *claimTest) tick() {
	p.t.Helper()
	if p.now = p.c.Alarm(); p.now == 0 {
		p.t.Fatal("the claim sends nothing and sets no timer")
	}
	p.step(Event{Kind: Tick})
}

func (p *claimTest) check(what string, ok bool) {
	p.t.Helper()
	if !ok {
		p.t.Fatalf("%s: did %+v\nclaim %+v", what, p.last, p.c)
	}
}

func (p *claimTest) checkOutcome(o Outcome) {
	p.t.Helper()
	if p.last.Outcome != o {
		p.t.Fatalf("outcome %d, want %d: did %+v\nclaim %+v", p.last.Outcome, o, p.last, p.c)
	}
}

func nodeSet(nodes ...int) Set {
	var s Set
	for _, n := range nodes {
		s |= Only(n)
	}
	return s
}

// Acquire

func TestSharedBaseCommitsInOneRound(t *testing.T) {
	t.Parallel()
	for n := 1; n <= MaxNodes; n++ {
		p := startClaim(t, n, 0)
		for i := range Majority(n) {
			p.checkOutcome(None)
			p.grant(i, 100)
		}
		p.checkOutcome(Won)
		p.check("no second round", p.c.Token == 100 && p.last.Commit == 0)
	}
}

func TestDifferentBasesCommitHighest(t *testing.T) {
	t.Parallel()
	p := startClaim(t, 5, 0)
	p.grant(0, 100)
	p.grant(1, 132)
	p.check("no quorum yet", p.c.Token == 0)
	p.grant(2, 100)
	p.checkOutcome(None)
	p.check("commit where the base is lower", p.c.Token == 132 && p.last.Commit == nodeSet(0, 2))
	p.answerAll(Accepted, 0)
	p.checkOutcome(None)
	p.answerAll(Accepted, 2)
	p.checkOutcome(Won)
}

func TestTokenIsFixedOnceQuorumGranted(t *testing.T) {
	t.Parallel()
	p := startClaim(t, 5, 0)
	p.grant(0, 100)
	p.grant(1, 132)
	p.grant(2, 100)
	p.grant(3, 164)
	p.check("a higher base does not count", p.c.Token == 132 && p.last.Commit == 0 && !p.c.Agreed.Has(3))
	p.grant(4, 101)
	p.check("a lower one is committed too", p.last.Commit == nodeSet(4))
	p.answerAll(Accepted, 4)
	p.answerAll(Accepted, 2)
	p.checkOutcome(Won)
}

func TestRejectedCommitDoesNotCount(t *testing.T) {
	t.Parallel()
	p := startClaim(t, 3, 0)
	p.grant(0, 100)
	p.grant(1, 132)
	p.deny(2)
	p.checkOutcome(None)
	p.answerAll(Refused, 0)
	p.checkOutcome(Busy)
	p.check("everything is released", p.last.Release == All(3))
}

// A node keeps the lock for a TTL after it received the request, which was not before the request was sent.
func TestTrustCountsFromOldestRequest(t *testing.T) {
	t.Parallel()
	p := startClaim(t, 3, stamp)
	p.deny(0, 1, 2)
	first := p.now
	p.step(Event{Kind: Woken, Node: 0})
	p.now += 3 * ms
	p.grant(0, 100)
	p.now += 2 * ms
	late := p.now
	p.step(Event{Kind: Woken, Node: 1})
	p.grant(1, 100)
	p.checkOutcome(Won)
	if got, want := p.c.TrustedUntil(), first+lease-Drift(lease); got != want {
		t.Fatalf("trusted until %d, want %d", got, want)
	}
	p.step(Event{Kind: Granted, Node: 2, Sent: late, TTL: lease, Token: 100})
	if got, want := p.c.TrustedUntil(), late+lease-Drift(lease); got != want {
		t.Fatalf("with a late grant trusted until %d, want %d", got, want)
	}
}

func TestValidityIsTestedAfterLastReply(t *testing.T) {
	t.Parallel()
	p := startClaim(t, 3, 0)
	p.grant(0, 100)
	p.now += lease - Drift(lease)
	p.grant(1, 100)
	p.checkOutcome(Unavailable)
	p.check("everything is released", p.c.Phase == Over && p.last.Release == All(3))

	p = startClaim(t, 3, 0)
	p.grant(0, 100)
	p.now += lease - Drift(lease) - 1
	p.grant(1, 100)
	p.checkOutcome(Won)
}

func TestLateQuorumRestartsWaiter(t *testing.T) {
	t.Parallel()
	p := startClaim(t, 3, stamp)
	p.grant(0, 100)
	p.now += lease
	p.grant(1, 100)
	p.checkOutcome(None)
	p.check("under a fresh id", p.last.FreshID && p.last.Release == All(3) && p.c.Stamp == stamp && p.c.RestUntil > p.now)
}

func TestLateGrantsAddSpareNodes(t *testing.T) {
	t.Parallel()
	p := startClaim(t, 3, 0)
	p.grant(0, 100)
	p.grant(1, 100)
	p.checkOutcome(Won)
	p.grant(2, 68)
	p.check("brought to the token", p.c.Granted == All(3) && p.last.Commit == nodeSet(2) && p.last.Release == 0)
	p.answerAll(Accepted, 2)
	p.checkOutcome(None)
}

// Busy and Unavailable

func TestBusyNeedsQuorumOfAnswers(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		denied, granted, failed []int
		want                    Outcome
	}{
		"all denied":                {denied: []int{0, 1, 2}, want: Busy},
		"two denied":                {denied: []int{0, 1}, want: Busy},
		"two denied, one down":      {denied: []int{0, 1}, failed: []int{2}, want: Busy},
		"split":                     {granted: []int{0}, denied: []int{1, 2}, want: Busy},
		"split, one down":           {granted: []int{0}, denied: []int{1}, failed: []int{2}, want: Busy},
		"one denied, two down":      {denied: []int{0}, failed: []int{1, 2}, want: Unavailable},
		"one granted, two down":     {granted: []int{0}, failed: []int{1, 2}, want: Unavailable},
		"all down":                  {failed: []int{0, 1, 2}, want: Unavailable},
		"two down, nothing else":    {failed: []int{0, 1}, want: Unavailable},
		"one denied, one down, ...": {denied: []int{0}, failed: []int{1}, want: None},
	} {
		p := startClaim(t, 3, 0)
		got := None
		note := func() {
			if p.last.Outcome != None && got == None {
				got = p.last.Outcome
			}
		}
		for _, n := range tt.failed {
			p.fail(AskAcquire, n)
			note()
		}
		for _, n := range tt.granted {
			p.grant(n, 100)
			note()
		}
		for _, n := range tt.denied {
			p.deny(n)
			note()
		}
		if got != tt.want {
			t.Errorf("%s: outcome %d, want %d", name, got, tt.want)
		}
	}
}

func TestSilenceUntilDeadlineIsUnavailable(t *testing.T) {
	t.Parallel()
	p := startClaim(t, 3, 0)
	p.deny(0)
	p.tick()
	p.checkOutcome(Unavailable)
	if got := p.now - second; got != RequestTimeout(lease) {
		t.Errorf("gave up after %v", time.Duration(got))
	}
}

// A claim that may wait does so even before it has reached a quorum. It also waits through errors, unless
// lasting errors leave no quorum.
func TestWaiterSurvivesTemporaryFailures(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		rounds []string // by node: '-' denies, '!' fails, '#' fails for good
		want   Outcome
	}{
		"an outage":                          {[]string{"---", "!!!"}, None},
		"an outage at the start":             {[]string{"!!!", "!!!"}, None},
		"a minority at the start":            {[]string{"-!!", "!-!"}, None},
		"one refusal":                        {[]string{"!#!", "!#-"}, None},
		"a refusal that ended":               {[]string{"#!!", "!!#"}, None},
		"refusals at the start":              {[]string{"-##"}, Unavailable},
		"refusals one after the other":       {[]string{"#--", "##-"}, Unavailable},
		"refusals by those that would do it": {[]string{"---", "##!"}, Unavailable},
	} {
		p := startClaim(t, 3, stamp)
		for i, round := range row.rounds {
			if i > 0 {
				p.checkOutcome(None)
				p.tick()
			}
			for n, what := range round {
				e := Event{Kind: Failed, Of: AskAcquire, Node: n, Unsent: what == '!', Fatal: what == '#'}
				if what == '-' {
					e = Event{Kind: Denied, Node: n, Left: lease, Queued: true}
				}
				if p.c.Phase == Seeking {
					p.answer(e)
				}
			}
		}
		if got := p.last.Outcome; got != row.want {
			t.Errorf("%s: outcome %d, want %d", name, got, row.want)
		}
		if row.want == None && (p.c.Phase != Seeking || p.c.Alarm() == 0) {
			t.Errorf("%s: stopped asking", name)
		}
	}
}

// The obstacle is reported when a round has ended without enough answers, or with denials. While a missing
// answer may still decide between the two, nothing is reported.
func TestObstacleIsReportedOnceKnown(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		answers string // of nodes 0, 1, …: '-' denies, '!' fails, '+' grants
		want    Outcome
	}{
		"denied by a quorum":             {"--", Busy},
		"denied by one":                  {"-", None},
		"denied by one, one fails":       {"-!", None},
		"denied by one, two fail":        {"-!!", Unavailable},
		"denied by one, granted by one":  {"+-!", Busy},
		"one denied behind two failures": {"!!-", Unavailable},
		"no answer":                      {"!!", Unavailable},
	} {
		p := startClaim(t, 3, stamp)
		var last Outcome
		for n, what := range row.answers {
			switch what {
			case '-':
				p.deny(n)
			case '+':
				p.grant(n, 100)
			default:
				p.fail(AskAcquire, n)
			}
			if p.last.Obstacle != None {
				last = p.last.Obstacle
			}
		}
		if last != row.want {
			t.Errorf("%s: obstacle %d, want %d", name, last, row.want)
		}
	}
}

func TestFailuresDoNotCountInNextRound(t *testing.T) {
	t.Parallel()
	p := startSubscribed(t, 3, stamp, 0)
	p.fail(AskAcquire, 0, 1, 2)
	p.check("an outage", p.last.Obstacle == Unavailable)
	p.tick()
	p.deny(0)
	p.fail(AskAcquire, 1)
	p.check("it is not known yet", p.last.Obstacle == None)
	p.deny(2)
	p.check("it is held", p.last.Obstacle == Busy)
}

func TestUnsentRequestsAreNotReleased(t *testing.T) {
	t.Parallel()
	p := startClaim(t, 3, 0)
	p.grant(0, 100)
	p.answer(Event{Kind: Failed, Of: AskAcquire, Node: 1, Unsent: true})
	p.fail(AskAcquire, 2)
	p.checkOutcome(Unavailable)
	p.check("node 1 cannot know the id", p.last.Release == nodeSet(0, 2))
	p.answerAll(Freed, 0)
	p.checkOutcome(Released) // with node 1, which has nothing to free
}

func TestPartlySentRequestsAreReleased(t *testing.T) {
	t.Parallel()
	p := startClaim(t, 3, stamp)
	p.deny(0, 1)
	p.tick() // node 2 was silent, and is asked again
	p.check("asked again", p.last.Acquire == All(3))
	p.answer(Event{Kind: Failed, Of: AskAcquire, Node: 2, Unsent: true})
	p.step(Event{Kind: Release})
	p.check("the first request may have been executed", p.last.Release == All(3))
}

// Renew

func TestRenewalNeedsQuorum(t *testing.T) {
	t.Parallel()
	p := heldClaim(t, 5)
	p.now += lease / 3
	p.step(Event{Kind: Renew, TTL: lease})
	p.check("all are asked", p.last.Renew == All(5))
	p.answerAll(Kept, 0, 1)
	p.checkOutcome(None)
	p.answerAll(Kept, 2)
	p.checkOutcome(Renewed)
	if want := second + lease/3 + lease - Drift(lease); p.c.TrustedUntil() != want {
		t.Errorf("trusted until %d, want %d", p.c.TrustedUntil(), want)
	}
	p.answerAll(Kept, 3)
	p.checkOutcome(None)
}

func TestSlowRenewalDoesNotExtendTrust(t *testing.T) {
	t.Parallel()
	p := heldClaim(t, 3)
	p.step(Event{Kind: Renew, TTL: lease})
	sent := p.now
	p.now += lease / 2
	p.answerAll(Kept, 0, 1)
	p.checkOutcome(Renewed)
	if want := sent + lease - Drift(lease); p.c.TrustedUntil() != want {
		t.Errorf("trusted until %d, want %d: it counts from the send", p.c.TrustedUntil(), want)
	}
}

func TestRenewalAfterTrustEndsIsLoss(t *testing.T) {
	t.Parallel()
	p := heldClaim(t, 3)
	p.now = p.c.TrustedUntil() - 1
	p.step(Event{Kind: Renew, TTL: lease})
	p.answerAll(Kept, 0)
	p.now++
	p.answerAll(Kept, 1)
	p.checkOutcome(Lost)
	p.check("released once everywhere", p.last.Release == All(3) && p.c.Phase == Over)
}

func TestFailedRenewalKeepsOldTrust(t *testing.T) {
	t.Parallel()
	p := heldClaim(t, 3)
	trust := p.c.TrustedUntil()
	p.now += lease / 3
	p.step(Event{Kind: Renew, TTL: lease})
	p.answerAll(Kept, 0)
	p.fail(AskRenew, 1)
	p.checkOutcome(None)
	p.fail(AskRenew, 2)
	p.checkOutcome(NotRenewed)
	p.check("old trust", p.c.TrustedUntil() == trust && p.c.Phase == Held)
}

func TestTickEndsRenewalRound(t *testing.T) {
	t.Parallel()
	p := heldClaim(t, 3)
	p.step(Event{Kind: Renew, TTL: lease})
	p.answerAll(Kept, 0)
	p.step(Event{Kind: Tick})
	p.checkOutcome(NotRenewed)
}

// No request shortens a node's promise, whenever the node executes it.
func TestShorterTTLDoesNotShortenTrust(t *testing.T) {
	t.Parallel()
	p := heldClaim(t, 3)
	trust := p.c.TrustedUntil()
	p.step(Event{Kind: Renew, TTL: second})
	p.answerAll(Kept, 0, 1)
	p.checkOutcome(Renewed)
	p.check("the old trust", p.c.TrustedUntil() == trust)
	p.now = trust - 100*ms
	p.step(Event{Kind: Renew, TTL: second})
	p.answerAll(Kept, 0, 1)
	p.check("and then that of the shorter TTL", p.c.TrustedUntil() == p.now+second-Drift(second))
}

func TestLateAnswerExtendsTrust(t *testing.T) {
	t.Parallel()
	p := heldClaim(t, 3)
	p.now += lease / 2
	p.step(Event{Kind: Renew, TTL: lease})
	old := Event{Kind: Kept, Sent: p.now, TTL: lease}
	p.now += ms
	p.step(Event{Kind: Renew, TTL: second})
	for n := range 2 {
		old.Node = n
		p.step(old)
	}
	p.check("by the time at which it was sent", p.c.TrustedUntil() == old.Sent+lease-Drift(lease))
}

func TestMajorityOfNotMineIsLoss(t *testing.T) {
	t.Parallel()
	p := heldClaim(t, 5)
	p.step(Event{Kind: Renew, TTL: lease})
	p.answerAll(NotMine, 0, 1)
	p.checkOutcome(None)
	p.answerAll(NotMine, 2)
	p.checkOutcome(Lost)
	p.check("released once everywhere", p.last.Release == All(5) && p.c.Phase == Over)
}

func TestNotMineCountsOnlyInItsRound(t *testing.T) {
	t.Parallel()
	p := heldClaim(t, 3)
	p.step(Event{Kind: Renew, TTL: lease})
	p.answerAll(NotMine, 0)
	p.answerAll(Kept, 1, 2)
	p.checkOutcome(Renewed)
	p.step(Event{Kind: Renew, TTL: lease})
	p.answerAll(NotMine, 1)
	p.checkOutcome(None)
	p.answerAll(Kept, 0, 2)
	p.checkOutcome(Renewed)
}

func TestRenewalRegainsForgetfulNode(t *testing.T) {
	t.Parallel()
	p := startClaim(t, 3, 0)
	p.grant(0, 100)
	p.grant(1, 100)
	p.fail(AskAcquire, 2)
	p.step(Event{Kind: Renew, TTL: lease})
	p.answerAll(Kept, 0, 1, 2)
	p.check("three nodes", p.c.Granted == All(3))
}

func TestWakeUpOfHeldLockRenewsNode(t *testing.T) {
	t.Parallel()
	p := startClaim(t, 3, stamp)
	p.grant(0, 100)
	p.grant(1, 100)
	p.checkOutcome(Won)
	p.step(Event{Kind: Woken, Node: 2})
	p.check("renewed there", p.last.Renew == nodeSet(2) && p.last.Acquire == 0)
	p.answerAll(Kept, 2)
	p.check("redundancy", p.c.Granted == All(3) && p.last.Outcome == None)
}

// Release

func TestReleaseIsDoneWhenQuorumAnswered(t *testing.T) {
	t.Parallel()
	p := heldClaim(t, 3)
	p.step(Event{Kind: Release})
	p.check("all nodes", p.last.Release == All(3))
	p.answerAll(Freed, 0)
	p.checkOutcome(None)
	p.answerAll(Freed, 2)
	p.checkOutcome(Released)
	p.answerAll(Freed, 1)
	p.checkOutcome(None)
}

func TestUnansweredReleaseIsReported(t *testing.T) {
	t.Parallel()
	p := heldClaim(t, 3)
	p.step(Event{Kind: Release})
	p.answerAll(Freed, 0)
	p.step(Event{Kind: Tick})
	p.checkOutcome(None) // an early tick does nothing
	p.tick()
	p.checkOutcome(NotReleased)
}

func TestClaimIsComparable(t *testing.T) {
	t.Parallel()
	seen := map[Claim]bool{}
	p := startClaim(t, 3, stamp)
	seen[p.c] = true
	before := p.c
	p.deny(0)
	if p.c == before || !seen[before] || seen[p.c] {
		t.Fatal("changing a claim changed its copy")
	}
}
