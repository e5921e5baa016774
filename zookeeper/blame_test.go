package zookeeper_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
)

// checkNoBlame fails the test if d reports a member as not up.
func checkNoBlame(t *testing.T, d driver.Driver) {
	t.Helper()
	d.(driver.Notifier).Notify(func(e driver.NodeEvent) {
		if e.State != driver.NodeUp {
			t.Errorf("%s is %s: %v", e.Node, e.State, e.Err)
		}
	})
}

func TestCancelDoesNotMarkMemberDown(t *testing.T) {
	calls := map[string]func(ctx context.Context, d driver.Driver, g driver.Grant) error{
		"inspect": func(ctx context.Context, d driver.Driver, _ driver.Grant) error {
			_, err := d.(driver.Inspector).Inspect(ctx, "k")
			return err
		},
		"queue": func(ctx context.Context, d driver.Driver, _ driver.Grant) error {
			_, err := d.(driver.Queuer).Queue(ctx, "k", 1)
			return err
		},
		"list": func(ctx context.Context, d driver.Driver, _ driver.Grant) error {
			return d.(driver.Lister).List(ctx, "", func(driver.Status) bool { return true })
		},
		"check": func(ctx context.Context, d driver.Driver, g driver.Grant) error {
			return d.(driver.Checker).Check(ctx, g)
		},
		"force": func(ctx context.Context, d driver.Driver, g driver.Grant) error {
			_, err := d.(driver.Forcer).Force(ctx, "k", g.Token, "")
			return err
		},
		"renew": func(ctx context.Context, d driver.Driver, g driver.Grant) error {
			return d.Renew(ctx, []driver.Grant{g})[0].Err
		},
		"acquire": func(ctx context.Context, d driver.Driver, _ driver.Grant) error {
			_, err := d.Acquire(ctx, driver.Request{Key: "other", TTL: longTTL})
			return err
		},
		"try": func(ctx context.Context, d driver.Driver, _ driver.Grant) error {
			_, err := d.Acquire(ctx, driver.Request{Key: "other", TTL: longTTL, NoWait: true})
			return err
		},
		"diagnose": func(ctx context.Context, d driver.Driver, _ driver.Grant) error {
			d.(driver.Doctor).Diagnose(ctx, longTTL)
			return ctx.Err()
		},
	}
	ends := map[string]func(context.Context) (context.Context, context.CancelFunc){
		"cancelled": func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(300*time.Millisecond, cancel)
			return ctx, cancel
		},
		"deadline": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 300*time.Millisecond)
		},
	}
	for name, call := range calls {
		for how, end := range ends {
			t.Run(name+" "+how, func(t *testing.T) {
				runInBubble(t, func(t *testing.T, r *rig) {
					d := r.newDriver()
					g := r.AcquireGrant(d, "k", longTTL)
					checkNoBlame(t, d)
					r.EachLinkOf(d, func(_ int, l *fixture.Link) { l.Slow = 400 * time.Millisecond })
					ctx, cancel := end(r.Context())
					defer cancel()
					err := call(ctx, d, g)
					if !errors.Is(err, ctx.Err()) {
						t.Errorf("error %v, want %v", err, ctx.Err())
					}
					for _, addr := range r.addrs {
						if err != nil && strings.Contains(err.Error(), addr) {
							t.Errorf("error %q names a healthy member", err)
						}
					}
					r.EachLinkOf(d, func(_ int, l *fixture.Link) { l.Slow = 0 })
					time.Sleep(20 * time.Second)
				})
			})
		}
	}
}

// The client reads nothing for ten seconds, during requests, pings and probes. The answers that arrive
// meanwhile count.
func TestSuspendedClientDoesNotMarkMemberDown(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		d := r.newDriver()
		g := r.AcquireGrant(d, "k", longTTL)
		checkNoBlame(t, d)
		for range 20 {
			time.Sleep(4300 * time.Millisecond)
			r.fake.update(func() { r.fake.still = time.Now().Add(10 * time.Second) })
			if n := d.Renew(r.WaitContext(), []driver.Grant{g})[0]; n.Err != nil {
				t.Fatal(n.Err)
			}
		}
		if n := r.Counts(d)["greeting"]; n != 1 {
			t.Errorf("%d connections, want the first one kept", n)
		}
	})
}

// A member that cuts the connection but serves other clients is not down either.
func TestSessionEndDoesNotMarkMemberDown(t *testing.T) {
	for name, strike := range map[string]func(f *fake){
		"session": func(f *fake) {
			f.mu.Lock()
			defer f.mu.Unlock()
			for _, s := range f.sessions {
				f.endSession(s)
			}
		},
		"connection": (*fake).cutConnections,
	} {
		t.Run(name, func(t *testing.T) {
			runInBubble(t, func(t *testing.T, r *rig) {
				d := r.newDriver()
				g := r.AcquireGrant(d, "k", longTTL)
				checkNoBlame(t, d)
				strike(r.fake)
				time.Sleep(time.Second)
				if err := d.Renew(r.WaitContext(), []driver.Grant{g})[0].Err; (name == "session") != errors.Is(err, driver.ErrLost) {
					t.Errorf("Renew() = %v", err)
				}
			})
		})
	}
}

// The member answers the next probe.
func TestCutProbeDoesNotMarkMemberDown(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		d := r.newDriver()
		checkNoBlame(t, d)
		for _, m := range r.fake.members {
			r.fake.update(func() { m.cuts = 1 })
		}
		time.Sleep(30 * time.Second) // longer than the probe interval
		r.fake.update(func() {
			for _, m := range r.fake.members {
				if m.cuts != 0 {
					t.Errorf("no probe asked a member")
				}
			}
		})
	})
}

func TestKilledMemberIsDownAtOnce(t *testing.T) {
	runInBubble(t, func(t *testing.T, r *rig) {
		d := r.newDriver()
		r.AcquireGrant(d, "k", longTTL)
		down := make(chan string, 10)
		d.(driver.Notifier).Notify(func(e driver.NodeEvent) { down <- e.Node + " " + string(e.State) })
		time.Sleep(time.Second) // the survey of all members is over
		begun := time.Now()
		r.fake.update(func() { r.fake.members[2].refuse = true })
		r.fake.cutConnections()
		if got := <-down; got != "z3:2181 down" || time.Since(begun) > time.Second {
			t.Errorf("after %v: %s", time.Since(begun), got)
		}
	})
}
