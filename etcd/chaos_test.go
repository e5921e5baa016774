package etcd_test

import (
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/rig/fixture"
)

var chaosTime = flag.Duration("chaos", 15*time.Second, "how long members fail in TestHoldersTakeTurnsWhileMembersFail")

// trustInterval is the time for which a holder trusted its lease.
type trustInterval struct {
	token      holdfast.Token
	begin, end time.Time
}

// The test kills, freezes and cuts off members, among them the leader, while clients take turns. No two
// clients trust a lease at the same time, and tokens rise from holder to holder.
func TestHoldersTakeTurnsWhileMembersFail(t *testing.T) {
	r := startAlone(t, 3)
	ctx, cancel := context.WithTimeout(t.Context(), *chaosTime)
	defer cancel()
	var mu sync.Mutex
	var spans []trustInterval
	var all sync.WaitGroup
	for range 4 {
		c := r.Client(r.newDriver())
		all.Go(func() {
			for ctx.Err() == nil {
				l, err := c.Acquire(ctx, "k", &holdfast.AcquireOptions{TTL: 3 * time.Second}) // short: leases are to end while members fail, and holders know
				if err != nil {
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("Acquire() = %v", err)
					}
					continue
				}
				s := trustInterval{token: l.Token(), begin: time.Now()}
				select {
				case <-l.Context().Done():
				case <-time.After(rand.N(20 * time.Millisecond)):
				}
				s.end = time.Now()
				if d := l.Deadline(); d.Before(s.end) {
					s.end = d // the holder looked after its deadline, and knows that
				}
				l.Release(ctx)
				mu.Lock()
				spans = append(spans, s)
				mu.Unlock()
			}
		})
	}
	all.Go(func() { r.failMembers(ctx) })
	all.Wait()
	for _, m := range r.cluster.Members {
		m.Resume()
	}
	for i, s := range spans {
		for _, o := range spans[:i] {
			first, second := o, s
			if s.begin.Before(o.begin) {
				first, second = s, o
			}
			if second.begin.Before(first.end) {
				t.Errorf("two holders at once: tokens %d and %d, for %v", first.token, second.token, first.end.Sub(second.begin))
			}
			if second.token <= first.token {
				t.Errorf("token %d after %d", second.token, first.token)
			}
		}
	}
	t.Logf("%d locks", len(spans))
	ctx, cancel = context.WithTimeout(t.Context(), fixture.MaxWait())
	defer cancel()
	opts := &holdfast.AcquireOptions{TTL: 3 * time.Second} // short: leases are to end while members fail, and holders know
	last, err := r.Client(r.newDriver()).Acquire(ctx, "k", opts)
	if err != nil {
		t.Fatalf("once the members are back: %v", err)
	}
	for _, s := range spans {
		if last.Token() <= s.token {
			t.Errorf("token %d after %d", last.Token(), s.token)
		}
	}
}

// failMembers makes one member after another fail until ctx ends.
func (r *rig) failMembers(ctx context.Context) {
	pause := func(d time.Duration) {
		select {
		case <-ctx.Done():
		case <-time.After(d):
		}
	}
	for ctx.Err() == nil {
		i := rand.N(3)
		m := r.cluster.Members[i]
		if leader := r.cluster.Leader(ctx); leader != nil && rand.N(2) == 0 {
			m = leader
		}
		switch rand.N(4) {
		case 0:
			m.Kill()
			pause(rand.N(3 * time.Second))
			if err := m.Restart(r.Context()); err != nil {
				r.Error(err)
			}
		case 1:
			m.Pause()
			pause(rand.N(4 * time.Second))
			m.Resume()
		case 2:
			r.EachLink(func(j int, p *fixture.Link) { p.Hole = j == i })
			pause(rand.N(3 * time.Second))
			r.EachLink(func(_ int, p *fixture.Link) { p.Hole = false })
		case 3:
			r.EachLink(func(_ int, p *fixture.Link) { p.Mute, p.Lose = rand.N(2) == 0, 1+rand.N(5) })
		}
		pause(rand.N(time.Second))
	}
}
