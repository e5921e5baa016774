package sharding

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/direct"
)

// This file is about names that move, and so need two sets.
//
// The old home is taken first, by all clients, so that no two hold one half each. A client that
// has the old home and waits for the new one renews the old one. Whatever the new home has granted,
// it promises the token of the old one before it is given up: or it could remember a lower one for
// clients that know nothing of the old home (trace S6).

// half is a lock in one set.
type half struct {
	set   int
	grant driver.Grant
	until time.Time // the trust in it
}

// pair is a lock in both of its homes.
type pair [2]half

// until is the trust in the pair: that in the half that ends first.
func (p *pair) until() time.Time {
	if p[1].until.Before(p[0].until) {
		return p[1].until
	}
	return p[0].until
}

// The owner of a pair is both:<set>:<owner>:<set>:<owner>, with the owners percent-encoded. So
// another client can adopt it, whatever list it has.
const both = "both"

// owner is the owner of the pair.
func (d *Driver) owner(p *pair) string {
	words := []string{both}
	for _, h := range p {
		words = append(words, d.sets[h.set].Name, strings.ReplaceAll(url.QueryEscape(h.grant.Owner), "+", "%20"))
	}
	return strings.Join(words, ":")
}

// ownersOf are the owners by set of the owner of a pair; nil for any other owner.
func ownersOf(owner string) map[string]string {
	words := strings.Split(owner, ":")
	if len(words) != 5 || words[0] != both {
		return nil
	}
	owners := make(map[string]string)
	for i := 1; i < len(words); i += 2 {
		text, err := url.PathUnescape(words[i+1])
		if err != nil {
			return nil
		}
		owners[words[i]] = text
	}
	return owners
}

// halves are the locks that g stands for, each in one of the homes. any says that one of them is the
// lock, and it is not known which: it was taken by a client with another list, and detached.
func (d *Driver) halves(g driver.Grant) (halves []half, any bool) {
	a, b := d.homes(g.Key)
	owners := ownersOf(g.Owner)
	if a == b && owners == nil {
		return []half{{a, g, g.TrustedUntil}}, false
	}
	d.mu.Lock()
	known := d.pairs[g.Owner]
	d.mu.Unlock()
	if known != nil {
		halves = slices.Clone(known[:])
		for i := range halves {
			halves[i].grant.TTL = g.TTL
		}
		return halves, false
	}
	for _, i := range slices.Compact([]int{a, b}) {
		h := half{i, g, g.TrustedUntil}
		if owners != nil {
			h.grant.Owner = owners[d.sets[i].Name]
		}
		if h.grant.Owner != "" {
			halves = append(halves, h)
		}
	}
	return halves, owners == nil
}

func (d *Driver) remember(p *pair) (owner string) {
	owner = d.owner(p)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pairs[owner] = p
	for _, h := range p {
		d.pairs[h.grant.Owner] = p
	}
	return owner
}

func (d *Driver) forget(owner string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.pairs[owner]; p != nil {
		delete(d.pairs, owner)
		for _, h := range p {
			delete(d.pairs, h.grant.Owner)
		}
	}
}

// settle makes of the renewals of halves that of g. What one half has lost the whole has lost,
// and it is trusted for as long as the half that ends first.
func (d *Driver) settle(g driver.Grant, halves []half, got []driver.Renewal, any bool) (r driver.Renewal) {
	if len(halves) == 1 {
		return got[0]
	}
	lost, errs := 0, []error(nil)
	d.mu.Lock()
	known := d.pairs[g.Owner]
	for i, n := range got {
		switch {
		case errors.Is(n.Err, driver.ErrLost):
			lost++
			continue
		case !n.TrustedUntil.IsZero():
			halves[i].until = n.TrustedUntil
		}
		if known != nil {
			known[i].until = halves[i].until
		}
		if r.TrustedUntil.IsZero() || halves[i].until.Before(r.TrustedUntil) {
			r.TrustedUntil = halves[i].until
		}
		r.Waiters += n.Waiters
		r.AtRisk = r.AtRisk || n.AtRisk
		errs = append(errs, n.Err)
	}
	d.mu.Unlock()
	if lost == len(halves) || lost > 0 && !any {
		return driver.Renewal{Err: driver.ErrLost}
	}
	r.Err = errors.Join(errs...)
	return r
}

// errAgain says that what was taken is of no use, and that a wait goes on.
var errAgain = errors.New("one of the two sets of a name that moves has not kept the lock, or not promised the token")

// obstacles tells the caller of one Acquire what stands in its way. Calls for the first set may
// come late, when the second has begun.
type obstacles struct {
	mu   sync.Mutex // held by nothing but note: its calls come one after the other
	wait direct.Wait
}

func (o *obstacles) note(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.wait.Note(err)
}

func (o *obstacles) over(ctx context.Context, c *direct.Calls) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.wait.Over(ctx, c)
}

// begin begins a call that needs two sets. Its context ends with Close, too.
func (d *Driver) begin(ctx context.Context) (alive context.Context, end func(), err error) {
	if err := d.calls.Enter(); err != nil {
		return nil, nil, err
	}
	alive, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(d.calls.Alive, cancel)
	return alive, func() { stop(); cancel(); d.calls.Leave() }, nil
}

// pause is how long a wait rests that has lost the first of its two halves.
const pause = 20 * time.Millisecond

// acquireBoth takes key in the sets a and b.
func (d *Driver) acquireBoth(ctx context.Context, req driver.Request, a, b int) (driver.Grant, error) {
	alive, end, err := d.begin(ctx)
	if err != nil {
		return driver.Grant{}, err
	}
	defer end()
	o := &obstacles{wait: direct.Wait{Tell: req.Obstacle}}
	for {
		g, err := d.round(alive, req, a, b, o)
		switch {
		case err == nil:
			return g, nil
		case d.calls.Alive.Err() != nil:
			return driver.Grant{}, driver.ErrClosed
		case ctx.Err() != nil && !errors.Is(err, driver.ErrHeld) && !errors.Is(err, driver.ErrUnavailable):
			return driver.Grant{}, o.over(ctx, d.calls)
		case ctx.Err() != nil && !errors.Is(err, ctx.Err()):
			return driver.Grant{}, fmt.Errorf("%w: %w", ctx.Err(), err)
		case !errors.Is(err, errAgain):
			return driver.Grant{}, err
		case req.NoWait:
			return driver.Grant{}, &driver.UnavailableError{Err: err}
		}
		o.note(&driver.UnavailableError{Err: err})
		if !direct.Sleep(alive, pause) {
			return driver.Grant{}, o.over(ctx, d.calls)
		}
	}
}

// round takes key in a and then in b. After an error it has neither.
func (d *Driver) round(ctx context.Context, req driver.Request, a, b int, o *obstacles) (driver.Grant, error) {
	tell := req.Obstacle != nil
	take := func(ctx context.Context, i int, renews bool) (driver.Grant, error) {
		req := req
		if req.Renews = renews; tell {
			req.Obstacle = func(err error) { o.note(d.named(i, err)) }
		}
		g, err := d.sets[i].Driver.Acquire(ctx, req)
		return g, d.named(i, err)
	}
	g, err := take(ctx, a, false)
	if err != nil {
		return driver.Grant{}, err
	}
	p := &pair{{a, g, g.TrustedUntil}}
	wait := !req.NoWait
	req.NoWait = true
	err = d.beside(ctx, &p[0], &p[1], b, func(ctx context.Context) (driver.Grant, error) {
		brief, cancel := aside(ctx)
		g, err := take(brief, b, req.Renews)
		if cancel(); err == nil || !wait {
			return g, err
		}
		o.note(err)
		req.NoWait = false
		return take(ctx, b, req.Renews)
	})
	if err != nil {
		return driver.Grant{}, err
	}
	return d.whole(ctx, p, req.Renews)
}

// aside is a context for what is to be done whatever becomes of ctx, and soon.
func aside(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), asideTime)
}

const asideTime = 2 * time.Second

// beside has get take the other half in set b, and renews the first half meanwhile. After an
// error neither is held.
func (d *Driver) beside(ctx context.Context, first, second *half, b int, get func(context.Context) (driver.Grant, error)) error {
	asking, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		g, err := get(asking)
		*second = half{b, g, g.TrustedUntil}
		done <- err
	}()
	every := first.grant.TTL / 3
	timer := time.NewTimer(min(every, time.Until(first.until)))
	defer timer.Stop()
	for {
		select {
		case err := <-done:
			if err != nil {
				d.drop(ctx, *first)
			}
			return err
		case <-timer.C:
			if !d.keep(ctx, first) {
				cancel()
				if <-done == nil {
					d.promise(ctx, first, second)
					d.drop(ctx, *second)
				}
				d.drop(ctx, *first)
				return errAgain
			}
			timer.Reset(min(every, time.Until(first.until)))
		}
	}
}

// keep renews h, and says whether it still stands.
func (d *Driver) keep(ctx context.Context, h *half) bool {
	ctx, cancel := context.WithTimeout(ctx, min(h.grant.TTL/4, time.Until(h.until)))
	defer cancel()
	r := d.sets[h.set].Driver.Renew(ctx, []driver.Grant{h.grant})[0]
	if !r.TrustedUntil.IsZero() {
		h.until = r.TrustedUntil
	}
	return !errors.Is(r.Err, driver.ErrLost) && time.Now().Before(h.until)
}

// drop releases halves. Where ctx is over it waits for no answer.
func (d *Driver) drop(ctx context.Context, halves ...half) {
	ctx, cancel := context.WithTimeout(ctx, asideTime)
	defer cancel()
	together(len(halves), func(i int) { d.sets[halves[i].set].Driver.Release(ctx, halves[i].grant, 0) })
}

// whole makes one grant of two halves that were taken, or drops them. renews is as in
// driver.Request.
func (d *Driver) whole(ctx context.Context, p *pair, renews bool) (g driver.Grant, err error) {
	defer func() {
		if err != nil {
			d.drop(ctx, p[:]...)
		}
	}()
	if err := d.promise(ctx, &p[0], &p[1]); err != nil {
		return driver.Grant{}, err
	}
	if ctx.Err() != nil {
		return driver.Grant{}, ctx.Err()
	}
	g = driver.Grant{Key: p[0].grant.Key, TTL: p[0].grant.TTL, Block: min(p[0].grant.Block, p[1].grant.Block)}
	if d.limits.Token {
		g.Token = p[0].grant.Token
	}
	for i := range p {
		if left := time.Until(p[i].until); left < g.TTL/2 && !renews || left < g.TTL/4 && p[i].grant.TrustedUntil != p[i].until {
			if !d.keep(ctx, &p[i]) {
				return driver.Grant{}, errAgain
			}
		}
	}
	if g.TrustedUntil = p.until(); !time.Now().Before(g.TrustedUntil) {
		return driver.Grant{}, errAgain
	}
	g.Owner = d.remember(p)
	return g, nil
}

// promise has the half with the lower token promise that of the other, whatever becomes of ctx.
func (d *Driver) promise(ctx context.Context, a, b *half) error {
	low, token := a, b.grant.Token
	if b.grant.Token < a.grant.Token {
		low, token = b, a.grant.Token
	}
	if !d.limits.Token || low.grant.Token == token {
		return nil
	}
	ctx, cancel := aside(ctx)
	defer cancel()
	raiser, _ := driver.As[driver.Raiser](d.sets[low.set].Driver) // New has seen to it
	g, err := raiser.Raise(ctx, low.grant, token)
	if err != nil {
		return errAgain
	}
	low.grant, low.until = g, g.TrustedUntil
	return nil
}

// Check implements driver.Checker.
func (d *Driver) Check(ctx context.Context, g driver.Grant) error {
	halves, any := d.halves(g)
	errs := make([]error, len(halves))
	together(len(halves), func(i int) {
		checker, ok := driver.As[driver.Checker](d.sets[halves[i].set].Driver)
		if errs[i] = driver.ErrUnsupported; ok {
			errs[i] = d.named(halves[i].set, checker.Check(ctx, halves[i].grant))
		}
	})
	return verdict(errs, any)
}

// verdict is that on a lock by those on its halves. One that is lost decides, or with any one
// that is not.
func verdict(errs []error, any bool) error {
	lost := func(err error) bool { return errors.Is(err, driver.ErrLost) }
	if rest := slices.DeleteFunc(slices.Clone(errs), lost); any && len(rest) > 0 {
		return errors.Join(rest...)
	}
	if len(errs) == 0 || slices.ContainsFunc(errs, lost) {
		return driver.ErrLost
	}
	return errors.Join(errs...)
}

// Detach implements driver.Adopter.
func (d *Driver) Detach(g driver.Grant) {
	halves, _ := d.halves(g)
	d.forget(g.Owner)
	for _, h := range halves {
		if a, ok := driver.As[driver.Adopter](d.sets[h.set].Driver); ok {
			a.Detach(h.grant)
		}
	}
}

// Adopt implements driver.Adopter. A lease of a client with another list, which has one half
// alone, is adopted there and taken in the other home.
func (d *Driver) Adopt(ctx context.Context, g driver.Grant) (driver.Grant, error) {
	g.TTL = d.rounded(g.TTL)
	halves, any := d.halves(g)
	if len(halves) == 0 {
		return driver.Grant{}, driver.ErrLost
	}
	if a, b := d.homes(g.Key); a == b {
		return d.adoptHalf(ctx, halves[0])
	}
	alive, end, err := d.begin(ctx)
	if err != nil {
		return driver.Grant{}, err
	}
	defer end()
	alive, cancel := context.WithTimeout(alive, g.TTL)
	defer cancel()
	got, err := d.adoptBoth(alive, g, halves, any)
	switch {
	case err == nil, errors.Is(err, driver.ErrLost):
		return got, err
	case d.calls.Alive.Err() != nil:
		return got, driver.ErrClosed
	case ctx.Err() != nil:
		err = errors.Join(ctx.Err(), err)
	}
	return got, &driver.UnavailableError{Err: err}
}

func (d *Driver) adoptBoth(ctx context.Context, g driver.Grant, halves []half, any bool) (driver.Grant, error) {
	first := 0
	had, err := d.adoptHalf(ctx, halves[first])
	if any && errors.Is(err, driver.ErrLost) { // then the other one is the lock
		first = 1
		had, err = d.adoptHalf(ctx, halves[first])
	}
	if err != nil {
		return driver.Grant{}, err
	}
	p := new(pair)
	p[first] = half{halves[first].set, had, had.TrustedUntil}
	other := halves[1-first]
	get := func(ctx context.Context) (driver.Grant, error) { return d.adoptHalf(ctx, other) }
	if any {
		get = func(ctx context.Context) (driver.Grant, error) {
			return d.sets[other.set].Driver.Acquire(ctx, driver.Request{Key: g.Key, TTL: g.TTL})
		}
	}
	if err := d.beside(ctx, &p[first], &p[1-first], other.set, get); err != nil {
		return driver.Grant{}, err
	}
	return d.whole(ctx, p, false)
}

func (d *Driver) adoptHalf(ctx context.Context, h half) (driver.Grant, error) {
	adopter, ok := driver.As[driver.Adopter](d.sets[h.set].Driver)
	if !ok {
		return driver.Grant{}, driver.ErrUnsupported
	}
	g, err := adopter.Adopt(ctx, h.grant)
	if !d.limits.Token {
		g.Token = 0
	}
	return g, d.named(h.set, err)
}
