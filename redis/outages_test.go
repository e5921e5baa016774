package redis_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis"
)

var (
	leases    = flag.Int("leases", 1, "how many leases have to outlive outages, each kind for itself")
	adoptions = flag.Int("adoptions", 40, "how many leases are adopted by two clients at once")
)

// Each of three servers is down for longer than the TTL, one after the other, while a rival waits for the lock
// and acquires it where it is free. After each outage the holder has all servers again.
func TestLeaseSurvivesOutagesInTurn(t *testing.T) {
	if testing.Short() {
		t.Skip("-short leaves out half a minute of outages")
	}
	const ttl = 6 * time.Second
	for name, outage := range map[string]func(r *rig, i int) error{
		"paused": func(r *rig, i int) error {
			err := r.servers[i].Pause()
			time.Sleep(ttl + time.Second) // the outage
			return errors.Join(err, r.servers[i].Resume())
		},
		"restarted empty": func(r *rig, i int) error { return r.servers[i].Wipe(r.Context()) },
	} {
		for k := range *leases {
			t.Run(fmt.Sprintf("%s/%d", name, k+1), func(t *testing.T) {
				r := startRig(t, 3)
				opts := redis.Options{MaxTTL: ttl, Timeout: busyTimeout()}
				r.openDriver(r.nodes(), &opts).Close() // lets the new servers vote
				client := func() *holdfast.Client {
					d := newDriver(r, r.nodes(), &opts)
					return r.clientOf(d, nil)
				}
				holder, rival := client(), client()
				l := r.acquire(holder, "k", &holdfast.AcquireOptions{TTL: ttl})
				next := make(chan *holdfast.Lease, 1)
				go func() {
					m, err := rival.Acquire(r.Context(), "k", &holdfast.AcquireOptions{TTL: ttl})
					if err != nil && r.Context().Err() == nil {
						r.Errorf("the rival: %v", err)
					}
					next <- m
				}()
				r.eventually("the rival waits", func() bool {
					st, err := holder.Inspect(r.Context(), "k")
					return err == nil && st.Waiters == 1
				})
				everywhere := func(when string) {
					r.Helper()
					r.eventually("the lease is on all nodes "+when, func() bool {
						st, err := holder.Inspect(r.Context(), "k")
						if err := context.Cause(l.Context()); err != nil {
							r.Fatalf("lost before the lease was on all nodes %s: %v; %+v", when, err, st.Nodes)
						}
						on := 0
						for _, n := range st.Nodes {
							if n.Owner == l.Owner() {
								on++
							}
						}
						return err == nil && on == 3
					})
				}
				everywhere("at first") // a lease may begin on two
				for i := range r.servers {
					r.noError(outage(r, i))
					everywhere(fmt.Sprintf("again after the outage of the %d.", i+1))
				}
				r.release(l)
				if m := <-next; m != nil {
					if m.Token() <= l.Token() {
						r.Errorf("token %d after %d", m.Token(), l.Token())
					}
					r.release(m)
				}
				r.checkCleared()
			})
		}
	}
}

// Two clients adopt each lease at the same time, while replies to both are lost.
func TestOneOfTwoAdoptersGetsLease(t *testing.T) {
	const ttl = 6 * time.Second
	r := startRig(t, 3)
	giver := r.newClient()
	routes := []route{newRoute(t, r.servers), newRoute(t, r.servers)}
	var adopters []*holdfast.Client
	for _, way := range routes {
		adopters = append(adopters, r.clientOf(r.openDriver(way.nodes(), nil), nil))
	}
	adopted, nobody := 0, 0
	for round := range *adoptions {
		key := strconv.Itoa(round)
		l := r.acquire(giver, key, &holdfast.AcquireOptions{TTL: ttl, Adoptable: true})
		if err := l.Detach(); err != nil {
			continue // the lease has expired on this busy machine
		}
		for _, way := range routes {
			for range rand.N(3) {
				way[rand.N(len(way))].CutAfter(callsOf([]*wire.Script{wire.Adopt, wire.Adopt, wire.Commit}[rand.N(3)]), 1)
			}
		}
		won := make([]*holdfast.Lease, len(adopters))
		var all sync.WaitGroup
		for i, c := range adopters {
			all.Go(func() {
				time.Sleep(rand.N(2 * time.Millisecond)) // either may be first
				m, err := c.Adopt(r.Context(), key, l.Owner(), l.Token(), &holdfast.AcquireOptions{TTL: ttl})
				switch {
				case err == nil:
					won[i] = m
				case !errors.Is(err, holdfast.ErrLost) && !errors.Is(err, holdfast.ErrUnavailable):
					r.Errorf("round %d: %v", round, err)
				}
			})
		}
		all.Wait()
		r.checkExpiresWithin(ttl, key)
		switch {
		case won[0] != nil && won[1] != nil:
			r.Fatalf("round %d: two holders, with tokens %d and %d after %d", round, won[0].Token(), won[1].Token(), l.Token())
		case won[0] == nil && won[1] == nil:
			nobody++
			continue
		}
		adopted++
		for _, m := range won {
			if m == nil {
				continue
			}
			if m.Token() <= l.Token() {
				r.Errorf("round %d: token %d after %d", round, m.Token(), l.Token())
			}
			if err := m.Release(r.Context()); err != nil && !errors.Is(err, holdfast.ErrUnavailable) {
				r.Errorf("round %d: %v", round, err)
			}
		}
	}
	t.Logf("%d leases: %d adopted, %d lost between the two", *adoptions, adopted, nobody)
	if adopted == 0 {
		t.Error("no lease was adopted")
	}
	r.checkCleared()
}

// checkExpiresWithin checks that every lock on key expires within ttl.
func (r *rig) checkExpiresWithin(ttl time.Duration, key string) {
	r.Helper()
	for i := range r.servers {
		left, _ := r.do(i, "PTTL", "lock:"+key).(int64)
		if left == -1 || left > ttl.Milliseconds() {
			r.Errorf("%s lasts for %d ms on node %d", key, left, i+1)
		}
	}
}
