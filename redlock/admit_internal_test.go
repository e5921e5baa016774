package redlock

import (
	"cmp"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/quorum"
)

// clinic is a node as the gate sees it: a marker, a run, and clocks that a test sets.
type clinic struct {
	*testing.T
	marker  string
	run     string
	moves   bool // it is a node that fails over
	durable bool
	clock   time.Time // the node's
}

// client is one client's gate, with clocks of its own.
type client struct {
	*gate
	addr  string // by which it knows the node; "": as most do
	clock time.Time
	mono  time.Duration
}

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func newClinic(t *testing.T) *clinic {
	t.Parallel()
	return &clinic{T: t, run: "r1", clock: noon}
}

func newClient(n int, opts *Options) *client {
	if opts == nil {
		opts = &Options{}
	}
	opts.defaults(make([]Node, n))
	return &client{gate: newGate(opts, n), clock: noon, mono: time.Hour}
}

const out = time.Minute + restartMargin // the quarantine, with the default MaxTTL

// pass lets time pass for everybody.
func (n *clinic) pass(d time.Duration, clients ...*client) {
	n.clock = n.clock.Add(d)
	for _, c := range clients {
		c.clock, c.mono = c.clock.Add(d), c.mono+d
	}
}

func (n *clinic) restart(run string, wiped bool) {
	n.run = run
	if wiped {
		n.marker = ""
	}
}

// look is what admit does, on a node that is as simple as this one.
func (n *clinic) look(c *client) error {
	addr := cmp.Or(c.addr, "a:1")
	for range admitTries {
		next, err := c.judge(n.marker, sight{
			addr: addr, run: n.run, moves: n.moves, durable: func() bool { return n.durable },
			mono: c.mono, client: c.clock.UnixMicro(), node: n.clock.UnixMicro(),
		})
		if err != nil {
			return err
		}
		if next == n.marker {
			c.enter(addr, n.run)
			return nil
		}
		n.marker = next
	}
	return errMarker
}

// base is the first token that a new counter would give now.
func (n *clinic) base() string {
	base, _ := quorum.Seed(n.clock.UnixMicro(), n.clock.UnixMicro())
	return decimal(base)
}

func (n *clinic) votes(c *client) {
	n.Helper()
	if err := n.look(c); err != nil {
		n.Errorf("with %q it does not vote: %v", n.marker, err)
	}
}

func (n *clinic) waits(c *client) {
	n.Helper()
	err := n.look(c)
	if _, ok := errors.AsType[*quarantineError](err); !ok {
		n.Errorf("with %q: %v, want a quarantine", n.marker, err)
	}
}

func TestANewNodeSitsOutItsQuarantineOnce(t *testing.T) {
	n, c := newClinic(t), newClient(3, nil)
	n.waits(c)
	n.pass(out-time.Second, c)
	n.waits(c)
	n.pass(time.Second, c)
	n.votes(c)
	if want := "n=3 maxttl=60000 run=r1 floor=" + n.base(); n.marker != want {
		t.Errorf("the marker is %q, want %q", n.marker, want)
	}
	n.votes(newClient(3, nil)) // one client's wait is enough for all
}

func TestWhoForgotSitsOutItsQuarantine(t *testing.T) {
	for name, forget := range map[string]func(*clinic){
		"a restart":             func(n *clinic) { n.restart("r2", false) },
		"an empty restart":      func(n *clinic) { n.restart("r2", true) },
		"data wiped in one run": func(n *clinic) { n.marker = "" },
		"a durable node that was replaced": func(n *clinic) {
			n.durable = true
			n.restart("r2", true)
		},
		"data of another server": func(n *clinic) { n.marker = "n=3 maxttl=60000 run=other" },
		"another database":       func(n *clinic) { n.marker = "n=3 maxttl=60000 seen=other client=1 node=1" },
	} {
		t.Run(name, func(t *testing.T) {
			n, c := newClinic(t), newClient(3, nil)
			n.waits(c)
			n.pass(out, c)
			n.votes(c)
			n.pass(time.Hour, c)
			forget(n)
			n.waits(c)
			n.pass(out-time.Second, c)
			n.waits(c)
			n.waits(newClient(3, nil))
			n.pass(time.Second, c)
			n.votes(c)
		})
	}
}

// A client that does not look while the node is admitted and wiped again must not
// take the time before for a quarantine.
func TestAWatchEndsWithTheMarkerThatItWatched(t *testing.T) {
	n, early, c := newClinic(t), newClient(3, nil), newClient(3, nil)
	n.waits(early)
	n.waits(c)
	n.pass(out, early, c)
	n.votes(c)
	n.marker = ""
	n.waits(early)
}

func TestANodesClockThatIsSetDoesNotEndItsQuarantine(t *testing.T) {
	n, c := newClinic(t), newClient(3, nil)
	n.clock = n.clock.Add(-time.Hour) // as after a boot
	n.waits(c)
	n.clock = n.clock.Add(time.Hour)
	n.pass(out-time.Second, c)
	n.waits(c)
	n.waits(newClient(3, &Options{}))
	n.clock = n.clock.Add(time.Hour) // once more
	n.waits(newClient(3, nil))
}

func TestOneClientsWrongClockDoesNotEndAQuarantine(t *testing.T) {
	n, behind, ahead := newClinic(t), newClient(3, nil), newClient(3, nil)
	behind.clock = behind.clock.Add(-time.Hour)
	ahead.clock = ahead.clock.Add(time.Hour)
	n.waits(behind)
	n.pass(out-time.Second, behind, ahead)
	n.waits(ahead)
	further := newClient(3, nil)
	further.clock = ahead.clock.Add(time.Hour)
	n.waits(further)
}

func TestAWrongClockAtTheFirstSightDelaysAndNoMore(t *testing.T) {
	n, ahead, c := newClinic(t), newClient(3, nil), newClient(3, nil)
	ahead.clock = ahead.clock.Add(time.Hour)
	n.waits(ahead)
	n.waits(c)
	n.pass(out-time.Second, c)
	n.waits(c)
	n.pass(time.Second, c)
	n.votes(c) // by its own monotonic clock
}

// The node and a client on its machine boot with a clock that is behind. Both times of the first sight are that clock's, and
// both seem long ago once it is set.
func TestClocksThatAreSetTogetherDoNotEndAQuarantine(t *testing.T) {
	n, local, c := newClinic(t), newClient(3, nil), newClient(3, nil)
	n.clock, local.clock = n.clock.Add(-time.Hour), local.clock.Add(-time.Hour)
	n.waits(local)
	n.clock, local.clock = n.clock.Add(time.Hour), local.clock.Add(time.Hour)
	n.pass(time.Second, local, c)
	n.waits(c)
	n.waits(local)
	n.pass(out-2*time.Second, local, c)
	n.waits(c)
	n.waits(local)
	n.waits(newClient(3, nil))
	n.pass(time.Second, local, c)
	n.votes(local) // by its own monotonic clock
}

// Programs that run for a second each, as of cron, let a node vote all the same. They have wall clocks alone, and one of two
// periods may be a clock that was set.
func TestClientsThatLiveForSecondsLetANodeVote(t *testing.T) {
	n := newClinic(t)
	brief := func() *client {
		c := newClient(3, nil)
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
func TestAPeriodByWallClocksPutsOffNoClientThatWatches(t *testing.T) {
	n, c := newClinic(t), newClient(3, nil)
	n.waits(newClient(3, nil))
	n.pass(out/2, c)
	n.waits(c)
	n.pass(out/2, c)
	brief := newClient(3, nil)
	brief.clock = n.clock
	n.waits(brief) // the first period is over
	n.pass(out/2-time.Second, c)
	n.waits(c)
	n.pass(time.Second, c)
	n.votes(c)
}

func TestADurableNodeThatRemembersVotesAtOnce(t *testing.T) {
	admitted := func(t *testing.T, durable bool) (*clinic, *client) {
		n, c := newClinic(t), newClient(3, nil)
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
		if want := "n=3 maxttl=60000 run=r2 durable=a:1 floor=" + floor; n.marker != want {
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
		n.marker = "n=3 maxttl=60000 run=r2 durable=a:1"
		n.votes(c)
		n.marker = "n=3 maxttl=60000 run=r0 durable=a:1"
		n.waits(c)
	})
	t.Run("its data is another node's", func(t *testing.T) {
		n, c := admitted(t, true)
		n.marker = strings.Replace(n.marker, "a:1", "b:1", 1)
		n.restart("r2", false)
		n.waits(c)
		n.waits(newClient(3, nil))
	})
	t.Run("it was in quarantine", func(t *testing.T) {
		n, c := newClinic(t), newClient(3, nil)
		n.durable = true
		n.waits(c)
		n.restart("r2", false)
		n.pass(out, c)
		n.waits(c)
	})
}

// Clients may know a node by several names: an address and a host name, or the address of a proxy.
func TestAClientWithAnotherNameForADurableNodePutsOffNobody(t *testing.T) {
	restarted := func(t *testing.T) (n *clinic, c, stranger *client) {
		n, c, stranger = newClinic(t), newClient(3, nil), newClient(3, nil)
		stranger.addr, n.durable = "proxy:1", true
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
		n.waits(newClient(3, nil))
	})
	t.Run("but it is not durable now", func(t *testing.T) {
		n, c, stranger := restarted(t)
		n.durable = false
		n.waits(stranger)
		n.durable = true
		n.waits(c)
	})
}

func TestOneClientWithoutQuarantineLetsAllVote(t *testing.T) {
	n := newClinic(t)
	n.votes(newClient(3, &Options{NoQuarantine: true}))
	n.votes(newClient(3, nil))
}

func TestASetOpenedOtherwiseIsRefused(t *testing.T) {
	t.Parallel()
	for text, c := range map[string]*client{
		"n=5 maxttl=60000 run=r1":      newClient(3, nil),
		"n=3 maxttl=30000 run=r1":      newClient(3, nil),
		"n=3 maxttl=600000 run=r1":     newClient(3, nil),
		"n=3 maxttl=6000 run=r1":       newClient(3, nil),
		"n=3 maxttl=60000 db=1 run=r1": newClient(3, nil),

		"n=3 maxttl=60000 counterlife=600000 run=r1":  newClient(3, nil),
		"n=3 maxttl=60000 counterlife=6000000 run=r1": newClient(3, &Options{CounterLife: 10 * time.Minute}),
		"n=3 maxttl=60000 run=r1 ":                    newClient(3, &Options{CounterLife: 10 * time.Minute}),
		"n=1 counterlife=600000":                      newClient(1, nil),
		"n=1 ":                                        newClient(1, &Options{CounterLife: 10 * time.Minute}),

		"n=3 maxttl=60000 v=2 run=r1":   newClient(3, nil),
		"n=3 maxttl=60000 run=r2":       newClient(3, &Options{DB: 1}),
		"n=1":                           newClient(3, nil),
		"n=3 maxttl=60000":              newClient(1, nil),
		"n=1 v=2":                       newClient(1, nil),
		"n=5 maxttl=1 seen=r1 client=1": newClient(3, &Options{NoQuarantine: true}),
		"rubbish":                       newClient(3, nil),
	} {
		n := &clinic{T: t, run: "r1", clock: noon, marker: text}
		if err := n.look(c); !errors.Is(err, driver.ErrConfig) || n.marker != text {
			t.Errorf("%q, with n=%d: %v, and then %q", text, c.n, err, n.marker)
		}
	}
}

// MaxTTL protects nothing where there is one node, and so need not agree.
func TestOneNodeAloneRemembersNoMaxTTL(t *testing.T) {
	n := newClinic(t)
	n.votes(newClient(1, nil))
	n.votes(newClient(1, &Options{MaxTTL: time.Hour}))
	if want := "n=1 run=r1 floor=" + n.base(); n.marker != want {
		t.Errorf("the marker is %q, want %q", n.marker, want)
	}
}

func TestTheTokensOfOneNodeBeginAnewInEachRun(t *testing.T) {
	n, c := newClinic(t), newClient(1, nil)
	n.votes(c)
	n.restart("r2", false)
	n.pass(time.Second, c)
	n.votes(c)
	if want := "n=1 run=r2 floor=" + n.base(); n.marker != want {
		t.Errorf("the marker is %q, want %q", n.marker, want)
	}
	n.run = "" // behind a proxy
	marker := n.marker
	if n.votes(c); n.marker != marker {
		t.Errorf("a client that sees no run has made %q of %q", n.marker, marker)
	}
	n.marker = ""
	if n.votes(c); n.marker != "n=1" {
		t.Errorf("without a run the marker is %q", n.marker)
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
		c := newClient(3, nil)
		next, err := c.judge(c.charter(false)+text, sight{addr: "a:1", run: "r1", durable: func() bool { return true }, client: 1, node: 1})
		if m, _ := parseMarker(text); err == nil && next == c.charter(false)+text && m.run != "r1" {
			t.Errorf("%q lets it vote", text)
		}
		if strings.Contains(next, "run=r1") && !strings.Contains(text, "run=r1") && !strings.Contains(text, "durable=a:1") {
			t.Errorf("%q lets it vote", text)
		}
	})
}
