package sharding_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/memory"
	"github.com/holdfast-go/holdfast/sharding"
)

// The steps of a change: sets a and d leave, set c joins.
var (
	oldList  = []sharding.Set{{Name: "a"}, {Name: "b"}, {Name: "d"}}
	newList  = []sharding.Set{{Name: "b"}, {Name: "c"}}
	bothList = []sharding.Set{
		{Name: "a", Change: sharding.Leaves}, {Name: "b"}, {Name: "c", Change: sharding.Joins}, {Name: "d", Change: sharding.Leaves},
	}
)

// ledger is what the checks of a run know.
type ledger struct {
	mu      sync.Mutex // guards what follows
	holders map[string]*holdfast.Lease
	tokens  map[string]holdfast.Token
	grants  int
	faults  []string
}

func (l *ledger) last(name string) holdfast.Token {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tokens[name]
}

// enter is called with a lease that was asked for when before was the last token.
func (l *ledger) enter(lease *holdfast.Lease, before holdfast.Token) {
	l.mu.Lock()
	defer l.mu.Unlock()
	name := lease.Key()
	if other := l.holders[name]; other != nil && other.Context().Err() == nil && lease.Context().Err() == nil {
		l.faults = append(l.faults, fmt.Sprintf("%s: two holders, %s and %s", name, other.Owner(), lease.Owner()))
	}
	if lease.Token() <= before {
		l.faults = append(l.faults, fmt.Sprintf("%s: token %d after %d", name, lease.Token(), before))
	}
	l.holders[name] = lease
	l.tokens[name] = max(l.tokens[name], lease.Token())
	l.grants++
}

func (l *ledger) leave(lease *holdfast.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.holders[lease.Key()] == lease {
		delete(l.holders, lease.Key())
	}
}

// fleet is clients that take locks all the time.
type fleet struct {
	t      *testing.T
	roots  map[string]*memory.Driver
	ledger *ledger
	rand   *rand.Rand
	mu     sync.Mutex // guards rand
	names  []string
	pause  atomic.Int64 // between two locks, at most
	slots  []func()     // each ends what the client there does
}

func newFleet(t *testing.T, seed uint64, slots int) *fleet {
	f := &fleet{
		t: t, roots: make(map[string]*memory.Driver), ledger: &ledger{holders: make(map[string]*holdfast.Lease), tokens: make(map[string]holdfast.Token)},
		rand: rand.New(rand.NewPCG(seed, 1)), slots: make([]func(), slots),
	}
	f.pause.Store(int64(300 * time.Millisecond))
	for _, set := range bothList {
		f.roots[set.Name] = memory.New(1)
	}
	for i := range 12 {
		f.names = append(f.names, fmt.Sprint("job-", i))
	}
	return f
}

func (f *fleet) upTo(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rand.IntN(n)
}

func (f *fleet) open(list []sharding.Set) *sharding.Driver {
	f.t.Helper()
	var sets []sharding.Set
	for _, s := range list {
		s.Driver = f.roots[s.Name].Peer()
		sets = append(sets, s)
	}
	d, err := sharding.New(sets, &sharding.Options{MaxTTL: 10 * time.Second})
	if err != nil {
		f.t.Fatal(err)
	}
	return d
}

// run replaces the client of a slot by one with list.
func (f *fleet) run(slot int, list []sharding.Set) {
	f.stop(slot)
	c, err := holdfast.New(f.open(list), nil)
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for ctx.Err() == nil {
				f.work(ctx, c)
			}
		})
	}
	f.slots[slot] = func() {
		stop()
		all.Wait()
		c.Close()
	}
}

func (f *fleet) stop(slot int) {
	if f.slots[slot] != nil {
		f.slots[slot]()
		f.slots[slot] = nil
	}
}

// work takes one lock, perhaps, and keeps it for a while.
func (f *fleet) work(ctx context.Context, c *holdfast.Client) {
	time.Sleep(time.Duration(f.upTo(int(f.pause.Load()))))
	name := f.names[f.upTo(len(f.names))]
	before := f.ledger.last(name)
	wait, cancel := context.WithTimeout(ctx, time.Duration(f.upTo(int(4*time.Second))))
	defer cancel()
	opts := &holdfast.AcquireOptions{TTL: 2 * time.Second, NoRenew: f.upTo(8) == 0}
	acquire := c.Acquire
	if f.upTo(3) == 0 {
		acquire = c.TryAcquire
	}
	l, err := acquire(wait, name, opts)
	if err != nil {
		return
	}
	f.ledger.enter(l, before)
	held := time.Duration(f.upTo(int(200 * time.Millisecond)))
	if f.upTo(20) == 0 {
		held = 3 * time.Second // it is renewed meanwhile, or lost
	}
	select {
	case <-time.After(held):
	case <-l.Context().Done():
	}
	f.ledger.leave(l)
	l.Release(context.Background())
}

// disturb makes something fail, and mends it.
func (f *fleet) disturb() {
	sets := []string{"a", "b", "c", "d"}
	n := f.roots[sets[f.upTo(len(sets))]].Node(0)
	long := time.Duration(f.upTo(int(5 * time.Second)))
	switch f.upTo(4) {
	case 0:
		n.Stop()
		time.Sleep(long)
		n.Start()
	case 1:
		n.Freeze()
		time.Sleep(long)
		n.Start()
	case 2:
		n.LoseReplies(f.upTo(10))
	case 3:
		n.Delay(time.Duration(f.upTo(int(100 * time.Millisecond))))
		time.Sleep(long)
		n.Delay(0)
	}
}

// pass lets time pass, with faults.
func (f *fleet) pass(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Duration(f.upTo(int(4 * time.Second)))) {
		f.disturb()
	}
}

// roll replaces all clients, one after the other.
func (f *fleet) roll(list []sharding.Set) {
	for i := range f.slots {
		f.run(i, list)
		f.pass(3 * time.Second)
	}
}

func (f *fleet) end() {
	for i := range f.slots {
		f.stop(i)
	}
}

func TestNoStepOfAChangeLosesExclusionOrOrder(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, seed, 4)
				f.roll(oldList)
				f.pass(20 * time.Second)
				f.roll(bothList)
				if seed%2 == 1 { // it is undone, and begun again
					f.roll(oldList)
					f.roll(bothList)
				}
				d := f.open(bothList)
				f.pause.Store(int64(3 * time.Second))
				f.pass(d.Wait())
				f.pause.Store(int64(300 * time.Millisecond))
				d.Close()
				f.roll(newList)
				f.pass(20 * time.Second)
				f.end()
				for _, fault := range f.ledger.faults {
					t.Error(fault)
				}
				t.Logf("%d grants", f.ledger.grants)
				if f.ledger.grants < 300 {
					t.Errorf("%d grants: the load is too low to show anything", f.ledger.grants)
				}
			})
		})
	}
}

// What a check that cannot fail shows is nothing.
func TestAClientThatSkipsAStepIsSeen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, 4)
		f.roll(oldList)
		f.run(0, newList)
		f.pass(20 * time.Second)
		f.end()
		if len(f.ledger.faults) == 0 {
			t.Error("clients with the old list and with the new one were never seen to have one lock")
		}
	})
}

// moving is a name that moves from one of the sets to the other.
func moving(t *testing.T, d *sharding.Driver, from, to string) string {
	t.Helper()
	for i := range 10_000 {
		name := fmt.Sprint("name-", i)
		if homes := d.Homes(name); len(homes) == 2 && homes[0] == from && homes[1] == to {
			return name
		}
	}
	t.Fatalf("no name moves from %s to %s", from, to)
	return ""
}

func (f *fleet) client(list []sharding.Set) (*holdfast.Client, *sharding.Driver) {
	f.t.Helper()
	d := f.open(list)
	c, err := holdfast.New(d, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { c.Close() })
	return c, d
}

func (f *fleet) take(c *holdfast.Client, name string) *holdfast.Lease {
	f.t.Helper()
	l, err := c.Acquire(f.t.Context(), name, &holdfast.AcquireOptions{TTL: 2 * time.Second})
	if err != nil {
		f.t.Fatal(err)
	}
	return l
}

var _ driver.Driver = (*sharding.Driver)(nil)

// step is two clients with both lists, and one with the old list and one with the new.
type step struct {
	*fleet
	both, other, old, fresh *holdfast.Client
	drv                     *sharding.Driver
	name                    string // moves from a to c
}

func changing(t *testing.T, test func(t *testing.T, s *step)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &step{fleet: newFleet(t, 1, 0)}
		s.both, s.drv = s.client(bothList)
		s.other, _ = s.client(bothList)
		s.old, _ = s.client(oldList)
		s.fresh, _ = s.client(newList)
		s.name = moving(t, s.drv, "a", "c")
		test(t, s)
		for _, c := range []*holdfast.Client{s.both, s.other, s.old, s.fresh} {
			c.Close()
		}
	})
}

func TestANameThatMovesExcludesClientsOfTheStepsBeforeAndAfter(t *testing.T) {
	changing(t, func(t *testing.T, s *step) {
		var last holdfast.Token
		for _, pair := range [][2]*holdfast.Client{{s.both, s.old}, {s.old, s.both}, {s.both, s.other}, {s.both, s.fresh}, {s.fresh, s.both}} {
			l := s.take(pair[0], s.name)
			if _, err := pair[1].TryAcquire(t.Context(), s.name, nil); !errors.Is(err, holdfast.ErrHeld) {
				t.Errorf("a second client: %v, want ErrHeld", err)
			}
			if l.Token() <= last {
				t.Errorf("token %d after %d", l.Token(), last)
			}
			last = l.Token()
			if err := l.Release(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestTheNodesOfANameThatMovesHaveItsOwner(t *testing.T) {
	changing(t, func(t *testing.T, s *step) {
		l := s.take(s.both, s.name)
		st, err := s.both.Inspect(t.Context(), s.name)
		if err != nil || st.Owner != l.Owner() || len(st.Nodes) != 2 {
			t.Errorf("Inspect() = %+v, %v, want owner %s", st, err, l.Owner())
		}
		for _, n := range st.Nodes {
			if n.Owner != l.Owner() {
				t.Errorf("node %s has %s, want %s", n.Node, n.Owner, l.Owner())
			}
		}
		l.Release(t.Context())
	})
}

func TestTheLossOfEitherHalfIsTheLoss(t *testing.T) {
	changing(t, func(t *testing.T, s *step) {
		for _, set := range []string{"a", "c"} {
			l := s.take(s.both, s.name)
			done, err := s.roots[set].Force(t.Context(), s.name, int64(l.Token()), "")
			if err != nil || !done {
				t.Fatalf("Force() = %v, %v", done, err)
			}
			<-l.Context().Done()
			if left := time.Until(l.Deadline()); left <= 0 {
				t.Errorf("set %s: the lease ended by its deadline, and not by what the set has said", set)
			}
			s.take(s.other, s.name).Release(t.Context()) // the other half is free at once
		}
	})
}

// An alert may be lost: the renewal finds out as well.
func TestARenewalThatEitherHomeRefusesIsTheLoss(t *testing.T) {
	changing(t, func(t *testing.T, s *step) {
		for _, set := range []string{"a", "c"} {
			g, err := s.drv.Acquire(t.Context(), driver.Request{Key: s.name, TTL: 2 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			if r := s.drv.Renew(t.Context(), []driver.Grant{g})[0]; r.Err != nil || !r.TrustedUntil.After(time.Now()) {
				t.Errorf("Renew() = %+v", r)
			}
			if _, err := s.roots[set].Force(t.Context(), s.name, g.Token, ""); err != nil {
				t.Fatal(err)
			}
			if r := s.drv.Renew(t.Context(), []driver.Grant{g})[0]; !errors.Is(r.Err, driver.ErrLost) {
				t.Errorf("after set %s has given it away: Renew() = %+v, want ErrLost", set, r)
			}
			s.drv.Release(t.Context(), g, 0)
		}
	})
}

func TestALockIsTrustedNoLongerThanInEitherHome(t *testing.T) {
	changing(t, func(t *testing.T, s *step) {
		for _, set := range []string{"a", "c"} {
			l := s.take(s.both, s.name)
			asked := time.Now()
			s.roots[set].Node(0).Freeze()
			<-l.Context().Done()
			if held := time.Since(asked); held > 2*time.Second {
				t.Errorf("trusted for %v while set %s did not answer, want 2s at most", held, set)
			}
			s.roots[set].Node(0).Start()
			l.Release(t.Context())
		}
	})
}

func TestAWaitForOneHomeKeepsTheOther(t *testing.T) {
	changing(t, func(t *testing.T, s *step) {
		l := s.take(s.fresh, s.name)
		var got *holdfast.Lease
		var all sync.WaitGroup
		all.Go(func() { got = s.take(s.both, s.name) })
		time.Sleep(time.Minute)
		if _, err := s.old.TryAcquire(t.Context(), s.name, nil); !errors.Is(err, holdfast.ErrHeld) {
			t.Errorf("the old home is lost during the wait: %v", err)
		}
		l.Release(t.Context())
		all.Wait()
		if time.Sleep(10 * time.Second); got.Context().Err() != nil {
			t.Errorf("lost: %v", context.Cause(got.Context()))
		}
		got.Release(t.Context())
	})
}

func TestASetThatIsDownTakesItsNamesAlone(t *testing.T) {
	changing(t, func(t *testing.T, s *step) {
		leases := make(map[string]*holdfast.Lease)
		for _, name := range s.names {
			leases[name] = s.take(s.both, name)
		}
		s.roots["c"].Node(0).Freeze()
		time.Sleep(10 * time.Second)
		down := 0
		for name, l := range leases {
			homes := s.drv.Homes(name)
			in := slices.Contains(homes, "c")
			if lost := l.Context().Err() != nil; lost != in {
				t.Errorf("%s of sets %v: lost %v", name, homes, lost)
			}
			if in {
				down++
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				_, err := s.other.Acquire(ctx, name, nil)
				if cancel(); !errors.Is(err, holdfast.ErrUnavailable) || !strings.Contains(err.Error(), "set c") {
					t.Errorf("%s: %v, want ErrUnavailable that names the set", name, err)
				}
			}
			l.Release(t.Context())
		}
		if down == 0 || down == len(leases) {
			t.Errorf("%d of %d names have set c", down, len(leases))
		}
		s.roots["c"].Node(0).Start()
	})
}

func TestWaitersWithBothListsAndWithTheOldOneAreServedByTurns(t *testing.T) {
	changing(t, func(t *testing.T, s *step) {
		l := s.take(s.old, s.name)
		var order []string
		var mu sync.Mutex // guards order
		var all sync.WaitGroup
		second, _ := s.client(oldList)
		for i, c := range []*holdfast.Client{s.both, second, s.other} {
			all.Go(func() {
				l := s.take(c, s.name)
				mu.Lock()
				order = append(order, fmt.Sprint(i))
				mu.Unlock()
				l.Release(t.Context())
			})
			time.Sleep(50 * time.Millisecond)
		}
		l.Release(t.Context())
		all.Wait()
		second.Close()
		if got := strings.Join(order, " "); got != "0 1 2" {
			t.Errorf("served in the order %s", got)
		}
	})
}

func TestALeaseIsAdoptedByAClientOfTheNextStep(t *testing.T) {
	changing(t, func(t *testing.T, s *step) {
		for name, pair := range map[string][2]*holdfast.Client{
			"old to both": {s.old, s.both}, "both to both": {s.both, s.other}, "both to old": {s.both, s.old},
			"both to new": {s.both, s.fresh}, "new to both": {s.fresh, s.both},
		} {
			l := s.take(pair[0], s.name)
			if err := l.Detach(); err != nil {
				t.Fatal(err)
			}
			next, err := pair[1].Adopt(t.Context(), s.name, l.Owner(), l.Token(), &holdfast.AcquireOptions{TTL: 2 * time.Second})
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if next.Token() <= l.Token() {
				t.Errorf("%s: token %d after %d", name, next.Token(), l.Token())
			}
			time.Sleep(3 * time.Second) // what was not adopted lapses
			if err := next.Release(t.Context()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if _, err := pair[1].Adopt(t.Context(), s.name, l.Owner(), l.Token(), nil); !errors.Is(err, holdfast.ErrLost) {
				t.Errorf("%s: adopted again: %v", name, err)
			}
		}
	})
}

func TestDiagnoseSeesWhoHasAnotherList(t *testing.T) {
	changing(t, func(t *testing.T, s *step) {
		homes := func(d *sharding.Driver) driver.Finding {
			return d.Diagnose(t.Context(), 0)[0] // the sets have no checks of their own
		}
		late, lateDriver := s.client(newList)
		defer late.Close()
		if f := homes(s.drv); f.Bad() {
			t.Errorf("nobody holds anything: %+v", f)
		}
		staying := s.take(s.old, moving(t, s.drv, "d", "b"))
		if f := homes(s.drv); f.Bad() || !strings.Contains(f.Text, "old list alone are still at work") {
			t.Errorf("a client has the old list: %+v", f)
		}
		second := s.take(s.fresh, s.name)
		if f := homes(s.drv); f.Verdict != driver.VerdictFault || !strings.Contains(f.Text, "two clients can have one lock") {
			t.Errorf("clients have the old list alone, and the new list alone: %+v", f)
		}
		staying.Release(t.Context())
		first := s.take(s.old, moving(t, s.drv, "b", "c"))
		if f := homes(lateDriver); f.Verdict != driver.VerdictFault || !strings.Contains(f.Text, "not their home") {
			t.Errorf("a client has the old list: %+v", f)
		}
		first.Release(t.Context())
		second.Release(t.Context())
	})
}

func TestAListNamesEachLockOnce(t *testing.T) {
	changing(t, func(t *testing.T, s *step) {
		var leases []*holdfast.Lease
		for _, name := range s.names {
			leases = append(leases, s.take(s.both, name))
		}
		seen := make(map[string]int)
		for st, err := range s.other.List(t.Context(), "job-") {
			if err != nil {
				t.Fatal(err)
			}
			seen[st.Key]++
		}
		for _, l := range leases {
			if seen[l.Key()] != 1 {
				t.Errorf("%s is listed %d times", l.Key(), seen[l.Key()])
			}
			l.Release(t.Context())
		}
	})
}
