package engine

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/quorum"
)

// timedNode is a node that serves one request after the other, each in the same time.
type timedNode struct {
	name       string
	each       atomic.Int64 // time of each request
	maxWaiting int          // highest number of waiting requests
	in         chan *Request
	served     [quorum.AskAdopt + 1]atomic.Int64 // by kind
	order      []string                          // owners and keys of the acquires
	silent     atomic.Bool                       // true: no request is answered
	down       atomic.Bool                       // true: no request arrives
}

func (k *timedNode) Name() string { return k.name }

func (k *timedNode) Subscribe() {}

func (k *timedNode) Send(r *Request) {
	switch {
	case k.down.Load():
		r.Fail(Failure{Err: errors.New("down"), Unsent: true})
	case !k.silent.Load():
		k.in <- r
	}
}

// serveRequests serves requests until the test ends.
func (k *timedNode) serveRequests(ctx context.Context) {
	locks := make(map[string]quorum.Lock)
	for {
		select {
		case r := <-k.in:
			k.maxWaiting = max(k.maxWaiting, len(k.in)+1)
			time.Sleep(time.Duration(k.each.Load()))
			k.served[r.Kind].Add(1)
			if r.Kind == quorum.AskAcquire {
				k.order = append(k.order, r.Lock.Name)
			}
			lock, reply, _ := locks[r.Lock.Name].Execute(time.Now().UnixMicro(), &r.Ask, func(string) bool { return false })
			locks[r.Lock.Name] = lock
			r.Answer(reply)
		case <-ctx.Done():
			return
		}
	}
}

// runWithTimedNodes runs fn in virtual time, with an engine over n timed nodes that need the time each for a request.
func runWithTimedNodes(t *testing.T, n int, each time.Duration, fn func(t *testing.T, e *Engine, timed []*timedNode)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var timed []*timedNode
		var nodes []Node
		for i := range n {
			k := &timedNode{name: fmt.Sprint("node-", i), in: make(chan *Request, 1_000_000)}
			k.each.Store(int64(each))
			timed, nodes = append(timed, k), append(nodes, k)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var working sync.WaitGroup
		for _, k := range timed {
			working.Go(func() { k.serveRequests(ctx) })
		}
		fn(t, New(Config{Nodes: nodes}), timed)
		cancel()
		working.Wait()
	})
}

func (k *timedNode) totalServed() (n int64) {
	for i := range k.served {
		n += k.served[i].Load()
	}
	return n
}

// acquireMany starts n callers at once, each with a key of its own. Each calls done with its result.
func acquireMany(ctx context.Context, e *Engine, n int, ttl time.Duration, done func(i int, g driver.Grant, err error)) (wait func()) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			g, err := e.Acquire(ctx, driver.Request{Key: fmt.Sprint(i), TTL: ttl})
			done(i, g, err)
		})
		synctest.Wait() // so that they queue in order
	}
	return all.Wait
}

// checkGranted returns a callback that fails the test if a caller got no lock.
func checkGranted(t *testing.T) func(int, driver.Grant, error) {
	return func(i int, _ driver.Grant, err error) {
		if err != nil {
			t.Errorf("caller %d: %v", i, err)
		}
	}
}

const (
	crowdTTL   = 2 * time.Second
	perRequest = time.Millisecond
	crowdSize  = 1500 // seven times what a node serves in quorum.RequestTimeout
)

// checkPrompt fails the test if more time has passed since begin than a node needs for n requests.
func checkPrompt(t *testing.T, begin time.Time, n int) {
	t.Helper()
	if took, least := time.Since(begin), time.Duration(n)*perRequest; took > least+least/10 {
		t.Errorf("took %v, want %v and at most a tenth more", took, least)
	}
}

// checkIdle checks that no round is in progress.
func checkIdle(t *testing.T, e *Engine) {
	t.Helper()
	l := e.lane(Lock{})
	if load := l.Load(0); load.Out != 0 || load.Waiting != 0 {
		t.Errorf("%d rounds are pending and %d wait", load.Out, load.Waiting)
	}
}

func TestManyWaitersAreServedPromptlyInOrder(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{1, 3} {
		t.Run(fmt.Sprint(nodes, " nodes"), func(t *testing.T) {
			runWithTimedNodes(t, nodes, perRequest, func(t *testing.T, e *Engine, timed []*timedNode) {
				begin := time.Now()
				acquireMany(t.Context(), e, crowdSize, crowdTTL, checkGranted(t))()
				checkPrompt(t, begin, crowdSize)
				time.Sleep(time.Second) // a third node may be slower
				synctest.Wait()
				for _, k := range timed {
					if n := k.totalServed(); n != crowdSize {
						t.Errorf("%s served %d requests for %d locks", k.name, n, crowdSize)
					}
					for i, name := range k.order {
						if came, _ := strconv.Atoi(name); max(came-i, i-came) > 5 { // some begin at the same time
							t.Fatalf("%s received the request for lock %s at position %d", k.name, name, i)
						}
					}
				}
			})
		})
	}
}

func TestSilentNodeDoesNotDelayWaiters(t *testing.T) {
	runWithTimedNodes(t, 5, perRequest, func(t *testing.T, e *Engine, timed []*timedNode) {
		timed[2].silent.Store(true)
		begin := time.Now()
		acquireMany(t.Context(), e, crowdSize, crowdTTL, checkGranted(t))()
		checkPrompt(t, begin, crowdSize)
	})
}

// A node that stops answering delays the others until it counts as silent.
func TestNewlySilentNodeDelaysWaitersBriefly(t *testing.T) {
	runWithTimedNodes(t, 5, perRequest, func(t *testing.T, e *Engine, timed []*timedNode) {
		begin := time.Now()
		wait := acquireMany(t.Context(), e, crowdSize, crowdTTL, checkGranted(t))
		time.Sleep(300 * perRequest)
		timed[2].silent.Store(true)
		wait()
		checkPrompt(t, begin, crowdSize+int(int64(pace.OverdueTime())/int64(perRequest)))
		time.Sleep(time.Second)
		synctest.Wait()
		checkIdle(t, e)
	})
}

// A slow node must be able to replace one that stops.
func TestSlowNodeDoesNotFallBehind(t *testing.T) {
	runWithTimedNodes(t, 3, perRequest, func(t *testing.T, e *Engine, timed []*timedNode) {
		timed[2].each.Store(int64(2 * perRequest))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		wait := acquireMany(ctx, e, crowdSize, crowdTTL, checkGranted(t))
		time.Sleep(crowdSize / 2 * perRequest)
		timed[0].silent.Store(true)
		wait()
		time.Sleep(time.Second)
		synctest.Wait()
		for _, k := range timed[1:] {
			if n := k.totalServed(); n != crowdSize {
				t.Errorf("%s served %d requests for %d locks", k.name, n, crowdSize)
			}
			if k.maxWaiting > 2*initialRounds {
				t.Errorf("%d requests are queued at %s", k.maxWaiting, k.name)
			}
		}
		checkIdle(t, e)
	})
}

func TestManyWaitersSurviveOutage(t *testing.T) {
	runWithTimedNodes(t, 1, perRequest, func(t *testing.T, e *Engine, timed []*timedNode) {
		wait := acquireMany(t.Context(), e, crowdSize, crowdTTL, checkGranted(t))
		time.Sleep(100 * perRequest)
		timed[0].down.Store(true)
		time.Sleep(2 * time.Second)
		timed[0].down.Store(false)
		begin := time.Now()
		wait()
		checkPrompt(t, begin, crowdSize)
	})
}

func TestCancelBeforeTurnSendsNoRequest(t *testing.T) {
	runWithTimedNodes(t, 1, perRequest, func(t *testing.T, e *Engine, timed []*timedNode) {
		ctx, cancel := context.WithCancel(t.Context())
		var got, left atomic.Int64
		wait := acquireMany(ctx, e, crowdSize, crowdTTL, func(_ int, _ driver.Grant, err error) {
			if err == nil {
				got.Add(1)
				return
			}
			u, ok := errors.AsType[*driver.UnavailableError](err)
			if !errors.Is(err, context.Canceled) || ok && len(u.Nodes) > 0 {
				t.Errorf("cancelled Acquire = %v", err)
			}
			if ok && strings.Contains(err.Error(), "requests waiting for their turn") {
				left.Add(1)
			}
		})
		time.Sleep(100 * perRequest)
		synctest.Wait()
		cancel()
		wait()
		time.Sleep(time.Second)
		served := &timed[0].served
		asked, freed := served[quorum.AskAcquire].Load(), served[quorum.AskRelease].Load()
		if asked+left.Load() != crowdSize || asked != got.Load()+freed {
			t.Errorf("%d callers had a lock, %d left before their turn; the node served %d acquires and %d releases", got.Load(), left.Load(), asked, freed)
		}
		checkIdle(t, e)
	})
}

// The error names the reason, and no node.
func TestSingleAttemptWaitsOnlyForTurn(t *testing.T) {
	runWithTimedNodes(t, 1, perRequest, func(t *testing.T, e *Engine, _ []*timedNode) {
		wait := acquireMany(t.Context(), e, crowdSize, crowdTTL, checkGranted(t))
		begin := time.Now()
		_, err := e.Acquire(t.Context(), driver.Request{Key: "k", TTL: crowdTTL, NoWait: true})
		if took := time.Since(begin); took != time.Duration(quorum.RequestTimeout(int64(crowdTTL))) {
			t.Errorf("TryAcquire took %v", took)
		}
		u, ok := errors.AsType[*driver.UnavailableError](err)
		if !ok || len(u.Nodes) > 0 || !strings.HasPrefix(err.Error(), "this client has ") {
			t.Errorf("TryAcquire beside many waiters = %v", err)
		}
		wait()
		if _, err := e.Acquire(t.Context(), driver.Request{Key: "k", TTL: crowdTTL, NoWait: true}); err != nil {
			t.Errorf("TryAcquire afterwards = %v", err)
		}
	})
}

// With a TTL of 1 s a renewal has 100 ms.
func TestRenewalsAndReleasesOvertakeWaiters(t *testing.T) {
	runWithTimedNodes(t, 3, perRequest, func(t *testing.T, e *Engine, _ []*timedNode) {
		g, err := e.Acquire(t.Context(), driver.Request{Key: "k", TTL: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		wait := acquireMany(t.Context(), e, crowdSize, crowdTTL, checkGranted(t))
		for range 2 { // half of them wait then
			time.Sleep(time.Second / 3)
			if r := e.Renew(t.Context(), []driver.Grant{g})[0]; r.Err != nil {
				t.Errorf("Renew beside many waiters: %v", r.Err)
			}
		}
		begin := time.Now()
		if err := e.Release(t.Context(), g, 0); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took > 200*time.Millisecond {
			t.Errorf("Release beside many waiters took %v", took)
		}
		wait()
	})
}

func TestManyReleasesArePrompt(t *testing.T) {
	runWithTimedNodes(t, 1, perRequest, func(t *testing.T, e *Engine, timed []*timedNode) {
		grants := make([]driver.Grant, crowdSize)
		acquireMany(t.Context(), e, crowdSize, time.Minute, func(i int, g driver.Grant, _ error) { grants[i] = g })()
		begin := time.Now()
		var all sync.WaitGroup
		for _, g := range grants {
			all.Go(func() {
				if err := e.Release(t.Context(), g, 0); err != nil {
					t.Errorf("Release: %v", err)
				}
			})
		}
		all.Wait()
		checkPrompt(t, begin, crowdSize)
		if n := timed[0].served[quorum.AskRelease].Load(); n != crowdSize {
			t.Errorf("the node served %d releases", n)
		}
	})
}

// The release is sent even if the engine closes first.
func TestCancelledReleaseIsStillSent(t *testing.T) {
	for _, closes := range []bool{false, true} {
		t.Run(fmt.Sprint("closes: ", closes), func(t *testing.T) {
			runWithTimedNodes(t, 1, perRequest, func(t *testing.T, e *Engine, timed []*timedNode) {
				grants := make([]driver.Grant, crowdSize)
				acquireMany(t.Context(), e, crowdSize, time.Minute, func(i int, g driver.Grant, _ error) { grants[i] = g })()
				ctx, cancel := context.WithCancel(t.Context())
				var all sync.WaitGroup
				for _, g := range grants {
					all.Go(func() { e.Release(ctx, g, 0) })
				}
				synctest.Wait()
				cancel()
				all.Wait()
				if closes {
					e.Close()
				}
				time.Sleep(crowdSize*perRequest + time.Second)
				if n := timed[0].served[quorum.AskRelease].Load(); n != crowdSize {
					t.Errorf("the node served %d releases", n)
				}
			})
		})
	}
}

// This also holds for a release that waits for its turn.
func TestReleaseEndsWithoutAnswers(t *testing.T) {
	runWithTimedNodes(t, 1, perRequest, func(t *testing.T, e *Engine, timed []*timedNode) {
		const n = 500
		grants := make([]driver.Grant, n)
		acquireMany(t.Context(), e, n, time.Minute, func(i int, g driver.Grant, _ error) { grants[i] = g })()
		timed[0].silent.Store(true)
		begin := time.Now()
		var all sync.WaitGroup
		for _, g := range grants {
			all.Go(func() {
				if err := e.Release(t.Context(), g, 0); !errors.Is(err, driver.ErrUnavailable) {
					t.Errorf("Release: %v", err)
				}
			})
		}
		all.Wait()
		if took := time.Since(begin); took > 2*time.Second {
			t.Errorf("the releases took %v", took)
		}
		e.Close()
		synctest.Wait()
	})
}

// Paused claims wait for a holder, not for an answer.
func TestSleepingClaimsLeaveLane(t *testing.T) {
	runWithTimedNodes(t, 1, perRequest, func(t *testing.T, e *Engine, timed []*timedNode) {
		const n = 4 * initialRounds
		acquireMany(t.Context(), e, n, time.Minute, checkGranted(t))()
		other := New(Config{Nodes: []Node{timed[0]}})
		ctx, cancel := context.WithCancel(t.Context())
		wait := acquireMany(ctx, other, n, crowdTTL, func(_ int, _ driver.Grant, err error) {
			if !errors.Is(err, driver.ErrHeld) {
				t.Errorf("waiter for a holder = %v", err)
			}
		})
		time.Sleep(3 * time.Second)
		begin := time.Now()
		if _, err := other.Acquire(t.Context(), driver.Request{Key: "free", TTL: crowdTTL}); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took > time.Second {
			t.Errorf("acquiring a free lock took %v beside %d waiters for holders", took, n)
		}
		cancel()
		wait()
		time.Sleep(2 * time.Second)
		checkIdle(t, other)
	})
}

func TestCloseEndsManyWaitsAtOnce(t *testing.T) {
	runWithTimedNodes(t, 1, perRequest, func(t *testing.T, e *Engine, timed []*timedNode) {
		wait := acquireMany(t.Context(), e, crowdSize, crowdTTL, func(_ int, _ driver.Grant, err error) {
			if err != nil && !errors.Is(err, driver.ErrClosed) {
				t.Errorf("Acquire: %v", err)
			}
		})
		time.Sleep(100 * perRequest)
		begin := time.Now()
		e.Close()
		wait()
		if took := time.Since(begin); took != 0 {
			t.Errorf("it took %v", took)
		}
		time.Sleep(time.Second)
		if n := timed[0].served[quorum.AskAcquire].Load(); n > 100+2*initialRounds {
			t.Errorf("the node served %d acquires", n)
		}
	})
}

// The round trip may become longer or shorter while the lane is in use.
func TestLaneLearnsRoundTrip(t *testing.T) {
	t.Parallel()
	var l Lane
	now, limit := int64(0), initialRounds
	for _, way := range []time.Duration{time.Millisecond, 200 * time.Millisecond, 50 * time.Millisecond, 300 * time.Millisecond} {
		for range 100 { // round trips
			now += int64(way)
			for range limit {
				limit = l.adjustLimit(roundExit{at: now, duration: int64(way), answered: true}, driverkit.Load{Room: limit, Out: limit, Waiting: 1})
			}
		}
		if limit != maxRounds {
			t.Errorf("lane limit %d with answers after %v", limit, way)
		}
	}
}
