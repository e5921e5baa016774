package redlock

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

func newMover(t *testing.T) (*clinic, *client) {
	n := newClinic(t)
	n.moves, n.durable = true, true // what it wrote itself is not what another server granted
	opts := &Options{}
	opts.defaults([]Node{{Failover: new(Failover)}})
	c := &client{gate: newGate(opts, 1), clock: noon, mono: time.Hour}
	n.waits(c)
	n.pass(out, c)
	n.votes(c)
	return n, c
}

func TestAServerThatTookOverSitsOutItsQuarantine(t *testing.T) {
	for name, reign := range map[string]string{
		"another server":                      "r2/old",
		"the same server, promoted again":     "r1/other",
		"the same server after a restart":     "r3",
		"another, which forgot its promotion": "r2",
	} {
		t.Run(name, func(t *testing.T) {
			n, c := newMover(t)
			n.pass(time.Hour, c)
			n.restart(reign, false)
			n.waits(c)
			n.pass(out-time.Second, c)
			n.waits(c)
			n.pass(time.Second, c)
			n.votes(c)
		})
	}
}

// SWAPDB would bring the marker of another database, and so its locks.
func TestANodeThatFailsOverHasOneDatabase(t *testing.T) {
	n, _ := newMover(t)
	opts := &Options{DB: 1}
	opts.defaults([]Node{{Failover: new(Failover)}})
	other := &client{gate: newGate(opts, 1), clock: noon, mono: time.Hour}
	if err := n.look(other); !errors.Is(err, driver.ErrConfig) {
		t.Errorf("with %q a client of database 1: %v, want ErrConfig", n.marker, err)
	}
}

// A server forgets its promotion when it has had no replica for an hour.
func TestAServerThatForgetsItsPromotionGoesOnVoting(t *testing.T) {
	n, c := newMover(t)
	n.restart("r2/old", false)
	n.waits(c)
	n.pass(out, c)
	n.votes(c)
	n.restart("r2", false)
	n.votes(c)
}

// What was granted before may have had any token below the clock.
func TestTheTokensOfANewMasterBeginAtTheClock(t *testing.T) {
	n, c := newMover(t)
	first := floorOf(n.marker)
	if want := noon.Add(out).UnixMicro() - 31; first != want {
		t.Errorf("%q: the floor is %d, want %d", n.marker, first, want)
	}
	n.pass(time.Hour, c)
	n.restart("r2/old", false)
	n.waits(c)
	if floor := floorOf(n.marker); floor != 0 {
		t.Errorf("%q: it has the floor of another run", n.marker)
	}
	n.pass(out, c)
	n.votes(c)
	if floor := floorOf(n.marker); floor != first+(time.Hour+out).Microseconds() {
		t.Errorf("%q: the floor is %d", n.marker, floor)
	}
}

func TestTokensDoNotBeginWhereClocksDifferByAMinute(t *testing.T) {
	n, c := newMover(t)
	n.restart("r2/old", false)
	n.waits(c)
	n.pass(2*out, c)
	n.clock = n.clock.Add(61 * time.Second)
	if err := n.look(c); err == nil || !strings.Contains(err.Error(), "synchronise") {
		t.Errorf("with %q: %v", n.marker, err)
	}
	n.clock = n.clock.Add(-5 * time.Second)
	n.votes(c)
}

func TestPlainClientsAndThoseThatFollowAFailoverRefuseEachOther(t *testing.T) {
	n, c := newMover(t)
	plain := newClient(1, nil)
	plain.clock = n.clock
	n.moves = false
	if err := n.look(plain); !errors.Is(err, driver.ErrConfig) || !strings.Contains(err.Error(), `"n=1 failover maxttl=60000"`) {
		t.Errorf("a plain client: %v", err)
	}
	n.marker = "n=1"
	n.votes(plain)
	n.moves = true
	if err := n.look(c); !errors.Is(err, driver.ErrConfig) || !strings.Contains(err.Error(), `opened with "n=1"`) {
		t.Errorf("a client that follows the failover: %v", err)
	}
}

func TestFailoverIsCheckedBeforeAnythingIsDialled(t *testing.T) {
	t.Parallel()
	for mend, node := range map[string]Node{
		"neither Sentinels nor Servers": {Failover: &Failover{}},
		"Sentinels and Servers":         {Failover: &Failover{Sentinels: []string{"a:1"}, Master: "m", Servers: []string{"b:1"}}},
		"name of the master":            {Failover: &Failover{Sentinels: []string{"a:1"}}},
		"has more than letters":         {Failover: &Failover{Sentinels: []string{"a:1"}, Master: "a b"}},
		"listed twice":                  {Failover: &Failover{Servers: []string{"a:1", "a:1"}}},
		"address 2 of 2":                {Failover: &Failover{Servers: []string{"a:1", "b"}}},
		"Addr and Failover":             {Addr: "a:1", Failover: &Failover{Servers: []string{"b:1"}}},
	} {
		if _, err := New(context.Background(), []Node{node}, nil); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), mend) {
			t.Errorf("%v, want ErrInvalid with %q", err, mend)
		}
	}
}

func TestURLsOfNodesThatFailOver(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]struct {
		f    *Failover
		opts Options
		mend string
	}{
		"redis+sentinel://s1/m": {f: &Failover{Sentinels: []string{"s1:26379"}, Master: "m"}},
		"redis+sentinel://u:p%40@s1,s2:1,[::1]/m/": {
			f: &Failover{Sentinels: []string{"s1:26379", "s2:1", "[::1]:26379"}, Master: "m"}, opts: Options{Username: "u", Password: "p@"},
		},
		"valkey+sentinel://s/my%20/3": {mend: "has more than letters"},
		"valkey+sentinel://s/m/3":     {f: &Failover{Sentinels: []string{"s:26379"}, Master: "m"}, opts: Options{DB: 3}},
		"redis+sentinel://:p@s/m?sentinel_username=v&sentinel_password=w": {
			f: &Failover{Sentinels: []string{"s:26379"}, Master: "m", Username: "v", Password: "w"}, opts: Options{Password: "p"},
		},
		"redis+replicas://u:p@a,b:1/2": {f: &Failover{Servers: []string{"a:6379", "b:1"}}, opts: Options{Username: "u", Password: "p", DB: 2}},

		"redis+sentinel://s1,s2":                     {mend: "name of the master"},
		"redis+sentinel://s1,s2/":                    {mend: "name of the master"},
		"redis+sentinel:///m":                        {mend: "host 1 of 1 is missing"},
		"redis+sentinel://s1,/m":                     {mend: "host 2 of 2 is missing"},
		"redis+sentinel://u:p@s1,v:q@s2/m":           {mend: "once, before the first host"},
		"redis+sentinel://s1/m/x":                    {mend: "no database number"},
		"redis+sentinel://s1/%zz":                    {mend: "write % as %25"},
		"redis+sentinel+replicas://s1/m":             {mend: "does not begin with"},
		"redis+replicas+sentinel://s1/m":             {mend: "does not begin with"},
		"foo+replicas://s1":                          {mend: "does not begin with"},
		"redis://h?sentinel_password=p":              {mend: "names none"},
		"redis+replicas://h?sentinel_username=u":     {mend: "names none"},
		"redis+sentinel://u:p@s/m?username=v":        {mend: "leave out one of them"},
		"redis+sentinel://s/m?sentinel_password=p@q": {f: &Failover{Sentinels: []string{"s:26379"}, Master: "m", Password: "p@q"}},
	} {
		nodes, opts, err := parseURL(url, nil)
		if want.mend != "" {
			if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), want.mend) {
				t.Errorf("%s: %v, want ErrInvalid with %q", url, err, want.mend)
			}
			continue
		}
		if err != nil || len(nodes) != 1 || !reflect.DeepEqual(nodes[0], Node{Failover: want.f}) || !reflect.DeepEqual(opts, want.opts) {
			t.Errorf("%s: %+v, %+v, %v, want %+v, %+v", url, nodes, opts, err, want.f, want.opts)
		}
	}
	if _, opts, err := parseURL("rediss+sentinel://s/m", nil); err != nil || opts.TLS == nil {
		t.Errorf("rediss+sentinel: %v, %v", opts.TLS, err)
	}
	for url, want := range map[string]time.Duration{"redis+sentinel://s/m": time.Minute, "redis+replicas://a": time.Minute, "redis://a": 24 * time.Hour} {
		if l, err := limits(url); err != nil || l.MaxTTL != want {
			t.Errorf("%s: MaxTTL %v, %v, want %v", url, l.MaxTTL, err, want)
		}
	}
}
