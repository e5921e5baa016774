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
	clock   time.Time // the node's
}

// client is one client, with clocks of its own.
type client struct {
	Rules
	state State
	name  string // by which it knows the node; "": as most do
	clock time.Time
	mono  time.Duration
}

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func newServer(t *testing.T) *server {
	t.Parallel()
	return &server{T: t, run: "r1", clock: noon}
}

// newClient is a client with the rules r and the defaults of package redis.
func newClient(r Rules) *client {
	if r.MaxTTL == 0 {
		r.MaxTTL = time.Minute
	}
	return &client{Rules: r, clock: noon, mono: time.Hour}
}

var (
	three = Rules{Nodes: 3}
	alone = Rules{Nodes: 1}
)

var out = Quarantine(time.Minute) // with the default MaxTTL

// pass lets time pass for everybody.
func (n *server) pass(d time.Duration, clients ...*client) {
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

// observe is what the client observes now.
func (n *server) observe(c *client) Observation {
	return Observation{
		Marker: n.marker, Name: cmp.Or(c.name, "a:1"), Run: n.run, Shard: n.shard,
		Mono: c.mono, Client: c.clock.UnixMicro(), Node: n.clock.UnixMicro(),
	}
}

// look lets a client observe and decide until it writes nothing more, as the gate does.
func (n *server) look(c *client) error {
	for range 8 {
		o := n.observe(c)
		var v Verdict
		if c.state, v = c.Decide(c.state, o); v.AskDurable {
			o.Durable = Known(n.durable)
			c.state, v = c.Decide(c.state, o)
		}
		if v.Votes || v.Err != nil {
			return v.Err
		}
		n.marker = v.Write
	}
	return errors.New("it goes on writing")
}

// base is the first token that a new counter would give now.
func (n *server) base() string {
	base, _ := quorum.Seed(n.clock.UnixMicro(), n.clock.UnixMicro())
	return strconv.FormatInt(base, 10)
}

func (n *server) votes(c *client) {
	n.Helper()
	if err := n.look(c); err != nil {
		n.Errorf("with %q it does not vote: %v", n.marker, err)
	}
}

func (n *server) waits(c *client) {
	n.Helper()
	err := n.look(c)
	if _, ok := errors.AsType[*QuarantineError](err); !ok {
		n.Errorf("with %q: %v, want a quarantine", n.marker, err)
	}
}

// conflicts wants the node refused, as one of another set.
func (n *server) conflicts(c *client, mention string) {
	n.Helper()
	err := n.look(c)
	if _, ok := errors.AsType[*ConflictError](err); !ok || !strings.Contains(err.Error(), mention) {
		n.Errorf("with %q: %v, want a conflict with %s", n.marker, err, mention)
	}
}

func (n *server) floor() int64 {
	floor, err := Floor(n.marker, n.run, 0, 0)
	if err != nil {
		n.Error(err)
	}
	return floor
}

func TestNewNodeSitsOutQuarantineOnce(t *testing.T) {
	n, c := newServer(t), newClient(three)
	n.waits(c)
	n.pass(out-time.Second, c)
	n.waits(c)
	n.pass(time.Second, c)
	n.votes(c)
	if want := "n=3 v=3 maxttl=60000 run=r1 floor=" + n.base(); n.marker != want {
		t.Errorf("the marker is %q, want %q", n.marker, want)
	}
	n.votes(newClient(three)) // one client's wait is enough for all
}

// TestQuarantineOutlastsLongestLeaseByTwoSeconds for one client that looks on, and twice for clients that live for seconds.
func TestQuarantineOutlastsLongestLeaseByTwoSeconds(t *testing.T) {
	const tick = time.Millisecond
	for _, longest := range []time.Duration{10 * time.Millisecond, time.Minute, 24 * time.Hour} {
		rules := Rules{Nodes: 3, MaxTTL: longest}
		t.Run("one client, "+longest.String(), func(t *testing.T) {
			n, c := newServer(t), newClient(rules)
			n.waits(c)
			n.pass(longest+2*time.Second-tick, c)
			n.waits(c)
			n.pass(tick, c)
			n.votes(c)
		})
		t.Run("one client after the other, "+longest.String(), func(t *testing.T) {
			n := newServer(t)
			next := func() *client {
				c := newClient(rules)
				c.clock = n.clock
				return c
			}
			n.waits(next())
			n.pass(longest + 2*time.Second - tick)
			n.waits(next())
			n.pass(tick)
			n.waits(next())
			n.pass(longest + 2*time.Second - tick)
			n.waits(next())
			n.pass(tick)
			n.votes(next())
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
			n, c := newServer(t), newClient(three)
			n.waits(c)
			n.pass(out, c)
			n.votes(c)
			n.pass(time.Hour, c)
			forget(n)
			n.waits(c)
			n.pass(out-time.Second, c)
			n.waits(c)
			n.waits(newClient(three))
			n.pass(time.Second, c)
			n.votes(c)
		})
	}
}

// A client that does not look while the node is admitted and wiped again must not
// take the time before for a quarantine.
func TestWatchRestartsWhenMarkerChanges(t *testing.T) {
	n, early, c := newServer(t), newClient(three), newClient(three)
	n.waits(early)
	n.waits(c)
	n.pass(out, early, c)
	n.votes(c)
	n.marker = ""
	n.waits(early)
}

func TestSettingNodeClockDoesNotEndQuarantine(t *testing.T) {
	n, c := newServer(t), newClient(three)
	n.clock = n.clock.Add(-time.Hour) // as after a boot
	n.waits(c)
	n.clock = n.clock.Add(time.Hour)
	n.pass(out-time.Second, c)
	n.waits(c)
	n.waits(newClient(three))
	n.clock = n.clock.Add(time.Hour) // once more
	n.waits(newClient(three))
}

func TestWrongClientClockDoesNotEndQuarantine(t *testing.T) {
	n, behind, ahead := newServer(t), newClient(three), newClient(three)
	behind.clock = behind.clock.Add(-time.Hour)
	ahead.clock = ahead.clock.Add(time.Hour)
	n.waits(behind)
	n.pass(out-time.Second, behind, ahead)
	n.waits(ahead)
	further := newClient(three)
	further.clock = ahead.clock.Add(time.Hour)
	n.waits(further)
}

func TestWrongClockAtFirstSightOnlyDelays(t *testing.T) {
	n, ahead, c := newServer(t), newClient(three), newClient(three)
	ahead.clock = ahead.clock.Add(time.Hour)
	n.waits(ahead)
	n.waits(c)
	n.pass(out-time.Second, c)
	n.waits(c)
	n.pass(time.Second, c)
	n.votes(c) // by its own monotonic clock
}

// The node and a client on its machine boot with a clock that is behind. Both times at which the node was first seen are that clock's, and
// both seem long ago once it is set.
func TestSettingBothClocksDoesNotEndQuarantine(t *testing.T) {
	n, local, c := newServer(t), newClient(three), newClient(three)
	n.clock, local.clock = n.clock.Add(-time.Hour), local.clock.Add(-time.Hour)
	n.waits(local)
	n.clock, local.clock = n.clock.Add(time.Hour), local.clock.Add(time.Hour)
	n.pass(time.Second, local, c)
	n.waits(c)
	n.waits(local)
	n.pass(out-2*time.Second, local, c)
	n.waits(c)
	n.waits(local)
	n.waits(newClient(three))
	n.pass(time.Second, local, c)
	n.votes(local) // by its own monotonic clock
}

// Programs that run for a second each, as of cron, let a node vote all the same. They have wall clocks alone, and one of two
// periods may be a clock that was set.
func TestShortLivedClientsCompleteQuarantine(t *testing.T) {
	n := newServer(t)
	brief := func() *client {
		c := newClient(three)
		c.clock = n.clock
		return c
	}
	for range 6 {
		n.waits(brief())
		n.pass(out/3 + time.Second)
	}
	n.votes(brief())
}

// A client that has seen the node all the time is not put off by those that come and go.
func TestWallClockPeriodDoesNotDelayWatcher(t *testing.T) {
	n, c := newServer(t), newClient(three)
	n.waits(newClient(three))
	n.pass(out/2, c)
	n.waits(c)
	n.pass(out/2, c)
	brief := newClient(three)
	brief.clock = n.clock
	n.waits(brief) // the first period is over
	n.pass(out/2-time.Second, c)
	n.waits(c)
	n.pass(time.Second, c)
	n.votes(c)
}

func TestDurableNodeVotesAtOnce(t *testing.T) {
	admitted := func(t *testing.T, durable bool) (*server, *client) {
		n, c := newServer(t), newClient(three)
		n.durable = durable
		n.waits(c)
		n.pass(out, c)
		n.votes(c)
		return n, c
	}
	t.Run("it was and is durable", func(t *testing.T) {
		n, c := admitted(t, true)
		floor := n.base() // which stands: it has forgotten nothing since
		n.restart("r2", false)
		n.pass(time.Second, c)
		n.votes(c)
		if want := "n=3 v=3 maxttl=60000 run=r2 durable=a:1 floor=" + floor; n.marker != want {
			t.Errorf("the marker is %q, want %q", n.marker, want)
		}
	})
	t.Run("it is no more", func(t *testing.T) {
		n, c := admitted(t, true)
		n.durable = false
		n.restart("r2", false)
		n.waits(c)
	})
	t.Run("it was not", func(t *testing.T) {
		n, c := admitted(t, false)
		n.durable = true
		n.restart("r2", false)
		n.waits(c)
	})
	t.Run("its data is of before the last run", func(t *testing.T) {
		n, c := admitted(t, true)
		backup := n.marker
		n.restart("r2", false)
		n.votes(c)
		n.marker = backup
		n.restart("r3", false)
		n.waits(c)
	})
	t.Run("its data is of before, and this client has seen it admitted in this run", func(t *testing.T) {
		n, c := admitted(t, true)
		n.restart("r2", false)
		n.marker = "n=3 v=3 maxttl=60000 run=r2 durable=a:1"
		n.votes(c)
		n.marker = "n=3 v=3 maxttl=60000 run=r0 durable=a:1"
		n.waits(c)
	})
	t.Run("its data is another node's", func(t *testing.T) {
		n, c := admitted(t, true)
		n.marker = strings.Replace(n.marker, "a:1", "b:1", 1)
		n.restart("r2", false)
		n.waits(c)
		n.waits(newClient(three))
	})
	t.Run("it was in quarantine", func(t *testing.T) {
		n, c := newServer(t), newClient(three)
		n.durable = true
		n.waits(c)
		n.restart("r2", false)
		n.pass(out, c)
		n.waits(c)
	})
}

// Clients may know a node by several names: an address and a host name, or the address of a proxy.
func TestOtherNameOfDurableNodeDelaysNobody(t *testing.T) {
	restarted := func(t *testing.T) (n *server, c, stranger *client) {
		n, c, stranger = newServer(t), newClient(three), newClient(three)
		stranger.name, n.durable = "proxy:1", true
		n.waits(c)
		n.pass(out, c, stranger)
		n.votes(c)
		n.restart("r2", false)
		n.waits(stranger)
		return n, c, stranger
	}
	t.Run("a client that knows its name lets it vote", func(t *testing.T) {
		n, c, stranger := restarted(t)
		n.waits(stranger) // and again
		n.votes(c)
		n.votes(stranger)
	})
	t.Run("after another restart, too", func(t *testing.T) {
		n, c, stranger := restarted(t)
		n.restart("r3", false)
		n.waits(stranger)
		n.votes(c)
	})
	t.Run("nobody else comes", func(t *testing.T) {
		n, _, stranger := restarted(t)
		n.pass(out-time.Second, stranger)
		n.waits(stranger)
		n.pass(time.Second, stranger)
		n.votes(stranger)
	})
	t.Run("but its data are old", func(t *testing.T) {
		n, c, stranger := restarted(t)
		old := n.marker
		n.votes(c)
		n.marker, n.run = old, "r3"
		n.waits(stranger)
		n.waits(c) // which has seen it admitted later
		n.waits(newClient(three))
	})
	t.Run("but it is not durable now", func(t *testing.T) {
		n, c, stranger := restarted(t)
		n.durable = false
		n.waits(stranger)
		n.durable = true
		n.waits(c)
	})
}

func TestNoQuarantineAdmitsForAllClients(t *testing.T) {
	n := newServer(t)
	n.votes(newClient(Rules{Nodes: 3, NoQuarantine: true}))
	n.votes(newClient(three))
}

func TestDifferentRulesAreRejected(t *testing.T) {
	t.Parallel()
	for text, c := range map[string]*client{
		"n=5 v=3 maxttl=60000 run=r1":      newClient(three),
		"n=3 v=3 maxttl=30000 run=r1":      newClient(three),
		"n=3 v=3 maxttl=600000 run=r1":     newClient(three),
		"n=3 v=3 maxttl=6000 run=r1":       newClient(three),
		"n=3 v=3 maxttl=60000 db=1 run=r1": newClient(three),

		"n=3 maxttl=60000 run=r1":           newClient(three),
		"n=3 maxttl=60000 v=3 run=r1":       newClient(three),
		"n=3 v=4 maxttl=60000 run=r1":       newClient(three),
		"n=3 v=30 maxttl=60000 run=r1":      newClient(three),
		"n=3 v=3 maxttl=60000 run=r2":       newClient(Rules{Nodes: 3, DB: 1}),
		"n=1 v=3":                           newClient(three),
		"n=3 v=3 maxttl=60000":              newClient(alone),
		"n=1":                               newClient(alone),
		"n=1 v=4":                           newClient(alone),
		"n=5 v=3 maxttl=1 seen=r1 client=1": newClient(Rules{Nodes: 3, NoQuarantine: true}),
		"rubbish":                           newClient(three),
	} {
		n := &server{T: t, run: "r1", clock: noon, marker: text}
		err := n.look(c)
		if _, conflict := errors.AsType[*ConflictError](err); !conflict || n.marker != text {
			t.Errorf("%q, with n=%d: %v, and then %q", text, c.Nodes, err, n.marker)
		}
	}
}

// Version 1 takes each marker with " v=" in it for that of another version, and refuses it.
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
			err := n.look(newClient(Rules{Nodes: 3, ReadOnly: readOnly, DB: 4}))
			if c, ok := errors.AsType[*ConflictError](err); readOnly && !another && strings.HasPrefix(text, "n=3") {
				continue
			} else if !ok || c.Version != another || strings.Contains(err.Error(), "another version") != another || c.Newer != strings.Contains(text, "v=30") {
				t.Errorf("%q, only looks %v: %v", text, readOnly, err)
			}
		}
	}
	n := &server{T: t, run: "r1", clock: noon}
	for _, r := range []Rules{three, alone, moves} {
		n.marker = ""
		if _ = n.look(newClient(r)); !strings.Contains(n.marker, " v=") {
			t.Errorf("%q is a marker of version 1", n.marker)
		}
	}
}

// MaxTTL protects nothing where there is one node, and so need not agree.
func TestSingleNodeMarkerHasNoMaxTTL(t *testing.T) {
	n := newServer(t)
	n.votes(newClient(alone))
	n.votes(newClient(Rules{Nodes: 1, MaxTTL: time.Hour}))
	if want := "n=1 v=3 run=r1 floor=" + n.base(); n.marker != want {
		t.Errorf("the marker is %q, want %q", n.marker, want)
	}
}

func TestSingleNodeRestartsTokensEachRun(t *testing.T) {
	n, c := newServer(t), newClient(alone)
	n.votes(c)
	n.restart("r2", false)
	n.pass(time.Second, c)
	n.votes(c)
	if want := "n=1 v=3 run=r2 floor=" + n.base(); n.marker != want {
		t.Errorf("the marker is %q, want %q", n.marker, want)
	}
	n.run = "" // behind a proxy
	marker := n.marker
	if n.votes(c); n.marker != marker {
		t.Errorf("a client that sees no run has made %q of %q", n.marker, marker)
	}
	n.marker = ""
	if n.votes(c); n.marker != "n=1 v=3" {
		t.Errorf("without a run the marker is %q", n.marker)
	}
}

// moves are the rules of a node that fails over.
var moves = Rules{Nodes: 1, FailsOver: true}

func newMover(t *testing.T) (*server, *client) {
	n, c := newServer(t), newClient(moves)
	n.durable = true // what it wrote itself is not what another server granted
	n.waits(c)
	n.pass(out, c)
	n.votes(c)
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
			n, c := newMover(t)
			n.pass(time.Hour, c)
			n.restart(run, false)
			n.waits(c)
			n.pass(out-time.Second, c)
			n.waits(c)
			n.pass(time.Second, c)
			n.votes(c)
		})
	}
}

// SWAPDB would bring the marker of another database, and so its locks.
func TestFailoverNodeHasOneDatabase(t *testing.T) {
	n, _ := newMover(t)
	n.conflicts(newClient(Rules{Nodes: 1, FailsOver: true, DB: 1}), "")
}

// A server forgets its promotion when it has had no replica for an hour.
func TestForgottenPromotionDoesNotStopVoting(t *testing.T) {
	n, c := newMover(t)
	n.restart("r2/old", false)
	n.waits(c)
	n.pass(out, c)
	n.votes(c)
	n.restart("r2", false)
	n.votes(c)
}

// What was granted before may have had any token below the clock.
func TestNewMasterStartsTokensAtClock(t *testing.T) {
	n, c := newMover(t)
	first := n.floor()
	if want := noon.Add(out).UnixMicro() - 31; first != want {
		t.Errorf("%q: the floor is %d, want %d", n.marker, first, want)
	}
	n.pass(time.Hour, c)
	n.restart("r2/old", false)
	n.waits(c)
	if floor := n.floor(); floor != 0 {
		t.Errorf("%q: it has the floor of another run", n.marker)
	}
	n.pass(out, c)
	n.votes(c)
	if floor := n.floor(); floor != first+(time.Hour+out).Microseconds() {
		t.Errorf("%q: the floor is %d", n.marker, floor)
	}
}

func TestTokensNeedClocksWithinMinute(t *testing.T) {
	n, c := newMover(t)
	n.restart("r2/old", false)
	n.waits(c)
	n.pass(2*out, c)
	n.clock = n.clock.Add(61 * time.Second)
	if err := n.look(c); !errors.Is(err, ErrClocks) {
		t.Errorf("with %q: %v", n.marker, err)
	}
	n.clock = n.clock.Add(-5 * time.Second)
	n.votes(c)
}

func TestPlainAndFailoverClientsConflict(t *testing.T) {
	n, c := newMover(t)
	plain := newClient(alone)
	plain.clock = n.clock
	n.conflicts(plain, `"n=1 v=3 failover maxttl=60000"`)
	n.marker = "n=1 v=3"
	n.votes(plain)
	n.conflicts(c, `opened with "n=1 v=3"`)
}

// A restart of such a node would go unnoticed, and so would that of one server that another replaces.
func TestNodeWithoutRunIDVotesOnlyAlone(t *testing.T) {
	for _, r := range []Rules{three, moves, {Nodes: 3, ReadOnly: true}, {Nodes: 3, NoQuarantine: true}} {
		n := &server{T: t, run: Run("", "promoted"), clock: noon}
		if err := n.look(newClient(r)); !errors.Is(err, ErrNoRun) {
			t.Errorf("%+v: %v, want ErrNoRun", r, err)
		}
	}
	n := &server{T: t, clock: noon}
	n.votes(newClient(alone))
	floor, err := Floor(n.marker, n.run, noon.UnixMicro(), noon.UnixMicro())
	if want := n.base(); err != nil || strconv.FormatInt(floor, 10) != want {
		t.Errorf("its tokens begin at %d, %v, want %s", floor, err, want)
	}
	if _, err := Floor(n.marker, n.run, noon.UnixMicro(), noon.Add(61*time.Second).UnixMicro()); !errors.Is(err, ErrClocks) {
		t.Errorf("where clocks differ by 61 s: %v, want ErrClocks", err)
	}
}

func TestReadOnlyClientWritesNothing(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]struct {
		n     server
		rules Rules
		want  error
	}{
		"nobody has seen it":           {server{}, three, ErrNoVote},
		"admitted":                     {server{marker: "n=3 v=3 maxttl=60000 run=r1"}, three, nil},
		"admitted in another run":      {server{marker: "n=3 v=3 maxttl=60000 run=r0"}, three, ErrNoVote},
		"first seen":                   {server{marker: "n=3 v=3 maxttl=60000 seen=r1 client=1 node=1"}, three, ErrNoVote},
		"another MaxTTL":               {server{marker: "n=3 v=3 maxttl=30000 run=r1"}, three, nil},
		"durable, and was":             {server{marker: "n=3 v=3 maxttl=60000 run=r0 durable=a:1", durable: true}, three, nil},
		"durable no more":              {server{marker: "n=3 v=3 maxttl=60000 run=r0 durable=a:1"}, three, ErrNoVote},
		"durable as another node":      {server{marker: "n=3 v=3 maxttl=60000 run=r0 durable=b:1", durable: true}, three, ErrNoVote},
		"this client has no patience":  {server{marker: "n=3 v=3 maxttl=60000 run=r0"}, Rules{Nodes: 3, NoQuarantine: true}, nil},
		"one server alone":             {server{marker: "n=1 v=3 run=r0"}, alone, nil},
		"a shard that never moved":     {server{marker: "n=1 v=3 failover maxttl=60000 run=r0 shard=y", shard: "x"}, moves, nil},
		"a shard after its own run":    {server{marker: "n=1 v=3 failover maxttl=60000 run=r0 shard=x", shard: "x"}, moves, ErrNoVote},
		"a set of another size":        {server{marker: "n=5 v=3 maxttl=60000 run=r1"}, three, &ConflictError{}},
		"a set that does not failover": {server{marker: "n=1 v=3 run=r1"}, moves, &ConflictError{}},
	} {
		n := of.n
		n.T, n.run, n.clock = t, "r1", noon
		c := newClient(of.rules)
		c.ReadOnly = true
		err := n.look(c)
		if _, conflict := errors.AsType[*ConflictError](of.want); conflict {
			n.conflicts(c, "")
		} else if !errors.Is(err, of.want) {
			t.Errorf("%s: %v, want %v", name, err, of.want)
		}
		if n.marker != of.n.marker {
			t.Errorf("%s: it has written %q", name, n.marker)
		}
	}
}

// Slots take a marker along that says nothing of the shard that gets them.
func TestUnpromotedShardIgnoresForeignMarker(t *testing.T) {
	shard := func(t *testing.T) (*server, *client) {
		n, c := newMover(t)
		n.shard = "x"
		n.marker = ""
		n.votes(c)
		return n, c
	}
	t.Run("its marker is gone", func(t *testing.T) {
		n, c := shard(t)
		n.marker, c.state = "", State{}
		n.votes(c)
	})
	t.Run("its marker is another's", func(t *testing.T) {
		n, c := shard(t)
		n.marker = "n=1 v=3 failover maxttl=60000 run=r9 shard=y"
		c.state = State{}
		n.votes(c)
	})
	t.Run("its own marker is of another run", func(t *testing.T) {
		n, c := shard(t)
		n.restart("r2", false)
		n.waits(c)
	})
	t.Run("a replica has taken over", func(t *testing.T) {
		n, c := shard(t)
		n.marker = ""
		n.restart("r2/old", false)
		n.waits(c)
		n.waits(newClient(moves))
		n.pass(out, c)
		n.votes(c)
		n.marker = ""
		n.votes(c) // which has let it vote since
		n.marker = ""
		n.waits(newClient(moves))
	})
}

func TestOnlyNoQuarantineSkipsQuarantine(t *testing.T) {
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
		"a node of three, with quarantine": {three, "", false},
	} {
		n, c := &server{T: t, run: "r1", marker: of.marker, clock: noon}, newClient(of.rules)
		o := n.observe(c)
		o.Durable = Yes
		if _, v := c.Decide(State{}, o); v.Skips != of.want || v.Write == "" {
			t.Errorf("%s: %+v, want Skips %v", name, v, of.want)
		}
	}
}

// It takes several commands to find out.
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
		n, c := &server{T: t, run: "r1", marker: marker, clock: noon}, newClient(three)
		if _, v := c.Decide(State{}, n.observe(c)); v.AskDurable != want {
			t.Errorf("%q: %+v, want AskDurable %v", marker, v, want)
		}
	}
}

// The model checker keeps states of clients and goes on from each of them several times.
func TestDecideDoesNotMutateState(t *testing.T) {
	t.Parallel()
	c := newClient(three)
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
		c := newClient(three)
		_, v := c.Decide(State{}, Observation{
			Marker: c.agreement() + text, Name: "a:1", Run: "r1", Durable: Yes, Client: 1, Node: 1,
		})
		if m, _ := parse(text); v.Votes && m.run != "r1" {
			t.Errorf("%q lets it vote", text)
		}
		if strings.Contains(v.Write, "run=r1") && !strings.Contains(text, "run=r1") && !strings.Contains(text, "durable=a:1") {
			t.Errorf("%q lets it vote", text)
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
