package redis_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redis"
)

// Lua's numbers are doubles, and concatenating one to a string drops digits from 2^47 on.
func TestLargeTokensKeepTheirDigits(t *testing.T) {
	r := startRig(t, 3)
	clients := []*holdfast.Client{r.newClient(), r.newClient()}
	for _, preset := range []int64{1<<52 + 1, 1<<52 + 12345, 1<<53 - 999, 9007199254740001} {
		for _, spread := range []int64{0, 7} { // 7: the nodes differ, so that a commit is needed
			name := fmt.Sprintf("k%d/%d", preset, spread)
			for i := range r.servers {
				r.do(i, "SET", wire.ServerFence("lock:"+name), fmt.Sprint(preset+spread*int64(i)))
			}
			last := holdfast.Token(preset)
			for i := range 3 {
				var l *holdfast.Lease
				attempts := holdfast.Token(0) // each takes a block
				r.eventually("a lease", func() (ok bool) {
					var err error
					attempts++
					l, err = clients[i%2].TryAcquire(t.Context(), name, &holdfast.AcquireOptions{TTL: longTTL})
					return err == nil
				})
				if least := last + 1; l.Token() < least || l.Token() >= least+attempts*(2*holdfast.Token(spread)+quorum.Block) {
					t.Errorf("token %d after %d, which is not in the next block, in %d attempts", l.Token(), last, attempts)
				}
				if err := r.retryLate(func() error { return l.Extend(t.Context(), longTTL) }); err != nil {
					t.Error(err)
				}
				if st, err := clients[(i+1)%2].Inspect(t.Context(), name); err != nil || st.Token != l.Token() {
					t.Errorf("Inspect() = token %d, %v, want %d", st.Token, err, l.Token())
				}
				// A quorum has promised exactly the token of the lease.
				same := 0
				for n := range r.servers {
					if got := r.do(n, "GET", wire.ServerFence("lock:"+name)); got == fmt.Sprint(int64(l.Token())+quorum.Block-1) {
						same++
					}
				}
				if same < 2 {
					t.Errorf("%d nodes promised the end of the block of %d", same, l.Token())
				}
				last = l.Token()
				r.release(l)
			}
		}
	}
	r.checkCleared()
}

// A lost counter starts at the clock, above what was promised before.
func TestTokensRiseAfterCounterIsLost(t *testing.T) {
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprintf("nodes=%d", n), func(t *testing.T) {
			r := startRig(t, n)
			g := &guardedResource{t: t, lossy: true}
			stop := g.startLoad(r, 4, "k", &holdfast.AcquireOptions{TTL: longTTL})
			for i := range 100 {
				name := wire.ServerFence("lock:k")
				switch i % 4 {
				case 0:
					r.do(rand.N(n), "DEL", name)
				case 1:
					r.do(rand.N(n), "PEXPIRE", name, "1")
				default: // on all nodes
					for node := range n {
						r.do(node, "DEL", name)
					}
				}
				time.Sleep(rand.N(10 * time.Millisecond)) // some grants succeed between two losses
			}
			stop()
			t.Logf("%d grants", g.count.Load())
			r.checkCleared()
		})
	}
}

// A server that comes back with an older snapshot has counters below the tokens that it had promised since.
// They live as long as the names are used.
func TestTokensRiseOnServerWithOlderData(t *testing.T) {
	for _, n := range []int{1, 3, 0} {
		name, hidden := fmt.Sprintf("nodes=%d", n), n == 0
		if hidden {
			name, n = "one node whose INFO has no run_id", 1
		}
		t.Run(name, func(t *testing.T) {
			r := startRig(t, n)
			nodes := r.nodes()
			if hidden {
				nodes = r.disguiseServer("INFO", "run_id:", "other_id:").nodes()
			}
			c := r.clientOf(r.openDriver(nodes, nil), nil)
			r.release(r.acquire(c, "k", nil))
			for i := range n {
				r.do(i, "SAVE")
			}
			last := r.acquire(c, "k", nil)
			r.release(last)
			for _, s := range r.servers {
				s.Kill()
			}
			for _, s := range r.servers {
				r.noError(s.Restart(t.Context()))
			}
			for i := range 3 {
				var l *holdfast.Lease
				r.eventually("a lease", func() (ok bool) {
					var err error
					l, err = c.TryAcquire(t.Context(), "k", &holdfast.AcquireOptions{TTL: longTTL})
					return err == nil
				})
				if l.Token() < last.Token()+quorum.Block {
					t.Errorf("grant %d after the restart has token %d, the last before it %d", i, l.Token(), last.Token())
				}
				last = l
				r.release(l)
			}
		})
	}
}

// If the clocks of clients differ by less than a second, the tokens of a new counter, and of a new run of the
// server, begin at the server's clock. A clock that differs from it by a minute is rejected.
func TestSingleServersTokensBeginAtItsClock(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{0, 600 * time.Millisecond, -600 * time.Millisecond, 30 * time.Second, 2 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			s := &hostileServer{turn: 1 << 30, ahead: ahead}
			var clock int64
			h := &fakeNetwork{hosts: map[string]func([]string) []byte{"server": func(words []string) []byte {
				if words[0] == "EVALSHA" && words[1] == wire.Acquire.SHA {
					clock, _ = strconv.ParseInt(words[8], 10, 64)
				}
				return s.answer(words)
			}}}
			d, err := redis.New(t.Context(), []redis.Node{{Addr: "server:6379"}}, &redis.Options{Dial: h.dial})
			if ahead > time.Minute {
				checkMentions(t, err, "differ by more than a minute")
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			if want := "floor=" + fmt.Sprint(time.Now().Add(ahead).UnixMicro()-31); !strings.HasSuffix(s.set, want) {
				t.Errorf("clock %v ahead: marker = %q, want %s", ahead, s.set, want)
			}
			time.Sleep(time.Hour)
			d.Acquire(t.Context(), driver.Request{Key: "busy", TTL: 10 * time.Second, NoWait: true})
			if want := time.Now().Add(ahead).UnixMicro(); clock != want {
				t.Errorf("clock %v ahead: a counter begins at %d, want %d", ahead, clock, want)
			}
		})
	}
}
