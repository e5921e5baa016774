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

// play brings events to one claim and remembers when each node was last asked.
type play struct {
	t     *testing.T
	c     Claim
	now   int64
	did   Actions // by the last event
	asked [MaxNodes]struct {
		at, ttl int64
		id      uint32
		epoch   uint8
	}
}

// begin starts a claim over n nodes; it waits if place is not 0, and hears all nodes.
func begin(t *testing.T, n int, place int64) *play {
	t.Helper()
	return beginHearing(t, n, place, All(n))
}

func beginHearing(t *testing.T, n int, place int64, heard Set) *play {
	t.Helper()
	p := &play{t: t, now: second, c: Claim{N: int8(n), TTL: lease, Stamp: place}}
	p.step(Event{Kind: Start, Nodes: heard})
	p.want("start", p.did.Acquire == All(n))
	return p
}

// held is a claim over n nodes that won with token 100 at once.
func held(t *testing.T, n int) *play {
	t.Helper()
	p := begin(t, n, 0)
	for node := range n {
		p.granted(node, 100)
	}
	p.want("held", p.c.Phase == Held && p.c.Token == 100)
	return p
}

func (p *play) step(e Event) {
	p.t.Helper()
	e.At = p.now
	p.did = p.c.Step(e)
	for n := range (p.did.Acquire | p.did.Renew).Nodes {
		a := &p.asked[n]
		a.at, a.ttl, a.id, a.epoch = p.now, p.c.TTL, p.c.ID, p.c.Epoch[n]
	}
	if alarm := p.c.Alarm(); e.Kind == Tick && alarm != 0 && alarm <= p.now {
		p.t.Fatalf("wants a tick for ever: %+v", p.c)
	}
	if p.did.FreshID && p.did.GiveBack|p.did.Commit != 0 {
		p.t.Fatalf("gives back on %b and commits on %b under the fresh id", p.did.GiveBack, p.did.Commit)
	}
	if w := p.did.Acquire & p.did.GiveBack; w != 0 {
		p.t.Fatalf("asks and gives back at once on %b", w)
	}
}

// answer completes an answer to what node was asked last.
func (p *play) answer(e Event) {
	p.t.Helper()
	a := p.asked[e.Node]
	e.Sent, e.TTL, e.ID, e.Epoch = a.at, a.ttl, a.id, a.epoch
	if e.Kind == Freed || e.Of == AskRelease || e.Of == AskGiveBack {
		e.Epoch = p.c.Epoch[e.Node]
	}
	p.step(e)
}

func (p *play) granted(node int, base int64) {
	p.t.Helper()
	p.answer(Event{Kind: Granted, Node: node, Token: base})
}

func (p *play) denied(nodes ...int) {
	p.t.Helper()
	for _, n := range nodes {
		p.answer(Event{Kind: Denied, Node: n, Left: lease, Queued: p.c.Queueing && p.c.Heard.Has(n)})
	}
}

func (p *play) failed(of AskKind, nodes ...int) {
	p.t.Helper()
	for _, n := range nodes {
		p.answer(Event{Kind: Failed, Of: of, Node: n})
	}
}

func (p *play) say(kind Kind, nodes ...int) {
	p.t.Helper()
	for _, n := range nodes {
		p.answer(Event{Kind: kind, Node: n})
	}
}

func (p *play) tick() {
	p.t.Helper()
	if p.now = p.c.Alarm(); p.now == 0 {
		p.t.Fatal("the claim waits for nothing")
	}
	p.step(Event{Kind: Tick})
}

func (p *play) want(what string, ok bool) {
	p.t.Helper()
	if !ok {
		p.t.Fatalf("%s: did %+v\nclaim %+v", what, p.did, p.c)
	}
}

func (p *play) wantOutcome(o Outcome) {
	p.t.Helper()
	if p.did.Outcome != o {
		p.t.Fatalf("outcome %d, want %d: did %+v\nclaim %+v", p.did.Outcome, o, p.did, p.c)
	}
}

func set(nodes ...int) Set {
	var s Set
	for _, n := range nodes {
		s |= Only(n)
	}
	return s
}

// Taking the lock

func TestSharedBaseCommitsInOneRound(t *testing.T) {
	t.Parallel()
	for n := 1; n <= MaxNodes; n++ {
		p := begin(t, n, 0)
		for i := range Majority(n) {
			p.wantOutcome(None)
			p.granted(i, 100)
		}
		p.wantOutcome(Won)
		p.want("no second round", p.c.Token == 100 && p.did.Commit == 0)
	}
}

func TestDifferentBasesCommitTheHighest(t *testing.T) {
	t.Parallel()
	p := begin(t, 5, 0)
	p.granted(0, 100)
	p.granted(1, 132)
	p.want("no quorum yet", p.c.Token == 0)
	p.granted(2, 100)
	p.wantOutcome(None)
	p.want("commit where the base is lower", p.c.Token == 132 && p.did.Commit == set(0, 2))
	p.say(Accepted, 0)
	p.wantOutcome(None)
	p.say(Accepted, 2)
	p.wantOutcome(Won)
}

func TestTokenIsFixedOnceAQuorumGranted(t *testing.T) {
	t.Parallel()
	p := begin(t, 5, 0)
	p.granted(0, 100)
	p.granted(1, 132)
	p.granted(2, 100)
	p.granted(3, 164)
	p.want("a higher base does not count", p.c.Token == 132 && p.did.Commit == 0 && !p.c.Agreed.Has(3))
	p.granted(4, 101)
	p.want("a lower one is committed too", p.did.Commit == set(4))
	p.say(Accepted, 4)
	p.say(Accepted, 2)
	p.wantOutcome(Won)
}

func TestRefusedCommitDoesNotCount(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, 0)
	p.granted(0, 100)
	p.granted(1, 132)
	p.denied(2)
	p.wantOutcome(None)
	p.say(Refused, 0)
	p.wantOutcome(Busy)
	p.want("everything is released", p.did.Release == All(3))
}

// The lock lapses on a node a TTL after the request reached it, and that was
// not before it was sent.
func TestValidityCountsFromTheQuorumthLatestSend(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, stamp)
	p.denied(0, 1, 2)
	first := p.now
	p.step(Event{Kind: Woken, Node: 0})
	p.now += 3 * ms
	p.granted(0, 100)
	p.now += 2 * ms
	late := p.now
	p.step(Event{Kind: Woken, Node: 1})
	p.granted(1, 100)
	p.wantOutcome(Won)
	if got, want := p.c.Trusted(), first+lease-Drift(lease); got != want {
		t.Fatalf("trusted until %d, want %d", got, want)
	}
	p.step(Event{Kind: Granted, Node: 2, Sent: late, TTL: lease, Token: 100})
	if got, want := p.c.Trusted(), late+lease-Drift(lease); got != want {
		t.Fatalf("with a late grant trusted until %d, want %d", got, want)
	}
}

func TestValidityIsTestedAfterTheLastReply(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, 0)
	p.granted(0, 100)
	p.now += lease - Drift(lease)
	p.granted(1, 100)
	p.wantOutcome(Unavailable)
	p.want("everything is released", p.c.Phase == Over && p.did.Release == All(3))

	p = begin(t, 3, 0)
	p.granted(0, 100)
	p.now += lease - Drift(lease) - 1
	p.granted(1, 100)
	p.wantOutcome(Won)
}

func TestLateQuorumRestartsWaiter(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, stamp)
	p.granted(0, 100)
	p.now += lease
	p.granted(1, 100)
	p.wantOutcome(None)
	p.want("under a fresh id", p.did.FreshID && p.did.Release == All(3) && p.c.Stamp == stamp && p.c.Rest > p.now)
}

func TestLateGrantsAreKeptAsRedundancy(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, 0)
	p.granted(0, 100)
	p.granted(1, 100)
	p.wantOutcome(Won)
	p.granted(2, 68)
	p.want("brought to the token", p.c.Granted == All(3) && p.did.Commit == set(2) && p.did.Release == 0)
	p.say(Accepted, 2)
	p.wantOutcome(None)
}

// Busy and Unavailable

func TestBusyNeedsAQuorumOfAnswers(t *testing.T) {
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
		p := begin(t, 3, 0)
		got := None
		note := func() {
			if p.did.Outcome != None && got == None {
				got = p.did.Outcome
			}
		}
		for _, n := range tt.failed {
			p.failed(AskAcquire, n)
			note()
		}
		for _, n := range tt.granted {
			p.granted(n, 100)
			note()
		}
		for _, n := range tt.denied {
			p.denied(n)
			note()
		}
		if got != tt.want {
			t.Errorf("%s: outcome %d, want %d", name, got, tt.want)
		}
	}
}

func TestSilenceUntilTheDeadlineIsUnavailable(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, 0)
	p.denied(0)
	p.tick()
	p.wantOutcome(Unavailable)
	if got := p.now - second; got != RequestTimeout(lease) {
		t.Errorf("gave up after %v", time.Duration(got))
	}
}

// Nobody need have reached a quorum before: who may wait, waits. A refusal is waited
// out as well, unless so many nodes refuse for good that no quorum is left.
func TestWaiterOutlastsTemporaryFailures(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		rounds []string // by node: '-' denies, '!' fails, '#' refuses for good
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
		p := begin(t, 3, stamp)
		for i, round := range row.rounds {
			if i > 0 {
				p.wantOutcome(None)
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
		if got := p.did.Outcome; got != row.want {
			t.Errorf("%s: outcome %d, want %d", name, got, row.want)
		}
		if row.want == None && (p.c.Phase != Seeking || p.c.Alarm() == 0) {
			t.Errorf("%s: it does not go on asking", name)
		}
	}
}

// What stands in the way is told when a round has ended for want of answers, or for
// those of others, and not while an answer is to come that tells which it is.
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
		p := begin(t, 3, stamp)
		var last Outcome
		for n, what := range row.answers {
			switch what {
			case '-':
				p.denied(n)
			case '+':
				p.granted(n, 100)
			default:
				p.failed(AskAcquire, n)
			}
			if p.did.Obstacle != None {
				last = p.did.Obstacle
			}
		}
		if last != row.want {
			t.Errorf("%s: obstacle %d, want %d", name, last, row.want)
		}
	}
}

func TestFailuresDoNotCountInNextRound(t *testing.T) {
	t.Parallel()
	p := beginHearing(t, 3, stamp, 0)
	p.failed(AskAcquire, 0, 1, 2)
	p.want("an outage", p.did.Obstacle == Unavailable)
	p.tick()
	p.denied(0)
	p.failed(AskAcquire, 1)
	p.want("it is not known yet", p.did.Obstacle == None)
	p.denied(2)
	p.want("it is held", p.did.Obstacle == Busy)
}

func TestUnsentRequestsNeedNoRelease(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, 0)
	p.granted(0, 100)
	p.answer(Event{Kind: Failed, Of: AskAcquire, Node: 1, Unsent: true})
	p.failed(AskAcquire, 2)
	p.wantOutcome(Unavailable)
	p.want("node 1 cannot know the id", p.did.Release == set(0, 2))
	p.say(Freed, 0)
	p.wantOutcome(Released) // with node 1, where there is nothing to free
}

func TestPartlyUnsentRequestsNeedRelease(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, stamp)
	p.denied(0, 1)
	p.tick() // node 2 was silent, and is asked again
	p.want("asked again", p.did.Acquire == All(3))
	p.answer(Event{Kind: Failed, Of: AskAcquire, Node: 2, Unsent: true})
	p.step(Event{Kind: Release})
	p.want("the first request may have been executed", p.did.Release == All(3))
}

// Keeping the lock

func TestRenewalNeedsAQuorum(t *testing.T) {
	t.Parallel()
	p := held(t, 5)
	p.now += lease / 3
	p.step(Event{Kind: Renew, TTL: lease})
	p.want("all are asked", p.did.Renew == All(5))
	p.say(Kept, 0, 1)
	p.wantOutcome(None)
	p.say(Kept, 2)
	p.wantOutcome(Renewed)
	if want := second + lease/3 + lease - Drift(lease); p.c.Trusted() != want {
		t.Errorf("trusted until %d, want %d", p.c.Trusted(), want)
	}
	p.say(Kept, 3)
	p.wantOutcome(None)
}

func TestSlowRenewalDoesNotExtendTrust(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	p.step(Event{Kind: Renew, TTL: lease})
	sent := p.now
	p.now += lease / 2
	p.say(Kept, 0, 1)
	p.wantOutcome(Renewed)
	if want := sent + lease - Drift(lease); p.c.Trusted() != want {
		t.Errorf("trusted until %d, want %d: it counts from the send", p.c.Trusted(), want)
	}
}

func TestRenewalAfterTrustEndsIsLoss(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	p.now = p.c.Trusted() - 1
	p.step(Event{Kind: Renew, TTL: lease})
	p.say(Kept, 0)
	p.now++
	p.say(Kept, 1)
	p.wantOutcome(Lost)
	p.want("released once everywhere", p.did.Release == All(3) && p.c.Phase == Over)
}

func TestFailedRenewalKeepsOldTrust(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	trust := p.c.Trusted()
	p.now += lease / 3
	p.step(Event{Kind: Renew, TTL: lease})
	p.say(Kept, 0)
	p.failed(AskRenew, 1)
	p.wantOutcome(None)
	p.failed(AskRenew, 2)
	p.wantOutcome(NotRenewed)
	p.want("old trust", p.c.Trusted() == trust && p.c.Phase == Held)
}

func TestTickEndsRenewalRound(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	p.step(Event{Kind: Renew, TTL: lease})
	p.say(Kept, 0)
	p.step(Event{Kind: Tick})
	p.wantOutcome(NotRenewed)
}

// No request shortens what a node has promised, whenever the node executes it.
func TestShorterTTLDoesNotShortenTrust(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	trust := p.c.Trusted()
	p.step(Event{Kind: Renew, TTL: second})
	p.say(Kept, 0, 1)
	p.wantOutcome(Renewed)
	p.want("the old trust", p.c.Trusted() == trust)
	p.now = trust - 100*ms
	p.step(Event{Kind: Renew, TTL: second})
	p.say(Kept, 0, 1)
	p.want("and then that of the shorter TTL", p.c.Trusted() == p.now+second-Drift(second))
}

func TestLateAnswerExtendsTrust(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	p.now += lease / 2
	p.step(Event{Kind: Renew, TTL: lease})
	old := Event{Kind: Kept, Sent: p.now, TTL: lease}
	p.now += ms
	p.step(Event{Kind: Renew, TTL: second})
	for n := range 2 {
		old.Node = n
		p.step(old)
	}
	p.want("by the time at which it was sent", p.c.Trusted() == old.Sent+lease-Drift(lease))
}

func TestMajorityOfNotMineIsLoss(t *testing.T) {
	t.Parallel()
	p := held(t, 5)
	p.step(Event{Kind: Renew, TTL: lease})
	p.say(NotMine, 0, 1)
	p.wantOutcome(None)
	p.say(NotMine, 2)
	p.wantOutcome(Lost)
	p.want("released once everywhere", p.did.Release == All(5) && p.c.Phase == Over)
}

func TestNotMineCountsOnlyInItsRound(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	p.step(Event{Kind: Renew, TTL: lease})
	p.say(NotMine, 0)
	p.say(Kept, 1, 2)
	p.wantOutcome(Renewed)
	p.step(Event{Kind: Renew, TTL: lease})
	p.say(NotMine, 1)
	p.wantOutcome(None)
	p.say(Kept, 0, 2)
	p.wantOutcome(Renewed)
}

func TestRenewalRegainsForgetfulNode(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, 0)
	p.granted(0, 100)
	p.granted(1, 100)
	p.failed(AskAcquire, 2)
	p.step(Event{Kind: Renew, TTL: lease})
	p.say(Kept, 0, 1, 2)
	p.want("three nodes", p.c.Granted == All(3))
}

func TestWakeUpOfHeldLockRenewsNode(t *testing.T) {
	t.Parallel()
	p := begin(t, 3, stamp)
	p.granted(0, 100)
	p.granted(1, 100)
	p.wantOutcome(Won)
	p.step(Event{Kind: Woken, Node: 2})
	p.want("renewed there", p.did.Renew == set(2) && p.did.Acquire == 0)
	p.say(Kept, 2)
	p.want("redundancy", p.c.Granted == All(3) && p.did.Outcome == None)
}

// Giving it up

func TestReleaseIsDoneWhenAQuorumAnswered(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	p.step(Event{Kind: Release})
	p.want("all nodes", p.did.Release == All(3))
	p.say(Freed, 0)
	p.wantOutcome(None)
	p.say(Freed, 2)
	p.wantOutcome(Released)
	p.say(Freed, 1)
	p.wantOutcome(None)
}

func TestUnansweredReleaseIsReported(t *testing.T) {
	t.Parallel()
	p := held(t, 3)
	p.step(Event{Kind: Release})
	p.say(Freed, 0)
	p.step(Event{Kind: Tick})
	p.wantOutcome(None) // an early tick means nothing
	p.tick()
	p.wantOutcome(NotReleased)
}

func TestClaimIsComparable(t *testing.T) {
	t.Parallel()
	seen := map[Claim]bool{}
	p := begin(t, 3, stamp)
	seen[p.c] = true
	before := p.c
	p.denied(0)
	if p.c == before || !seen[before] || seen[p.c] {
		t.Fatal("a copy of a claim changed with it")
	}
}
