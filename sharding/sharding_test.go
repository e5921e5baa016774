package sharding_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver/template"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/locktest"
	"github.com/holdfast-go/holdfast/memory"
	"github.com/holdfast-go/holdfast/sharding"
)

// service is sets of servers in memory, and the list that a test's clients have of them. The
// suite sees the nodes of the set, or of both, that the name "k" has.
type service struct {
	roots map[string]*memory.Driver
	list  []sharding.Set // without drivers
}

func (s *service) open() (driver.Driver, error) {
	var sets []sharding.Set
	for _, set := range s.list {
		set.Driver = s.roots[set.Name].Peer()
		sets = append(sets, set)
	}
	d, err := sharding.New(sets, nil)
	if err != nil {
		return nil, err
	}
	return &seen{d}, nil
}

// seen is a driver whose nodes are those of the first home of "k".
type seen struct{ *sharding.Driver }

func (s *seen) Nodes() []driver.NodeEvent {
	return slices.DeleteFunc(s.Driver.Nodes(), func(e driver.NodeEvent) bool { return !s.has(e.Node) })
}

func (s *seen) has(node string) bool { return strings.HasPrefix(node, s.Homes("k")[0]+"/") }

func (s *seen) Inspect(ctx context.Context, key string) (driver.Status, error) {
	st, err := s.Driver.Inspect(ctx, key)
	homes := s.Homes(key)
	st.Nodes = slices.DeleteFunc(st.Nodes, func(n driver.NodeStatus) bool { return !strings.HasPrefix(n.Node, homes[0]+"/") })
	return st, err
}

func (s *service) each(fn func(*memory.Node)) {
	for _, root := range s.roots {
		fn(root.Node(0))
	}
}

func (s *service) harness() locktest.Service {
	return locktest.Service{
		Open: s.open, Nodes: 1,
		LoseReplies: func(k int) { s.each(func(n *memory.Node) { n.LoseReplies(k) }) },
		Delay:       func(d time.Duration) { s.each(func(n *memory.Node) { n.Delay(d) }) },
		Cut:         func(driver.Driver) { s.each((*memory.Node).Freeze) },
		Mend:        func(driver.Driver) { s.each((*memory.Node).Start) },
		StopNodes:   func(int) { s.each((*memory.Node).Stop) },
		StartNodes:  func() { s.each((*memory.Node).Start) },
		Leftovers: func() (left []string, err error) {
			for name, root := range s.roots {
				err = errors.Join(err, root.List(context.Background(), "", func(st driver.Status) bool {
					left = append(left, fmt.Sprintf("%s: %q of %q, %d waiting", name, st.Key, st.Owner, st.Waiters))
					return true
				}))
			}
			return left, err
		},
	}
}

func start(list ...sharding.Set) *service {
	s := &service{roots: make(map[string]*memory.Driver), list: list}
	for _, set := range list {
		s.roots[set.Name] = memory.New(1)
	}
	return s
}

var (
	three = []sharding.Set{{Name: "a"}, {Name: "b"}, {Name: "c"}}
	moves = []sharding.Set{{Name: "a", Change: sharding.Leaves}, {Name: "b", Change: sharding.Joins}} // every name
	joins = []sharding.Set{{Name: "a"}, {Name: "b"}, {Name: "c", Change: sharding.Joins}}
)

func TestConformance(t *testing.T) {
	t.Parallel()
	for name, list := range map[string][]sharding.Set{"steady": three, "every name moves": moves, "a set joins": joins} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			locktest.Run(t, locktest.Harness{Bubble: true, Start: func(testing.TB) locktest.Service { return start(list...).harness() }})
		})
	}
}

// TestHomesFollowTheVectors holds the hash to what all clients have agreed on.
func TestHomesFollowTheVectors(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/homes.txt")
	if err != nil {
		t.Fatal(err)
	}
	vectors := 0
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		words := strings.Split(line, "\t")
		if len(words) != 3 {
			t.Fatalf("line %q: want sets, name and home", line)
		}
		name, err := strconv.Unquote(words[1])
		if err != nil {
			t.Fatal(err)
		}
		if got := start(setsOf(strings.Split(words[0], ","))...).driver(t).Homes(name); !slices.Equal(got, words[2:]) {
			t.Errorf("%s: the home of %q is %q, want %q", words[0], name, got, words[2])
		}
		vectors++
	}
	if vectors < 20 {
		t.Errorf("%d vectors", vectors)
	}
}

func setsOf(names []string) (list []sharding.Set) {
	for _, name := range names {
		list = append(list, sharding.Set{Name: name})
	}
	return list
}

func (s *service) driver(t *testing.T) *sharding.Driver {
	t.Helper()
	d, err := s.open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d.(*seen).Driver
}

func TestNamesAreSpreadEvenly(t *testing.T) {
	t.Parallel()
	for _, form := range []string{"%d", "order/%d", "a-name-that-is-rather-long-and-has-its-number-at-the-end-%012d"} {
		var list []sharding.Set
		for i := range 10 {
			list = append(list, sharding.Set{Name: fmt.Sprint("set-", i)})
		}
		d := start(list...).driver(t)
		const names = 50_000
		count := make(map[string]int)
		for i := range names {
			count[d.Homes(fmt.Sprintf(form, i))[0]]++
		}
		chi := 0.0
		for _, set := range list {
			off := float64(count[set.Name] - names/len(list))
			chi += off * off / float64(names/len(list))
		}
		if chi > 33.7 { // 9 degrees of freedom: by chance once in 10,000
			t.Errorf("%s: chi square %.1f for %v", form, chi, count)
		}
	}
}

func TestOnlyTheShareOfASetThatJoinsOrLeavesMoves(t *testing.T) {
	t.Parallel()
	for change, part := range map[sharding.Change]string{sharding.Joins: "to", sharding.Leaves: "from"} {
		d := start(sharding.Set{Name: "a"}, sharding.Set{Name: "b"}, sharding.Set{Name: "c", Change: change}, sharding.Set{Name: "d"}).driver(t)
		const names = 10_000
		moved := 0
		for i := range names {
			homes := d.Homes(fmt.Sprint(i))
			if len(homes) == 1 {
				continue
			}
			moved++
			if at := map[string]string{"from": homes[0], "to": homes[1]}[part]; at != "c" {
				t.Errorf("a name moves from %q to %q", homes[0], homes[1])
			}
		}
		if moved < names/4-300 || moved > names/4+300 {
			t.Errorf("%d of %d names move %s one set of four", moved, names, part)
		}
	}
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	root, other := memory.New(1), template.New()
	named := func(name string) sharding.Set { return sharding.Set{Name: name, Driver: root.Peer()} }
	for text, c := range map[string]struct {
		sets []sharding.Set
		opts *sharding.Options
	}{
		"no set is in the":       {},
		"no driver":              {sets: []sharding.Set{{Name: "a"}}},
		"name of a set \"a b\"":  {sets: []sharding.Set{named("a b")}},
		"name of a set \"\"":     {sets: []sharding.Set{named("")}},
		"two sets have the name": {sets: []sharding.Set{named("a"), named("b"), named("a")}},
		"in the old list":        {sets: []sharding.Set{{Name: "a", Driver: root.Peer(), Change: sharding.Joins}}},
		"in the new list":        {sets: []sharding.Set{{Name: "a", Driver: root.Peer(), Change: sharding.Leaves}}},
		"is none of":             {sets: []sharding.Set{{Name: "a", Driver: root.Peer(), Change: 7}}},
		"MaxTTL -1s":             {sets: []sharding.Set{named("a")}, opts: &sharding.Options{MaxTTL: -time.Second}},
		"no TTL suits all sets":  {sets: []sharding.Set{named("a")}, opts: &sharding.Options{MaxTTL: time.Millisecond}},
		"set Options.NoTokens": {
			sets: []sharding.Set{named("a"), {Name: "b", Driver: other.Peer(), Change: sharding.Joins}}, opts: &sharding.Options{MaxTTL: time.Minute},
		},
		"give Options.MaxTTL": {
			sets: []sharding.Set{{Name: "a", Driver: other.Peer()}, {Name: "b", Driver: other.Peer(), Change: sharding.Joins}},
			opts: &sharding.Options{NoTokens: true},
		},
	} {
		d, err := sharding.New(c.sets, c.opts)
		if d != nil || !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), text) {
			t.Errorf("New() = %v, %v; want ErrInvalid with %q", d, err, text)
		}
	}
}

// bounded is a driver with other limits, and without tokens that can be raised.
type bounded struct {
	*template.Driver
	limits driver.Limits
}

func (b bounded) Limits() driver.Limits { return b.limits }

func TestLimitsAreWhatAllSetsCanDo(t *testing.T) {
	t.Parallel()
	d, err := sharding.New([]sharding.Set{
		{Name: "a", Driver: bounded{template.New(), driver.Limits{
			MinTTL: time.Second, MaxTTL: time.Minute, Granularity: 400 * time.Millisecond, Token: true, Order: true, MinHold: true,
		}}},
		{Name: "b", Driver: bounded{template.New(), driver.Limits{
			MinTTL: 2 * time.Second, Granularity: 600 * time.Millisecond, Token: true, Order: true,
		}}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	want := driver.Limits{MinTTL: 2400 * time.Millisecond, MaxTTL: time.Minute, Granularity: 1200 * time.Millisecond, Token: true, Order: true}
	if got := d.Limits(); got != want {
		t.Errorf("Limits() = %+v, want %+v", got, want)
	}
	if _, ok := driver.As[driver.Inspector](d); !ok {
		t.Error("all sets can be inspected, and the whole cannot")
	}
	if _, ok := driver.As[driver.Notifier](d); ok {
		t.Error("no set tells of its nodes, and the whole does")
	}
	g, err := d.Acquire(t.Context(), driver.Request{Key: "k", TTL: 2500 * time.Millisecond})
	if err != nil || g.TTL != 3600*time.Millisecond {
		t.Errorf("Acquire() = %+v, %v; want a TTL of 3.6s", g, err)
	}
}

// Tokens of sets that cannot raise them do not compare: a change gives none.
func TestAChangeWithoutTokensGivesNone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := template.New(), template.New()
		d, err := sharding.New([]sharding.Set{
			{Name: "a", Driver: a.Peer(), Change: sharding.Leaves}, {Name: "b", Driver: b.Peer(), Change: sharding.Joins},
		}, &sharding.Options{NoTokens: true, MaxTTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if want := time.Minute + 600*time.Millisecond + 2*time.Second; d.Wait() != want {
			t.Errorf("Wait() = %v, want %v", d.Wait(), want)
		}
		c, err := holdfast.New(d, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		l, err := c.Acquire(t.Context(), "k", nil)
		if err != nil || l.Token() != 0 {
			t.Errorf("Acquire() = token %d, %v", l.Token(), err)
		}
		if st, err := c.Inspect(t.Context(), "k"); err != nil || st.Token != 0 || st.Owner != l.Owner() {
			t.Errorf("Inspect() = %+v, %v", st, err)
		}
		if _, err := c.TryAcquire(t.Context(), "other", &holdfast.AcquireOptions{Fenced: true}); !errors.Is(err, holdfast.ErrUnsupported) {
			t.Errorf("a fenced lock: %v, want ErrUnsupported", err)
		}
		if err := c.ForceRelease(t.Context(), "k", 0, ""); !errors.Is(err, holdfast.ErrUnsupported) {
			t.Errorf("ForceRelease() = %v, want ErrUnsupported", err)
		}
		for _, root := range []*template.Driver{a, b} {
			if st, _ := root.Inspect(t.Context(), "k"); !st.Held {
				t.Error("a name that moves is not held in both of its homes")
			}
		}
	})
}
