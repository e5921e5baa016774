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

// service is a group of sets of servers in memory, with the list of sets that the clients use. The suite sees
// the nodes of the home of the name "k".
type service struct {
	roots map[string]*memory.Driver
	list  []sharding.Set // without drivers
	most  time.Duration  // Options.MaxTTL
}

func (s *service) openDriver() (driver.Driver, error) {
	var sets []sharding.Set
	for _, set := range s.list {
		set.Driver = s.roots[set.Name].Peer()
		sets = append(sets, set)
	}
	d, err := sharding.New(sets, &sharding.Options{MaxTTL: s.most})
	if err != nil {
		return nil, err
	}
	return &homeOnlyDriver{d, d}, nil
}

// homeOnlyDriver is a driver that shows only the nodes of the home of "k". It has every interface that sets in memory
// have, because the suite expects of a driver that its interfaces work.
type homeOnlyDriver struct {
	abilities
	drv *sharding.Driver
}

type abilities interface {
	driver.Driver
	driver.Inspector
	driver.Lister
	driver.Forcer
	driver.Alerter
	driver.Adopter
	driver.Notifier
}

func (s *homeOnlyDriver) Nodes() []driver.NodeEvent {
	return slices.DeleteFunc(s.drv.Nodes(), func(e driver.NodeEvent) bool { return !s.hasNode(e.Node) })
}

func (s *homeOnlyDriver) hasNode(node string) bool {
	return strings.HasPrefix(node, s.drv.Home("k")+"/")
}

func (s *homeOnlyDriver) Inspect(ctx context.Context, key string) (driver.Status, error) {
	st, err := s.drv.Inspect(ctx, key)
	st.Nodes = slices.DeleteFunc(st.Nodes, func(n driver.NodeView) bool { return !s.hasNode(n.Node) })
	return st, err
}

func (s *service) eachNode(fn func(*memory.Node)) {
	for _, root := range s.roots {
		fn(root.Node(0))
	}
}

func (s *service) harness() locktest.Service {
	return locktest.Service{
		Open: s.openDriver, Nodes: 1,
		LoseReplies: func(k int) { s.eachNode(func(n *memory.Node) { n.LoseReplies(k) }) },
		Delay:       func(d time.Duration) { s.eachNode(func(n *memory.Node) { n.Delay(d) }) },
		Disconnect:  func(driver.Driver) { s.eachNode((*memory.Node).Freeze) },
		Reconnect:   func(driver.Driver) { s.eachNode((*memory.Node).Start) },
		StopNodes:   func(int) { s.eachNode((*memory.Node).Stop) },
		StartNodes:  func() { s.eachNode((*memory.Node).Start) },
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

func startService(list ...sharding.Set) *service {
	s := &service{roots: make(map[string]*memory.Driver), list: list}
	for _, set := range list {
		s.roots[set.Name] = memory.New(1)
	}
	return s
}

func TestConformance(t *testing.T) {
	t.Parallel()
	locktest.Run(t, locktest.Harness{Bubble: true, Start: func(testing.TB) locktest.Service { return startService(setsNamed("a", "b", "c")...).harness() }})
}

// Each placement must match the vectors, on which all clients have agreed.
func TestPlacementMatchesVectors(t *testing.T) {
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
		if got := startService(setsNamed(strings.Split(words[0], ",")...)...).newDriver(t).Home(name); got != words[2] {
			t.Errorf("%s: home of %q = %q, want %q", words[0], name, got, words[2])
		}
		vectors++
	}
	if vectors < 20 {
		t.Errorf("%d vectors", vectors)
	}
}

// setsNamed returns a list of sets with these names.
func setsNamed(names ...string) (list []sharding.Set) {
	for _, name := range names {
		list = append(list, sharding.Set{Name: name})
	}
	return list
}

func (s *service) newDriver(t *testing.T) *sharding.Driver {
	t.Helper()
	d, err := s.openDriver()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d.(*homeOnlyDriver).drv
}

func TestNamesAreSpreadEvenly(t *testing.T) {
	t.Parallel()
	for _, form := range []string{"%d", "order/%d", "a-name-that-is-rather-long-and-has-its-number-at-the-end-%012d"} {
		var list []sharding.Set
		for i := range 10 {
			list = append(list, sharding.Set{Name: fmt.Sprint("set-", i)})
		}
		d := startService(list...).newDriver(t)
		const names = 50_000
		count := make(map[string]int)
		for i := range names {
			count[d.Home(fmt.Sprintf(form, i))]++
		}
		chi := 0.0
		for _, set := range list {
			off := float64(count[set.Name] - names/len(list))
			chi += off * off / float64(names/len(list))
		}
		if chi > 33.7 { // with 9 degrees of freedom, by chance once in 10,000
			t.Errorf("%s: chi square %.1f for %v", form, chi, count)
		}
	}
}

func TestChangingSetsMovesOnlyTheirShare(t *testing.T) {
	t.Parallel()
	few, many := startService(setsNamed("a", "b", "d")...).newDriver(t), startService(setsNamed("a", "b", "c", "d")...).newDriver(t)
	const names = 10_000
	moved := 0
	for i := range names {
		name := fmt.Sprint(i)
		if few.Home(name) == many.Home(name) {
			continue
		}
		moved++
		if many.Home(name) != "c" {
			t.Errorf("a name moved between %q and %q", few.Home(name), many.Home(name))
		}
	}
	if moved < names/4-300 || moved > names/4+300 {
		t.Errorf("%d of %d names moved to one set of four", moved, names)
	}
}

func TestNewRejectsBadSets(t *testing.T) {
	t.Parallel()
	root := memory.New(1)
	of := func(name string) sharding.Set { return sharding.Set{Name: name, Driver: root.Peer()} }
	for text, c := range map[string]struct {
		sets []sharding.Set
		opts *sharding.Options
	}{
		"no sets":                {},
		"no driver":              {sets: []sharding.Set{{Name: "a"}}},
		"name of a set \"a b\"":  {sets: []sharding.Set{of("a b")}},
		"name of a set \"\"":     {sets: []sharding.Set{of("")}},
		"two sets have the name": {sets: []sharding.Set{of("a"), of("b"), of("a")}},
		"MaxTTL -1s":             {sets: []sharding.Set{of("a")}, opts: &sharding.Options{MaxTTL: -time.Second}},
		"no TTL suits all sets":  {sets: []sharding.Set{of("a")}, opts: &sharding.Options{MaxTTL: time.Millisecond}},
	} {
		d, err := sharding.New(c.sets, c.opts)
		if d != nil || !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), text) {
			t.Errorf("New() = %v, %v; want ErrInvalid with %q", d, err, text)
		}
	}
}

// After an error the caller has no driver to close.
func TestFailedNewClosesDrivers(t *testing.T) {
	t.Parallel()
	one, other := memory.New(1), memory.New(1)
	if _, err := sharding.New([]sharding.Set{{Name: "a", Driver: one}, {Name: "a", Driver: other}, {Name: "b"}}, nil); err == nil {
		t.Fatal("New() accepted two sets with one name")
	}
	for _, d := range []*memory.Driver{one, other} {
		if _, err := d.Acquire(t.Context(), driver.Request{Key: "k", TTL: time.Minute, NoWait: true}); !errors.Is(err, driver.ErrClosed) {
			t.Errorf("Acquire() = %v after New has failed, want ErrClosed", err)
		}
	}
}

// limitedDriver is a driver with other limits.
type limitedDriver struct {
	*template.Driver
	limits driver.Limits
}

func (b limitedDriver) Limits() driver.Limits { return b.limits }

func TestLimitsHoldForAllSets(t *testing.T) {
	t.Parallel()
	d, err := sharding.New([]sharding.Set{
		{Name: "a", Driver: limitedDriver{template.New(), driver.Limits{
			MinTTL: time.Second, MaxTTL: time.Minute, Granularity: 400 * time.Millisecond, Token: true, Order: true, MinHold: true, Nodes: 3,
		}}},
		{Name: "b", Driver: limitedDriver{template.New(), driver.Limits{
			MinTTL: 2 * time.Second, Granularity: 600 * time.Millisecond, Token: true, Order: true, Nodes: 1,
		}}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	want := driver.Limits{
		MinTTL: 2400 * time.Millisecond, MaxTTL: time.Minute, Granularity: 1200 * time.Millisecond, Token: true, Order: true,
		Nodes: 3, // the first renewal comes early if one of them needs that
	}
	if got := d.Limits(); got != want {
		t.Errorf("Limits() = %+v, want %+v", got, want)
	}
	g, err := d.Acquire(t.Context(), driver.Request{Key: "k", TTL: 2500 * time.Millisecond})
	if err != nil || g.TTL != 3600*time.Millisecond {
		t.Errorf("Acquire() = %+v, %v; want a TTL of 3.6s", g, err)
	}
}

// nameIn returns a name whose home is set.
func nameIn(d *sharding.Driver, set string) string {
	for i := 0; ; i++ {
		if name := fmt.Sprint("job-", i); d.Home(name) == set {
			return name
		}
	}
}

// A set with fewer abilities does not restrict the locks of the others.
func TestAbilitiesDifferBySet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, err := sharding.New([]sharding.Set{{Name: "more", Driver: memory.New(1)}, {Name: "less", Driver: template.New()}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		c, err := holdfast.New(d, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for set, want := range map[string]error{"more": nil, "less": holdfast.ErrUnsupported} {
			name := nameIn(d, set)
			l, err := c.Acquire(t.Context(), name, &holdfast.AcquireOptions{Adoptable: true})
			if !errors.Is(err, want) {
				t.Errorf("adoptable lease in set %s: %v, want %v", set, err, want)
			}
			if err == nil {
				l.Release(t.Context())
			}
			if _, err := c.Queue(t.Context(), name, 1); !errors.Is(err, holdfast.ErrUnsupported) {
				t.Errorf("Queue() of a name in set %s = %v, want ErrUnsupported", set, err)
			}
			if _, err := c.Inspect(t.Context(), name); err != nil {
				t.Errorf("set %s: Inspect() = %v", set, err)
			}
		}
		if _, err := d.Adopt(t.Context(), driver.Grant{Key: nameIn(d, "less"), Owner: "o", TTL: time.Second}); !errors.Is(err, driver.ErrUnsupported) {
			t.Errorf("Adopt() = %v, want ErrUnsupported", err)
		}
		if nodes := c.Nodes(); len(nodes) != 1 || !strings.HasPrefix(nodes[0].Node, "more/") {
			t.Errorf("Nodes() = %v, want those of the set that tells of some", nodes)
		}
	})
}

func (s *service) newClient(t *testing.T, sets ...string) (*holdfast.Client, *sharding.Driver) {
	t.Helper()
	d := (&service{roots: s.roots, list: setsNamed(sets...), most: s.most}).newDriver(t)
	c, err := holdfast.New(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, d
}

// The test follows the procedure of docs/operations.md in both directions: it waits for locks that clients
// have left, and resets each counter, because it may be older than the counter of the set that a name leaves.
func TestChangedListKeepsOneHolderAndTokenOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := startService(setsNamed("a", "b", "c")...)
		s.most = time.Minute
		const wait = 2 * time.Minute
		last := make(map[string]holdfast.Token)
		var before map[string]string // homes of the names
		moved := 0
		for _, list := range [][]string{{"a", "b"}, {"a", "b", "c"}, {"a", "b"}, {"b", "c"}} {
			c, d := s.newClient(t, list...)
			homes := make(map[string]string)
			for i := range 30 {
				name := fmt.Sprint("job-", i)
				homes[name] = d.Home(name)
				if home := before[name]; home != "" && home != homes[name] {
					moved++
					if st, err := s.roots[home].Inspect(t.Context(), name); err != nil || st.Held {
						t.Errorf("%s is still held in its old set %s: %v", name, home, err)
					}
				}
				l, err := c.TryAcquire(t.Context(), name, &holdfast.AcquireOptions{TTL: s.most, Adoptable: true})
				if err != nil {
					t.Fatal(err)
				}
				if l.Token() <= last[name] {
					t.Errorf("%s: token %d after %d", name, l.Token(), last[name])
				}
				last[name] = l.Token()
				if err := l.Detach(); err != nil { // like a client that died: the lock stays
					t.Error(err)
				}
			}
			before = homes
			c.Close()
			time.Sleep(wait)
			for _, root := range s.roots {
				root.Node(0).Wipe()
			}
		}
		if moved < 30 {
			t.Errorf("%d names moved", moved)
		}
	})
}

func TestDownSetBlocksOnlyItsNames(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := startService(setsNamed("a", "b", "c")...)
		c, d := s.newClient(t, "a", "b", "c")
		other, _ := s.newClient(t, "a", "b", "c")
		leases := make(map[string]*holdfast.Lease)
		for _, set := range []string{"a", "b", "c"} {
			l, err := c.Acquire(t.Context(), nameIn(d, set), &holdfast.AcquireOptions{TTL: 2 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			leases[set] = l
		}
		s.roots["c"].Node(0).Freeze()
		time.Sleep(10 * time.Second)
		for set, l := range leases {
			if lost := l.Context().Err() != nil; lost != (set == "c") {
				t.Errorf("the lease in set %s: lost %v", set, lost)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := other.Acquire(ctx, nameIn(d, "c"), nil)
		if cancel(); !errors.Is(err, holdfast.ErrUnavailable) || !strings.Contains(err.Error(), "set c") {
			t.Errorf("Acquire() = %v, want ErrUnavailable that names the set", err)
		}
		s.roots["c"].Node(0).Start()
		for _, l := range leases {
			l.Release(t.Context())
		}
		other.Close()
		c.Close()
	})
}

func TestListOmitsLocksOfOtherLists(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := startService(setsNamed("a", "b", "c")...)
		c, d := s.newClient(t, "a", "b", "c")
		other, _ := s.newClient(t, "a", "b")
		homes := func() driver.Finding {
			found, err := c.Diagnose(t.Context(), 0)
			if err != nil || len(found) != 1 { // the sets have no checks of their own
				t.Fatalf("Diagnose() = %v, %v", found, err)
			}
			return found[0]
		}
		take := func(c *holdfast.Client, set string) *holdfast.Lease {
			l, err := c.Acquire(t.Context(), nameIn(d, set), nil)
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		leases := []*holdfast.Lease{take(c, "a"), take(c, "c"), take(other, "b")}
		if f := homes(); f.Check != "homes" || f.Bad() {
			t.Errorf("each lock is held in its home set: %+v", f)
		}
		leases = append(leases, take(other, "c"))
		if f := homes(); f.Verdict != driver.VerdictFault || !strings.Contains(f.Text, "not their home: 1, such as") {
			t.Errorf("a client with another list: %+v", f)
		}
		var listed []string
		for st, err := range c.List(t.Context(), "job-") {
			if err != nil {
				t.Fatal(err)
			}
			listed = append(listed, d.Home(st.Key))
		}
		if slices.Sort(listed); !slices.Equal(listed, []string{"a", "b", "c"}) {
			t.Errorf("locks were listed in sets %q, want each once in its home set", listed)
		}
		for _, l := range leases {
			l.Release(t.Context())
		}
		other.Close()
		c.Close()
	})
}

// AcquireAll keeps its order although each name has a different home.
func TestAcquireAllSpansSets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := startService(setsNamed("a", "b", "c")...)
		var clients []*holdfast.Client
		for range 2 {
			drv, err := s.openDriver()
			if err != nil {
				t.Fatal(err)
			}
			c, err := holdfast.New(drv, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			clients = append(clients, c)
		}
		var keys []string
		for i := range 12 {
			keys = append(keys, fmt.Sprint("k", i))
		}
		all, err := clients[0].AcquireAll(t.Context(), keys, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan error)
		go func() {
			others, err := clients[1].AcquireAll(t.Context(), keys[6:], nil)
			if err == nil {
				err = others.Release(t.Context())
			}
			got <- err
		}()
		time.Sleep(time.Minute) // leases of all sets are renewed
		if err := all.Context().Err(); err != nil {
			t.Errorf("the leases ended: %v", context.Cause(all.Context()))
		}
		for name := range s.roots {
			if left, err := s.countLocks(name); err != nil || left == 0 {
				t.Errorf("set %s has %d of the locks, %v", name, left, err)
			}
		}
		if err := all.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-got; err != nil {
			t.Errorf("the next AcquireAll: %v", err)
		}
	})
}

// countLocks returns the number of locks that are held on a set.
func (s *service) countLocks(set string) (n int, err error) {
	err = s.roots[set].List(context.Background(), "", func(driver.Status) bool { n++; return true })
	return n, err
}
