package template_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/template"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/locktest"
)

// findLeftovers returns the locks that are held or awaited.
func findLeftovers(d *template.Driver) (names []string, err error) {
	err = d.List(context.Background(), "", func(st driver.Status) bool {
		names = append(names, fmt.Sprintf("%s: %q and %d waiters", st.Key, st.Owner, st.Waiters))
		return true
	})
	return names, err
}

func TestConformance(t *testing.T) {
	t.Parallel()
	locktest.Run(t, locktest.Harness{Bubble: true, Start: func(testing.TB) locktest.Service {
		root := template.New()
		return locktest.Service{
			Open:      func() (driver.Driver, error) { return root.Peer(), nil },
			Leftovers: func() ([]string, error) { return findLeftovers(root) },
		}
	}})
}

func TestConformanceInRealTime(t *testing.T) {
	t.Parallel()
	locktest.Run(t, locktest.Harness{Start: func(testing.TB) locktest.Service {
		root := template.New()
		return locktest.Service{
			Open:      func() (driver.Driver, error) { return root.Peer(), nil },
			Leftovers: func() ([]string, error) { return findLeftovers(root) },
		}
	}})
}

// The service has none of the optional abilities.
func TestConformanceOfPlainService(t *testing.T) {
	t.Parallel()
	locktest.Run(t, locktest.Harness{Bubble: true, Start: func(t testing.TB) locktest.Service { return newPlainService(t).lockService() }})
}

var errDown = errors.New("connection refused")

// plainService is a service with few abilities: TTLs are whole seconds and at least 2 s, and there are no tokens, no
// order, no MinHold, no change of TTL, no nodes and no wake-ups: waiters ask again. It can be down, slow, or
// cut off from one client.
type plainService struct {
	testing.TB
	root *template.Driver

	mu    sync.Mutex // guards the fields below
	down  bool
	delay time.Duration
}

func newPlainService(t testing.TB) *plainService { return &plainService{TB: t, root: template.New()} }

func (p *plainService) newDriver() *plainDriver {
	return &plainDriver{plainService: p, client: p.root.Peer(), closed: make(chan struct{})}
}

func (p *plainService) lockService() locktest.Service {
	stop := func(down bool) { p.mu.Lock(); defer p.mu.Unlock(); p.down = down }
	cut := func(cut bool) func(driver.Driver) {
		return func(d driver.Driver) { p.mu.Lock(); defer p.mu.Unlock(); d.(*plainDriver).cut = cut }
	}
	return locktest.Service{
		Open:       func() (driver.Driver, error) { return p.newDriver(), nil },
		Disconnect: cut(true), Reconnect: cut(false),
		Delay:     func(d time.Duration) { p.mu.Lock(); defer p.mu.Unlock(); p.delay = d },
		StopNodes: func(int) { stop(true) }, StartNodes: func() { stop(false) },
		Leftovers: func() ([]string, error) { return findLeftovers(p.root) },
	}
}

// plainDriver is a driver without the optional interfaces.
type plainDriver struct {
	*plainService
	client *template.Driver
	cut    bool // guarded by plain.mu

	closing sync.Once
	closed  chan struct{}
}

// sendRequest sends one request and waits for its answer. do is its effect on the service.
func (d *plainDriver) sendRequest(ctx context.Context, do func()) error {
	d.mu.Lock()
	down, cut, delay := d.down, d.cut, d.delay
	d.mu.Unlock()
	switch {
	case down:
		return &driver.UnavailableError{Err: errDown}
	case cut:
		<-ctx.Done()
		return &driver.UnavailableError{Err: ctx.Err()}
	}
	do()
	time.Sleep(delay)
	return nil
}

func (d *plainDriver) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	once, report, ttl := req.NoWait, req.OnObstacle, req.TTL.Truncate(time.Second)
	if ttl < req.TTL {
		ttl += time.Second
	}
	req.NoWait, req.OnObstacle, req.TTL = true, nil, ttl
	var last error
	for {
		select {
		case <-d.closed:
			return driver.Grant{}, driver.ErrClosed
		case <-ctx.Done():
			if last == nil {
				return driver.Grant{}, ctx.Err()
			}
			return driver.Grant{}, fmt.Errorf("%w: %w", ctx.Err(), last)
		default:
		}
		var g driver.Grant
		var err error
		patience, cancel := context.WithTimeout(ctx, time.Second)
		if failed := d.sendRequest(patience, func() { g, err = d.client.Acquire(context.WithoutCancel(ctx), req) }); failed != nil {
			err = failed
		}
		cancel()
		if err == nil {
			g.Token = 0
			return g, nil
		}
		if once {
			return driver.Grant{}, err
		}
		if report != nil && (last == nil || errors.Is(last, driver.ErrHeld) != errors.Is(err, driver.ErrHeld)) {
			report(err)
		}
		last = err
		again := time.NewTimer(50 * time.Millisecond)
		select {
		case <-again.C:
		case <-ctx.Done():
		case <-d.closed:
		}
		again.Stop()
	}
}

func (d *plainDriver) Renew(ctx context.Context, grants []driver.Grant) (out []driver.Renewal) {
	for _, g := range grants {
		if g.TTL%time.Second != 0 || g.TTL < 2*time.Second {
			d.Errorf("renewal with TTL %v, which was never granted", g.TTL)
		}
	}
	if err := d.sendRequest(ctx, func() { out = d.client.Renew(ctx, grants) }); err != nil {
		for range grants {
			out = append(out, driver.Renewal{Err: err})
		}
	}
	return out
}

func (d *plainDriver) Release(ctx context.Context, g driver.Grant, keep time.Duration) error {
	if keep != 0 {
		d.Errorf("release with MinHold %v, which the driver does not support", keep)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second) // [Prompt]
	defer cancel()
	return d.sendRequest(ctx, func() { d.client.Release(ctx, g, 0) })
}

func (d *plainDriver) Limits() driver.Limits {
	return driver.Limits{MinTTL: 2 * time.Second, Granularity: time.Second}
}

func (d *plainDriver) Close() error {
	d.closing.Do(func() { close(d.closed) })
	return d.client.Close()
}

// inBubble runs a test in a bubble, with a client of a plain service.
func inBubble(t *testing.T, test func(t *testing.T, p *plainService, c *holdfast.Client)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlainService(t)
		c, err := holdfast.New(p.newDriver(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		test(t, p, c)
	})
}

func TestUnsupportedErrorNamesMissingAbility(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *plainService, c *holdfast.Client) {
		acquire := func(o holdfast.AcquireOptions) error {
			l, err := c.TryAcquire(t.Context(), "k", &o)
			if err == nil {
				l.Release(t.Context())
			}
			return err
		}
		refused := map[string]error{
			"keep a lock":   acquire(holdfast.AcquireOptions{MinHold: time.Minute}),
			"fencing token": acquire(holdfast.AcquireOptions{Fenced: true}),
		}
		l, err := c.Acquire(t.Context(), "k", &holdfast.AcquireOptions{TTL: 2500 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		refused["change the TTL"] = l.Extend(t.Context(), 5*time.Second)
		refused["still held"] = l.Check(t.Context())
		refused["another process"] = l.Detach()
		_, refused["who holds"] = c.Inspect(t.Context(), "k")
		refused["from its holder"] = c.ForceRelease(t.Context(), "k", 1, "")
		for _, err := range c.List(t.Context(), "") {
			refused["list"] = err
		}
		for text, err := range refused {
			if !errors.Is(err, holdfast.ErrUnsupported) || !strings.Contains(err.Error(), text) {
				t.Errorf("%v: want ErrUnsupported with %q", err, text)
			}
		}
		for _, ttl := range []time.Duration{2500 * time.Millisecond, 3 * time.Second} { // as requested, and as granted
			if err := l.Extend(t.Context(), ttl); err != nil {
				t.Errorf("Extend(%v) = %v", ttl, err)
			}
		}
		if err := l.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestDefaultTTLRespectsMinimum(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, err := holdfast.New(highMinTTLDriver{newPlainService(t).newDriver()}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		l, err := c.Acquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		if left := time.Until(l.Deadline()); left < 25*time.Second {
			t.Errorf("default trust %v, want about the minimum of 30 s", left)
		}
	})
}

// All locks of the service have the TTL of one session.
func TestConformanceOfOneTTL(t *testing.T) {
	t.Parallel()
	locktest.Run(t, locktest.Harness{Bubble: true, Start: func(t testing.TB) locktest.Service {
		p := newPlainService(t)
		s := p.lockService()
		s.Open = func() (driver.Driver, error) { return oneTTLDriver{p.newDriver()}, nil }
		s.Disconnect, s.Reconnect = nil, nil // they need a plainDriver
		return s
	}})
}

// oneTTLDriver is a driver with a single TTL.
type oneTTLDriver struct{ *plainDriver }

func (f oneTTLDriver) Limits() driver.Limits {
	l := f.plainDriver.Limits()
	l.MinTTL, l.MaxTTL = 10*time.Second, 10*time.Second
	return l
}

// highMinTTLDriver is a driver with a MinTTL above the default TTL.
type highMinTTLDriver struct{ *plainDriver }

func (s highMinTTLDriver) Limits() driver.Limits {
	l := s.plainDriver.Limits()
	l.MinTTL = 30 * time.Second
	return l
}

func TestGuardRejectsLeaseWithoutToken(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *plainService, c *holdfast.Client) {
		l, err := c.Acquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		if l.Token() != 0 {
			t.Fatalf("token %d from a driver without tokens", l.Token())
		}
		var guard fence.Guard
		err = guard.Do("k", l.Token(), l.Owner(), func() error { t.Error("the guard accepted a write without a token"); return nil })
		if !errors.Is(err, fence.ErrStale) || !strings.Contains(err.Error(), "needs a token above 0") {
			t.Errorf("Do() = %v, want ErrStale that says what is missing", err)
		}
	})
}

// handOverDriver is a driver without tokens whose grants the client may pass on.
type handOverDriver struct{ *plainDriver }

func (p handOverDriver) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	g, err := p.plainDriver.Acquire(ctx, req)
	g.Block = 8
	return g, err
}

func TestGrantWithoutTokensIsPassedOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		passed := 0
		c, err := holdfast.New(handOverDriver{newPlainService(t).newDriver()}, &holdfast.Options{Hooks: holdfast.Hooks{
			Acquired: func(e holdfast.AcquiredEvent) {
				if e.HandOver {
					passed++
				}
				if e.Token != 0 {
					t.Errorf("token %d from a driver without tokens", e.Token)
				}
			},
		}})
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				l, err := c.Acquire(t.Context(), "k", &holdfast.AcquireOptions{TTL: 2500 * time.Millisecond}) // granted for 3 s
				if err != nil {
					t.Error(err)
					return
				}
				synctest.Wait() // the others wait now
				if err := l.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		c.Close()
		if passed != 3 {
			t.Errorf("%d hand-overs, want 3", passed)
		}
	})
}
