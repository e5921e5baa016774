package redlock_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/redlock"
)

// Lua's numbers are doubles, and joining one to a string drops digits from 2^47 on.
func TestLargeTokensKeepTheirDigits(t *testing.T) {
	r := start(t, 3)
	clients := []*holdfast.Client{r.client(), r.client()}
	for _, preset := range []int64{1<<52 + 1, 1<<52 + 12345, 1<<53 - 999, 9007199254740001} {
		for _, spread := range []int64{0, 7} { // 7: the nodes differ, so that a commit is needed
			name := fmt.Sprintf("k%d/%d", preset, spread)
			for i := range r.servers {
				r.do(i, "SET", fence("lock:"+name), fmt.Sprint(preset+spread*int64(i)))
			}
			last := holdfast.Token(preset)
			for i := range 3 {
				var l *holdfast.Lease
				attempts := holdfast.Token(0) // each takes a block
				r.eventually("a lease", func() (ok bool) {
					var err error
					attempts++
					l, err = clients[i%2].TryAcquire(t.Context(), name, &holdfast.AcquireOptions{TTL: long})
					return err == nil
				})
				if least := last + 1; l.Token() < least || l.Token() >= least+attempts*(2*holdfast.Token(spread)+quorum.Block) {
					t.Errorf("token %d after %d, which is not the next block, in %d attempts", l.Token(), last, attempts)
				}
				if err := r.insist(func() error { return l.Extend(t.Context(), long) }); err != nil {
					t.Error(err)
				}
				if st, err := clients[(i+1)%2].Inspect(t.Context(), name); err != nil || st.Token != l.Token() {
					t.Errorf("Inspect() = token %d, %v, want %d", st.Token, err, l.Token())
				}
				// A quorum promises up to the last digit what the lease has.
				same := 0
				for n := range r.servers {
					if got := r.do(n, "GET", fence("lock:"+name)); got == fmt.Sprint(int64(l.Token())+quorum.Block-1) {
						same++
					}
				}
				if same < 2 {
					t.Errorf("%d nodes have promised the end of the block of %d", same, l.Token())
				}
				last = l.Token()
				r.release(l)
			}
		}
	}
	r.cleared()
}

// A counter that is gone starts at the clock, above what was promised before.
func TestACounterLostUnderLoadLetsNoTokenFall(t *testing.T) {
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprintf("nodes=%d", n), func(t *testing.T) {
			r := start(t, n)
			g := &guarded{t: t, lossy: true}
			stop := g.load(r, 4, "k", &holdfast.AcquireOptions{TTL: long})
			for i := range 100 {
				name := fence("lock:k")
				switch i % 4 {
				case 0:
					r.do(rand.N(n), "DEL", name)
				case 1:
					r.do(rand.N(n), "PEXPIRE", name, "1")
				default: // everywhere
					for node := range n {
						r.do(node, "DEL", name)
					}
				}
				time.Sleep(rand.N(10 * time.Millisecond)) // grants go on between two losses
			}
			stop()
			t.Logf("%d grants", g.count.Load())
			r.cleared()
		})
	}
}

// Whatever a client asks of a server, it keeps the counter for the life that the set has.
func TestCounterLifeIsHowLongAServerKeepsTheCounter(t *testing.T) {
	for _, n := range []int{1, 3} {
		for life, opts := range map[time.Duration]*redlock.Options{
			150 * time.Second: {MaxTTL: time.Minute}, // twice a TTL would be longer
			10 * time.Minute:  {MaxTTL: time.Minute, CounterLife: 10 * time.Minute},
		} {
			t.Run(fmt.Sprintf("%d nodes, %v", n, life), func(t *testing.T) {
				r := start(t, n)
				c := r.clientOf(r.driver(r.nodes(), opts), nil)
				kept := func(after string) {
					for i := range r.servers {
						r.eventually(fmt.Sprintf("a counter that node %d keeps for %v after %s", i+1, life, after), func() bool {
							left := time.Duration(r.do(i, "PTTL", fence("lock:k")).(int64)) * time.Millisecond
							return left <= life && left > life-30*time.Second
						})
						r.do(i, "PEXPIRE", fence("lock:k"), "100000")
					}
				}
				l := r.acquire(c, "k", nil)
				kept("the lock was taken")
				if err := l.Extend(t.Context(), long); err != nil {
					t.Fatal(err)
				}
				kept("it was renewed")
				if err := c.ForceRelease(t.Context(), "k", l.Token(), ""); err != nil {
					t.Fatal(err)
				}
				kept("it was taken away")
			})
		}
	}
}

// Without that the counter ends while a lock stands that was reclaimed and is renewed seldom, and the next one may begin lower.
func TestAReclaimProlongsTheCounter(t *testing.T) {
	r := start(t, 1)
	r.do(0, "SET", fence("lock:k"), "1000", "PX", "5000")
	if kept := r.do(0, "EVAL", wire.Reclaim.Text, "3", "lock:k", fence("lock:k"), "holdfast:queue:{lock:k}", "a.1", "40000", "1000", "150000"); kept != int64(0) {
		t.Fatalf("reclaim answers %v, want that nobody waits", kept)
	}
	if left := r.do(0, "PTTL", fence("lock:k")).(int64); left <= 100_000 {
		t.Errorf("the counter ends in %d ms", left)
	}
}

// A server that comes back with an older snapshot has counters that go on below what it had
// promised since. They live as long as the names are used.
func TestTokensRiseOnAServerThatComesBackWithOlderData(t *testing.T) {
	for _, n := range []int{1, 3, 0} {
		name, hidden := fmt.Sprintf("nodes=%d", n), n == 0
		if hidden {
			name, n = "one node whose INFO has no run_id", 1
		}
		t.Run(name, func(t *testing.T) {
			r := start(t, n)
			nodes := r.nodes()
			if hidden {
				nodes = r.disguised("INFO", "run_id:", "other_id:").nodes()
			}
			c := r.clientOf(r.driver(nodes, nil), nil)
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
				if err := s.Restart(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			for i := range 3 {
				var l *holdfast.Lease
				r.eventually("a lease", func() (ok bool) {
					var err error
					l, err = c.TryAcquire(t.Context(), "k", &holdfast.AcquireOptions{TTL: long})
					return err == nil
				})
				if l.Token() < last.Token()+quorum.Block {
					t.Errorf("grant %d after the restart has token %d, that of before %d", i, l.Token(), last.Token())
				}
				last = l
				r.release(l)
			}
		})
	}
}
