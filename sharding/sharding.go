// Package sharding spreads locks over several sets of servers: a driver made of drivers, of any kinds. Each
// name belongs to one set, its home, which every client finds by the same fixed hash (see Driver.Home). If a
// set is down, only its names are unavailable.
//
// Clients with different lists of sets do not exclude one another, and nothing rejects them: two of them can
// hold the same lock. So all clients must use one list at a time. To change it, stop all clients, wait until
// none of their locks is left, reset the counters of tokens, and start the clients with the new list
// (docs/operations.md, Several sets). Diagnose finds locks that clients with another list hold.
//
// A set may have fewer abilities than the others. If its driver lacks an interface, calls that need it return
// ErrUnsupported for its names.
package sharding

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Set is one set of servers.
type Set struct {
	// Name determines which names belong to the set. All clients must give the set the same name, and it keeps
	// its name when its servers move. 1 to 64 letters, digits, "-", "_" and ".".
	Name string
	// Driver is the driver of the set. The Driver of New closes it, and no other code may use it.
	Driver driver.Driver
}

// Options are the settings of New. A nil *Options is valid.
type Options struct {
	// MaxTTL lowers Limits.MaxTTL. It bounds how long a lock stays that nobody renews or releases, and so how
	// long a change of the list has to wait. Default: the shortest MaxTTL of the sets.
	MaxTTL time.Duration
}

// Driver is the driver over the sets. It implements driver.Driver and all optional interfaces. If the driver
// of a set lacks one, its methods return ErrUnsupported for names of that set. Methods that return no error
// skip the set.
type Driver struct {
	sets   []set // sorted by name
	limits driver.Limits
}

type set struct {
	Set
	seed uint64
}

// New returns a driver over sets. Its Close closes the sets, and so does New if it fails. opts may be nil. It
// does not block. Errors: ErrInvalid.
func New(sets []Set, opts *Options) (*Driver, error) {
	if opts == nil {
		opts = &Options{}
	}
	d, err := newDriver(sets, opts)
	if err != nil {
		for _, s := range sets {
			if s.hasDriver() {
				s.Driver.Close()
			}
		}
	}
	return d, err
}

func newDriver(sets []Set, opts *Options) (*Driver, error) {
	if len(sets) == 0 {
		return nil, invalidError("no sets; give at least one")
	}
	d := &Driver{}
	for _, s := range sets {
		if err := s.check(); err != nil {
			return nil, err
		}
		d.sets = append(d.sets, set{Set: s, seed: seedOf(s.Name)})
	}
	slices.SortFunc(d.sets, func(a, b set) int { return strings.Compare(a.Name, b.Name) })
	for i, s := range d.sets[1:] {
		if s.Name == d.sets[i].Name {
			return nil, invalidError("two sets have the name %q", s.Name)
		}
	}
	if err := d.setLimits(opts.MaxTTL); err != nil {
		return nil, err
	}
	return d, nil
}

// hasDriver reports whether the set has a driver.
func (s *Set) hasDriver() bool {
	v := reflect.ValueOf(s.Driver)
	return v.IsValid() && (v.Kind() != reflect.Pointer || !v.IsNil())
}

func (s *Set) check() error {
	if !s.hasDriver() {
		return invalidError("set %q has no driver; open one, and check its error", s.Name)
	}
	ok := func(r rune) bool {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("-_.", r)
	}
	if len(s.Name) < 1 || len(s.Name) > 64 || strings.ContainsFunc(s.Name, func(r rune) bool { return !ok(r) }) {
		return invalidError(`name of a set %q: give 1 to 64 letters, digits, "-", "_" and "."`, s.Name)
	}
	return nil
}

func invalidError(format string, args ...any) error {
	return fmt.Errorf("%w: sharding: "+format, append([]any{driver.ErrInvalid}, args...)...)
}

// setLimits computes the limits that all sets share. most is Options.MaxTTL.
func (d *Driver) setLimits(most time.Duration) error {
	l := driver.Limits{MaxTTL: most, MaxTTLHint: "raise the longest TTL with which the sets are opened", Token: true, Order: true, MinHold: true, ChangeTTL: true}
	for _, s := range d.sets {
		m := s.Driver.Limits()
		l.MinTTL = max(l.MinTTL, m.MinTTL)
		if m.MaxTTL != 0 && (l.MaxTTL == 0 || m.MaxTTL < l.MaxTTL) {
			l.MaxTTL, l.MaxTTLHint = m.MaxTTL, m.MaxTTLHint
		}
		l.Granularity = commonMultiple(l.Granularity, m.Granularity)
		l.NoRWLock = cmp.Or(l.NoRWLock, m.NoRWLock)
		l.Token = l.Token && m.Token
		l.Order = l.Order && m.Order
		l.MinHold = l.MinHold && m.MinHold
		l.ChangeTTL = l.ChangeTTL && m.ChangeTTL
		l.Nodes = max(l.Nodes, m.Nodes)
	}
	if g := l.Granularity; g > 0 {
		l.MaxTTL = l.MaxTTL / g * g
		l.MinTTL = (l.MinTTL + g - 1) / g * g
	}
	switch {
	case most < 0:
		return invalidError("MaxTTL %v: give a time above 0", most)
	case l.MaxTTL != 0 && l.MaxTTL < l.MinTTL:
		return invalidError("no TTL suits all sets: the least is %v, the most %v", l.MinTTL, l.MaxTTL)
	}
	d.limits = l
	return nil
}

// commonMultiple returns the least common multiple of two granularities; 0 stands for none.
func commonMultiple(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return a / x * b
}

// Limits implements driver.Driver. It returns the limits that all sets share.
func (d *Driver) Limits() driver.Limits { return d.limits }

// roundTTL returns ttl as every set grants it.
func (d *Driver) roundTTL(ttl time.Duration) time.Duration {
	if g := d.limits.Granularity; g > 0 {
		ttl = (ttl + g - 1) / g * g
	}
	return ttl
}

// Acquire implements driver.Driver.
func (d *Driver) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	s := d.homeOf(req.Key)
	if req.Adoptable {
		if _, err := driverAs[driver.Adopter](s); err != nil {
			return driver.Grant{}, err
		}
	}
	req.TTL = d.roundTTL(req.TTL)
	if report := req.OnObstacle; report != nil {
		req.OnObstacle = func(err error) { report(s.nameSet(err)) }
	}
	g, err := s.Driver.Acquire(ctx, req)
	return d.hideToken(g), s.nameSet(err)
}

// hideToken returns a set's grant, without its token if the sets together promise none.
func (d *Driver) hideToken(g driver.Grant) driver.Grant {
	if !d.limits.Token {
		g.Token = 0
	}
	return g
}

// nameSet adds the set to an error about missing answers.
func (s *set) nameSet(err error) error {
	if errors.Is(err, driver.ErrUnavailable) {
		return fmt.Errorf("set %s: %w", s.Name, err)
	}
	return err
}

// driverAs returns the driver of s as the optional interface T, or ErrUnsupported.
func driverAs[T any](s *set) (T, error) {
	t, ok := s.Driver.(T)
	if !ok {
		return t, fmt.Errorf("%w: the driver of set %s is no %v", driver.ErrUnsupported, s.Name, reflect.TypeFor[T]())
	}
	return t, nil
}

// Release implements driver.Driver.
func (d *Driver) Release(ctx context.Context, g driver.Grant, keep time.Duration) error {
	s := d.homeOf(g.Key)
	return s.nameSet(s.Driver.Release(ctx, g, keep))
}

// runTogether calls fn with 0 to n-1 concurrently, and waits.
func runTogether(n int, fn func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { fn(i) })
	}
	all.Wait()
}

// setRenewals are the grants that one set renews.
type setRenewals struct {
	set    *set
	grants []driver.Grant
	at     []int // indexes of the grants in the caller's list
}

// Renew implements driver.Driver. All sets renew their grants concurrently. A set that does not answer delays
// the results of the others by at most a third of the available time.
func (d *Driver) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	var sets []*setRenewals
	by := make(map[*set]*setRenewals)
	for i, g := range grants {
		s := d.homeOf(g.Key)
		r := by[s]
		if r == nil {
			r = &setRenewals{set: s}
			by[s], sets = r, append(sets, r)
		}
		r.grants, r.at = append(r.grants, g), append(r.at, i)
	}
	if end, ok := ctx.Deadline(); ok && len(sets) > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(end)/3)
		defer cancel()
	}
	out := make([]driver.Renewal, len(grants))
	runTogether(len(sets), func(i int) {
		s := sets[i]
		for k, r := range s.set.Driver.Renew(ctx, s.grants) {
			r.Err = s.set.nameSet(r.Err)
			out[s.at[k]] = r
		}
	})
	return out
}

// Detach implements driver.Adopter.
func (d *Driver) Detach(g driver.Grant) {
	if a, err := driverAs[driver.Adopter](d.homeOf(g.Key)); err == nil {
		a.Detach(g)
	}
}

// Adopt implements driver.Adopter.
func (d *Driver) Adopt(ctx context.Context, g driver.Grant) (driver.Grant, error) {
	s := d.homeOf(g.Key)
	a, err := driverAs[driver.Adopter](s)
	if err != nil {
		return driver.Grant{}, err
	}
	g.TTL = d.roundTTL(g.TTL)
	got, err := a.Adopt(ctx, g)
	return d.hideToken(got), s.nameSet(err)
}

// Close implements driver.Driver. It closes all sets.
func (d *Driver) Close() error {
	errs := make([]error, len(d.sets))
	runTogether(len(d.sets), func(i int) { errs[i] = d.sets[i].Driver.Close() })
	return errors.Join(errs...)
}
