package sharding

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Alert implements driver.Alerter.
func (d *Driver) Alert(fn func(owner, why string)) {
	for _, s := range d.sets {
		if a, ok := driver.As[driver.Alerter](s.Driver); ok {
			a.Alert(func(owner, why string) {
				d.mu.Lock()
				p := d.pairs[owner]
				d.mu.Unlock()
				if p != nil {
					owner = d.owner(p)
				}
				fn(owner, why)
			})
		}
	}
}

// Notify implements driver.Notifier.
func (d *Driver) Notify(fn func(driver.NodeEvent)) {
	for i, s := range d.sets {
		if n, ok := driver.As[driver.Notifier](s.Driver); ok {
			n.Notify(func(e driver.NodeEvent) {
				e.Node = d.node(i, e.Node)
				fn(e)
			})
		}
	}
}

// Nodes implements driver.Notifier. A node is named by its set: <set>/<node>.
func (d *Driver) Nodes() (all []driver.NodeEvent) {
	for i, s := range d.sets {
		if n, ok := driver.As[driver.Notifier](s.Driver); ok {
			for _, e := range n.Nodes() {
				e.Node = d.node(i, e.Node)
				all = append(all, e)
			}
		}
	}
	return all
}

func (d *Driver) node(i int, name string) string { return d.sets[i].Name + "/" + name }

// Inspect implements driver.Inspector. A name that moves has the nodes of both of its homes.
func (d *Driver) Inspect(ctx context.Context, key string) (driver.Status, error) {
	a, b := d.homes(key)
	if a == b {
		return d.inspect(ctx, key, a)
	}
	var sts [2]driver.Status
	var errs [2]error
	together(2, func(i int) { sts[i], errs[i] = d.inspect(ctx, key, []int{a, b}[i]) })
	return d.merge(sts, [2]int{a, b}), errors.Join(errs[:]...)
}

func (d *Driver) inspect(ctx context.Context, key string, i int) (driver.Status, error) {
	in, ok := driver.As[driver.Inspector](d.sets[i].Driver)
	if !ok {
		return driver.Status{}, driver.ErrUnsupported
	}
	st, err := in.Inspect(ctx, key)
	return d.ours(st, i), d.named(i, err)
}

// ours is the status of set i as this driver gives it.
func (d *Driver) ours(st driver.Status, i int) driver.Status {
	st.Nodes = slices.Clone(st.Nodes)
	for n := range st.Nodes {
		st.Nodes[n].Node = d.node(i, st.Nodes[n].Node)
		if !d.limits.Token {
			st.Nodes[n].Token = 0
		}
	}
	if !d.limits.Token {
		st.Token = 0
	}
	return st
}

// merge makes one status of those of the two homes of a name. Where these name two holders, that
// of the first home waits for the second: it takes them in this order.
func (d *Driver) merge(sts [2]driver.Status, sets [2]int) driver.Status {
	first, second := sts[0], sts[1]
	out := first
	waiters := first.Waiters + second.Waiters
	switch {
	case first.Held && second.Held && first.Token == second.Token && first.Holder == second.Holder:
		out.Owner = d.owner(&pair{{set: sets[0], grant: driver.Grant{Owner: first.Owner}}, {set: sets[1], grant: driver.Grant{Owner: second.Owner}}})
		for i, nodes := range [][]driver.NodeStatus{first.Nodes, second.Nodes} {
			for n := range nodes {
				if nodes[n].Owner == sts[i].Owner {
					nodes[n].Owner = out.Owner // what the node has is that owner's
				}
			}
		}
		if second.Remaining >= 0 && (out.Remaining < 0 || second.Remaining < out.Remaining) {
			out.Remaining = second.Remaining
		}
	case first.Held && second.Held:
		out = second
		waiters++
	case second.Held:
		out = second
	}
	out.Waiters, out.Nodes = waiters, slices.Concat(first.Nodes, second.Nodes)
	return out
}

// List implements driver.Lister, set after set. For each name that moves it asks both homes. A lock in
// a set that is no home of its name is not listed.
func (d *Driver) List(ctx context.Context, prefix string, yield func(driver.Status) bool) error {
	var errs []error
	for i, s := range d.sets {
		lister, ok := driver.As[driver.Lister](s.Driver)
		if !ok {
			return driver.ErrUnsupported
		}
		more := true
		err := lister.List(ctx, prefix, func(st driver.Status) bool {
			a, b := d.homes(st.Key)
			switch {
			case a == b && a == i:
				more = yield(d.ours(st, i))
			case a == i || b == i:
				both, err := d.Inspect(ctx, st.Key)
				if ours := both.Held || both.Waiters > 0; err == nil && ours && (i == a || !d.shown(ctx, st.Key, a)) {
					more = yield(both)
				}
				errs = append(errs, err)
			}
			return more
		})
		if errs = append(errs, d.named(i, err)); !more {
			return nil
		}
	}
	return errors.Join(errs...)
}

// shown says that set i lists key.
func (d *Driver) shown(ctx context.Context, key string, i int) bool {
	st, err := d.inspect(ctx, key, i)
	return err == nil && (st.Held || st.Waiters > 0)
}

// Queue implements driver.Queuer. A client that has the first home of a name and waits for the
// second comes before those that wait for the first.
func (d *Driver) Queue(ctx context.Context, key string, most int) (all []driver.Waiter, err error) {
	a, b := d.homes(key)
	for _, i := range slices.Compact([]int{b, a}) {
		queuer, ok := driver.As[driver.Queuer](d.sets[i].Driver)
		if !ok {
			return nil, driver.ErrUnsupported
		}
		waiters, err := queuer.Queue(ctx, key, most)
		if err != nil {
			return nil, d.named(i, err)
		}
		all = append(all, waiters...)
	}
	return all[:min(len(all), most)], nil
}

// Force implements driver.Forcer.
func (d *Driver) Force(ctx context.Context, key string, token int64, why string) (bool, error) {
	if d.opts.NoTokens {
		return false, fmt.Errorf("%w: Options.NoTokens leaves nothing by which to tell one holder from the next", driver.ErrUnsupported)
	}
	a, b := d.homes(key)
	homes := slices.Compact([]int{a, b})
	done, errs := make([]bool, len(homes)), make([]error, len(homes))
	together(len(homes), func(i int) {
		forcer, ok := driver.As[driver.Forcer](d.sets[homes[i]].Driver)
		if errs[i] = driver.ErrUnsupported; ok {
			done[i], errs[i] = forcer.Force(ctx, key, token, why)
			errs[i] = d.named(homes[i], errs[i])
		}
	})
	return slices.Contains(done, true), errors.Join(errs...)
}

// surveyMost is how many locks of each set Diagnose looks at.
const surveyMost = 1000

// Diagnose implements driver.Doctor. Besides the checks of the sets it looks at up to 1000 locks of
// each set (check "homes"), for clients whose list of sets is another.
func (d *Driver) Diagnose(ctx context.Context, ttl time.Duration) []driver.Finding {
	found := make([][]driver.Finding, len(d.sets)+1)
	together(len(found), func(i int) {
		if i == len(d.sets) {
			found[i] = []driver.Finding{d.survey(ctx)}
			return
		}
		doctor, ok := driver.As[driver.Doctor](d.sets[i].Driver)
		if !ok {
			return
		}
		for _, f := range doctor.Diagnose(ctx, ttl) {
			if f.Node = d.sets[i].Name + "/" + f.Node; f.Node == d.sets[i].Name+"/" {
				f.Node = d.sets[i].Name
			}
			found[i] = append(found[i], f)
		}
	})
	return slices.Concat(found...)
}

// survey looks where locks are that are held.
func (d *Driver) survey(ctx context.Context) driver.Finding {
	var astray []string
	var old, fresh int // of the names that move, those held in one home alone
	for i, s := range d.sets {
		lister, ok := driver.As[driver.Lister](s.Driver)
		if !ok {
			return driver.Finding{Check: "homes", Verdict: driver.VerdictSkipped, Text: "set " + s.Name + " cannot list locks"}
		}
		seen := 0
		err := lister.List(ctx, "", func(st driver.Status) bool {
			a, b := d.homes(st.Key)
			switch {
			case !st.Held:
				return true
			case a != i && b != i:
				astray = append(astray, fmt.Sprintf("%q in set %s", st.Key, s.Name))
			case a == b, d.shown(ctx, st.Key, a+b-i), !d.shown(ctx, st.Key, i):
			case d.home(seed(st.Key), Joins) == i:
				old++
			default:
				fresh++
			}
			seen++
			return seen < surveyMost
		})
		if err != nil {
			return driver.Finding{Check: "homes", Verdict: driver.VerdictSkipped, Text: fmt.Sprintf("could not list locks: %v", d.named(i, err))}
		}
	}
	switch {
	case len(astray) > 0:
		return driver.Finding{
			Check: "homes", Verdict: driver.VerdictFault,
			Text: fmt.Sprintf("%d locks are held in a set that is not their home, such as %s: clients with another list of sets are at work", len(astray), astray[0]),
			Mend: "give all clients the same list; where it changes, each step has to be complete before the next one (package sharding)",
		}
	case old > 0 && fresh > 0:
		return driver.Finding{
			Check: "homes", Verdict: driver.VerdictFault,
			Text: fmt.Sprintf("of the locks that move %d are held in the old home alone and %d in the new one alone: two clients can have one lock", old, fresh),
			Mend: "stop the clients with the new list alone until none with the old list alone is left, and the wait is over",
		}
	case old > 0:
		return driver.Finding{
			Check: "homes", Verdict: driver.VerdictOK,
			Text: fmt.Sprintf("of the locks that move %d are held in the old home alone: clients with the old list alone are still at work", old),
		}
	}
	return driver.Finding{Check: "homes", Verdict: driver.VerdictOK, Text: "each lock that was looked at is held in its home"}
}
