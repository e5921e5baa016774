package sharding

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Check implements driver.Checker.
func (d *Driver) Check(ctx context.Context, g driver.Grant) error {
	s := d.homeOf(g.Key)
	c, err := driverAs[driver.Checker](s)
	if err != nil {
		return err
	}
	return s.nameSet(c.Check(ctx, g))
}

// Alert implements driver.Alerter, for the sets that support it.
func (d *Driver) Alert(fn func(owner, reason string)) {
	for _, s := range d.sets {
		if a, ok := s.Driver.(driver.Alerter); ok {
			a.Alert(fn)
		}
	}
}

// Notify implements driver.Notifier, for the sets that support it.
func (d *Driver) Notify(fn func(driver.NodeEvent)) {
	for _, s := range d.sets {
		if n, ok := s.Driver.(driver.Notifier); ok {
			n.Notify(func(e driver.NodeEvent) {
				e.Node = s.nodeName(e.Node)
				fn(e)
			})
		}
	}
}

// Nodes implements driver.Notifier, for the sets that support it. A node's name begins with its set:
// <set>/<node>.
func (d *Driver) Nodes() (all []driver.NodeEvent) {
	for _, s := range d.sets {
		if n, ok := s.Driver.(driver.Notifier); ok {
			for _, e := range n.Nodes() {
				e.Node = s.nodeName(e.Node)
				all = append(all, e)
			}
		}
	}
	return all
}

func (s *set) nodeName(name string) string { return s.Name + "/" + name }

// Inspect implements driver.Inspector.
func (d *Driver) Inspect(ctx context.Context, key string) (driver.Status, error) {
	s := d.homeOf(key)
	in, err := driverAs[driver.Inspector](s)
	if err != nil {
		return driver.Status{}, err
	}
	st, err := in.Inspect(ctx, key)
	return d.statusOf(s, st), s.nameSet(err)
}

// statusOf returns the status of a set as this driver reports it.
func (d *Driver) statusOf(s *set, st driver.Status) driver.Status {
	st.Nodes = slices.Clone(st.Nodes)
	for n := range st.Nodes {
		st.Nodes[n].Node = s.nodeName(st.Nodes[n].Node)
		if !d.limits.Token {
			st.Nodes[n].Token = 0
		}
	}
	if !d.limits.Token {
		st.Token = 0
	}
	return st
}

// List implements driver.Lister, set after set. It does not list a lock in a set that is not the home of its
// name.
func (d *Driver) List(ctx context.Context, prefix string, yield func(driver.Status) bool) error {
	var errs []error
	for i := range d.sets {
		s := &d.sets[i]
		lister, err := driverAs[driver.Lister](s)
		if err != nil {
			return err
		}
		more := true
		err = lister.List(ctx, prefix, func(st driver.Status) bool {
			if d.homeOf(st.Key) == s {
				more = yield(d.statusOf(s, st))
			}
			return more
		})
		if errs = append(errs, s.nameSet(err)); !more {
			return nil
		}
	}
	return errors.Join(errs...)
}

// Queue implements driver.Queuer.
func (d *Driver) Queue(ctx context.Context, key string, limit int) ([]driver.Waiter, error) {
	s := d.homeOf(key)
	q, err := driverAs[driver.Queuer](s)
	if err != nil {
		return nil, err
	}
	waiters, err := q.Queue(ctx, key, limit)
	return waiters, s.nameSet(err)
}

// Force implements driver.Forcer.
func (d *Driver) Force(ctx context.Context, key string, token int64, reason string) (bool, error) {
	s := d.homeOf(key)
	f, err := driverAs[driver.Forcer](s)
	if err != nil {
		return false, err
	}
	done, err := f.Force(ctx, key, token, reason)
	return done, s.nameSet(err)
}

// maxSurvey bounds the number of locks of each set that Diagnose reads.
const maxSurvey = 1000

// Diagnose implements driver.Doctor. Besides the checks of the sets it reads up to 1000 locks of each set
// (check "homes"), to find clients with another list of sets.
func (d *Driver) Diagnose(ctx context.Context, ttl time.Duration) []driver.Finding {
	found := make([][]driver.Finding, len(d.sets)+1)
	runTogether(len(found), func(i int) {
		if i == len(d.sets) {
			found[i] = []driver.Finding{d.surveySets(ctx)}
			return
		}
		s := &d.sets[i]
		doctor, ok := s.Driver.(driver.Doctor)
		if !ok {
			return
		}
		for _, f := range doctor.Diagnose(ctx, ttl) {
			if f.Node == "" {
				f.Node = s.Name
			} else {
				f.Node = s.nodeName(f.Node)
			}
			found[i] = append(found[i], f)
		}
	})
	return slices.Concat(found...)
}

// surveySets returns a finding about held locks that are not in the home of their name.
func (d *Driver) surveySets(ctx context.Context) driver.Finding {
	var astray []string
	for i := range d.sets {
		s := &d.sets[i]
		lister, ok := s.Driver.(driver.Lister)
		if !ok {
			return driver.Finding{Check: "homes", Verdict: driver.VerdictSkipped, Text: "set " + s.Name + " cannot list locks"}
		}
		seen := 0
		err := lister.List(ctx, "", func(st driver.Status) bool {
			if !st.Held {
				return true
			}
			if d.homeOf(st.Key) != s {
				astray = append(astray, fmt.Sprintf("%q in set %s", st.Key, s.Name))
			}
			seen++
			return seen < maxSurvey
		})
		if err != nil {
			return driver.Finding{Check: "homes", Verdict: driver.VerdictSkipped, Text: fmt.Sprintf("could not list locks: %v", s.nameSet(err))}
		}
	}
	if len(astray) > 0 {
		return driver.Finding{
			Check: "homes", Verdict: driver.VerdictFault,
			Text: fmt.Sprintf("locks held in a set that is not their home: %d, such as %s: clients with another list of sets are at work, "+
				"and two clients can have one lock", len(astray), astray[0]),
			Fix: "end the clients with the other list; to change the list, end all clients first: https://github.com/holdfast-go/holdfast/blob/main/docs/operations.md#several-sets",
		}
	}
	return driver.Finding{Check: "homes", Verdict: driver.VerdictOK, Text: "each lock is held in its home set"}
}
