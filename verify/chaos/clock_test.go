//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig"
	"github.com/holdfast-go/holdfast/postgres"
	"github.com/holdfast-go/holdfast/redis"
)

// clockedServers holds real servers whose clocks the test sets.
type clockedServers struct {
	*testing.T
	nodes  []*redisNode
	client *holdfast.Client
}

func withClocks(t *testing.T, n int) *clockedServers {
	t.Helper()
	rig.Nightly(t, "clocks")
	dir := t.TempDir()
	shim, err := buildShim(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	c := &clockedServers{T: t}
	var addrs []redis.Node
	for i := range n {
		node, err := startNode(t.Context(), filepath.Join(dir, fmt.Sprint(i)), shim, "everysec")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { node.stop() })
		c.nodes = append(c.nodes, node)
		addrs = append(addrs, redis.Node{Addr: node.redis.Addr()})
	}
	driver, err := redis.New(t.Context(), addrs, &redis.Options{NoQuarantine: true})
	if err != nil {
		t.Fatal(err)
	}
	if c.client, err = holdfast.New(driver, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.client.Close() })
	return c
}

// jumpClocks sets the clocks of a number of nodes.
func (c *clockedServers) jumpClocks(nodes int, by time.Duration) {
	c.Helper()
	for _, n := range c.nodes[:nodes] {
		if err := n.clock.shift(by); err != nil {
			c.Fatal(err)
		}
	}
}

// tryLock acquires and releases a lock.
func (c *clockedServers) tryLock(key string) (holdfast.Token, error) {
	lease, err := c.client.TryAcquire(c.Context(), key, nil)
	if err != nil {
		return 0, err
	}
	return lease.Token(), lease.Release(c.Context())
}

func TestWrongClockPreventsNewCounter(t *testing.T) {
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprintf("nodes=%d", n), func(t *testing.T) {
			c, most := withClocks(t, n), n/2+1
			for by, words := range map[time.Duration]string{
				time.Hour: "3600 s ahead of the client's", -time.Hour: "3600 s behind the client's",
			} {
				c.jumpClocks(most, by)
				key := by.String()
				_, err := c.tryLock(key)
				if !errors.Is(err, holdfast.ErrUnavailable) {
					t.Fatalf("%v: %v, want ErrUnavailable", by, err)
				}
				for _, node := range c.nodes[:most] {
					if want := node.redis.Addr(); !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), ": CLOCK") {
						t.Errorf("%q does not contain %q and CLOCK", err, want)
					}
					if left, err := node.lockKeys("*" + key); err != nil || len(left) > 0 {
						t.Errorf("left behind: %q, %v", left, err)
					}
				}
				for _, want := range []string{words, "synchronise the clocks"} {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%q does not contain %q", err, want)
					}
				}
				c.jumpClocks(most, 0)
			}
			var last holdfast.Token
			for i, by := range []time.Duration{5 * time.Second, time.Hour, -time.Hour, 0} { // a few seconds are tolerated, and an existing counter needs no clock
				c.jumpClocks(most, by)
				token, err := c.tryLock("k")
				if err != nil || token <= last {
					t.Errorf("jump %d, to %v: token %d after %d, %v", i, by, token, last, err)
				}
				last = token
			}
		})
	}
}

func TestLeaseSurvivesClockJumpOfMinority(t *testing.T) {
	for jumped := 1; jumped <= 2; jumped++ {
		t.Run(fmt.Sprintf("%d of 3", jumped), func(t *testing.T) {
			const ttl = 5 * time.Second
			c := withClocks(t, 3)
			lease, err := c.client.Acquire(t.Context(), "k", &holdfast.AcquireOptions{TTL: ttl})
			if err != nil {
				t.Fatal(err)
			}
			c.jumpClocks(jumped, time.Hour)
			if err := lease.Extend(t.Context(), ttl); errors.Is(err, holdfast.ErrLost) != (jumped > 1) {
				t.Errorf("a renewal after %d of 3 clocks jumped: %v", jumped, err)
			}
			c.jumpClocks(jumped, 0)
			time.Sleep(ttl) // without renewals the lease would be over
			if err := lease.Check(t.Context()); errors.Is(err, holdfast.ErrLost) != (jumped > 1) {
				t.Errorf("after %d of 3 clocks jumped: %v", jumped, err)
			}
			if err := lease.Release(t.Context()); errors.Is(err, holdfast.ErrLost) != (jumped > 1) {
				t.Error(err)
			}
			if next, err := c.tryLock("k"); err != nil || next <= lease.Token() {
				t.Errorf("token %d after %d, %v", next, lease.Token(), err)
			}
		})
	}
}

// A clock set forward ends a lease that its holder trusts. A clock set back prolongs an expired lease. Tokens
// still rise, and FenceTx relies on the row.
func TestDatabaseClockEndsLeasesAndKeepsTokensRising(t *testing.T) {
	rig.Nightly(t, "clocks")
	s := new(postgresSite)
	t.Cleanup(func() { s.stop() })
	if err := s.start(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	jump := func(by time.Duration) {
		t.Helper()
		if err := s.only[0].clock.shift(by); err != nil {
			t.Fatal(err)
		}
	}
	var last int64
	try := func(ttl time.Duration) (driver.Grant, error) {
		t.Helper()
		g, err := s.direct.Acquire(t.Context(), driver.Request{Key: "k", TTL: ttl, NoWait: true})
		if err == nil && g.Token <= last {
			t.Errorf("token %d after %d", g.Token, last)
		}
		last = max(last, g.Token)
		return g, err
	}
	pool, err := pgxpool.New(t.Context(), s.server.DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	fenced := func(g driver.Grant) error {
		return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return postgres.FenceTx(t.Context(), tx, asLease{g, t.Context()}) })
	}

	const long = 20 * time.Second // long enough for slow answers
	first, err := try(long)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := try(long); !errors.Is(err, holdfast.ErrHeld) {
		t.Errorf("beside the holder: %v, want ErrHeld", err)
	}
	if err := fenced(first); err != nil {
		t.Error(err)
	}
	jump(time.Minute)
	second, err := try(2 * time.Second)
	if err != nil || time.Until(first.TrustedUntil) <= 0 {
		t.Fatalf("a minute ahead: %v, while the first holder trusts its lease for %v", err, time.Until(first.TrustedUntil))
	}
	if err := fenced(first); !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("FenceTx() for the first holder: %v, want ErrLost", err)
	}
	jump(0)
	time.Sleep(time.Until(second.TrustedUntil))
	if _, err := try(long); !errors.Is(err, holdfast.ErrHeld) {
		t.Errorf("clock set back by a minute, after the lease expired: %v, want ErrHeld", err)
	}
	jump(2 * time.Minute)
	third, err := try(long)
	if err != nil {
		t.Fatal(err)
	}
	jump(-time.Hour)
	if err := s.direct.Release(t.Context(), third, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := try(long); err != nil { // its token must be above the last one, though the clock is an hour behind
		t.Error(err)
	}
}

// asLease makes a grant a lease.
type asLease struct {
	driver.Grant
	ctx context.Context
}

func (l asLease) Key() string              { return l.Grant.Key }
func (l asLease) Owner() string            { return l.Grant.Owner }
func (l asLease) Context() context.Context { return l.ctx }
