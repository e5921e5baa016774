// Package sharding spreads locks over several sets of servers: a driver made of drivers, of
// any kinds. Each name lives in one set, its home, which every client finds by the same fixed
// hash (see Homes). A set that is down takes its names with it, and no others.
//
// What it does not promise: that clients with different lists of sets exclude one another.
// They do where one of them knows both lists, as in a change of the list, and then only if
// each of its steps is complete before the next one begins:
//
//  1. Clients with the old list alone.
//  2. Clients with both lists (Set.Change). A name whose home changes needs its old and its
//     new home: to be taken, to be renewed, and to be kept. The loss of either is the loss.
//  3. No client with the old list alone is left, and Driver.Wait is over since.
//  4. Clients with the new list alone.
//
// Clients of steps that follow one another have a set in common for every name, and so
// exclude one another. Clients of the first and the last step have none: a client that skips
// a step, or the wait, is not refused, and two clients can then have one lock. Diagnose finds
// locks that such clients hold. Before step 4 a change is undone by going back to step 1.
// Later it is completed first, and then changed back.
//
// Tokens rise throughout a change where the drivers of all sets are driver.Raisers, as those
// of Redis are: a client of both lists has the two homes promise the same token. Tokens of
// other services do not compare, so that New refuses a change unless Options.NoTokens is set.
// docs/protocol.md argues all this (Names that move).
//
// In a change TTLs are 100 ms at least, and waiters need not be served in the order in which they
// came: clients with both lists wait for the old home first, and behind all that wait for the new
// one.
package sharding

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/direct"
)

// Set is one set of servers.
type Set struct {
	// Name decides which names live in the set. All clients must give it the same name, and
	// a set keeps its name when its servers move. 1 to 64 letters, digits, "-", "_" and ".".
	Name string
	// Driver is the way to the set. The Driver of New closes it.
	Driver driver.Driver
	// Change says whether the set is joining or leaving. Zero: neither.
	Change Change
}

// Change is the part of a set in a change of the list.
type Change int

// The parts of a set in a change.
const (
	Stays  Change = iota // in the old list and in the new one
	Joins                // in the new list alone
	Leaves               // in the old list alone
)

// Options are settings of New. A nil *Options is valid.
type Options struct {
	// MaxTTL lowers Limits.MaxTTL, and with it Driver.Wait. A change needs one if no set
	// has a longest TTL of its own. All clients of a change, those before it too, must have the same. Default: the
	// least of the sets.
	MaxTTL time.Duration
	// NoTokens gives up fencing tokens, for a change between sets whose tokens do not compare.
	// AcquireOptions.Fenced and ForceRelease are refused then. A storage that checks tokens has
	// to forget those from before the change (package fence, Forget).
	NoTokens bool
}

// Driver is the driver over the sets. It implements driver.Driver, and those of its optional
// interfaces that the drivers of all sets implement (driver.As).
type Driver struct {
	sets   []set // by name
	change bool
	opts   Options
	limits driver.Limits
	calls  *direct.Calls

	mu    sync.Mutex       // guards what follows
	pairs map[string]*pair // by the owner of the pair, and of each half
}

type set struct {
	Set
	seed uint64
}

// New returns a driver over sets, which it closes with itself. opts may be nil. It does not
// block. After an error no driver was closed.
func New(sets []Set, opts *Options) (*Driver, error) {
	d := &Driver{calls: direct.NewCalls(), pairs: make(map[string]*pair)}
	if opts != nil {
		d.opts = *opts
	}
	for _, s := range sets {
		if err := s.check(); err != nil {
			return nil, err
		}
		d.sets = append(d.sets, set{Set: s, seed: seed(s.Name)})
		d.change = d.change || s.Change != Stays
	}
	slices.SortFunc(d.sets, func(a, b set) int { return strings.Compare(a.Name, b.Name) })
	for i, s := range d.sets[min(1, len(d.sets)):] {
		if s.Name == d.sets[i].Name {
			return nil, invalid("two sets have the name %q", s.Name)
		}
	}
	for list, without := range map[string]Change{"old": Joins, "new": Leaves} {
		if !slices.ContainsFunc(d.sets, func(s set) bool { return s.Change != without }) {
			return nil, invalid("no set is in the %s list: give one at least that does not change", list)
		}
	}
	if err := d.limit(); err != nil {
		return nil, err
	}
	return d, nil
}

func (s *Set) check() error {
	if v := reflect.ValueOf(s.Driver); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return invalid("set %q has no driver; open one, and look at the error first", s.Name)
	}
	ok := func(r rune) bool {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("-_.", r)
	}
	if len(s.Name) < 1 || len(s.Name) > 64 || strings.ContainsFunc(s.Name, func(r rune) bool { return !ok(r) }) {
		return invalid(`name of a set %q: give 1 to 64 letters, digits, "-", "_" and "."`, s.Name)
	}
	if s.Change < Stays || s.Change > Leaves {
		return invalid("set %q: Change %d is none of Stays, Joins and Leaves", s.Name, s.Change)
	}
	return nil
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: sharding: "+format, append([]any{driver.ErrInvalid}, args...)...)
}

// limit computes what all sets can do.
func (d *Driver) limit() error {
	l := driver.Limits{MaxTTL: d.opts.MaxTTL, Token: true, Order: true, MinHold: true, ChangeTTL: true}
	for _, s := range d.sets {
		m := s.Driver.Limits()
		l.MinTTL = max(l.MinTTL, m.MinTTL)
		if m.MaxTTL != 0 && (l.MaxTTL == 0 || m.MaxTTL < l.MaxTTL) {
			l.MaxTTL = m.MaxTTL
		}
		l.Granularity = common(l.Granularity, m.Granularity)
		l.Token = l.Token && m.Token
		l.Order = l.Order && m.Order
		l.MinHold = l.MinHold && m.MinHold
		l.ChangeTTL = l.ChangeTTL && m.ChangeTTL
	}
	switch raises, _ := raisers(d.sets); {
	case d.opts.NoTokens:
		l.Token = false
	case d.change && l.Token && !raises:
		return invalid("the sets of a change give tokens that do not compare: set Options.NoTokens, and do without fencing tokens")
	}
	if d.change {
		l.Order, l.MinTTL = false, max(l.MinTTL, changeLeast)
	}
	if g := l.Granularity; g > 0 {
		l.MaxTTL = l.MaxTTL / g * g
		l.MinTTL = (l.MinTTL + g - 1) / g * g
	}
	switch {
	case d.opts.MaxTTL < 0:
		return invalid("MaxTTL %v: give a time above 0", d.opts.MaxTTL)
	case l.MaxTTL != 0 && l.MaxTTL < l.MinTTL:
		return invalid("no TTL suits all sets: the least is %v, the most %v", l.MinTTL, l.MaxTTL)
	case d.change && l.MaxTTL == 0:
		return invalid("no set has a longest TTL: give Options.MaxTTL, or nobody knows when a change is over")
	}
	d.limits = l
	return nil
}

// changeLeast is the least TTL in a change: two sets are asked, one after the other, for one lock.
const changeLeast = 100 * time.Millisecond

// common is the least time that both are multiples of; 0 is a multiple of none.
func common(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return a / x * b
}

// raisers says whether tokens can be raised in all sets, and then by whom.
func raisers(sets []set) (all bool, by []driver.Raiser) {
	for _, s := range sets {
		r, ok := driver.As[driver.Raiser](s.Driver)
		if !ok {
			return false, nil
		}
		by = append(by, r)
	}
	return true, by
}

// Limits implements driver.Driver: what all sets can do.
func (d *Driver) Limits() driver.Limits { return d.limits }

// Parts implements driver.Composite.
func (d *Driver) Parts() (parts []driver.Driver) {
	for _, s := range d.sets {
		parts = append(parts, s.Driver)
	}
	return parts
}

// Wait is how long to wait after the last client with the old list alone has ended, before
// the first client with the new list alone begins: until no lock of the former stands, and
// until the sets have forgotten the tokens of names that nobody has used since, even where a
// client died between the two homes of a name. It is 0 if the list does not change.
func (d *Driver) Wait() time.Duration {
	most := d.limits.MaxTTL
	wait := most + most/100 + 2*time.Second
	switch _, by := raisers(d.sets); {
	case !d.change:
		return 0
	case d.limits.Token:
		for _, r := range by { // twice, by clocks that are wrong by up to a third of it
			wait = max(wait, 4*r.TokenLife(most))
		}
	}
	return wait
}

// rounded is ttl as every set grants it.
func (d *Driver) rounded(ttl time.Duration) time.Duration {
	if g := d.limits.Granularity; g > 0 {
		ttl = (ttl + g - 1) / g * g
	}
	return ttl
}

// Acquire implements driver.Driver.
func (d *Driver) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	req.TTL = d.rounded(req.TTL)
	a, b := d.homes(req.Key)
	if a != b {
		return d.acquireBoth(ctx, req, a, b)
	}
	if report := req.Obstacle; report != nil {
		req.Obstacle = func(err error) { report(d.named(a, err)) }
	}
	g, err := d.sets[a].Driver.Acquire(ctx, req)
	if err != nil {
		return driver.Grant{}, d.named(a, err)
	}
	if !d.limits.Token {
		g.Token = 0
	}
	return g, nil
}

// named adds to an error which set has no answer.
func (d *Driver) named(i int, err error) error {
	if errors.Is(err, driver.ErrUnavailable) {
		return fmt.Errorf("set %s: %w", d.sets[i].Name, err)
	}
	return err
}

// Release implements driver.Driver.
func (d *Driver) Release(ctx context.Context, g driver.Grant, keep time.Duration) error {
	halves, _ := d.halves(g)
	d.forget(g.Owner)
	errs := make([]error, len(halves))
	together(len(halves), func(i int) {
		h := halves[i]
		errs[i] = d.named(h.set, d.sets[h.set].Driver.Release(ctx, h.grant, keep))
	})
	return errors.Join(errs...)
}

// together calls fn with 0 to n-1 at the same time, and waits.
func together(n int, fn func(i int)) {
	var all sync.WaitGroup
	for i := 1; i < n; i++ {
		all.Go(func() { fn(i) })
	}
	if n > 0 {
		fn(0)
	}
	all.Wait()
}

// renewals is what one set renews.
type renewals struct {
	grants []driver.Grant
	at     [][2]int // grant of the caller, and half of it
}

// Renew implements driver.Driver. Each set renews its own at the same time. One that does not
// answer holds up the others' outcomes for a third of the time that there is.
func (d *Driver) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	halves, any := make([][]half, len(grants)), make([]bool, len(grants))
	sets := make([]renewals, len(d.sets))
	var use []int
	for i, g := range grants {
		halves[i], any[i] = d.halves(g)
		for j, h := range halves[i] {
			s := &sets[h.set]
			if len(s.grants) == 0 {
				use = append(use, h.set)
			}
			s.grants, s.at = append(s.grants, h.grant), append(s.at, [2]int{i, j})
		}
	}
	if end, ok := ctx.Deadline(); ok && len(use) > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(end)/3)
		defer cancel()
	}
	outcomes := make([][2]driver.Renewal, len(grants))
	together(len(use), func(i int) {
		s := &sets[use[i]]
		for k, r := range d.sets[use[i]].Driver.Renew(ctx, s.grants) {
			r.Err = d.named(use[i], r.Err)
			outcomes[s.at[k][0]][s.at[k][1]] = r
		}
	})
	out := make([]driver.Renewal, len(grants))
	for i, g := range grants {
		out[i] = d.settle(g, halves[i], outcomes[i][:len(halves[i])], any[i])
	}
	return out
}

// Close implements driver.Driver. It closes all sets.
func (d *Driver) Close() error {
	if !d.calls.Close() {
		return nil
	}
	errs := make([]error, len(d.sets))
	together(len(d.sets), func(i int) { errs[i] = d.sets[i].Driver.Close() })
	return errors.Join(errs...)
}
