package holdfast_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/memory"
)

// eventPairs checks that each start event has an end event under the same key: the gauges of waits and leases
// count them up and down.
type eventPairs struct {
	t       *testing.T
	mu      sync.Mutex
	waiting map[string]int
	held    map[string]string // key by owner
	over    map[string]bool   // owners whose leases have ended
}

func watchPairs(t *testing.T) *eventPairs {
	return &eventPairs{t: t, waiting: make(map[string]int), held: make(map[string]string), over: make(map[string]bool)}
}

func (p *eventPairs) noteEnd(key, owner string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if began := p.held[owner]; began != key {
		p.t.Errorf("a lease on %q ended that was acquired on %q", key, began)
	}
	delete(p.held, owner)
	p.over[owner] = true
}

func (p *eventPairs) noteAlive(what, key, owner string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over[owner] {
		p.t.Errorf("a lease on %q has the event %s after its end", key, what)
	}
	if began := p.held[owner]; began != key {
		p.t.Errorf("a lease on %q has the event %s and was acquired on %q", key, what, began)
	}
}

func (p *eventPairs) noteAnswer(key string, told bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if told {
		p.waiting[key]--
	}
}

func (p *eventPairs) hooks() holdfast.Hooks {
	return holdfast.Hooks{
		Waiting: func(e holdfast.WaitingEvent) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.waiting[e.Key]++
		},
		Acquired: func(e holdfast.AcquiredEvent) {
			p.noteAnswer(e.Key, e.WaitReported)
			p.mu.Lock()
			defer p.mu.Unlock()
			p.held[e.Owner] = e.Key
		},
		Failed:   func(e holdfast.FailedEvent) { p.noteAnswer(e.Key, e.WaitReported) },
		Renewed:  func(e holdfast.RenewedEvent) { p.noteAlive("renewed", e.Key, e.Owner) },
		AtRisk:   func(e holdfast.AtRiskEvent) { p.noteAlive("at risk", e.Key, e.Owner) },
		Lost:     func(e holdfast.LostEvent) { p.noteEnd(e.Key, e.Owner) },
		Released: func(e holdfast.ReleasedEvent) { p.noteEnd(e.Key, e.Owner) },
	}
}

// wantNone checks that every wait and every lease has ended.
func (p *eventPairs) wantNone() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, n := range p.waiting {
		if n != 0 {
			p.t.Errorf("the metric counts %d waiters for %q, want 0", n, key)
		}
	}
	for owner, key := range p.held {
		p.t.Errorf("the metric counts %s as holder of %q, want none", owner, key)
	}
}

func TestEventsOfOneCallerShareOneKey(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for name, opts := range map[string]func(*rand.Rand) *claim{
		"lock": func(r *rand.Rand) *claim {
			return &claim{AcquireOptions: holdfast.AcquireOptions{Note: fmt.Sprint(r.IntN(2))}}
		},
		"slots":   func(r *rand.Rand) *claim { return differingClaim(3, r.IntN(6)) },
		"readers": func(r *rand.Rand) *claim { return &claim{readers: 3, shared: r.IntN(3) > 0} },
	} {
		t.Run(name, func(t *testing.T) {
			p := watchPairs(t)
			inBubbleWith(t, &holdfast.Options{Hooks: p.hooks()}, func(t *testing.T, b *bench) {
				other := b.newPeer()
				for i := range 5 {
					b.drv.Node(i).Delay(time.Duration(i) * time.Millisecond)
				}
				var all sync.WaitGroup
				for i := range 40 {
					r := rand.New(rand.NewPCG(seed, uint64(i)))
					all.Go(func() {
						for range 6 {
							p.acquireAndEnd(b, other, r, opts(r))
						}
					})
				}
				all.Wait()
				time.Sleep(time.Minute)
				b.client.Close()
				p.wantNone()
			})
		})
	}
}

// acquireAndEnd acquires k in one of the possible ways and ends the lease in one of the possible ways, both
// drawn from r.
func (p *eventPairs) acquireAndEnd(b *bench, other *holdfast.Client, r *rand.Rand, opts *claim) {
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Duration(r.IntN(20000))*time.Millisecond)
	defer cancel()
	opts.TTL = time.Second
	opts.Wait = time.Duration(r.IntN(20000)) * time.Millisecond
	opts.MaxWaiters = r.IntN(2) * 30
	opts.RenewEvery = time.Duration(r.IntN(2)) * 10 * time.Millisecond
	if opts.NoRenew {
		opts.RenewEvery = 0
	}
	ask := acquireAs
	if r.IntN(5) == 0 {
		ask = tryAcquire
	}
	l, err := ask(ctx, b.client, "k", opts)
	if err != nil {
		return
	}
	time.Sleep(time.Duration(r.IntN(500)) * time.Millisecond)
	if r.IntN(10) == 0 {
		other.ForceRelease(ctx, l.Key(), l.Token(), "test")
		time.Sleep(time.Duration(r.IntN(500)) * time.Millisecond)
	}
	if r.IntN(5) == 0 && opts.readers > 0 && !opts.shared {
		if reader, err := l.Downgrade(ctx); err == nil {
			l = reader
			time.Sleep(time.Duration(r.IntN(500)) * time.Millisecond)
		}
	}
	l.Release(context.Background())
}

// unrenewedKeysDriver is a driver that fails the renewals of some keys.
type unrenewedKeysDriver struct {
	*memory.Driver
	keys atomic.Pointer[[]string]
}

func (d *unrenewedKeysDriver) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	out := d.Driver.Renew(ctx, grants)
	for i, g := range grants {
		if slices.Contains(*d.keys.Load(), g.Key) {
			out[i] = driver.Renewal{Err: &driver.UnavailableError{Err: errors.New("no answer about " + g.Key)}}
		}
	}
	return out
}

func TestWriterReportsPlacesThatAreNotRenewed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		drv := &unrenewedKeysDriver{Driver: memory.New(1)}
		drv.keys.Store(&[]string{})
		var said bytes.Buffer
		var rounds []holdfast.RenewedEvent
		var lost []holdfast.LostEvent
		c := openClient(t, drv, &holdfast.Options{
			Logger: slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelDebug})),
			Hooks: holdfast.Hooks{
				Renewed: func(e holdfast.RenewedEvent) { rounds = append(rounds, e) },
				Lost:    func(e holdfast.LostEvent) { lost = append(lost, e) },
			},
		})
		l, err := acquireAs(t.Context(), c, "k", writerClaim(8))
		if err != nil {
			t.Fatal(err)
		}
		look := func(d time.Duration) []holdfast.RenewedEvent {
			time.Sleep(d)
			awaitHooks()
			got := rounds
			rounds = nil
			return got
		}
		look(4 * time.Second)
		drv.keys.Store(&[]string{"k#1", "k#2"})
		failed := look(7 * time.Second)
		if len(failed) < 3 || len(failed) > 8 {
			t.Errorf("%d events in 7 s, want one for each failed round", len(failed))
		}
		for _, e := range failed {
			if e.Key != "k" || e.Owner != l.Owner() || e.Token != l.Token() || !errors.Is(e.Err, holdfast.ErrUnavailable) || !strings.Contains(e.Err.Error(), `"k#`) {
				t.Errorf("the event is %+v", e)
			}
		}
		if len(failed) > 0 && !failed[len(failed)-1].Deadline.Equal(l.Deadline()) {
			t.Errorf("event deadline %v, lease deadline %v", failed[len(failed)-1].Deadline, l.Deadline())
		}
		if n := strings.Count(said.String(), "renewal failed"); n != len(failed) {
			t.Errorf("%d log lines for %d failed rounds: %s", n, len(failed), said.String())
		}
		drv.keys.Store(&[]string{"k#2"})
		for _, e := range look(time.Second) {
			if e.Err == nil {
				t.Error("a writer was reported as renewed though one place was not")
			}
		}
		drv.keys.Store(&[]string{})
		if again := look(time.Second); len(again) == 0 || again[len(again)-1].Err != nil || !again[len(again)-1].Deadline.Equal(l.Deadline()) {
			t.Errorf("after the last place recovered: %+v, want a success", again)
		}
		drv.keys.Store(&[]string{"k#1"})
		look(20 * time.Second)
		if len(lost) != 1 || lost[0].Key != "k" || lost[0].Owner != l.Owner() || !errors.Is(lost[0].Reason, holdfast.ErrUnavailable) {
			t.Errorf("lost %+v", lost)
		}
	})
}

func TestHandOverKeepsAtRisk(t *testing.T) {
	risky := make(map[string]bool)
	hooks := holdfast.Hooks{AtRisk: func(e holdfast.AtRiskEvent) { risky[e.Owner] = e.AtRisk }}
	inBubbleWith(t, &holdfast.Options{Hooks: hooks}, func(t *testing.T, b *bench) {
		b.drv.Node(0).Stop()
		b.drv.Node(1).Stop()
		opts := &holdfast.AcquireOptions{RenewEvery: 10 * time.Millisecond}
		first := b.acquire(b.client, "k", opts)
		next := make(chan *holdfast.Lease)
		go func() { next <- b.acquire(b.client, "k", opts) }()
		time.Sleep(60 * time.Millisecond)
		b.release(first)
		second := <-next
		time.Sleep(60 * time.Millisecond)
		awaitHooks()
		if !strings.HasPrefix(second.Owner(), first.Owner()+"+") || !risky[first.Owner()] || !risky[second.Owner()] {
			t.Errorf("%s handed over to %s; at risk: %v", first.Owner(), second.Owner(), risky)
		}
		b.release(second)
	})
}
