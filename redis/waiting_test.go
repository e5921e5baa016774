package redis_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
)

// maxWaiterRest bounds the pause of a waiter without a wake-up: a second plus an eighth of jitter.
const maxWaiterRest = 1126 * time.Millisecond

// handOversVariable sets the number of hand-overs that TestEveryWakeUpArrives makes with each number of nodes. The
// full count is 10000.
const handOversVariable = "HOLDFAST_TEST_HANDOVERS"

func handOvers(t testing.TB) int {
	n, err := strconv.Atoi(cmp.Or(os.Getenv(handOversVariable), "500"))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// After a lost wake-up, a lock with waiters stays free until the timer of one of them expires.
func TestEveryWakeUpArrives(t *testing.T) {
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprintf("nodes=%d", n), func(t *testing.T) { noWakeUpIsLost(startRig(t, n)) })
	}
}

func noWakeUpIsLost(r *rig) {
	const clients = 8
	want := int64(handOvers(r))
	g := &guardedResource{t: r}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	var ways []route
	var all sync.WaitGroup
	pace := r.watchPace()
	var freed atomic.Int64 // when the last holder began to release
	begin := time.Now()
	var mu sync.Mutex
	var idle []time.Duration
	var refused atomic.Int32
	for range clients {
		way := newRoute(r, r.servers)
		ways = append(ways, way)
		c := r.clientOf(r.openDriver(way.nodes(), nil), nil)
		all.Go(func() {
			for ctx.Err() == nil && g.count.Load() < want {
				l, err := c.Acquire(ctx, "k", nil)
				if err != nil {
					refused.Add(1)                   // its connection was cut at its first request
					time.Sleep(5 * time.Millisecond) // as a caller would before it tries again
					continue
				}
				if f := freed.Load(); f != 0 {
					mu.Lock()
					idle = append(idle, pace()-time.Duration(f))
					mu.Unlock()
				}
				g.hold(l, 0)
				freed.Store(int64(pace()))
				if err := l.Release(ctx); err != nil && !errors.Is(err, holdfast.ErrUnavailable) && ctx.Err() == nil {
					r.Errorf("Release() = %v", err)
				}
			}
		})
	}
	cuts := r.cutSubscriptions(ways, &g.count, want)
	all.Wait()
	r.Logf("%d hand-overs in %v, %d cuts, %d first requests denied", g.count.Load(), time.Since(begin).Round(time.Millisecond), cuts, refused.Load())
	slices.Sort(idle)
	slow := len(idle)
	for slow > 0 && idle[slow-1] > time.Second+100*time.Millisecond {
		slow--
	}
	late := idle[slow:]
	r.Logf("idle between holders: median %v, p99 %v, longest %v; %d over 1.1 s", idle[len(idle)/2], idle[len(idle)*99/100], idle[len(idle)-1], len(late))
	// A longer time means that no waiter asked at all.
	if longest := idle[len(idle)-1]; longest > time.Second+maxWaiterRest+5*time.Second {
		r.Errorf("the lock was idle for %v", longest)
	}
	// A client whose connection was just cut gets a handed-over lock when it has reconnected, within a second:
	// that is its pause after frequent cuts. Without wake-ups, two or three of a hundred take longer.
	if int64(len(late)) > want/100 {
		r.Errorf("%d of %d hand-overs waited for the fallback timer, with %d cuts: %v", len(late), len(idle), cuts, late)
	}
	r.checkCleared()
}

// watchPace returns a clock that stands still while the machine or a server does: a slow hand-over on a busy
// machine must not look like a lost wake-up.
func (r *rig) watchPace() (now func() time.Duration) {
	const beat = 10 * time.Millisecond // time to sleep for half of it and to ask all servers
	var mu sync.Mutex
	var past time.Duration // beats before the present one
	began := time.Now()
	ctx, cancel := context.WithCancel(r.Context())
	var all sync.WaitGroup
	r.Cleanup(func() { cancel(); all.Wait() })
	all.Go(func() {
		for ctx.Err() == nil {
			time.Sleep(beat / 2)
			for _, s := range r.servers {
				s.Do("PING") // any answer will do
			}
			mu.Lock()
			end := time.Now()
			past, began = past+min(end.Sub(began), beat), end
			mu.Unlock()
		}
	})
	return func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return past + min(time.Since(began), beat)
	}
}

// cutSubscriptions breaks subscriptions at random, at the server and on the way, once in about ten hand-overs,
// until count reaches want.
func (r *rig) cutSubscriptions(ways []route, count *atomic.Int64, want int64) (cuts int) {
	for ; count.Load() < want; cuts++ {
		if n := rand.N(len(r.servers)); rand.N(2) == 0 {
			r.do(n, "CLIENT", "KILL", "TYPE", "pubsub")
		} else {
			ways[rand.N(len(ways))][n].Cut()
		}
		next := count.Load() + 1 + rand.N[int64](20)
		for end := time.Now().Add(200 * time.Millisecond); count.Load() < next && time.Now().Before(end); {
			time.Sleep(time.Millisecond) // pause between two looks
		}
	}
	return cuts
}

// Without the permission to publish or to subscribe, waiters poll. The client reports that once.
func TestWithoutPubSubWaitersPoll(t *testing.T) {
	for _, right := range []string{"+publish", "+subscribe"} {
		t.Run(right, func(t *testing.T) {
			less := slices.DeleteFunc(slices.Clone(permissions), func(s string) bool { return s == right })
			r, c, other, events := startLockers(t, less...)
			for range 4 {
				l := r.acquire(other, "k", &holdfast.AcquireOptions{TTL: longTTL})
				time.AfterFunc(150*time.Millisecond, func() { l.Release(context.Background()) })
				r.release(r.acquire(c, "k", &holdfast.AcquireOptions{TTL: longTTL}))
			}
			r.checkCleared()
			told := eventsOfChanges(events)
			if len(told) != 1 || told[0].State != driver.NodePolling || told[0].Err == nil {
				t.Errorf("node events %+v, want one that reports polling", told)
			}
		})
	}
}

// A waiter that receives the lock and does not answer costs the others at most the time of the hand-over and
// their own timer.
func TestStoppedFirstWaiterDelaysOthersBriefly(t *testing.T) {
	for _, c := range []struct {
		name          string
		before, after func(w *waiter) error
	}{
		{"killed", func(w *waiter) error { return w.Process.Kill() }, nil},
		{"stopped", (*waiter).stop, nil},
		{
			"killed after it was handed the lock",
			(*waiter).stop,
			func(w *waiter) error { return w.Process.Kill() },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := startRig(t, 3)
			holder, second := r.newClient(), r.newClient()
			l := r.acquire(holder, "k", nil)
			w := r.startWaiter()
			r.awaitWaiters(holder, "k", 1)
			done := make(chan time.Time)
			go func() {
				l, err := second.Acquire(r.boundedContext(), "k", nil)
				if err != nil {
					t.Errorf("the second waiter: %v", err)
				} else if err := l.Release(context.Background()); err != nil {
					t.Error(err)
				}
				done <- time.Now()
			}()
			r.awaitWaiters(holder, "k", 2)
			switch err := c.before(w); {
			case errors.Is(err, errors.ErrUnsupported):
				t.Skip("this system cannot stop a process")
			case err != nil:
				t.Fatal(err)
			}
			r.release(l)
			released := time.Now()
			if c.after != nil {
				r.noError(c.after(w))
			}
			took := (<-done).Sub(released)
			t.Logf("it cost %v", took)
			// A lock whose next holder does not answer waits for the end of the hand-over, and then for a
			// request of a waiter. The rest is for a busy machine.
			if most := time.Duration(quorum.HandOverTime(int64(10*time.Second))) + maxWaiterRest + 5*time.Second; took > most {
				t.Errorf("took %v, want at most %v", took, most)
			}
			if c.name != "stopped" {
				return
			}
			// A waiter that answers late loses its turn, but continues to wait.
			r.noError(w.resume())
			w.awaitHeld(t, r)
			if _, err := second.TryAcquire(t.Context(), "k", nil); !errors.Is(err, holdfast.ErrHeld) {
				t.Errorf("while another client holds the lock: %v", err)
			}
			w.quit()
			r.release(r.acquire(second, "k", nil))
			r.checkCleared()
		})
	}
}

// startWaiting starts a wait for "k" and returns its result.
func (r *rig) startWaiting(c *holdfast.Client) <-chan error {
	done := r.waitAndRelease(c, "k", &holdfast.AcquireOptions{TTL: longTTL})
	return done
}

func TestWaitSurvivesDeathOfNode(t *testing.T) {
	r := startRig(t, 3)
	holder, c := r.newClient(), r.newClient()
	l := r.acquire(holder, "k", &holdfast.AcquireOptions{TTL: longTTL})
	done := r.startWaiting(c)
	r.awaitWaiters(holder, "k", 1)
	r.servers[0].Kill()
	r.release(l)
	if err := <-done; err != nil {
		t.Errorf("with a dead node: %v", err)
	}

	r.noError(r.servers[0].Restart(t.Context()))
	l = r.acquire(holder, "k", &holdfast.AcquireOptions{TTL: longTTL})
	done = r.startWaiting(c)
	r.awaitWaiters(holder, "k", 1)
	// The node comes back empty. A second empty node could end the lease: the waiter may have acquired the
	// first and given it back before the holder renewed.
	r.noError(r.servers[0].Wipe(t.Context()))
	r.eventually("a renewal", func() bool { return l.Extend(t.Context(), longTTL) == nil })
	r.release(l)
	if err := <-done; err != nil {
		t.Errorf("with a restarted node: %v", err)
	}
	r.checkCleared()
}

func TestWaitSurvivesRestartOfSingleRedis(t *testing.T) {
	r := startWith(t, &redisproc.Options{AppendOnly: "always"})
	holder, c := r.newClient(), r.newClient()
	l := r.acquire(holder, "k", &holdfast.AcquireOptions{TTL: longTTL})
	done := r.startWaiting(c)
	r.awaitWaiters(holder, "k", 1)
	r.servers[0].Kill()
	time.Sleep(300 * time.Millisecond) // renewals and requests fail meanwhile
	r.noError(r.servers[0].Restart(t.Context()))
	r.eventually("the lease stands", func() bool { return l.Check(t.Context()) == nil })
	select {
	case err := <-done:
		t.Fatalf("the wait ended with %v while the lock was held", err)
	default:
	}
	r.release(l)
	if err := <-done; err != nil {
		t.Errorf("the wait: %v", err)
	}
	r.checkCleared()
}

// The lock of a dead holder goes to the first waiter, although another client asks first.
func TestExpiredLockGoesToFirstWaiter(t *testing.T) {
	for _, nodes := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d nodes", nodes), func(t *testing.T) {
			r := startRig(t, nodes)
			gone, newcomer := r.newClient(), r.newClient()
			r.acquire(gone, "k", &holdfast.AcquireOptions{TTL: longTTL})
			order := make(chan int, 5)
			var all sync.WaitGroup
			for i := range cap(order) {
				c := r.newClient()
				all.Go(func() {
					l, err := c.Acquire(r.boundedContext(), "k", &holdfast.AcquireOptions{TTL: longTTL})
					if err != nil {
						t.Errorf("waiter %d: %v", i, err)
						return
					}
					order <- i
					if err := l.Release(context.Background()); err != nil {
						t.Errorf("waiter %d: %v", i, err)
					}
				})
				r.awaitWaiters(newcomer, "k", i+1)
			}
			for i := range nodes {
				r.do(i, "DEL", "lock:k")
			}
			if l, err := newcomer.TryAcquire(t.Context(), "k", nil); err == nil {
				if len(order) < cap(order) {
					t.Error("a newcomer got the lock before the waiters")
				}
				r.release(l)
			} else if !errors.Is(err, holdfast.ErrHeld) {
				t.Error(err)
			}
			all.Wait()
			for i := range cap(order) {
				if got := <-order; got != i {
					t.Errorf("position %d went to waiter %d", i, got)
				}
			}
		})
	}
}
