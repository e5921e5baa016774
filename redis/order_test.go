package redis_test

import (
	"context"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// hangServer stops the i-th server until resume is called.
func (r *rig) hangServer(i int) (resume func()) {
	r.Helper()
	r.noError(r.servers[i].Pause())
	return func() {
		r.Helper()
		r.noError(r.servers[i].Resume())
	}
}

// A batch contains an acquire and its release, and the server knows only the script of the release. If the
// client sent only the acquire again, it would be executed after its release and leave a lock without a holder.
func TestUnloadedScriptKeepsRequestOrder(t *testing.T) {
	r := startRig(t, 1)
	d := r.openDriver(r.nodes(), nil)
	t.Cleanup(func() { d.Close() })
	for i := range 5 { // a busy machine does not always make such a batch
		request := driver.Request{Key: strconv.Itoa(i), TTL: longTTL}
		held, err := d.Acquire(r.boundedContext(), request)
		r.noError(err)
		r.do(0, "SCRIPT", "FLUSH")
		r.do(0, "SCRIPT", "LOAD", wire.Release.Text)
		resume := r.hangServer(0)
		released := make(chan error, 1)
		go func() { released <- d.Release(r.Context(), held, 0) }()
		time.Sleep(10 * time.Millisecond) // the release is written, and the next requests share a batch
		ctx, cancel := context.WithTimeout(r.Context(), 50*time.Millisecond)
		if _, err := d.Acquire(ctx, request); err == nil {
			t.Error("a stopped server granted a lock")
		}
		cancel()
		resume()
		if err := <-released; err != nil {
			t.Errorf("Release() = %v", err)
		}
	}
	r.checkCleared()
}

// Other requests skip a hung node, but a release is queued for it.
func TestReleaseWaitsForHungNode(t *testing.T) {
	r := startRig(t, 3)
	c := r.newClient()
	l := r.acquire(c, "k", &holdfast.AcquireOptions{TTL: longTTL})
	resume := r.hangServer(0)
	if err := l.Extend(r.Context(), longTTL); err != nil {
		t.Errorf("Extend() without a minority = %v", err)
	}
	time.Sleep(pace.Scale(400 * time.Millisecond)) // by now the node counts as hung
	r.release(l)
	resume()
	r.checkCleared()
}

// A wake-up that was sent while the connection was down is lost. The waiter asks as soon as it is subscribed
// again, not when its own timer, of a second, expires.
func TestNewSubscriptionTriggersRequest(t *testing.T) {
	r := startRig(t, 1)
	way := newRoute(t, r.servers)
	holder, waiter := r.newClient(), r.clientOf(r.openDriver(way.nodes(), nil), nil)
	var asked atomic.Int32
	way[0].CutAfter(func(args [][]byte) bool {
		if callsOf(wire.Acquire)(args) {
			asked.Add(1)
		}
		return false
	}, 1)
	best := time.Hour
	for range 5 { // a busy machine may be slow to dial
		l := r.acquire(holder, "k", &holdfast.AcquireOptions{TTL: longTTL})
		granted := make(chan time.Time)
		go func() {
			next := r.acquire(waiter, "k", &holdfast.AcquireOptions{TTL: longTTL})
			granted <- time.Now()
			r.release(next)
			close(granted)
		}()
		r.awaitWaiters(holder, "k", 1)
		before := asked.Load()
		r.eventually("the waiter's timer has run out", func() bool { return asked.Load() > before })
		time.Sleep(20 * time.Millisecond) // its answer has come, and it rests for another second
		way[0].Cut()
		r.release(l)
		begin := time.Now()
		best = min(best, (<-granted).Sub(begin))
		<-granted
	}
	if best > 500*time.Millisecond {
		t.Errorf("a waiter whose connection broke waited for at least %v", best)
	}
	r.checkCleared()
}

// A counter that somebody has set is raised to the floor of the node's admission.
func TestTokensRiseAfterCounterIsSetByHand(t *testing.T) {
	r := startRig(t, 1)
	c := r.newClient()
	first := r.acquire(c, "k", nil)
	r.release(first)
	for _, counter := range []string{"-40", "-1", "7"} {
		r.do(0, "SET", wire.ServerFence("lock:k"), counter)
		l := r.acquire(c, "k", nil)
		if l.Token() < first.Token()-holdfast.Token(time.Minute.Microseconds()) {
			t.Errorf("counter %s: token %d, long before %d", counter, l.Token(), first.Token())
		}
		r.release(l)
	}
	r.checkCleared()
}

// The test is not parallel, because descriptors belong to the process.
func TestCloseClosesAllDescriptors(t *testing.T) {
	r := &rig{T: t, servers: redistest.StartN(t, 3)}
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skipf("only Linux tells which descriptors are open: %v", err)
		}
		return len(entries)
	}
	round := func() {
		c := r.newClient()
		for i := range 5 {
			r.release(r.acquire(c, strconv.Itoa(i), nil))
		}
		r.noError(c.Close())
	}
	round()
	before := count()
	for range 20 {
		round()
	}
	r.eventually("descriptors are given back", func() bool { return count() <= before })
	if _, err := r.open(append(r.nodes(), r.nodes()[0]), nil); err == nil {
		t.Fatal("Open accepted a set with the same server twice")
	}
	r.eventually("a refused set leaves nothing open", func() bool { return count() <= before })
}
