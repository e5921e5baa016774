package redis_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis"
)

// lossyClient is a client whose connections to the servers lose replies, and another client that inspects the
// result.
type lossyClient struct {
	*rig
	way       route
	c, honest *holdfast.Client
	prefix    string
}

// withLostReplies runs fn for each way of losing one reply of a script: on one node or on all, by a broken or by a
// hung connection.
func withLostReplies(t *testing.T, s *wire.Script, fn func(x *lossyClient, all bool)) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	for _, n := range []int{1, 3} {
		for _, all := range []bool{false, true} {
			for _, hang := range []bool{false, true} {
				if n == 1 && !all {
					continue
				}
				name := fmt.Sprintf("nodes=%d,all=%v,hang=%v", n, all, hang)
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					x := &lossyClient{rig: &rig{T: t, servers: servers[:n]}, prefix: name + "/"}
					opts := &redis.Options{Prefix: x.prefix, DB: n}
					x.way = newRoute(t, x.servers)
					x.c, x.honest = x.clientOf(x.openDriver(x.way.nodes(), opts), nil), x.clientOf(x.openDriver(x.nodes(), opts), nil)
					hit := x.way[:1]
					if all {
						hit = x.way
					}
					for _, p := range hit {
						if hang {
							p.MuteAfter(callsOf(s), 1)
						} else {
							p.CutAfter(callsOf(s), 1)
						}
					}
					fn(x, all)
				})
			}
		}
	}
}

// checkGone checks that the lock is free long before it could expire.
func (x *lossyClient) checkGone() {
	x.Helper()
	x.eventually("the lock is free", func() bool {
		l, err := x.honest.TryAcquire(x.Context(), "k", &holdfast.AcquireOptions{TTL: longTTL})
		if err != nil {
			return false
		}
		x.release(l)
		return true
	})
}

// checkHolds checks that l is the only holder.
func (x *lossyClient) checkHolds(l *holdfast.Lease) {
	x.Helper()
	if other, err := x.honest.TryAcquire(x.Context(), "k", nil); !errors.Is(err, holdfast.ErrHeld) {
		x.Errorf("while another client holds the lock: %v, %v", other, err)
	}
	if st, err := x.honest.Inspect(x.Context(), "k"); err != nil || st.Owner != l.Owner() || st.Token != l.Token() {
		x.Errorf("Inspect() = %+v, %v, want id %s, token %d", st, err, l.Owner(), l.Token())
	}
}

func TestLostAcquireReplyKeepsLockSafe(t *testing.T) {
	withLostReplies(t, wire.Acquire, func(x *lossyClient, all bool) {
		l, err := x.c.TryAcquire(x.boundedContext(), "k", &holdfast.AcquireOptions{TTL: longTTL})
		switch {
		case err == nil && !all:
			x.checkHolds(l)
			x.release(l)
		case !all || !errors.Is(err, holdfast.ErrUnavailable):
			x.Errorf("TryAcquire() = %v, %v", l, err)
		}
		x.checkGone()
		x.eventually("the client works again", func() bool {
			l, err := x.c.TryAcquire(x.Context(), "k", nil)
			if err != nil {
				return false
			}
			x.release(l)
			return true
		})
	})
}

// The nodes' counters differ, so that a commit is needed.
func TestLostCommitReplyKeepsLockSafe(t *testing.T) {
	withLostReplies(t, wire.Commit, func(x *lossyClient, _ bool) {
		for i, s := range x.servers {
			setKey(x.T, s, len(x.servers), wire.ServerFence("lock:k"), fmt.Sprint(1<<51+1000*i))
		}
		l, err := x.c.TryAcquire(x.boundedContext(), "k", &holdfast.AcquireOptions{TTL: longTTL})
		switch {
		case err == nil:
			x.checkHolds(l)
			x.release(l)
		case !errors.Is(err, holdfast.ErrUnavailable):
			x.Errorf("TryAcquire() = %v, %v", l, err)
		}
		x.checkGone()
	})
}

func TestLostRenewReplyKeepsLease(t *testing.T) {
	withLostReplies(t, wire.Renew, func(x *lossyClient, all bool) {
		l := x.acquire(x.c, "k", &holdfast.AcquireOptions{TTL: longTTL, NoRenew: true})
		deadline := l.Deadline()
		err := l.Extend(x.boundedContext(), longTTL)
		switch {
		case !all && err != nil, all && !errors.Is(err, holdfast.ErrUnavailable):
			x.Errorf("Extend() = %v", err)
		case err != nil && l.Deadline().Before(deadline.Add(-longTTL/40)): // the root package allows for larger differences of clocks than the driver
			x.Error("an unconfirmed renewal shortened the lease")
		}
		x.checkHolds(l)
		x.eventually("a renewal", func() bool { return l.Extend(x.Context(), longTTL) == nil })
		if !l.Deadline().After(deadline) || l.Context().Err() != nil {
			x.Errorf("the lease ends at %v, before %v", deadline, l.Deadline())
		}
		x.release(l)
		x.checkGone()
	})
}

func TestLostReleaseReplyFreesLock(t *testing.T) {
	withLostReplies(t, wire.Release, func(x *lossyClient, all bool) {
		l := x.acquire(x.c, "k", &holdfast.AcquireOptions{TTL: longTTL})
		if err := l.Release(x.boundedContext()); !all && err != nil || all && !errors.Is(err, holdfast.ErrUnavailable) {
			x.Errorf("Release() = %v", err)
		}
		x.checkGone()
		if err := l.Release(x.boundedContext()); err != nil && !errors.Is(err, holdfast.ErrUnavailable) {
			x.Errorf("second Release() = %v", err)
		}
	})
}

// setKey sets a key in a database.
func setKey(t testing.TB, s *redisproc.Server, db int, key, value string) {
	t.Helper()
	script := "redis.call('SELECT', ARGV[1]); return redis.call('SET', KEYS[1], ARGV[2])"
	if _, err := s.Do("EVAL", script, "1", key, fmt.Sprint(db), value); err != nil {
		t.Fatal(err)
	}
}

// If the connection of a release ends before its answer, the client sends the release again.
func TestReleaseSurvivesItsConnection(t *testing.T) {
	r := startRig(t, 3)
	way := newRoute(t, r.servers)
	c, honest := r.clientOf(r.openDriver(way.nodes(), nil), nil), r.newClient()
	l := r.acquire(c, "k", &holdfast.AcquireOptions{TTL: longTTL})
	for _, p := range way {
		p.Blackhole(true, true)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := l.Release(ctx); err == nil {
		t.Error("Release succeeded although no node received it")
	}
	for _, p := range way {
		p.Cut()
		p.Blackhole(false, false)
	}
	r.eventually("the lock is free", func() bool {
		l, err := honest.TryAcquire(t.Context(), "k", nil)
		if err != nil {
			return false
		}
		r.release(l)
		return true
	})
	r.checkCleared()
}

// Under all network faults there is one holder, tokens rise, and every key that remains expires with its TTL.
func TestKeysExpireAfterCancelOnBrokenNetwork(t *testing.T) {
	r := startRig(t, 3)
	const clients, ttl = 4, 6 * time.Second
	var ways []route
	g := &guardedResource{t: t}
	stop := make(chan struct{})
	var all sync.WaitGroup
	for range clients {
		way := newRoute(t, r.servers)
		ways = append(ways, way)
		c := r.clientOf(r.openDriver(way.nodes(), nil), nil)
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				ctx, cancel := context.WithTimeout(t.Context(), rand.N(20*time.Millisecond))
				l, err := c.Acquire(ctx, "k", &holdfast.AcquireOptions{TTL: ttl})
				if err == nil {
					g.hold(l, rand.N(2*time.Millisecond))
					l.Release(ctx)
				}
				cancel()
			}
		})
	}
	for begun := time.Now(); time.Since(begun) < 3*time.Second || g.count.Load() == 0 && time.Since(begun) < patience(); {
		p := ways[rand.N(clients)][rand.N(3)]
		switch rand.N(4) {
		case 0:
			p.CutAfter(scriptCalls, 1)
		case 1:
			p.SetDelay(rand.N(3 * time.Millisecond))
		default:
			p.Cut()
		}
		time.Sleep(rand.N(30 * time.Millisecond)) // some requests succeed between two faults
	}
	close(stop)
	all.Wait()
	if g.count.Load() == 0 {
		t.Error("no client acquired the lock")
	}
	t.Logf("%d grants", g.count.Load())
	var left []string
	for end := time.Now().Add(patience()); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		var err error
		if left, err = findLeftovers(r.servers, "lock:"); err == nil && len(left) == 0 {
			return
		}
	}
	for i := range r.servers {
		t.Log(r.do(i, "ZRANGE", "holdfast:queue:{lock:k}", "0", "-1"), r.do(i, "PTTL", "holdfast:queue:{lock:k}"), r.do(i, "GET", "lock:k"))
	}
	t.Errorf("left behind: %q", left)
}

func TestLocksSurviveScriptFlush(t *testing.T) {
	r := startRig(t, 3)
	g := &guardedResource{t: t}
	stop := g.startLoad(r, 4, "k", &holdfast.AcquireOptions{TTL: longTTL})
	for range 60 {
		r.do(rand.N(3), "SCRIPT", "FLUSH")
		time.Sleep(rand.N(20 * time.Millisecond)) // some grants succeed between two flushes
	}
	before := g.count.Load()
	for end := time.Now().Add(patience()); g.count.Load() < before+10 && time.Now().Before(end); {
		time.Sleep(time.Millisecond) // pause between two looks
	}
	stop()
	if after := g.count.Load(); after < before+10 {
		t.Errorf("%d grants after the last flush, %d in total", after-before, after)
	}
	r.checkCleared()
}

// Freeing a lock needs no memory.
func TestFullServerFreesLocks(t *testing.T) {
	r := startRig(t, 1)
	c, other := r.newClient(), r.newClient()
	for key, waits := range map[string]bool{"alone": false, "awaited": true} {
		for what, free := range map[string]func(l *holdfast.Lease) error{
			"release": func(l *holdfast.Lease) error { return l.Release(r.boundedContext()) },
			"force":   func(l *holdfast.Lease) error { return other.ForceRelease(r.boundedContext(), l.Key(), l.Token(), "") },
		} {
			l := r.acquire(c, what+" "+key, &holdfast.AcquireOptions{TTL: longTTL, NoRenew: true})
			done := make(chan error, 1)
			if waits {
				ctx, cancel := context.WithCancel(r.Context())
				defer cancel()
				go func() {
					next, err := other.Acquire(ctx, l.Key(), nil)
					if err == nil {
						err = next.Release(ctx)
					}
					done <- err
				}()
				r.awaitWaiters(c, l.Key(), 1)
			}
			r.do(0, "CONFIG", "SET", "maxmemory", "1")
			if err := free(l); err != nil {
				t.Errorf("%s of a lock that is %s, on a full server: %v", what, key, err)
			}
			r.do(0, "CONFIG", "SET", "maxmemory", "0")
			if waits {
				if err := <-done; err != nil {
					t.Errorf("who waited: %v", err)
				}
			}
		}
	}
	r.checkCleared()
}

// A renewal needs no memory, with and without waiters.
func TestFullServerStillRenewsLeases(t *testing.T) {
	for key, opts := range map[string]*redis.Options{"lock:k": nil, "k": redissonOptions} {
		t.Run(key, func(t *testing.T) {
			r := startRig(t, 1)
			c := r.clientOf(r.openDriver(r.nodes(), opts), nil)
			l := r.acquire(c, "k", &holdfast.AcquireOptions{TTL: longTTL, NoRenew: true})
			waiting, stop := context.WithCancel(t.Context())
			var waiter sync.WaitGroup
			defer waiter.Wait()
			defer stop()
			for _, waiters := range []int{0, 1} {
				if waiters > 0 {
					other := r.clientOf(r.openDriver(r.nodes(), opts), nil)
					waiter.Go(func() {
						if next, err := other.Acquire(waiting, "k", nil); err == nil {
							next.Release(t.Context())
						}
					})
					r.awaitWaiters(c, "k", 1)
				}
				r.fillMemory(0)
				before := time.Duration(waiters+1) * longTTL
				if err := r.retryLate(func() error { return l.Extend(r.Context(), before+longTTL) }); err != nil {
					t.Errorf("with %d waiters: %v", waiters, err)
				}
				if left := r.do(0, "PTTL", key).(int64); left <= before.Milliseconds() {
					t.Errorf("with %d waiters: the lock lasts %d ms, no longer than before", waiters, left)
				}
				r.do(0, "CONFIG", "SET", "maxmemory", "0")
			}
			stop()
			r.release(l)
		})
	}
}

// Until the full node has room, the other nodes keep the lease. They may be full as well.
func TestFullNodeRegainsLostLockLater(t *testing.T) {
	r := startRig(t, 3)
	c := r.newClient()
	l := r.acquire(c, "k", &holdfast.AcquireOptions{TTL: longTTL, NoRenew: true})
	r.do(0, "DEL", "lock:k")
	for i := range r.servers {
		r.fillMemory(i)
	}
	extend := func() error { return l.Extend(r.Context(), longTTL) }
	if err := r.retryLate(extend); err != nil {
		t.Fatalf("three full nodes: %v", err)
	}
	r.eventually("the node is full", func() bool {
		n := c.Nodes()[0]
		return n.State == driver.NodeDegraded && strings.Contains(n.Err.Error(), "OOM")
	})
	if held := r.do(0, "EXISTS", "lock:k"); held != int64(0) {
		t.Error("a full node stored a lock")
	}
	for i := range r.servers {
		r.do(i, "CONFIG", "SET", "maxmemory", "0")
	}
	r.eventually("the node has the lock again", func() bool {
		if err := r.retryLate(extend); err != nil {
			t.Fatalf("after space was freed: %v", err)
		}
		return r.do(0, "EXISTS", "lock:k") == int64(1)
	})
	r.release(l)
}

func TestFullServerHandsOver(t *testing.T) {
	r := startRig(t, 1)
	c, other := r.newClient(), r.newClient()
	l := r.acquire(c, "k", &holdfast.AcquireOptions{TTL: longTTL, NoRenew: true})
	ctx := r.boundedContext()
	granted := make(chan *holdfast.Lease)
	go func() {
		defer close(granted)
		next, err := other.Acquire(ctx, "k", &holdfast.AcquireOptions{TTL: longTTL})
		if err != nil {
			t.Error(err)
			return
		}
		granted <- next
	}()
	r.awaitWaiters(c, "k", 1)
	r.fillMemory(0)
	if err := l.Release(r.Context()); err != nil {
		t.Error(err)
	}
	if r.do(0, "EXISTS", "lock:k") == int64(0) {
		t.Error("a full server freed the lock without a hand-over")
	}
	r.do(0, "CONFIG", "SET", "maxmemory", "0")
	if next := <-granted; next != nil {
		r.release(next)
	}
	r.checkCleared()
}

// An adoption needs memory for its token. It waits until the server has room, and the lease stays with its
// owner.
func TestAdoptionWaitsForRoom(t *testing.T) {
	r := startRig(t, 1)
	giver, c := r.newClient(), r.newClient()
	l := r.acquire(giver, "k", &holdfast.AcquireOptions{TTL: longTTL, Adoptable: true})
	r.noError(l.Detach())
	before := r.do(0, "GET", "lock:k")
	r.fillMemory(0)
	r.do(0, "CONFIG", "RESETSTAT")
	ctx := r.boundedContext()
	adopted := make(chan *holdfast.Lease)
	go func() {
		defer close(adopted)
		m, err := c.Adopt(ctx, "k", l.Owner(), l.Token(), &holdfast.AcquireOptions{TTL: longTTL})
		if err != nil {
			t.Error(err)
			return
		}
		adopted <- m
	}()
	r.eventually("an adoption was rejected", func() bool {
		return strings.Contains(r.do(0, "INFO", "commandstats").(string), "cmdstat_evalsha")
	})
	if after := r.do(0, "GET", "lock:k"); after != before {
		t.Errorf("the lock is %v, and was %v", after, before)
	}
	r.do(0, "CONFIG", "SET", "maxmemory", "0")
	if m := <-adopted; m != nil {
		if m.Token() <= l.Token() {
			t.Errorf("token %d after %d", m.Token(), l.Token())
		}
		r.release(m)
	}
	r.checkCleared()
}

// Waiters get errors that only an operator can fix.
func TestLastingServerErrorEndsWait(t *testing.T) {
	for _, c := range []struct {
		name, text string
		spoil      func(r *rig)
	}{
		{"NOPERM", "command", func(r *rig) { r.do(0, "ACL", "SETUSER", "locker", "-pttl") }},
		{"WRONGTYPE", "WRONGTYPE", func(r *rig) {
			r.do(0, "DEL", "holdfast:queue:{lock:k}")
			r.do(0, "LPUSH", "holdfast:queue:{lock:k}", "no queue")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, holder, waiter, _ := startLockers(t, permissions...)
			r.acquire(holder, "k", &holdfast.AcquireOptions{TTL: longTTL, NoRenew: true})
			done := make(chan error)
			go func() {
				_, err := waiter.Acquire(r.boundedContext(), "k", nil)
				done <- err
			}()
			r.awaitWaiters(holder, "k", 1)
			c.spoil(r)
			err := <-done
			if !errors.Is(err, holdfast.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the wait ended with %v, want ErrUnavailable", err)
			}
			checkMentions(t, err, r.servers[0].Addr(), c.text)
		})
	}
}
