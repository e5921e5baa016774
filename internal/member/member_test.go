package member

import (
	"cmp"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/quorum"
)

// server is a node as a client observes it: a marker, a run, and clocks that a test sets.
type server struct {
	*testing.T
	marker  string
	run     string
	shard   string
	durable bool
	clock   time.Time // clock of the node
}

// client is one client, with its own clocks.
type client struct {
	Rules
	state State
	name  string // its name of the node; "": the usual one
	clock time.Time
	mono  time.Duration
}

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func newServer(t *testing.T) *server {
	t.Parallel()
	return &server{T: t, run: "r1", clock: noon}
}

// newClient returns a client with the rules r and the defaults of package redis.
func newClient(r Rules) *client {
	if r.MaxTTL == 0 {
		r.MaxTTL = time.Minute
	}
	return &client{Rules: r, clock: noon, mono: time.Hour}
}

var (
	threeNodeRules = Rules{Nodes: 3}
	singleRules    = Rules{Nodes: 1}
)

var quarantine = Quarantine(time.Minute) // with the default MaxTTL

// advanceClock lets time pass for the node and the clients.
func (n *server) advanceClock(d time.Duration, clients ...*client) {
	n.clock = n.clock.Add(d)
	for _, c := range clients {
		c.clock, c.mono = c.clock.Add(d), c.mono+d
	}
}

func (n *server) restart(run string, wiped bool) {
	n.run = run
	if wiped {
		n.marker = ""
	}
}

// observe returns the client's present observation.
func (n *server) observe(c *client) Observation {
	return Observation{
		Marker: n.marker, Name: cmp.Or(c.name, "a:1"), Run: n.run, Shard: n.shard,
		Mono: c.mono, Client: c.clock.UnixMicro(), Node: n.clock.UnixMicro(),
	}
}

// observeAndDecide repeats Observe and Decide until the client writes nothing more, as the gate does.
func (n *server) observeAndDecide(c *client) error {
	for range 8 {
		o := n.observe(c)
		var v Verdict
		if c.state, v = c.Decide(c.state, o); v.AskDurable {
			o.Durable = AnswerOf(n.durable)
			c.state, v = c.Decide(c.state, o)
		}
		if v.Votes || v.Err != nil {
			return v.Err
		}
		n.marker = v.Write
	}
	return errors.New("it goes on writing")
}

// firstTokenNow returns the first token of a counter that would start now.
func (n *server) firstTokenNow() string {
	base, _ := quorum.Seed(n.clock.UnixMicro(), n.clock.UnixMicro())
	return strconv.FormatInt(base, 10)
}

func (n *server) checkVotes(c *client) {
	n.Helper()
	if err := n.observeAndDecide(c); err != nil {
		n.Errorf("with %q the node does not vote: %v", n.marker, err)
	}
}

func (n *server) checkWaits(c *client) {
	n.Helper()
	err := n.observeAndDecide(c)
	if _, ok := errors.AsType[*QuarantineError](err); !ok {
		n.Errorf("with %q: %v, want a quarantine", n.marker, err)
	}
}

// checkConflict fails the test unless the client rejects the node as one of another set.
func (n *server) checkConflict(c *client, mention string) {
	n.Helper()
	err := n.observeAndDecide(c)
	if _, ok := errors.AsType[*ConflictError](err); !ok || !strings.Contains(err.Error(), mention) {
		n.Errorf("with %q: %v, want a conflict with %s", n.marker, err, mention)
	}
}

func (n *server) markerFloor() int64 {
	floor, err := Floor(n.marker, n.run, 0, 0)
	if err != nil {
		n.Error(err)
	}
	return floor
}

func TestNewNodeSitsOutQuarantineOnce(t *testing.T) {
	n, c := newServer(t), newClient(threeNodeRules)
	n.checkWaits(c)
	n.advanceClock(quarantine-time.Second, c)
	n.checkWaits(c)
	n.advanceClock(time.Second, c)
	n.checkVotes(c)
	if want := "n=3 v=3 maxttl=60000 run=r1 floor=" + n.firstTokenNow(); n.marker != want {
		t.Errorf("marker = %q, want %q", n.marker, want)
	}
	n.checkVotes(newClient(threeNodeRules)) // one client's wait is enough for all
}

// One client that watches all the time needs one such period; clients that live for seconds need two.
func TestQuarantineOutlastsLongestLeaseByTwoSeconds(t *testing.T) {
	const tick = time.Millisecond
	for _, longest := range []time.Duration{10 * time.Millisecond, time.Minute, 24 * time.Hour} {
		rules := Rules{Nodes: 3, MaxTTL: longest}
		t.Run("one client, "+longest.String(), func(t *testing.T) {
			n, c := newServer(t), newClient(rules)
			n.checkWaits(c)
			n.advanceClock(longest+2*time.Second-tick, c)
			n.checkWaits(c)
			n.advanceClock(tick, c)
			n.checkVotes(c)
		})
		t.Run("one client after the other, "+longest.String(), func(t *testing.T) {
			n := newServer(t)
			next := func() *client {
				c := newClient(rules)
				c.clock = n.clock
				return c
			}
			n.checkWaits(next())
			n.advanceClock(longest + 2*time.Second - tick)
			n.checkWaits(next())
			n.advanceClock(tick)
			n.checkWaits(next())
			n.advanceClock(longest + 2*time.Second - tick)
			n.checkWaits(next())
			n.advanceClock(tick)
			n.checkVotes(next())
		})
	}
}

func TestForgetfulNodeSitsOutQuarantine(t *testing.T) {
	for name, forget := range map[string]func(*server){
		"a restart":             func(n *server) { n.restart("r2", false) },
		"an empty restart":      func(n *server) { n.restart("r2", true) },
		"data wiped in one run": func(n *server) { n.marker = "" },
		"a durable node that was replaced": func(n *server) {
			n.durable = true
			n.restart("r2", true)
		},
		"data of another server": func(n *server) { n.marker = "n=3 v=3 maxttl=60000 run=other" },
		"another database":       func(n *server) { n.marker = "n=3 v=3 maxttl=60000 seen=other client=1 node=1" },
	} {
		t.Run(name, func(t *testing.T) {
			n, c := newServer(t), newClient(threeNodeRules)
			n.checkWaits(c)
			n.advanceClock(quarantine, c)
			n.checkVotes(c)
			n.advanceClock(time.Hour, c)
			forget(n)
			n.checkWaits(c)
			n.advanceClock(quarantine-time.Second, c)
			n.checkWaits(c)
			n.checkWaits(newClient(threeNodeRules))
			n.advanceClock(time.Second, c)
			n.checkVotes(c)
		})
	}
}

// A client that misses an admission and the next wipe must not count the time before them.
func TestWatchRestartsWhenMarkerChanges(t *testing.T) {
	n, early, c := newServer(t), newClient(threeNodeRules), newClient(threeNodeRules)
	n.checkWaits(early)
	n.checkWaits(c)
	n.advanceClock(quarantine, early, c)
	n.checkVotes(c)
	n.marker = ""
	n.checkWaits(early)
}

func TestSettingNodeClockDoesNotEndQuarantine(t *testing.T) {
	n, c := newServer(t), newClient(threeNodeRules)
	n.clock = n.clock.Add(-time.Hour) // as after a boot
	n.checkWaits(c)
	n.clock = n.clock.Add(time.Hour)
	n.advanceClock(quarantine-time.Second, c)
	n.checkWaits(c)
	n.checkWaits(newClient(threeNodeRules))
	n.clock = n.clock.Add(time.Hour) // and again
	n.checkWaits(newClient(threeNodeRules))
}

func TestWrongClientClockDoesNotEndQuarantine(t *testing.T) {
	n, behind, ahead := newServer(t), newClient(threeNodeRules), newClient(threeNodeRules)
	behind.clock = behind.clock.Add(-time.Hour)
	ahead.clock = ahead.clock.Add(time.Hour)
	n.checkWaits(behind)
	n.advanceClock(quarantine-time.Second, behind, ahead)
	n.checkWaits(ahead)
	further := newClient(threeNodeRules)
	further.clock = ahead.clock.Add(time.Hour)
	n.checkWaits(further)
}

func TestWrongClockAtStartDelaysAdmission(t *testing.T) {
	n, ahead, c := newServer(t), newClient(threeNodeRules), newClient(threeNodeRules)
	ahead.clock = ahead.clock.Add(time.Hour)
	n.checkWaits(ahead)
	n.checkWaits(c)
	n.advanceClock(quarantine-time.Second, c)
	n.checkWaits(c)
	n.advanceClock(time.Second, c)
	n.checkVotes(c) // by its own monotonic clock
}

// The node and a client on the same machine boot with a clock that is behind. Both times of the first sight
// come from that clock, and both seem long ago after it is set.
func TestSettingBothClocksDoesNotEndQuarantine(t *testing.T) {
	n, local, c := newServer(t), newClient(threeNodeRules), newClient(threeNodeRules)
	n.clock, local.clock = n.clock.Add(-time.Hour), local.clock.Add(-time.Hour)
	n.checkWaits(local)
	n.clock, local.clock = n.clock.Add(time.Hour), local.clock.Add(time.Hour)
	n.advanceClock(time.Second, local, c)
	n.checkWaits(c)
	n.checkWaits(local)
	n.advanceClock(quarantine-2*time.Second, local, c)
	n.checkWaits(c)
	n.checkWaits(local)
	n.checkWaits(newClient(threeNodeRules))
	n.advanceClock(time.Second, local, c)
	n.checkVotes(local) // by its own monotonic clock
}

// Even programs that run for a second each, as from cron, complete a quarantine. They compare wall clocks, and
// setting a clock may fake one of the two periods.
func TestShortLivedClientsCompleteQuarantine(t *testing.T) {
	n := newServer(t)
	brief := func() *client {
		c := newClient(threeNodeRules)
		c.clock = n.clock
		return c
	}
	for range 6 {
		n.checkWaits(brief())
		n.advanceClock(quarantine/3 + time.Second)
	}
	n.checkVotes(brief())
}

// Clients that come and go do not delay a client that has watched the node all the time.
func TestShortLivedClientsDoNotDelayQuarantine(t *testing.T) {
	n, c := newServer(t), newClient(threeNodeRules)
	n.checkWaits(newClient(threeNodeRules))
	n.advanceClock(quarantine/2, c)
	n.checkWaits(c)
	n.advanceClock(quarantine/2, c)
	brief := newClient(threeNodeRules)
	brief.clock = n.clock
	n.checkWaits(brief) // the first period is over
	n.advanceClock(quarantine/2-time.Second, c)
	n.checkWaits(c)
	n.advanceClock(time.Second, c)
	n.checkVotes(c)
}

func TestDurableNodeVotesAtOnce(t *testing.T) {
	admitted := func(t *testing.T, durable bool) (*server, *client) {
		n, c := newServer(t), newClient(threeNodeRules)
		n.durable = durable
		n.checkWaits(c)
		n.advanceClock(quarantine, c)
		n.checkVotes(c)
		return n, c
	}
	t.Run("it was and is durable", func(t *testing.T) {
		n, c := admitted(t, true)
		floor := n.firstTokenNow() // the floor does not change, because the node has forgotten nothing since
		n.restart("r2", false)
		n.advanceClock(time.Second, c)
		n.checkVotes(c)
		if want := "n=3 v=3 maxttl=60000 run=r2 durable=a:1 floor=" + floor; n.marker != want {
			t.Errorf("marker = %q, want %q", n.marker, want)
		}
	})
	t.Run("it is no more", func(t *testing.T) {
		n, c := admitted(t, true)
		n.durable = false
		n.restart("r2", false)
		n.checkWaits(c)
	})
	t.Run("it was not", func(t *testing.T) {
		n, c := admitted(t, false)
		n.durable = true
		n.restart("r2", false)
		n.checkWaits(c)
	})
	t.Run("its data is of before the last run", func(t *testing.T) {
		n, c := admitted(t, true)
		backup := n.marker
		n.restart("r2", false)
		n.checkVotes(c)
		n.marker = backup
		n.restart("r3", false)
		n.checkWaits(c)
	})
	t.Run("its data is of before, and this client has seen it admitted in this run", func(t *testing.T) {
		n, c := admitted(t, true)
		n.restart("r2", false)
		n.marker = "n=3 v=3 maxttl=60000 run=r2 durable=a:1"
		n.checkVotes(c)
		n.marker = "n=3 v=3 maxttl=60000 run=r0 durable=a:1"
		n.checkWaits(c)
	})
	t.Run("its data is another node's", func(t *testing.T) {
		n, c := admitted(t, true)
		n.marker = strings.Replace(n.marker, "a:1", "b:1", 1)
		n.restart("r2", false)
		n.checkWaits(c)
		n.checkWaits(newClient(threeNodeRules))
	})
	t.Run("it was in quarantine", func(t *testing.T) {
		n, c := newServer(t), newClient(threeNodeRules)
		n.durable = true
		n.checkWaits(c)
		n.restart("r2", false)
		n.advanceClock(quarantine, c)
		n.checkWaits(c)
	})
}

// Clients may know a node by several names: an address, a host name, or the address of a proxy.
func TestDurableNodeVotesUnderEveryName(t *testing.T) {
	restarted := func(t *testing.T) (n *server, c, stranger *client) {
		n, c, stranger = newServer(t), newClient(threeNodeRules), newClient(threeNodeRules)
		stranger.name, n.durable = "proxy:1", true
		n.checkWaits(c)
		n.advanceClock(quarantine, c, stranger)
		n.checkVotes(c)
		n.restart("r2", false)
		n.checkWaits(stranger)
		return n, c, stranger
	}
	t.Run("a client that knows its name lets it vote", func(t *testing.T) {
		n, c, stranger := restarted(t)
		n.checkWaits(stranger) // and again
		n.checkVotes(c)
		n.checkVotes(stranger)
	})
	t.Run("after another restart, too", func(t *testing.T) {
		n, c, stranger := restarted(t)
		n.restart("r3", false)
		n.checkWaits(stranger)
		n.checkVotes(c)
	})
	t.Run("nobody else comes", func(t *testing.T) {
		n, _, stranger := restarted(t)
		n.advanceClock(quarantine-time.Second, stranger)
		n.checkWaits(stranger)
		n.advanceClock(time.Second, stranger)
		n.checkVotes(stranger)
	})
	t.Run("but its data are old", func(t *testing.T) {
		n, c, stranger := restarted(t)
		old := n.marker
		n.checkVotes(c)
		n.marker, n.run = old, "r3"
		n.checkWaits(stranger)
		n.checkWaits(c) // this client has seen the node admitted later
		n.checkWaits(newClient(threeNodeRules))
	})
	t.Run("but it is not durable now", func(t *testing.T) {
		n, c, stranger := restarted(t)
		n.durable = false
		n.checkWaits(stranger)
		n.durable = true
		n.checkWaits(c)
	})
}

func TestNoQuarantineAdmitsForAllClients(t *testing.T) {
	n := newServer(t)
	n.checkVotes(newClient(Rules{Nodes: 3, NoQuarantine: true}))
	n.checkVotes(newClient(threeNodeRules))
}

func TestDifferentRulesAreRejected(t *testing.T) {
	t.Parallel()
	for text, c := range map[string]*client{
		"n=5 v=3 maxttl=60000 run=r1":      newClient(threeNodeRules),
		"n=3 v=3 maxttl=30000 run=r1":      newClient(threeNodeRules),
		"n=3 v=3 maxttl=600000 run=r1":     newClient(threeNodeRules),
		"n=3 v=3 maxttl=6000 run=r1":       newClient(threeNodeRules),
		"n=3 v=3 maxttl=60000 db=1 run=r1": newClient(threeNodeRules),

		"n=3 maxttl=60000 run=r1":           newClient(threeNodeRules),
		"n=3 maxttl=60000 v=3 run=r1":       newClient(threeNodeRules),
		"n=3 v=4 maxttl=60000 run=r1":       newClient(threeNodeRules),
		"n=3 v=30 maxttl=60000 run=r1":      newClient(threeNodeRules),
		"n=3 v=3 maxttl=60000 run=r2":       newClient(Rules{Nodes: 3, DB: 1}),
		"n=1 v=3":                           newClient(threeNodeRules),
		"n=3 v=3 maxttl=60000":              newClient(singleRules),
		"n=1":                               newClient(singleRules),
		"n=1 v=4":                           newClient(singleRules),
		"n=5 v=3 maxttl=1 seen=r1 client=1": newClient(Rules{Nodes: 3, NoQuarantine: true}),
		"rubbish":                           newClient(threeNodeRules),
	} {
		n := &server{T: t, run: "r1", clock: noon, marker: text}
		err := n.observeAndDecide(c)
		if _, conflict := errors.AsType[*ConflictError](err); !conflict || n.marker != text {
			t.Errorf("%q, with n=%d: %v, and then %q", text, c.Nodes, err, n.marker)
		}
	}
}

// Version 1 rejects each marker that contains " v=", as a marker of another version.
func TestOtherVersionIsNamedInConflict(t *testing.T) {
	t.Parallel()
	for text, another := range map[string]bool{
		"n=3 maxttl=60000 run=r1":                  true,
		"n=3 maxttl=60000 seen=r1 client=1 node=1": true,
		"n=1":                                          true,
		"n=3 v=1 maxttl=60000 run=r1":                  true,
		"n=3 v=2 maxttl=60000 run=r1":                  true,
		"n=3 v=30 maxttl=60000 run=r1":                 true,
		"n=5 v=3 maxttl=60000 run=r1":                  false,
		"n=1 v=3":                                      false,
		"n=3 v=3 maxttl=1 seen=r1 client=1 node=1":     false,
		"n=3 v=3 failover maxttl=60000 run=r1 shard=x": false,
	} {
		for _, readOnly := range []bool{false, true} {
			if readOnly && text == "n=3 v=3 maxttl=1 seen=r1 client=1 node=1" {
				continue // it ignores MaxTTL
			}
			n := &server{T: t, run: "r1", clock: noon, marker: text}
			err := n.observeAndDecide(newClient(Rules{Nodes: 3, ReadOnly: readOnly, DB: 4}))
			if c, ok := errors.AsType[*ConflictError](err); readOnly && !another && strings.HasPrefix(text, "n=3") {
				continue
			} else if !ok || c.Version != another || strings.Contains(err.Error(), "another version") != another || c.Newer != strings.Contains(text, "v=30") {
				t.Errorf("%q, only looks %v: %v", text, readOnly, err)
			}
		}
	}
	n := &server{T: t, run: "r1", clock: noon}
	for _, r := range []Rules{threeNodeRules, singleRules, failoverRules} {
		n.marker = ""
		if _ = n.observeAndDecide(newClient(r)); !strings.Contains(n.marker, " v=") {
			t.Errorf("%q was parsed as a marker of version 1", n.marker)
		}
	}
}

// MaxTTL protects nothing on a single node, so it may differ.
func TestSingleNodeMarkerOmitsMaxTTL(t *testing.T) {
	n := newServer(t)
	n.checkVotes(newClient(singleRules))
	n.checkVotes(newClient(Rules{Nodes: 1, MaxTTL: time.Hour}))
	if want := "n=1 v=3 run=r1 floor=" + n.firstTokenNow(); n.marker != want {
		t.Errorf("marker = %q, want %q", n.marker, want)
	}
}

func TestSingleNodeRestartsTokensEachRun(t *testing.T) {
	n, c := newServer(t), newClient(singleRules)
	n.checkVotes(c)
	n.restart("r2", false)
	n.advanceClock(time.Second, c)
	n.checkVotes(c)
	if want := "n=1 v=3 run=r2 floor=" + n.firstTokenNow(); n.marker != want {
		t.Errorf("marker = %q, want %q", n.marker, want)
	}
	n.run = "" // behind a proxy
	marker := n.marker
	if n.checkVotes(c); n.marker != marker {
		t.Errorf("a client without a run id wrote %q over %q", n.marker, marker)
	}
	n.marker = ""
	if n.checkVotes(c); n.marker != "n=1 v=3" {
		t.Errorf("without a run id: marker %q", n.marker)
	}
}

// failoverRules are the rules of a node that fails over.
var failoverRules = Rules{Nodes: 1, FailsOver: true}

func newFailoverServer(t *testing.T) (*server, *client) {
	n, c := newServer(t), newClient(failoverRules)
	n.durable = true // its own disk lacks the grants of another server
	n.checkWaits(c)
	n.advanceClock(quarantine, c)
	n.checkVotes(c)
	return n, c
}

func TestPromotedServerSitsOutQuarantine(t *testing.T) {
	for name, run := range map[string]string{
		"another server":                      "r2/old",
		"the same server, promoted again":     "r1/other",
		"the same server after a restart":     "r3",
		"another, which forgot its promotion": "r2",
	} {
		t.Run(name, func(t *testing.T) {
			n, c := newFailoverServer(t)
			n.advanceClock(time.Hour, c)
			n.restart(run, false)
			n.checkWaits(c)
			n.advanceClock(quarantine-time.Second, c)
			n.checkWaits(c)
			n.advanceClock(time.Second, c)
			n.checkVotes(c)
		})
	}
}

// SWAPDB would bring the marker of another database, and so its locks.
func TestFailoverNodeHasOneDatabase(t *testing.T) {
	n, _ := newFailoverServer(t)
	n.checkConflict(newClient(Rules{Nodes: 1, FailsOver: true, DB: 1}), "")
}

// A server forgets its promotion when it has had no replica for an hour.
func TestForgottenPromotionDoesNotStopVoting(t *testing.T) {
	n, c := newFailoverServer(t)
	n.restart("r2/old", false)
	n.checkWaits(c)
	n.advanceClock(quarantine, c)
	n.checkVotes(c)
	n.restart("r2", false)
	n.checkVotes(c)
}

// Earlier grants may have had any token below the clock.
func TestNewMasterStartsTokensAtClock(t *testing.T) {
	n, c := newFailoverServer(t)
	first := n.markerFloor()
	if want := noon.Add(quarantine).UnixMicro() - 31; first != want {
		t.Errorf("%q: floor = %d, want %d", n.marker, first, want)
	}
	n.advanceClock(time.Hour, c)
	n.restart("r2/old", false)
	n.checkWaits(c)
	if floor := n.markerFloor(); floor != 0 {
		t.Errorf("%q: has the floor of another run", n.marker)
	}
	n.advanceClock(quarantine, c)
	n.checkVotes(c)
	if floor := n.markerFloor(); floor != first+(time.Hour+quarantine).Microseconds() {
		t.Errorf("%q: floor = %d", n.marker, floor)
	}
}

func TestTokensNeedClocksWithinMinute(t *testing.T) {
	n, c := newFailoverServer(t)
	n.restart("r2/old", false)
	n.checkWaits(c)
	n.advanceClock(2*quarantine, c)
	n.clock = n.clock.Add(61 * time.Second)
	if err := n.observeAndDecide(c); !errors.Is(err, ErrClocks) {
		t.Errorf("with %q: %v", n.marker, err)
	}
	n.clock = n.clock.Add(-5 * time.Second)
	n.checkVotes(c)
}

func TestPlainAndFailoverClientsConflict(t *testing.T) {
	n, c := newFailoverServer(t)
	plain := newClient(singleRules)
	plain.clock = n.clock
	n.checkConflict(plain, `"n=1 v=3 failover maxttl=60000"`)
	n.marker = "n=1 v=3"
	n.checkVotes(plain)
	n.checkConflict(c, `opened with "n=1 v=3"`)
}

// A restart of such a node would go unnoticed. The same holds for a server that another one replaces.
func TestNodeWithoutRunIDVotesOnlyAlone(t *testing.T) {
	for _, r := range []Rules{threeNodeRules, failoverRules, {Nodes: 3, ReadOnly: true}, {Nodes: 3, NoQuarantine: true}} {
		n := &server{T: t, run: Run("", "promoted"), clock: noon}
		if err := n.observeAndDecide(newClient(r)); !errors.Is(err, ErrNoRun) {
			t.Errorf("%+v: %v, want ErrNoRun", r, err)
		}
	}
	n := &server{T: t, clock: noon}
	n.checkVotes(newClient(singleRules))
	floor, err := Floor(n.marker, n.run, noon.UnixMicro(), noon.UnixMicro())
	if want := n.firstTokenNow(); err != nil || strconv.FormatInt(floor, 10) != want {
		t.Errorf("tokens begin at %d, %v, want %s", floor, err, want)
	}
	if _, err := Floor(n.marker, n.run, noon.UnixMicro(), noon.Add(61*time.Second).UnixMicro()); !errors.Is(err, ErrClocks) {
		t.Errorf("clocks 61 s apart: %v, want ErrClocks", err)
	}
}

func TestReadOnlyClientDoesNotWrite(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]struct {
		n     server
		rules Rules
		want  error
	}{
		"nobody has seen it":           {server{}, threeNodeRules, ErrNoVote},
		"admitted":                     {server{marker: "n=3 v=3 maxttl=60000 run=r1"}, threeNodeRules, nil},
		"admitted in another run":      {server{marker: "n=3 v=3 maxttl=60000 run=r0"}, threeNodeRules, ErrNoVote},
		"first seen":                   {server{marker: "n=3 v=3 maxttl=60000 seen=r1 client=1 node=1"}, threeNodeRules, ErrNoVote},
		"another MaxTTL":               {server{marker: "n=3 v=3 maxttl=30000 run=r1"}, threeNodeRules, nil},
		"durable, and was":             {server{marker: "n=3 v=3 maxttl=60000 run=r0 durable=a:1", durable: true}, threeNodeRules, nil},
		"durable no more":              {server{marker: "n=3 v=3 maxttl=60000 run=r0 durable=a:1"}, threeNodeRules, ErrNoVote},
		"durable as another node":      {server{marker: "n=3 v=3 maxttl=60000 run=r0 durable=b:1", durable: true}, threeNodeRules, ErrNoVote},
		"this client has no patience":  {server{marker: "n=3 v=3 maxttl=60000 run=r0"}, Rules{Nodes: 3, NoQuarantine: true}, nil},
		"one server alone":             {server{marker: "n=1 v=3 run=r0"}, singleRules, nil},
		"a shard that never moved":     {server{marker: "n=1 v=3 failover maxttl=60000 run=r0 shard=y", shard: "x"}, failoverRules, nil},
		"a shard after its own run":    {server{marker: "n=1 v=3 failover maxttl=60000 run=r0 shard=x", shard: "x"}, failoverRules, ErrNoVote},
		"a set of another size":        {server{marker: "n=5 v=3 maxttl=60000 run=r1"}, threeNodeRules, &ConflictError{}},
		"a set that does not failover": {server{marker: "n=1 v=3 run=r1"}, failoverRules, &ConflictError{}},
	} {
		n := of.n
		n.T, n.run, n.clock = t, "r1", noon
		c := newClient(of.rules)
		c.ReadOnly = true
		err := n.observeAndDecide(c)
		if _, conflict := errors.AsType[*ConflictError](of.want); conflict {
			n.checkConflict(c, "")
		} else if !errors.Is(err, of.want) {
			t.Errorf("%s: %v, want %v", name, err, of.want)
		}
		if n.marker != of.n.marker {
			t.Errorf("%s: wrote %q", name, n.marker)
		}
	}
}

// A slot that moves to another shard takes the marker of the old shard with it. That marker shows nothing about
// the new shard.
func TestUnpromotedShardIgnoresForeignMarker(t *testing.T) {
	shard := func(t *testing.T) (*server, *client) {
		n, c := newFailoverServer(t)
		n.shard = "x"
		n.marker = ""
		n.checkVotes(c)
		return n, c
	}
	t.Run("its marker is gone", func(t *testing.T) {
		n, c := shard(t)
		n.marker, c.state = "", State{}
		n.checkVotes(c)
	})
	t.Run("its marker is another's", func(t *testing.T) {
		n, c := shard(t)
		n.marker = "n=1 v=3 failover maxttl=60000 run=r9 shard=y"
		c.state = State{}
		n.checkVotes(c)
	})
	t.Run("its own marker is of another run", func(t *testing.T) {
		n, c := shard(t)
		n.restart("r2", false)
		n.checkWaits(c)
	})
	t.Run("a replica has taken over", func(t *testing.T) {
		n, c := shard(t)
		n.marker = ""
		n.restart("r2/old", false)
		n.checkWaits(c)
		n.checkWaits(newClient(failoverRules))
		n.advanceClock(quarantine, c)
		n.checkVotes(c)
		n.marker = ""
		n.checkVotes(c) // this client has admitted the node since
		n.marker = ""
		n.checkWaits(newClient(failoverRules))
	})
}

func TestVerdictReportsSkippedQuarantine(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]struct {
		rules  Rules
		marker string
		want   bool
	}{
		"a node of three":                  {Rules{Nodes: 3, NoQuarantine: true}, "", true},
		"a node that fails over":           {Rules{Nodes: 1, FailsOver: true, NoQuarantine: true}, "", true},
		"one server alone":                 {Rules{Nodes: 1, NoQuarantine: true}, "", false},
		"a durable node that remembers":    {Rules{Nodes: 3, NoQuarantine: true}, "n=3 v=3 maxttl=60000 run=r0 durable=a:1", false},
		"a node of three, with quarantine": {threeNodeRules, "", false},
	} {
		n, c := &server{T: t, run: "r1", marker: of.marker, clock: noon}, newClient(of.rules)
		o := n.observe(c)
		o.Durable = Yes
		if _, v := c.Decide(State{}, o); v.SkipsQuarantine != of.want || v.Write == "" {
			t.Errorf("%s: %+v, want Skips %v", name, v, of.want)
		}
	}
}

// Several commands are needed to learn whether a server is durable.
func TestDurabilityIsAskedOnlyWhenNeeded(t *testing.T) {
	t.Parallel()
	for marker, want := range map[string]bool{
		"":                            false,
		"n=3 v=3 maxttl=60000 run=r1": false,
		"n=3 v=3 maxttl=60000 run=r0": false,
		"n=3 v=3 maxttl=60000 run=r1 durable=a:1":                        false,
		"n=3 v=3 maxttl=60000 run=r0 durable=a:1":                        true,
		"n=3 v=3 maxttl=60000 run=r0 durable=b:1":                        true,
		"n=3 v=3 maxttl=60000 seen=r1 client=1 node=1 client2=1 node2=1": true,
	} {
		n, c := &server{T: t, run: "r1", marker: marker, clock: noon}, newClient(threeNodeRules)
		if _, v := c.Decide(State{}, n.observe(c)); v.AskDurable != want {
			t.Errorf("%q: %+v, want AskDurable %v", marker, v, want)
		}
	}
}

// The model checker continues several times from each state of a client.
func TestDecideDoesNotMutateState(t *testing.T) {
	t.Parallel()
	c := newClient(threeNodeRules)
	seen := func(s State, run string) State {
		s, _ = c.Decide(s, Observation{Marker: "n=3 v=3 maxttl=60000 run=" + run, Run: run})
		return s
	}
	s := seen(seen(seen(State{}, "r1"), "r2"), "r3")
	a, b := seen(s, "r4"), seen(s, "r5")
	if a.Admitted[3] != "r4" || b.Admitted[3] != "r5" || len(s.Admitted) != 3 {
		t.Errorf("%v became %v and %v", s, a, b)
	}
}

func FuzzMarker(f *testing.F) {
	f.Add(" run=r1 durable=a:1")
	f.Add(" run=r2 durable=b:1")
	f.Add(" seen=r1 client=5 node=6")
	f.Add(" run=r0 durable=b:1 seen=r1 client=5 node=6")
	f.Add(" seen=r1 client=5 node=6 client2=7 node2=8")
	f.Add(" seen=r1 client=-9223372036854775808 node=9223372036854775807")
	f.Fuzz(func(t *testing.T, text string) {
		c := newClient(threeNodeRules)
		_, v := c.Decide(State{}, Observation{
			Marker: c.markerPrefix() + text, Name: "a:1", Run: "r1", Durable: Yes, Client: 1, Node: 1,
		})
		if m, _ := parseMarker(text); v.Votes && m.run != "r1" {
			t.Errorf("%q admitted the node", text)
		}
		if strings.Contains(v.Write, "run=r1") && !strings.Contains(text, "run=r1") && !strings.Contains(text, "durable=a:1") {
			t.Errorf("%q admitted the node", text)
		}
	})
}

func TestQuarantineErrorNamesWaysToWait(t *testing.T) {
	t.Parallel()
	said := (&QuarantineError{Left: 62 * time.Second}).Error()
	for _, way := range []string{"1m2s", "-w 2m", "holdfast.Open", "AllowDown", "?down=allow", "?quarantine=off"} {
		if !strings.Contains(said, way) {
			t.Errorf("the error does not name %q: %s", way, said)
		}
	}
}
